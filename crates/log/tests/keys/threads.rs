//! Lookups beside appends, transactions and retention.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use millstream_base::{ByteSize, Offset};
use millstream_log::{
    AtLeast, Durability, FILE_DELETE_DELAY, KeyRange, Log, LogConfig, LogError, Slice,
    StreamConfig, StreamPartition,
};
use millstream_record::{Chunks, Compression, Decompressor};

use super::{append, chunk, get, small_groups};

const WRITERS: usize = 3;
const READERS: usize = 3;
const KEYS_OF_EACH: u64 = 20;

/// How long the threads run.
const RUN: Duration = Duration::from_secs(2);

/// How long they run at most, on a machine that has not done enough after [`RUN`].
const RUN_MAX: Duration = Duration::from_secs(60);

/// A stream of 64 KiB groups, and the log's own threads.
fn with_threads(dir: &std::path::Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

fn key_of(writer: usize, n: u64) -> Vec<u8> {
    format!("{writer}/{n}").into_bytes()
}

/// The number at the beginning of a value, whose rest checks that it is whole.
fn number_of(value: &[u8]) -> u64 {
    let number = u64::from_be_bytes(value[..8].try_into().unwrap());
    assert!(value[8..].iter().all(|byte| *byte == number as u8));
    number
}

fn value_of(number: u64, bytes: usize) -> Vec<u8> {
    let mut value = number.to_be_bytes().to_vec();
    value.resize(8 + bytes, number as u8);
    value
}

/// The work of other threads during the lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Appends,
    Removals,
    /// Compaction, whose old files go at once, and threads that read all.
    Compaction,
}

/// The offset and the number of a key's newest record.
type Newest = BTreeMap<Vec<u8>, (Offset, u64)>;

/// Reads chunks with `read_on`, which takes the offset behind the last ones, until it returns none. Checks that none is missing.
/// Returns the newest values found, and the offset behind them.
fn read_all(mut read_on: impl FnMut(Offset) -> Vec<Slice>) -> (Newest, Offset) {
    let (mut newest, mut at) = (Newest::new(), Offset(0));
    let mut decompressor = Decompressor::default();
    loop {
        let pieces = read_on(at);
        if pieces.is_empty() {
            return (newest, at);
        }
        for chunk in pieces.iter().flat_map(|piece| Chunks::new(piece)) {
            let chunk = chunk.unwrap();
            let header = chunk.header();
            // The one that goes on in a rewritten group may begin before.
            assert!(header.base_offset <= at, "{at} is missing");
            for record in chunk.records(&mut decompressor).unwrap() {
                let record = record.unwrap();
                if record.offset >= at {
                    let number = number_of(record.value.unwrap());
                    newest.insert(record.key.unwrap().to_vec(), (record.offset, number));
                }
            }
            at = at.max(header.next_offset());
        }
    }
}

/// Reads all again and again until it is over, and checks that the newest record of each key has come.
fn read_beside_swaps(partition: &StreamPartition, by_cursor: bool, is_over: &AtomicBool) {
    let mut is_last = false;
    while !is_last {
        is_last = is_over.load(Ordering::Relaxed);
        let mut reader = partition.reader(partition.earliest());
        let (found, end) = read_all(|at| match by_cursor {
            true => {
                let chunks = reader.read(20_000).unwrap();
                chunks.map(|chunks| chunks.bytes).into_iter().collect()
            }
            false => {
                let end = partition.high_watermark();
                let fetched = partition.fetch(at, end, 20_000, AtLeast::OneChunk);
                fetched.unwrap().pieces
            }
        });
        let scan = partition.scan(&KeyRange::all(), 1_000, usize::MAX).unwrap();
        for entry in scan.entries {
            let version = entry.version;
            let newest = (version.offset, number_of(&version.value));
            // Newer ones have come since.
            let is_behind = version.offset >= end;
            assert!(is_behind || found.get(&entry.key) == Some(&newest));
        }
    }
}

/// Lookups beside appends: each writer finds its own acknowledged values, and no thread reads an older value after a newer one.
fn run(durability: Durability, beside: Beside) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(with_threads(dir.path())).unwrap();
    let mut config = StreamConfig {
        durability,
        ..small_groups("compact")
    };
    let setting = (FILE_DELETE_DELAY.to_owned(), "0".to_owned());
    config.settings.extend([setting]);
    let partition = log
        .create_stream("s", config)
        .unwrap()
        .partition(0)
        .unwrap();
    let is_over = AtomicBool::new(false);
    let lookups = AtomicU64::new(0);
    let mut compacted_groups = 0;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (partition, is_over) = (&partition, &is_over);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(writer as u64);
                let mut number = 0;
                while !is_over.load(Ordering::Relaxed) {
                    number += 1;
                    let key = key_of(writer, rng.u64(..KEYS_OF_EACH));
                    let value = value_of(number, rng.usize(..2_000));
                    let compression = match rng.bool() {
                        true => Compression::Lz4,
                        false => Compression::None,
                    };
                    let chunk = chunk(&[(Some(&key), Some(&value))], compression, None);
                    let appended = partition.append(&chunk).unwrap();
                    partition.acknowledge(&appended).unwrap();
                    let found = get(partition, &key);
                    if beside != Beside::Removals {
                        assert_eq!(found, Some((appended.base_offset.0, value)));
                    }
                }
            });
        }
        for reader in 0..READERS {
            let (partition, is_over, lookups) = (&partition, &is_over, &lookups);
            scope.spawn(move || {
                let mut rng = Rng::with_seed(100 + reader as u64);
                let mut seen = std::collections::BTreeMap::new();
                while !is_over.load(Ordering::Relaxed) {
                    let mut found = Vec::new();
                    if rng.u8(..4) == 0 {
                        let limit = rng.usize(1..100);
                        let scan = partition.scan(&KeyRange::all(), limit, 50_000).unwrap();
                        let entries = scan.entries.into_iter();
                        found.extend(entries.map(|entry| (entry.key, entry.version)));
                    } else {
                        let key = key_of(rng.usize(..WRITERS), rng.u64(..KEYS_OF_EACH));
                        let version = partition.get(&key).unwrap();
                        found.extend(version.map(|version| (key, version)));
                    }
                    for (key, version) in found {
                        let now = (version.offset, number_of(&version.value));
                        let before = seen.insert(key, now);
                        assert!(before.is_none_or(|before| before <= now));
                        lookups.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        if beside == Beside::Compaction {
            for by_cursor in [false, true] {
                let (partition, is_over) = (&partition, &is_over);
                scope.spawn(move || read_beside_swaps(partition, by_cursor, is_over));
            }
        }
        let started = Instant::now();
        let is_enough = |compacted| beside != Beside::Compaction || compacted > 20;
        while started.elapsed() < RUN
            || (started.elapsed() < RUN_MAX && !is_enough(compacted_groups))
        {
            std::thread::sleep(Duration::from_millis(5));
            log.persist();
            log.evict();
            if beside == Beside::Compaction {
                compacted_groups += log.compact().unwrap().groups_before;
            }
            if beside == Beside::Removals {
                let end = partition.durable_offset().0.saturating_sub(30);
                let start = partition.earliest_offset().0;
                let to = Offset(end.max(start));
                log.delete_before(&[(partition.clone(), to)])[0]
                    .clone()
                    .unwrap();
                log.apply_retention().unwrap();
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(is_enough(compacted_groups), "{compacted_groups} groups");
    });
    assert!(lookups.into_inner() > 100);
}

#[test]
fn a_producer_looks_up_its_acknowledged_records_during_concurrent_writes() {
    run(Durability::Async, Beside::Appends);
}

#[test]
fn a_producer_looks_up_its_synced_records_during_concurrent_writes() {
    run(Durability::Sync, Beside::Appends);
}

#[test]
fn lookups_during_the_removal_of_records_never_fail() {
    run(Durability::Async, Beside::Removals);
}

#[test]
fn lookups_and_readers_during_compaction_miss_no_record() {
    run(Durability::Async, Beside::Compaction);
}

#[test]
fn many_threads_wait_for_the_thread_that_builds_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_threads(dir.path());
    let log = Log::open(config.clone()).unwrap();
    let stream = log.create_stream("s", small_groups("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    for n in 0..3_000_u64 {
        append(
            &partition,
            &[(Some(&(n % 100).to_be_bytes()), Some(&value_of(n, 500)))],
        );
    }
    drop((partition, stream));
    log.close().unwrap();
    let log = Log::open(config).unwrap();
    let partition = log.stream("s").unwrap().partition(0).unwrap();
    std::thread::scope(|scope| {
        for n in 0..8_u64 {
            let partition = &partition;
            scope.spawn(move || {
                let (_, value) = get(partition, &n.to_be_bytes()).unwrap();
                assert_eq!(number_of(&value), 2_900 + n);
            });
        }
    });
    let stats = partition.key_stats();
    // A key counts once in each key file.
    assert!((100..=3_000).contains(&stats.keys), "{stats:?}");
    assert!(stats.files > 0 && stats.files_rebuilt == 0, "{stats:?}");
    assert_eq!(stats.indexed_to, Offset(3_000));
}

#[test]
fn a_stream_that_is_deleted_while_its_index_is_built_is_unknown() {
    const RECORDS: u64 = 6_000;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(with_threads(dir.path())).unwrap();
    for case in 0..5_u64 {
        let stream = log.create_stream("s", small_groups("compact")).unwrap();
        let partition = stream.partition(0).unwrap();
        for n in 0..RECORDS {
            let value = value_of(n, 500);
            append(&partition, &[(Some(&n.to_be_bytes()), Some(&value))]);
        }
        std::thread::scope(|scope| {
            let lookup = scope.spawn(|| partition.get(&(RECORDS - 1).to_be_bytes()));
            let is_reading = || partition.key_stats().indexed_to.0 > case * RECORDS / 10;
            while !is_reading() && !lookup.is_finished() {
                std::thread::yield_now();
            }
            log.delete_stream("s").unwrap();
            // It may have ended before the deletion.
            if let Err(error) = lookup.join().unwrap() {
                assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
            }
        });
    }
}
