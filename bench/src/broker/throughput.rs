//! How much the broker takes in: many small requests, many partitions, and the most that goes over loopback.

use std::time::Duration;

use anyhow::{Result, bail};

use super::contender::{Node, Nodes, Side};
use super::durability::Durability;
use super::load::{self, Producer, Sent};
use super::sink;
use crate::connection::{check_produced, chunk, produce_frame};
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const THROUGHPUT: &str = "throughput";

const TOPIC: &str = "throughput";
const IN_FLIGHT: usize = 5;

/// Records in a chunk of about 1 KB.
const SMALL: usize = 9;
/// Records in a chunk of about 128 KB.
const LARGE: usize = 1200;

/// The load of the producers.
struct Shape {
    name: &'static str,
    producers: usize,
    /// Of the topic; each producer sends to as many of them as the others.
    partitions: usize,
    /// To how many partitions a request has a chunk, as clients do it that write to many.
    chunks_per_request: usize,
    /// How many times as fast as Kafka ours must be.
    faster: f64,
    /// How long producers send. With many partitions it is long enough for most records to be written twice: to the
    /// journal, and to where they stay.
    lasts_ms: u64,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "1-KB-batches-16-producers",
        producers: 16,
        partitions: 16,
        chunks_per_request: 1,
        faster: 3.0,
        lasts_ms: 2000,
    },
    Shape {
        name: "1-KB-batches-64-producers",
        producers: 64,
        partitions: 16,
        chunks_per_request: 1,
        faster: 3.0,
        lasts_ms: 2000,
    },
    Shape {
        name: "1-KB-batches-1024-partitions",
        producers: 16,
        partitions: 1024,
        chunks_per_request: 64,
        faster: 10.0,
        lasts_ms: 8000,
    },
];

/// How long the producer sends whose records go over loopback to a sink as well.
const SINK_LASTS_MS: u64 = 2000;

pub fn throughput(bench: &Bench) -> Result<Vec<Case>> {
    let nodes = Nodes::start(bench, bench.size(12 << 30, 1 << 30))?;
    let mut cases = Vec::new();
    for shape in &SHAPES {
        cases.push(beside_kafka(bench, &nodes, shape)?);
    }
    cases.push(beside_a_sink(bench, &nodes.ours)?);
    Ok(cases)
}

fn lasts(bench: &Bench, full_ms: u64) -> Duration {
    Duration::from_millis(bench.size(full_ms, 100))
}

fn beside_kafka(bench: &Bench, nodes: &Nodes, shape: &Shape) -> Result<Case> {
    // Kafka's guarantee, and the lesser one.
    let sides = nodes.sides(&[Durability::Written, Durability::Async]);
    // The time to create and to delete partitions does not count.
    let topic = |durability: Durability| format!("{}-{}", shape.name, durability.name());
    for Side { node, durability } in &sides {
        node.create_topic(&topic(*durability), shape.partitions as i32, *durability)?;
    }
    let rounds = bench.turns(sides.len(), |place| {
        let Side { node, durability } = &sides[place];
        shape.run(bench, node, &topic(*durability))
    })?;
    for Side { node, durability } in &sides {
        node.delete_topic(&topic(*durability))?;
    }
    let [ours, weaker, kafka @ ..] = &rounds[..] else {
        bail!("ours is missing");
    };
    let rates = |of: &[Took]| -> Vec<f64> { of.iter().map(|took| took.million_per_s).collect() };
    let cpu = |of: &[Took]| {
        let cpu: Vec<f64> = of.iter().map(|took| took.cpu_s_per_million).collect();
        median(&cpu)
    };
    let name = format!("{THROUGHPUT}/{}", shape.name);
    let case = Case::new(name, "M records/s", Better::Higher, rates(ours))
        .detail("cpu_s_per_million_records", cpu(ours))
        .detail("cpu_s_per_million_records_async", cpu(weaker))
        .peer(Durability::Async.name(), median(&rates(weaker)));
    let [kafka] = kafka else {
        return Ok(case);
    };
    Ok(case
        .by_hand(rates(kafka))
        .target(shape.faster)
        .detail("cpu_s_per_million_records_of_kafka", cpu(kafka)))
}

struct Took {
    million_per_s: f64,
    cpu_s_per_million: f64,
}

impl Shape {
    fn run(&self, bench: &Bench, node: &Node, topic: &str) -> Result<Took> {
        bench.settle_disk();
        let producers: Vec<Producer> = (0..self.producers)
            .map(|n| self.producer(n, topic))
            .collect::<Result<_>>()?;
        let lasts = lasts(bench, self.lasts_ms);
        let send = || load::run(node.address(), &producers, lasts, check_produced);
        let (sent, cpu_s) = node.cpu_of(bench, send)?;
        let millions = (self.chunks_per_request * SMALL) as f64 / 1e6;
        Ok(Took {
            million_per_s: sent.frames_per_second() * millions,
            cpu_s_per_million: cpu_s / (sent.frames() * millions),
        })
    }

    fn producer(&self, number: usize, topic: &str) -> Result<Producer> {
        let share = (self.partitions / self.producers).max(1);
        let first = number * share % self.partitions;
        let partitions: Vec<i32> = (first..first + share).map(|n| n as i32).collect();
        let chunk = chunk(SMALL)?;
        let frames = partitions
            .chunks(self.chunks_per_request)
            .map(|some| produce_frame(topic, some, &chunk));
        Ok(Producer {
            frames: frames.collect::<Result<_>>()?,
            in_flight: IN_FLIGHT,
        })
    }
}

/// One producer that sends all that goes over loopback.
fn beside_a_sink(bench: &Bench, node: &Node) -> Result<Case> {
    let sink = sink::start()?;
    let producer = Producer {
        frames: vec![produce_frame(TOPIC, &[0], &chunk(LARGE)?)?],
        in_flight: IN_FLIGHT,
    };
    let producers = [producer];
    let megabytes = producers[0].frames[0].len() as f64 / 1e6;
    let lasts = lasts(bench, SINK_LASTS_MS);
    let rounds = bench.rounds(|| {
        node.create_topic(TOPIC, 1, Durability::Async)?;
        bench.settle_disk();
        let send = || load::run(node.address(), &producers, lasts, check_produced);
        let (sent, cpu_s) = node.cpu_of(bench, send)?;
        node.delete_topic(TOPIC)?;
        let limit = load::run(sink, &producers, lasts, sink::check)?;
        let rate = |sent: &Sent| sent.frames_per_second() * megabytes;
        let gigabytes = sent.frames() * megabytes / 1e3;
        Ok((rate(&sent), rate(&limit), cpu_s / gigabytes))
    })?;
    let ours = rounds.iter().map(|(ours, _, _)| *ours).collect();
    let limit = rounds.iter().map(|(_, limit, _)| *limit).collect();
    let cpu: Vec<f64> = rounds.iter().map(|(_, _, cpu)| *cpu).collect();
    let name = format!("{THROUGHPUT}/128-KB-batches");
    Ok(Case::new(name, "MB/s", Better::Higher, ours)
        .by_hand(limit)
        .target(0.6)
        .detail("cpu_s_per_gb", median(&cpu)))
}
