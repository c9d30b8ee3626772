//! Checkpoints in a log whose machine crashes, or whose process is killed, at any operation of the disk.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, SystemClock, Timestamp};
use millstream_connect::{EncodedRecord, LogCheckpoints, StreamSink};
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Emit, Flow, FlowSettings, OrderedState as _, ReadLevel,
    Resume, Running, ShardKey, Values,
};
use millstream_log::{Background, Log, LogConfig, LogError, StreamConfig};
use millstream_sim::{Rng, SimClock, SimDisk, SimRandom};

use crate::sinks::read;

fn config(background: Background) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        background,
        ..LogConfig::with_pool(Path::new("/data"), ByteSize(8 << 20))
    }
}

/// How a run ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// A loss of power.
    Crash,
    Kill,
}

impl End {
    fn of(self, disk: &SimDisk, seed: u64) -> SimDisk {
        match self {
            End::Crash => disk.crash(&mut Rng::with_seed(seed)),
            End::Kill => disk.kill(),
        }
    }
}

const RANKS: u32 = 2;

/// The checkpoints of each life of the store.
const CHECKPOINTS: u64 = 3;

fn key(checkpoint: u64, rank: u32, run: u64) -> ShardKey {
    ShardKey {
        checkpoint,
        rank,
        run,
    }
}

fn shard(key: ShardKey) -> Vec<u8> {
    format!("{key:?}").repeat(50).into_bytes()
}

fn record(checkpoint: u64, run: u64) -> Vec<u8> {
    [checkpoint.to_le_bytes(), run.to_le_bytes()].concat()
}

/// Returns the last record, as checkpoint and run.
fn last(store: &LogCheckpoints) -> Option<(u64, u64)> {
    let record = store.records().unwrap().last().unwrap()?;
    let (checkpoint, run) = record.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    Some((number(checkpoint), number(run)))
}

/// The last records of a run: the last one that was stored, and the one that was being stored.
#[derive(Debug, Default, Clone, Copy)]
struct Written {
    stored: Option<(u64, u64)>,
    begun: Option<(u64, u64)>,
}

/// Stores checkpoints as a run does, as far as the machine goes: the shards of all ranks, then the record, then the shards
/// before are removed.
fn write(log: &Log, run: u64, written: &mut Written) -> Option<()> {
    let store = LogCheckpoints::new(log, "shop");
    let former = store.list().ok()?;
    let _lock = store.lock().ok()?;
    let first = written.stored.map_or(0, |(checkpoint, _)| checkpoint);
    for key in former {
        if Some((key.checkpoint, key.run)) != written.stored {
            store.remove(key).ok()?;
        }
    }
    for checkpoint in first + 1..=first + CHECKPOINTS {
        for rank in 0..RANKS {
            let key = key(checkpoint, rank, run);
            store.put(key, &shard(key)).ok()?;
        }
        written.begun = Some((checkpoint, run));
        let records = store.records().unwrap();
        records.append(&record(checkpoint, run)).ok()?;
        let before = written.stored.replace((checkpoint, run));
        if let Some((checkpoint, run)) = before {
            for rank in 0..RANKS {
                store.remove(key(checkpoint, rank, run)).ok()?;
            }
        }
    }
    Some(())
}

fn open_manually(disk: &SimDisk, seed: u64) -> Result<Log, LogError> {
    let (clock, random) = (SimClock::new(Timestamp(0)), SimRandom::new(seed));
    let config = config(Background::Manual);
    Log::open_on(
        config,
        Arc::new(disk.clone()),
        Arc::new(clock),
        Arc::new(random),
    )
}

/// Checks that a start finds the last record, or the one that was being stored, with all of its shards. Returns it.
fn check_last(store: &LogCheckpoints, written: &Written, at: &str) -> Option<(u64, u64)> {
    let found = last(store);
    let is_known = found == written.stored || found == written.begun;
    assert!(is_known, "{found:?} {at}: {written:?}");
    if let Some((checkpoint, run)) = found {
        for rank in 0..RANKS {
            let key = key(checkpoint, rank, run);
            let got = store
                .get(key)
                .unwrap_or_else(|error| panic!("{error} {at}"));
            assert!(got == shard(key), "{key:?} {at}");
        }
    }
    found
}

#[test]
fn a_start_finds_the_last_record_and_its_shards_after_a_crash_at_any_operation() {
    let lives = |disk: &SimDisk, written: &mut Written, at: &mut dyn FnMut()| {
        let mut log = open_manually(disk, 1)?;
        at();
        let done = write(&log, 1, written).is_some();
        if done {
            log.close()?;
            log = open_manually(disk, 2)?;
            write(&log, 2, written);
        }
        Ok::<Log, LogError>(log)
    };
    let disk = SimDisk::new(0);
    let (mut from, mut all) = (0, Written::default());
    drop(lives(&disk, &mut all, &mut || from = disk.operations()));
    assert_eq!(all.stored, Some((2 * CHECKPOINTS, 2)));
    let until = disk.operations();
    assert!(until > from + 50, "{from} {until}");
    for operation in from..until {
        for end in [End::Crash, End::Kill] {
            let disk = SimDisk::new(operation);
            disk.crash_at(operation);
            let mut written = Written::default();
            drop(lives(&disk, &mut written, &mut || ()));
            let left = end.of(&disk, operation);
            let at = format!("after operation {operation}, {end:?}");
            let log = open_manually(&left, 3).unwrap();
            let store = LogCheckpoints::new(&log, "shop");
            let found = check_last(&store, &written, &at);
            // The next run goes on from there.
            written = Written {
                stored: found,
                begun: None,
            };
            write(&log, 3, &mut written).unwrap_or_else(|| panic!("no checkpoint {at}"));
            assert_eq!(check_last(&store, &written, &at), written.stored);
            let shards = store.list().unwrap();
            assert_eq!(shards.len(), RANKS as usize, "{shards:?} {at}");
        }
    }
}

const NUMBERS: u64 = 20_000;
pub const KEYS: u64 = 50;

pub fn open(disk: &SimDisk, seed: u64) -> Result<Log, LogError> {
    let (clock, random) = (SystemClock::default(), SimRandom::new(seed));
    let config = config(Background::Threads);
    Log::open_on(
        config,
        Arc::new(disk.clone()),
        Arc::new(clock),
        Arc::new(random),
    )
}

/// Counts numbers below a limit by key, slowly enough to be interrupted. Where `has_results`, it hands each on to a stream.
pub fn start(
    log: &Log,
    has_results: bool,
    limit: u64,
) -> Result<(Running, Values<u64, u64>), BoxError> {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::new(LogCheckpoints::new(log, "shop")),
            interval: Some(Duration::from_millis(2)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<u64, u64>("users");
    let numbers = Generator::new(|number| {
        if number % 128 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    });
    let numbers = flow.source("numbers", numbers.limit(limit));
    let numbers = numbers.key_by(|number| number % KEYS);
    if has_results {
        let results = log.stream_or_create("results", StreamConfig::default())?;
        let sink = StreamSink::new(&results, |number: &u64, record: &mut EncodedRecord| {
            record.value.extend(number.to_le_bytes());
        });
        let count = |_: &u64, count: &mut Option<u64>, number: &u64, emit: &mut Emit<'_, u64>| {
            *count.get_or_insert_default() += 1;
            emit(number);
        };
        let numbers = numbers.update("count", &counts, count);
        numbers.sink("results", sink?);
    } else {
        numbers.count("count", &counts);
    }
    Ok((flow.run()?, counts))
}

/// Returns the count of a key as readers of committed values see it.
fn committed(counts: &Values<u64, u64>) -> u64 {
    let read = counts.read("7", ReadLevel::Committed);
    let value = read.and_then(|read| read.value?.as_u64());
    value.unwrap_or_default()
}

fn check_counts(counts: &Values<u64, u64>, at: &str) {
    for key in 0..KEYS {
        assert_eq!(counts.get(&key), Some(NUMBERS / KEYS), "key {key} {at}");
    }
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flow_counts_each_number_once_and_takes_no_served_count_back_after_a_crash_at_any_operation() {
    let mut all_served = 0;
    for seed in 0..8 {
        let mut rng = Rng::with_seed(seed);
        let mut disk = SimDisk::new(seed);
        let mut served = 0;
        for life in 0..4 {
            disk.crash_at(rng.u64(10..800));
            if let Ok(log) = open(&disk, life)
                && let Ok((running, counts)) = start(&log, true, NUMBERS)
            {
                let restored = committed(&counts);
                assert!(restored >= served, "{restored} {served}, seed {seed}");
                wait_until("the machine crashes", || {
                    served = served.max(committed(&counts));
                    disk.has_crashed() || running.is_finished()
                });
            }
            all_served += served;
            let end = [End::Crash, End::Kill][rng.usize(0..2)];
            disk = end.of(&disk, seed);
        }
        let at = format!("with seed {seed}");
        let log = open(&disk, 4).unwrap();
        let (running, counts) = start(&log, true, NUMBERS).unwrap();
        running.join().unwrap();
        check_counts(&counts, &at);
        let mut results = read(&log.stream("results").unwrap());
        results.sort_unstable();
        assert!(results.into_iter().eq(0..NUMBERS), "{at}");
    }
    assert!(all_served > 0, "no count was served before a crash");
}
