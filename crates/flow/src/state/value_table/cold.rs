//! A table that does not have all values in memory: the others are in the changelog. After a restore they were not read
//! yet; later, clean ones that were not used for long are *evicted* where memory is short.
//!
//! A key is *known* if the table has a slot for it: it was asked for, or it has changed in this run. A slot may say that
//! the key has no value. The scan of the changelog *stages* the values of other keys in the order of the log, so that a
//! newer one may follow; until the scan ends they do not count. A slot leaves only when look-ups that begin find its last
//! change in the changelog, and all that are under way do, too. No slot leaves a table that has all values in memory while
//! look-ups from before are under way. So a value that was loaded for an unknown key is the newest one, however late it comes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::Hash;
use std::mem;
use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use serde::Serialize;

use super::{Dated, Slot, Stamp, ValueTable};
use crate::state::key_ref::KeyRef;
use crate::state::loading::Loading;

/// The part of a table beside its slots, until all values are in memory.
pub struct Cold<K> {
    loading: Arc<Loading>,
    /// Keys that stages wait for, and that the loader has yet to take.
    wanted: IndexSet<K, RandomState>,
    /// A key that was loaded with a value. It may have left since.
    sample: Option<K>,
    scan: Staging,
    /// Look-ups that begin find all changes of segments of the history with lower numbers.
    visible: u64,
}

/// How many look-ups are under way, by the segments whose changes they find: those with lower numbers.
pub type Lookups = BTreeMap<u64, u32>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Staging {
    /// There are no staged slots, and there will be none.
    Off,
    On,
    /// The scan has ended early: its slots do not count, and are the first that leave.
    GivenUp,
}

/// A look-up under way: when it began.
#[derive(Debug, Clone, Copy)]
pub struct Lookup(u64);

/// Changes of earlier runs are visible: those have no number.
const FIRST_VISIBLE: u64 = 1;

impl<K> Cold<K> {
    fn new(loading: &Arc<Loading>, scan: Staging) -> Cold<K> {
        Cold {
            loading: Arc::clone(loading),
            wanted: IndexSet::default(),
            sample: None,
            scan,
            visible: FIRST_VISIBLE,
        }
    }
}

/// Whether there are staged slots, which do not count.
pub(super) fn has_staged<K>(cold: &Option<Box<Cold<K>>>) -> bool {
    cold.as_ref().is_some_and(|it| it.scan != Staging::Off)
}

impl<K: Hash + Eq + Clone + Serialize, V> ValueTable<K, V> {
    /// From now on, keys that are not known may have values, which `loading` reads and a scan stages. The table is empty and
    /// notes changes.
    pub fn begin_cold(&mut self, loading: &Arc<Loading>) {
        assert!(self.slots.is_empty() && self.history.is_some());
        self.cold = Some(Box::new(Cold::new(loading, Staging::On)));
    }

    /// Whether values may be in the changelog alone.
    pub fn is_cold(&self) -> bool {
        self.cold.is_some()
    }

    /// Whether the loader reads keys that are not known.
    pub fn is_loading(&self) -> bool {
        let cold = self.cold.as_ref();
        cold.is_some_and(|cold| cold.loading.is_at_work())
    }

    /// Whether the table has the value of a key, or knows that the key has none.
    pub fn is_known(&self, key: &impl KeyRef<K>) -> bool {
        if self.cold.is_none() {
            return true;
        }
        let slot = self.slots.get(key);
        slot.is_some_and(|slot| slot.stamp != Stamp::STAGED || !has_staged(&self.cold))
    }

    /// Lets the loader read these keys.
    pub fn want(&mut self, keys: Vec<K>) {
        if let Some(cold) = &mut self.cold {
            let before = cold.wanted.len();
            cold.wanted.extend(keys);
            if cold.wanted.len() > before {
                cold.loading.want();
            }
        }
    }

    /// Takes the keys that stages wait for, to look them up.
    pub fn take_wanted(&mut self) -> Option<(Vec<K>, Lookup)> {
        let wanted = mem::take(&mut self.cold.as_mut()?.wanted).into_iter();
        // Some may have become known since.
        let wanted: Vec<K> = wanted.filter(|key| !self.is_known(key)).collect();
        match wanted.is_empty() {
            true => None,
            false => Some((wanted, self.begin_lookup()?)),
        }
    }

    /// Begins a look-up of keys that are not known; `None` if there are no such keys.
    pub fn begin_lookup(&mut self) -> Option<Lookup> {
        let visible = self.cold.as_ref()?.visible;
        *self.lookups.entry(visible).or_default() += 1;
        Some(Lookup(visible))
    }

    /// Takes what a look-up has found.
    pub fn load(&mut self, lookup: Lookup, found: impl IntoIterator<Item = (K, Option<Dated<V>>)>) {
        for (key, value) in found {
            if self.is_known(&key) {
                continue;
            }
            if let Some(cold) = &mut self.cold
                && value.is_some()
            {
                cold.sample.get_or_insert_with(|| key.clone());
            }
            match value {
                Some(value) => self.insert_dated(key, value, Stamp::loaded()),
                None => {
                    // A scan that was given up may have staged a value.
                    if let Some(lifetime) = &mut self.lifetime {
                        lifetime.forget(&key);
                    }
                    self.insert(key, None, Stamp::loaded());
                }
            }
        }
        self.end_lookup(lookup);
    }

    /// A look-up ends.
    pub fn end_lookup(&mut self, lookup: Lookup) {
        if let Entry::Occupied(mut under_way) = self.lookups.entry(lookup.0) {
            *under_way.get_mut() -= 1;
            if *under_way.get() == 0 {
                under_way.remove();
            }
        }
    }

    /// Takes a change in the order of the changelog.
    pub fn stage(&mut self, key: K, value: Option<Dated<V>>) {
        if self.is_known(&key) {
            return;
        }
        match value {
            Some(value) => self.insert_dated(key, value, Stamp::STAGED),
            None => self.remove(&key),
        }
    }

    /// All changes are staged: their values count from now on. The caller drops the result when the table is unlocked, since
    /// that may take long.
    pub fn become_whole(&mut self) -> Option<Box<Cold<K>>> {
        self.cold.take()
    }

    /// The scan has ended early: the values that it has staged do not count.
    pub fn give_up_staging(&mut self) {
        if let Some(cold) = &mut self.cold {
            cold.scan = Staging::GivenUp;
        }
    }

    /// Whether a scan stages values.
    pub fn is_staging(&self) -> bool {
        self.cold.as_ref().is_some_and(|it| it.scan == Staging::On)
    }

    /// Removes up to `limit` slots that were not used for long, among those that the hand passes, from a table that is not
    /// being staged. Look-ups find the changes up to `visible`, a complete checkpoint. The caller drops the result when the
    /// table is unlocked.
    pub fn evict(
        &mut self,
        visible: u64,
        loading: &Arc<Loading>,
        slots: usize,
        limit: usize,
    ) -> Vec<Slot<K, V>> {
        assert!(!self.is_staging(), "staged values would be missing");
        if self.cold.is_none() && !self.lookups.is_empty() {
            // They began before the table was whole. A whole table forgets keys that lose their values: once cold again, it would
            // take the values of these from the look-ups.
            return Vec::new();
        }
        let Some(history) = &mut self.history else {
            return Vec::new();
        };
        // A value from before the checkpoint may be read as committed as long as its segment is there.
        history.complete(visible);
        // Numbers stay visible: the history of a cold table may have forgotten the segment of a checkpoint that lies long ago.
        // A whole one has then forgotten keys that lost their values since.
        let known = self.cold.as_ref().map(|cold| cold.visible);
        let Some(visible) = history.number_at(visible).max(known) else {
            return Vec::new();
        };
        if let Some(cold) = &mut self.cold {
            cold.visible = visible;
        }
        let first = self.lookups.first_key_value();
        let oldest = first.map_or(visible, |(began, _)| visible.min(*began));
        let mut left = limit;
        let evicted = self.slots.pass(slots, |slot| {
            let leaves = left > 0 && !slot.stamp.pass() && slot.stamp.number() < oldest;
            left -= usize::from(leaves);
            leaves
        });
        self.forget(&evicted);
        if !evicted.is_empty() && self.cold.is_none() {
            let mut cold = Cold::new(loading, Staging::Off);
            cold.visible = visible;
            self.cold = Some(Box::new(cold));
        }
        evicted
    }

    fn forget(&mut self, removed: &[Slot<K, V>]) {
        for slot in removed {
            if let Some(index) = self.index.get_mut() {
                index.remove(&slot.key, slot.value.is_some());
            }
            if let Some(lifetime) = &mut self.lifetime {
                lifetime.forget(&slot.key);
            }
        }
    }

    /// Returns a known key that has a value, and the value, if there is one at hand.
    pub fn sample(&self) -> Option<(&K, &V)> {
        if !has_staged(&self.cold) {
            return self.iter().next();
        }
        let sample = self.cold.as_ref()?.sample.as_ref()?;
        let slot = self.slots.get(sample).filter(|_| !self.has_ended(sample))?;
        Some((&slot.key, slot.value.as_ref()?))
    }
}

#[cfg(test)]
mod tests;
