//! A hash map that is serialized as a list of pairs, so that a key can be anything.

use std::hash::{BuildHasher, Hash};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use foldhash::fast::{FixedState, RandomState};
use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Tables with room for this many keys or fewer stay as they are.
const ROOMY: usize = 1024;

/// All maps hash with the same seed, so the entries of one come in the order in which another has its buckets:
/// merging many entries into a map that is larger than the caches walks through its memory from the front to the
/// back, where another order would miss the caches with each entry.
#[derive(Debug, Clone)]
pub(super) struct Map<K, V> {
    entries: HashMap<K, V, FixedState>,
    /// How many entries [`take_some`](Map::take_some) has taken out since there were none.
    taken: usize,
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::with_hasher(hasher()),
            taken: 0,
        }
    }
}

/// A hasher with a seed that is drawn once in each process.
fn hasher() -> FixedState {
    static SEED: OnceLock<u64> = OnceLock::new();
    FixedState::with_seed(*SEED.get_or_init(|| RandomState::default().hash_one(0)))
}

impl<K, V> Deref for Map<K, V> {
    type Target = HashMap<K, V, FixedState>;

    fn deref(&self) -> &HashMap<K, V, FixedState> {
        &self.entries
    }
}

impl<K, V> DerefMut for Map<K, V> {
    fn deref_mut(&mut self) -> &mut HashMap<K, V, FixedState> {
        &mut self.entries
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = hashbrown::hash_map::IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.entries.into_iter()
    }
}

impl<K: Hash + Eq, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut map = Self::default();
        map.entries.extend(pairs);
        map
    }
}

impl<K: Hash + Eq + Clone, V> Map<K, V> {
    /// Returns the value of `key`, made by `make` if there is none. Only a new key is cloned.
    #[inline]
    pub fn get_or_make(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        match self.entries.entry_ref(key) {
            EntryRef::Occupied(there) => there.into_mut(),
            EntryRef::Vacant(place) => place.insert_with_key(key.clone(), make()),
        }
    }

    /// Takes out the keys for which `moves` holds.
    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        self.entries.extract_if(|key, _| moves(key)).collect()
    }

    /// Takes out up to `max` entries, in the order of the buckets. Looks at the buckets before them again, so `max`
    /// should be thousands.
    pub fn take_some(&mut self, max: usize, mut out: impl FnMut(K, V)) {
        for (key, value) in self.entries.extract_if(|_, _| true).take(max) {
            self.taken += 1;
            out(key, value);
        }
        if self.entries.is_empty() {
            // Entries that are taken out one by one leave their traces in the buckets.
            self.entries.drain();
            let taken = std::mem::take(&mut self.taken);
            self.trim_to(taken);
        }
    }

    /// Gives memory back once most keys are gone.
    pub fn trim(&mut self) {
        self.trim_to(self.entries.len());
    }

    /// Gives memory back that is much more than `len` entries need.
    fn trim_to(&mut self, len: usize) {
        if self.entries.capacity() > ROOMY && len < self.entries.capacity() / 8 {
            self.entries.shrink_to(len * 2);
        }
    }

    /// Takes in the keys of `other`.
    ///
    /// # Panics
    /// If a key is in both.
    pub fn absorb(&mut self, other: Self) {
        for (key, value) in other {
            let same = self.entries.insert(key, value);
            assert!(same.is_none(), "a key of windows is in two partitions");
        }
    }
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        serializer.collect_seq(self.entries.iter())
    }
}

impl<'de, K, V> Deserialize<'de> for Map<K, V>
where
    K: Hash + Eq + Deserialize<'de>,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Vec::<(K, V)>::deserialize(deserializer)?
            .into_iter()
            .collect())
    }
}
