//! Joins by key and event time, against nested loops.

use std::hash::{Hash, Hasher};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::{Checkpointing, Flow, FlowError, FlowSettings, Key, Resume, Running};
use serde::{Deserialize, Serialize};

use super::{
    Results, SHAPES, checkpointing, count, disorder, entries, results, sorted, source, time,
    with_deaths,
};
use crate::changes::Kept;
use crate::support::{Collect, Hand, Letters, MemoryStore, on_ranks, settings, wait_until};

/// Key, time, and a number of its own.
type Item = (u64, i64, u64);

type Pair = (Item, Item);

/// The sources of one side.
type Sources = Vec<Vec<Item>>;

const DISORDER_MS: u64 = 20;

/// Items of some keys, the first of which has half of them, out of order by at most `DISORDER_MS`.
fn random_items(seed: u64, count: u64) -> Vec<Item> {
    let mut rng = Rng::with_seed(seed);
    let mut now = 0;
    let item = |number| {
        now += rng.i64(0..8);
        let key = if rng.bool() { 0 } else { rng.u64(1..20) };
        (
            key,
            now - rng.i64(0..=DISORDER_MS as i64),
            seed << 32 | number,
        )
    };
    (0..count).map(item).collect()
}

/// The sources of both sides on all ranks.
fn random_sides(seed: u64, sources: u64, count: u64) -> [Sources; 2] {
    [0, 1].map(|side| {
        let numbers = 0..sources;
        numbers
            .map(|number| random_items(seed * 1_000 + side * 100 + number, count))
            .collect()
    })
}

fn is_pair(interval: &RangeInclusive<i64>, first: &Item, second: &Item) -> bool {
    let distance = i128::from(second.1) - i128::from(first.1);
    let reach = i128::from(*interval.start())..=i128::from(*interval.end());
    first.0 == second.0 && reach.contains(&distance)
}

/// Nested loops.
fn model(interval: &RangeInclusive<i64>, [firsts, seconds]: &[Sources; 2]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    for first in firsts.iter().flatten() {
        let partners = seconds.iter().flatten();
        let partners = partners.filter(|second| is_pair(interval, first, second));
        pairs.extend(partners.map(|second| (*first, *second)));
    }
    pairs.sort_unstable();
    pairs
}

/// Starts the join of the sources of a rank: each rank has as many.
fn start(
    settings: FlowSettings,
    interval: RangeInclusive<i64>,
    sides: &[Sources; 2],
    is_slow: bool,
    results: &Results<Pair>,
) -> Result<Running, FlowError> {
    let (rank, ranks) = (
        settings.ranks.rank() as usize,
        settings.ranks.count() as usize,
    );
    let flow = Flow::with_settings("joined", settings);
    let sources = |side: usize| {
        let own = sides[side].iter().skip(rank).step_by(ranks);
        own.map(|items| source(items.clone(), is_slow))
            .collect::<Vec<_>>()
    };
    let seconds = flow
        .sources("seconds", sources(1))
        .watermarks(time, disorder(DISORDER_MS))
        .key_by(|(key, ..)| *key);
    flow.sources("firsts", sources(0))
        .watermarks(time, disorder(DISORDER_MS))
        .key_by(|(key, ..)| *key)
        .connect(seconds)
        .interval_join("pairs", interval, time, time, |first, second| {
            (*first, *second)
        })
        .sink("results", Kept(Arc::clone(&results[rank])));
    flow.run()
}

/// Nothing is left in the state of a flow that has ended.
fn check_end(running: &Running) {
    for element in ["pairs.first", "pairs.second", "pairs.timers"] {
        assert_eq!(entries(running, element), 0, "{element}");
    }
    assert_eq!(count(running, "pairs.late"), 0);
}

#[test]
fn pairs_are_those_of_nested_loops_on_any_number_of_ranks_workers_and_sources() {
    let intervals = [0..=0, -10..=30, 5..=60, -60..=-5, -500..=500, -3..=0];
    for (seed, interval) in intervals.into_iter().enumerate() {
        for (ranks, workers, sources, ring) in SHAPES {
            let sides = random_sides(seed as u64, sources * u64::from(ranks), 400);
            let found = results(ranks);
            on_ranks(ranks, |ranks: &Ranks| {
                let settings = FlowSettings {
                    ranks: ranks.clone(),
                    ..settings(workers, ring)
                };
                let running = start(settings, interval.clone(), &sides, false, &found).unwrap();
                running.join().unwrap();
                check_end(&running);
            });
            let expected = model(&interval, &sides);
            assert!(!expected.is_empty());
            assert_eq!(sorted(&found), expected, "{interval:?} on {ranks} ranks");
        }
    }
}

#[test]
fn a_flow_that_dies_and_resumes_gives_each_pair_once() {
    let interval = -15..=25;
    with_deaths(|ranks, run| {
        let sides = random_sides(77, 2 * u64::from(ranks), 600);
        let found = results(ranks);
        run(
            &|settings| start(settings, interval.clone(), &sides, true, &found),
            &check_end,
        );
        assert_eq!(sorted(&found), model(&interval, &sides), "{ranks} ranks");
    });
}

#[test]
fn times_and_bounds_at_the_ends_of_time_are_possible() {
    let times = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let bounds = [i64::MIN, -1, 0, 1, i64::MAX];
    let items = |side: u64| -> Vec<Item> {
        let items = times.iter().enumerate();
        items
            .map(|(number, time)| (0, *time, side << 8 | number as u64))
            .collect()
    };
    let sides = [vec![items(0)], vec![items(1)]];
    for lower in bounds {
        for upper in bounds.into_iter().filter(|upper| *upper >= lower) {
            let found = results(1);
            let running = start(settings(2, 16), lower..=upper, &sides, false, &found).unwrap();
            running.join().unwrap();
            check_end(&running);
            let expected = model(&(lower..=upper), &sides);
            assert_eq!(sorted(&found), expected, "{lower}..={upper}");
        }
    }
}

/// A flow whose sources are worked by hand: a number is the time of an item. All items have the same key.
struct World {
    running: Running,
    sides: [Hand; 2],
    pairs: Arc<std::sync::Mutex<Vec<(u64, u64)>>>,
}

impl World {
    fn start(settings: FlowSettings, interval: RangeInclusive<i64>) -> World {
        World::with_key(settings, interval, |_| 0)
    }

    fn with_key<K: Key>(
        settings: FlowSettings,
        interval: RangeInclusive<i64>,
        key: fn(&u64) -> K,
    ) -> World {
        let flow = Flow::with_settings("joined", settings);
        let sides = [(); 2].map(|()| Hand::default());
        let (sink, pairs) = Collect::new();
        let time = |number: &u64| Timestamp(*number as i64);
        let seconds = flow
            .source("seconds", sides[1].clone())
            .watermarks(time, disorder(0))
            .key_by(key);
        flow.source("firsts", sides[0].clone())
            .watermarks(time, disorder(0))
            .key_by(key)
            .connect(seconds)
            .interval_join("pairs", interval, time, time, |first, second| {
                (*first, *second)
            })
            .sink("results", sink);
        World {
            running: flow.run().unwrap(),
            sides,
            pairs,
        }
    }

    fn pairs(&self) -> Vec<(u64, u64)> {
        let mut pairs = self.pairs.lock().unwrap().clone();
        pairs.sort_unstable();
        pairs
    }

    /// Gives both sides an item of this time, and waits until they have met.
    fn meet(&self, time: u64) {
        self.sides.iter().for_each(|side| side.give([time]));
        wait_until("they meet", || self.pairs().contains(&(time, time)));
    }

    fn end(&self) {
        self.sides.iter().for_each(Hand::end);
        self.running.join().unwrap();
    }
}

#[test]
fn items_behind_the_watermark_are_counted_and_become_dead_letters() {
    for keeps_letters in [false, true] {
        let letters = Arc::new(Letters::default());
        let settings = FlowSettings {
            dead_letters: keeps_letters.then(|| Arc::clone(&letters) as _),
            ..settings(2, 64)
        };
        let world = World::start(settings, -100..=100);
        world.meet(1_000);
        // The watermarks of 1,000 have come when these meet.
        world.meet(2_000);
        let late = || count(&world.running, "pairs.late");
        assert_eq!(late(), 0);
        world.sides[0].give([950]);
        world.sides[1].give([999]);
        wait_until("both are late", || late() == 2);
        world.meet(3_000);
        world.end();
        let met = [1_000, 2_000, 3_000].map(|time| (time, time));
        assert_eq!(world.pairs(), met);
        let events = world.running.late_events();
        assert_eq!(
            (events[0].state.as_str(), events[0].late_events),
            ("pairs.late", 2)
        );
        let letters = letters.0.lock().unwrap();
        let mut items: Vec<_> = letters.iter().map(|letter| letter.item.as_str()).collect();
        items.sort_unstable();
        match keeps_letters {
            true => assert_eq!(items, ["First(950)", "Second(999)"]),
            false => assert!(items.is_empty()),
        }
        for letter in letters.iter() {
            assert_eq!(&*letter.operator, "pairs/0.interval_join");
            let begin = "late: event time 9";
            assert!(letter.error.starts_with(begin), "{}", letter.error);
        }
    }
}

#[test]
fn a_join_that_resumes_gives_no_pairs_of_items_behind_its_former_watermark() {
    let store = Arc::new(MemoryStore::default());
    let start = |resume| {
        let settings = FlowSettings {
            checkpoints: Some(checkpointing(&store, resume)),
            ..settings(2, 64)
        };
        World::start(settings, -100..=100)
    };
    let world = start(Resume::Never);
    world.meet(1_000);
    // The watermarks of 1,000 have come when these meet.
    world.meet(2_000);
    world.running.stop();
    world.running.join().unwrap();
    let world = start(Resume::Always);
    // In reach of the item at 2,000. The other source has emitted no watermark yet.
    world.sides[0].give([1_950]);
    let late = || count(&world.running, "pairs.late");
    wait_until("it is late", || late() == 1);
    world.meet(3_000);
    world.end();
    assert_eq!(world.pairs(), [(3_000, 3_000)]);
}

#[test]
fn items_wait_for_a_stream_that_stands_still_and_leave_when_the_watermark_has_passed() {
    let world = World::start(settings(2, 64), -10..=10);
    let [first, second] = &world.sides;
    first.give(0..2_000);
    let kept = || entries(&world.running, "pairs.first");
    wait_until("all wait", || kept() == 2_000);
    // One timer for all of them.
    assert_eq!(entries(&world.running, "pairs.timers"), 1);
    second.give([500]);
    wait_until("pairs come", || world.pairs().len() == 21);
    let expected: Vec<_> = (490..=510).map(|time| (time, 500)).collect();
    assert_eq!(world.pairs(), expected);
    // Those that may still have partners, and a sixteenth of the interval more.
    wait_until("others leave", || kept() <= 2_000 - 490 + 2);
    assert!(kept() >= 2_000 - 490);
    world.end();
    check_end(&world.running);
}

/// The number of keys that were hashed.
static HASHED: AtomicU64 = AtomicU64::new(0);

/// A key that counts the look-ups of items: each hashes the key once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct CountedKey(u64);

impl Hash for CountedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHED.fetch_add(1, Ordering::Relaxed);
        self.0.hash(state);
    }
}

#[test]
fn each_item_that_leaves_costs_few_look_ups_while_no_checkpoint_becomes_complete() {
    const ITEMS: u64 = 60_000;
    let store = Arc::new(MemoryStore::default());
    let start = |resume| {
        let settings = FlowSettings {
            checkpoints: Some(Checkpointing {
                // The only one is that of the flow's end.
                interval: Some(Duration::from_secs(3_600)),
                ..checkpointing(&store, resume)
            }),
            ..settings(2, 64)
        };
        World::with_key(settings, -10..=10, |_| CountedKey(0))
    };
    // The second side is silent: the items wait, and the last checkpoint has them.
    let world = start(Resume::Never);
    world.sides[0].give(0..ITEMS);
    wait_until("all wait", || {
        let state = world.running.state("pairs.first").unwrap();
        state.size().tables.unwrap().entries == ITEMS
    });
    world.running.stop();
    world.running.join().unwrap();
    let world = start(Resume::Always);
    assert_eq!(entries(&world.running, "pairs.first"), ITEMS);
    let before = HASHED.load(Ordering::Relaxed);
    world.meet(2 * ITEMS);
    wait_until("all but the last one leave", || {
        entries(&world.running, "pairs.first") == 1
    });
    let hashed = HASHED.load(Ordering::Relaxed) - before;
    assert!(hashed < 20 * ITEMS, "{hashed} look-ups");
    world.end();
}

#[test]
fn late_items_among_many_never_give_wrong_pairs() {
    let interval = -30..=10;
    for seed in 0..10 {
        let mut sides = random_sides(1_000 + seed, 2, 500);
        let in_time = model(&interval, &sides);
        let mut rng = Rng::with_seed(seed);
        let mut late = 0;
        for (side, items) in sides.iter_mut().flatten().enumerate() {
            for number in 0..50 {
                let place = rng.usize(100..items.len());
                let latest = items[..place]
                    .iter()
                    .map(|(_, time, _)| *time)
                    .max()
                    .unwrap();
                let time = latest - DISORDER_MS as i64 - rng.i64(1..200);
                let number = 1 << 50 | (side as u64) << 40 | number;
                items.insert(place, (rng.u64(..3), time, number));
                late += 1;
            }
        }
        let all = model(&interval, &sides);
        let found = results(1);
        let running = start(settings(3, 16), interval.clone(), &sides, false, &found).unwrap();
        running.join().unwrap();
        let found = sorted(&found);
        assert!(
            found.windows(2).all(|two| two[0] < two[1]),
            "each pair once"
        );
        assert!(in_time.iter().all(|pair| found.binary_search(pair).is_ok()));
        assert!(found.iter().all(|pair| all.binary_search(pair).is_ok()));
        let late_found = count(&running, "pairs.late");
        assert!((1..=late).contains(&late_found), "{late_found} of {late}");
    }
}

#[test]
fn an_interval_that_ends_before_it_begins_and_streams_without_watermarks_are_refused() {
    let build = |interval, has_watermarks| {
        let flow = Flow::with_settings("refused", settings(1, 16));
        let time = |number: &u64| Timestamp(*number as i64);
        let first = flow
            .source("first", Hand::default())
            .watermarks(time, disorder(0))
            .key_by(|_| 0);
        let second = flow.source("second", Hand::default());
        let results = match has_watermarks {
            true => {
                let second = second.watermarks(time, disorder(0)).key_by(|_| 0);
                first
                    .connect(second)
                    .interval_join("pairs", interval, time, time, |first, _| *first)
            }
            false => first.connect(second.key_by(|_| 0)).interval_join(
                "pairs",
                interval,
                time,
                time,
                |first, _| *first,
            ),
        };
        let _ = results.fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
        flow.run().map(|running| running.stop())
    };
    assert!(build(0..=0, true).is_ok());
    #[expect(clippy::reversed_empty_ranges, reason = "it is to be refused")]
    let error = build(5..=-5, true).unwrap_err().to_string();
    let expected = "flow \"refused\": the interval of \"pairs\" begins at 5 ms and ends before that, at -5 ms; name the smaller bound first";
    assert_eq!(error, expected);
    let error = build(0..=0, false).unwrap_err();
    assert!(matches!(error, FlowError::NoWatermarks { .. }), "{error}");
}
