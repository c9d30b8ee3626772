//! The time until a broker takes records, and its memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use super::contender::{Contender, Node, has_kafka};
use super::durability::Durability;
use super::load::{self, Producer};
use crate::connection::{check_produced, chunk, produce_frame};
use crate::fetcher::Fetcher;
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const RESOURCES: &str = "resources";

const TOPIC: &str = "load";
const PRODUCERS: usize = 16;
/// Records in a chunk of about 16 KB.
const CHUNK_RECORDS: usize = 150;

/// The time from the start of the process to the first record.
const START_MS_MAX: f64 = 200.0;

/// The memory that the broker has resident at most.
const LOADED_MIB_MAX: f64 = 200.0;

struct Seen {
    start_ms: f64,
    idle_mib: f64,
    loaded_mib: f64,
}

pub fn resources(bench: &Bench) -> Result<Vec<Case>> {
    let contenders = match has_kafka(bench) {
        true => &[Contender::Ours, Contender::Kafka][..],
        false => &[Contender::Ours],
    };
    let rounds = bench.turns(contenders.len(), |place| look(bench, contenders[place]))?;
    let [ours, kafka @ ..] = &rounds[..] else {
        bail!("ours is missing");
    };
    let case = |name: &str, unit, pick: fn(&Seen) -> f64| {
        let ours = ours.iter().map(pick).collect();
        Case::new(format!("{RESOURCES}/{name}"), unit, Better::Lower, ours)
    };
    let of_kafka =
        |pick: fn(&Seen) -> f64| -> Vec<f64> { kafka.iter().flatten().map(pick).collect() };
    let start = case("start", "ms", |seen| seen.start_ms).bound(START_MS_MAX);
    let idle = case("memory-idle", "MiB", |seen| seen.idle_mib);
    let loaded = case("memory-under-load", "MiB", |seen| seen.loaded_mib).bound(LOADED_MIB_MAX);
    Ok(match kafka.is_empty() {
        true => vec![start, idle, loaded],
        false => vec![
            start.peer("Kafka", median(&of_kafka(|seen| seen.start_ms))),
            idle.by_hand(of_kafka(|seen| seen.idle_mib)),
            loaded.peer("Kafka", median(&of_kafka(|seen| seen.loaded_mib))),
        ],
    })
}

fn look(bench: &Bench, contender: Contender) -> Result<Seen> {
    let node = Node::start(bench, contender, bench.size(6 << 30, 1 << 30))?;
    let (idle_mib, _) = node.resident_mib()?;
    node.create_topic(TOPIC, PRODUCERS as i32, Durability::Written)?;
    let chunk = chunk(CHUNK_RECORDS)?;
    let producer = |number: usize| -> Result<Producer> {
        Ok(Producer {
            frames: vec![produce_frame(TOPIC, &[number as i32], &chunk)?],
            in_flight: 5,
        })
    };
    let producers: Vec<Producer> = (0..PRODUCERS).map(producer).collect::<Result<_>>()?;
    let lasts = Duration::from_millis(bench.size(3000, 100));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&node, &is_over));
        let sent = load::run(node.address(), &producers, lasts, check_produced);
        is_over.store(true, Ordering::Relaxed);
        reader.join().expect("the reader does not panic")?;
        sent
    })?;
    Ok(Seen {
        start_ms: node.started_s * 1e3,
        idle_mib,
        loaded_mib: node.resident_mib()?.1,
    })
}

/// Reads the first partition at its head.
fn read(node: &Node, is_over: &AtomicBool) -> Result<()> {
    let mut fetcher = Fetcher::new(node.address(), TOPIC, 0)?;
    while !is_over.load(Ordering::Relaxed) {
        fetcher.fetch()?;
    }
    Ok(())
}
