//! State that is larger than the memory for it: updates beside RocksDB, and the first result after a kill.
//!
//! In the first case the kernel limits the memory of each side, including the system's cache of its files.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use millstream_base::ByteSize;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, FlowSettings, Resume};
use millstream_log::{Log, LogConfig};
use serde::{Deserialize, Serialize};

use super::counting::{FLOW, INSTANCES, INTERVAL, SPREAD, checkpoints};
use super::recovery::wait_until;
use crate::child::{self, Working, report};
use crate::measure::{Bench, median, rounds_of};
use crate::memory_group::MemoryGroup;
use crate::report::{Better, Case};
use crate::rocksdb::RocksDb;

pub const SCARCE: &str = "scarce-memory";

pub const LARGE: &str = "recovery-10-gb";

/// How many times the keys and values are as large as the memory.
const TIMES: u64 = 4;

/// The bytes of a key and its value, as RocksDB has them.
const ENTRY_BYTES: u64 = 8 + 8 + TEXT_BYTES as u64;

/// The bytes of a value's text.
const TEXT_BYTES: usize = 100;

/// The least memory: a quick run has few keys.
const MEMORY_MIN: u64 = 256 << 20;

/// The least part of RocksDB's rate.
const TARGET: f64 = 1.0;

/// The state is filled within this time.
const FILL_MAX: Duration = Duration::from_secs(900);

/// How often each side is measured: a round takes long.
const ROUNDS: usize = 3;

/// The values of the large state: 10 GB of texts.
const LARGE_KEYS: u64 = 10_000_000;
const LARGE_TEXT_BYTES: usize = 1000;

/// The most seconds until the first result.
const LARGE_TARGET_S: f64 = 1.0;

/// The child process whose flow counts: each key once, then keys at random.
#[derive(Debug, Serialize, Deserialize)]
pub struct Count {
    dir: PathBuf,
    keys: u64,
    text_bytes: usize,
    /// `None` for as much as a log has without settings.
    pool: Option<u64>,
    work: Work,
    /// `None` without a limit of memory.
    group: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Work {
    /// Counts each key.
    Fill,
    /// Goes on for a time, and is measured for the same time then.
    Update(Duration),
    /// Goes on until there is a result.
    Resume,
}

/// The figures of a run, as both sides print them.
#[derive(Debug, Deserialize, Serialize)]
struct Ran {
    updates: u64,
    seconds: f64,
    /// How long the log took to open: ours alone.
    #[serde(default)]
    opened_s: f64,
}

/// A count, and a text that makes the value as large as others.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Counted {
    count: u64,
    text: String,
}

/// Returns the key of an event.
fn key_of(number: u64, keys: u64) -> u64 {
    match number < keys {
        true => number,
        false => (number.wrapping_mul(SPREAD) >> 20) % keys,
    }
}

impl child::Task for Count {
    const NAME: &'static str = "state/scarce-memory";

    fn run(self) -> Result<()> {
        static EVENTS: AtomicU64 = AtomicU64::new(0);
        static FILLED: AtomicU64 = AtomicU64::new(0);
        static FIRST_RESULT: OnceLock<Instant> = OnceLock::new();
        let events = || EVENTS.load(Ordering::Relaxed);
        self.group.as_deref().map_or(Ok(()), MemoryGroup::join)?;
        let started_at = Instant::now();
        let log = Log::open(match self.pool {
            Some(pool) => LogConfig::with_pool(&self.dir, ByteSize(pool)),
            None => LogConfig::new(&self.dir),
        })?;
        let opened_s = started_at.elapsed().as_secs_f64();
        let resume = match self.work {
            Work::Fill => Resume::Never,
            Work::Update(_) | Work::Resume => Resume::Always,
        };
        let settings = FlowSettings {
            workers: NonZeroUsize::new(INSTANCES as usize).expect("there are instances"),
            checkpoints: Some(checkpoints(&log, INTERVAL, resume)),
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings(FLOW, settings);
        let counts = flow.values::<u64, Counted>("counts");
        let Count {
            keys, text_bytes, ..
        } = self;
        let source = |instance| {
            Generator::new(move |number| {
                EVENTS.fetch_add(1, Ordering::Relaxed);
                let event = number * INSTANCES + instance;
                if event < keys {
                    FILLED.fetch_add(1, Ordering::Relaxed);
                }
                key_of(event, keys)
            })
        };
        flow.sources("events", (0..INSTANCES).map(source).collect::<Vec<_>>())
            .key_by(|key| *key)
            .fold("count", &counts, move |counted, _| {
                counted.count += 1;
                if counted.text.is_empty() {
                    counted.text = "a".repeat(text_bytes);
                }
                FIRST_RESULT.get_or_init(Instant::now);
            });
        let running = flow.run()?;
        let kept = || running.checkpoints().unwrap_or_default().kept;
        let ran = match self.work {
            Work::Fill => {
                let begin = Instant::now();
                // One instance may be far ahead of another.
                wait_until("each key is counted", FILL_MAX, || {
                    FILLED.load(Ordering::Relaxed) >= keys
                })?;
                let first = kept();
                wait_until("there are checkpoints", FILL_MAX, || kept() > first + 2)?;
                Ran {
                    updates: events(),
                    seconds: begin.elapsed().as_secs_f64(),
                    opened_s,
                }
            }
            Work::Update(time) => {
                sleep(time);
                let (before, begin) = (events(), Instant::now());
                sleep(time);
                Ran {
                    updates: events() - before,
                    seconds: begin.elapsed().as_secs_f64(),
                    opened_s,
                }
            }
            Work::Resume => {
                wait_until("there is a result", FILL_MAX, || {
                    FIRST_RESULT.get().is_some()
                })?;
                let first = FIRST_RESULT.get().copied().unwrap_or(started_at);
                Ran {
                    updates: 1,
                    seconds: (first - started_at).as_secs_f64(),
                    opened_s,
                }
            }
        };
        for key in [0, keys / 2, keys - 1] {
            ensure!(counts.get(&key).is_some(), "key {key} is missing");
        }
        ensure!(!running.is_finished(), "the flow has failed");
        report(&ran)?;
        match self.work {
            Work::Update(_) => Ok(()),
            // Then it is killed.
            Work::Fill | Work::Resume => loop {
                sleep(FILL_MAX);
            },
        }
    }
}

pub fn scarce(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(9_000_000, 20_000);
    let time = bench.size(Duration::from_secs(8), Duration::from_millis(300));
    let memory = (keys * ENTRY_BYTES / TIMES).max(MEMORY_MIN);
    // A quick run changes nothing outside of its folder.
    let group = match bench.is_quick() {
        true => None,
        false => match MemoryGroup::create(ByteSize(memory)) {
            Ok(group) => Some(group),
            Err(error) => {
                eprintln!("bench: {SCARCE} left out: memory cannot be limited: {error:#}");
                return Ok(Vec::new());
            }
        },
    };
    let entry = group.as_ref().map(MemoryGroup::entry);
    let folder = bench.folder(SCARCE, 8 << 30)?;
    let dir = folder.path().join("log");
    let count = |work, group| -> Result<Ran> {
        let task = Count {
            dir: dir.clone(),
            keys,
            text_bytes: TEXT_BYTES,
            pool: Some(memory / 4),
            work,
            group,
        };
        killed(&task)
    };
    count(Work::Fill, None)?;
    let rocksdb = RocksDb::filled(bench, keys)?;
    let sides = 1 + usize::from(rocksdb.is_some());
    let rounds = rounds_of(bench.size(ROUNDS, 1), sides, |side| {
        bench.settle_disk();
        match &rocksdb {
            Some(rocksdb) if side == 1 => {
                count_in_rocksdb(rocksdb, keys, time, memory, entry.as_deref())
            }
            _ => count(Work::Update(time), entry.clone()),
        }
    })?;
    let rates = |ran: &[Ran]| -> Vec<f64> {
        let rate = |ran: &Ran| ran.updates as f64 / 1e3 / ran.seconds;
        ran.iter().map(rate).collect()
    };
    let case = Case::new(SCARCE, "k updates/s", Better::Higher, rates(&rounds[0]))
        .detail("memory_mib", memory as f64 / f64::from(1 << 20));
    Ok(vec![match rounds.get(1) {
        Some(rocksdb) => case.by_hand(rates(rocksdb)).target(TARGET),
        None => case,
    }])
}

/// Returns the figures of a process, and kills it.
fn killed(task: &Count) -> Result<Ran> {
    let mut child = Working::start(task)?;
    let ran = child.hear()?;
    child.kill()?;
    Ok(ran)
}

/// The time from the start of a process to its first result, a changed value, where the process before had 10 GB of state
/// and was killed.
pub fn large(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(LARGE_KEYS, 2_000);
    let folder = bench.folder(LARGE, 24 << 30)?;
    let count = |work| {
        killed(&Count {
            dir: folder.path().join("log"),
            keys,
            text_bytes: LARGE_TEXT_BYTES,
            pool: None,
            work,
            group: None,
        })
    };
    let filled = count(Work::Fill)?;
    bench.settle_disk();
    let rounds = rounds_of(bench.size(ROUNDS, 1), 1, |_| count(Work::Resume))?;
    let of = |figure: fn(&Ran) -> f64| -> Vec<f64> { rounds[0].iter().map(figure).collect() };
    let case = Case::new(LARGE, "s", Better::Lower, of(|ran| ran.seconds))
        .bound(LARGE_TARGET_S)
        .detail("opened_s", median(&of(|ran| ran.opened_s)))
        .detail("fill_s", filled.seconds);
    Ok(vec![case])
}

/// Counts in RocksDB, which has the same keys, and values of the same size.
fn count_in_rocksdb(
    rocksdb: &RocksDb,
    keys: u64,
    time: Duration,
    memory: u64,
    group: Option<&Path>,
) -> Result<Ran> {
    let settings = [keys, time.as_secs(), INSTANCES, memory / 4].map(|number| number.to_string());
    let words = settings.iter().map(AsRef::as_ref);
    rocksdb.run("update", words.chain(group.map(Path::as_os_str)))
}
