//! Processing-time windows give what a plain model gives, by a clock that is moved by hand.

mod model;
mod ranks;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{All, Count, Sum, Trigger, WindowResult, Windows, fold};
use millstream_flow::{Flow, FlowSettings, Resume, Running};

use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::changes::Kept;
use crate::process::WallClock;
use crate::support::{Collect, Hand, settings, wait_until};

/// A result: key, start, end, number of items, and their sum.
type Found = (u64, i64, i64, u64, u64);

type Window = WindowResult<u64, (u64, u64, ())>;

/// Items have one of these keys.
const KEYS: u64 = 8;

/// A flow over numbers that are given by hand, and its clock. Both outlast runs.
struct World {
    clock: Arc<WallClock>,
    store: Arc<LogStore>,
    workers: usize,
    running: Option<(Running, Hand)>,
    results: Arc<Mutex<Vec<Window>>>,
    /// The number of items in windows.
    seen: Arc<AtomicU64>,
    given: u64,
}

impl World {
    fn new(workers: usize) -> World {
        World {
            clock: Arc::default(),
            store: Arc::default(),
            workers,
            running: None,
            results: Arc::default(),
            seen: Arc::default(),
            given: 0,
        }
    }

    fn start(&mut self, windows: Windows) {
        let settings = FlowSettings {
            clock: Arc::clone(&self.clock) as _,
            workers: self.workers.try_into().unwrap(),
            ..settings_of(&self.store, Resume::IfAny, &Ranks::alone())
        };
        let flow = Flow::with_settings("windows", settings);
        let hand = Hand::default();
        let seen = Arc::clone(&self.seen);
        let see = move |(): &mut (), _: &u64| {
            seen.fetch_add(1, Ordering::SeqCst);
        };
        let aggregate = (
            Count,
            Sum::of(|number: &u64| *number),
            fold(|| (), see, |(), ()| ()),
        );
        flow.source("numbers", hand.clone())
            .key_by(|number| number % KEYS)
            .clock_windows("recent", windows, aggregate)
            .sink("windows", Kept(Arc::clone(&self.results)));
        self.running = Some((flow.run().unwrap(), hand));
    }

    fn stop(&mut self) {
        let (running, _) = self.running.take().expect("it runs");
        running.stop();
        running.join().unwrap();
    }

    /// Gives numbers, and waits until they are in windows.
    fn give(&mut self, numbers: &[u64]) {
        let (_, hand) = self.running.as_ref().expect("it runs");
        hand.give(numbers.iter().copied());
        self.given += numbers.len() as u64;
        wait_until("items are in windows", || {
            self.seen.load(Ordering::SeqCst) == self.given
        });
    }

    fn end(&mut self) {
        let (running, hand) = self.running.take().expect("it runs");
        hand.end();
        running.join().unwrap();
    }

    fn found(&self) -> Vec<Found> {
        let results = self.results.lock().unwrap();
        let found = results.iter().map(|window| {
            let (count, sum, ()) = window.value;
            assert_eq!(window.events, count);
            (window.key, window.start.0, window.end.0, count, sum)
        });
        found.collect()
    }

    #[track_caller]
    fn wait_until_found(&self, expected: &[Found]) {
        wait_until("windows come", || {
            self.results.lock().unwrap().len() >= expected.len()
        });
        assert_eq!(self.found(), expected);
    }
}

#[test]
fn windows_that_end_while_the_flow_is_stopped_come_before_new_items_count() {
    let mut world = World::new(2);
    world.clock.set(1_010);
    world.start(Windows::sliding(100, 50));
    world.give(&[8, 16]);
    world.stop();
    assert_eq!(world.found(), []);
    world.clock.set(60_000);
    world.start(Windows::sliding(100, 50));
    // No item comes.
    let mut expected = vec![(0, 950, 1_050, 2, 24), (0, 1_000, 1_100, 2, 24)];
    world.wait_until_found(&expected);
    world.give(&[24]);
    world.end();
    expected.extend([(0, 59_950, 60_050, 1, 24), (0, 60_000, 60_100, 1, 24)]);
    assert_eq!(world.found(), expected);
}

#[test]
fn a_clock_that_jumps_leaves_each_item_in_one_tumbling_window() {
    let mut world = World::new(1);
    world.clock.set(250);
    world.start(Windows::tumbling(100));
    world.give(&[8]);
    // Back: the past window opens, and ends first.
    world.clock.set(120);
    world.give(&[16]);
    world.clock.set(210);
    world.give(&[24]);
    let mut expected = vec![(0, 100, 200, 1, 16)];
    world.wait_until_found(&expected);
    world.clock.set(301);
    world.give(&[32]);
    expected.push((0, 200, 300, 2, 32));
    world.wait_until_found(&expected);
    // Back again, to a window that was emitted: it has a further result.
    world.clock.set(299);
    world.give(&[40]);
    world.clock.set(i64::MAX - 1);
    world.give(&[1]);
    expected.extend([(0, 200, 300, 1, 40), (0, 300, 400, 1, 32)]);
    wait_until("windows come", || world.found().len() == 4);
    assert_eq!(world.found(), expected);
    world.clock.set(i64::MIN);
    world.give(&[2]);
    world.end();
    let start = (i64::MAX - 1).div_euclid(100) * 100;
    let mut last = world.found().split_off(4);
    last.sort_unstable();
    let end_of_first = (i64::MIN.div_euclid(100) + 1) * 100;
    assert_eq!(
        last,
        [
            (1, start, i64::MAX, 1, 1),
            (2, i64::MIN, end_of_first, 1, 2)
        ]
    );
}

#[test]
fn a_session_goes_on_while_the_clock_is_set_back() {
    let mut world = World::new(1);
    world.clock.set(1_000);
    world.start(Windows::session(50));
    world.give(&[8]);
    world.clock.set(100);
    world.give(&[16]);
    world.clock.set(1_020);
    world.give(&[24]);
    assert_eq!(world.found(), []);
    world.clock.set(1_070);
    world.give(&[32]);
    world.wait_until_found(&[(0, 1_000, 1_070, 3, 48)]);
    world.end();
    assert_eq!(world.found().len(), 2);
}

/// No item is lost with windows of any kind, and those that count each item once still do.
#[test]
fn open_windows_go_on_as_windows_of_another_size_or_kind() {
    let kinds = [
        Windows::tumbling(100),
        Windows::tumbling(70),
        Windows::session(40),
        Windows::sliding(90, 30),
        Windows::tumbling(1_000),
        Windows::session(500),
    ];
    for first in kinds {
        for second in kinds {
            let mut world = World::new(2);
            world.clock.set(1_010);
            world.start(first);
            world.give(&[1, 2, 3, 8]);
            world.clock.set(1_045);
            world.give(&[9, 11, 19]);
            world.stop();
            world.clock.set(1_060);
            world.start(second);
            world.give(&[3, 8]);
            world.clock.set(1_075);
            world.give(&[9]);
            world.end();
            let counted: u64 = world.found().iter().map(|(.., count, _)| count).sum();
            let is_sliding = |windows| windows == Windows::sliding(90, 30);
            match is_sliding(first) || is_sliding(second) {
                false => assert_eq!(counted, world.given, "{first} then {second}"),
                true => assert!(counted >= world.given, "{first} then {second}"),
            }
        }
    }
}

#[test]
fn windows_over_all_items_end_by_the_clock_of_an_idle_flow() {
    let (sink, results) = Collect::new();
    let hand = Hand::default();
    let flow = Flow::with_settings("windows", settings(2, 16));
    flow.source("numbers", hand.clone())
        .clock_windows("recent", Windows::session(300), Count)
        .sink("windows", sink);
    let running = flow.run().unwrap();
    hand.give(0..10);
    // By the system's clock.
    wait_until("the session ends", || results.lock().unwrap().len() == 1);
    hand.end();
    running.join().unwrap();
    let results = results.lock().unwrap();
    assert_eq!((results[0].key, results[0].value), (All, 10));
}

#[test]
fn windows_that_do_not_end_by_the_clock_are_refused() {
    let refused = |windows| {
        let (sink, _) = Collect::new();
        let flow = Flow::with_settings("numbers", settings(1, 16));
        flow.source("numbers", Generator::new(|number| number).limit(1))
            .key_by(|number| *number)
            .clock_windows("recent", windows, Count)
            .sink("windows", sink);
        flow.run().map(drop).unwrap_err().to_string()
    };
    let late = "flow \"numbers\": \"recent\" cannot have these windows: no item is late by the wall clock; leave the allowed lateness out";
    assert_eq!(refused(Windows::tumbling(10).allowed_lateness(5)), late);
    let global = "flow \"numbers\": \"recent\" cannot have these windows: a global window does not end by the wall clock";
    assert_eq!(refused(Windows::global(Trigger::every_events(10))), global);
}
