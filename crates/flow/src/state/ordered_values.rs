//! Values by key, read in the order of their keys and as of the last complete checkpoint.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::{mem, slice};

use millstream_base::KeyRange;
use millstream_base::key::{decode_key, encode_key};
use parking_lot::MutexGuard;

use crate::error::BoxError;
use crate::state::ordered::{
    OrderedState, ReadLevel, StateEntry, StatePage, StateValue, WouldWait,
};
use crate::state::value_table::{Dated, Found, ValueTable};
use crate::state::values::{Shared, Value, Values};
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
            Some(self.shared.read_in(table.ok()?, &key, level))
        });
        found.reduce(one_with_value)
    }

    fn try_read(&self, key: &str, level: ReadLevel) -> Result<Option<StateValue>, WouldWait> {
        let shared = &self.shared;
        let mut found = None;
        for key in of_text::<K>(key) {
            let Ok(owner) = shared.owner_of(&key) else {
                continue;
            };
            let Some(table) = shared.table_of(owner) else {
                continue;
            };
            let table = table.try_lock().ok_or(WouldWait)?;
            table.move_time();
            if !table.is_known(&key) {
                return Err(WouldWait);
            }
            if let Some(value) = find(&table, &key, level).value
                && !is_small(value)
            {
                return Err(WouldWait);
            }
            let value = shared.read_in(table, &key, level);
            found = [found, Some(value)]
                .into_iter()
                .flatten()
                .reduce(one_with_value);
        }
        match shared.has_failed() {
            true => Err(WouldWait),
            false => Ok(found),
        }
    }

    fn scan(&self, range: &KeyRange, limit: usize, level: ReadLevel) -> StatePage {
        let mut range = range.clone();
        let mut is_committed = true;
        loop {
            let Some((mut page, next)) = self.shared.scan(&range, limit, level) else {
                continue;
            };
            page.is_committed &= is_committed;
            match next.filter(|_| page.entries.is_empty()) {
                // The changelog still has keys here, of which none has a value any more.
                Some(next) if limit > 0 => range.from = next,
                _ => return page,
            }
            is_committed = page.is_committed;
        }
    }
}

/// The most bytes of JSON that a value may have which is read without waiting: others would hold up the reader's thread.
const SMALL_BYTES: usize = 16 << 10;

/// Returns whether the JSON of a value is short.
fn is_small<V: Value>(value: &V) -> bool {
    /// Room for that many bytes.
    struct Room(usize);

    impl Write for Room {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.0.checked_sub(bytes.len());
            self.0 = left.ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    // Most values are numbers, and those need no look.
    let is_number = !mem::needs_drop::<V>() && size_of::<V>() <= size_of::<u128>();
    is_number || serde_json::to_writer(Room(SMALL_BYTES), value).is_ok()
}

/// Of two keys with the same text, the one with a value counts.
fn one_with_value(first: StateValue, second: StateValue) -> StateValue {
    match first.value.is_some() {
        true => first,
        false => second,
    }
}

impl<K: Key, V: Value> Shared<K, V> {
    /// Reads a known key, and unlocks its table.
    fn read_in(
        &self,
        mut table: MutexGuard<'_, ValueTable<K, V>>,
        key: &K,
        level: ReadLevel,
    ) -> StateValue {
        self.settle(slice::from_mut(&mut table));
        let Found {
            value,
            is_committed,
        } = find(&table, key, level);
        let checkpoint = table.checkpoint().filter(|_| level == ReadLevel::Committed);
        let value = value.cloned();
        drop(table);
        StateValue {
            value: value.and_then(|value| serde_json::to_value(value).ok()),
            is_committed,
            checkpoint,
        }
    }

    /// Reads a range as [`OrderedState::scan`] does, or its first part: then it returns the key at which it goes on, too.
    /// Returns `None` if values have left memory meanwhile that it would have missed.
    fn scan(
        &self,
        range: &KeyRange,
        limit: usize,
        level: ReadLevel,
    ) -> Option<(StatePage, Option<Vec<u8>>)> {
        let mut page = StatePage {
            is_committed: true,
            ..StatePage::default()
        };
        let lookups = self.tables.iter();
        let lookups: Vec<_> = lookups.map(|table| table.lock().begin_lookup()).collect();
        let mut logged = Logged::default();
        if lookups.iter().any(Option::is_some) {
            match self.read_range(range, limit) {
                Ok(read) => logged = read,
                // The flow ends with the error.
                Err(_) => return Some((page, None)),
            }
        }
        let range = &KeyRange {
            from: range.from.clone(),
            until: logged.next.clone().or_else(|| range.until.clone()),
        };
        let mut rows = Vec::new();
        let mut is_missed = false;
        let mut take = |partition: usize, table: &mut ValueTable<K, V>| {
            is_missed |= table.is_cold() && lookups[partition].is_none();
            let logged = logged.values.get_mut(partition).map(mem::take);
            take_rows(table, range, limit, level, logged, &mut rows);
            if let Some(lookup) = lookups[partition] {
                table.end_lookup(lookup);
            }
        };
        match level {
            ReadLevel::Live => {
                for (partition, table) in self.tables.iter().enumerate() {
                    take(partition, &mut self.lock(table));
                }
            }
            ReadLevel::Committed => {
                // All at once, so that no table forgets the checkpoint meanwhile. A stage that waits for a table holds no
                // other one, so this waits for none that waits for it.
                let tables = self.tables.iter();
                let mut tables: Vec<_> = tables.map(|table| self.lock(table)).collect();
                // Another checkpoint may have been completed between two locks.
                self.settle(&mut tables);
                page.checkpoint = tables.first().and_then(|table| table.checkpoint());
                for (partition, table) in tables.iter_mut().enumerate() {
                    take(partition, table);
                }
            }
        }
        if is_missed {
            return None;
        }
        page.has_more = logged.next.is_some();
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
        Some((page, logged.next))
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

/// Keys of a range that the changelog has.
struct Logged<V> {
    /// By partition; in the order of the keys.
    values: Vec<Vec<(Vec<u8>, Dated<V>)>>,
    /// The first key that was not read.
    next: Option<Vec<u8>>,
}

impl<V> Default for Logged<V> {
    fn default() -> Self {
        Logged {
            values: Vec::new(),
            next: None,
        }
    }
}

impl<K: Key, V: Value> Shared<K, V> {
    /// Reads keys of a range that this rank owns from the changelog, until there are more than `limit`.
    ///
    /// # Errors
    /// When they cannot be read, which ends the flow.
    fn read_range(&self, range: &KeyRange, limit: usize) -> Result<Logged<V>, BoxError> {
        let loading = self.loading.get().expect("a table is cold");
        let mut logged = Logged {
            values: Vec::new(),
            next: Some(range.from.clone()),
        };
        logged.values.resize_with(self.tables.len(), Vec::new);
        let mut count = 0;
        while let Some(from) = logged.next.take_if(|_| count <= limit) {
            let rest = KeyRange {
                from,
                until: range.until.clone(),
            };
            let page =
                loading
                    .reader()
                    .range(&rest, limit.saturating_add(1), &AtomicBool::new(false));
            let page = page.inspect_err(|error| loading.fail(error))?;
            for (key, value) in page.values {
                let owner = self.owner_of_bytes(&key)?;
                if owner.rank == self.rank {
                    let value = self.decode(&value);
                    let value = value.inspect_err(|error| loading.fail(error))?;
                    logged.values[owner.partition].push((key, value));
                    count += 1;
                }
            }
            logged.next = page.next;
        }
        Ok(logged)
    }
}

/// Takes keys of a range, in memory and from the changelog, until there is one more value than `limit`.
fn take_rows<K: Key, V: Value>(
    table: &mut ValueTable<K, V>,
    range: &KeyRange,
    limit: usize,
    level: ReadLevel,
    logged: Option<Vec<(Vec<u8>, Dated<V>)>>,
    rows: &mut Vec<Row<V>>,
) {
    let mut values = 0;
    let keys = table.range(range).filter(|(_, key)| table.is_known(*key));
    for (bytes, key) in keys {
        let found = find(table, key, level);
        let Some(text) = text_of(key) else {
            continue;
        };
        values += usize::from(found.value.is_some());
        rows.push(Row {
            key: text,
            bytes: bytes.to_vec(),
            value: found.value.cloned(),
            is_committed: found.is_committed,
        });
        if values > limit {
            break;
        }
    }
    let logged = logged.into_iter().flatten().filter_map(|(bytes, value)| {
        let key: K = decode_key(&bytes).ok()?;
        let row = Row {
            key: text_of(&key)?,
            bytes,
            value: Some(value.value),
            is_committed: true,
        };
        (!table.is_known(&key) && !table.is_past(value.changed_at)).then_some(row)
    });
    rows.extend(logged);
}
