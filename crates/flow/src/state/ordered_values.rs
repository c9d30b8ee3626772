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
        self.page(range, limit, PAGE_BYTES, level)
    }
}

impl<K: Key, V: Value> Values<K, V> {
    /// Reads a range as [`OrderedState::scan`] does, up to about `bytes_max` bytes of JSON.
    pub(super) fn page(
        &self,
        range: &KeyRange,
        limit: usize,
        bytes_max: usize,
        level: ReadLevel,
    ) -> StatePage {
        let mut rest = range.clone();
        let mut page = StatePage {
            is_committed: true,
            ..StatePage::default()
        };
        loop {
            let limit_left = limit - page.entries.len();
            let Some((part, next)) = self.shared.scan(&rest, limit_left, bytes_max, level) else {
                continue;
            };
            if !page.entries.is_empty() && part.checkpoint != page.checkpoint {
                return page;
            }
            page.entries.extend(part.entries);
            page.has_more = part.has_more;
            page.is_committed &= part.is_committed;
            page.checkpoint = part.checkpoint;
            match next.filter(|_| page.entries.len() < limit.min(PAGE_ENTRIES_MIN)) {
                // The changelog still has keys here, of which few have a value now.
                Some(next) => rest.from = next,
                None => return page,
            }
        }
    }
}

/// About the most bytes of the JSON of a page.
const PAGE_BYTES: usize = 2 << 20;

/// The entries of a page that has more behind it, however large they are, unless fewer are wanted: a reader may go on with the
/// last key of a page, which then is the first entry of the next one.
const PAGE_ENTRIES_MIN: usize = 2;

/// The most bytes of JSON that a value may have which is read without waiting: others would hold up the reader's thread.
const SMALL_BYTES: usize = 16 << 10;

/// Returns whether the JSON of a value is short.
fn is_small<V: Value>(value: &V) -> bool {
    let mut room = Room(SMALL_BYTES);
    room.take_entry(&[], Some(value));
    room.0 > 0
}

/// Room for that many bytes.
struct Room(usize);

impl Room {
    fn take(&mut self, bytes: usize) {
        self.0 = self.0.saturating_sub(bytes);
    }

    /// Takes the room for a key and the JSON of its value; for one that does not fit, all that is left.
    fn take_entry<V: Value>(&mut self, key: &[u8], value: Option<&V>) {
        self.take(key.len());
        let Some(value) = value else {
            return;
        };
        // Most values are numbers, and those need no look.
        if !mem::needs_drop::<V>() && size_of::<V>() <= size_of::<u128>() {
            self.take(size_of::<V>());
        } else if serde_json::to_writer(&mut *self, value).is_err() {
            self.0 = 0;
        }
    }
}

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

    /// Reads a range as [`Values::page`] does, or its first part: then it returns the key at which it goes on, too.
    /// Returns `None` if values have left memory meanwhile that it would have missed.
    fn scan(
        &self,
        range: &KeyRange,
        limit: usize,
        bytes_max: usize,
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
            match self.read_range(range, limit, bytes_max) {
                Ok(read) => logged = read,
                // The flow ends with the error.
                Err(_) => return Some((page, None)),
            }
        }
        // The first key that is left out.
        let mut next = logged.next.take();
        let range = &KeyRange {
            from: range.from.clone(),
            until: next.clone().or_else(|| range.until.clone()),
        };
        let bytes_of_table = bytes_max / self.tables.len().max(1);
        let mut rows = Vec::new();
        let mut is_missed = false;
        let mut take = |partition: usize, table: &mut ValueTable<K, V>| {
            is_missed |= table.is_cold() && lookups[partition].is_none();
            let logged = logged.values.get_mut(partition).map(mem::take);
            let room = Room(bytes_of_table);
            let left_out = take_rows(table, range, limit, room, level, logged, &mut rows);
            next = next.take().into_iter().chain(left_out).min();
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
        page.has_more = next.is_some();
        if let Some(next) = &next {
            rows.retain(|row| row.bytes < *next);
        }
        rows.sort_unstable_by(|one, other| one.bytes.cmp(&other.bytes));
        let mut room = Room(bytes_max);
        for row in rows {
            let count = page.entries.len();
            let is_full = count == limit || count >= PAGE_ENTRIES_MIN && room.0 == 0;
            if is_full && row.value.is_some() {
                page.has_more = true;
                break;
            }
            room.take_entry(&row.bytes, row.value.as_ref());
            page.is_committed &= row.is_committed;
            let value = row.value.and_then(|value| serde_json::to_value(value).ok());
            page.entries.extend(value.map(|value| StateEntry {
                key: row.key,
                bytes: row.bytes,
                value,
            }));
        }
        Some((page, next))
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
    /// Reads keys of a range that this rank owns from the changelog, until there are more than `limit`, or about `bytes_max`
    /// bytes.
    ///
    /// # Errors
    /// When they cannot be read, which ends the flow.
    fn read_range(
        &self,
        range: &KeyRange,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Logged<V>, BoxError> {
        let loading = self.loading.get().expect("a table is cold");
        let mut logged = Logged {
            values: Vec::new(),
            next: Some(range.from.clone()),
        };
        logged.values.resize_with(self.tables.len(), Vec::new);
        let (mut count, mut room) = (0, Room(bytes_max));
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
                    if count >= PAGE_ENTRIES_MIN && room.0 == 0 {
                        logged.next = Some(key);
                        return Ok(logged);
                    }
                    room.take(key.len() + value.len());
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

/// Takes keys of a range, in memory and from the changelog, until there is one more value than `limit`, or those in memory have
/// used up the room. Then it returns the first key that it leaves out.
fn take_rows<K: Key, V: Value>(
    table: &mut ValueTable<K, V>,
    range: &KeyRange,
    limit: usize,
    mut room: Room,
    level: ReadLevel,
    logged: Option<Vec<(Vec<u8>, Dated<V>)>>,
    rows: &mut Vec<Row<V>>,
) -> Option<Vec<u8>> {
    let (mut values, mut left_out) = (0, None);
    // A key without a value may have a former one, which committed reads return and live ones are compared with.
    let keys = table.range_of_all(range);
    let keys = keys.filter(|(_, key)| table.is_known(*key));
    for (bytes, key) in keys {
        let found = find(table, key, level);
        let Some(text) = text_of(key) else {
            continue;
        };
        if found.value.is_some() && values >= PAGE_ENTRIES_MIN && room.0 == 0 {
            left_out = Some(bytes.to_vec());
            break;
        }
        room.take_entry(bytes, found.value);
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
    left_out
}
