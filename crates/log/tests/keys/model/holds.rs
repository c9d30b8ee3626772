//! Holds beside a plain map of the records that each of them sees.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::partition_of_key;
use millstream_log::{Hold, LogError, NewHold};

use super::{World, add};

const NAMES: u8 = 5;
const LIFE_MAX_MS: u64 = 40_000;

/// A hold as it should be.
#[derive(Debug, Clone)]
pub struct ModelHold {
    /// For each partition the offset behind the records that the hold sees.
    ends: Vec<u64>,
    /// For each partition where it began.
    firsts: Vec<u64>,
    until: i64,
    /// Whether a request to end it has failed.
    may_be_gone: bool,
}

/// The holds of a stream.
#[derive(Debug, Default)]
pub struct ModelHolds {
    known: BTreeMap<String, ModelHold>,
    /// Holds that may exist although creating them failed, with the partitions' first offsets at that time.
    uncertain: BTreeMap<String, Vec<u64>>,
}

impl ModelHold {
    fn of(hold: &Hold, firsts: Vec<u64>) -> ModelHold {
        let partitions = 0..hold.partitions;
        ModelHold {
            ends: partitions.map(|n| hold.end_of(n).0).collect(),
            firsts,
            until: hold.until.0,
            may_be_gone: false,
        }
    }
}

impl World<'_> {
    pub fn make_hold(&mut self) -> Result<(), LogError> {
        if !self.is_disk_full {
            self.rest();
        }
        let name = format!("h{}", self.rng.u8(..NAMES));
        let life = Duration::from_millis(self.rng.u64(1..LIFE_MAX_MS));
        let partitions = 0..self.partitions.len();
        let first = |n| Ok(self.partition(n)?.earliest_offset().0);
        let firsts: Vec<u64> = partitions.map(first).collect::<Result<_, LogError>>()?;
        let new = NewHold {
            name: &name,
            owner: "model",
            life: Some(life),
        };
        let made = self.log().create_hold("s", &new);
        self.note(format!("hold {name} for {life:?}: {made:?}"));
        let known = self.holds.known.get(&name);
        let in_force = known.filter(|hold| hold.until > self.now_ms());
        match made {
            Ok(hold) => {
                assert!(in_force.is_none_or(|hold| hold.may_be_gone));
                for (n, model) in self.partitions.iter().enumerate() {
                    let stable = model.stable().max(firsts[n]);
                    let end = hold.end_of(n as u32).0;
                    assert!(end <= stable, "{end} of {stable}");
                    let missed = model
                        .committed(stable)
                        .find(|record| record.offset >= end && record.offset >= firsts[n]);
                    let is_durable = !self.is_disk_full && !self.machine.disk.has_crashed();
                    assert!(missed.is_none() || !is_durable, "{end}: {missed:?}");
                }
                self.holds.uncertain.remove(&name);
                let hold = ModelHold::of(&hold, firsts);
                self.holds.known.insert(name, hold);
                Ok(())
            }
            Err(LogError::Exists { .. }) => {
                assert!(in_force.is_some() || self.holds.uncertain.contains_key(&name));
                Ok(())
            }
            // Partitions commit each for itself here, so this may be at any time.
            Err(LogError::HoldSplits { .. }) => {
                assert!(self.partitions.len() > 1);
                Ok(())
            }
            Err(error) => {
                // An earlier one may be there, too.
                self.holds.uncertain.entry(name).or_insert(firsts);
                Err(error)
            }
        }
    }

    pub fn end_hold(&mut self) -> Result<(), LogError> {
        let name = format!("h{}", self.rng.u8(..NAMES));
        let now = self.now_ms();
        let ended = self.log().delete_hold("s", &name);
        self.note(format!("end of hold {name}: {ended:?}"));
        let known = self.holds.known.get_mut(&name);
        let is_uncertain = self.holds.uncertain.contains_key(&name);
        match ended {
            Ok(()) => {
                assert!(known.is_some() || is_uncertain);
                self.holds.known.remove(&name);
                self.holds.uncertain.remove(&name);
                Ok(())
            }
            Err(LogError::UnknownHold { .. }) => {
                assert!(known.is_none_or(|hold| hold.until <= now || hold.may_be_gone));
                Ok(())
            }
            Err(error) => {
                known
                    .into_iter()
                    .for_each(|hold| hold.may_be_gone |= hold.until > now);
                Err(error)
            }
        }
    }

    /// Looks up the values that keys had when each hold was made.
    pub fn check_holds(&mut self) -> Result<(), LogError> {
        let now = self.now_ms();
        let listed = self.stream()?.holds();
        let names: Vec<&str> = listed.iter().map(|found| &*found.hold.name).collect();
        for (name, hold) in &self.holds.known {
            let is_listed = names.contains(&&**name);
            let must_be_there = hold.until > now && !hold.may_be_gone;
            assert!(is_listed || !must_be_there, "hold {name} is lost: {hold:?}");
            let uncertain = self.holds.uncertain.contains_key(name);
            assert!(
                !is_listed || hold.until > now || uncertain,
                "{name} is over"
            );
        }
        for found in &listed {
            let name = found.hold.name.clone();
            if let Some(firsts) = self.holds.uncertain.remove(&name) {
                let hold = ModelHold::of(&found.hold, firsts);
                self.holds.known.insert(name.clone(), hold);
            }
            let hold = self.holds.known.get(&name);
            let hold = hold.expect("the model has made it").clone();
            assert_eq!(found.hold.until.0, hold.until);
            let ends = ModelHold::of(&found.hold, Vec::new()).ends;
            assert_eq!(ends, hold.ends, "hold {name}");
            for _ in 0..4 {
                let key = self.rng.choice(&self.keys).unwrap().clone();
                self.check_held(&name, &hold, &key)?;
            }
        }
        Ok(())
    }

    fn check_held(&self, name: &str, hold: &ModelHold, key: &[u8]) -> Result<(), LogError> {
        let partitions = self.partitions.len();
        let found = self.stream()?.get_at_hold(key, name);
        if partitions != hold.ends.len() {
            assert!(
                matches!(found, Err(LogError::HoldOutgrown { .. })),
                "{found:?}"
            );
            return Ok(());
        }
        let n = partition_of_key(key, partitions);
        let model = &self.partitions[n];
        let earliest = self.partition(n)?.earliest_offset().0;
        let seen = earliest..hold.ends[n];
        let right = match seen.is_empty() {
            true => None,
            false => {
                let life = (self.ttl, self.keyed_now_ms());
                model.table(seen, n, partitions, life).remove(key)
            }
        };
        let context = format!("key {key:?} at hold {name}: {hold:?}");
        match found {
            Ok(found) => {
                let found = found.map(|found| (found.offset.0, found.value.to_vec()));
                assert_eq!(found, right, "{context}");
                let Some((offset, _)) = found else {
                    add(&self.seen.held_absences, 1);
                    return Ok(());
                };
                // A pass would have dropped it without the hold.
                let is_newer = |record: &&super::partition::ModelRecord| {
                    record.offset > offset && record.key == key
                };
                let passed = model.committed(model.passed_to.min(model.stable()));
                add(
                    &self.seen.held_versions,
                    u64::from(passed.filter(is_newer).count() > 0),
                );
            }
            Err(error @ LogError::VersionNotKept { .. }) => {
                let is_excused = right.is_none() && earliest > hold.firsts[n];
                assert!(is_excused, "{context}: {error}, but {right:?}");
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
