//! Values by key, read in the order of their keys and as of the last complete checkpoint.

use std::{iter, slice};

use millstream_base::KeyRange;
use millstream_base::key::encode_key;

use crate::state::ordered::{OrderedState, ReadLevel, StateEntry, StatePage, StateValue};
use crate::state::value_table::{Found, ValueTable};
use crate::state::values::{Value, Values};
use crate::windows::{Key, of_text, text_of};

impl<K: Key, V: Value> OrderedState for Values<K, V> {
    fn encode(&self, key: &str) -> Option<Vec<u8>> {
        let key = of_text::<K>(key).next()?;
        let mut bytes = Vec::new();
        encode_key(&key, &mut bytes).ok()?;
        Some(bytes)
    }

    fn read(&self, key: &str, level: ReadLevel) -> Option<StateValue> {
        let found = of_text(key).filter_map(|key: K| {
            let owner = self.shared.owner_of(&key).ok()?;
            let table = self.shared.lock_with(self.shared.table_of(owner)?, &key);
            let mut table = table.ok()?;
            self.shared.settle(slice::from_mut(&mut table));
            let Found {
                value,
                is_committed,
            } = find(&table, &key, level);
            let checkpoint = table.checkpoint().filter(|_| level == ReadLevel::Committed);
            let value = value.cloned();
            drop(table);
            Some(StateValue {
                value: value.and_then(|value| serde_json::to_value(value).ok()),
                is_committed,
                checkpoint,
            })
        });
        // Two keys may have the same text: the one with a value counts.
        found.reduce(|first, second| match first.value.is_some() {
            true => first,
            false => second,
        })
    }

    fn scan(&self, range: &KeyRange, limit: usize, level: ReadLevel) -> StatePage {
        let mut rows = Vec::new();
        let mut page = StatePage {
            is_committed: true,
            ..StatePage::default()
        };
        if self.shared.wait_whole().is_err() {
            return page;
        }
        match level {
            ReadLevel::Live => {
                for table in &self.shared.tables {
                    take(&self.shared.lock(table), range, limit, level, &mut rows);
                }
            }
            ReadLevel::Committed => {
                // All at once, so that no table forgets the checkpoint meanwhile. A stage locks only one table, so this
                // waits for none that waits for it.
                let tables = self.shared.tables.iter();
                let mut tables: Vec<_> = tables.map(|table| self.shared.lock(table)).collect();
                // Another checkpoint may have been completed between two locks.
                self.shared.settle(&mut tables);
                page.checkpoint = tables.first().and_then(|table| table.checkpoint());
                for table in &tables {
                    take(table, range, limit, level, &mut rows);
                }
            }
        }
        rows.sort_unstable_by(|one, other| one.bytes.cmp(&other.bytes));
        for row in rows {
            if page.entries.len() == limit && row.value.is_some() {
                page.has_more = true;
                break;
            }
            page.is_committed &= row.is_committed;
            let value = row.value.and_then(|value| serde_json::to_value(value).ok());
            page.entries.extend(value.map(|value| StateEntry {
                key: row.key,
                bytes: row.bytes,
                value,
            }));
        }
        page
    }
}

/// A key of a range.
struct Row<V> {
    key: String,
    bytes: Vec<u8>,
    /// `None` if the key had a value at the last complete checkpoint, or has one only now.
    value: Option<V>,
    is_committed: bool,
}

fn find<'a, K: Key, V>(table: &'a ValueTable<K, V>, key: &K, level: ReadLevel) -> Found<'a, V> {
    match level {
        ReadLevel::Live => table.live(key),
        ReadLevel::Committed => table.committed(key),
    }
}

/// Takes keys of a range until there is one more value than `limit`.
fn take<K: Key, V: Value>(
    table: &ValueTable<K, V>,
    range: &KeyRange,
    limit: usize,
    level: ReadLevel,
    rows: &mut Vec<Row<V>>,
) {
    let mut values = 0;
    let mut keys = table.range(range);
    let next = iter::from_fn(|| {
        if values > limit {
            return None;
        }
        let (bytes, key) = keys.next()?;
        let found = find(table, key, level);
        let row = text_of(key).map(|text| Row {
            key: text,
            bytes: bytes.clone(),
            value: found.value.cloned(),
            is_committed: found.is_committed,
        });
        values += usize::from(row.as_ref().is_some_and(|row| row.value.is_some()));
        Some(row)
    });
    rows.extend(next.flatten());
}
