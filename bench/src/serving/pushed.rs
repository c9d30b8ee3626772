//! The time from the moment when an event is accepted until each of many readers has received it as a change of its key.

use std::process;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use millstream::{Flow, Job, Node, Topic};

use super::host::local;
use super::readers::{Readers, Received, Until};
use crate::child::Working;
use crate::clock::monotonic_ns;
use crate::measure::{Bench, median, percentile};
use crate::report::{Better, Case};
use crate::thread_cpu::ThreadCpu;

pub const PUSHED: &str = "pushed";

const EVENTS_PER_SECOND: u64 = 100_000;

/// The keys of the events, in turn. Each reader watches another one.
const KEYS: u64 = 10_000;

const READERS: u64 = 1_000;

/// The producer sends the events that are due together, at most as often as this.
const SEND_EVERY: Duration = Duration::from_millis(1);

/// The interval of checkpoints: changes are pushed when one has committed them.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(10);

/// The share of a processor of the readers.
const PERIOD: Duration = Duration::from_millis(1);
const PART: Duration = Duration::from_micros(250);

/// The most that the 99th percentile may be, in milliseconds.
const P99_MS_MAX: f64 = 100.0;

const ROUNDS: usize = 3;

/// The threads of the HTTP server.
const HTTP_THREADS: &str = "millstream-http";

/// The flow, and its state: for each key the number of its last event.
const FLOW: &str = "pushed";
const LAST: &str = "last";

/// Events that were accepted together.
struct Accepted {
    /// The numbers before this one, but those of earlier events.
    until: u64,
    at_ns: u64,
}

/// The figures of a round.
struct Round {
    took_ms: Vec<f64>,
    /// Changes that the readers have received in a second.
    changes_per_s: f64,
    /// The processor time of the HTTP server's threads in a second.
    http_cpu: f64,
}

/// The sizes of a round.
#[derive(Clone, Copy)]
struct Load {
    readers: u64,
    keys: u64,
    per_second: u64,
    events: u64,
}

pub fn pushed(bench: &Bench) -> Result<Vec<Case>> {
    let per_second = bench.size(EVENTS_PER_SECOND, EVENTS_PER_SECOND / 20);
    let load = Load {
        readers: bench.size(READERS, 50),
        keys: bench.size(KEYS, 500),
        per_second,
        events: per_second * bench.size(10, 1),
    };
    let folder = bench.folder(PUSHED, 8 << 30)?;
    let rounds = (0..bench.size(ROUNDS, 1)).map(|_| {
        folder.empty()?;
        bench.settle_disk();
        let node = Node::embedded(folder.path().join("data"))?;
        run(&node, load)
    });
    let rounds: Vec<Round> = rounds.collect::<Result<_>>()?;
    let at = |percent: f64| -> Vec<f64> {
        let rounds = rounds.iter();
        rounds
            .map(|round| percentile(round.took_ms.clone(), percent))
            .collect()
    };
    let of = |pick: fn(&Round) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let case = Case::new(format!("{PUSHED}/p99"), "ms", Better::Lower, at(99.0))
        .bound(P99_MS_MAX)
        .detail("p50_ms", median(&at(50.0)))
        .detail("p99_9_ms", median(&at(99.9)))
        .detail("most_ms", median(&at(100.0)))
        .detail("readers", load.readers as f64)
        .detail("events", of(|round| round.took_ms.len() as f64))
        .detail("changes_per_s", of(|round| round.changes_per_s))
        .detail("http_cpu", of(|round| round.http_cpu));
    Ok(vec![case])
}

/// Returns the time of each event of a watched key, in milliseconds.
fn run(node: &Node, load: Load) -> Result<Round> {
    let events = node.topic("events").postcard::<u64>().create()?;
    let flow = Flow::new(FLOW).checkpoint_interval(CHECKPOINT_EVERY);
    let read = flow.read(events.clone());
    let last = flow.engine().values::<u64, u64>(LAST);
    let keys = load.keys;
    let flow = read
        .key_by(move |number| number % keys)
        .fold("last", &last, |last, number| *last = Some(*number));
    let job = Job::from(flow).http(local()).start()?;
    let address = job.http_address().context("it serves HTTP")?;
    // The keys have the same distance, so that events of watched keys come at all times.
    let watched: Vec<u64> = (0..load.readers)
        .map(|it| it * keys / load.readers)
        .collect();
    let path = |key: &u64| format!("/state/{FLOW}/{LAST}/{key}?watch");
    let mut readers = Working::start(&Readers {
        address,
        paths: watched.iter().map(path).collect(),
        period: PERIOD,
        part: PART,
    })?;
    readers.hear::<()>()?;
    let last = |key: &u64| load.events - keys + key;
    readers.send(&Until {
        last: watched.iter().map(last).collect(),
    })?;
    let mut cpu = ThreadCpu::of(process::id())?;
    let began_at = Instant::now();
    let accepted = produce(&events, load)?;
    let received: Vec<Received> = readers.hear()?;
    let took_s = began_at.elapsed().as_secs_f64();
    cpu.look()?;
    let stored = job.flows()[0].checkpoints().unwrap_or_default();
    ensure!(
        stored.failed == 0,
        "a checkpoint failed: {:?}",
        stored.error
    );
    job.stop();
    job.join()?;
    let took = watched.iter().zip(&received);
    let took = took.map(|(key, received)| took_ms(*key, keys, &accepted, &received.changes));
    let changes: usize = received.iter().map(|it| it.changes.len()).sum();
    Ok(Round {
        took_ms: took.collect::<Result<Vec<_>>>()?.concat(),
        changes_per_s: changes as f64 / took_s,
        http_cpu: cpu.named_s(HTTP_THREADS) / took_s,
    })
}

/// Sends numbered events at the rate, however long the topic takes.
fn produce(events: &Topic<millstream::Postcard<u64>>, load: Load) -> Result<Vec<Accepted>> {
    let began_at = Instant::now();
    let (mut first, mut accepted) = (0, Vec::new());
    while first < load.events {
        let due = (began_at.elapsed().as_secs_f64() * load.per_second as f64) as u64;
        let until = due.min(load.events);
        if until > first {
            events.send(first..until)?;
            let at_ns = monotonic_ns();
            accepted.push(Accepted { until, at_ns });
            first = until;
        }
        thread::sleep(SEND_EVERY);
    }
    Ok(accepted)
}

/// Returns the time of each event of a key: a number that the reader has received shows all before it.
fn took_ms(
    key: u64,
    keys: u64,
    accepted: &[Accepted],
    received: &[(u64, u64)],
) -> Result<Vec<f64>> {
    ensure!(
        received.is_sorted_by(|(one, _), (next, _)| one < next),
        "the changes of key {key} are not in their order"
    );
    let mut took_ms = Vec::new();
    let mut next = key;
    for (number, at_ns) in received {
        ensure!(number % keys == key, "a change of another key than {key}");
        while next <= *number {
            let batch = accepted.partition_point(|it| it.until <= next);
            let batch = accepted.get(batch).context("it was sent")?;
            // The flow may be faster than the answer to the producer.
            let took_ns = at_ns.saturating_sub(batch.at_ns);
            took_ms.push(took_ns as f64 / 1e6);
            next += keys;
        }
    }
    Ok(took_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_shows_all_events_of_its_key_before_it() {
        let accepted = [10, 20, 30].map(|until| Accepted {
            until,
            at_ns: until * 1_000_000,
        });
        // The events 3, 13 and 23: the second one is not seen alone.
        let received = [(3, 11_000_000), (23, 33_000_000)];
        let took = took_ms(3, 10, &accepted, &received).unwrap();
        assert_eq!(took, [1.0, 13.0, 3.0]);
        assert!(took_ms(3, 10, &accepted, &[(4, 0)]).is_err());
        assert!(took_ms(3, 10, &accepted, &[(13, 0), (3, 0)]).is_err());
    }
}
