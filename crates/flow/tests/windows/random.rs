//! Random out-of-order items, spread over instances and partitions in random ways.

use proptest::prelude::*;

use crate::model::{self, Spec};
use crate::plant::Plant;

#[derive(Debug, Clone)]
enum Step {
    /// An item so far behind or ahead of the last one.
    Read {
        instance: usize,
        key: u8,
        step: i64,
    },
    /// An item anywhere in time.
    Stray {
        instance: usize,
        key: u8,
        time: i64,
    },
    Flush {
        instance: usize,
        everything: bool,
    },
    SayWatermark {
        instance: usize,
    },
    Deliver {
        partition: usize,
        instance: usize,
        count: usize,
    },
    Repartition {
        count: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..12_usize;
    let read = (index.clone(), 0..6_u8, -40..60_i64).prop_map(|(instance, key, step)| Step::Read {
        instance,
        key,
        step,
    });
    let edge = prop_oneof![
        i64::MIN..i64::MIN + 100,
        i64::MAX - 100..=i64::MAX,
        -1_000_000..1_000_000_i64
    ];
    let stray = (index.clone(), 0..6_u8, edge).prop_map(|(instance, key, time)| Step::Stray {
        instance,
        key,
        time,
    });
    let flush = (index.clone(), any::<bool>()).prop_map(|(instance, everything)| Step::Flush {
        instance,
        everything,
    });
    let deliver =
        (index.clone(), index.clone(), 1..20_usize).prop_map(|(partition, instance, count)| {
            Step::Deliver {
                partition,
                instance,
                count,
            }
        });
    prop_oneof![
        600 => read,
        2 => stray,
        60 => flush,
        80 => index.prop_map(|instance| Step::SayWatermark { instance }),
        200 => deliver,
        8 => (1..4_usize).prop_map(|count| Step::Repartition { count }),
    ]
}

fn agrees(
    (spec, lateness): (Spec, i64),
    start: i64,
    bound_ms: i64,
    places: (usize, usize),
    steps: &[Step],
) {
    let mut plant = Plant::new((spec, lateness), bound_ms, places.0, places.1);
    let mut time = start;
    for step in steps {
        match *step {
            Step::Read {
                instance,
                key,
                step,
            } => {
                time = time.saturating_add(step);
                plant.read(instance, key, time);
            }
            Step::Stray {
                instance,
                key,
                time,
            } => plant.read(instance, key, time),
            Step::Flush {
                instance,
                everything,
            } => plant.flush(instance, everything),
            Step::SayWatermark { instance } => plant.say_watermark(instance),
            Step::Deliver {
                partition,
                instance,
                count,
            } => {
                plant.deliver(partition, instance, count);
            }
            Step::Repartition { count } => plant.repartition(count),
        }
    }
    let given = plant.finish();
    let (results, late) = model::run(spec, lateness, &plant.items);
    assert_eq!(plant.late, late, "which items are late");
    for (given, expected) in given.iter().zip(&results) {
        assert_eq!(given, expected);
    }
    assert_eq!(given.len(), results.len());
}

/// Around 1970, or at one of the edges of time.
fn start() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -500..500_i64, 1 => Just(i64::MIN), 1 => Just(i64::MAX - 700)]
}

fn run(spec: impl Strategy<Value = Spec>) {
    let places = (1..4_usize, 1..4_usize);
    let steps = prop::collection::vec(step(), 0..250);
    let lateness = prop_oneof![2 => Just(0), 3 => 1..200_i64, 1 => Just(i64::MAX)];
    let spec = (spec, lateness);
    let inputs = (spec, start(), 0..120_i64, places, steps);
    let config = ProptestConfig::with_cases(150);
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let outcome = runner.run(&inputs, |(spec, start, bound_ms, places, steps)| {
        agrees(spec, start, bound_ms, places, &steps);
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn tumbling_windows_equal_the_model() {
    run((1..80_i64).prop_map(|size| Spec::Tumbling { size }));
}

#[test]
fn sliding_windows_equal_the_model() {
    run(
        (1..60_i64, 0..60_i64).prop_map(|(slide, more)| Spec::Sliding {
            size: slide + more,
            slide,
        }),
    );
}

#[test]
fn sessions_equal_the_model() {
    run((1..60_i64).prop_map(|gap| Spec::Session { gap }));
}

#[test]
fn a_global_window_by_event_time_equals_the_model() {
    run((1..80_i64, any::<bool>()).prop_map(|(period, purges)| Spec::Every { period, purges }));
}

/// A partition that had released windows of a key was joined with one that had not: an item of the key, late for that
/// window alone which had it, was left out of the windows in between.
#[test]
fn a_late_item_of_a_partition_that_was_ahead_is_in_all_of_its_windows() {
    let read = |key, step| Step::Read {
        instance: 0,
        key,
        step,
    };
    let say = || Step::SayWatermark { instance: 0 };
    let steps = [
        read(5, 0),
        read(2, 0),
        read(0, 15),
        read(0, -29),
        say(),
        read(2, 0),
        say(),
        read(5, 0),
        Step::Flush {
            instance: 0,
            everything: false,
        },
        Step::Deliver {
            partition: 2,
            instance: 0,
            count: 3,
        },
        Step::Repartition { count: 1 },
    ];
    let spec = Spec::Sliding { size: 50, slide: 1 };
    agrees((spec, 13), 0, 14, (1, 3), &steps);
}
