//! The brokers under Kafka's own programs for measuring, ProducerPerformance and ConsumerPerformance.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};

use super::contender::{Node, Nodes};
use super::durability::Durability;
use crate::measure::{Bench, median};
use crate::project::{self, is_built};
use crate::report::{Better, Case};

pub const TOOLS: &str = "tools";

const TOPIC: &str = "tools";
const PARTITIONS: i32 = 8;

const SIZES: [Size; 2] = [
    Size {
        name: "100-B",
        record_bytes: 100,
        records: 3_000_000,
    },
    Size {
        name: "1-KB",
        record_bytes: 1000,
        records: 600_000,
    },
];

struct Size {
    name: &'static str,
    record_bytes: usize,
    records: u64,
}

/// A program's figures, and the broker's processor time meanwhile.
struct Took {
    million_per_s: f64,
    cpu_s_per_million: f64,
}

/// The figures of one broker.
struct Run {
    produce: Took,
    consume: Took,
}

pub fn tools(bench: &Bench) -> Result<Vec<Case>> {
    if bench.is_quick() || !is_built("kafka/lib", "Kafka's own programs") {
        return Ok(Vec::new());
    }
    let nodes = Nodes::start(bench, 6 << 30)?;
    let sides = nodes.sides(&[Durability::Written]);
    let mut cases = Vec::new();
    for size in &SIZES {
        let rounds = bench.turns(sides.len(), |place| size.run(bench, sides[place].node))?;
        let [ours, kafka] = &rounds[..] else {
            bail!("Kafka is built, and has not run");
        };
        cases.push(size.case("produce", ours, kafka, |run| &run.produce));
        cases.push(size.case("consume", ours, kafka, |run| &run.consume));
    }
    Ok(cases)
}

impl Size {
    fn run(&self, bench: &Bench, node: &Node) -> Result<Run> {
        node.create_topic(TOPIC, PARTITIONS, Durability::Written)?;
        bench.settle_disk();
        let run = Run {
            produce: self.took(bench, node, || produce(node, self))?,
            consume: self.took(bench, node, || consume(node, self.records))?,
        };
        node.delete_topic(TOPIC)?;
        Ok(run)
    }

    fn took(
        &self,
        bench: &Bench,
        node: &Node,
        program: impl FnOnce() -> Result<f64>,
    ) -> Result<Took> {
        let (per_s, cpu_s) = node.cpu_of(bench, program)?;
        Ok(Took {
            million_per_s: per_s / 1e6,
            cpu_s_per_million: cpu_s / (self.records as f64 / 1e6),
        })
    }

    fn case(&self, what: &str, ours: &[Run], kafka: &[Run], pick: fn(&Run) -> &Took) -> Case {
        let of = |runs: &[Run], value: fn(&Took) -> f64| -> Vec<f64> {
            runs.iter().map(|run| value(pick(run))).collect()
        };
        let rate = |took: &Took| took.million_per_s;
        let cpu = |took: &Took| took.cpu_s_per_million;
        let name = format!("{TOOLS}/{what}/{}", self.name);
        Case::new(name, "M records/s", Better::Higher, of(ours, rate))
            .by_hand(of(kafka, rate))
            .detail("cpu_s_per_million_records", median(&of(ours, cpu)))
            .detail(
                "cpu_s_per_million_records_of_kafka",
                median(&of(kafka, cpu)),
            )
    }
}

/// Sends records; how many a second.
fn produce(node: &Node, size: &Size) -> Result<f64> {
    let printed = run(
        "ProducerPerformance",
        node,
        size.records,
        &[
            "--record-size",
            &size.record_bytes.to_string(),
            "--throughput",
            "-1",
        ],
    )?;
    // "3000000 records sent, 512345.6 records/sec (48.86 MB/sec), …"
    let words: Vec<&str> = printed.split_whitespace().collect();
    let unit = words.iter().rposition(|word| *word == "records/sec");
    let rate = unit.and_then(|unit| words.get(unit.checked_sub(1)?));
    number(rate.copied(), &printed)
}

/// Reads records; how many a second, from when the first ones came.
fn consume(node: &Node, records: u64) -> Result<f64> {
    let printed = run(
        "ConsumerPerformance",
        node,
        records,
        &["--hide-header", "--timeout", "60000"],
    )?;
    // "start, end, MB, MB/s, records, records/s, time to join, time of fetches, MB/s, records/s"
    let last = printed.lines().rev().find(|line| line.contains(','));
    let rate = last.and_then(|line| line.split(',').next_back());
    number(rate.map(str::trim), &printed)
}

fn number(word: Option<&str>, printed: &str) -> Result<f64> {
    let number = word.and_then(|word| word.parse().ok());
    number.with_context(|| {
        format!("cannot read the figures that Kafka's program printed:\n{printed}")
    })
}

fn run(program: &str, node: &Node, records: u64, words: &[&str]) -> Result<String> {
    let done = millstream_testing::command("java")
        .args(["-Xmx512m", "-cp"])
        .arg(project::peer("kafka/lib/*"))
        .arg(format!("org.apache.kafka.tools.{program}"))
        .args(["--bootstrap-server", &node.address().to_string()])
        .args(["--topic", TOPIC, "--num-records", &records.to_string()])
        .args(words)
        .stdin(Stdio::null())
        .output()
        .context("cannot start java")?;
    ensure!(
        done.status.success(),
        "{program} failed: {}\n{}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}
