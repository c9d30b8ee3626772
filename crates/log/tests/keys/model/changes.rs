//! Conditional changes, beside the model.

use std::time::Duration;

use millstream_base::{Offset, ProducerEpoch, ProducerId, partition_of_key};
use millstream_log::{
    ChangeError, ChangeTransaction, Changed, KeyChange, KeyCondition, LogError, NewValue,
};

use super::partition::{Batch, ModelPartition, ModelRecord};
use super::{TRANSACTIONAL, World, add};

/// The newest appended version of a key.
enum Newest {
    Undecided,
    Value(u64, Vec<u8>, Option<i64>),
    None,
}

/// The right outcome of a change.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Stored(Option<Vec<u8>>),
    OtherVersion(Option<u64>),
    NotANumber(u64),
    Overflow(i64),
    Undecided,
    NotAlone,
}

/// The time of a change, and the partition as it is then.
#[derive(Clone, Copy)]
struct Moment {
    earliest: u64,
    /// By the stream's clock.
    now: i64,
    /// The time of the new records.
    timestamp: i64,
    ttl: Option<i64>,
    /// Whether also changes without a condition refuse the keys of open transactions.
    is_exclusive: bool,
}

impl World<'_> {
    /// Makes some changes of keys that a partition owns.
    pub fn change(&mut self, n: usize) -> Result<(), LogError> {
        let partition = self.partition(n)?;
        let partitions = self.partitions.len();
        let owned = self.keys.iter();
        let owned = owned.filter(|key| partition_of_key(key, partitions) == n);
        let owned: Vec<Vec<u8>> = owned.cloned().collect();
        let count = self.rng.usize(1..6);
        let mut keys: Vec<_> = (0..count)
            .filter_map(|_| self.rng.choice(&owned).cloned())
            .collect();
        let is_together = self.rng.u8(..3) == 0;
        if is_together {
            keys.sort_unstable();
            keys.dedup();
        }
        let values: Vec<Vec<u8>> = (0..count)
            .map(|_| self.rng.i64(-5..5).to_string().into_bytes())
            .collect();
        let earliest = partition.earliest_offset().0;
        let changes: Vec<KeyChange<'_>> = keys
            .iter()
            .zip(&values)
            .map(|(key, value)| {
                let version = match self.partitions[n].newest(key, earliest, None, 0) {
                    Newest::Value(version, ..) if self.rng.u8(..4) > 0 => version,
                    _ => self.rng.u64(..=self.partitions[n].next),
                };
                // If one of several is refused, all are.
                let condition = match self.rng.u8(..if is_together { 12 } else { 4 }) {
                    0 | 4.. => KeyCondition::Any,
                    1 => KeyCondition::Present,
                    2 => KeyCondition::Absent,
                    _ => KeyCondition::Version(Offset(version)),
                };
                let value = match self.rng.u8(..if is_together { 10 } else { 4 }) {
                    0 => NewValue::Delete,
                    1 | 4.. => NewValue::Put(value),
                    2 => NewValue::Add(self.rng.i64(-5..5)),
                    _ => NewValue::Add(i64::MAX - 3),
                };
                KeyChange {
                    key,
                    condition,
                    value,
                    ttl: (self.rng.u8(..3) == 0)
                        .then(|| Duration::from_millis(self.rng.u64(..8_000))),
                    secondary: &[],
                }
            })
            .collect();
        let moment = Moment {
            earliest,
            now: self.keyed_now_ms(),
            timestamp: self.now_ms(),
            ttl: self.ttl,
            is_exclusive: false,
        };
        match is_together {
            true => self.change_together(n, &changes, moment)?,
            false => self.change_each(n, &changes, moment)?,
        }
        self.note(format!("{} changes", changes.len()));
        Ok(())
    }

    fn change_each(
        &mut self,
        n: usize,
        changes: &[KeyChange<'_>],
        moment: Moment,
    ) -> Result<(), LogError> {
        let changed = self.partition(n)?.change(changes)?;
        for (change, outcome) in changes.iter().zip(changed.outcomes) {
            let model = &mut self.partitions[n];
            let (expected, expires) = model.outcome(change, moment);
            if let Ok(Changed { version, .. }) = outcome {
                assert_eq!(version.0, model.next);
            }
            let found = shown(change, outcome)?;
            assert_eq!(found, expected, "{change:?}");
            if let Outcome::Stored(value) = found {
                add(&self.seen.changes, 1);
                // A crash may take away some of the changes of one call, if two are of the same key.
                model.batches.push(Batch {
                    producer: 0,
                    epoch: 0,
                    sequence: 0,
                    base: model.next,
                    count: 1,
                    is_transactional: false,
                });
                model.append_change(change.key, value, None, moment.timestamp, expires);
            } else {
                add(&self.seen.refused_changes, 1);
            }
        }
        Ok(())
    }

    /// Makes all changes or none, perhaps in a transaction that has no record in the partition yet.
    fn change_together(
        &mut self,
        n: usize,
        changes: &[KeyChange<'_>],
        moment: Moment,
    ) -> Result<(), LogError> {
        let id = self.rng.i64(TRANSACTIONAL);
        let model = &self.partitions[n];
        let is_open = model.transactions().open.contains_key(&id);
        let epoch = model.next_of(id).0 + 1;
        let producer = (!is_open && self.rng.bool()).then_some(id);
        let transaction = producer.map(|id| ChangeTransaction {
            producer: ProducerId(id),
            epoch: ProducerEpoch(epoch),
        });
        let moment = Moment {
            is_exclusive: transaction.is_some(),
            ..moment
        };
        let outcomes = changes.iter().map(|change| model.outcome(change, moment));
        let mut outcomes: Vec<_> = outcomes.collect();
        let is_stored = |(outcome, _): &_| matches!(outcome, Outcome::Stored(_));
        let are_stored = outcomes.iter().all(is_stored) && !changes.is_empty();
        if !are_stored {
            for outcome in outcomes.iter_mut().filter(|outcome| is_stored(outcome)) {
                outcome.0 = Outcome::NotAlone;
            }
        }
        let changed = self.partition(n)?.change_together(changes, transaction)?;
        assert_eq!(changed.outcomes.len(), changes.len());
        let model = &mut self.partitions[n];
        if are_stored {
            model.batches.push(Batch {
                producer: producer.unwrap_or(0),
                epoch: if producer.is_some() { epoch } else { 0 },
                sequence: 0,
                base: model.next,
                count: changes.len() as u64,
                is_transactional: producer.is_some(),
            });
        }
        for ((change, outcome), (expected, expires)) in
            changes.iter().zip(changed.outcomes).zip(outcomes)
        {
            if let Ok(Changed { version, .. }) = outcome {
                assert_eq!(version.0, model.next);
            }
            let found = shown(change, outcome)?;
            assert_eq!(found, expected, "{change:?} in {transaction:?}");
            match found {
                Outcome::Stored(value) => {
                    model.append_change(change.key, value, producer, moment.timestamp, expires);
                    add(&self.seen.together, 1);
                }
                Outcome::NotAlone => add(&self.seen.refused_together, 1),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The outcome of a change, as the model has it.
fn shown(
    change: &KeyChange<'_>,
    outcome: Result<Changed, ChangeError>,
) -> Result<Outcome, LogError> {
    Ok(match outcome {
        Err(ChangeError::Log(error)) => return Err(error),
        Ok(Changed { sum, .. }) => Outcome::Stored(match change.value {
            NewValue::Put(value) => Some(value.to_vec()),
            NewValue::Delete => None,
            NewValue::Add(_) => sum.map(|sum| sum.to_string().into_bytes()),
        }),
        Err(ChangeError::OtherVersion { newest }) => {
            Outcome::OtherVersion(newest.map(|newest| newest.0))
        }
        Err(ChangeError::NotANumber { newest }) => Outcome::NotANumber(newest.0),
        Err(ChangeError::Overflow { value }) => Outcome::Overflow(value),
        Err(ChangeError::Undecided) => Outcome::Undecided,
        Err(ChangeError::NotAlone) => Outcome::NotAlone,
    })
}

impl ModelPartition {
    fn newest(&self, key: &[u8], earliest: u64, ttl: Option<i64>, now: i64) -> Newest {
        let transactions = self.transactions();
        let mut newest = Newest::None;
        for record in self.records.iter().filter(|record| record.key == key) {
            let is_open = |producer| {
                let first = transactions.open.get(&producer);
                first.is_some_and(|first| *first <= record.offset)
            };
            if transactions.has_aborted(record) || record.offset < earliest {
                continue;
            }
            if record.producer.is_some_and(is_open) {
                return Newest::Undecided;
            }
            newest = match record.value.clone() {
                Some(_) if record.has_ended(ttl, now) => Newest::None,
                Some(value) => Newest::Value(record.offset, value, record.expires),
                None => Newest::None,
            };
        }
        newest
    }

    /// The right outcome, and the end that the new record names.
    fn outcome(&self, change: &KeyChange<'_>, moment: Moment) -> (Outcome, Option<i64>) {
        let Moment {
            earliest, now, ttl, ..
        } = moment;
        let end = change.ttl.map(|ttl| now + ttl.as_millis() as i64);
        let is_free =
            change.condition == KeyCondition::Any && !matches!(change.value, NewValue::Add(_));
        let newest = match self.newest(change.key, earliest, ttl, now) {
            Newest::Undecided if moment.is_exclusive || !is_free => {
                return (Outcome::Undecided, None);
            }
            Newest::Undecided | Newest::None => None,
            Newest::Value(offset, value, expires) => Some((offset, value, expires)),
        };
        let offset = newest.as_ref().map(|(offset, ..)| *offset);
        let holds = match change.condition {
            KeyCondition::Any => true,
            KeyCondition::Present => offset.is_some(),
            KeyCondition::Absent => offset.is_none(),
            KeyCondition::Version(version) => offset == Some(version.0),
        };
        if !holds {
            return (Outcome::OtherVersion(offset), None);
        }
        let number = match change.value {
            NewValue::Put(value) => return (Outcome::Stored(Some(value.to_vec())), end),
            NewValue::Delete => return (Outcome::Stored(None), None),
            NewValue::Add(number) => number,
        };
        let end = newest.as_ref().map_or(end, |(.., expires)| *expires);
        let text = newest.map_or(b"0".to_vec(), |(_, value, _)| value);
        let parsed: Option<i64> = str::from_utf8(&text)
            .ok()
            .and_then(|text| text.parse().ok());
        let Some(value) = parsed.filter(|value| value.to_string().as_bytes() == text) else {
            return (Outcome::NotANumber(offset.unwrap_or_default()), None);
        };
        match value.checked_add(number) {
            Some(sum) => (Outcome::Stored(Some(sum.to_string().into_bytes())), end),
            None => (Outcome::Overflow(value), None),
        }
    }

    fn append_change(
        &mut self,
        key: &[u8],
        value: Option<Vec<u8>>,
        producer: Option<i64>,
        timestamp: i64,
        expires: Option<i64>,
    ) {
        self.records.push(ModelRecord {
            offset: self.next,
            key: key.to_vec(),
            value,
            tags: Vec::new(),
            producer,
            timestamp,
            expires,
        });
        self.next += 1;
    }
}
