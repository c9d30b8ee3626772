//! The table of a lane's key index: an ordered map from a key to its newest version.

use std::collections::BTreeMap;

use millstream_base::{KeyRange, Offset, partition_of_key};
use millstream_record::Record;
use serde::Serialize;

/// The memory that a key takes beside its own bytes, about: its place in the map, whose nodes are not full, and what the
/// allocator adds.
const KEY_OVERHEAD_BYTES: u64 = 64;

/// The place of a key's newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    pub offset: Offset,
    /// The bytes of the record's key, value and headers: a scan bounds its answer before it reads records.
    pub bytes: u32,
}

/// The newest versions of the keys that a partition owns.
#[derive(Debug)]
pub struct KeyTable {
    partition: u32,
    /// The number of partitions by which keys have their owners.
    partitions: u32,
    newest: BTreeMap<Box<[u8]>, Newest>,
    /// The sum of the keys' lengths.
    key_bytes: u64,
    misplaced: u64,
    without_key: u64,
    /// All records before this offset were added.
    next: Offset,
    /// No key has a version before this offset.
    swept: Offset,
}

/// The size of a partition's key index, and what it left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KeyStats {
    /// The keys that have a value. Keys whose records retention has removed may count until the index drops them.
    pub keys: u64,
    /// The memory that they take, about.
    pub bytes: u64,
    /// Records in this partition whose key another partition owns. They are not found by key.
    pub misplaced: u64,
    /// Records without a key.
    pub without_key: u64,
    /// The offset behind the last record that the index has read. 0 before the first lookup after a start.
    pub indexed_to: Offset,
}

/// Keys in their order, with the places of their newest versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    pub keys: Vec<(Vec<u8>, Newest)>,
    /// The first key that did not fit.
    pub next: Option<Vec<u8>>,
}

impl KeyTable {
    /// An empty table of one of `partitions` partitions.
    pub fn new(partition: u32, partitions: u32) -> KeyTable {
        KeyTable {
            partition,
            partitions,
            newest: BTreeMap::new(),
            key_bytes: 0,
            misplaced: 0,
            without_key: 0,
            next: Offset(0),
            swept: Offset(0),
        }
    }

    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The offset before which all records were added.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Takes note that all records before `next` were added.
    pub fn advance(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// Adds the next committed record.
    pub fn add(&mut self, record: &Record<'_>) {
        let Some(key) = record.key else {
            self.without_key += 1;
            return;
        };
        if partition_of_key(key, self.partitions as usize) != self.partition as usize {
            self.misplaced += 1;
            return;
        }
        if record.value.is_none() {
            if self.newest.remove(key).is_some() {
                self.key_bytes -= key.len() as u64;
            }
            return;
        }
        let newest = Newest {
            offset: record.offset,
            bytes: record_bytes(record),
        };
        match self.newest.get_mut(key) {
            Some(known) => *known = newest,
            None => {
                self.newest.insert(key.into(), newest);
                self.key_bytes += key.len() as u64;
            }
        }
    }

    /// Returns the place of a key's newest version, if that is not before `earliest`.
    pub fn newest(&self, key: &[u8], earliest: Offset) -> Option<Newest> {
        let newest = self.newest.get(key).copied();
        newest.filter(|newest| newest.offset >= earliest)
    }

    /// Returns keys of a range that are not before `earliest`: at most `limit`, whose records have at most `bytes_max`
    /// bytes, but at least one if `limit` allows it.
    pub fn scan(
        &self,
        range: &KeyRange,
        earliest: Offset,
        limit: usize,
        bytes_max: usize,
    ) -> Found {
        let mut found = Found {
            keys: Vec::new(),
            next: None,
        };
        if range.is_empty() {
            return found;
        }
        let mut bytes_left = bytes_max;
        for (key, newest) in self.newest.range::<[u8], _>(range.bounds()) {
            if newest.offset < earliest {
                continue;
            }
            let bytes = newest.bytes as usize;
            let is_first = found.keys.is_empty();
            if found.keys.len() >= limit || bytes > bytes_left && !is_first {
                found.next = Some(key.to_vec());
                break;
            }
            bytes_left = bytes_left.saturating_sub(bytes);
            found.keys.push((key.to_vec(), *newest));
        }
        found
    }

    /// Drops the keys whose newest versions are before `earliest`, if as many offsets were removed since the last time as
    /// there are keys: so a removed record costs a constant time, however often some are removed.
    pub fn sweep(&mut self, earliest: Offset) {
        let removed = earliest.0.saturating_sub(self.swept.0);
        if removed == 0 || removed < self.newest.len() as u64 {
            return;
        }
        let mut dropped = 0;
        self.newest.retain(|key, newest| {
            let is_stored = newest.offset >= earliest;
            dropped += if is_stored { 0 } else { key.len() as u64 };
            is_stored
        });
        self.key_bytes -= dropped;
        self.swept = earliest;
    }

    pub fn stats(&self) -> KeyStats {
        let keys = self.newest.len() as u64;
        KeyStats {
            keys,
            bytes: self.key_bytes + keys * KEY_OVERHEAD_BYTES,
            misplaced: self.misplaced,
            without_key: self.without_key,
            indexed_to: self.next,
        }
    }
}

/// The bytes of a record's key, value and headers.
fn record_bytes(record: &Record<'_>) -> u32 {
    let len = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers = record.headers();
    let headers: usize = headers
        .map(|header| header.name.len() + len(header.value))
        .sum();
    let bytes = len(record.key) + len(record.value) + headers;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use millstream_base::Timestamp;
    use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};

    use super::*;

    /// Adds records, the first of which has the table's next offset.
    fn add(table: &mut KeyTable, records: &[(Option<&str>, Option<&str>)]) {
        let mut builder = ChunkBuilder::new(Compression::None);
        for (key, value) in records {
            let (key, value) = (key.map(str::as_bytes), value.map(str::as_bytes));
            builder.push(Timestamp(0), key, value, &[]).unwrap();
        }
        let mut bytes = builder.finish(None).unwrap().to_vec();
        millstream_record::set_base_offset(&mut bytes, table.next());
        let chunk = Chunk::parse(&bytes).unwrap();
        for record in chunk.records(&mut Decompressor::default()).unwrap() {
            table.add(&record.unwrap());
        }
        table.advance(chunk.header().next_offset());
    }

    fn offset_of(table: &KeyTable, key: &str, earliest: u64) -> Option<u64> {
        let newest = table.newest(key.as_bytes(), Offset(earliest));
        newest.map(|newest| newest.offset.0)
    }

    fn scan(
        table: &KeyTable,
        range: &KeyRange,
        limit: usize,
        bytes_max: usize,
    ) -> (String, Option<String>) {
        let found = table.scan(range, Offset(0), limit, bytes_max);
        let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
        let keys = found.keys.into_iter().map(|(key, _)| text(key));
        (keys.collect::<Vec<_>>().join(" "), found.next.map(text))
    }

    #[test]
    fn the_newest_record_of_a_key_counts_until_one_without_value() {
        let mut table = KeyTable::new(0, 1);
        let put = |key| (Some(key), Some("value"));
        add(
            &mut table,
            &[put("a"), put("b"), put("a"), (None, Some("x"))],
        );
        assert_eq!(offset_of(&table, "a", 0), Some(2));
        assert_eq!(offset_of(&table, "b", 0), Some(1));
        assert_eq!(offset_of(&table, "c", 0), None);

        add(
            &mut table,
            &[(Some("a"), None), (Some("c"), None), put("b")],
        );
        assert_eq!(offset_of(&table, "a", 0), None);
        assert_eq!(offset_of(&table, "b", 0), Some(6));
        add(&mut table, &[(Some("a"), Some("")), (None, None)]);
        assert_eq!(offset_of(&table, "a", 0), Some(7), "an empty value is one");
        let stats = table.stats();
        assert_eq!((stats.keys, stats.without_key, stats.misplaced), (2, 2, 0));
        assert_eq!(stats.indexed_to, Offset(9));
        assert_eq!(stats.bytes, 2 + 2 * KEY_OVERHEAD_BYTES);
    }

    #[test]
    fn a_key_of_another_partition_is_counted_and_not_found() {
        let key = "foobar";
        let owner = partition_of_key(key.as_bytes(), 3) as u32;
        for partition in 0..3 {
            let mut table = KeyTable::new(partition, 3);
            add(&mut table, &[(Some(key), Some("value"))]);
            let is_owner = partition == owner;
            assert_eq!(offset_of(&table, key, 0).is_some(), is_owner);
            assert_eq!(table.stats().misplaced, u64::from(!is_owner));
        }
    }

    #[test]
    fn a_scan_ends_at_its_bounds_with_the_key_that_goes_on() {
        let mut table = KeyTable::new(0, 1);
        // Each record has 10 bytes, but one.
        for key in ["b", "a", "c", "ba", "d"] {
            let value = ".".repeat(10 - key.len());
            add(&mut table, &[(Some(key), Some(&value))]);
        }
        add(&mut table, &[(Some("c"), Some(&".".repeat(99)))]);
        let all = KeyRange::all();
        let text = |keys: &str, next: Option<&str>| (keys.to_owned(), next.map(str::to_owned));
        let most = usize::MAX;
        assert_eq!(scan(&table, &all, most, most), text("a b ba c d", None));
        assert_eq!(scan(&table, &all, 5, most), text("a b ba c d", None));
        assert_eq!(scan(&table, &all, 2, most), text("a b", Some("ba")));
        assert_eq!(scan(&table, &all, 0, most), text("", Some("a")));
        assert_eq!(scan(&table, &all, most, 29), text("a b", Some("ba")));
        assert_eq!(scan(&table, &all, most, 30), text("a b ba", Some("c")));
        assert_eq!(scan(&table, &all, most, 0), text("a", Some("b")));
        let large = KeyRange::new("c", None);
        assert_eq!(scan(&table, &large, most, 50), text("c", Some("d")));
        let prefix = KeyRange::prefix("b");
        assert_eq!(scan(&table, &prefix, most, most), text("b ba", None));
        let empty = KeyRange::new("d", Some(b"a".to_vec()));
        assert_eq!(scan(&table, &empty, most, most), text("", None));
    }

    #[test]
    fn removed_versions_are_absent_and_dropped_when_they_are_many() {
        let mut table = KeyTable::new(0, 1);
        let put = |key| (Some(key), Some("value"));
        add(&mut table, &[put("a"), put("b"), put("c"), put("a")]);
        assert_eq!(offset_of(&table, "b", 1), Some(1));
        assert_eq!(offset_of(&table, "b", 2), None);
        assert_eq!(offset_of(&table, "a", 3), Some(3));
        table.sweep(Offset(2));
        assert_eq!(
            table.stats().keys,
            3,
            "fewer were removed than there are keys"
        );
        table.sweep(Offset(3));
        assert_eq!((table.stats().keys, table.key_bytes), (1, 1));
        assert_eq!(offset_of(&table, "a", 3), Some(3));
    }
}
