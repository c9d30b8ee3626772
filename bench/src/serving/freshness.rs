//! The time from the moment when an event is accepted until an answer over HTTP shows it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use crossbeam_channel::{Receiver, Sender, unbounded};
use millstream::{Flow, Job, Node, Topic};

use super::hazelcast::Hazelcast;
use super::host::local;
use crate::http::Visitor;
use crate::measure::{Bench, median, order_of_turns, percentile};
use crate::report::{Better, Case};

pub const FRESHNESS: &str = "freshness";

const EVENTS_PER_SECOND: f64 = 100_000.0;

/// The keys of the events. The reader asks for the first one.
const KEYS: u64 = 10;

/// The producer sends the events that are due together, at most as often as this.
const SEND_EVERY: Duration = Duration::from_millis(1);

/// The pause of the reader between two answers: it leaves the processors to the flow.
const READ_EVERY: Duration = Duration::from_micros(200);

/// The interval of checkpoints: committed answers are at least as old.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(10);

/// The most that the 99th percentile may be, in milliseconds.
const P99_MS_MAX: f64 = 50.0;

/// How often each level is measured.
const ROUNDS: usize = 3;

/// All events are shown this long after the last one at the latest.
const SHOWN_MAX: Duration = Duration::from_secs(30);

/// The flow, and its state: for each key the number of its last event.
const FLOW: &str = "fresh";
const LAST: &str = "last";

/// The state that answers are read from, with the query for it.
const LEVELS: [(&str, &str); 2] = [("newest", ""), ("committed", "?committed")];

/// Events that were accepted together.
struct Accepted {
    /// The numbers from here on.
    first: u64,
    until: u64,
    at: Instant,
}

pub fn freshness(bench: &Bench) -> Result<Vec<Case>> {
    let lasts = Duration::from_millis(bench.size(50_000, 500));
    let folder = bench.folder(FRESHNESS, 8 << 30)?;
    let rate = bench.size(EVENTS_PER_SECOND, EVENTS_PER_SECOND / 20.0);
    let rounds_wanted = bench.size(ROUNDS, 1);
    let mut cases = Vec::new();
    for (level, query) in LEVELS {
        let is_newest = level == LEVELS[0].0;
        // The answers of Hazelcast show its newest state, too.
        let mut hazelcast = match is_newest {
            true => Hazelcast::built(bench),
            false => None,
        };
        let contenders = 1 + usize::from(hazelcast.is_some());
        let mut rounds: Vec<Vec<f64>> = Vec::new();
        for round in 0..rounds_wanted {
            for turn in order_of_turns(round, contenders) {
                folder.empty()?;
                bench.settle_disk();
                match &mut hazelcast {
                    Some(hazelcast) if turn > 0 => hazelcast.round(lasts)?,
                    _ => {
                        let node = Node::embedded(folder.path().join("data"))?;
                        rounds.push(run(&node, query, rate, lasts)?);
                    }
                }
            }
        }
        let at = |percent: f64| -> Vec<f64> {
            let rounds = rounds.iter().cloned();
            rounds.map(|took_ms| percentile(took_ms, percent)).collect()
        };
        let case = Case::new(
            format!("{FRESHNESS}/{level}/p99"),
            "ms",
            Better::Lower,
            at(99.0),
        );
        let case = match is_newest {
            true => case.bound(P99_MS_MAX),
            false => case,
        };
        let events: Vec<f64> = rounds.iter().map(|round| round.len() as f64).collect();
        let case = case
            .detail("p50_ms", median(&at(50.0)))
            .detail("p99_9_ms", median(&at(99.9)))
            .detail("p99_99_ms", median(&at(99.99)))
            .detail("most_ms", median(&at(100.0)))
            .detail("events", median(&events));
        cases.push(match hazelcast {
            Some(hazelcast) => hazelcast.beside(case, rounds_wanted, lasts)?,
            None => case,
        });
    }
    Ok(cases)
}

/// Returns the time of each event of the first key, in milliseconds.
fn run(node: &Node, query: &str, rate: f64, lasts: Duration) -> Result<Vec<f64>> {
    let events = node.topic("events").postcard::<u64>().create()?;
    let flow = Flow::new(FLOW).checkpoint_interval(CHECKPOINT_EVERY);
    let read = flow.read(events.clone());
    let last = flow.engine().values::<u64, u64>(LAST);
    let flow = read
        .key_by(|number| number % KEYS)
        .fold("last", &last, |last, number| *last = Some(*number));
    let job = Job::from(flow).http(local()).start()?;
    let address = job.http_address().context("it serves HTTP")?;
    let has_ended = AtomicBool::new(false);
    let (accepted, of_producer) = unbounded();
    let took_ms = thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(address, query, &of_producer, &has_ended));
        let produced = produce(&events, rate, lasts, &accepted);
        has_ended.store(true, Ordering::SeqCst);
        let read = reader.join().map_err(|_| anyhow!("the reader panicked"));
        produced.and(read?)
    });
    let stored = job.flows()[0].checkpoints().unwrap_or_default();
    ensure!(
        stored.failed == 0,
        "a checkpoint failed: {:?}",
        stored.error
    );
    job.stop();
    job.join()?;
    took_ms
}

/// Sends numbered events at the rate, however long the topic takes.
fn produce(
    events: &Topic<millstream::Postcard<u64>>,
    rate: f64,
    lasts: Duration,
    accepted: &Sender<Accepted>,
) -> Result<()> {
    let began_at = Instant::now();
    let mut first = 0;
    while began_at.elapsed() < lasts {
        let until = (began_at.elapsed().as_secs_f64() * rate) as u64;
        if until > first {
            events.send(first..until)?;
            let at = Instant::now();
            accepted.send(Accepted { first, until, at })?;
            first = until;
        }
        thread::sleep(SEND_EVERY);
    }
    Ok(())
}

/// Asks for the last event of the first key until all accepted ones are shown. Returns the time of each.
fn read_all(
    address: SocketAddr,
    query: &str,
    of_producer: &Receiver<Accepted>,
    has_ended: &AtomicBool,
) -> Result<Vec<f64>> {
    let path = format!("/state/{FLOW}/{LAST}/0{query}");
    let mut visitor = Visitor::to(address)?;
    let mut took_ms = Vec::new();
    // The events of the key that no answer has shown yet, each with the time when it was accepted.
    let mut waiting: VecDeque<(u64, Instant)> = VecDeque::new();
    let mut ended_at = None;
    loop {
        // Read before the last events are taken in: then none come behind it.
        if has_ended.load(Ordering::SeqCst) && ended_at.is_none() {
            ended_at = Some(Instant::now());
        }
        let (status, body) = visitor.get(&path)?;
        ensure!(matches!(status, 200 | 404), "the server answers {status}");
        let shown: Option<u64> = match status {
            200 => Some(serde_json::from_slice(body)?),
            _ => None,
        };
        let shown_at = Instant::now();
        for accepted in of_producer.try_iter() {
            let first = accepted.first.next_multiple_of(KEYS);
            let numbers = (first..accepted.until).step_by(KEYS as usize);
            waiting.extend(numbers.map(|number| (number, accepted.at)));
        }
        while let Some((number, at)) = waiting.front()
            && shown >= Some(*number)
        {
            // The flow may be faster than the answer to the producer.
            let took = shown_at.saturating_duration_since(*at);
            took_ms.push(took.as_secs_f64() * 1e3);
            waiting.pop_front();
        }
        if let Some(ended_at) = ended_at {
            if waiting.is_empty() && !took_ms.is_empty() {
                return Ok(took_ms);
            }
            ensure!(
                ended_at.elapsed() < SHOWN_MAX,
                "{} events are not shown in time",
                waiting.len()
            );
        }
        thread::sleep(READ_EVERY);
    }
}
