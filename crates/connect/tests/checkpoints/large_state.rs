//! State that is larger than what a start reads: values are read while the flow runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_connect::{EncodedRecord, LogCheckpoints, StreamSink};
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Checkpointing, Emit, Flow, FlowSettings, Resume, Running, StateReader, Values,
};
use millstream_log::{Log, StreamConfig};
use millstream_sim::{Rng, SimDisk};

use crate::crashes::{open, wait_until};
use crate::sinks::read;

/// A start reads up to 65,536 changes at once.
const KEYS: u64 = 70_000;
const NUMBERS: u64 = KEYS + 40_000;

/// Each key comes once, then some come again, and every eighth one of those loses its count.
fn key(number: u64) -> u64 {
    match number {
        ..KEYS => number,
        _ => number.wrapping_mul(number) % KEYS,
    }
}

fn change(number: u64, count: &mut Option<u64>) -> u64 {
    match number % 8 {
        7 if number >= KEYS => *count = None,
        _ => *count.get_or_insert_default() += 1,
    }
    key(number) << 16 | count.unwrap_or_default()
}

/// Counts numbers by key, and hands on the counts.
fn start(log: &Log) -> Result<(Running, Values<u64, u64>), BoxError> {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::new(LogCheckpoints::new(log, "shop")),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<u64, u64>("users");
    let results = log.stream_or_create("results", StreamConfig::default())?;
    let sink = StreamSink::new(&results, |result: &u64, record: &mut EncodedRecord| {
        record.value.extend(result.to_le_bytes());
    });
    let numbers = Generator::new(|number| {
        // Slow enough to be interrupted, once all keys are there.
        if number >= KEYS && number % 64 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    });
    flow.source("numbers", numbers.limit(NUMBERS))
        .key_by(|number| key(*number))
        .update(
            "count",
            &counts,
            |_, count, number, emit: &mut Emit<'_, u64>| emit(&change(*number, count)),
        )
        .sink("results", sink?);
    Ok((flow.run()?, counts))
}

#[test]
fn a_flow_whose_state_is_read_while_it_runs_counts_each_number_once_after_crashes() {
    let (mut counts, mut results) = (BTreeMap::new(), Vec::new());
    for number in 0..NUMBERS {
        let count = counts.entry(key(number)).or_default();
        results.push(change(number, count));
    }
    results.sort_unstable();
    let mut lazy_starts = 0;
    for seed in 0..3 {
        let mut rng = Rng::with_seed(seed);
        let mut disk = SimDisk::new(seed);
        let log = open(&disk, 9).unwrap();
        let (running, values) = start(&log).unwrap();
        wait_until("all keys are there", || values.get(&(KEYS - 1)).is_some());
        let kept = || running.checkpoints().unwrap().kept;
        let before = kept();
        wait_until("they are in a checkpoint", || kept() > before + 1);
        drop(running);
        drop(log);
        for life in 0..4 {
            disk.crash_at(rng.u64(10..400));
            if let Ok(log) = open(&disk, life)
                && let Ok((running, values)) = start(&log)
            {
                lazy_starts += u32::from(!values.is_whole().unwrap_or(true));
                let is_over = || disk.has_crashed() || running.is_finished();
                wait_until("the machine crashes", is_over);
            }
            disk = match rng.usize(0..2) {
                0 => disk.crash(&mut Rng::with_seed(seed)),
                _ => disk.kill(),
            };
        }
        let log = open(&disk, 4).unwrap();
        let (running, values) = start(&log).unwrap();
        running.join().unwrap();
        for (key, count) in &counts {
            assert_eq!(values.get(key), *count, "key {key} with seed {seed}");
        }
        let listed = values.keys(usize::MAX).len();
        assert_eq!(listed, counts.values().flatten().count());
        let mut found = read(&log.stream("results").unwrap());
        found.sort_unstable();
        assert!(found == results, "with seed {seed}");
    }
    assert!(lazy_starts > 0, "no start was lazy");
}
