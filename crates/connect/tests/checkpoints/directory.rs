//! Flows whose checkpoints are in a directory: a base of each state element, and the changes since.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_connect::CheckpointDir;
use millstream_exchange::Ranks;
use millstream_flow::sinks::LinesFile;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running, ShardKey, Source,
    StoreLock, Values, Watermarks,
};
use millstream_sim::{Rng, SimDisk, SimRandom};

use crate::crashes::{KEYS, wait_until};
use crate::full_disk::{outlast_a_full_disk, sum};

const DIR: &str = "/flows/shop";

/// The numbers of each source.
const NUMBERS: u64 = 20_000;

const WINDOW_MS: i64 = 100;

fn open(disk: &SimDisk, seed: u64) -> Result<CheckpointDir, BoxError> {
    let random = Arc::new(SimRandom::new(seed));
    Ok(CheckpointDir::open_on(Arc::new(disk.clone()), random, DIR)?)
}

#[test]
fn a_directory_on_a_full_disk_can_be_locked_again() {
    let disk = SimDisk::new(1);
    drop(open(&disk, 1).unwrap().lock().unwrap());
    disk.set_capacity(0);
    assert!(open(&disk, 2).unwrap().lock().unwrap().is_some());
}

/// Slow enough to be interrupted.
fn numbers(limit: u64) -> impl Source<Item = u64> {
    Generator::new(|number| {
        if number % 128 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    })
    .limit(limit)
}

fn settings(store: Arc<dyn Checkpoints>, ranks: &Ranks) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        checkpoints: Some(Checkpointing {
            store,
            interval: Some(Duration::from_millis(2)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    }
}

/// Counts numbers by key.
fn count(store: Arc<dyn Checkpoints>, limit: u64) -> Result<(Running, Values<u64, u64>), BoxError> {
    let flow = Flow::with_settings("shop", settings(store, &Ranks::alone()));
    let counts = flow.values::<u64, u64>("users");
    flow.source("numbers", numbers(limit))
        .key_by(|number| number % KEYS)
        .count("count", &counts);
    Ok((flow.run()?, counts))
}

/// Counts numbers by key, and others by key and window, into a file of each rank.
fn start(
    disk: &SimDisk,
    ranks: &Ranks,
    seed: u64,
) -> Result<(Running, Values<u64, u64>), BoxError> {
    let rank = ranks.rank();
    let store = Arc::new(open(disk, seed * 10 + u64::from(rank))?);
    let flow = Flow::with_settings("shop", settings(store, ranks));
    let counts = flow.values::<u64, u64>("users");
    flow.source("numbers", numbers(NUMBERS))
        .key_by(|number| number % KEYS)
        .count("count", &counts);
    let windows = flow.windowed::<u64, _>("windows", Windows::tumbling(WINDOW_MS), Count);
    let file = LinesFile::open(disk, format!("/results.{rank}"))?;
    flow.source("others", numbers(NUMBERS))
        .watermarks(
            |number| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|number| number % KEYS)
        .aggregate("window", &windows, |number| Timestamp(*number as i64))
        .map(|result| (result.key, result.start.0, result.value))
        .sink("results", file);
    Ok((flow.run()?, counts))
}

/// Runs until the end, or until the machine crashes. Returns the counts of all ranks at the end.
fn live(disk: &SimDisk, count: u32, seed: u64) -> Option<BTreeMap<u64, u64>> {
    let rank = |ranks: Ranks| {
        let (running, counts) = start(disk, &ranks, seed).ok()?;
        wait_until("the machine crashes", || {
            disk.has_crashed() || running.is_finished()
        });
        if disk.has_crashed() {
            return None;
        }
        running.join().ok()?;
        ranks.leave().ok()?;
        let found = (0..KEYS).filter_map(|key| Some((key, counts.get(&key)?)));
        Some(found.collect::<Vec<_>>())
    };
    let rank = &rank;
    thread::scope(|scope| {
        let ranks = Ranks::threads(count).into_iter();
        let threads: Vec<_> = ranks
            .map(|ranks| scope.spawn(move || rank(ranks)))
            .collect();
        let ends: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        let ends: Option<Vec<_>> = ends.into_iter().collect();
        ends.map(|counts| counts.into_iter().flatten().collect())
    })
}

fn check_results(disk: &SimDisk, count: u32, at: &str) {
    let mut found = BTreeMap::new();
    for rank in 0..count {
        let text = disk.read_file(format!("/results.{rank}")).unwrap();
        for line in String::from_utf8(text).unwrap().lines() {
            let (key, start, value): (u64, i64, u64) = serde_json::from_str(line).unwrap();
            let before = found.insert((key, start), value);
            assert_eq!(before, None, "{line} comes twice {at}");
        }
    }
    let mut expected = BTreeMap::new();
    for number in 0..NUMBERS {
        let start = number as i64 / WINDOW_MS * WINDOW_MS;
        *expected.entry((number % KEYS, start)).or_insert(0) += u64::from(count);
    }
    assert!(found == expected, "{at}");
}

#[test]
fn ranks_count_each_number_once_after_a_crash_at_any_operation() {
    for count in [1, 2, 4] {
        for seed in 0..4 {
            let at = format!("with seed {seed} on {count} ranks");
            let mut rng = Rng::with_seed(seed);
            let mut disk = SimDisk::new(seed);
            for life in 0..4 {
                disk.crash_at(rng.u64(10..600 * u64::from(count)));
                live(&disk, count, seed * 10 + life);
                disk = match rng.bool() {
                    true => disk.crash(&mut Rng::with_seed(seed)),
                    false => disk.kill(),
                };
            }
            let counts = live(&disk, count, seed * 10 + 4).unwrap_or_else(|| panic!("no end {at}"));
            for key in 0..KEYS {
                let expected = NUMBERS / KEYS * u64::from(count);
                assert_eq!(counts.get(&key), Some(&expected), "key {key} {at}");
            }
            check_results(&disk, count, &at);
        }
    }
}

/// Resumes, and counts up to the end of a round of keys. Checks that nothing was counted twice or not at all.
fn finish(store: Arc<dyn Checkpoints>, counted: u64) {
    let limit = counted.next_multiple_of(KEYS) + KEYS;
    let (running, counts) = count(store, limit).unwrap();
    running.join().unwrap();
    for key in 0..KEYS {
        assert_eq!(counts.get(&key), Some(limit / KEYS), "key {key}");
    }
}

#[test]
fn a_flow_continues_while_its_checkpoints_do_not_fit_the_directory() {
    for seed in 0..3 {
        let disk = SimDisk::new(seed);
        let store = Arc::new(open(&disk, 1).unwrap());
        let (running, counts) = count(store, u64::MAX).unwrap();
        let error = "the changelog of state \"users\": cannot write /flows/shop/changes.0.users.";
        let counted = outlast_a_full_disk(&disk, &running, &counts, error);
        drop((running, counts));
        let left = disk.kill();
        finish(Arc::new(open(&left, 2).unwrap()), counted);
    }
}

/// A directory as earlier programs had it: shards have all state elements whole.
struct Former(CheckpointDir);

impl Checkpoints for Former {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        self.0.lock()
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        self.0.put(key, shard)
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.0.get(key)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        self.0.list()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.0.remove(key)
    }
}

/// Lets a flow count for a moment, and stops it. Returns the numbers that were counted before, at least, and in all.
fn stopped(store: Arc<dyn Checkpoints>) -> (u64, u64) {
    let (running, counts) = count(store, u64::MAX).unwrap();
    let before = sum(&counts);
    wait_until("the flow goes on", || sum(&counts) > before + 5000);
    running.stop();
    running.join().unwrap();
    (before, sum(&counts))
}

#[test]
fn a_damaged_shard_is_removed_to_go_on_from_an_older_checkpoint() {
    let disk = SimDisk::new(1);
    let store = Arc::new(open(&disk, 1).unwrap());
    let (_, counted) = stopped(Arc::clone(&store) as Arc<dyn Checkpoints>);
    let newest = store.list().unwrap().into_iter().max().unwrap();
    let mut shard = store.get(newest).unwrap();
    shard.pop();
    let damaged = ShardKey {
        checkpoint: newest.checkpoint + 1,
        ..newest
    };
    store.put(damaged, &shard).unwrap();
    let resume = || count(Arc::clone(&store) as Arc<dyn Checkpoints>, u64::MAX);
    let error = resume().map(drop).unwrap_err().to_string();
    let number = newest.checkpoint;
    let expected = format!("remove that shard to go on from checkpoint {number},");
    assert!(error.contains(&expected), "{error}");
    store.remove(damaged).unwrap();
    finish(store, counted);
}

#[test]
fn a_flow_goes_on_from_a_directory_in_which_shards_have_the_state_whole() {
    let disk = SimDisk::new(1);
    let has_changes = || {
        let mut files = disk.files().into_iter();
        files.any(|(path, _)| path.starts_with(DIR) && path.to_str().unwrap().contains("/changes."))
    };
    let (_, former) = stopped(Arc::new(Former(open(&disk, 1).unwrap())));
    assert!(!has_changes());
    let (resumed, counted) = stopped(Arc::new(open(&disk, 2).unwrap()));
    assert!(resumed >= former, "{resumed} {former}");
    assert!(has_changes());
    finish(Arc::new(open(&disk, 3).unwrap()), counted);
}
