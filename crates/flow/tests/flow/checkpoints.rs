//! Flows that end early resume from their checkpoints: nothing is lost and nothing counted twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows, fold};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running, ShardKey, Sink,
    SinkStart, Watermarks,
};
use proptest::prelude::*;

use crate::support::{MemoryStore, on_ranks, settings, wait_until};

type Results = Arc<Mutex<Vec<WindowResult<u32, u64>>>>;

/// Each snapshot that no worker was woken for would take seconds. A busy machine is ten times slower than an idle one.
const TIME_MAX: Duration = Duration::from_secs(120);

const WINDOW_MS: i64 = 100;
const KEYS: u32 = 7;

/// Removes results that come again.
struct Ledger(Results);

impl Sink<WindowResult<u32, u64>> for Ledger {
    fn push(&mut self, items: &[WindowResult<u32, u64>], _: &Waker) -> Result<usize, BoxError> {
        self.0.lock().unwrap().extend_from_slice(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }

    fn prepare(&mut self, _: u64) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.lock().unwrap().len().to_le_bytes().to_vec())
    }

    fn recover(&mut self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        if let Some(prepared) = start.prepared {
            let len = usize::from_le_bytes(prepared.try_into()?);
            self.0.lock().unwrap().truncate(len);
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Numbers are counted by key.
    Counts,
    /// Numbers are counted by key, even keys in another branch than odd ones. The last of several
    /// ranks has no sources.
    CountsInBranches,
    /// These counts are added up by half of the keys, in other windows. The last of several ranks has no
    /// sources.
    SumsOfCounts,
    /// Numbers are joined by key with the numbers of as many other sources.
    Joined,
}

impl Shape {
    fn sources(self, rank: u32, ranks: u32) -> usize {
        let is_last = ranks > 1 && rank + 1 == ranks;
        match self {
            Shape::SumsOfCounts | Shape::CountsInBranches if is_last => 0,
            _ => 2,
        }
    }

    fn key(self, key: u32) -> u32 {
        match self {
            Shape::Counts | Shape::CountsInBranches | Shape::Joined => key,
            Shape::SumsOfCounts => key / 2,
        }
    }
}

/// The flow on one rank: counts the numbers of its sources by key and window.
fn start(
    shape: Shape,
    ranks: &Ranks,
    place: &Arc<MemoryStore>,
    resume: Resume,
    items: u64,
    results: &Results,
) -> Result<Running, String> {
    let flow = Flow::with_settings(
        "counted",
        FlowSettings {
            // By and by all workers sleep: a worker that nothing wakes sleeps for seconds.
            interval: Duration::from_secs(3600),
            ranks: ranks.clone(),
            checkpoints: Some(Checkpointing {
                store: Arc::clone(place) as Arc<dyn Checkpoints>,
                interval: Some(Duration::from_millis(1)),
                resume,
            }),
            ..settings(2, 16)
        },
    );
    let counts = flow.windowed::<u32, _>("counts", Windows::tumbling(WINDOW_MS), Count);
    // Slow enough to be interrupted.
    let source = || {
        Generator::new(|number| {
            if number % 512 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            number
        })
        .limit(items)
    };
    let sums = (shape == Shape::SumsOfCounts).then(|| {
        let sum = fold(
            || 0,
            |sum: &mut u64, result: &WindowResult<u32, u64>| *sum += result.value,
            |sum, other| *sum += other,
        );
        flow.windowed::<u32, _>("sums", Windows::tumbling(WINDOW_MS), sum)
    });
    let sources = shape.sources(ranks.rank(), ranks.count());
    let key = |number: &u64| (*number % u64::from(KEYS)) as u32;
    let time = |number: &u64| Timestamp(*number as i64);
    let branches = ["even", "odd"]
        .map(|name| flow.windowed::<u32, _>(name, Windows::tumbling(WINDOW_MS), Count));
    let merged = flow.channel("merged");
    let join = (shape == Shape::Joined).then(|| {
        let join = flow.window_join::<u32, u64, u64>("join", Windows::tumbling(WINDOW_MS));
        flow.sources("others", (0..sources).map(|_| source()))
            .watermarks(time, Watermarks::bounded(Duration::ZERO))
            .key_by(key)
            .to_join(&join, time);
        join
    });
    let numbers = flow
        .sources("numbers", (0..sources).map(|_| source()))
        .watermarks(time, Watermarks::bounded(Duration::ZERO));
    match shape {
        Shape::CountsInBranches => numbers.fork(
            &["even", "odd"],
            move |number| key(number) as usize % 2,
            |branch, numbers| {
                numbers
                    .key_by(key)
                    .aggregate(["count even", "count odd"][branch], &branches[branch], time)
                    .to(&merged)
            },
        ),
        Shape::Joined => numbers
            .key_by(key)
            .join(join.as_ref().unwrap(), time)
            .map(|window| {
                let (mut numbers, mut others) = window.value.clone();
                numbers.sort_unstable();
                others.sort_unstable();
                assert_eq!(numbers, others);
                WindowResult {
                    key: window.key,
                    start: window.start,
                    end: window.end,
                    value: numbers.len() as u64,
                    events: window.events,
                    time_max: window.time_max,
                    is_update: window.is_update,
                }
            })
            .to(&merged),
        _ => numbers
            .key_by(key)
            .aggregate("count", &counts, time)
            .to(&merged),
    };
    let counted = flow.stage("merged", &merged);
    let sink = Ledger(Arc::clone(results));
    match &sums {
        None => counted.sink("results", sink),
        Some(sums) => counted
            .key_by(move |result| shape.key(result.key))
            .aggregate("sum", sums, |result| Timestamp(result.end.0 - 1))
            .sink("results", sink),
    };
    flow.run().map_err(|error| error.to_string())
}

/// Runs on several ranks until the end, or until one of them dies after `until`. Returns whether all ended.
fn run(
    shape: Shape,
    count: u32,
    place: &Arc<MemoryStore>,
    items: u64,
    results: &[Results],
    until: Option<(usize, Duration)>,
) -> bool {
    let is_kept = {
        let parts = place.list().unwrap();
        let of = |rank| parts.iter().filter(move |key| key.rank == rank);
        of(0).any(|key| {
            (1..count).all(|rank| of(rank).any(|other| other.checkpoint == key.checkpoint))
        })
    };
    let resume = match is_kept {
        true => Resume::Always,
        false => Resume::Never,
    };
    if !is_kept {
        place.parts.lock().unwrap().clear();
        results
            .iter()
            .for_each(|results| results.lock().unwrap().clear());
    }
    // Shown when the test fails.
    let lens = results.iter().map(|results| results.lock().unwrap().len());
    println!(
        "{shape:?} on {count} ranks, which die after {until:?}: {resume:?} with {:?}, and results {:?}",
        place.list().unwrap(),
        lens.collect::<Vec<_>>()
    );
    let rank = |ranks: Ranks, results: &Results| {
        let running = match start(shape, &ranks, place, resume, items, results) {
            Ok(running) => running,
            // Another has died before this one began.
            Err(error) => return until.map(|_| false).expect(&error),
        };
        match until {
            Some((rank, after)) if rank == ranks.rank() as usize => {
                thread::sleep(after);
                drop(running);
                false
            }
            _ => running.join().is_ok() && ranks.leave().is_ok(),
        }
    };
    let rank = &rank;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .zip(results)
            .map(|(ranks, results)| scope.spawn(move || rank(ranks, results)))
            .collect();
        let ends: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        ends.iter().all(|is_end| *is_end)
    })
}

fn check(shape: Shape, count: u32, items: u64, results: &[Results]) {
    let sources: usize = (0..count).map(|rank| shape.sources(rank, count)).sum();
    let mut found = BTreeMap::new();
    for result in results
        .iter()
        .flat_map(|results| results.lock().unwrap().clone())
    {
        let former = found.insert((result.key, result.start.0), result.value);
        assert_eq!(former, None, "no window comes twice");
    }
    let mut expected = BTreeMap::new();
    for number in 0..items {
        let window = number as i64 / WINDOW_MS * WINDOW_MS;
        *expected
            .entry((shape.key((number % u64::from(KEYS)) as u32), window))
            .or_default() += sources as u64;
    }
    let windows: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let wrong = windows.into_iter().filter_map(|window| {
        let [found, expected] = [&found, &expected].map(|counts| counts.get(window));
        let (key, start) = window;
        (found != expected).then(|| format!("key {key} at {start}: {found:?}, not {expected:?}"))
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{shape:?}: {}", wrong.join("; "));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn ranks_that_die_and_resume_count_each_item_once(
        shape in prop_oneof![
            Just(Shape::Counts),
            Just(Shape::CountsInBranches),
            Just(Shape::SumsOfCounts),
            Just(Shape::Joined),
        ],
        count in 1u32..4,
        deaths in prop::collection::vec((0usize..4, 0u64..40), 0..4),
    ) {
        let items = 30_000;
        let began = Instant::now();
        let place = Arc::new(MemoryStore::default());
        let results: Vec<Results> = (0..count).map(|_| Results::default()).collect();
        for (rank, after_ms) in deaths {
            let until = (rank % count as usize, Duration::from_millis(after_ms));
            run(shape, count, &place, items, &results, Some(until));
        }
        prop_assert!(run(shape, count, &place, items, &results, None));
        check(shape, count, items, &results);
        prop_assert!(began.elapsed() < TIME_MAX, "{:?}: a worker was not woken", began.elapsed());
    }
}

#[test]
fn a_flow_resumes_from_its_checkpoint_and_not_from_the_beginning() {
    let place = Arc::new(MemoryStore::default());
    let results = [Results::default()];
    let ranks = Ranks::alone();
    let running = start(
        Shape::Counts,
        &ranks,
        &place,
        Resume::Never,
        u64::MAX,
        &results[0],
    )
    .unwrap();
    wait_until("checkpoints are kept", || {
        running.checkpoints().unwrap().kept > 3
    });
    drop(running);
    let newest = *place.parts.lock().unwrap().keys().last().unwrap();
    assert_eq!(
        place.parts.lock().unwrap().len(),
        1,
        "older ones are forgotten"
    );
    let running = start(
        Shape::Counts,
        &Ranks::alone(),
        &place,
        Resume::Always,
        u64::MAX,
        &results[0],
    )
    .unwrap();
    wait_until("checkpoints are kept", || {
        running.checkpoints().unwrap().kept > 0
    });
    drop(running);
    assert!(*place.parts.lock().unwrap().keys().last().unwrap() > newest);
}

#[test]
fn a_full_disk_fails_the_checkpoint_and_not_the_flow() {
    let place = Arc::new(MemoryStore::default());
    let results = Results::default();
    let start = |resume| {
        start(
            Shape::Counts,
            &Ranks::alone(),
            &place,
            resume,
            30_000,
            &results,
        )
    };
    let running = start(Resume::Never).unwrap();
    place.is_full.store(true, Ordering::Relaxed);
    running.join().unwrap();
    check(Shape::Counts, 1, 30_000, &[Arc::clone(&results)]);
    let counts = running.checkpoints().unwrap();
    assert_eq!(counts.error.as_deref(), Some("the disk is full"));
    assert!(counts.kept > 0 && counts.failed > 0);
    // Everything since the last one is done again, and counted once.
    start(Resume::Always).unwrap().join().unwrap();
    check(Shape::Counts, 1, 30_000, &[Arc::clone(&results)]);
    // A flow whose first checkpoint cannot be stored does not begin.
    place.parts.lock().unwrap().clear();
    let error = start(Resume::Never).err().unwrap();
    assert_eq!(
        error,
        "flow \"counted\": the first checkpoint cannot be stored: the shard of rank 0 of checkpoint 1: the disk is full"
    );
}

#[test]
fn resuming_without_a_checkpoint_and_starting_over_an_existing_one_are_refused() {
    let place = Arc::new(MemoryStore::default());
    let results = Results::default();
    let error = start(
        Shape::Counts,
        &Ranks::alone(),
        &place,
        Resume::Always,
        1,
        &results,
    )
    .err();
    assert_eq!(
        error.as_deref(),
        Some(
            "flow \"counted\": there is no checkpoint to resume from: the shard of rank 0 of checkpoint 1 is not there"
        )
    );
    let running = start(
        Shape::Counts,
        &Ranks::alone(),
        &place,
        Resume::Never,
        u64::MAX,
        &results,
    )
    .unwrap();
    wait_until("checkpoints are kept", || {
        running.checkpoints().unwrap().kept > 0
    });
    drop(running);
    let error = start(
        Shape::Counts,
        &Ranks::alone(),
        &place,
        Resume::Never,
        1,
        &results,
    )
    .err()
    .unwrap();
    assert!(
        error.contains("of an earlier run: the shard of rank 0 of checkpoint ")
            && error.contains("; resume from it, or remove it first"),
        "{error}"
    );
    let threads = Ranks::threads(2).into_iter().map(|ranks| {
        let (place, results) = (Arc::clone(&place), Arc::clone(&results));
        thread::spawn(move || {
            start(Shape::Counts, &ranks, &place, Resume::Always, 1, &results)
                .err()
                .unwrap()
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        let error = thread.join().unwrap();
        assert!(
            error.contains("no checkpoint with the shards of all 2 ranks"),
            "{error}"
        );
    }
}

#[test]
fn resuming_if_any_starts_over_when_no_checkpoint_was_completed() {
    let place = Arc::new(MemoryStore::default());
    let start = |count: u32, results: &Results| {
        let threads = Ranks::threads(count).into_iter().map(|ranks| {
            let (place, results) = (Arc::clone(&place), Arc::clone(results));
            thread::spawn(move || {
                let running = start(
                    Shape::Counts,
                    &ranks,
                    &place,
                    Resume::IfAny,
                    30_000,
                    &results,
                )?;
                running.join().map_err(|error| error.to_string())?;
                ranks.leave().map_err(|error| error.to_string())
            })
        });
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.collect::<Vec<Result<(), String>>>()
    };
    // Nothing was stored.
    let results = Results::default();
    assert_eq!(start(1, &results), [Ok(())]);
    check(Shape::Counts, 1, 30_000, &[Arc::clone(&results)]);
    // There is a complete checkpoint, but of another number of ranks.
    let errors = start(2, &results).into_iter().map(Result::unwrap_err);
    assert!(
        errors
            .filter(|error| error.contains("on 1 ranks, and this is"))
            .count()
            > 0
    );
    // The end again, from the last one.
    assert_eq!(start(1, &results), [Ok(())]);
    check(Shape::Counts, 1, 30_000, &[results]);
    // The first checkpoint has only one shard.
    place.parts.lock().unwrap().clear();
    let results = Results::default();
    assert_eq!(start(2, &results), [Ok(()), Ok(())]);
    let of_rank_0 = |key: &ShardKey| key.rank == 0;
    place.parts.lock().unwrap().retain(|key, _| of_rank_0(key));
    let results = Results::default();
    assert_eq!(start(2, &results), [Ok(()), Ok(())]);
    check(Shape::Counts, 2, 30_000, &[results]);
}

/// A store with the shards of the last checkpoint of a run on two ranks, which ended.
fn place_of_two_ranks() -> Arc<MemoryStore> {
    let place = Arc::new(MemoryStore::default());
    let results: Vec<Results> = (0..2).map(|_| Results::default()).collect();
    assert!(run(Shape::Counts, 2, &place, 30_000, &results, None));
    place
}

/// The shards of the newest checkpoint of both ranks.
fn newest(place: &MemoryStore) -> (u64, [Vec<u8>; 2]) {
    let parts = place.parts.lock().unwrap();
    let mut numbers = parts.keys().map(|key| key.checkpoint).rev();
    let part = |checkpoint, rank| {
        parts
            .get(&ShardKey {
                checkpoint,
                rank,
                run: 0,
            })
            .cloned()
    };
    let found = numbers.find_map(|number| Some((number, [part(number, 0)?, part(number, 1)?])));
    found.unwrap()
}

fn place_with(parts: impl IntoIterator<Item = (u64, u32, Vec<u8>)>) -> Arc<MemoryStore> {
    let parts = parts.into_iter().map(|(checkpoint, rank, part)| {
        (
            ShardKey {
                checkpoint,
                rank,
                run: 0,
            },
            part,
        )
    });
    Arc::new(MemoryStore {
        parts: Mutex::new(parts.collect()),
        ..MemoryStore::default()
    })
}

/// The errors of two ranks that resume, each with its own view of the store.
fn refusals(places: [Arc<MemoryStore>; 2]) -> Vec<String> {
    on_ranks(2, |ranks| {
        let place = &places[ranks.rank() as usize];
        let results = Results::default();
        let started = start(Shape::Counts, ranks, place, Resume::Always, 1, &results);
        started.err().unwrap()
    })
}

#[test]
fn ranks_that_see_different_checkpoints_refuse_to_begin_and_remove_nothing() {
    let (number, [first, second]) = newest(&place_of_two_ranks());
    let all = [
        (number, 0, first.clone()),
        (number, 1, second.clone()),
        (number + 1, 1, second),
        (number + 1, 0, first),
    ];
    // The second rank does not see yet the last shard of the first one.
    let places = [place_with(all.clone()), place_with(all[..3].to_vec())];
    for error in refusals(places.clone()) {
        assert!(
            error.contains(&format!("begins with checkpoint {number} ")),
            "{error}"
        );
    }
    let counts = places.map(|place| place.parts.lock().unwrap().len());
    assert_eq!(counts, [4, 3]);
}

#[test]
fn shards_of_two_runs_form_no_checkpoint() {
    let (_, [first, _]) = newest(&place_of_two_ranks());
    let (_, [_, second]) = newest(&place_of_two_ranks());
    let place = place_with([(1, 0, first), (1, 1, second)]);
    for error in refusals([Arc::clone(&place), Arc::clone(&place)]) {
        assert!(error.contains("begins with checkpoint 1 of run"), "{error}");
    }
}

#[test]
fn the_error_for_shards_of_an_older_format_advises_no_older_shards() {
    let place = place_of_two_ranks();
    let (number, [first, second]) = newest(&place);
    // The format before.
    let older = |shard: &[u8]| [&[4], &shard[1..]].concat();
    let [first, second] = [older(&first), older(&second)];
    let place = place_with([
        (number, 0, first.clone()),
        (number, 1, second.clone()),
        (number + 1, 0, first),
        (number + 1, 1, second),
    ]);
    for error in refusals([Arc::clone(&place), place]) {
        assert!(
            error.contains("its format has version 4")
                && error.contains("; let the version of the program that wrote it finish the flow"),
            "{error}"
        );
    }
}

#[test]
fn a_rank_that_restores_for_long_finds_its_shard() {
    let (shape, count, items) = (Shape::Counts, 2, 20_000);
    let results: Vec<_> = (0..count).map(|_| Results::default()).collect();
    let mut place = Arc::new(MemoryStore::default());
    for reading_takes in [[0, 0], [0, 400], [400, 0], [0, 400]] {
        let parts = std::mem::take(&mut *place.parts.lock().unwrap());
        // The other rank could take hundreds of checkpoints, and remove the shards before them, in the meantime.
        place = Arc::new(MemoryStore {
            parts: Mutex::new(parts),
            reading_takes: reading_takes.map(Duration::from_millis),
            ..MemoryStore::default()
        });
        let death = Some((0, Duration::from_millis(30)));
        run(shape, count, &place, items, &results, death);
    }
    assert!(run(shape, count, &place, items, &results, None));
    check(shape, count, items, &results);
}
