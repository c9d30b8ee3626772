//! A table that does not have all values in memory, after a restore: the others are in the changelog.
//!
//! A key is *known* if its value here is right: it was asked for, or it has changed in this run. The scan of the changelog
//! *stages* the values of other keys in the order of the log, so that a newer one may follow; until the scan ends they
//! are not read. A key that has changed in this run stays known. So the newest committed change of any other key is of an
//! earlier run, and a value that was loaded for it cannot be old, however late it comes.

use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use indexmap::IndexSet;
use serde::Serialize;

use super::{Entry, ValueTable};
use crate::state::key_ref::KeyRef;
use crate::state::loading::Loading;

/// The number of a segment that no history has: the entry is staged, if the table is cold. Else it means nothing.
pub(super) const STAGED: u32 = u32::MAX;

/// The part of a table beside its entries, until all values are in memory.
pub struct Cold<K> {
    loading: Arc<Loading>,
    /// Keys that stages wait for, and that the loader has yet to take.
    wanted: IndexSet<K, RandomState>,
    /// Known keys without an entry, which have no value. Some may have got one since.
    absent: HashSet<K, RandomState>,
    /// A key that was loaded with a value.
    sample: Option<K>,
}

impl<K: Hash + Eq + Clone> Cold<K> {
    pub(super) fn is_absent(&self, key: &impl KeyRef<K>) -> bool {
        self.absent.contains(key)
    }

    /// The key has lost its entry.
    pub(super) fn forget(&mut self, key: K) {
        self.absent.insert(key);
    }
}

impl<K: Hash + Eq + Clone + Serialize, V> ValueTable<K, V> {
    /// From now on, keys that are not known may have values, which `loading` reads. The table is empty and notes changes.
    pub fn begin_cold(&mut self, loading: &Arc<Loading>) {
        assert!(self.entries.is_empty() && self.history.is_some());
        self.cold = Some(Box::new(Cold {
            loading: Arc::clone(loading),
            wanted: IndexSet::default(),
            absent: HashSet::default(),
            sample: None,
        }));
    }

    /// Whether the table has the value of a key, or knows that the key has none.
    pub fn is_known(&self, key: &K) -> bool {
        let Some(cold) = &self.cold else {
            return true;
        };
        match self.entries.get(key) {
            Some(entry) => entry.changed_in != STAGED,
            None => cold.is_absent(key),
        }
    }

    /// Lets the loader read these keys.
    pub fn want(&mut self, keys: Vec<K>) {
        if let Some(cold) = &mut self.cold {
            cold.wanted.extend(keys);
            cold.loading.want();
        }
    }

    /// Takes the keys that stages wait for.
    pub fn take_wanted(&mut self) -> Vec<K> {
        let Some(cold) = &mut self.cold else {
            return Vec::new();
        };
        let wanted = mem::take(&mut cold.wanted).into_iter();
        // Some may have become known since.
        wanted.filter(|key| !self.is_known(key)).collect()
    }

    /// Takes a value that the changelog had when the key was not known, or later.
    pub fn load(&mut self, key: K, value: Option<V>) {
        if self.is_known(&key) {
            return;
        }
        let Some(cold) = &mut self.cold else {
            return;
        };
        match value {
            Some(_) => {
                cold.sample.get_or_insert_with(|| key.clone());
                let changed_in = 0;
                self.entries.insert(key, Entry { value, changed_in });
            }
            None => {
                self.entries.remove(&key);
                cold.forget(key);
            }
        }
    }

    /// Takes a change in the order of the changelog.
    pub fn stage(&mut self, key: K, value: Option<V>) {
        if self.is_known(&key) {
            return;
        }
        match value {
            Some(_) => {
                let changed_in = STAGED;
                self.entries.insert(key, Entry { value, changed_in });
            }
            None => drop(self.entries.remove(&key)),
        }
    }

    /// All changes are staged: their values count from now on. The caller drops the result when the table is unlocked, since
    /// that may take long.
    pub fn become_whole(&mut self) -> Option<Box<Cold<K>>> {
        self.cold.take()
    }

    /// Returns a known key that has a value, and the value, if there is one at hand.
    pub fn sample(&self) -> Option<(&K, &V)> {
        let Some(cold) = &self.cold else {
            return self.iter().next();
        };
        let (key, entry) = self.entries.get_key_value(cold.sample.as_ref()?)?;
        Some((key, entry.value.as_ref()?))
    }
}

#[cfg(test)]
mod tests;
