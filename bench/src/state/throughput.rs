//! Events per second of a flow that keeps its state, beside the same flow that does not, and beside Flink.

use std::time::Duration;

use anyhow::Result;

use super::counting::{INTERVAL, Load, Order, Ran};
use super::flink::{Flink, FlinkRan};
use crate::folder::Folder;
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const THROUGHPUT: &str = "throughput";

/// How many keys there are, and how many events ours and Flink count in some seconds.
const GRID: [(u64, u64, u64); 2] = [
    (10_000, 200_000_000, 1_500_000),
    (1_000_000, 60_000_000, 1_000_000),
];

/// The interval and the keys of frequent checkpoints.
const OFTEN: Duration = Duration::from_millis(50);
const OFTEN_KEYS: u64 = 1_000;

/// The least part of the rate without checkpoints.
const OFTEN_TARGET: f64 = 0.95;

/// A contender's run.
enum Side {
    Ours(Ran),
    Flink(FlinkRan),
}

pub fn throughput(bench: &Bench) -> Result<Vec<Case>> {
    let mut flink = Flink::start(bench)?;
    let folder = bench.folder(THROUGHPUT, 3 << 30)?;
    let mut cases = Vec::new();
    for (keys, events, events_of_flink) in GRID {
        let load = Load {
            keys: bench.size(keys, keys / 100),
            order: Order::Scattered,
            events: bench.size(events, 100_000),
            events_per_second: None,
        };
        let contenders = if flink.is_some() { 3 } else { 2 };
        let rounds = bench.turns(contenders, |place| {
            Ok(match (place, &mut flink) {
                (0, _) => Side::Ours(load.run_kept(bench, &folder, INTERVAL)?),
                (2, Some(flink)) => Side::Flink(flink.count(keys, events_of_flink)?),
                _ => Side::Ours(load.run_unkept()?),
            })
        })?;
        let ours = |place: usize| -> Vec<Ran> {
            let ours = rounds[place].iter().filter_map(|side| match side {
                Side::Ours(ran) => Some(*ran),
                Side::Flink(_) => None,
            });
            ours.collect()
        };
        let (kept, unkept) = (ours(0), ours(1));
        let middle =
            |of: &[Ran], pick: fn(&Ran) -> f64| median(&of.iter().map(pick).collect::<Vec<f64>>());
        let cpu_us = |of: &[Ran]| middle(of, |ran| ran.took.cpu_seconds) * 1e6 / load.events as f64;
        let name = format!("{THROUGHPUT}/{keys}-keys");
        let mut case = Case::new(
            name,
            "M events/s",
            Better::Higher,
            load.million_per_second(&kept),
        )
        .by_hand(load.million_per_second(&unkept))
        .detail("cpu_us_per_event", cpu_us(&kept))
        .detail("cpu_us_per_event_without_kept_state", cpu_us(&unkept))
        .detail("checkpoints", middle(&kept, |ran| ran.checkpoints))
        .detail("changed_keys", middle(&kept, |ran| ran.changed_keys))
        .detail("last_checkpoint_ms", middle(&kept, |ran| ran.last_s) * 1e3);
        if let Some(sides) = rounds.get(2) {
            let theirs: Vec<&FlinkRan> = sides
                .iter()
                .filter_map(|side| match side {
                    Side::Flink(ran) => Some(ran),
                    Side::Ours(_) => None,
                })
                .collect();
            let middle = |pick: fn(&FlinkRan) -> f64| {
                median(&theirs.iter().map(|ran| pick(ran)).collect::<Vec<f64>>())
            };
            case = case
                .peer(
                    "Flink with RocksDB",
                    middle(|ran| ran.events as f64 / 1e6 / ran.seconds),
                )
                .detail(
                    "flink_cpu_us_per_event",
                    middle(|ran| ran.cpu_seconds * 1e6 / ran.events as f64),
                )
                .detail("flink_checkpoints", middle(|ran| ran.checkpoints))
                .detail("flink_checkpoint_ms", middle(|ran| ran.checkpoint_ms));
        }
        cases.push(case);
    }
    cases.push(often(bench, &folder)?);
    Ok(cases)
}

/// A checkpoint every 50 ms, of 1,000 changed keys.
fn often(bench: &Bench, folder: &Folder) -> Result<Case> {
    let load = Load {
        keys: OFTEN_KEYS,
        order: Order::Scattered,
        events: bench.size(200_000_000, 100_000),
        events_per_second: None,
    };
    let rounds = bench.turns(2, |place| match place {
        0 => load.run_kept(bench, folder, OFTEN),
        _ => load.run_unkept(),
    })?;
    let checkpoints: Vec<f64> = rounds[0].iter().map(|ran| ran.checkpoints).collect();
    let seconds: Vec<f64> = rounds[0].iter().map(|ran| ran.took.seconds).collect();
    let name = format!("{THROUGHPUT}/every-50-ms");
    let rates = load.million_per_second(&rounds[0]);
    Ok(Case::new(name, "M events/s", Better::Higher, rates)
        .by_hand(load.million_per_second(&rounds[1]))
        .target(OFTEN_TARGET)
        .detail("checkpoints", median(&checkpoints))
        .detail("seconds", median(&seconds)))
}
