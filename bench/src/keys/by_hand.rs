//! The limits: maps behind a lock, whose readers copy the value as a get does.

use std::collections::BTreeMap;
use std::ops::Bound;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use hashbrown::HashMap;
use parking_lot::RwLock;

use super::data::{check, key, value};

type Owned = Box<[u8]>;

/// Values by key, without an order.
#[derive(Default)]
pub struct Map(RwLock<HashMap<Owned, Owned>>);

impl Map {
    /// A map with the first version of each of these keys.
    pub fn filled(keys: u64) -> Map {
        let map = Map::default();
        (0..keys).for_each(|number| map.put(number, 0));
        map
    }

    pub fn put(&self, number: u64, version: u64) {
        let (key, value) = (key(number), value(number, version));
        let mut map = self.0.write();
        match map.get_mut(&key[..]) {
            Some(known) => *known = value[..].into(),
            None => drop(map.insert(key[..].into(), value[..].into())),
        }
    }

    /// Copies the value of a key, and checks it.
    pub fn get(&self, number: u64) -> Result<()> {
        let key = key(number);
        let found = self.0.read().get(&key[..]).map(|value| copy(value));
        let found = found.with_context(|| format!("key {number} is absent"))?;
        check(number, &found)
    }
}

/// Values in the order of their keys.
#[derive(Default)]
pub struct OrderedMap(RwLock<BTreeMap<Owned, Owned>>);

impl OrderedMap {
    /// A map with the first version of each of these keys.
    pub fn filled(keys: u64) -> OrderedMap {
        let entries = (0..keys).map(|number| (key(number)[..].into(), value(number, 0)[..].into()));
        OrderedMap(RwLock::new(entries.collect()))
    }

    /// Copies entries from the first key that is not less than `from` on.
    pub fn scan(&self, from: &[u8], count: usize) -> Vec<(Vec<u8>, Bytes)> {
        let map = self.0.read();
        let range = map.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
        let entries = range.take(count);
        entries
            .map(|(key, value)| (key.to_vec(), copy(value)))
            .collect()
    }
}

fn copy(value: &[u8]) -> Bytes {
    Bytes::copy_from_slice(value)
}
