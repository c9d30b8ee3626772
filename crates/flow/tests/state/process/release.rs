//! When timers fire, and how many at once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::{Emit, Flow, FlowError, Watermarks};

use super::{CHAINED, Command, EVENT, Firing, World};
use crate::support::{Collect, Hand, settings, wait_until};

fn set(time: i64, tag: u64) -> Command {
    Command::Set(EVENT, time, tag)
}

#[test]
fn timers_fire_by_time_then_key_then_tag() {
    let world = World::start(settings(1, 64)).unwrap();
    world.give_and_wait([set(7, 1), set(5, 2), set(5, 2), set(5, 1), set(9, 0)]);
    world.give([(3, set(5, 0)), (1, set(6, 9)), (2, set(6, 3))]);
    world.give_and_wait([Command::Tick(8)]);
    let expected: [Firing; 6] = [
        (0, EVENT, 5, 1),
        (0, EVENT, 5, 2),
        (3, EVENT, 5, 0),
        (1, EVENT, 6, 9),
        (2, EVENT, 6, 3),
        (0, EVENT, 7, 1),
    ];
    world.wait_until_fired(&expected);
    world.hand.end();
    world.running.join().unwrap();
    assert_eq!(world.fired().len(), 7);
}

#[test]
fn timers_of_the_past_fire_at_once_and_those_at_the_end_of_time_at_the_end_of_the_input() {
    let world = World::start(settings(1, 64)).unwrap();
    world.give_and_wait([
        set(i64::MIN, 1),
        set(i64::MAX, 2),
        set(i64::MAX - 1, 3),
        set(0, 4),
    ]);
    world.wait_until_fired(&[(0, EVENT, i64::MIN, 1)]);
    // In the year 292278994, and the last time that a watermark may have.
    world.give_and_wait([Command::Tick(i64::MAX - 2)]);
    let mut expected = vec![(0, EVENT, i64::MIN, 1), (0, EVENT, 0, 4)];
    world.wait_until_fired(&expected);
    world.give_and_wait([set(7, 5)]);
    expected.push((0, EVENT, 7, 5));
    world.wait_until_fired(&expected);
    world.give_and_wait([Command::Tick(i64::MAX)]);
    expected.push((0, EVENT, i64::MAX - 1, 3));
    world.wait_until_fired(&expected);
    world.hand.end();
    world.running.join().unwrap();
    expected.push((0, EVENT, i64::MAX, 2));
    assert_eq!(world.fired(), expected);
}

#[test]
fn a_flow_that_is_stopped_leaves_timers_set() {
    let world = World::start(settings(2, 64)).unwrap();
    world.give_and_wait([set(i64::MAX, 1), set(5, 2), set(100, 3), Command::Tick(10)]);
    world.wait_until_fired(&[(0, EVENT, 5, 2)]);
    world.running.stop();
    assert!(world.running.join().unwrap().is_stopped);
    assert_eq!(world.fired(), [(0, EVENT, 5, 2)]);
    assert_eq!(world.timers.len(), 2);
    assert!(world.timers.is_set(EVENT, Timestamp(100), &0, &3));
    assert!(!world.timers.is_set(EVENT, Timestamp(5), &0, &2));
}

#[test]
fn the_end_fires_timers_that_timers_set() {
    let world = World::start(settings(2, 64)).unwrap();
    world.give_and_wait((0..CHAINED).map(|tag| set(50, 5 * CHAINED + tag)));
    world.hand.end();
    world.running.join().unwrap();
    // Each leads to five others, one after the other.
    assert_eq!(world.fired().len() as u64, 6 * CHAINED);
    assert!(world.timers.is_empty());
}

/// A million timers at one moment, with one worker: the other source's items pass in between.
#[test]
fn a_million_timers_at_one_moment_do_not_hold_up_other_stages() {
    const KEYS: u64 = 100;
    const TIMERS: u64 = 1_000_000;
    let flow = Flow::with_settings("million", settings(1, 1 << 12));
    let counts = flow.values::<u64, u64>("counts");
    let timers = flow.timers::<u64, u64>("timers");
    let fired = Arc::new(AtomicU64::new(0));
    let others = flow.values::<u64, u64>("others");
    let (keys, numbers) = (Hand::default(), Hand::default());
    let counted = Arc::clone(&fired);
    flow.source("keys", keys.clone())
        .watermarks(
            |number| Timestamp(if *number < KEYS { 0 } else { 1_000 }),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|number| *number)
        .process(
            "set",
            &counts,
            &timers,
            |key, _, timers, _, _: &mut Emit<'_, u64>| {
                for tag in (0..TIMERS / KEYS).filter(|_| *key < KEYS) {
                    timers.set_event(Timestamp(500), &tag);
                }
            },
            move |_, count, _, _, _| {
                *count.get_or_insert_default() += 1;
                counted.fetch_add(1, Ordering::Relaxed);
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    flow.source("numbers", numbers.clone())
        .key_by(|number| *number)
        .count("count", &others);
    let running = flow.run().unwrap();
    keys.give(0..KEYS);
    wait_until("all are set", || {
        timers.is_set(EVENT, Timestamp(500), &(KEYS - 1), &0)
    });
    assert_eq!(fired.load(Ordering::Relaxed), 0);
    keys.give([KEYS]);
    wait_until("timers fire", || fired.load(Ordering::Relaxed) > 0);
    for number in 0..10 {
        numbers.give([number]);
        wait_until("others are counted", || others.get(&number).is_some());
    }
    let before_the_end = fired.load(Ordering::Relaxed);
    assert!(before_the_end < TIMERS, "{before_the_end}");
    wait_until("all have fired", || fired.load(Ordering::Relaxed) == TIMERS);
    assert!((0..KEYS).all(|key| counts.get(&key) == Some(TIMERS / KEYS)));
    keys.end();
    numbers.end();
    let summary = running.join().unwrap();
    assert_eq!(summary.lost_wakeups, 0);
    assert_eq!(fired.load(Ordering::Relaxed), TIMERS);
}

#[test]
fn a_function_that_always_sets_a_timer_in_the_past_does_not_hold_a_flow_that_is_stopped() {
    let flow = Flow::with_settings("endless", settings(1, 64));
    let counts = flow.values::<u64, u64>("counts");
    let timers = flow.timers::<u64, ()>("timers");
    let (hand, others) = (Hand::default(), Hand::default());
    let (sink, collected) = Collect::new();
    flow.source("numbers", hand.clone())
        .watermarks(
            |number| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|_| 0)
        .process(
            "set",
            &counts,
            &timers,
            |_, _, timers, _, _: &mut Emit<'_, u64>| {
                timers.set_event(Timestamp(-1), &());
            },
            |_, count, timers, fired, _| {
                *count.get_or_insert_default() += 1;
                timers.set_event(fired.time, &());
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    flow.source("others", others.clone())
        .boundary("pass")
        .sink("collect", sink);
    let running = flow.run().unwrap();
    hand.give([5, 6, 7]);
    let count = || counts.get(&0).unwrap_or(0);
    wait_until("it fires again and again", || count() > 1_000);
    hand.give(8..100);
    others.give(0..100);
    wait_until("other stages go on", || {
        collected.lock().unwrap().len() == 100
    });
    assert_eq!(timers.len(), 1);
    running.stop();
    assert!(running.join().unwrap().is_stopped);
    assert_eq!(timers.len(), 1);
}

/// Items behind the watermark were processed first, and one that cancelled a timer took it away for good.
#[test]
fn a_flow_that_is_stopped_in_a_release_fires_its_timers_before_the_items_behind_them() {
    const KEYS: u64 = 1_000;
    // Items of these kinds have the numbers `kind * KEYS + key`.
    const TIMES: [i64; 5] = [0, 10, 10, 20, 20];
    let flow = Flow::with_settings("stopped", settings(2, 64));
    let counts = flow.values::<u64, u64>("counts");
    let timers = flow.timers::<u64, ()>("timers");
    let (hand, gate) = (Hand::default(), Arc::new(Mutex::new(())));
    let (read, fired) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (reads, opened, fires) = (Arc::clone(&read), Arc::clone(&gate), Arc::clone(&fired));
    flow.source("numbers", hand.clone())
        .map(move |number| {
            reads.fetch_add(1, Ordering::Relaxed);
            *number
        })
        .watermarks(
            |number| Timestamp(TIMES[(*number / KEYS) as usize]),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|number| number % KEYS)
        .process(
            "set",
            &counts,
            &timers,
            |_, _, timers, number, _: &mut Emit<'_, u64>| {
                match number / KEYS {
                    0 => timers.set_event(Timestamp(5), &()),
                    2 => timers.cancel_event(Timestamp(5), &()),
                    4 => timers.cancel_event(Timestamp(15), &()),
                    _ => false,
                };
            },
            move |_, _, timers, timer, _| {
                fires.fetch_add(1, Ordering::Relaxed);
                drop(opened.lock());
                if timer.time == Timestamp(5) {
                    timers.set_event(Timestamp(15), &());
                }
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let running = flow.run().unwrap();
    hand.give(0..KEYS);
    wait_until("all are set", || timers.len() as u64 == KEYS);
    let closed = gate.lock().unwrap();
    hand.give([KEYS]);
    wait_until("timers fire", || fired.load(Ordering::Relaxed) > 0);
    let mut given = KEYS + 1;
    for kind in 2..TIMES.len() as u64 {
        let keys = kind * KEYS + 900..kind * KEYS + 916;
        given += 16;
        hand.give(keys);
        wait_until("the items wait", || read.load(Ordering::Relaxed) == given);
    }
    running.stop();
    drop(closed);
    assert!(running.join().unwrap().is_stopped);
    assert_eq!(fired.load(Ordering::Relaxed), 2 * KEYS);
    assert!(timers.is_empty());
}

#[test]
fn a_panic_in_the_function_of_a_timer_fails_the_flow() {
    let flow = Flow::with_settings("numbers", settings(1, 64));
    let counts = flow.values::<u64, u64>("counts");
    let timers = flow.timers::<u64, u64>("timers");
    let hand = Hand::default();
    flow.source("numbers", hand.clone())
        .key_by(|number| *number)
        .process(
            "set",
            &counts,
            &timers,
            |_, _, timers, number, _: &mut Emit<'_, u64>| {
                timers.set_event(Timestamp(5), number);
            },
            |_, _, _, fired, _| assert!(fired.tag != 3, "not {}", fired.tag),
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    let running = flow.run().unwrap();
    hand.give(0..5);
    hand.end();
    let error = running.join().unwrap_err().to_string();
    assert_eq!(error, "flow \"numbers\": \"set/0.process\" panicked: not 3");
}

#[test]
fn operators_share_no_timers_and_sources_either_all_emit_watermarks_or_none() {
    let build = |second_has_watermarks: bool, shares: bool| {
        let flow = Flow::with_settings("shared", settings(1, 64));
        let counts = flow.values::<u64, u64>("counts");
        let timers = flow.timers::<u64, ()>("timers");
        let others = flow.timers::<u64, ()>("others");
        let channel = flow.channel::<u64>("all");
        let time = |number: &u64| Timestamp(*number as i64);
        let watermarks = Watermarks::bounded(Duration::ZERO);
        flow.source("first", Hand::default())
            .watermarks(time, watermarks)
            .to(&channel);
        let second = flow.source("second", Hand::default());
        match second_has_watermarks {
            true => second.watermarks(time, watermarks).to(&channel),
            false => second.to(&channel),
        };
        let mut numbers = flow
            .stage("all", &channel)
            .key_by(|number| *number)
            .process(
                "one",
                &counts,
                &timers,
                |_, _, _, number, emit: &mut Emit<'_, u64>| emit(number),
                |_, _, _, _, _| (),
            );
        let timers = if shares { &timers } else { &others };
        numbers = numbers.key_by(|number| *number).process(
            "two",
            &counts,
            timers,
            |_, _, _, number, emit: &mut Emit<'_, u64>| emit(number),
            |_, _, _, _, _| (),
        );
        numbers.fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
        flow.run().map(|running| running.stop())
    };
    assert!(build(true, false).is_ok());
    let error = build(true, true).unwrap_err();
    assert!(
        matches!(&error, FlowError::Elements { operator, .. } if operator == "two"),
        "{error}"
    );
    let error = build(false, false).unwrap_err();
    assert!(
        matches!(&error, FlowError::NoWatermarks { source_stage, .. } if source_stage == "second"),
        "{error}"
    );
}
