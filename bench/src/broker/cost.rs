//! What a million records cost the broker, in seconds of its processor time.

use anyhow::Result;

use super::Durability;
use super::contender::{Node, Nodes};
use super::rdkafka;
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const COST: &str = "cost";

const TOPIC: &str = "cost";
const UNIT: &str = "CPU-s/M records";

/// Kafka's cost to ours, at least: for taking records in, and for giving them out, where Kafka uses sendfile.
const PRODUCE_TARGET: f64 = 5.0;
const FETCH_TARGET: f64 = 1.0 / 0.9;

const BATCHES: [(&str, usize); 2] = [("16-KB", 16 << 10), ("128-KB", 128 << 10)];
const PARTITIONS: [i32; 2] = [1, 8];

/// Seconds of processor time for a million records.
struct Cost {
    produce: f64,
    /// Of topics with one partition.
    fetch: Option<f64>,
}

struct Round {
    ours: Cost,
    synced: Cost,
    kafka: Option<Cost>,
}

pub fn cost(bench: &Bench) -> Result<Vec<Case>> {
    if !rdkafka::is_there() {
        return Ok(Vec::new());
    }
    let nodes = Nodes::start(bench, bench.size(6 << 30, 1 << 30))?;
    let mut cases = Vec::new();
    for (batch, batch_bytes) in BATCHES {
        for partitions in PARTITIONS {
            let measure =
                |node, durability| measure(bench, node, partitions, batch_bytes, durability);
            let rounds = bench.rounds(|| {
                let kafka = nodes.kafka.as_ref();
                Ok(Round {
                    ours: measure(&nodes.ours, Durability::Async)?,
                    synced: measure(&nodes.ours, Durability::Fdatasync)?,
                    kafka: kafka
                        .map(|kafka| measure(kafka, Durability::Async))
                        .transpose()?,
                })
            })?;
            let place = format!("{partitions}-partitions/{batch}");
            for durability in [Durability::Async, Durability::Fdatasync] {
                cases.push(produce_case(&place, durability, &rounds));
            }
            if partitions == 1 {
                cases.push(fetch_case(batch, &rounds));
            }
        }
    }
    Ok(cases)
}

fn measure(
    bench: &Bench,
    node: &Node,
    partitions: i32,
    batch_bytes: usize,
    durability: Durability,
) -> Result<Cost> {
    let records: u64 = bench.size(2_000_000, 20_000);
    let million = records as f64 / 1e6;
    node.create_topic(TOPIC, partitions, durability)?;
    bench.settle_disk();
    let ((), produce_s) = node.cpu_of(|| rdkafka::produce(node, TOPIC, records, batch_bytes))?;
    let is_fetched = partitions == 1 && durability == Durability::Async;
    let fetch = || rdkafka::consume(node, TOPIC, records);
    let fetch = is_fetched.then(|| node.cpu_of(fetch)).transpose()?;
    node.delete_topic(TOPIC)?;
    Ok(Cost {
        produce: produce_s / million,
        fetch: fetch.map(|((), fetch_s)| fetch_s / million),
    })
}

fn produce_case(place: &str, durability: Durability, rounds: &[Round]) -> Case {
    let name = format!("{COST}/produce/{place}/{}", durability.name());
    let ours = rounds.iter().map(|round| match durability {
        Durability::Async => round.ours.produce,
        Durability::Fdatasync => round.synced.produce,
    });
    let case = Case::new(name, UNIT, Better::Lower, ours.collect());
    let kafka = rounds.iter().filter_map(|round| round.kafka.as_ref());
    let kafka: Vec<f64> = kafka.map(|kafka| kafka.produce).collect();
    match (kafka.is_empty(), durability) {
        (true, _) => case,
        (false, Durability::Async) => case.by_hand(kafka).target(PRODUCE_TARGET),
        // Kafka does not sync.
        (false, Durability::Fdatasync) => case.by_hand(kafka),
    }
}

fn fetch_case(batch: &str, rounds: &[Round]) -> Case {
    let ours = rounds.iter().filter_map(|round| round.ours.fetch);
    let name = format!("{COST}/fetch/{batch}");
    let case = Case::new(name, UNIT, Better::Lower, ours.collect());
    let kafka = rounds.iter().filter_map(|round| round.kafka.as_ref());
    let kafka: Vec<f64> = kafka.filter_map(|kafka| kafka.fetch).collect();
    match kafka.is_empty() {
        true => case,
        false => case.by_hand(kafka).target(FETCH_TARGET),
    }
}
