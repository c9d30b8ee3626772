//! The keys of the records in flight: the order in which a group with `share.order=key` gets them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use millstream_base::Offset;

/// The hash of a record's key. Two keys with the same hash count as one, which orders their records, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

/// The turn of a record among those of its key; within a turn, offsets decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Turn {
    /// A member had the record already when the group learnt its key.
    Out,
    /// The record's turn comes after all earlier ones of its key.
    Waiting,
}

/// The unfinished records that have a key, and one queue for each key.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The keys of all unfinished records before this offset are known.
    pub known_to: Offset,
    by_offset: BTreeMap<Offset, KeyHash>,
    /// The same records, in the order of each key.
    queues: BTreeSet<(KeyHash, Turn, Offset)>,
}

impl Keys {
    /// No keys are known of records from `known_to` on.
    pub fn new(known_to: Offset) -> Keys {
        Keys {
            known_to,
            by_offset: BTreeMap::new(),
            queues: BTreeSet::new(),
        }
    }

    /// The number of records with a key.
    pub fn len(&self) -> usize {
        self.by_offset.len()
    }

    pub fn insert(&mut self, record: Offset, key: KeyHash, turn: Turn) {
        self.by_offset.insert(record, key);
        self.queues.insert((key, turn, record));
    }

    /// Removes a record: it is finished.
    pub fn remove(&mut self, record: Offset) {
        if let Some(key) = self.by_offset.remove(&record) {
            self.leave(key, record);
        }
    }

    /// Puts a record that a member gives back into its place among those that wait.
    pub fn give_back(&mut self, record: Offset) {
        if let Some(key) = self.by_offset.get(&record).copied() {
            self.leave(key, record);
            self.queues.insert((key, Turn::Waiting, record));
        }
    }

    fn leave(&mut self, key: KeyHash, record: Offset) {
        if !self.queues.remove(&(key, Turn::Waiting, record)) {
            self.queues.remove(&(key, Turn::Out, record));
        }
    }

    /// The records of a range, with their keys.
    pub fn within(&self, range: Range<Offset>) -> impl Iterator<Item = (Offset, KeyHash)> {
        let records = self.by_offset.range(range);
        records.map(|(record, key)| (*record, *key))
    }

    /// The record of a key whose turn it is.
    pub fn first(&self, key: KeyHash) -> Option<(Turn, Offset)> {
        let from = (key, Turn::Out, Offset(0));
        let (of, turn, record) = self.queues.range(from..).next()?;
        (*of == key).then_some((*turn, *record))
    }
}
