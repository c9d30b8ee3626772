//! Flows whose values by key are in changelogs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{
    Checkpointing, Checkpoints, FinalError, Flow, FlowError, FlowSettings, Resume, Running,
    ShardKey, Values,
};

use millstream_log::{CLEANUP_POLICY, COMPACT, StreamConfig};

use crate::support::{World, for_both};

const NUMBERS: u64 = 40_000;
const KEYS: u64 = 1000;

/// Counts numbers by key, slowly enough to be interrupted.
pub fn start(world: &World, resume: Resume) -> Result<(Running, Values<u64, u64>), FlowError> {
    start_in(&world.store, resume)
}

pub fn start_in(
    store: &Arc<dyn Checkpoints>,
    resume: Resume,
) -> Result<(Running, Values<u64, u64>), FlowError> {
    let checkpoints = Checkpointing {
        store: Arc::clone(store),
        interval: Some(Duration::from_millis(5)),
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

/// Waits for `count` checkpoints, or for the end of the flow: a slow disk stores fewer before its numbers end.
pub fn wait_for_checkpoints(running: &Running, count: u64) {
    let started_at = Instant::now();
    while running.checkpoints().unwrap().kept < count && !running.is_finished() {
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

/// Fails unless each number was counted once.
pub fn check_counts(counts: &Values<u64, u64>) {
    for (key, count) in plain() {
        let number = u64::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(counts.get(&number), Some(count));
    }
}

#[test]
fn each_number_counts_once_although_the_flow_stops_and_resumes() {
    for_both(|world| {
        for _ in 0..3 {
            let (running, _) = start(world, Resume::IfAny).unwrap();
            wait_for_checkpoints(&running, 3);
            drop(running);
        }
        let (running, counts) = start(world, Resume::Always).unwrap();
        running.join().unwrap();
        check_counts(&counts);
        // The keys are in their canonical encoding, and the values are JSON.
        let restored = world.begin(None).restore().unwrap();
        let stored = restored.into_iter().map(|(key, value)| {
            let count = serde_json::from_slice(&value).unwrap();
            (key, count)
        });
        assert_eq!(stored.collect::<BTreeMap<_, u64>>(), plain());
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

/// Sums up numbers for ever, with its state only in shards.
fn sum_up(store: &Arc<dyn Checkpoints>) -> Running {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(store),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let sum = flow.partial::<u64>("sum");
    let numbers = Generator::new(|number| {
        thread::sleep(Duration::from_micros(100));
        number
    });
    flow.source("numbers", numbers)
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run().unwrap()
}

pub fn check_is_lost(running: &Running) {
    let started_at = Instant::now();
    while !running.is_finished() {
        assert!(started_at.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(1));
    }
    let error = running.join().unwrap_err().to_string();
    let process = std::process::id();
    let expected = format!("another run of flow \"shop\", process {process} on ");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn a_second_run_over_a_server_ends_the_first_and_counts_each_number_once() {
    let world = World::start(true);
    let (first, _) = start(&world, Resume::IfAny).unwrap();
    wait_for_checkpoints(&first, 3);
    let other = world.store_of_another();
    let (second, counts) = start_in(&other, Resume::Always).unwrap();
    check_is_lost(&first);
    second.join().unwrap();
    check_counts(&counts);
}

/// Appends records until another run has begun. Returns the last one that is stored.
fn append_records(store: &dyn Checkpoints) -> u64 {
    let records = store.records().unwrap();
    let mut stored = 0;
    for number in 1u64.. {
        match records.append(&number.to_le_bytes()) {
            Ok(()) => stored = number,
            Err(error) => {
                assert!(error.is::<FinalError>(), "{error}");
                break;
            }
        }
    }
    stored
}

fn last_number(store: &dyn Checkpoints) -> u64 {
    let last = store.records().unwrap().last().unwrap().unwrap();
    u64::from_le_bytes(last.try_into().unwrap())
}

/// Otherwise the second run could resume from an older checkpoint than the last one whose results are committed.
#[test]
fn a_new_run_finds_the_last_record_of_the_previous_run() {
    let world = World::start(true);
    for round in 0..20 {
        let first = world.store_of_another();
        let _first = first.lock().unwrap();
        let second = world.store_of_another();
        let records = first.records().unwrap();
        records.append(&0u64.to_le_bytes()).unwrap();
        thread::scope(|scope| {
            let appended = scope.spawn(|| append_records(&*first));
            // Another moment of the transactions in each round.
            thread::sleep(Duration::from_millis(20 + round));
            let _second = second.lock().unwrap();
            let found_at_first = last_number(&*second);
            let stored = appended.join().unwrap();
            assert!(found_at_first >= stored, "{found_at_first} {stored}");
            let found = last_number(&*second);
            assert_eq!(found, found_at_first, "the first run appends no more");
            second
                .records()
                .unwrap()
                .append(&0u64.to_le_bytes())
                .unwrap();
            let third = world.store_of_another();
            let _third = third.lock().unwrap();
            assert_eq!(last_number(&*third), 0);
        });
    }
}

/// No run removes the shards that a record names: each shard has a name of its run.
#[test]
fn the_first_of_two_runs_does_not_touch_the_shards_of_the_second() {
    for_both(|world| {
        let key = |run| ShardKey {
            checkpoint: 7,
            rank: 0,
            run,
        };
        world.store.put(key(1), b"first").unwrap();
        world.store.put(key(2), b"second").unwrap();
        world.store.put(key(1), b"first again").unwrap();
        assert_eq!(world.store.get(key(2)).unwrap(), b"second");
        assert_eq!(world.store.list().unwrap(), [key(1), key(2)]);
        world.store.remove(key(1)).unwrap();
        assert_eq!(world.store.list().unwrap(), [key(2)]);
    });
}

#[test]
fn the_last_record_is_found_behind_many_earlier_ones() {
    for_both(|world| {
        let records = world.store.records().unwrap();
        assert_eq!(records.last().unwrap(), None);
        for round in 1..10u64 {
            let lock = world.store.lock().unwrap();
            for number in 0..10 * round {
                records.append(&number.to_le_bytes()).unwrap();
            }
            drop(lock);
            let _lock = world.store.lock().unwrap();
            assert_eq!(last_number(&*world.store), 10 * round - 1);
        }
    });
}

#[test]
fn a_record_is_found_in_a_stream_of_several_partitions() {
    for_both(|world| {
        let config = StreamConfig {
            streamlets: 5,
            settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
            ..StreamConfig::default()
        };
        world.log.create_stream("shop.checkpoints", config).unwrap();
        let lock = world.store.lock().unwrap();
        let records = world.store.records().unwrap();
        records.append(&7u64.to_le_bytes()).unwrap();
        drop(lock);
        let _lock = world.store.lock().unwrap();
        assert_eq!(last_number(&*world.store), 7);
    });
}

#[test]
fn a_second_run_ends_a_flow_that_has_neither_changelogs_nor_sinks() {
    let world = World::start(true);
    let first = sum_up(&world.store);
    wait_for_checkpoints(&first, 3);
    let other = world.store_of_another();
    let second = sum_up(&other);
    check_is_lost(&first);
    wait_for_checkpoints(&second, 3);
    // The first may begin again, and ends the second.
    let again = sum_up(&world.store);
    check_is_lost(&second);
    again.stop();
    again.join().unwrap();
}

#[test]
fn two_runs_of_a_process_cannot_use_one_store_of_a_server() {
    let world = World::start(true);
    let lock = world.store.lock().unwrap();
    let error = world.store.lock().err().unwrap().to_string();
    assert!(
        error.contains("are in use by another run in this process"),
        "{error}"
    );
    drop(lock);
    drop(world.store.lock().unwrap());
}

#[test]
fn a_flow_at_its_end_does_not_wait_for_a_changelog_that_is_gone() {
    let world = World::start(true);
    let patience = Duration::from_secs(600);
    let (running, _) = start_in(&world.patient_store(patience), Resume::Never).unwrap();
    wait_for_checkpoints(&running, 2);
    world.log.delete_stream("shop.state.users").unwrap();
    let began = Instant::now();
    let error = running.join().unwrap_err().to_string();
    assert!(
        error.contains("the last checkpoint is not stored"),
        "{error}"
    );
    assert!(error.contains("stream shop.state.users"), "{error}");
    assert!(began.elapsed() < patience / 5, "{:?}", began.elapsed());
}
