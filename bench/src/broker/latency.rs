//! The latency from the moment when a record should be sent until a consumer has it, at a steady rate.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use super::contender::{Nodes, Side};
use super::durability::Durability;
use crate::connection::{Connection, check_produced, chunk, produce_frame};
use crate::fetcher::Fetcher;
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const LATENCY: &str = "latency";

const TOPIC: &str = "latency";
/// The interval between chunks, and the records of a chunk: 20,000 records in a second.
const SENT_EVERY: Duration = Duration::from_millis(1);
const CHUNK_RECORDS: usize = 20;

/// The number of chunks at the start that are not counted.
const WARM_UP: usize = 200;

/// Targets for the other's latency divided by ours: Kafka's, and that of a bare write and sync.
const WRITTEN_TARGET: f64 = 2.0;
const SYNC_TARGET: f64 = 1.0 / 1.5;

type Pick = fn(&Latency) -> f64;

/// In milliseconds.
#[derive(Debug, Clone, Copy)]
struct Latency {
    p50: f64,
    p99: f64,
}

impl Latency {
    fn of(mut all: Vec<Duration>) -> Latency {
        all.drain(..WARM_UP.min(all.len() / 2));
        all.sort_unstable();
        let at = |part: f64| all[(all.len() as f64 * part) as usize].as_secs_f64() * 1e3;
        Latency {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

pub fn latency(bench: &Bench) -> Result<Vec<Case>> {
    let nodes = Nodes::start(bench, 1 << 30)?;
    let folder = bench.folder("latency-bare", 1 << 30)?;
    let chunks = bench.size(4000, 100);
    let sides = nodes.sides(&[
        Durability::Async,
        Durability::Written,
        Durability::Fdatasync,
    ]);
    let rounds = bench.turns(1 + sides.len(), |place| {
        bench.settle_disk();
        match place.checked_sub(1) {
            None => bare(&folder.path().join("file"), chunks),
            Some(side) => end_to_end(&sides[side], chunks),
        }
    })?;
    let [bare, ours, written, synced, kafka @ ..] = &rounds[..] else {
        bail!("a contender is missing");
    };
    let parts: [(&str, Pick); 2] = [("p50", |of| of.p50), ("p99", |of| of.p99)];
    let mut cases = Vec::new();
    for (durability, ours) in [(Durability::Async, ours), (Durability::Written, written)] {
        for (part, pick) in parts {
            let kafka: Vec<f64> = kafka.iter().flatten().map(pick).collect();
            let case = case(part, durability, ours.iter().map(pick));
            cases.push(match (kafka.is_empty(), durability, part) {
                (true, ..) => case,
                (false, Durability::Written, "p99") => case.by_hand(kafka).target(WRITTEN_TARGET),
                (false, ..) => case.by_hand(kafka),
            });
        }
    }
    for (part, pick) in parts {
        let synced = synced.iter().map(pick);
        cases.push(
            case(part, Durability::Fdatasync, synced)
                .by_hand(bare.iter().map(pick).collect())
                .target(SYNC_TARGET),
        );
    }
    Ok(cases)
}

fn case(part: &str, durability: Durability, ours: impl Iterator<Item = f64>) -> Case {
    let name = format!("{LATENCY}/{}/{part}", durability.name());
    Case::new(name, "ms", Better::Lower, ours.collect())
}

/// When the chunk with this number should be sent.
fn due(started_at: Instant, number: usize) -> Instant {
    started_at + SENT_EVERY * number as u32
}

fn wait_for(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Writes and syncs by hand: chunks that arrive during one write go with the next.
fn bare(path: &Path, count: usize) -> Result<Latency> {
    let chunk = chunk(CHUNK_RECORDS)?;
    let mut file = File::create(path)?;
    let mut latencies = Vec::with_capacity(count);
    let started_at = Instant::now();
    while latencies.len() < count {
        wait_for(due(started_at, latencies.len()));
        let now = Instant::now();
        let ready = (latencies.len()..count).take_while(|number| due(started_at, *number) <= now);
        let ready = ready.count();
        file.write_all(&chunk.repeat(ready))?;
        file.sync_data()?;
        let done = Instant::now();
        let first = latencies.len();
        latencies.extend((first..first + ready).map(|number| done - due(started_at, number)));
    }
    std::fs::remove_file(path)?;
    Ok(Latency::of(latencies))
}

fn end_to_end(Side { node, durability }: &Side<'_>, count: usize) -> Result<Latency> {
    node.create_topic(TOPIC, 1, *durability)?;
    let request = produce_frame(TOPIC, &[0], &chunk(CHUNK_RECORDS)?)?;
    let producer = Connection::to(node.address())?;
    let mut sender = producer.sender()?;
    // Behind the record that showed that the topic is there.
    let first_offset = 1;
    let mut consumer = Fetcher::new(node.address(), TOPIC, first_offset)?;
    let started_at = Instant::now() + Duration::from_millis(20);
    let latencies = thread::scope(|scope| {
        let answers = scope.spawn(|| count_answers(producer, count));
        let send = scope.spawn(move || -> Result<()> {
            for number in 0..count {
                wait_for(due(started_at, number));
                sender.write_all(&request)?;
            }
            Ok(())
        });
        let mut latencies = Vec::with_capacity(count);
        while latencies.len() < count {
            let next_offset = consumer.fetch()?;
            let now = Instant::now();
            let arrived = (next_offset - first_offset) as usize / CHUNK_RECORDS;
            let first = latencies.len();
            let chunks = first..arrived.min(count);
            latencies.extend(chunks.map(|number| now - due(started_at, number)));
        }
        for thread in [send, answers] {
            thread
                .join()
                .map_err(|_| anyhow!("a producer's thread panicked"))??;
        }
        Ok::<_, anyhow::Error>(latencies)
    })?;
    node.delete_topic(TOPIC)?;
    Ok(Latency::of(latencies))
}

/// Reads the answers that the producer does not wait for.
fn count_answers(mut producer: Connection, count: usize) -> Result<()> {
    for _ in 0..count {
        check_produced(producer.receive()?)?;
    }
    Ok(())
}
