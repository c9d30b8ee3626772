//! Random histories of a keyed stream, beside a plain map.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fastrand::Rng;
use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId, partition_of_key};
use millstream_log::{
    AtLeast, DELETE_RETENTION, FILE_DELETE_DELAY, KeyRange, Log, LogError, Stream, StreamPartition,
};
use millstream_record::{Chunks, Compression, Decompressor, EndMarker, TransactionEnd};
use tempfile::TempDir;

use super::{Record, chunk, config, get, scan, small_groups, sync, while_not_keyed};

const CASES: u64 = 20;
const STEPS: usize = 400;
const PRODUCERS: i64 = 3;
const PARTITIONS_MAX: u32 = 3;

/// A record of the model.
struct ModelRecord {
    offset: u64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    /// The producer, if the record is part of a transaction.
    producer: Option<i64>,
    is_aborted: bool,
}

#[derive(Default)]
struct ModelPartition {
    next: u64,
    records: Vec<ModelRecord>,
    /// The first offset of each producer's open transaction.
    open: BTreeMap<i64, u64>,
    /// The next sequence of each producer.
    sequences: BTreeMap<i64, i32>,
}

impl ModelPartition {
    fn stable(&self) -> u64 {
        self.open.values().copied().min().unwrap_or(self.next)
    }

    /// The committed records that count.
    fn committed(&self) -> impl Iterator<Item = &ModelRecord> {
        let stable = self.stable();
        let is_committed =
            move |record: &&ModelRecord| record.offset < stable && !record.is_aborted;
        self.records.iter().filter(is_committed)
    }

    /// Key, offset and value of all keys that have one.
    fn table(&self, earliest: u64, partition: u32, partitions: u32) -> Table {
        let mut table = Table::new();
        for record in self.committed().filter(|record| record.offset >= earliest) {
            let Some(key) = record.key.clone() else {
                continue;
            };
            if partition_of_key(&key, partitions as usize) != partition as usize {
                continue;
            }
            match record.value.clone() {
                Some(value) => drop(table.insert(key, (record.offset, value))),
                None => drop(table.remove(&key)),
            }
        }
        table
    }
}

/// Key and value.
type OwnedRecord = (Option<Vec<u8>>, Option<Vec<u8>>);

type Table = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

struct World {
    rng: Rng,
    dir: TempDir,
    log: Option<Log>,
    keys: Vec<Vec<u8>>,
    model: Vec<ModelPartition>,
    removed_groups: u64,
    /// Key files that lookups found damaged.
    rebuilt: u64,
    /// Groups that were compacted.
    compacted_groups: u64,
}

#[test]
fn lookups_equal_a_plain_map_over_random_histories() {
    let (mut lookups, mut removed_groups, mut rebuilt, mut compacted_groups) = (0, 0, 0, 0);
    for seed in 0..CASES {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            world.step();
        }
        lookups += world.check();
        world.reopen();
        lookups += world.check();
        removed_groups += world.removed_groups;
        rebuilt += world.rebuilt;
        compacted_groups += world.compacted_groups;
    }
    assert!(
        compacted_groups > CASES * 5,
        "{compacted_groups} groups were compacted"
    );
    assert!(lookups > CASES as usize * 20, "{lookups} values were found");
    assert!(
        removed_groups > CASES / 2,
        "{removed_groups} groups were removed"
    );
    assert!(rebuilt > CASES, "{rebuilt} key files were made anew");
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(config(dir.path())).unwrap();
        let policy = ["compact", "compact,delete", "delete, compact"][rng.usize(..3)];
        let mut config = small_groups(policy);
        config.lanes = rng.u32(1..=PARTITIONS_MAX);
        config.retention = rng.bool().then(|| ByteSize(rng.u64(50_000..400_000)));
        for setting in [DELETE_RETENTION, FILE_DELETE_DELAY] {
            if rng.bool() {
                config.settings.insert(setting.to_owned(), "0".to_owned());
            }
        }
        log.create_stream("s", config.clone()).unwrap();
        let keys = (0..30).map(|n: u8| match n {
            0 => Vec::new(),
            1 => vec![0],
            2 => vec![255; 3],
            3 => vec![b'x'; 2_000],
            n => vec![b'k'; usize::from(n % 4)]
                .into_iter()
                .chain([n])
                .collect(),
        });
        World {
            keys: keys.collect(),
            rng,
            dir,
            log: Some(log),
            removed_groups: 0,
            rebuilt: 0,
            compacted_groups: 0,
            model: (0..config.lanes)
                .map(|_| ModelPartition::default())
                .collect(),
        }
    }

    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn stream(&self) -> Stream {
        self.log().stream("s").unwrap()
    }

    fn partition(&self, n: usize) -> StreamPartition {
        self.stream().partition(n as u32).unwrap()
    }

    fn step(&mut self) {
        let n = self.rng.usize(..self.model.len());
        match self.rng.u8(..100) {
            0..=54 => self.append(n),
            55..=69 => self.end_transaction(n),
            70..=76 => sync(self.log()),
            77..=80 => {
                self.log().persist();
                self.log().evict();
                sync(self.log());
            }
            81..=83 => self.delete(n),
            84..=86 => self.removed_groups += self.log().apply_retention().unwrap(),
            87..=92 => drop(self.check_some(n)),
            93..=94 => self.compact(),
            95 => self.check_log(n),
            96 => self.grow(),
            97 => drop(self.check()),
            98 => self.damage_key_files(),
            _ => self.reopen(),
        }
    }

    fn append(&mut self, n: usize) {
        let id = self.rng.i64(0..=PRODUCERS);
        let producer = (id > 0).then_some(id);
        // Some chunks have records without a key, and are refused.
        let may_lack_keys = self.rng.u8(..30) == 0;
        let records: Vec<OwnedRecord> = (0..self.rng.usize(1..20))
            .map(|_| {
                let key = self.rng.choice(&self.keys).cloned();
                let key = key.filter(|_| !may_lack_keys || self.rng.u8(..8) > 0);
                let bytes = match self.rng.u8(..10) {
                    0 => 0,
                    1..=4 => self.rng.usize(..3_000),
                    _ => self.rng.usize(..60),
                };
                let mut value = vec![0; bytes];
                self.rng.fill(&mut value);
                let value = (self.rng.u8(..4) > 0).then_some(value);
                (key, value)
            })
            .collect();
        let compression = [
            Compression::None,
            Compression::Gzip,
            Compression::Snappy,
            Compression::Lz4,
            Compression::Zstd,
        ][self.rng.usize(..5)];
        let partition = self.partition(n);
        let model = &mut self.model[n];
        let sequence = producer.map(|id| (id, *model.sequences.entry(id).or_default()));
        let borrowed: Vec<Record<'_>> = records
            .iter()
            .map(|(key, value)| (key.as_deref(), value.as_deref()))
            .collect();
        let chunk = chunk(&borrowed, compression, sequence);
        let has_all_keys = records.iter().all(|(key, _)| key.is_some());
        let appended = match partition.append(&chunk) {
            Err(LogError::NoKey { .. }) if !has_all_keys => return,
            appended => appended.unwrap(),
        };
        assert!(has_all_keys);
        assert_eq!(appended.base_offset.0, model.next);
        if let Some(id) = producer {
            model.open.entry(id).or_insert(model.next);
            *model.sequences.entry(id).or_default() += records.len() as i32;
        }
        for (key, value) in records {
            model.records.push(ModelRecord {
                offset: model.next,
                key,
                value,
                producer,
                is_aborted: false,
            });
            model.next += 1;
        }
    }

    fn end_transaction(&mut self, n: usize) {
        let id = self.rng.i64(1..=PRODUCERS);
        let is_aborted = self.rng.bool();
        let marker = EndMarker {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(0),
            end: match is_aborted {
                true => TransactionEnd::Abort,
                false => TransactionEnd::Commit,
            },
            coordinator_epoch: 0,
        };
        let partition = self.partition(n);
        partition.append_marker(&marker).unwrap();
        // The transaction is open until its marker is durable.
        sync(self.log());
        let model = &mut self.model[n];
        model.next += 1;
        let Some(first) = model.open.remove(&id).filter(|_| is_aborted) else {
            return;
        };
        for record in &mut model.records {
            record.is_aborted |= record.producer == Some(id) && record.offset >= first;
        }
    }

    fn compact(&mut self) {
        let before: Vec<Table> = (0..self.model.len()).map(|n| self.expected(n)).collect();
        let report = self.log().compact().unwrap();
        self.compacted_groups += report.groups_before;
        assert!(report.groups_after <= report.groups_before);
        for (n, before) in before.into_iter().enumerate() {
            assert_eq!(
                self.expected(n),
                before,
                "what the lane has does not change"
            );
            self.check_log(n);
        }
    }

    /// Reads a partition by offset: its chunks leave no gap, and all records are there but those that newer ones of their
    /// keys replace, and tombstones.
    fn check_log(&self, n: usize) {
        sync(self.log());
        let (partition, model) = (self.partition(n), &self.model[n]);
        let (earliest, stable) = (partition.earliest_offset(), partition.last_stable_offset());
        let mut next = earliest;
        let mut found = BTreeMap::new();
        let mut decompressor = Decompressor::default();
        while next < stable {
            let fetched = partition
                .fetch(next, stable, 100_000, AtLeast::OneChunk)
                .unwrap();
            let aborted = partition.aborted_transactions(next, fetched.next).unwrap();
            for piece in &fetched.pieces {
                for chunk in Chunks::new(piece) {
                    let chunk = chunk.unwrap();
                    let header = chunk.header();
                    assert!(header.base_offset <= next && next < header.next_offset());
                    next = header.next_offset();
                    let is_aborted = aborted.iter().any(|aborted| {
                        header.producer_id == aborted.producer
                            && header.attributes.is_transactional()
                            && (aborted.first_offset..=aborted.last_offset)
                                .contains(&header.base_offset)
                    });
                    if header.attributes.is_control() || is_aborted {
                        continue;
                    }
                    for record in chunk.records(&mut decompressor).unwrap() {
                        let record = record.unwrap();
                        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
                        found.insert(record.offset.0, (owned(record.key), owned(record.value)));
                    }
                }
            }
            assert_eq!(next, fetched.next);
        }
        let mut newest = BTreeMap::new();
        for record in model.committed() {
            if record.offset >= earliest.0 {
                newest.insert(record.key.clone(), record);
            }
        }
        for record in newest.values().filter(|record| record.value.is_some()) {
            let stored = found.get(&record.offset);
            assert_eq!(stored, Some(&(record.key.clone(), record.value.clone())));
        }
        let mut stored: BTreeMap<u64, _> = BTreeMap::new();
        for record in model.committed() {
            stored.insert(record.offset, (record.key.clone(), record.value.clone()));
        }
        for (offset, record) in found.range(earliest.0..stable.0) {
            assert_eq!(stored.get(offset), Some(record), "offset {offset}");
        }
    }

    fn delete(&mut self, n: usize) {
        sync(self.log());
        let partition = self.partition(n);
        let (earliest, end) = (partition.earliest_offset().0, partition.durable_offset().0);
        let to = self.rng.u64(earliest..=end.min(earliest + 200));
        let deleted = self.log().delete_before(&[(partition, Offset(to))]);
        assert_eq!(deleted[0].clone().unwrap(), Offset(to));
    }

    /// Adds a partition while the stream is not keyed: keys get other owners.
    fn grow(&mut self) {
        let partitions = self.model.len() as u32 + 1;
        if partitions <= PARTITIONS_MAX {
            let log = self.log();
            while_not_keyed(log, || log.grow_stream("s", 1, partitions).unwrap());
            self.model.push(ModelPartition::default());
        }
    }

    fn reopen(&mut self) {
        for n in 0..self.model.len() {
            self.rebuilt += self.partition(n).key_stats().files_rebuilt;
        }
        let log = self.log.take().unwrap();
        log.close().unwrap();
        if self.rng.bool() {
            self.damage_key_files();
        }
        self.log = Some(Log::open(config(self.dir.path())).unwrap());
        for n in 0..self.model.len() {
            assert_eq!(self.partition(n).key_stats().indexed_to, Offset(0));
        }
    }

    /// Removes some key files, and changes some bytes of others.
    fn damage_key_files(&mut self) {
        let folders = std::fs::read_dir(self.dir.path().join("streams")).unwrap();
        let folders = folders.map(|folder| folder.unwrap().path());
        let files = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
        let paths = files.map(|file| file.unwrap().path());
        let is_key_file = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "keys");
        let mut paths: Vec<PathBuf> = paths.filter(is_key_file).collect();
        paths.sort_unstable();
        for path in paths {
            let mut bytes = std::fs::read(&path).unwrap();
            match self.rng.u8(..12) {
                0 => std::fs::remove_file(path).unwrap(),
                1 => {
                    bytes.truncate(self.rng.usize(..bytes.len()));
                    std::fs::write(path, bytes).unwrap();
                }
                2 => {
                    let at = self.rng.usize(..bytes.len());
                    bytes[at] ^= 1 << self.rng.u8(..8);
                    std::fs::write(path, bytes).unwrap();
                }
                _ => {}
            }
        }
    }

    /// What lookups must find, which first checks what they depend on.
    fn expected(&self, n: usize) -> Table {
        let partition = self.partition(n);
        let (model, earliest) = (&self.model[n], partition.earliest_offset().0);
        assert_eq!(
            partition.last_stable_offset().0,
            model.stable().max(earliest)
        );
        model.table(earliest, n as u32, self.model.len() as u32)
    }

    /// Looks up some keys, and scans a range.
    fn check_some(&mut self, n: usize) -> usize {
        let (expected, partition) = (self.expected(n), self.partition(n));
        for _ in 0..5 {
            let key = self.rng.choice(&self.keys).unwrap();
            let found = get(&partition, key);
            assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
        }
        let limit = self.rng.usize(1..40);
        let bytes_max = self.rng.usize(..5_000);
        let range = match self.rng.u8(..3) {
            0 => KeyRange::all(),
            1 => KeyRange::prefix(vec![b'k'; self.rng.usize(1..4)]),
            _ => {
                let mut key = || self.rng.choice(&self.keys).unwrap().clone();
                KeyRange::new(key(), Some(key()))
            }
        };
        let found = scan(&partition, range.clone(), limit, bytes_max);
        let wanted = expected.into_iter().filter(|(key, _)| range.contains(key));
        let wanted: Vec<_> = wanted
            .map(|(key, (offset, value))| (key, offset, value))
            .collect();
        assert_eq!(found, wanted, "{range:?}, {limit} keys, {bytes_max} bytes");
        found.len()
    }

    /// Compares all keys of all partitions. Returns how many have a value.
    fn check(&mut self) -> usize {
        let mut count = 0;
        for n in 0..self.model.len() {
            let (expected, partition) = (self.expected(n), self.partition(n));
            for key in &self.keys {
                let found = get(&partition, key);
                assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
                let owner = partition_of_key(key, self.model.len());
                if owner == n {
                    let version = self.stream().get(key).unwrap();
                    let found = version.map(|version| (version.offset.0, version.value.to_vec()));
                    assert_eq!(found.as_ref(), expected.get(key), "key {key:?}");
                }
            }
            let stats = partition.key_stats();
            assert!(stats.keys >= expected.len() as u64);
            assert_eq!(stats.indexed_to, partition.last_stable_offset());
            count += expected.len();
        }
        count
    }
}
