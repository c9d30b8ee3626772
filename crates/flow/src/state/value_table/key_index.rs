//! The keys of a table in the order of their canonical bytes.
//!
//! A key that loses its value stays in the table while readers may ask for its former value. The index has it apart from the
//! keys that have a value: otherwise a function that removes the first entries of a map, one after the other, would pass all
//! keys that it has removed since the last complete checkpoint, each time.

use std::collections::BTreeMap;
use std::iter;

use millstream_base::KeyRange;
use millstream_base::key::encode_key;
use serde::Serialize;
use smallvec::SmallVec;

/// The keys of all slots of a table. Each is in one of two trees, as its slot has a value or not.
pub struct KeyIndex<K> {
    with_value: Keys<K>,
    without_value: Keys<K>,
}

/// Keys by their canonical bytes.
type Keys<K> = BTreeMap<KeyBytes, K>;

/// The bytes of usual keys lie in the nodes of the tree: a look-up then reads less memory.
type KeyBytes = SmallVec<[u8; 24]>;

impl<K: Clone + Serialize> KeyIndex<K> {
    /// Builds the index of these keys, each with whether it has a value.
    pub fn of<'a>(keys: impl Iterator<Item = (&'a K, bool)>) -> Self
    where
        K: 'a,
    {
        let (mut with_value, mut without_value) = (Vec::new(), Vec::new());
        for (key, has_value) in keys {
            let entry = bytes_of(key).map(|bytes| (bytes, key.clone()));
            match has_value {
                true => with_value.extend(entry),
                false => without_value.extend(entry),
            }
        }
        KeyIndex {
            with_value: with_value.into_iter().collect(),
            without_value: without_value.into_iter().collect(),
        }
    }

    /// Adds a key.
    pub fn insert(&mut self, key: K, has_value: bool) {
        if let Some(bytes) = bytes_of(&key) {
            self.keys(has_value).insert(bytes, key);
        }
    }

    /// Removes a key, which had a value or not.
    pub fn remove(&mut self, key: &K, had_value: bool) {
        if let Some(bytes) = bytes_of(key) {
            self.keys(had_value).remove(&bytes);
        }
    }

    /// Notes that a key has a value, and had none before; or the other way round.
    pub fn change(&mut self, key: &K, has_value: bool) {
        if let Some(bytes) = bytes_of(key)
            && let Some((bytes, key)) = self.keys(!has_value).remove_entry(&bytes)
        {
            self.keys(has_value).insert(bytes, key);
        }
    }

    /// Returns the keys of a range that have a value, with their bytes, in the order of these.
    pub fn range<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a K)> + use<'a, K> {
        range_of(&self.with_value, range)
    }

    /// Returns all keys of a range with their bytes, in the order of these.
    pub fn range_of_all<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&'a [u8], &'a K)> + use<'a, K> {
        let mut with_value = range_of(&self.with_value, range).peekable();
        let mut without_value = range_of(&self.without_value, range).peekable();
        iter::from_fn(move || {
            let next_has_value = match (with_value.peek(), without_value.peek()) {
                (Some((one, _)), Some((other, _))) => one < other,
                (one, _) => one.is_some(),
            };
            match next_has_value {
                true => with_value.next(),
                false => without_value.next(),
            }
        })
    }

    /// Returns the memory of an entry, as one of them has it.
    pub fn entry_bytes(&self) -> usize {
        let mut entries = self.with_value.iter().chain(&self.without_value);
        entries.next().map_or(0, |(bytes, key)| {
            let spilled = if bytes.spilled() { bytes.capacity() } else { 0 };
            spilled + size_of_val(key) + size_of_val(bytes)
        })
    }

    fn keys(&mut self, has_value: bool) -> &mut Keys<K> {
        match has_value {
            true => &mut self.with_value,
            false => &mut self.without_value,
        }
    }
}

/// Returns the canonical bytes of a key. A key that has an owner has them.
fn bytes_of<K: Serialize>(key: &K) -> Option<KeyBytes> {
    let mut bytes = Vec::new();
    encode_key(key, &mut bytes).ok()?;
    Some(KeyBytes::from_slice(&bytes))
}

fn range_of<'a, K>(
    keys: &'a Keys<K>,
    range: &KeyRange,
) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a K)> + use<'a, K> {
    let entries = (!range.is_empty()).then(|| keys.range::<[u8], _>(range.bounds()));
    let entries = entries.into_iter().flatten();
    entries.map(|(bytes, key)| (&bytes[..], key))
}
