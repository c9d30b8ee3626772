//! The broker's processor time for a million records, in seconds.

use anyhow::{Result, bail};

use super::contender::{Nodes, Side};
use super::durability::Durability;
use super::rdkafka;
use crate::measure::{Bench, median};
use crate::plot;
use crate::report::{Better, Case};

pub const COST: &str = "cost";

const TOPIC: &str = "cost";
const UNIT: &str = "CPU-s/M records";

/// Kafka's cost to ours, at least: for taking records in, for the same with a sync, which Kafka's do not have, and for giving
/// them out, where Kafka uses sendfile.
const PRODUCE_TARGET: f64 = 4.0;
const SYNCED_TARGET: f64 = 2.0;
const FETCH_TARGET: f64 = 1.0 / 0.9;

const BATCHES: [(&str, usize); 2] = [("16-KB", 16 << 10), ("128-KB", 128 << 10)];
const PARTITIONS: [i32; 2] = [1, 8];

/// Of the cells with one partition, and with more, whose records go through the journal: these run until most of them have been
/// written for the second time, to where they stay.
const RECORDS: [u64; 2] = [2_000_000, 10_000_000];

/// Seconds of processor time for a million records.
struct Cost {
    produce: f64,
    /// Of topics with one partition.
    fetch: Option<f64>,
}

pub fn cost(bench: &Bench) -> Result<Vec<Case>> {
    if !rdkafka::is_there() {
        return Ok(Vec::new());
    }
    let nodes = Nodes::start(bench, bench.size(8 << 30, 1 << 30))?;
    let sides = nodes.sides(&[
        Durability::Async,
        Durability::Written,
        Durability::Fdatasync,
    ]);
    let mut cases = Vec::new();
    let mut bars = Vec::new();
    for (batch, batch_bytes) in BATCHES {
        for partitions in PARTITIONS {
            let rounds = bench.turns(sides.len(), |place| {
                measure(bench, &sides[place], partitions, batch_bytes)
            })?;
            let [ours, written, synced, kafka @ ..] = &rounds[..] else {
                bail!("a contender is missing");
            };
            let place = format!("{partitions}-partitions/{batch}");
            cases.push(produce_case(&place, Durability::Async, ours, kafka));
            cases.push(produce_case(&place, Durability::Written, written, kafka));
            cases.push(produce_case(&place, Durability::Fdatasync, synced, kafka));
            if partitions == 1 {
                cases.push(fetch_case(batch.to_owned(), ours, kafka));
                let name = Durability::Written.name();
                cases.push(fetch_case(format!("{batch}/{name}"), written, kafka));
            }
            let names = ["async", "written", "sync", "Kafka"];
            bars.extend(rounds.iter().zip(names).map(|(costs, name)| {
                let produce: Vec<f64> = costs.iter().map(|cost| cost.produce).collect();
                (format!("{partitions} × {batch}, {name}"), median(&produce))
            }));
        }
    }
    let bars: Vec<(&str, f64)> = bars
        .iter()
        .map(|(name, cost)| (name.as_str(), *cost))
        .collect();
    let title = "producing: seconds of processor time for a million records";
    plot::bars(&bench.out().join("cost.png"), title, &bars)?;
    Ok(cases)
}

fn measure(
    bench: &Bench,
    Side { node, durability }: &Side<'_>,
    partitions: i32,
    batch_bytes: usize,
) -> Result<Cost> {
    let records = bench.size(RECORDS[usize::from(partitions > 1)], 20_000);
    let million = records as f64 / 1e6;
    node.create_topic(TOPIC, partitions, *durability)?;
    bench.settle_disk();
    let produce = || rdkafka::produce(node, TOPIC, records, batch_bytes);
    let ((), produce_s) = node.cpu_of(bench, produce)?;
    let is_fetched = partitions == 1 && *durability != Durability::Fdatasync;
    let fetch = || rdkafka::consume(node, TOPIC, records);
    let fetch = is_fetched.then(|| node.cpu_of(bench, fetch)).transpose()?;
    node.delete_topic(TOPIC)?;
    Ok(Cost {
        produce: produce_s / million,
        fetch: fetch.map(|((), fetch_s)| fetch_s / million),
    })
}

fn produce_case(place: &str, durability: Durability, ours: &[Cost], kafka: &[Vec<Cost>]) -> Case {
    let name = format!("{COST}/produce/{place}/{}", durability.name());
    let ours = ours.iter().map(|cost| cost.produce);
    let case = Case::new(name, UNIT, Better::Lower, ours.collect());
    let kafka: Vec<f64> = kafka.iter().flatten().map(|cost| cost.produce).collect();
    match (kafka.is_empty(), durability) {
        (true, _) => case,
        (false, Durability::Async | Durability::Written) => {
            case.by_hand(kafka).target(PRODUCE_TARGET)
        }
        // Kafka does not sync.
        (false, Durability::Fdatasync) => case.by_hand(kafka).target(SYNCED_TARGET),
    }
}

fn fetch_case(place: String, ours: &[Cost], kafka: &[Vec<Cost>]) -> Case {
    let name = format!("{COST}/fetch/{place}");
    let ours = ours.iter().filter_map(|cost| cost.fetch);
    let case = Case::new(name, UNIT, Better::Lower, ours.collect());
    let kafka: Vec<f64> = kafka
        .iter()
        .flatten()
        .filter_map(|cost| cost.fetch)
        .collect();
    match kafka.is_empty() {
        true => case,
        false => case.by_hand(kafka).target(FETCH_TARGET),
    }
}
