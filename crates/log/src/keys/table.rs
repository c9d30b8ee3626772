//! The table of a lane's key index: an ordered map from a key to its newest version, of the records behind the key files.

use std::collections::BTreeMap;

use millstream_base::{KeyRange, Offset, Timestamp, partition_of_key};
use millstream_record::Record;
use serde::Serialize;

use crate::keys::file::KeyCounts;
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;
use crate::keys::secondary::{entry, indexed_keys, is_left_out};

/// The memory that a key takes beside its own bytes, about: its place in the map, whose nodes are not full, and the
/// allocator's overhead.
const KEY_OVERHEAD_BYTES: u64 = 64;

/// The place of a key's newest version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest {
    pub offset: Offset,
    /// The bytes of the record's key, value and headers: a scan bounds its answer before it reads records.
    pub bytes: u32,
    /// Whether the record has no value: then no older version of the key counts, also of those in key files.
    pub is_tombstone: bool,
}

/// The newest versions of the keys that a partition owns, of the records behind the key files.
#[derive(Debug)]
pub struct KeyTable {
    kind: KeyKind,
    partition: u32,
    /// The number of partitions by which keys have their owners.
    partitions: u32,
    /// Whether there may be key files, in which older versions of keys without a value would be found.
    has_files: bool,
    /// Entries of records before `covered` may be left: they are as in the key files.
    newest: BTreeMap<Box<[u8]>, Newest>,
    /// The sum of the keys' lengths.
    key_bytes: u64,
    /// The number of keys without a value.
    tombstones: u64,
    misplaced: u64,
    /// Records without a key; of secondary keys, those with some that the index leaves out.
    without_key: u64,
    /// Key files have all records before this offset.
    covered: Offset,
    /// All records before this offset were added, or are in key files.
    next: Offset,
    /// No key has a version before this offset.
    swept: Offset,
}

/// The size of a partition's key index, and the number of records that it left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct KeyStats {
    /// The keys that have a value, at most: a key counts once in memory and once in each key file that has it. Keys whose
    /// records retention has removed may count until the index drops them.
    pub keys: u64,
    /// The memory that those behind the key files take, about.
    pub bytes: u64,
    /// Records in this partition whose key another partition owns. They are not found by key.
    pub misplaced: u64,
    /// Records without a key.
    pub without_key: u64,
    /// The offset behind the last record that the index has read. 0 before the first lookup after a start.
    pub indexed_to: Offset,
    /// The key files in use. Each is beside a closed group.
    pub files: u64,
    /// The key files that were made since the start.
    pub files_built: u64,
    /// The key files made since the start in place of damaged or lost ones.
    pub files_rebuilt: u64,
    /// The bytes of the key files in use.
    pub file_bytes: u64,
    /// When a key file could not be made, most recently since the start.
    pub files_failed_at: Option<Timestamp>,
}

impl KeyTable {
    /// An empty table of one of `partitions` partitions, for which there may be key files.
    pub fn new(kind: KeyKind, partition: u32, partitions: u32, has_files: bool) -> KeyTable {
        KeyTable {
            kind,
            partition,
            partitions,
            has_files,
            newest: BTreeMap::new(),
            key_bytes: 0,
            tombstones: 0,
            misplaced: 0,
            without_key: 0,
            covered: Offset(0),
            next: Offset(0),
            swept: Offset(0),
        }
    }

    /// An empty table of the same partition, now one of `partitions`.
    pub fn emptied(&self, partitions: u32) -> KeyTable {
        let kind = self.kind.clone();
        KeyTable::new(kind, self.partition, partitions, self.has_files)
    }

    pub fn partitions(&self) -> u32 {
        self.partitions
    }

    /// The offset before which key files have all records.
    pub fn covered(&self) -> Offset {
        self.covered
    }

    /// The offset before which all records were added, or are in key files.
    pub fn next(&self) -> Offset {
        self.next
    }

    /// Takes note that all records before `next` were added.
    pub fn advance(&mut self, next: Offset) {
        self.next = self.next.max(next);
    }

    /// Records that key files have all records before `end`. `counts` belongs to the key file that ends there.
    pub fn cover(&mut self, end: Offset, counts: &KeyCounts) {
        if self.next < end {
            // Later records of the same group may be newer.
            self.clear();
            self.next = end;
        } else {
            self.misplaced = self.misplaced.saturating_sub(counts.misplaced);
            self.without_key = self.without_key.saturating_sub(counts.without_key);
        }
        self.covered = self.covered.max(end);
    }

    /// Records that a key file that begins at `from` is lost: the caller must add all records from there on again.
    pub fn uncover(&mut self, from: Offset) {
        if self.covered <= from {
            return;
        }
        self.clear();
        self.covered = from;
        self.next = from;
    }

    /// Adds the next committed record. Returns `false` if it has no key, or a key of another partition.
    pub fn add(&mut self, record: &Record<'_>) -> bool {
        if let KeyKind::Secondary(name) = &self.kind {
            let name = name.clone();
            return self.add_secondary(record, &name);
        }
        let Some(key) = record.key else {
            self.without_key += 1;
            return false;
        };
        if !self.owns(key) {
            self.misplaced += 1;
            return false;
        }
        let is_tombstone = record.value.is_none();
        if is_tombstone && !self.has_files {
            if self.newest.remove(key).is_some() {
                self.key_bytes -= key.len() as u64;
            }
            return true;
        }
        let newest = Newest {
            offset: record.offset,
            bytes: record_bytes(record),
            is_tombstone,
        };
        self.put(key, newest);
        true
    }

    /// Adds the secondary keys of the next committed record, as [`add`](Self::add) does. Entries of the key's older versions
    /// stay: look-ups pass over them.
    fn add_secondary(&mut self, record: &Record<'_>, name: &SecondaryName) -> bool {
        let Some(key) = record.key.filter(|key| self.owns(key)) else {
            return false;
        };
        if record.value.is_none() {
            return true;
        }
        self.without_key += u64::from(is_left_out(record, name));
        let newest = Newest {
            offset: record.offset,
            bytes: record_bytes(record),
            is_tombstone: false,
        };
        let mut bytes = Vec::new();
        for secondary in indexed_keys(record, name) {
            entry::encode(secondary, key, &mut bytes);
            self.put(&bytes, newest);
        }
        true
    }

    fn put(&mut self, key: &[u8], newest: Newest) {
        let before = match self.newest.get_mut(key) {
            Some(known) => std::mem::replace(known, newest).is_tombstone,
            None => {
                self.newest.insert(key.into(), newest);
                self.key_bytes += key.len() as u64;
                false
            }
        };
        self.tombstones += u64::from(newest.is_tombstone);
        self.tombstones -= u64::from(before);
    }

    /// Whether the partition owns a key.
    pub fn owns(&self, key: &[u8]) -> bool {
        partition_of_key(key, self.partitions as usize) == self.partition as usize
    }

    /// Returns the place of a key's newest version; `None` if there is none behind the key files.
    pub fn newest(&self, key: &[u8]) -> Option<Newest> {
        self.newest.get(key).copied()
    }

    /// Returns the first keys of a range, up to one that has a value and comes behind `values` others that have one and are
    /// not before `earliest`. So these are the first keys with a value, whatever key files have between them.
    pub fn first_keys(
        &self,
        range: &KeyRange,
        earliest: Offset,
        values: usize,
    ) -> Vec<(Vec<u8>, Newest)> {
        let mut keys = Vec::new();
        if range.is_empty() {
            return keys;
        }
        let mut values_left = values.saturating_add(1);
        for (key, newest) in self.newest.range::<[u8], _>(range.bounds()) {
            keys.push((key.to_vec(), *newest));
            if !newest.is_tombstone && newest.offset >= earliest {
                values_left -= 1;
                if values_left == 0 {
                    break;
                }
            }
        }
        keys
    }

    /// Drops the keys whose newest versions are before `earliest` or in key files, if at least half as many offsets were
    /// removed or covered since the last time as there are keys: so each removed or covered record costs constant time on
    /// average.
    pub fn sweep(&mut self, earliest: Offset) {
        let before = earliest.max(self.covered);
        let passed = before.0.saturating_sub(self.swept.0);
        if passed == 0 || passed.saturating_mul(2) < self.newest.len() as u64 {
            return;
        }
        let (mut bytes, mut tombstones) = (0, 0);
        self.newest.retain(|key, newest| {
            let stays = newest.offset >= before;
            if !stays {
                bytes += key.len() as u64;
                tombstones += u64::from(newest.is_tombstone);
            }
            stays
        });
        self.key_bytes -= bytes;
        self.tombstones -= tombstones;
        self.swept = before;
    }

    /// Returns the size of the table, without the key files.
    pub fn stats(&self) -> KeyStats {
        let entries = self.newest.len() as u64;
        KeyStats {
            keys: entries - self.tombstones,
            bytes: self.key_bytes + entries * KEY_OVERHEAD_BYTES,
            misplaced: self.misplaced,
            without_key: self.without_key,
            indexed_to: self.next,
            ..KeyStats::default()
        }
    }

    fn clear(&mut self) {
        self.newest.clear();
        (self.key_bytes, self.tombstones) = (0, 0);
        (self.misplaced, self.without_key) = (0, 0);
    }
}

/// The bytes of a record's key, value and headers.
pub fn record_bytes(record: &Record<'_>) -> u32 {
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

    fn put(key: &str) -> (Option<&str>, Option<&str>) {
        (Some(key), Some("value"))
    }

    /// The offset of a key's newest version, and whether that has a value.
    fn found(table: &KeyTable, key: &str) -> Option<(u64, bool)> {
        let newest = table.newest(key.as_bytes())?;
        Some((newest.offset.0, !newest.is_tombstone))
    }

    #[test]
    fn the_newest_record_of_a_key_counts_also_when_it_has_no_value() {
        for has_files in [false, true] {
            let mut table = KeyTable::new(KeyKind::Primary, 0, 1, has_files);
            add(
                &mut table,
                &[put("a"), put("b"), put("a"), (None, Some("x"))],
            );
            assert_eq!(found(&table, "a"), Some((2, true)));
            assert_eq!(found(&table, "b"), Some((1, true)));
            assert_eq!(found(&table, "c"), None);

            add(
                &mut table,
                &[(Some("a"), None), (Some("c"), None), put("b")],
            );
            // Without key files nothing older can be found.
            assert_eq!(found(&table, "a"), has_files.then_some((4, false)));
            assert_eq!(found(&table, "c"), has_files.then_some((5, false)));
            assert_eq!(found(&table, "b"), Some((6, true)));
            add(&mut table, &[(Some("a"), Some("")), (None, None)]);
            assert_eq!(found(&table, "a"), Some((7, true)), "an empty value is one");
            let stats = table.stats();
            assert_eq!((stats.keys, stats.without_key, stats.misplaced), (2, 2, 0));
            assert_eq!(stats.indexed_to, Offset(9));
            let entries = 2 + u64::from(has_files);
            assert_eq!(stats.bytes, entries * (1 + KEY_OVERHEAD_BYTES));
        }
    }

    #[test]
    fn a_key_of_another_partition_is_counted_and_not_found() {
        let key = "foobar";
        let owner = partition_of_key(key.as_bytes(), 3) as u32;
        for partition in 0..3 {
            let mut table = KeyTable::new(KeyKind::Primary, partition, 3, true);
            add(&mut table, &[put(key)]);
            let is_owner = partition == owner;
            assert_eq!(found(&table, key).is_some(), is_owner);
            assert_eq!(table.stats().misplaced, u64::from(!is_owner));
        }
    }

    #[test]
    fn listing_the_first_keys_stops_after_one_value_beyond_the_limit() {
        let mut table = KeyTable::new(KeyKind::Primary, 0, 1, true);
        let records = [
            put("a"),
            put("b"),
            (Some("c"), None),
            put("d"),
            (Some("e"), None),
        ];
        add(&mut table, &records);
        let first = |range: &KeyRange, earliest, values| {
            let keys = table
                .first_keys(range, Offset(earliest), values)
                .into_iter();
            let text = |(key, _)| String::from_utf8(key).unwrap();
            keys.map(text).collect::<Vec<_>>().join(" ")
        };
        let all = KeyRange::all();
        assert_eq!(first(&all, 0, 0), "a");
        assert_eq!(first(&all, 0, 1), "a b");
        assert_eq!(first(&all, 0, 2), "a b c d");
        assert_eq!(first(&all, 0, usize::MAX), "a b c d e");
        // Removed entries still hide older versions, and do not count.
        assert_eq!(first(&all, 1, 1), "a b c d");
        assert_eq!(first(&KeyRange::new("c", None), 0, 0), "c d");
        let empty = KeyRange::new("d", Some(b"a".to_vec()));
        assert_eq!(first(&empty, 0, 1), "");
    }

    #[test]
    fn removed_and_covered_versions_are_dropped_once_there_are_many() {
        let mut table = KeyTable::new(KeyKind::Primary, 0, 1, true);
        add(
            &mut table,
            &[put("a"), (Some("b"), None), put("c"), put("a")],
        );
        table.sweep(Offset(1));
        let entries = |table: &KeyTable| (table.newest.len(), table.key_bytes, table.tombstones);
        assert_eq!(entries(&table), (3, 3, 1), "few were removed");
        table.sweep(Offset(3));
        assert_eq!(entries(&table), (1, 1, 0));

        table.cover(Offset(4), &KeyCounts::default());
        add(&mut table, &[put("d")]);
        assert_eq!(found(&table, "a"), Some((3, true)), "as in the key file");
        add(&mut table, &[put("d")]);
        table.cover(Offset(5), &KeyCounts::default());
        table.sweep(Offset(0));
        assert_eq!(
            (found(&table, "a"), found(&table, "d")),
            (None, Some((5, true)))
        );
    }

    #[test]
    fn a_key_file_replaces_records_that_were_partly_added() {
        let mut table = KeyTable::new(KeyKind::Primary, 0, 1, true);
        add(&mut table, &[put("a"), (None, None), put("b")]);
        let counts = KeyCounts {
            without_key: 1,
            ..KeyCounts::default()
        };
        table.cover(Offset(3), &counts);
        assert_eq!(found(&table, "b"), Some((2, true)));
        assert_eq!(table.stats().without_key, 0, "they count with the file");
        add(&mut table, &[put("a"), (None, None)]);
        // The file has a newer version of it, perhaps.
        table.cover(Offset(9), &counts);
        assert_eq!(found(&table, "a"), None);
        assert_eq!((table.covered(), table.next()), (Offset(9), Offset(9)));
        assert_eq!(table.stats().without_key, 0);

        add(&mut table, &[put("c")]);
        table.uncover(Offset(3));
        assert_eq!(found(&table, "c"), None);
        assert_eq!((table.covered(), table.next()), (Offset(3), Offset(3)));
    }
}
