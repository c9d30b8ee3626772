//! Keys that are far hotter than others, and the items between ranks.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Flow, FlowSettings, StageMetrics, Watermarks};

use crate::support::{Collect, on_ranks, settings};

const KEYS: usize = 1000;
const SOURCES: u64 = 2;
const ITEMS: u64 = 200_000;
const WINDOW_MS: u64 = 50_000;

/// Keys as they come, by Zipf's law: key n with a probability of 1 / (n + 1)^exponent, nearly.
fn zipf(exponent: f64) -> impl Fn(u64) -> u32 + Clone {
    let weights = (1..=KEYS).map(|rank| (rank as f64).powf(-exponent));
    let mut sum = 0.0;
    let sums: Vec<f64> = weights
        .map(|weight| {
            sum += weight;
            sum
        })
        .collect();
    move |number| {
        // Multiplication by an odd number spreads numbers evenly.
        let random = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
        let point = random as f64 / (1u64 << 53) as f64 * sums[KEYS - 1];
        sums.partition_point(|sum| *sum < point) as u32
    }
}

#[test]
fn hot_keys_are_aggregated_on_all_instances_before_the_exchange() {
    const RANKS: u32 = 2;
    let key_of = zipf(1.5);
    let outcomes = on_ranks(RANKS, |ranks| {
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings(
            "skew",
            FlowSettings {
                ranks: ranks.clone(),
                ..settings(2, 1 << 12)
            },
        );
        let counts = flow.windowed("counts", Windows::tumbling(WINDOW_MS as i64), Count);
        let key_of = key_of.clone();
        flow.sources(
            "events",
            (0..SOURCES).map(|_| Generator::new(|number| number).limit(ITEMS)),
        )
        .watermarks(
            |number| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(move |number| key_of(*number))
        .aggregate("count", &counts, |number| Timestamp(*number as i64))
        .sink("results", sink);
        let summary = flow.run().unwrap().join().unwrap();
        let results = results.lock().unwrap().clone();
        (results, summary.stages, ranks.counters())
    });

    let mut expected = BTreeMap::new();
    for number in 0..ITEMS {
        let window = (number / WINDOW_MS * WINDOW_MS) as i64;
        let count: &mut u64 = expected.entry((key_of(number), window)).or_default();
        *count += SOURCES * u64::from(RANKS);
    }
    let mut found = BTreeMap::new();
    let items = ITEMS * SOURCES;
    for (results, stages, counters) in outcomes {
        for result in results {
            let former = found.insert((result.key, result.start.0), result.value);
            assert_eq!(former, None);
        }
        let items_in = |name: &str| {
            let is_it = |stage: &&StageMetrics| stage.stage == name;
            stages.iter().find(is_it).unwrap().items_in
        };
        assert_eq!(items_in("events"), items);
        let partials = items_in("count");
        assert!(
            partials < items / 10,
            "{partials} partial results came to the home of {items} items"
        );
        let messages: u64 = counters.sent.iter().map(|count| count.messages).sum();
        assert!(
            messages < items / 100,
            "{messages} messages for {items} items"
        );
    }
    assert_eq!(found, expected);
    let hot: u64 = found
        .iter()
        .filter(|((key, _), _)| *key == 0)
        .map(|(_, count)| count)
        .sum();
    assert!(
        hot > SOURCES * u64::from(RANKS) * ITEMS / 4,
        "{hot}: the key is hot"
    );
}

#[test]
fn items_of_keys_owned_by_the_local_rank_cost_no_message() {
    for home in [0, 1] {
        let bytes = on_ranks(2, |ranks| {
            let (sink, results) = Collect::new();
            let flow = Flow::with_settings(
                "local",
                FlowSettings {
                    ranks: ranks.clone(),
                    ..settings(2, 64)
                },
            );
            // Only rank 1 has items.
            let items = 1000 * u64::from(ranks.rank());
            flow.source("numbers", Generator::new(|number| number).limit(items))
                .watermarks(
                    |number| Timestamp(*number as i64),
                    Watermarks::bounded(Duration::ZERO),
                )
                .gather("gathered", home)
                .sink("results", sink);
            flow.run().unwrap().join().unwrap();
            let results = results.lock().unwrap().len() as u64;
            assert_eq!(results, if ranks.rank() == home { 1000 } else { 0 });
            let sent = ranks.counters().sent;
            sent.iter().map(|count| count.bytes).sum::<u64>()
        });
        // The end takes two bytes.
        let expected = |bytes: &[u64]| match home {
            0 => bytes[0] == 2 && bytes[1] > 1000,
            _ => bytes == [2, 2],
        };
        assert!(expected(&bytes), "{bytes:?}");
    }
}
