//! Windows that have all of their events, against a dumb model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Trigger, WindowEvents, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, DeadLetters, Emit, Flow, FlowError, FlowSettings, Order,
    Parts, Resume, ShardKey, Watermarks,
};
use proptest::prelude::*;

use crate::support::{Collect, Hand, Letters, settings, wait_until};

/// When it happened, of which source it is, and its number there.
type Event = (i64, usize, usize);

/// A handle of events that came together.
#[derive(Debug, Clone)]
struct Batch(Arc<[Event]>);

impl Parts for Batch {
    type Part<'a> = Event;

    fn for_each_part(&self, visit: impl FnMut(&Event)) {
        self.0.iter().for_each(visit);
    }
}

impl Batch {
    fn latest(&self) -> Timestamp {
        Timestamp(self.0.iter().map(|event| event.0).max().unwrap_or(i64::MIN))
    }
}

/// Start, end, the reported number of events, and the events.
type Window = (i64, i64, u64, Vec<Event>);

fn window(window: &WindowEvents<Batch>, emit: &mut Emit<Window>) {
    let mut events = Vec::new();
    window.for_each_part(|event| events.push(*event));
    emit(&(window.start.0, window.end.0, window.events, events));
}

/// The results of one operator.
struct Outcome {
    windows: Vec<Window>,
    late: Vec<Event>,
    late_events: u64,
}

fn disorder(ms: u64) -> Watermarks {
    Watermarks::bounded(Duration::from_millis(ms)).ahead_max(None)
}

/// Collects the events of some sources in several kinds of windows at once.
fn run(
    sources: &[Vec<Batch>],
    windows: &[Windows],
    bound_ms: u64,
    settings: FlowSettings,
) -> Vec<Outcome> {
    let flow = Flow::with_settings("collected", settings);
    let channels: Vec<_> = (0..windows.len())
        .map(|number| flow.channel::<Batch>(&format!("events {number}")))
        .collect();
    let generators = sources.iter().map(|batches| {
        let (batches, count) = (batches.clone(), batches.len() as u64);
        Generator::new(move |number| batches[number as usize].clone()).limit(count)
    });
    flow.sources("events", generators)
        .watermarks(Batch::latest, disorder(bound_ms))
        .to_all(&channels);
    let mut outcomes = Vec::new();
    for (number, (channel, windows)) in channels.iter().zip(windows).enumerate() {
        let name = |what: &str| format!("{what} {number}");
        let (sink, results) = Collect::new();
        let (late_sink, late) = Collect::new();
        let state = flow.collected(&name("state"), *windows);
        let late_events = flow.channel::<Event>(&name("late"));
        flow.stage(&name("read"), channel)
            .over(&state)
            .late_to(&late_events, |event| *event)
            .collect(&name("windows"), |event| Timestamp(event.0))
            .flat_map(window)
            .boundary(&name("results"))
            .sink(&name("sink"), sink);
        flow.stage(&name("late"), &late_events)
            .sink(&name("late sink"), late_sink);
        outcomes.push((state, results, late));
    }
    flow.run().unwrap().join().unwrap();
    let outcomes = outcomes.into_iter().map(|(state, results, late)| {
        assert_eq!((state.kept_items(), state.open_events()), (0, 0));
        Outcome {
            windows: results.lock().unwrap().clone(),
            late: late.lock().unwrap().clone(),
            late_events: state.late_events(),
        }
    });
    outcomes.collect()
}

/// By event: the watermark of its source before its batch. The watermark at the windows may be less, and is never
/// more.
fn watermarks_before(sources: &[Vec<Batch>], bound_ms: u64) -> BTreeMap<Event, i64> {
    let mut before = BTreeMap::new();
    for batches in sources {
        let mut watermark = i64::MIN;
        for batch in batches {
            before.extend(batch.0.iter().map(|event| (*event, watermark)));
            watermark = watermark.max(batch.latest().0.saturating_sub(bound_ms as i64));
        }
    }
    before
}

/// Each window with the events that lie in it, by its start.
fn model(events: &[Event], size_ms: i64, slide_ms: i64) -> BTreeMap<i64, Vec<Event>> {
    let mut windows: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
    for event in events {
        let last = event.0.div_euclid(slide_ms) * slide_ms;
        let starts = (0..).map(|n| last - n * slide_ms);
        for start in starts.take_while(|start| start + size_ms > event.0) {
            windows.entry(start).or_default().push(*event);
        }
    }
    windows
}

fn check(
    outcome: Outcome,
    sources: &[Vec<Batch>],
    (size_ms, slide_ms): (i64, i64),
    bound_ms: u64,
    lateness: i64,
) {
    let windows = Windows::sliding(size_ms, slide_ms).allowed_lateness(lateness);
    assert_eq!(outcome.late_events, outcome.late.len() as u64);
    let watermarks = watermarks_before(sources, bound_ms);
    for event in &outcome.late {
        let (time, watermark) = (Timestamp(event.0), Timestamp(watermarks[event]));
        assert!(windows.is_late(time, watermark), "{event:?} came in time");
    }
    let mut in_time: Vec<Event> = Vec::new();
    for batch in sources.iter().flatten() {
        let is_in_time = |event: &&Event| !outcome.late.contains(event);
        in_time.extend(batch.0.iter().filter(is_in_time));
    }
    let mut settled: BTreeMap<i64, Vec<Event>> = BTreeMap::new();
    let mut released_to = i64::MIN;
    for (start, end, count, events) in outcome.windows {
        let is_update = settled.contains_key(&start);
        assert!(lateness > 0 || !is_update, "a window is given once");
        assert!(
            lateness > 0 || start > released_to,
            "windows come in their order"
        );
        released_to = start;
        assert_eq!((end - start, count), (size_ms, events.len() as u64));
        for source in 0..sources.len() {
            let numbers = events.iter().filter(|event| event.1 == source);
            assert!(numbers.map(|event| event.2).is_sorted(), "in their order");
        }
        let mut events = events;
        events.sort_unstable();
        let former = settled.insert(start, events).unwrap_or_default();
        let stays = |event| settled[&start].contains(event);
        assert!(
            former.iter().all(stays),
            "an update has all events of the earlier result"
        );
    }
    let mut expected = model(&in_time, size_ms, slide_ms);
    for (start, events) in &settled {
        let mut left = expected.remove(start).expect("a window with events");
        left.retain(|event| !events.contains(event));
        assert!(left.iter().all(|event| in_time.contains(event)));
        check_left_out(&left, start + size_ms + lateness, &watermarks);
    }
    for (start, left) in expected {
        check_left_out(&left, start + size_ms + lateness, &watermarks);
    }
    // Each event is in the last of its windows at least.
    for event in &in_time {
        let last = event.0.div_euclid(slide_ms) * slide_ms;
        assert!(settled[&last].contains(event), "{event:?} is nowhere");
    }
}

/// Only events that came when a window was `closed` are not in it.
fn check_left_out(left: &[Event], closed: i64, watermarks: &BTreeMap<Event, i64>) {
    for event in left {
        assert!(closed <= watermarks[event], "{event:?} came in time");
    }
}

/// Sources whose times advance, more or less, in batches of any size.
fn sources() -> impl Strategy<Value = Vec<Vec<Batch>>> {
    let event = (0i64..4, -60i64..60);
    let batch = prop::collection::vec(event, 0..12);
    let source = prop::collection::vec(batch, 0..60);
    prop::collection::vec(source, 1..4).prop_map(|sources| {
        let batches = |(source, batches): (usize, Vec<Vec<(i64, i64)>>)| {
            let (mut now, mut number) = (-300, 0);
            let mut event = |(step, disorder)| {
                now += step;
                number += 1;
                (now + disorder, source, number)
            };
            let mut batch = |events: Vec<_>| Batch(events.into_iter().map(&mut event).collect());
            batches.into_iter().map(&mut batch).collect()
        };
        sources.into_iter().enumerate().map(batches).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn each_window_has_exactly_its_events(
        sources in sources(),
        size_ms in 1i64..200,
        slides in (1i64..200, 1i64..200),
        bound_ms in 0u64..150,
        workers in 1usize..4,
        lateness in prop_oneof![Just(0), 1i64..100],
    ) {
        let sizes = [
            (size_ms, size_ms),
            (size_ms, slides.0.min(size_ms)),
            (slides.1, slides.1.min(7)),
        ];
        let windows = sizes.map(|(size_ms, slide_ms)| match size_ms == slide_ms {
            true => Windows::tumbling(size_ms).allowed_lateness(lateness),
            false => Windows::sliding(size_ms, slide_ms).allowed_lateness(lateness),
        });
        let outcomes = run(&sources, &windows, bound_ms, settings(workers, 7));
        for (outcome, sizes) in outcomes.into_iter().zip(sizes) {
            if bound_ms >= 120 {
                prop_assert_eq!(outcome.late_events, 0, "disorder is within the bound");
            }
            check(outcome, &sources, sizes, bound_ms, lateness);
        }
    }
}

fn batch(times: impl IntoIterator<Item = i64>) -> Batch {
    let event = |(number, time)| (time, 0, number);
    Batch(times.into_iter().enumerate().map(event).collect())
}

#[test]
fn an_event_is_late_when_all_of_its_windows_are_closed() {
    let batches = [batch([5, 95]), batch([105]), batch([4, 15, 106])];
    let hand = Hand::default();
    let flow = Flow::with_settings("late", settings(2, 8));
    let state = flow.collected("recent", Windows::sliding(100, 10));
    let late_events = flow.channel("late");
    let (sink, windows) = Collect::new();
    let (late_sink, late) = Collect::new();
    flow.source("events", hand.clone())
        .map(move |number| batches[*number as usize].clone())
        .watermarks(Batch::latest, disorder(0))
        .over(&state)
        .late_to(&late_events, |event| (event.0, event.0, 1, vec![*event]))
        .collect("windows", |event| Timestamp(event.0))
        .flat_map(window)
        .sink("sink", sink);
    flow.stage("late", &late_events)
        .sink("late sink", late_sink);
    let running = flow.run().unwrap();
    hand.give([0, 1]);
    wait_until("the window up to 100 is over", || {
        windows.lock().unwrap().iter().any(|window| window.1 == 100)
    });
    hand.give([2]);
    hand.end();
    running.join().unwrap();
    assert_eq!(*late.lock().unwrap(), [(4, 4, 1, vec![(4, 0, 0)])]);
    assert_eq!(state.late_events(), 1);
    let windows = windows.lock().unwrap();
    let of_10 = windows.iter().find(|window| window.0 == 10).unwrap();
    assert_eq!(of_10.3, [(95, 0, 1), (105, 0, 0), (15, 0, 1), (106, 0, 2)]);
    let of_0 = windows.iter().find(|window| window.0 == 0).unwrap();
    assert_eq!(of_0.3, [(5, 0, 0), (95, 0, 1)]);
}

#[test]
fn a_window_is_emitted_again_with_its_late_events() {
    let batches = [batch([5, 15]), batch([25]), batch([6, 7]), batch([60])];
    let hand = Hand::default();
    let flow = Flow::with_settings("late", settings(2, 8));
    let state = flow.collected("recent", Windows::tumbling(10).allowed_lateness(20));
    let (sink, windows) = Collect::new();
    flow.source("events", hand.clone())
        .map(move |number| batches[*number as usize].clone())
        .watermarks(Batch::latest, disorder(0))
        .over(&state)
        .collect("windows", |event| Timestamp(event.0))
        .map(|window| (window.start.0, window.events, window.is_update))
        .sink("sink", sink);
    let running = flow.run().unwrap();
    hand.give([0, 1]);
    wait_until("two windows are over", || {
        windows.lock().unwrap().len() == 2
    });
    hand.give([2]);
    wait_until("one comes again, whatever time does", || {
        windows.lock().unwrap().len() == 3
    });
    hand.give([3]);
    wait_until("nothing is kept but the last", || state.open_events() == 1);
    hand.give([2]);
    wait_until("new events are late", || state.late_events() == 2);
    hand.end();
    running.join().unwrap();
    let expected = [
        (0, 1, false),
        (10, 1, false),
        (0, 3, true),
        (20, 1, false),
        (60, 1, false),
    ];
    assert_eq!(*windows.lock().unwrap(), expected);
}

#[test]
fn an_item_too_late_for_a_window_may_be_in_time_for_a_larger_one() {
    let batches = [batch([5, 105]), batch([15]), batch([1050])];
    let hand = Hand::default();
    let flow = Flow::with_settings("late", settings(2, 8));
    let state = flow.collected("recent", Windows::tumbling(100));
    let large = flow.windowed("large", Windows::tumbling(1000), Count);
    let late_events = flow.channel::<i64>("late");
    flow.source("events", hand.clone())
        .map(move |number| batches[*number as usize].clone())
        .watermarks(Batch::latest, disorder(0))
        .over(&state)
        .late_to(&late_events, |event| event.0)
        .collect("windows", |event| Timestamp(event.0))
        .sink("sink", Collect::new().0);
    flow.stage("late", &late_events)
        .aggregate("count late", &large, |time| Timestamp(*time))
        .sink("late sink", Collect::new().0);
    let running = flow.run().unwrap();
    hand.give([0]);
    wait_until("time goes on", || {
        running.metrics()[0].idle > 0 && state.open_events() == 1
    });
    hand.give([1]);
    wait_until("one comes late", || large.totals().open_events == 1);
    hand.give([2]);
    wait_until("the large window closes", || {
        large.totals().closed_windows == 1
    });
    hand.end();
    running.join().unwrap();
}

#[test]
fn events_with_extreme_timestamps_are_in_windows() {
    let sources = [vec![batch([i64::MIN, 0, i64::MAX]), batch([i64::MAX])]];
    let windows = [1, 3, 10_000].map(Windows::tumbling);
    for outcome in run(&sources, &windows, 0, settings(2, 8)) {
        let events: Vec<_> = outcome.windows.iter().map(|window| window.2).collect();
        assert_eq!((events, outcome.late_events), (vec![1, 1, 2], 0));
    }
    let windows = [
        Windows::sliding(3, 1),
        Windows::sliding(i64::MAX, i64::MAX - 1),
    ];
    for outcome in run(&sources, &windows, 0, settings(2, 8)) {
        assert!(
            outcome
                .windows
                .iter()
                .all(|window| window.2 == window.3.len() as u64)
        );
        assert_eq!(outcome.late_events, 0);
    }
}

/// An item of which one event is dated ahead made the chain retain all items that came after it.
#[test]
fn an_event_far_ahead_retains_only_its_own_item() {
    let flow = Flow::with_settings("ahead", settings(1, 64));
    let state = flow.collected("recent", Windows::sliding(20, 10));
    let most = Arc::new(AtomicUsize::new(0));
    let (seen, kept) = (Arc::clone(&most), state.clone());
    let (sink, windows) = Collect::new();
    let batches = Generator::new(|number| match number {
        3 => batch([3, 1_000_000]),
        _ => batch([number as i64]),
    });
    flow.source("events", batches.limit(5000))
        .watermarks(|batch| Timestamp(batch.0[0].0), disorder(0))
        .over(&state)
        .collect("windows", |event| Timestamp(event.0))
        .map(move |window| {
            seen.fetch_max(kept.kept_items() as usize, Ordering::Relaxed);
            (window.start.0, window.events)
        })
        .sink("sink", sink);
    flow.run().unwrap().join().unwrap();
    let windows = windows.lock().unwrap();
    let of_4000 = windows.iter().find(|window| window.0 == 4000);
    assert_eq!(of_4000, Some(&(4000, 20)));
    assert_eq!(windows.last(), Some(&(1_000_000, 1)));
    let most = most.load(Ordering::Relaxed);
    assert!(most < 500, "{most} items are kept");
}

#[test]
fn items_are_dropped_when_their_last_window_is_evaluated() {
    let made: Vec<Batch> = (0..1000)
        .map(|number| batch([number, number + 1]))
        .collect();
    let given = made.clone();
    let flow = Flow::with_settings("let go", settings(2, 8));
    let state = flow.collected("recent", Windows::sliding(50, 1));
    let sum = flow.partial::<u64>("sum");
    flow.source(
        "events",
        Generator::new(move |number| given[number as usize].clone()).limit(1000),
    )
    .watermarks(Batch::latest, disorder(0))
    .over(&state)
    .collect("windows", |event| Timestamp(event.0))
    .fold_local(&sum, |sum, window| *sum += window.events);
    let running = flow.run().unwrap();
    running.join().unwrap();
    drop(running);
    assert_eq!(sum.merged(), 2 * 50 * 1000);
    let held: usize = made.iter().map(|batch| Arc::strong_count(&batch.0)).sum();
    // One here, and one in the generator.
    assert!(held <= 2 * made.len(), "{held} handles are left");
}

#[test]
fn dropping_a_long_chain_of_items_does_not_overflow_the_stack() {
    let flow = Flow::with_settings("long", settings(1, 64));
    let state = flow.collected("all", Windows::tumbling(1_000_000));
    let sum = flow.partial::<u64>("sum");
    flow.source(
        "events",
        Generator::new(|number| batch([number as i64])).limit(300_000),
    )
    .watermarks(Batch::latest, disorder(0))
    .over(&state)
    .collect("windows", |event| Timestamp(event.0))
    .fold_local(&sum, |sum, window| *sum += window.events);
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), 300_000);
}

#[test]
fn a_flow_that_stops_leaves_its_windows_open() {
    let flow = Flow::with_settings("stops", settings(2, 64));
    let state = flow.collected("recent", Windows::tumbling(10_000));
    let sum = flow.partial::<u64>("sum");
    flow.source(
        "events",
        Generator::new(|number| batch([number as i64 / 10])),
    )
    .watermarks(Batch::latest, disorder(0))
    .over(&state)
    .collect("windows", |event| Timestamp(event.0))
    .fold_local(&sum, |sum, window| *sum += window.events);
    let running = flow.run().unwrap();
    wait_until("a window closes", || sum.merged() > 0);
    running.stop();
    let summary = running.join().unwrap();
    let reader = running.state("recent").unwrap();
    assert_eq!(reader.get("open_events").unwrap(), state.open_events());
    assert!(state.open_events() > 0);
    assert_eq!(
        state.open_events() + sum.merged(),
        summary.stages[0].items_in
    );
}

/// An event whose time panicked was counted in the windows of those before it.
#[test]
fn an_item_whose_time_function_panics_is_in_no_window() {
    let letters = Arc::new(Letters::default());
    let flow = Flow::with_settings(
        "panics",
        FlowSettings {
            dead_letters: Some(Arc::clone(&letters) as Arc<dyn DeadLetters>),
            ..settings(1, 8)
        },
    );
    let state = flow.collected("recent", Windows::tumbling(10));
    let (sink, windows) = Collect::new();
    let batches = Generator::new(|number| batch([number as i64, 5 * number as i64]));
    flow.source("events", batches.limit(8))
        .watermarks(|batch| Timestamp(batch.0[0].0), disorder(0))
        .over(&state)
        .collect("windows", |event| {
            assert!(event.0 != 15, "unlucky");
            Timestamp(event.0)
        })
        .flat_map(window)
        .sink("sink", sink);
    flow.run().unwrap().join().unwrap();
    let letters = letters.0.lock().unwrap();
    let [letter] = &letters[..] else {
        panic!("{letters:?}");
    };
    assert_eq!(letter.operator, "windows/0.collect".into());
    assert!(letter.error.contains("unlucky"), "{letter:?}");
    let windows = windows.lock().unwrap();
    assert!(
        windows
            .iter()
            .all(|window| window.2 == window.3.len() as u64)
    );
    assert_eq!(windows.iter().map(|window| window.2).sum::<u64>(), 14);
}

/// Plain numbers.
#[derive(Debug, Clone)]
struct Broken(u64);

impl Parts for Broken {
    type Part<'a> = u64;

    fn for_each_part(&self, mut visit: impl FnMut(&u64)) {
        visit(&self.0);
    }

    fn fault(&self) -> Option<BoxError> {
        (self.0 == 7).then(|| "the rest is torn off".into())
    }
}

#[test]
fn an_item_whose_parts_panic_fails_the_flow() {
    let flow = Flow::with_settings("broken", settings(2, 8));
    let state = flow.collected("recent", Windows::tumbling(10));
    let sum = flow.partial::<u64>("sum");
    flow.source("events", Generator::new(Broken).limit(20))
        .watermarks(|item| Timestamp(item.0 as i64), disorder(0))
        .over(&state)
        .collect("windows", |number| Timestamp(*number as i64))
        .fold_local(&sum, |sum, window| *sum += window.events);
    let error = flow.run().unwrap().join().unwrap_err().to_string();
    assert!(error.contains("the rest is torn off"), "{error}");
}

/// Windows have a time, too: windows of windows.
#[test]
fn watermarks_are_emitted_behind_the_windows_they_close() {
    let flow = Flow::with_settings("twice", settings(2, 8));
    let small = flow.collected("small", Windows::tumbling(10));
    let large = flow.collected("large", Windows::tumbling(100));
    let (sink, windows) = Collect::new();
    let batches = Generator::new(|number| batch([number as i64]));
    flow.source("events", batches.limit(1000))
        .watermarks(Batch::latest, disorder(0))
        .over(&small)
        .collect("small windows", |event| Timestamp(event.0))
        .map(|window| batch([window.start.0]))
        .over(&large)
        .collect("large windows", |event| Timestamp(event.0))
        .map(|window| (window.start.0, window.events))
        .sink("sink", sink);
    flow.run().unwrap().join().unwrap();
    let expected: Vec<_> = (0..10).map(|n| (100 * n, 10)).collect();
    assert_eq!(*windows.lock().unwrap(), expected);
    assert_eq!(large.late_events(), 0);
}

/// Many windows are over at once, and their reader is slow: they wait where they are.
#[test]
fn windows_are_emitted_once_their_channel_has_room() {
    let hand = Hand::default();
    let flow = Flow::with_settings("slow", settings(2, 8));
    let state = flow.collected("recent", Windows::sliding(10_000, 1));
    let batches = Generator::new(|number| batch([number as i64 * 100_000]));
    flow.source("events", batches.limit(2))
        .watermarks(Batch::latest, disorder(0))
        .over(&state)
        .collect("windows", |event| Timestamp(event.0))
        .map(|window| window.events)
        .sink("sink", hand.clone());
    let running = flow.run().unwrap();
    wait_until("a window comes", || {
        running
            .metrics()
            .iter()
            .any(|stage| stage.stage == "windows/results" && stage.items_in > 0)
    });
    assert!(state.open_events() > 0);
    hand.open();
    running.join().unwrap();
    assert_eq!(hand.taken(), vec![1; 20_000]);
}

#[test]
fn windows_without_watermarks_or_order_are_refused() {
    let build = |order, tells_time: bool| {
        let flow = Flow::with_settings(
            "refused",
            FlowSettings {
                order,
                ..settings(1, 8)
            },
        );
        let state = flow.collected("recent", Windows::tumbling(10));
        let sum = flow.partial::<u64>("sum");
        let batches = Generator::new(|number| batch([number as i64])).limit(10);
        let time = |event: &Event| Timestamp(event.0);
        let count = |sum: &mut u64, window: &WindowEvents<Batch>| *sum += window.events;
        match tells_time {
            true => flow
                .source("events", batches)
                .watermarks(Batch::latest, disorder(0))
                .over(&state)
                .collect("windows", time)
                .fold_local(&sum, count),
            false => flow
                .source("events", batches)
                .over(&state)
                .collect("windows", time)
                .fold_local(&sum, count),
        };
        flow.run().map(|_| ()).unwrap_err()
    };
    assert!(matches!(
        build(Order::Kept, false),
        FlowError::NoWatermarks { .. }
    ));
    assert!(matches!(
        build(Order::Free, true),
        FlowError::TimeWithoutOrder { .. }
    ));
}

#[test]
#[should_panic(expected = "tumbling or sliding windows alone")]
fn collecting_the_events_of_global_windows_is_refused() {
    Flow::new("global").collected("all", Windows::global(Trigger::every_events(2)));
}

/// Keeps nothing.
struct Nowhere;

impl Checkpoints for Nowhere {
    fn put(&self, _: ShardKey, _: &[u8]) -> Result<(), BoxError> {
        Err("there is no room".into())
    }

    fn get(&self, _: ShardKey) -> Result<Vec<u8>, BoxError> {
        Err("nothing is there".into())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(Vec::new())
    }

    fn remove(&self, _: ShardKey) -> Result<(), BoxError> {
        Ok(())
    }
}

#[test]
fn a_flow_with_collected_windows_refuses_checkpoints() {
    let checkpoints = Some(Checkpointing {
        store: Arc::new(Nowhere),
        interval: Some(Duration::from_millis(1)),
        resume: Resume::Never,
    });
    let flow = Flow::with_settings(
        "not kept",
        FlowSettings {
            checkpoints,
            ..settings(1, 8)
        },
    );
    let state = flow.collected("recent", Windows::tumbling(10));
    let sum = flow.partial::<u64>("sum");
    flow.source("events", Generator::new(|number| batch([number as i64])))
        .watermarks(Batch::latest, disorder(0))
        .over(&state)
        .collect("windows", |event| Timestamp(event.0))
        .fold_local(&sum, |sum, window| *sum += window.events);
    let error = flow.run().err().unwrap().to_string();
    assert!(
        error.contains("\"recent\"") && error.contains("no checkpoint"),
        "{error}"
    );
}
