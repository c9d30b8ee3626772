//! The figures at the head of the page: one answer for each question of a buyer.

use std::fmt::Write as _;

use super::figures::{OURS, Row};

/// A question, and the figure that answers it.
struct Headline {
    question: &'static str,
    benchmark: &'static str,
    case: &'static str,
    beside: Beside,
}

/// The figure beside ours.
enum Beside {
    /// The limit of the case, which is this.
    Limit(&'static str),
    /// The figure of the other program of this name.
    Program(&'static str),
}

use Beside::{Limit, Program};

const HEADLINES: [Headline; 13] = [
    Headline {
        question: "Records produced in batches of 1 KB, 16 producers",
        benchmark: "broker",
        case: "throughput/1-KB-batches-16-producers",
        beside: Limit("Kafka"),
    },
    Headline {
        question: "Processor time of the server to produce records, synced to disk",
        benchmark: "broker",
        case: "cost/produce/1-partitions/16-KB/fdatasync",
        beside: Limit("Kafka, which does not sync"),
    },
    Headline {
        question: "Answer to a producer, synced to disk, 99th percentile",
        benchmark: "broker",
        case: "latency/fdatasync/p99",
        beside: Limit("a file that is written and synced"),
    },
    Headline {
        question: "Answer to a producer with Kafka's guarantee, 99th percentile",
        benchmark: "broker",
        case: "latency/written/p99",
        beside: Limit("Kafka"),
    },
    Headline {
        question: "Memory of a server at rest",
        benchmark: "broker",
        case: "resources/memory-idle",
        beside: Limit("Kafka"),
    },
    Headline {
        question: "Gets by key, one request on each of 50 connections",
        benchmark: "keys",
        case: "network/get/50-connections",
        beside: Limit("Valkey"),
    },
    Headline {
        question: "Puts by key, synced to disk, 50 connections",
        benchmark: "keys",
        case: "network/durable-put/50-connections",
        beside: Limit("Valkey"),
    },
    Headline {
        question: "Gets by key from eight times as much data as memory",
        benchmark: "keys",
        case: "larger-than-memory/uniform",
        beside: Limit("RocksDB"),
    },
    Headline {
        question: "Start after `kill -9`, with ten million keys",
        benchmark: "keys",
        case: "start/killed",
        beside: Limit("reading all files once"),
    },
    Headline {
        question: "Words of a text counted by one core",
        benchmark: "engine",
        case: "fused/1-workers",
        beside: Limit("a loop by hand"),
    },
    Headline {
        question: "Words of a text counted by two cores",
        benchmark: "engine",
        case: "peers/flink/throughput",
        beside: Limit("Flink"),
    },
    Headline {
        question: "Events counted in windows, sustained, by two cores",
        benchmark: "swa",
        case: "throughput/flink",
        beside: Limit("Flink"),
    },
    Headline {
        question: "Events counted by a million keys, with the counts on disk",
        benchmark: "state",
        case: "throughput/1000000-keys",
        beside: Program("Flink with RocksDB"),
    },
];

/// Returns the table. `figures` has those of each benchmark by its name; a question without a figure is left out.
pub fn table(figures: &[(&str, Vec<Row>)]) -> String {
    let mut table = "\
| question | Millstream | beside | times as good | details |
|---|---:|---:|---:|---|
"
    .to_owned();
    for headline in &HEADLINES {
        let Headline {
            question,
            benchmark,
            ..
        } = headline;
        let Some(Answer {
            ours,
            beside,
            ratio,
        }) = headline.answer(figures)
        else {
            eprintln!("bench: no figure answers \"{question}\"");
            continue;
        };
        let _ = writeln!(
            table,
            "| {question} | {ours} | {beside} | {ratio} | [{benchmark}](#{benchmark}) |"
        );
    }
    table
}

/// The cells of a headline.
struct Answer {
    ours: String,
    beside: String,
    ratio: String,
}

impl Headline {
    fn answer(&self, figures: &[(&str, Vec<Row>)]) -> Option<Answer> {
        let (_, rows) = figures.iter().find(|(name, _)| *name == self.benchmark)?;
        let find = |figure: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row.case == self.case && row.figure == figure)
        };
        let ours = find(OURS)?;
        let (name, value, ratio) = match self.beside {
            Limit(name) => (name, &ours.limit, &ours.ratio),
            Program(name) => {
                let theirs = find(name)?;
                (name, &theirs.value, &theirs.ratio)
            }
        };
        Some(Answer {
            ours: format!("{} {}", ours.value, ours.unit),
            beside: format!("{name}: {value}"),
            ratio: ratio.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::BENCHMARKS;
    use crate::docs::{FIGURES, figures};
    use crate::project;

    #[test]
    fn the_pages_of_this_project_answer_each_question() {
        let docs = project::root().join("docs");
        let names = BENCHMARKS.iter().map(|benchmark| benchmark.name);
        let read = names.filter_map(|name| {
            let path = docs.join(FIGURES).join(format!("{name}.csv"));
            Some((name, figures::read(&path).ok()?))
        });
        let figures: Vec<(&str, Vec<Row>)> = read.collect();
        for headline in &HEADLINES {
            let answer = headline.answer(&figures);
            let answer = answer.unwrap_or_else(|| panic!("no figure: {}", headline.question));
            assert!(!answer.ratio.is_empty(), "{}", headline.question);
        }
    }
}
