//! Count windows: the last 10,240 events of a key, or of all, after each event.

use std::collections::VecDeque;
use std::hint::black_box;
use std::num::NonZeroUsize;

use anyhow::{Result, ensure};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Aggregate as _, Combine as _, Min, Sum};
use millstream_flow::{Flow, FlowSettings};

use crate::measure::{Bench, Took, cpu_median, ended, median, time};
use crate::report::{Better, Case};

pub const COUNT: &str = "count";

const SIZE: u64 = 10_240;

/// The slide, the number of keys, and whether the flow has no keys.
const GRID: [(u64, u64, bool); 4] = [
    (1, 1, true),
    (1, 1, false),
    (1, 100, false),
    (SIZE, 100, false),
];

/// The amount of an event: its number, scattered.
fn amount(number: &u64) -> i64 {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as i64
}

/// Count windows beside a loop by hand over one key, and beside another one that aggregates each window from scratch.
pub fn count(bench: &Bench) -> Result<Vec<Case>> {
    let events = bench.size(3_000_000, 40_000);
    // Each of them costs a look at the whole window.
    let from_scratch_events = events / 30;
    let rounds = bench.turns(GRID.len() + 2, |place| match GRID.get(place) {
        Some((slide, keys, is_over_all)) => flow(events, *slide, *keys, *is_over_all),
        None if place == GRID.len() => time(|| by_hand(events)),
        None => time(|| from_scratch(from_scratch_events)),
    })?;
    let rates = |place: usize, events: u64| -> Vec<f64> {
        let millions = events as f64 / 1e6;
        let rounds = rounds[place].iter();
        rounds.map(|took: &Took| millions / took.seconds).collect()
    };
    let by_hand = rates(GRID.len(), events);
    let from_scratch = rates(GRID.len() + 1, from_scratch_events);
    let cases = GRID.iter().enumerate().map(|(place, grid)| {
        let (slide, keys, is_over_all) = grid;
        let of = match (is_over_all, keys) {
            (true, _) => "all".to_owned(),
            (false, 1) => "1-key".to_owned(),
            (false, keys) => format!("{keys}-keys"),
        };
        let name = format!("{COUNT}/{SIZE}-by-{slide}/{of}");
        let case = Case::new(name, "M events/s", Better::Higher, rates(place, events));
        let case = match slide {
            1 => case
                .by_hand(by_hand.clone())
                .peer("from scratch", median(&from_scratch)),
            _ => case,
        };
        case.detail("cpu_s", cpu_median(&rounds[place]))
    });
    Ok(cases.collect())
}

fn flow(events: u64, slide: u64, keys: u64, is_over_all: bool) -> Result<Took> {
    let settings = FlowSettings {
        workers: NonZeroUsize::MIN.saturating_add(1),
        ..FlowSettings::default()
    };
    time(|| {
        let flow = Flow::with_settings("counts", settings);
        let windows = flow.partial::<u64>("windows");
        let source = flow.source("events", Generator::new(|number| number).limit(events));
        let aggregate = (Sum::of(amount), Min::of(amount));
        match is_over_all {
            true => source
                .count_windows("recent", SIZE, slide, aggregate)
                .fold_local(&windows, |windows, _| *windows += 1),
            false => source
                .key_by(move |number| number % keys)
                .count_windows("recent", SIZE, slide, aggregate)
                .fold_local(&windows, |windows, _| *windows += 1),
        };
        ended(&flow.run()?)?;
        let expected: u64 = (0..keys)
            .map(|key| (events / keys + u64::from(key < events % keys)) / slide)
            .sum();
        let windows = windows.merged();
        ensure!(windows == expected, "{windows} windows of {expected}");
        Ok(())
    })
}

/// The sum and the least of some amounts.
type Totals = (i64, i64);

const NOTHING: Totals = (0, i64::MAX);

fn merge(one: Totals, other: Totals) -> Totals {
    (one.0 + other.0, one.1.min(other.1))
}

/// A loop with two stacks over the events of one key.
fn by_hand(events: u64) -> Result<()> {
    let (mut front, mut back): (Vec<Totals>, Vec<i64>) = (Vec::new(), Vec::new());
    let mut back_total = NOTHING;
    let mut last = NOTHING;
    for number in 0..events {
        if number >= SIZE {
            if front.is_empty() {
                back_total = NOTHING;
                for amount in back.drain(..).rev() {
                    let newer = front.last().copied().unwrap_or(NOTHING);
                    front.push(merge(newer, (amount, amount)));
                }
            }
            front.pop();
        }
        let amount = amount(&number);
        back.push(amount);
        back_total = merge(back_total, (amount, amount));
        let older = front.last().copied().unwrap_or(NOTHING);
        last = black_box(merge(older, back_total));
    }
    check(last, events)
}

/// A loop that looks at all events of a window whenever one comes.
fn from_scratch(events: u64) -> Result<()> {
    let mut window = VecDeque::new();
    let mut last = NOTHING;
    for number in 0..events {
        if number >= SIZE {
            window.pop_front();
        }
        window.push_back(amount(&number));
        let all = window.iter().map(|amount| (*amount, *amount));
        last = black_box(all.fold(NOTHING, merge));
    }
    check(last, events)
}

/// Compares the last window with that of the aggregates.
fn check(last: Totals, events: u64) -> Result<()> {
    let aggregate = (Sum::of(amount), Min::of(amount));
    let mut state = aggregate.empty();
    for number in events.saturating_sub(SIZE)..events {
        aggregate.add(&mut state, &number);
    }
    let expected = aggregate.result(&state, SIZE);
    ensure!(
        (last.0, Some(last.1)) == expected,
        "{last:?} is not {expected:?}"
    );
    Ok(())
}
