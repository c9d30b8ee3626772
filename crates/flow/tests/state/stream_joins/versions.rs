//! Joins with the versions of a table, against a plain program that searches all versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::{Flow, FlowSettings, Resume, Running, Upsert};

use super::{
    Results, SHAPES, checkpointing, count, disorder, entries, results, sorted, source, time,
    with_deaths,
};
use crate::changes::Kept;
use crate::support::{Collect, Hand, Letters, MemoryStore, on_ranks, settings, wait_until};

/// Key, time, and a number of its own.
type Item = (u64, i64, u64);

/// An item, and the number of the version that was valid.
type Joined = (Item, Option<u64>);

/// The sources of each side.
type Sides = (Vec<Vec<Item>>, Vec<Vec<Upsert<Item>>>);

const DISORDER_MS: u64 = 20;

/// The sources of both sides. Each version of a key has a time of its own.
fn random_sides(seed: u64, sources: u64, count: u64) -> Sides {
    let mut rng = Rng::with_seed(seed);
    let mut random = |source: u64, steps: i64| -> Vec<Item> {
        let mut now = 0;
        let item = |number| {
            now += rng.i64(0..steps);
            let key = if rng.bool() { 0 } else { rng.u64(1..12) };
            let time = now - rng.i64(0..=DISORDER_MS as i64);
            // Sources have different times.
            let time = time * sources as i64 + source as i64;
            (key, time, source << 32 | number)
        };
        (0..count).map(item).collect()
    };
    let items = (0..sources).map(|source| random(source, 5)).collect();
    let mut versions = Vec::new();
    for source in 0..sources {
        let mut seen = std::collections::BTreeSet::new();
        let mut of_source = random(source, 12);
        of_source.retain(|(key, time, _)| seen.insert((*key, *time)));
        versions.push(of_source);
    }
    let change = |(number, item): (usize, Item)| match number % 5 {
        4 => Upsert::Delete(item),
        _ => Upsert::Put(item),
    };
    let versions = versions.into_iter();
    let versions = versions.map(|items| items.into_iter().enumerate().map(change).collect());
    (items, versions.collect())
}

/// The versions of each key by their times.
fn versions_of(versions: &[Vec<Upsert<Item>>]) -> BTreeMap<(u64, i64), Option<u64>> {
    let all = versions.iter().flatten();
    all.map(|version| {
        let (key, time, number) = version.row();
        let is_there = matches!(version, Upsert::Put(_));
        ((*key, *time), is_there.then_some(*number))
    })
    .collect()
}

fn model((items, versions): &Sides) -> Vec<Joined> {
    let versions = versions_of(versions);
    let joined = items.iter().flatten().map(|item| {
        let (key, time, _) = *item;
        let valid = versions.range((key, i64::MIN)..=(key, time)).next_back();
        (*item, valid.and_then(|(_, number)| *number))
    });
    let mut joined: Vec<_> = joined.collect();
    joined.sort_unstable();
    joined
}

fn version_time(version: &Upsert<Item>) -> Timestamp {
    time(version.row())
}

/// Starts the join of the sources of a rank: each rank has as many.
fn start(
    settings: FlowSettings,
    (items, versions): &Sides,
    is_slow: bool,
    results: &Results<Joined>,
) -> Result<Running, millstream_flow::FlowError> {
    let (rank, ranks) = (
        settings.ranks.rank() as usize,
        settings.ranks.count() as usize,
    );
    // The times of all sources together are as many times as far apart.
    let bound = DISORDER_MS * items.len() as u64;
    let flow = Flow::with_settings("joined", settings);
    let seconds = versions.iter().skip(rank).step_by(ranks);
    let seconds = flow
        .sources("seconds", seconds.map(|it| source(it.clone(), is_slow)))
        .watermarks(version_time, disorder(bound))
        .key_by(|version| version.row().0);
    let firsts = items.iter().skip(rank).step_by(ranks);
    flow.sources("firsts", firsts.map(|it| source(it.clone(), is_slow)))
        .watermarks(time, disorder(bound))
        .key_by(|(key, ..)| *key)
        .connect(seconds)
        .left_outer_temporal_join("valid", time, version_time, |item, version| {
            (*item, version.map(|(_, _, number)| *number))
        })
        .sink("results", Kept(Arc::clone(&results[rank])));
    flow.run()
}

/// The state of a flow that has ended on one rank: no item waits, and no key has more than its last version. Returns the number of
/// these.
fn check_end(running: &Running) -> u64 {
    assert_eq!(entries(running, "valid.first"), 0);
    assert_eq!(entries(running, "valid.timers"), 0);
    assert_eq!(count(running, "valid.late"), 0);
    entries(running, "valid.second")
}

/// The keys whose last version is a row.
fn last_rows((_, versions): &Sides) -> u64 {
    let last: BTreeMap<u64, Option<u64>> = (versions_of(versions).into_iter())
        .map(|((key, _), number)| (key, number))
        .collect();
    last.values().flatten().count() as u64
}

#[test]
fn items_get_the_versions_of_their_times_on_any_number_of_ranks_workers_and_sources() {
    for seed in 0..4 {
        for (ranks, workers, sources, ring) in SHAPES {
            let sides = random_sides(seed, sources * u64::from(ranks), 600);
            let found = results(ranks);
            let kept = on_ranks(ranks, |ranks: &Ranks| {
                let settings = FlowSettings {
                    ranks: ranks.clone(),
                    ..settings(workers, ring)
                };
                let running = start(settings, &sides, false, &found).unwrap();
                running.join().unwrap();
                check_end(&running)
            });
            assert_eq!(sorted(&found), model(&sides), "on {ranks} ranks");
            assert_eq!(kept.iter().sum::<u64>(), last_rows(&sides));
        }
    }
}

#[test]
fn a_flow_that_dies_and_resumes_joins_each_item_once() {
    with_deaths(|ranks, run| {
        let sides = random_sides(99, 2 * u64::from(ranks), 600);
        let found = results(ranks);
        run(
            &|settings| start(settings, &sides, true, &found),
            &|running| {
                check_end(running);
            },
        );
        assert_eq!(sorted(&found), model(&sides), "{ranks} ranks");
    });
}

#[test]
fn times_at_the_ends_of_time_are_possible() {
    let times = [i64::MIN, i64::MIN + 1, 0, i64::MAX - 1, i64::MAX];
    for first_version in 0..times.len() {
        let item = |(number, time): (usize, &i64)| (0, *time, number as u64);
        let items: Vec<Item> = times.iter().enumerate().map(item).collect();
        let versions = items[first_version..].iter().step_by(2);
        let versions = versions.map(|item| Upsert::Put(*item)).collect();
        let sides = (vec![items], vec![versions]);
        let found = results(1);
        let running = start(settings(2, 16), &sides, false, &found).unwrap();
        running.join().unwrap();
        assert_eq!(sorted(&found), model(&sides), "from {first_version}");
        assert_eq!(check_end(&running), 1);
    }
}

/// A flow whose sources are worked by hand: a number of the first side is the time of an item, and one of the second side that of a
/// version. The last digit of a version that deletes the row is 9. Numbers whose last digit is 7 are of another key.
struct World {
    running: Running,
    items: Hand,
    versions: Hand,
    joined: Arc<std::sync::Mutex<Vec<(u64, u64)>>>,
}

impl World {
    fn start(letters: &Arc<Letters>) -> World {
        World::with(letters, settings(2, 64))
    }

    fn with(letters: &Arc<Letters>, settings: FlowSettings) -> World {
        let settings = FlowSettings {
            dead_letters: Some(Arc::clone(letters) as _),
            ..settings
        };
        let flow = Flow::with_settings("joined", settings);
        let [items, versions] = [(); 2].map(|()| Hand::default());
        let (sink, joined) = Collect::new();
        let time = |number: &u64| Timestamp(*number as i64);
        let seconds = flow
            .source("versions", versions.clone())
            .watermarks(time, disorder(0))
            .map(|time| match time % 10 {
                9 => Upsert::Delete(*time),
                _ => Upsert::Put(*time),
            })
            .key_by(|version| version.row() % 10 == 7);
        flow.source("items", items.clone())
            .watermarks(time, disorder(0))
            .key_by(|item| item % 10 == 7)
            .connect(seconds)
            .temporal_join(
                "valid",
                time,
                |version| Timestamp(*version.row() as i64),
                |item, version| (*item, *version),
            )
            .sink("results", sink);
        World {
            running: flow.run().unwrap(),
            items,
            versions,
            joined,
        }
    }

    #[track_caller]
    fn wait_until_joined(&self, expected: &[(u64, u64)]) {
        wait_until("items are joined", || {
            self.joined.lock().unwrap().len() >= expected.len()
        });
        assert_eq!(self.joined(), expected);
    }

    fn joined(&self) -> Vec<(u64, u64)> {
        let mut joined = self.joined.lock().unwrap().clone();
        joined.sort_unstable();
        joined
    }

    fn wait_for_versions(&self, count: u64) {
        wait_until("versions come and go", || {
            entries(&self.running, "valid.second") == count
        });
    }
}

#[test]
fn items_wait_for_versions_that_stand_still_and_old_versions_go() {
    let letters = Arc::default();
    let world = World::start(&letters);
    world.items.give([100, 150, 200, 250]);
    world.versions.give([100, 140, 201]);
    // One at 201 may still get a newer version.
    let mut expected = vec![(100, 100), (150, 140), (200, 140)];
    world.wait_until_joined(&expected);
    // The one at 140 is replaced at 201, which the watermark has reached.
    world.wait_for_versions(1);
    world.versions.give((300..400).step_by(10).chain([999]));
    world.items.give([260]);
    expected.push((250, 201));
    world.wait_until_joined(&expected);
    // The one at 201 is valid at the watermark, and all others are later.
    world.wait_for_versions(12);
    // One timer for items, and one for versions.
    assert_eq!(entries(&world.running, "valid.timers"), 2);
    world.items.give([395, 1_000, 2_000]);
    expected.extend([(260, 201), (395, 390)]);
    world.wait_until_joined(&expected);
    world.versions.give([3_000, 3_009]);
    // The row is no more from 999 to 3,000.
    world.items.end();
    world.versions.end();
    world.running.join().unwrap();
    assert_eq!(world.joined(), expected);
    assert_eq!(check_end(&world.running), 0);
    assert!(letters.0.lock().unwrap().is_empty());
}

#[test]
fn late_items_become_dead_letters_and_late_versions_are_valid_from_the_watermark_on() {
    let letters = Arc::default();
    let world = World::start(&letters);
    world.versions.give([100, 1_000]);
    world.items.give([500, 1_000]);
    let mut expected = vec![(500, 100)];
    world.wait_until_joined(&expected);
    // The watermark is at 1,000, where there is a newer version than the first one of these; the other key has none.
    world.items.give([900]);
    world.versions.give([950, 957]);
    let late = || count(&world.running, "valid.late");
    wait_until("both are late", || late() == 2);
    world.items.give([1_007, 2_000]);
    world.versions.give([1_100, 2_000]);
    expected.extend([(1_000, 1_000), (1_007, 957)]);
    world.wait_until_joined(&expected);
    world.versions.give([3_000]);
    expected.push((2_000, 2_000));
    world.items.give([3_000]);
    world.wait_until_joined(&expected);
    world.items.end();
    world.versions.end();
    world.running.join().unwrap();
    expected.push((3_000, 3_000));
    assert_eq!(world.joined(), expected);
    let letters = letters.0.lock().unwrap();
    let mut items: Vec<_> = letters.iter().map(|letter| letter.item.as_str()).collect();
    items.sort_unstable();
    assert_eq!(items, ["First(900)", "Second(Put(950))"]);
}

#[test]
fn a_join_that_resumes_finds_late_items_by_its_former_watermark() {
    for workers in [2, 3] {
        let (letters, store) = (Arc::default(), Arc::new(MemoryStore::default()));
        let start = |workers, resume| {
            let checkpoints = Some(checkpointing(&store, resume));
            let settings = FlowSettings {
                checkpoints,
                ..settings(workers, 64)
            };
            World::with(&letters, settings)
        };
        let world = start(2, Resume::Never);
        world.versions.give([100, 1_000]);
        world.items.give([500, 1_000]);
        world.wait_until_joined(&[(500, 100)]);
        // The version at 100 is gone.
        world.wait_for_versions(1);
        world.running.stop();
        world.running.join().unwrap();
        let world = start(workers, Resume::Always);
        // The source of versions has emitted no watermark yet.
        world.items.give([900]);
        let late = || count(&world.running, "valid.late");
        wait_until("it is late", || late() == 1);
        world.versions.give([2_000]);
        world.items.give([2_000]);
        world.wait_until_joined(&[(1_000, 1_000)]);
        world.items.end();
        world.versions.end();
        world.running.join().unwrap();
        assert_eq!(world.joined(), [(1_000, 1_000), (2_000, 2_000)]);
        let letters = letters.0.lock().unwrap();
        let items: Vec<_> = letters.iter().map(|letter| letter.item.as_str()).collect();
        assert_eq!(items, ["First(900)"], "{workers} workers");
    }
}
