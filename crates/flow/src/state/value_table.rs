//! The values of the keys of one partition, and which of them have changed.

use std::hash::Hash;

use hashbrown::HashMap;

/// The values of a partition's keys. Changes are noted only if a changelog takes them.
pub struct ValueTable<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// The keys that have changed since the last checkpoint, each once; `None` without a changelog.
    changed: Option<Vec<K>>,
    /// The number of the next checkpoint, counted from the beginning of the run.
    checkpoint: u32,
}

struct Entry<V> {
    /// `None` for a key that was removed since the last checkpoint, if changes are noted.
    value: Option<V>,
    /// The number of the checkpoint that the last change belongs to; 0 for none.
    changed_for: u32,
}

impl<K, V> Default for ValueTable<K, V> {
    fn default() -> Self {
        ValueTable {
            entries: HashMap::new(),
            changed: None,
            checkpoint: 1,
        }
    }
}

impl<K: Hash + Eq + Clone, V> ValueTable<K, V> {
    /// Notes the keys that change from now on.
    pub fn note_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)?.value.as_ref()
    }

    /// Returns the keys that have a value, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries
            .iter()
            .filter_map(|(key, entry)| Some((key, entry.value.as_ref()?)))
    }

    /// Lets `change` replace, change or remove the value of a key.
    #[inline]
    pub fn update<R>(&mut self, key: &K, change: impl FnOnce(&mut Option<V>) -> R) -> R {
        match self.entries.get_mut(key) {
            Some(entry) => {
                let result = change(&mut entry.value);
                match &mut self.changed {
                    Some(changed) if entry.changed_for != self.checkpoint => {
                        entry.changed_for = self.checkpoint;
                        changed.push(key.clone());
                    }
                    Some(_) => {}
                    None if entry.value.is_none() => drop(self.entries.remove(key)),
                    None => {}
                }
                result
            }
            None => {
                let mut value = None;
                let result = change(&mut value);
                if value.is_some() {
                    self.insert_changed(key.clone(), value);
                }
                result
            }
        }
    }

    /// Sets or removes a value as it was at the last checkpoint.
    pub fn restore(&mut self, key: K, value: Option<V>) {
        match value {
            Some(_) => {
                let changed_for = 0;
                self.entries.insert(key, Entry { value, changed_for });
            }
            None => drop(self.entries.remove(&key)),
        }
    }

    /// Notes that the changelog may have another value of the key than this table has, or a value where it has none.
    pub fn note_changed(&mut self, key: K) {
        match self.entries.get_mut(&key) {
            Some(entry) if entry.changed_for == self.checkpoint => {}
            Some(entry) => {
                entry.changed_for = self.checkpoint;
                self.changed.iter_mut().for_each(|it| it.push(key.clone()));
            }
            None => self.insert_changed(key, None),
        }
    }

    /// Takes the keys that have changed since the last call, with their values.
    pub fn take_changes(&mut self) -> Vec<(K, Option<V>)>
    where
        V: Clone,
    {
        let changed = self.changed.replace(Vec::new()).unwrap_or_default();
        self.checkpoint = self.checkpoint.wrapping_add(1).max(1);
        let changes = changed.into_iter().map(|key| {
            let value = self.entries.get(&key).and_then(|it| it.value.clone());
            if value.is_none() {
                self.entries.remove(&key);
            }
            (key, value)
        });
        changes.collect()
    }

    fn insert_changed(&mut self, key: K, value: Option<V>) {
        if let Some(changed) = &mut self.changed {
            changed.push(key.clone());
        }
        let changed_for = self.checkpoint;
        self.entries.insert(key, Entry { value, changed_for });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(table: &mut ValueTable<u32, u64>, key: u32, value: Option<u64>) {
        table.update(&key, |present| *present = value);
    }

    #[test]
    fn each_changed_key_is_noted_once_with_its_newest_value() {
        let mut table = ValueTable::default();
        table.note_changes();
        table.restore(1, Some(10));
        table.restore(2, Some(20));
        table.restore(3, Some(30));
        table.restore(3, None);
        assert_eq!(table.take_changes(), []);
        for _ in 0..3 {
            set(&mut table, 2, None);
            set(&mut table, 2, Some(21));
            set(&mut table, 4, Some(40));
            set(&mut table, 4, None);
        }
        set(&mut table, 5, None);
        let mut changes = table.take_changes();
        changes.sort_unstable();
        assert_eq!(changes, [(2, Some(21)), (4, None)]);
        assert_eq!(table.get(&1), Some(&10));
        assert_eq!(table.entries.len(), 2, "removed keys take no memory");
        set(&mut table, 2, Some(22));
        assert_eq!(table.take_changes(), [(2, Some(22))]);
        assert_eq!(table.take_changes(), []);
    }

    #[test]
    fn keys_that_the_changelog_has_are_noted_with_and_without_a_value() {
        let mut table = ValueTable::default();
        table.note_changes();
        table.restore(1, Some(10));
        for key in [1, 2, 1, 2] {
            table.note_changed(key);
        }
        assert_eq!(table.take_changes(), [(1, Some(10)), (2, None)]);
        assert_eq!(table.take_changes(), []);
    }

    #[test]
    fn without_a_changelog_removed_keys_are_forgotten_at_once() {
        let mut table = ValueTable::default();
        set(&mut table, 1, Some(10));
        set(&mut table, 1, None);
        assert!(table.entries.is_empty());
    }
}
