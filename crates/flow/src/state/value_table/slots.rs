//! A hash table whose entries a hand passes, some at a time.
//!
//! Slots lie one behind the other in chunks, and stay there when the table grows: it then copies their places, which are
//! small, and not their keys and values.

use std::hash::{BuildHasher, Hash};
use std::mem;

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
    /// By the hashes of the keys.
    places: HashTable<Place>,
    chunks: Chunks<Slot<K, V>>,
    hasher: DefaultHashBuilder,
    /// The slot that the hand passes next. The last slot takes the place of one that is removed, so it may come before the
    /// hand.
    hand: usize,
}

/// The index of a slot, and the hash of its key, in halves for alignment.
struct Place {
    hash: [u32; 2],
    index: u32,
}

impl Place {
    fn new(hash: u64, index: usize) -> Place {
        Place {
            hash: [(hash >> 32) as u32, hash as u32],
            index: u32::try_from(index).expect("a partition has less than four billion keys"),
        }
    }

    fn hash(&self) -> u64 {
        u64::from(self.hash[0]) << 32 | u64::from(self.hash[1])
    }
}

/// The slots of a chunk; the last one may have fewer.
const CHUNK_SLOTS: usize = 256;

/// All are full but the last one, which is not empty.
struct Chunks<T>(Vec<Vec<T>>);

impl<T> Chunks<T> {
    fn get(&self, index: usize) -> &T {
        &self.0[index / CHUNK_SLOTS][index % CHUNK_SLOTS]
    }

    fn get_mut(&mut self, index: usize) -> &mut T {
        &mut self.0[index / CHUNK_SLOTS][index % CHUNK_SLOTS]
    }

    fn push(&mut self, slot: T) {
        match self.0.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_SLOTS => chunk.push(slot),
            last => {
                // The first one grows: many tables are small.
                let mut chunk = Vec::with_capacity(if last.is_some() { CHUNK_SLOTS } else { 1 });
                chunk.push(slot);
                self.0.push(chunk);
            }
        }
    }

    fn pop(&mut self) -> Option<T> {
        let chunk = self.0.last_mut()?;
        let slot = chunk.pop();
        if chunk.is_empty() {
            self.0.pop();
        }
        slot
    }
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Slots {
            places: HashTable::new(),
            chunks: Chunks(Vec::new()),
            hasher: DefaultHashBuilder::default(),
            hand: 0,
        }
    }
}

impl<K, V> Slots<K, V> {
    /// The memory of a slot, in a table that is as full as hash tables are on average.
    pub const SLOT_BYTES: usize = size_of::<Slot<K, V>>() + size_of::<Place>() * 3 / 2;
}

impl<K: Hash + Eq + Clone, V> Slots<K, V> {
    #[inline]
    pub fn get(&self, key: &impl KeyRef<K>) -> Option<&Slot<K, V>> {
        let index = self.index_of(self.hasher.hash_one(key), key)?;
        Some(self.chunks.get(index))
    }

    #[inline]
    pub fn get_mut(&mut self, key: &impl KeyRef<K>) -> Option<&mut Slot<K, V>> {
        let index = self.index_of(self.hasher.hash_one(key), key)?;
        Some(self.chunks.get_mut(index))
    }

    #[inline]
    fn index_of(&self, hash: u64, key: &impl KeyRef<K>) -> Option<usize> {
        let place = self.places.find(hash, |place| {
            place.hash() == hash && key.equivalent(&self.chunks.get(place.index as usize).key)
        });
        place.map(|place| place.index as usize)
    }

    /// Adds a slot, in place of one that has its key, which it returns.
    pub fn insert(&mut self, slot: Slot<K, V>) -> Option<Slot<K, V>> {
        let hash = self.hasher.hash_one(&slot.key);
        if let Some(index) = self.index_of(hash, &slot.key) {
            return Some(mem::replace(self.chunks.get_mut(index), slot));
        }
        let place = Place::new(hash, self.len());
        self.places.insert_unique(hash, place, Place::hash);
        self.chunks.push(slot);
        None
    }

    pub fn remove(&mut self, key: &K) -> Option<Slot<K, V>> {
        let index = self.index_of(self.hasher.hash_one(key), key)?;
        self.remove_at(index)
    }

    /// The last slot moves to the place that becomes free.
    fn remove_at(&mut self, index: usize) -> Option<Slot<K, V>> {
        let place_of = |key: &K, index: usize| {
            let hash = self.hasher.hash_one(key);
            (hash, move |place: &Place| place.index as usize == index)
        };
        let (hash, is_removed) = place_of(&self.chunks.get(index).key, index);
        let removed = self.places.find_entry(hash, is_removed);
        removed.ok()?.remove();
        let last = self.chunks.pop()?;
        // As many as there are slots now.
        let last_index = self.places.len();
        if index == last_index {
            return Some(last);
        }
        let (hash, is_last) = place_of(&last.key, last_index);
        let place = self.places.find_mut(hash, is_last)?;
        *place = Place::new(hash, index);
        Some(mem::replace(self.chunks.get_mut(index), last))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slot<K, V>> {
        self.chunks.0.iter().flatten()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the size, without the memory that keys and values own elsewhere.
    pub fn size(&self) -> TableSize {
        let chunks = self.chunks.0.iter();
        let slots: usize = chunks.map(Vec::capacity).sum();
        let bytes = slots * size_of::<Slot<K, V>>() + self.places.allocation_size();
        TableSize {
            entries: self.len() as u64,
            bytes: bytes as u64,
        }
    }

    /// Lets the hand pass some slots, and removes those that `is_over` names.
    pub fn pass(
        &mut self,
        slots: usize,
        mut is_over: impl FnMut(&mut Slot<K, V>) -> bool,
    ) -> Vec<Slot<K, V>> {
        let mut removed = Vec::new();
        for _ in 0..slots.min(self.len()) {
            if self.hand >= self.len() {
                self.hand = 0;
            }
            match is_over(self.chunks.get_mut(self.hand)) {
                // Another slot is here now.
                true => removed.extend(self.remove_at(self.hand)),
                false => self.hand += 1,
            }
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
        for _ in 0..1_000 / 40 {
            let pass = slots.pass(40, |slot| {
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
