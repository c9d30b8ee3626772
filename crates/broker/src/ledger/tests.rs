//! Ledgers on a disk that crashes, against a model of their states.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{Background, Log, LogConfig, LogError};
use millstream_sim::{Rng, SimClock, SimDisk, SimRandom};

use super::compaction::Rewrite;
use super::{Ledger, Record};

type Model = BTreeMap<Bytes, Bytes>;

/// Three of them make a ledger due.
const LARGE_BYTES: usize = 300 << 10;

fn open_log(disk: &SimDisk) -> Result<Log, LogError> {
    let config = LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool("/data", ByteSize(32 << 20))
    };
    let clock = SimClock::new(Timestamp(1));
    // Each opening of a log draws other random numbers.
    let random = SimRandom::new(disk.operations());
    let disk = Arc::new(disk.clone());
    Log::open_on(config, disk, Arc::new(clock), Arc::new(random))
}

fn apply(model: &mut Model, records: &[Record]) {
    for Record { key, value } in records {
        match value {
            Some(value) => model.insert(key.clone(), value.clone()),
            None => model.remove(key),
        };
    }
}

fn model_of(ledger: &Ledger) -> Model {
    let mut model = Model::new();
    apply(&mut model, &ledger.read().unwrap());
    model
}

/// Some changes, of few keys.
fn changes(rng: &mut Rng) -> Vec<Record> {
    let change = |rng: &mut Rng| {
        let key = Bytes::from(format!("key {}", rng.u8(..12)));
        let value = rng.u8(..4) > 0;
        let bytes = match rng.u8(..3) {
            0 => rng.usize(..LARGE_BYTES),
            _ => rng.usize(..100),
        };
        let value = value.then(|| Bytes::from(vec![rng.u8(..); bytes]));
        Record { key, value }
    };
    (0..rng.usize(1..4)).map(|_| change(rng)).collect()
}

/// A compaction in steps, so that appends can come in between.
struct Compaction {
    begin: Offset,
    rewrite: Option<Rewrite>,
}

impl Compaction {
    /// Does one step; returns `None` after the last.
    fn step(mut self, ledger: &Ledger) -> Result<Option<Compaction>, LogError> {
        match &mut self.rewrite {
            None => self.rewrite = Some(ledger.begin_rewrite(self.begin)?),
            Some(rewrite) => {
                if !ledger.rewrite_piece(rewrite)? {
                    ledger.delete_before(self.begin)?;
                    ledger.end(self.rewrite);
                    return Ok(None);
                }
            }
        }
        Ok(Some(self))
    }
}

/// The progress of a run before its disk crashed.
#[derive(Default)]
struct Run {
    /// The ledger's states after each of the appends.
    said: Vec<Model>,
    /// The number of durable appends.
    durable: usize,
    compactions: usize,
}

impl Run {
    /// Appends at random, with compactions in between.
    fn go(&mut self, disk: &SimDisk, seed: u64, appends: usize) -> Result<(), LogError> {
        let mut rng = Rng::with_seed(seed);
        let log = open_log(disk)?;
        let ledger = Ledger::open(&log, "__test")?;
        let mut compaction = None;
        while self.said.len() < appends {
            let changes = changes(&mut rng);
            let mut model = self.said.last().cloned().unwrap_or_default();
            apply(&mut model, &changes);
            self.said.push(model);
            let end = ledger.append(changes, Timestamp(1))?;
            if rng.bool() {
                ledger.lane().wait_durable(end)?;
                self.durable = self.said.len();
            }
            if compaction.is_none() {
                let begin = ledger.begin_if_due();
                let rewrite = None;
                compaction = begin.map(|begin| Compaction { begin, rewrite });
                self.compactions += usize::from(begin.is_some());
            }
            for _ in 0..rng.u8(..3) {
                if let Some(begun) = compaction {
                    compaction = begun.step(&ledger)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, disk: &SimDisk, case: &str) {
        let log = open_log(disk).unwrap();
        let ledger = Ledger::open(&log, "__test").unwrap();
        let found = model_of(&ledger);
        let nothing = Model::new();
        let mut possible = std::iter::once(&nothing).chain(&self.said);
        let is_possible = possible.any(|model| *model == found);
        assert!(is_possible, "{case}: the ledger never had the states found");
        let mut durable = std::iter::once(&nothing)
            .chain(&self.said)
            .skip(self.durable);
        assert!(
            durable.any(|model| *model == found),
            "{case}: changes are lost"
        );
    }
}

#[test]
fn a_crash_at_any_disk_operation_leaves_a_compacted_ledger_intact() {
    for seed in 0..2 {
        let disk = SimDisk::new(seed);
        let mut whole = Run::default();
        whole.go(&disk, seed, 150).unwrap();
        assert!(whole.compactions > 1);
        let operations = disk.operations();
        let mut rng = Rng::with_seed(seed);
        let mut crash_at = 0;
        while crash_at < operations {
            let disk = SimDisk::new(seed);
            disk.crash_at(crash_at);
            let mut run = Run::default();
            let _ = run.go(&disk, seed, 150);
            run.check(
                &disk.crash(&mut rng),
                &format!("seed {seed}, crash at {crash_at}"),
            );
            crash_at += rng.u64(1..10);
        }
    }
}

#[test]
fn a_restart_during_a_compaction_leaves_the_ledger_intact() {
    for seed in 0..8 {
        let mut disk = SimDisk::new(seed);
        let mut rng = Rng::with_seed(seed);
        let mut model = Model::new();
        for life in 0..6 {
            let log = open_log(&disk).unwrap();
            let ledger = Ledger::open(&log, "__test").unwrap();
            assert!(model_of(&ledger) == model, "seed {seed}, life {life}");
            let mut begun = None;
            for _ in 0..30 {
                let changes = changes(&mut rng);
                apply(&mut model, &changes);
                let end = ledger.append(changes, Timestamp(1)).unwrap();
                ledger.lane().wait_durable(end).unwrap();
                begun = begun.or_else(|| {
                    let begin = ledger.begin_if_due()?;
                    let rewrite = None;
                    Some(Compaction { begin, rewrite })
                });
                begun = begun.and_then(|begun| begun.step(&ledger).unwrap());
            }
            assert!(model_of(&ledger) == model, "seed {seed}, life {life}");
            disk = disk.kill();
        }
    }
}

#[test]
fn a_ledger_with_few_keys_stays_small_after_many_changes() {
    let disk = SimDisk::new(1);
    let log = open_log(&disk).unwrap();
    let ledger = Ledger::open(&log, "__test").unwrap();
    let mut bytes_max = 0;
    for n in 0_u32..100_000 {
        let key = Bytes::from(format!("group, topic, partition {}", n % 1000));
        let value = Bytes::from(format!("an offset with what belongs to it: {n:060}"));
        let value = Some(value);
        ledger
            .append([Record { key, value }], Timestamp(1))
            .unwrap();
        if let Some(begin) = ledger.begin_if_due() {
            ledger.compact(begin);
        }
        if n % 1000 == 0 {
            bytes_max = bytes_max.max(ledger.lane().info().bytes);
        }
    }
    // The bytes up to the next compaction, and outdated records in the same groups as current ones.
    assert!(bytes_max < 20 << 20, "{bytes_max}");
    ledger
        .lane()
        .wait_durable(ledger.lane().next_offset())
        .unwrap();
    assert_eq!(ledger.read().unwrap().len(), 1000);
    assert!(ledger.growth.lock().stored_bytes < 5 << 20);
    drop((ledger, log));
    let log = open_log(&disk.kill()).unwrap();
    assert_eq!(
        Ledger::open(&log, "__test").unwrap().read().unwrap().len(),
        1000
    );
}

#[test]
fn a_change_that_the_log_refuses_ends_a_compaction() {
    let disk = SimDisk::new(1);
    let log = open_log(&disk).unwrap();
    let ledger = Ledger::open(&log, "__test").unwrap();
    let state = |n: usize, byte: u8| {
        let value = Some(Bytes::from(vec![byte; LARGE_BYTES]));
        let key = Bytes::from(format!("{n}"));
        Record { key, value }
    };
    for n in 0..40 {
        ledger.append([state(n % 4, 1)], Timestamp(1)).unwrap();
    }
    let begin = ledger.begin_if_due().expect("it is large");
    assert_eq!(ledger.begin_if_due(), None, "one at a time");
    let bytes = vec![2; ledger.lane().chunk_bytes_max() + 1];
    let too_large = Record {
        value: Some(bytes.into()),
        ..state(1, 2)
    };
    let refused = ledger.append([too_large], Timestamp(1));
    assert!(matches!(refused, Err(LogError::ChunkTooLarge { .. })));
    ledger.compact(begin);
    assert_eq!(ledger.lane().earliest_offset(), Offset(0));
    // The compaction is tried again, but not at once.
    assert_eq!(ledger.begin_if_due(), None);
    let said: Model = (0..4)
        .filter_map(|n| {
            let Record { key, value } = state(n, 1);
            Some((key, value?))
        })
        .collect();
    assert!(model_of(&ledger) == said);
    for n in 0..40 {
        ledger.append([state(n % 4, 1)], Timestamp(1)).unwrap();
    }
    ledger.compact(ledger.begin_if_due().expect("it has grown"));
    assert!(ledger.lane().earliest_offset() > Offset(0));
    assert!(model_of(&ledger) == said);
}
