//! A hash table whose entries a hand passes, some at a time.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::stamp::Stamp;
use crate::state::key_ref::KeyRef;
use crate::windows::TableSize;

/// A key with its value.
pub struct Slot<K, V> {
    pub key: K,
    /// `None` for a key that is known to have no value.
    pub value: Option<V>,
    pub stamp: Stamp,
}

pub struct Slots<K, V> {
    table: HashTable<Slot<K, V>>,
    hasher: DefaultHashBuilder,
    /// The bucket that the hand passes next. When the table grows, entries may come before or behind it.
    hand: usize,
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Slots {
            table: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            hand: 0,
        }
    }
}

impl<K: Hash + Eq, V> Slots<K, V> {
    #[inline]
    pub fn get(&self, key: &impl KeyRef<K>) -> Option<&Slot<K, V>> {
        let hash = self.hasher.hash_one(key);
        self.table.find(hash, |slot| key.equivalent(&slot.key))
    }

    #[inline]
    pub fn get_mut(&mut self, key: &impl KeyRef<K>) -> Option<&mut Slot<K, V>> {
        let hash = self.hasher.hash_one(key);
        self.table.find_mut(hash, |slot| key.equivalent(&slot.key))
    }

    /// Adds a slot, in place of one that has its key.
    pub fn insert(&mut self, slot: Slot<K, V>) {
        let hash = self.hasher.hash_one(&slot.key);
        let is_same = |other: &Slot<K, V>| other.key == slot.key;
        let hash_of = |other: &Slot<K, V>| self.hasher.hash_one(&other.key);
        let entry = self.table.entry(hash, is_same, hash_of);
        entry.insert(slot);
    }

    pub fn remove(&mut self, key: &K) -> Option<Slot<K, V>> {
        let hash = self.hasher.hash_one(key);
        let found = self.table.find_entry(hash, |slot| slot.key == *key);
        found.ok().map(|entry| entry.remove().0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot<K, V>> {
        self.table.iter()
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the buckets that the hand passes in a round.
    pub fn buckets(&self) -> usize {
        self.table.num_buckets()
    }

    /// Returns the size, without the memory that keys and values own elsewhere.
    pub fn size(&self) -> TableSize {
        TableSize {
            entries: self.table.len() as u64,
            bytes: self.table.allocation_size() as u64,
        }
    }

    /// Lets the hand pass some buckets, and removes the slots that `is_over` names.
    pub fn pass(
        &mut self,
        buckets: usize,
        mut is_over: impl FnMut(&mut Slot<K, V>) -> bool,
    ) -> Vec<Slot<K, V>> {
        let mut removed = Vec::new();
        for _ in 0..buckets.min(self.table.num_buckets()) {
            if self.hand >= self.table.num_buckets() {
                self.hand = 0;
            }
            let slot = self.table.get_bucket_mut(self.hand);
            if slot.is_some_and(&mut is_over)
                && let Ok(entry) = self.table.get_bucket_entry(self.hand)
            {
                removed.push(entry.remove().0);
            }
            self.hand += 1;
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hand_passes_each_slot_once_in_a_round() {
        let mut slots = Slots::default();
        for key in 0..1_000_u32 {
            for value in [0, key] {
                slots.insert(Slot {
                    key,
                    value: Some(value),
                    stamp: Stamp::CLEAN,
                });
            }
        }
        assert_eq!((slots.len(), slots.size().entries), (1_000, 1_000));
        let (mut seen, mut removed) = (vec![], vec![]);
        for _ in 0..slots.buckets().div_ceil(64) {
            let pass = slots.pass(64, |slot| {
                seen.push(slot.key);
                slot.key % 2 == 1
            });
            removed.extend(pass.into_iter().map(|slot| slot.key));
        }
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..1_000));
        assert_eq!((removed.len(), slots.len()), (500, 500));
        assert!(removed.iter().all(|key| slots.get(key).is_none()));
        assert_eq!(slots.remove(&2).unwrap().value, Some(2));
        assert!(slots.get_mut(&2).is_none() && slots.get(&4).is_some());
    }
}
