//! The values of one partition that were looked up and are in memory.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use indexmap::IndexSet;
use millstream_base::Clock;

use super::KeyLookup;
use crate::state::loading::Loading;
use crate::windows::Key;

/// The keys of a full generation, …
const GENERATION_KEYS: usize = 1024;

/// … and the bytes of their encoded keys and values.
pub const GENERATION_BYTES: usize = 16 << 20;

/// Locked by a stage for the time of a slice, and by the thread that looks up keys.
pub struct LookupTable<K, V> {
    clock: Arc<dyn Clock>,
    /// An older value is looked up again.
    max_age: Duration,
    newer: Generation<K, V>,
    older: Generation<K, V>,
    /// Keys that stages wait for, and that the thread has yet to take.
    wanted: IndexSet<K, RandomState>,
    /// `None` before the flow runs.
    loading: Option<Arc<Loading<dyn KeyLookup>>>,
}

struct Generation<K, V> {
    found: HashMap<K, Found<V>, RandomState>,
    bytes: usize,
}

/// The result of looking up a key.
pub struct Found<V> {
    /// `None` if the key has none.
    value: Option<V>,
    bytes: usize,
    /// When the look-up began.
    at: Duration,
    /// Whether no item has used it. Until then it is not too old: the item waits for it, and could wait for ever where look-ups take
    /// longer than values may last.
    is_new: bool,
}

impl<V> Found<V> {
    pub fn new(value: Option<V>, bytes: usize, at: Duration) -> Self {
        Found {
            value,
            bytes,
            at,
            is_new: true,
        }
    }
}

impl<K, V> Default for Generation<K, V> {
    fn default() -> Self {
        Generation {
            found: HashMap::default(),
            bytes: 0,
        }
    }
}

impl<K: Key, V> LookupTable<K, V> {
    pub fn new(clock: Arc<dyn Clock>, max_age: Duration) -> Self {
        LookupTable {
            clock,
            max_age,
            newer: Generation::default(),
            older: Generation::default(),
            wanted: IndexSet::default(),
            loading: None,
        }
    }

    /// The flow begins: `loading` looks up keys from now on.
    pub fn begin(&mut self, loading: &Arc<Loading<dyn KeyLookup>>) {
        self.loading = Some(Arc::clone(loading));
    }

    /// Whether memory has the value of a key, and it is not too old.
    pub fn is_known(&self, key: &K) -> bool {
        let found = self.newer.found.get(key);
        let found = found.or_else(|| self.older.found.get(key));
        found.is_some_and(|found| self.lasts(found))
    }

    fn lasts(&self, found: &Found<V>) -> bool {
        found.is_new || self.clock.monotonic().saturating_sub(found.at) <= self.max_age
    }

    /// Returns the value of a key for an item; `None` if it is not [known](Self::is_known).
    pub fn find(&mut self, key: &K) -> Option<Option<&V>> {
        if !self.is_known(key) {
            return None;
        }
        if !self.newer.found.contains_key(key) {
            let found = self.older.remove(key)?;
            self.insert(key.clone(), found);
        }
        let found = self.newer.found.get_mut(key)?;
        found.is_new = false;
        Some(found.value.as_ref())
    }

    /// Lets keys be looked up.
    pub fn want(&mut self, keys: Vec<K>) {
        let before = self.wanted.len();
        self.wanted.extend(keys);
        if let Some(loading) = &self.loading
            && self.wanted.len() > before
        {
            loading.want();
        }
    }

    /// Takes the keys that stages wait for. Of more than a generation has room for, the last ones are wanted again.
    pub fn take_wanted(&mut self) -> Vec<K> {
        let wanted = mem::take(&mut self.wanted).into_iter();
        // Some may have become known since.
        let wanted = wanted.filter(|key| !self.is_known(key));
        wanted.take(GENERATION_KEYS).collect()
    }

    /// Takes the result of a look-up.
    pub fn load(&mut self, key: K, found: Found<V>) {
        // An earlier result is older.
        self.newer.remove(&key);
        self.older.remove(&key);
        self.insert(key, found);
    }

    fn insert(&mut self, key: K, found: Found<V>) {
        if self.newer.is_full() {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.bytes += found.bytes;
        self.newer.found.insert(key, found);
    }
}

impl<K: Key, V> Generation<K, V> {
    fn is_full(&self) -> bool {
        self.found.len() >= GENERATION_KEYS || self.bytes >= GENERATION_BYTES
    }

    fn remove(&mut self, key: &K) -> Option<Found<V>> {
        let found = self.found.remove(key)?;
        self.bytes -= found.bytes;
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::SystemClock;

    use super::*;

    const FOR_EVER: Duration = Duration::MAX;

    fn table(max_age: Duration) -> LookupTable<usize, usize> {
        LookupTable::new(Arc::new(SystemClock::default()), max_age)
    }

    fn load(table: &mut LookupTable<usize, usize>, key: usize, bytes: usize) {
        let at = table.clock.monotonic();
        table.load(key, Found::new(Some(key), bytes, at));
    }

    #[test]
    fn memory_keeps_the_keys_that_were_used_lately() {
        let mut table = table(FOR_EVER);
        for key in 0..10 * GENERATION_KEYS {
            load(&mut table, key, 10);
            assert_eq!(table.find(&key), Some(Some(&key)));
            assert_eq!(table.find(&0), Some(Some(&0)));
            let lengths = [&table.newer, &table.older].map(|it| it.found.len());
            assert!(lengths.iter().all(|length| *length <= GENERATION_KEYS));
            let bytes = [&table.newer, &table.older].map(|it| it.bytes);
            assert_eq!(bytes, lengths.map(|length| 10 * length));
        }
        assert_eq!(table.find(&1), None);
        let last = 10 * GENERATION_KEYS - 1;
        assert!((last - GENERATION_KEYS + 2..=last).all(|key| table.is_known(&key)));
    }

    #[test]
    fn large_values_make_a_generation_full_too() {
        let mut table = table(FOR_EVER);
        for key in 0..100 {
            load(&mut table, key, GENERATION_BYTES / 2);
            let bytes = table.newer.bytes + table.older.bytes;
            assert!(bytes <= 2 * GENERATION_BYTES, "{bytes}");
            assert_eq!(table.find(&key), Some(Some(&key)));
        }
        assert_eq!(table.find(&90), None);
    }

    #[test]
    fn a_value_that_may_not_last_serves_one_item_and_is_wanted_again() {
        let mut table = table(Duration::ZERO);
        load(&mut table, 7, 10);
        while table.clock.monotonic() == table.newer.found[&7].at {}
        table.want(vec![7, 8]);
        assert_eq!(table.take_wanted(), [8]);
        assert_eq!(table.find(&7), Some(Some(&7)));
        assert_eq!(table.find(&7), None);
        table.want(vec![7]);
        assert_eq!(table.take_wanted(), [7]);
        assert!(table.take_wanted().is_empty());
    }

    #[test]
    fn of_many_keys_that_are_wanted_as_many_are_taken_as_a_generation_keeps() {
        let mut table = table(FOR_EVER);
        table.want((0..3 * GENERATION_KEYS).collect());
        let wanted = table.take_wanted();
        assert_eq!(wanted.len(), GENERATION_KEYS);
        for key in &wanted {
            load(&mut table, *key, 10);
        }
        assert_eq!(table.find(&0), Some(Some(&0)));
    }
}
