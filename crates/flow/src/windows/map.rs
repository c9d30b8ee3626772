//! A hash map that is serialized as a list of pairs, so that a key can be anything.

use std::hash::Hash;
use std::ops::{Deref, DerefMut};

use hashbrown::HashMap;
use hashbrown::hash_map::EntryRef;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Tables with room for this many keys or fewer stay as they are.
const ROOMY: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Map<K, V>(HashMap<K, V>);

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K, V> Deref for Map<K, V> {
    type Target = HashMap<K, V>;

    fn deref(&self) -> &HashMap<K, V> {
        &self.0
    }
}

impl<K, V> DerefMut for Map<K, V> {
    fn deref_mut(&mut self) -> &mut HashMap<K, V> {
        &mut self.0
    }
}

impl<K, V> IntoIterator for Map<K, V> {
    type Item = (K, V);
    type IntoIter = hashbrown::hash_map::IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<K: Hash + Eq, V> FromIterator<(K, V)> for Map<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl<K: Hash + Eq + Clone, V> Map<K, V> {
    /// What `key` has, made by `make` if there is nothing. Only a new key is cloned.
    #[inline]
    pub fn get_or_make(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        match self.0.entry_ref(key) {
            EntryRef::Occupied(there) => there.into_mut(),
            EntryRef::Vacant(place) => place.insert_with_key(key.clone(), make()),
        }
    }

    /// Takes out the keys that `moves` says yes to.
    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        self.0.extract_if(|key, _| moves(key)).collect()
    }

    /// Gives memory back once most keys are gone.
    pub fn trim(&mut self) {
        if self.0.capacity() > ROOMY && self.0.len() < self.0.capacity() / 8 {
            self.0.shrink_to(self.0.len() * 2);
        }
    }

    /// Takes in the keys of `other`.
    ///
    /// # Panics
    /// If a key is in both.
    pub fn absorb(&mut self, other: Self) {
        for (key, value) in other {
            let same = self.0.insert(key, value);
            assert!(same.is_none(), "a key of windows is in two partitions");
        }
    }
}

impl<K: Serialize, V: Serialize> Serialize for Map<K, V> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        serializer.collect_seq(self.0.iter())
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
