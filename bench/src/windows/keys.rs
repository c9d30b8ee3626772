//! Counts by few and by many keys over tumbling windows, beside a loop by hand over a hash map.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use hashbrown::HashMap;
use millstream_flow::windows::Windows;

use super::load::{INSTANCES, Load};
use crate::measure::{Bench, Took, cpu_median, time};
use crate::report::{Better, Case};

pub const KEYS: &str = "keys";

/// The numbers of keys. The largest set does not fit into a core's caches.
const GRID: [u64; 3] = [1, 1000, 1_000_000];

const WINDOW_MS: i64 = 1000;

/// Events of an instance in a millisecond of event time: each of a million keys has several in a window.
const EVENTS_PER_MS: u64 = 4000;

/// The target for flows with the most keys: their rate divided by that of the loop by hand.
const TARGET: f64 = 0.5;

pub fn keys(bench: &Bench) -> Result<Vec<Case>> {
    let load = |keys| Load {
        keys,
        events_per_ms: EVENTS_PER_MS,
        events: bench.size(6000, 100) * EVENTS_PER_MS,
    };
    let rounds = bench.turns(2 * GRID.len(), |place| {
        let load = load(GRID[place / 2]);
        match place % 2 {
            0 => load.count(Windows::tumbling(WINDOW_MS), 1),
            _ => time(|| by_hand(&load)),
        }
    })?;
    let cases = GRID.iter().enumerate().map(|(place, keys)| {
        let (ours, by_hand) = (&rounds[2 * place], &rounds[2 * place + 1]);
        let millions = (load(*keys).events * INSTANCES) as f64 / 1e6;
        let rates = |rounds: &[Took]| rounds.iter().map(|took| millions / took.seconds).collect();
        let case = Case::new(
            format!("{KEYS}/{keys}"),
            "M events/s",
            Better::Higher,
            rates(ours),
        );
        let case = case.by_hand(rates(by_hand));
        let case = match place + 1 == GRID.len() {
            true => case.target(TARGET),
            false => case,
        };
        case.detail("cpu_s", cpu_median(ours))
            .detail("cpu_by_hand_s", cpu_median(by_hand))
    });
    Ok(cases.collect())
}

/// Count and largest time of a key.
type Counts = HashMap<u32, (u64, i64)>;

/// In each of several threads a loop that counts; the last thread that comes behind a window sums up the counts of all.
fn by_hand(load: &Load) -> Result<()> {
    let open: Mutex<BTreeMap<i64, (Counts, u64)>> = Mutex::default();
    let counted = Mutex::new(0);
    let merge = |window: i64, counts: &mut Counts| {
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        let (sums, threads) = open.entry(window).or_default();
        *threads += 1;
        match sums.is_empty() {
            true => std::mem::swap(sums, counts),
            false => {
                for (key, (count, time)) in counts.drain() {
                    let sum = sums.entry(key).or_insert((0, i64::MIN));
                    sum.0 += count;
                    sum.1 = sum.1.max(time);
                }
            }
        }
        if *threads == INSTANCES
            && let Some((sums, _)) = open.remove(&window)
        {
            drop(open);
            let sum: u64 = sums.values().map(|(count, _)| count).sum();
            *counted.lock().unwrap_or_else(PoisonError::into_inner) += sum;
        }
    };
    let count = || {
        let mut counts = Counts::new();
        let mut window = 0;
        for number in 0..load.events {
            let (key, time) = load.event(number);
            while time.0 >= window + WINDOW_MS {
                merge(window, &mut counts);
                window += WINDOW_MS;
            }
            let sum = counts.entry(key).or_insert((0, i64::MIN));
            sum.0 += 1;
            sum.1 = sum.1.max(time.0);
        }
        merge(window, &mut counts);
    };
    thread::scope(|scope| {
        for _ in 0..INSTANCES {
            scope.spawn(count);
        }
    });
    let counted = *counted.lock().unwrap_or_else(PoisonError::into_inner);
    load.check(counted, 1)
}
