//! Elements beside plain collections, through checkpoints, crashes and restores.

mod collections;
mod contents;
mod lifetimes;
mod numbers;
mod replicas;

use std::collections::BTreeMap;
use std::fmt::Debug;

use fastrand::Rng;

use super::Element;
use crate::ranks::owners::KeyOwners;
use crate::state::lockable::Lockable;
use crate::state::logged::LoggedState;
use crate::state::memory::StateMemory;
use crate::state::partial::StateReader;
use crate::state::value_encoding::Encoding;
use crate::state::values::Place;
use crate::windows::Key;

/// A kind of elements, and the plain collections beside it.
trait Subject {
    type Key: Key;
    type Element: Element<Self::Key>;
    type Plain: Clone + PartialEq + Debug + Default;

    fn element(place: &Place) -> Self::Element;
    fn state(element: &Self::Element) -> &dyn State;

    /// Makes a random change of both, and compares their answers.
    fn change(element: &Self::Element, plain: &mut Self::Plain, rng: &mut Rng);
    fn read(element: &Self::Element) -> Self::Plain;

    /// Adds the content of another rank.
    fn join(plain: &mut Self::Plain, other: Self::Plain);
}

trait State: LoggedState + StateReader {}

impl<S: LoggedState + StateReader> State for S {}

/// The content of all keys has few keys and fields, so that changes meet.
const KEYS: u64 = 4;
const FIELDS: u64 = 4;

/// Changes the content of a key as an operator does.
fn change<E: Element<u64>, R>(
    element: &E,
    key: u64,
    change: impl FnOnce(E::Content<'_>) -> R,
) -> R {
    let partitions = element.partitions().unwrap();
    let owner = KeyOwners::new(1, partitions).of(&key).unwrap();
    let partition = element.partition(owner.partition);
    let changed = element.change(&mut partition.lock_all(), &key, change);
    changed.expect("it is in memory")
}

fn place(rank: u32, ranks: u32, partitions: usize) -> Place {
    Place {
        rank,
        ranks,
        partitions,
        memory: StateMemory::of_process(),
        lifetime: None,
        encoding: Encoding::Json,
    }
}

type Changelog = BTreeMap<Vec<u8>, Vec<u8>>;

/// An element with a changelog.
struct Run<S: Subject> {
    element: S::Element,
    plain: S::Plain,
    checkpoint: u64,
    /// The changes that a checkpoint has committed, and the content then.
    committed: (Changelog, S::Plain),
    /// Checkpoints that are written, and not committed.
    written: Vec<(u64, Changelog, S::Plain)>,
}

impl<S: Subject> Run<S> {
    fn begin(encoding: Encoding, committed: (Changelog, S::Plain), partitions: usize) -> Self {
        let element = S::element(&Place {
            encoding,
            ..place(0, 1, partitions)
        });
        let state = S::state(&element);
        state.note_changes();
        for (key, value) in &committed.0 {
            state.restore_change(key, Some(value)).unwrap();
        }
        state.restored();
        Run {
            plain: committed.1.clone(),
            element,
            checkpoint: 0,
            committed,
            written: Vec::new(),
        }
    }

    fn change(&mut self, rng: &mut Rng) {
        S::change(&self.element, &mut self.plain, rng);
    }

    /// Writes a checkpoint, while the element goes on to change. It may fail.
    fn write(&mut self, rng: &mut Rng) {
        self.checkpoint += 1;
        let state = S::state(&self.element);
        state.cut(self.checkpoint);
        let cut = self.plain.clone();
        let last = self.written.last().map(|(_, changelog, _)| changelog);
        let mut changelog = last.unwrap_or(&self.committed.0).clone();
        let plain = &mut self.plain;
        let fails = rng.u8(..6) == 0;
        let written = state.write(self.checkpoint, &mut |changes| {
            for change in changes {
                let change = change?;
                match change.value {
                    Some(value) => changelog.insert(change.key, value),
                    None => changelog.remove(&change.key),
                };
                if fails && rng.bool() {
                    return Err("it fails".into());
                }
                if rng.u8(..4) == 0 {
                    S::change(&self.element, plain, rng);
                }
            }
            Ok(())
        });
        if written.is_ok() {
            state.written(self.checkpoint);
            self.written.push((self.checkpoint, changelog, cut));
        }
    }

    fn commit(&mut self) {
        if !self.written.is_empty() {
            let (checkpoint, changelog, plain) = self.written.remove(0);
            S::state(&self.element).complete(checkpoint);
            self.committed = (changelog, plain);
        }
    }

    fn check(&self) {
        assert_eq!(S::read(&self.element), self.plain);
    }
}

fn check_random_runs<S: Subject>() {
    for seed in 0..26 {
        let mut rng = Rng::with_seed(seed);
        let encoding = match seed % 2 {
            0 => Encoding::Json,
            _ => Encoding::Postcard,
        };
        let mut run = Run::<S>::begin(encoding, Default::default(), 3);
        for _ in 0..300 {
            match rng.u32(..40) {
                0 => run = Run::begin(encoding, run.committed, rng.usize(1..5)),
                1..=3 => run.write(&mut rng),
                4..=5 => run.commit(),
                6 => S::state(&run.element).sweep(),
                _ => run.change(&mut rng),
            }
            run.check();
        }
        // Whole, for a checkpoint without a changelog.
        let saved = S::state(&run.element).save().unwrap();
        let other = S::element(&place(0, 1, 2));
        S::state(&other).restore(&saved).unwrap();
        assert_eq!(S::read(&other), run.plain);
        // A changelog for other ranks.
        run.write(&mut Rng::with_seed(0));
        while !run.written.is_empty() {
            run.commit();
        }
        let (changelog, plain) = run.committed;
        let mut joined = S::Plain::default();
        for rank in 0..3 {
            let element = S::element(&Place {
                encoding,
                ..place(rank, 3, 2)
            });
            for (key, value) in &changelog {
                S::state(&element).restore_change(key, Some(value)).unwrap();
            }
            S::join(&mut joined, S::read(&element));
        }
        assert_eq!(joined, plain);
    }
}
