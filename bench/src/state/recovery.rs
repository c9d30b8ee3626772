//! The time of recovery after a kill.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hashbrown::HashMap;
use millstream_flow::Resume;
use millstream_log::{Log, LogConfig, ReadStart};
use millstream_record::{Chunks, Decompressor};
use serde::{Deserialize, Serialize};

use super::counting::{INTERVAL, Load, Order, changelog, checkpoints};
use super::flink::Flink;
use crate::child::{self, Working, report};
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const RECOVERY: &str = "recovery";

/// The flow is killed when it has stored this many checkpoints, in the midst of the next interval.
const CHECKPOINTS: u64 = 3;

/// Flink takes long to count each key, so it takes part in one of this many rounds.
const FLINK_EVERY: usize = 2;

/// Something must happen within this time.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How much is read at once by hand.
const READ_BYTES: usize = 1 << 20;

/// The child process whose flow is killed.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    dir: PathBuf,
    keys: u64,
    interval: Duration,
}

/// The child process whose flow resumes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Resumed {
    dir: PathBuf,
    keys: u64,
}

/// The figures of a recovery, in seconds from the beginning.
#[derive(Debug, Serialize, Deserialize)]
struct Recovered {
    opened_s: f64,
    first_event_s: f64,
}

fn load(keys: u64) -> Load {
    Load {
        keys,
        order: Order::Round,
        events: u64::MAX,
        events_per_second: None,
    }
}

impl child::Task for Run {
    const NAME: &'static str = "state/run";

    fn run(self) -> Result<()> {
        let log = Log::open(LogConfig::new(&self.dir))?;
        let checkpoints = checkpoints(&log, self.interval, Resume::Never);
        let (running, counts) = load(self.keys).start(Some(checkpoints), || {})?;
        wait_until("the last key is counted", WAIT_MAX, || {
            counts.get(&(self.keys - 1)).is_some()
        })?;
        let kept = || running.checkpoints().unwrap_or_default().kept;
        let first = kept();
        wait_until("there are checkpoints", WAIT_MAX, || {
            kept() >= first + CHECKPOINTS
        })?;
        report(&kept())?;
        loop {
            sleep(WAIT_MAX);
        }
    }
}

impl child::Task for Resumed {
    const NAME: &'static str = "state/resumed";

    fn run(self) -> Result<()> {
        static FIRST_EVENT: OnceLock<Instant> = OnceLock::new();
        let started_at = Instant::now();
        let log = Log::open(LogConfig::new(&self.dir))?;
        let opened_s = started_at.elapsed().as_secs_f64();
        let checkpoints = checkpoints(&log, INTERVAL, Resume::Always);
        let (_running, counts) = load(self.keys).start(Some(checkpoints), || {
            FIRST_EVENT.get_or_init(Instant::now);
        })?;
        let is_restored = |key: u64| counts.get(&key).is_some();
        ensure!(
            is_restored(0) && is_restored(self.keys - 1),
            "keys are missing after the recovery"
        );
        wait_until("there is an event", WAIT_MAX, || {
            FIRST_EVENT.get().is_some()
        })?;
        let first_event = FIRST_EVENT.get().context("there is an event")?;
        report(&Recovered {
            opened_s,
            first_event_s: (*first_event - started_at).as_secs_f64(),
        })?;
        loop {
            sleep(WAIT_MAX);
        }
    }
}

/// A flow is killed, and resumes in another process: the time until the first new event. By hand, the log is opened, and
/// the changes of the state are read into a hash map.
pub fn recovery(bench: &Bench) -> Result<Vec<Case>> {
    let keys = bench.size(1_000_000, 1_000);
    let folder = bench.folder(RECOVERY, 4 << 30)?;
    let dir = folder.path().join("log");
    let mut flink = Flink::start(bench)?;
    let mut round = 0;
    let rounds = bench.rounds(|| {
        folder.empty()?;
        let run = Run {
            dir: dir.clone(),
            keys,
            interval: bench.size(INTERVAL, Duration::from_millis(20)),
        };
        let mut child = Working::start(&run)?;
        let _kept: u64 = child.hear()?;
        sleep(bench.size(INTERVAL, Duration::ZERO) / 2);
        child.kill()?;
        let resumed = Resumed {
            dir: dir.clone(),
            keys,
        };
        let mut child = Working::start(&resumed)?;
        let ours: Recovered = child.hear()?;
        child.kill()?;
        let started_at = Instant::now();
        let (restored, changes) = restore_by_hand(&dir)?;
        let by_hand_s = started_at.elapsed().as_secs_f64();
        ensure!(
            restored as u64 == keys,
            "{restored} keys of {keys} are there"
        );
        round += 1;
        let flink = match &mut flink {
            Some(flink) if round % FLINK_EVERY == 0 => Some(flink.recover(keys, CHECKPOINTS)?),
            _ => None,
        };
        Ok((ours, by_hand_s, changes as f64, flink))
    })?;
    let ours = rounds.iter().map(|(ours, ..)| ours.first_event_s).collect();
    let opened: Vec<f64> = rounds.iter().map(|(ours, ..)| ours.opened_s).collect();
    let changes: Vec<f64> = rounds.iter().map(|(_, _, changes, _)| *changes).collect();
    let flink: Vec<f64> = rounds.iter().filter_map(|(.., flink)| *flink).collect();
    let name = format!("{RECOVERY}/{keys}-keys");
    let case = Case::new(name, "s", Better::Lower, ours)
        .by_hand(rounds.iter().map(|(_, by_hand_s, ..)| *by_hand_s).collect())
        .detail("opened_s", median(&opened))
        .detail("changes_read", median(&changes));
    Ok(vec![match flink.is_empty() {
        true => case,
        false => case.peer("Flink with RocksDB", median(&flink)),
    }])
}

/// Returns how many keys there are, and how many changes were read.
fn restore_by_hand(dir: &std::path::Path) -> Result<(usize, u64)> {
    let log = Log::open(LogConfig::new(dir))?;
    let mut values: HashMap<u64, u64> = HashMap::new();
    let mut changes = 0;
    let mut reader = log.stream(&changelog())?.reader(ReadStart::Earliest);
    let mut decompressor = Decompressor::default();
    while let Some(read) = reader.read(READ_BYTES)? {
        for chunk in Chunks::trusted(&read.bytes) {
            let chunk = chunk?;
            if chunk.header().attributes.is_control() {
                continue;
            }
            for record in chunk.records(&mut decompressor)? {
                let record = record?;
                let key = record.key.and_then(|key| key.first_chunk());
                let key = u64::from_be_bytes(*key.context("a key has 8 bytes")?);
                let value = record.value.context("no key is removed")?;
                values.insert(key, serde_json::from_slice(value)?);
                changes += 1;
            }
        }
    }
    log.close()?;
    Ok((values.len(), changes))
}

pub fn wait_until(what: &str, time_max: Duration, condition: impl Fn() -> bool) -> Result<()> {
    let started_at = Instant::now();
    while !condition() {
        ensure!(started_at.elapsed() < time_max, "not in time: {what}");
        sleep(LOOK_EVERY);
    }
    Ok(())
}
