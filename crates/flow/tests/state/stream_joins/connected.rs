//! Two streams that are connected by key.

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::{Emit, Flow, FlowError, FlowSettings, Order, Side};

use super::{SHAPES, disorder, source};
use crate::support::{Collect, Hand, on_ranks, settings, wait_until};

/// The number of a source, and that of an item of it.
type Item = (u64, u64);

const ITEMS: u64 = 3_000;

#[test]
fn items_of_both_streams_meet_by_key_and_each_source_keeps_its_order() {
    for (ranks, workers, sources, ring) in SHAPES {
        let counts = on_ranks(ranks, |ranks: &Ranks| {
            let settings = FlowSettings {
                ranks: ranks.clone(),
                ..settings(workers, ring)
            };
            let flow = Flow::with_settings("connected", settings);
            // By key: of each side and source the last number, and the number of items.
            let last = flow.maps::<u64, (bool, u64), (u64, u64)>("last");
            let first_source = u64::from(ranks.rank()) * sources;
            let numbers = || {
                let numbers = first_source..first_source + sources;
                numbers.map(|it| source((0..ITEMS).map(|number| (it, number)).collect(), false))
            };
            // Half of all items have one key.
            let key = |(_, number): &Item| if number % 2 == 0 { 0 } else { number % 13 };
            let second = flow.sources("second", numbers()).key_by(key);
            flow.sources("first", numbers())
                .map(|item| *item)
                .key_by(key)
                .connect(second)
                .update(
                    "count",
                    &last,
                    |_, mut last, item: &Side<Item, Item>, emit: &mut Emit<'_, u64>| {
                        let (is_first, (source, number)) = match item {
                            Side::First(item) => (true, item),
                            Side::Second(item) => (false, item),
                        };
                        last.update(&(is_first, *source), |last| match last {
                            Some((last, count)) => {
                                assert!(*last < *number, "{last} before {number}");
                                (*last, *count) = (*number, *count + 1);
                            }
                            None => *last = Some((*number, 1)),
                        });
                        emit(number);
                    },
                )
                .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
            let running = flow.run().unwrap();
            running.join().unwrap();
            let keys = (0..13).map(|key| last.entries(&key));
            let counts = keys.flatten().map(|(_, (_, count))| count);
            counts.sum::<u64>()
        });
        let all: u64 = counts.iter().sum();
        assert_eq!(all, 2 * ITEMS * sources * u64::from(ranks));
    }
}

/// A timer of event time waits for the stream that stands still.
#[test]
fn the_watermark_is_that_of_the_slower_stream() {
    let flow = Flow::with_settings("connected", settings(2, 64));
    let counts = flow.values::<u64, u64>("counts");
    let timers = flow.timers::<u64, ()>("timers");
    let (sink, fired) = Collect::new();
    let [first, second] = [(); 2].map(|()| Hand::default());
    let time = |number: &u64| Timestamp(*number as i64);
    let seconds = flow
        .source("second", second.clone())
        .watermarks(time, disorder(0))
        .key_by(|number| number % 3);
    flow.source("first", first.clone())
        .watermarks(time, disorder(0))
        .key_by(|number| number % 3)
        .connect(seconds)
        .process(
            "time",
            &counts,
            &timers,
            |_, count, timers, item, _: &mut Emit<'_, i64>| {
                *count.get_or_insert_default() += 1;
                if let Side::First(number) = item {
                    timers.set_event(Timestamp(*number as i64), &());
                }
            },
            |_, _, timers, timer, emit| {
                assert!(timer.time <= timers.watermark());
                emit(&timer.time.0);
            },
        )
        .sink("fired", sink);
    let running = flow.run().unwrap();
    let count = || (0..3).filter_map(|key| counts.get(&key)).sum::<u64>();
    first.give([10, 20, 30, 40]);
    wait_until("all have come", || count() == 4);
    // Its watermark has passed the first timers, that of the second stream has not.
    assert!(fired.lock().unwrap().is_empty());
    second.give([25]);
    wait_until("timers fire", || fired.lock().unwrap().len() == 2);
    second.give([100]);
    wait_until("the first stream is the slower one", || {
        fired.lock().unwrap().len() == 4
    });
    first.end();
    second.end();
    running.join().unwrap();
    // Keys of different partitions fire in any order.
    let mut fired = fired.lock().unwrap().clone();
    fired.sort_unstable();
    assert_eq!(fired, [10, 20, 30, 40]);
}

#[test]
fn streams_of_different_flows_are_refused_by_both() {
    let [one, other] = ["one", "other"].map(|name| Flow::with_settings(name, settings(1, 16)));
    let counts = one.values::<u64, u64>("counts");
    let second = other
        .source("second", Hand::default())
        .key_by(|number| *number);
    let results = one
        .source("first", Hand::default())
        .key_by(|number| *number)
        .connect(second)
        .update("count", &counts, |_, _, _, _: &mut Emit<'_, u64>| ());
    let _ = results.fold_local(&one.partial::<u64>("nothing"), |_, _| ());
    for flow in [one, other] {
        let error = flow.run().map(drop).unwrap_err();
        assert!(matches!(error, FlowError::ForeignStream { .. }), "{error}");
    }
}

#[test]
fn a_connected_stream_without_an_operator_is_refused() {
    let flow = Flow::with_settings("open", settings(1, 16));
    let [first, second] =
        ["first", "second"].map(|name| flow.source(name, Hand::default()).key_by(|it| *it));
    drop(first.connect(second));
    let error = flow.run().map(drop).unwrap_err();
    assert!(matches!(error, FlowError::Unconnected { .. }), "{error}");
}

#[test]
fn streams_connect_where_items_overtake_each_other() {
    let settings = FlowSettings {
        order: Order::Free,
        ..settings(3, 16)
    };
    let flow = Flow::with_settings("free", settings);
    let sums = flow.values::<u64, u64>("sums");
    let numbers = |name: &str| flow.source(name, source((0..1_000).collect::<Vec<u64>>(), false));
    let second = numbers("second").key_by(|number| number % 5);
    numbers("first")
        .key_by(|number| number % 5)
        .connect(second)
        .update("add", &sums, |_, sum, item, _: &mut Emit<'_, u64>| {
            let (Side::First(number) | Side::Second(number)) = item;
            *sum.get_or_insert_default() += number;
        })
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    flow.run().unwrap().join().unwrap();
    let sum: u64 = (0..5).filter_map(|key| sums.get(&key)).sum();
    assert_eq!(sum, 2 * (0..1_000).sum::<u64>());
}
