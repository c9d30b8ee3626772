//! Flows whose values by key are in changelogs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{Checkpointing, Flow, FlowError, FlowSettings, Resume, Running, Values};

use crate::support::{World, for_both};

const NUMBERS: u64 = 40_000;
const KEYS: u64 = 1000;

/// Counts numbers by key, slowly enough to be interrupted.
fn start(world: &World, resume: Resume) -> Result<(Running, Values<u64, u64>), FlowError> {
    let checkpoints = Checkpointing {
        store: Arc::clone(&world.store),
        interval: Duration::from_millis(5),
        resume,
    };
    let settings = FlowSettings {
        checkpoints: Some(checkpoints),
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
    flow.source("numbers", numbers.limit(NUMBERS))
        .key_by(|number| number * number % KEYS)
        .count("count", &counts);
    Ok((flow.run()?, counts))
}

fn wait_for_checkpoints(running: &Running, count: u64) {
    let started_at = Instant::now();
    while running.checkpoints().unwrap().kept < count {
        assert!(started_at.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
}

fn plain() -> BTreeMap<Vec<u8>, u64> {
    let mut counts = BTreeMap::new();
    for number in 0..NUMBERS {
        let key = (number * number % KEYS).to_be_bytes().to_vec();
        *counts.entry(key).or_default() += 1;
    }
    counts
}

#[test]
fn each_number_counts_once_however_often_the_flow_ends_early() {
    for_both(|world| {
        for _ in 0..3 {
            let (running, _) = start(world, Resume::IfAny).unwrap();
            wait_for_checkpoints(&running, 3);
            drop(running);
        }
        let (running, counts) = start(world, Resume::Always).unwrap();
        running.join().unwrap();
        let expected = plain();
        for (key, count) in &expected {
            let number = u64::from_be_bytes(key[..].try_into().unwrap());
            assert_eq!(counts.get(&number), Some(*count));
        }
        // The keys are in their canonical encoding, and the values are JSON.
        let restored = world.begin(None).restore().unwrap();
        let stored = restored.into_iter().map(|(key, value)| {
            let count = serde_json::from_slice(&value).unwrap();
            (key, count)
        });
        assert_eq!(stored.collect::<BTreeMap<_, u64>>(), expected);
    });
}

#[test]
fn two_runs_in_one_process_do_not_share_checkpoints_in_a_log() {
    let world = World::start(false);
    let (running, _) = start(&world, Resume::IfAny).unwrap();
    let error = start(&world, Resume::IfAny).err().unwrap().to_string();
    assert!(error.contains("are in use by another run"), "{error}");
    running.join().unwrap();
    let (again, _) = start(&world, Resume::Always).unwrap();
    again.join().unwrap();
}
