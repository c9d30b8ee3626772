//! Sliding, session and global windows of a flow, on any number of ranks, against a dumb model.

use std::collections::BTreeMap;

use millstream_base::Timestamp;
use millstream_flow::windows::{Trigger, Windows};
use proptest::prelude::*;

use crate::support::settings;
use crate::windows::{Event, Outcome, run, run_on_ranks, settled, sources};

/// Key, start, end and number of items of a window.
type Window = (u32, i64, i64, u64);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Tumbling { size: i64 },
    Sliding { size: i64, slide: i64 },
    Session { gap: i64 },
    EveryMs { period: i64, purges: bool },
    EveryEvents { count: u64, purges: bool },
}

/// Start and end of the windows that hold `time`, the latest first.
fn windows_of(time: i64, size: i64, slide: i64) -> impl Iterator<Item = (i64, i64)> {
    let last = time.div_euclid(slide) * slide;
    let starts = (0..).map(move |number| last - number * slide);
    let starts = starts.take_while(move |start| start + size > time);
    starts.map(move |start| (start, start + size))
}

impl Kind {
    fn windows(self) -> Windows {
        let global = |trigger: Trigger, purges| {
            Windows::global(match purges {
                true => trigger.purging(),
                false => trigger,
            })
        };
        match self {
            Kind::Tumbling { size } => Windows::tumbling(size),
            Kind::Sliding { size, slide } => Windows::sliding(size, slide),
            Kind::Session { gap } => Windows::session(gap),
            Kind::EveryMs { period, purges } => global(Trigger::every_ms(period), purges),
            Kind::EveryEvents { count, purges } => global(Trigger::every_events(count), purges),
        }
    }

    /// Whether all windows of `time` end by `closed`.
    fn is_late(self, time: i64, closed: i64) -> bool {
        match self {
            Kind::Tumbling { size } => windows_of(time, size, size).all(|(_, end)| end <= closed),
            Kind::Sliding { size, slide } => {
                windows_of(time, size, slide).all(|(_, end)| end <= closed)
            }
            Kind::Session { gap } => time + gap <= closed,
            Kind::EveryMs { .. } | Kind::EveryEvents { .. } => false,
        }
    }

    /// The windows of one key whose items have these times, each with the watermark that its source had
    /// reached with it.
    fn of_key(self, lateness: i64, items: &[(i64, i64)]) -> Vec<(i64, i64, u64)> {
        let aligned = |size, slide| {
            let mut counts = BTreeMap::new();
            for (time, watermark) in items {
                for (start, end) in windows_of(*time, size, slide) {
                    if end > watermark - lateness {
                        *counts.entry((start, end)).or_default() += 1;
                    }
                }
            }
            let windows = counts.into_iter();
            windows
                .map(|((start, end), count)| (start, end, count))
                .collect()
        };
        match self {
            Kind::Tumbling { size } => aligned(size, size),
            Kind::Sliding { size, slide } => aligned(size, slide),
            Kind::Session { gap } => {
                let mut times: Vec<i64> = items.iter().map(|(time, _)| *time).collect();
                times.sort_unstable();
                let sessions = times.chunk_by(|before, after| after - before < gap);
                sessions
                    .map(|times| (times[0], times[times.len() - 1] + gap, times.len() as u64))
                    .collect()
            }
            Kind::EveryMs { period, purges } => {
                let mut counts: BTreeMap<i64, u64> = BTreeMap::new();
                for (time, watermark) in items {
                    let counts_at = *time.max(watermark);
                    *counts.entry(counts_at.div_euclid(period)).or_default() += 1;
                }
                let mut sum = 0;
                let windows = counts.into_iter().map(|(pane, count)| {
                    sum = if purges { count } else { sum + count };
                    (i64::MIN, (pane + 1) * period, sum)
                });
                windows.collect()
            }
            Kind::EveryEvents { count, purges } => {
                let all = items.len() as u64;
                let results = (1..=all).filter(|number| number % count == 0 || *number == all);
                let value = |number: u64| match (purges, number % count) {
                    (true, 0) => count,
                    (true, rest) => rest,
                    (false, _) => number,
                };
                results
                    .map(|number| (i64::MIN, i64::MAX, value(number)))
                    .collect()
            }
        }
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (1i64..100).prop_map(|size| Kind::Tumbling { size }),
        (1i64..60, 1i64..60).prop_map(|(a, b)| Kind::Sliding {
            size: a.max(b),
            slide: a.min(b),
        }),
        (1i64..100).prop_map(|gap| Kind::Session { gap }),
        (1i64..200, any::<bool>()).prop_map(|(period, purges)| Kind::EveryMs { period, purges }),
        (1u64..20, any::<bool>()).prop_map(|(count, purges)| Kind::EveryEvents { count, purges }),
    ]
}

/// The expected results, and the late items of each source.
fn model(
    (kind, lateness): (Kind, i64),
    sources: &[Vec<Event>],
    bound_ms: u64,
) -> (Vec<Window>, Vec<Event>) {
    let (mut items, mut late) = (BTreeMap::<u32, Vec<(i64, i64)>>::new(), Vec::new());
    for events in sources {
        let mut latest = i64::MIN;
        for (key, time) in events {
            latest = latest.max(*time);
            let watermark = latest - bound_ms as i64;
            match kind.is_late(*time, watermark - lateness) {
                true => late.push((*key, *time)),
                false => items.entry(*key).or_default().push((*time, watermark)),
            }
        }
    }
    let windows = items.into_iter().flat_map(|(key, items)| {
        let windows = kind.of_key(lateness, &items).into_iter();
        windows.map(move |(start, end, count)| (key, start, end, count))
    });
    let mut windows: Vec<_> = windows.collect();
    windows.sort_unstable();
    late.sort_unstable();
    (windows, late)
}

fn check(kind: (Kind, i64), mut outcome: Outcome, sources: &[Vec<Event>], bound_ms: u64) {
    let (windows, late) = model(kind, sources, bound_ms);
    let results = match kind {
        // Each count is another result.
        (Kind::EveryEvents { .. }, _) => outcome.results,
        _ => settled(&outcome.results),
    };
    let results = results.iter();
    let mut found: Vec<Window> = results
        .map(|result| {
            let (Timestamp(start), Timestamp(end)) = (result.start, result.end);
            (result.key, start, end, result.value)
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, windows);
    outcome.late.sort_unstable();
    assert_eq!(outcome.late, late);
    assert_eq!(outcome.late_events, late.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn windows_of_every_kind_equal_the_models(
        kind in kinds(),
        lateness in prop_oneof![Just(0), 1i64..1500],
        sources in sources(3),
        bound_ms in 0u64..2500,
        workers in 1usize..4,
    ) {
        let windows = kind.windows().allowed_lateness(lateness);
        let outcome = run(&sources, windows, bound_ms, settings(workers, 7));
        check((kind, lateness), outcome, &sources, bound_ms);
    }

    #[test]
    fn windows_of_every_kind_are_the_same_on_any_number_of_ranks(
        kind in kinds(),
        lateness in prop_oneof![Just(0), 1i64..1500],
        sources in sources(3),
        bound_ms in 0u64..2500,
        ranks in 1u32..5,
    ) {
        let windows = kind.windows().allowed_lateness(lateness);
        let outcome = run_on_ranks(ranks, &sources, windows, bound_ms);
        check((kind, lateness), outcome, &sources, bound_ms);
    }
}
