//! Reads of one key of a flow's state over HTTP, while the flow updates it, beside gets from Valkey.

use std::iter;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use fastrand::Rng;
use millstream::{Flow, Job, Node, Response};
use millstream_flow::FlowSettings;
use millstream_flow::sources::Generator;
use serde::{Deserialize, Serialize};

use super::clients::{self, Answered, Asks, Clients, Phase};
use super::host::local;
use crate::child::{self, Working, hear, report};
use crate::http;
use crate::keys::load::{self, Requests};
use crate::keys::valkey::{self, Sync, Valkey, has_valkey};
use crate::measure::{Bench, median};
use crate::project::build_peers;
use crate::report::{Better, Case};
use crate::thread_cpu::ThreadCpu;

pub const POINT_READS: &str = "point-reads";

/// Updates of the state in a second.
const UPDATES_PER_SECOND: f64 = 100_000.0;

const CONNECTIONS: usize = 64;

/// Reads in a second of all connections together, where latencies are measured.
const READS_PER_SECOND: f64 = 5_000.0;

/// The share of a processor of the clients in that measurement.
const PERIOD: Duration = Duration::from_micros(200);
const PART: Duration = Duration::from_micros(50);

/// The most that the 99th percentile may be, in milliseconds.
const P99_MS_MAX: f64 = 1.0;

/// The least ratio of our reads in a second of processor time to those of Valkey.
const READS_TARGET: f64 = 0.8;

/// The flow that updates the state, and the state.
const UPDATES: &str = "updates";
const COUNTS: &str = "counts";

/// The serving flow that reads the state.
const SERVING: &str = "serving";

/// The threads of the HTTP server.
const HTTP_THREADS: &str = "millstream-http";

/// The ways to read, each with its name in the results and its path.
const WAYS: [(&str, &str); 2] = [
    ("state", "/state/updates/counts/"),
    ("serving-flow", "/q/serving/"),
];

/// The child process with the flows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Host {
    dir: PathBuf,
    keys: u64,
}

impl child::Task for Host {
    const NAME: &'static str = "serving/point-reads";

    fn run(self) -> Result<()> {
        let Host { dir, keys } = self;
        let node = Node::embedded(dir)?;
        let settings = FlowSettings::default();
        let workers = settings.workers.get() as u64;
        let clock = Arc::clone(&settings.clock);
        // The first updates are of each key in turn, so that readers find all of them.
        let sources = (0..workers).map(|worker| {
            let update = move |number| {
                let number: u64 = number * workers + worker;
                match number < keys {
                    true => number,
                    false => Rng::with_seed(number).u64(..keys),
                }
            };
            Generator::new(update).rate(UPDATES_PER_SECOND / workers as f64, Arc::clone(&clock))
        });
        let sources: Vec<_> = sources.collect();
        let flow = Flow::with_settings(UPDATES, settings);
        let updates = flow.sources(&node, "keys", sources);
        let counts = flow.engine().values::<u64, u64>(COUNTS);
        let updates = updates
            .key_by(|key| *key)
            .fold("count", &counts, |count, _| {
                *count = Some(count.unwrap_or(0) + 1);
            });
        let serving = Flow::new(SERVING).requests().map(move |call| {
            let key = call.segment(0).and_then(|key| key.parse().ok());
            call.reply(match key.and_then(|key| counts.get(&key)) {
                Some(count) => Response::json(&count),
                None => Response::not_found("there is no count of this key"),
            })
        });
        let job = Job::from([updates, serving.respond()])
            .http(local())
            .start()?;
        report(&job.http_address().context("it serves HTTP")?)?;
        let _end: Option<()> = hear()?;
        Ok(())
    }
}

/// The figures of a contender in a round.
#[derive(Clone, Copy)]
struct Ran {
    reads_per_cpu_s: f64,
    /// One read after another on each connection, as fast as they are answered.
    fastest: load::Answered,
    /// At the given rate.
    steady: Answered,
}

type Pick = fn(&Ran) -> f64;

/// A server that is asked for keys.
struct Contender<'a> {
    address: SocketAddr,
    process: u32,
    asks: Asks,
    requests: Vec<Requests>,
    answer: load::Answer<'a>,
    /// The threads of the process that read; all for none.
    threads: &'a [&'a str],
}

pub fn point_reads(bench: &Bench) -> Result<Vec<Case>> {
    if !bench.is_quick() {
        build_peers(["valkey"]);
    }
    let numbers = bench.size(100_000, 500);
    let folder = bench.folder(POINT_READS, 4 << 30)?;
    let host = Host {
        dir: folder.path().join("data"),
        keys: numbers,
    };
    let mut child = Working::start(&host)?;
    let address: SocketAddr = child.hear()?;
    wait_for(address, numbers)?;
    let of_ours = |(_, path): &(&str, &str)| {
        let request = |key: u64| http::get(address, &format!("{path}{key}"));
        Contender {
            address,
            process: child.id(),
            asks: Asks::Path {
                before: (*path).to_owned(),
                numbers,
            },
            requests: requests(numbers, request),
            answer: &http_answer,
            threads: &[HTTP_THREADS, SERVING],
        }
    };
    let mut contenders: Vec<Contender<'_>> = WAYS.iter().map(of_ours).collect();
    let valkey = match has_valkey() {
        true => Some(Valkey::start(
            bench,
            "valkey-point-reads",
            Sync::EverySecond,
        )?),
        false => None,
    };
    if let Some(valkey) = &valkey {
        fill(valkey, numbers)?;
        let request = |key: u64| valkey::command(&[b"GET", key.to_string().as_bytes()]);
        contenders.push(Contender {
            address: valkey.address,
            process: valkey.id(),
            asks: Asks::Valkey { numbers },
            requests: requests(numbers, request),
            answer: &valkey::answer,
            threads: &[],
        });
    }
    let rounds = bench.turns(contenders.len(), |place| contenders[place].run(bench))?;
    let ways = WAYS.iter().zip(&rounds);
    let valkey = rounds.get(WAYS.len());
    let cases = ways.flat_map(|((way, _), ours)| cases(way, ours, valkey));
    Ok(cases.collect())
}

/// Checks the first answer among received bytes, and returns its length; `None` if it is not whole.
fn http_answer(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(answer) = http::answer(bytes)? else {
        return Ok(None);
    };
    ensure!(answer.status == 200, "the server answers {}", answer.status);
    Ok(Some(answer.end))
}

/// Waits until the last keys have a count, and so all of them.
fn wait_for(address: SocketAddr, numbers: u64) -> Result<()> {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    let since = Instant::now();
    let mut visitor = http::Visitor::to(address)?;
    for number in (0..numbers).rev().take(100) {
        for (_, path) in WAYS {
            while visitor.get(&format!("{path}{number}"))?.0 != 200 {
                ensure!(since.elapsed() < WAIT_MAX, "the key {number} has no count");
                thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Ok(())
}

/// Makes the requests of all connections, for random keys.
fn requests(numbers: u64, request: impl Fn(u64) -> Bytes) -> Vec<Requests> {
    const OF_CONNECTION: usize = 400;
    let of_connection = |connection: usize| {
        let mut rng = Rng::with_seed(connection as u64);
        let batches = iter::repeat_with(|| request(rng.u64(..numbers)));
        Requests {
            batches: batches.take(OF_CONNECTION).collect(),
            answers: 1,
        }
    };
    (0..CONNECTIONS).map(of_connection).collect()
}

/// Gives each key of Valkey a value as short as ours.
fn fill(valkey: &Valkey, numbers: u64) -> Result<()> {
    const KEYS_OF_COMMAND: usize = 1_000;
    let numbers: Vec<String> = (0..numbers).map(|number| number.to_string()).collect();
    let batches = numbers.chunks(KEYS_OF_COMMAND).map(|numbers| {
        let pairs = numbers.iter().flat_map(|number| [number.as_bytes(), b"42"]);
        let words: Vec<&[u8]> = iter::once(&b"MSET"[..]).chain(pairs).collect();
        valkey::command(&words)
    });
    let requests = Requests {
        batches: batches.collect(),
        answers: 1,
    };
    load::run_once(valkey.address, &requests, &valkey::answer)
}

impl Contender<'_> {
    fn run(&self, bench: &Bench) -> Result<Ran> {
        let lasts = Duration::from_millis(bench.size(5_000, 200));
        let mut cpu = ThreadCpu::of(self.process)?;
        let fastest = load::run(self.address, &self.requests, self.answer, lasts)?;
        cpu.look()?;
        let reads = fastest.requests_per_second * lasts.as_secs_f64();
        let cpu_s = match self.threads {
            [] => cpu.all_s(),
            threads => threads.iter().map(|name| cpu.named_s(name)).sum(),
        };
        let mut working = Working::start(&Clients {
            address: self.address,
            connections: CONNECTIONS,
            asks: self.asks.clone(),
            period: PERIOD,
            part: PART,
        })?;
        let phase = |lasts| Phase {
            per_second: Some(bench.size(READS_PER_SECOND, READS_PER_SECOND / 10.0)),
            lasts,
        };
        // Connections and caches get warm.
        clients::run(&mut working, phase(lasts / 5))?;
        let steady = clients::run(&mut working, phase(lasts))?;
        Ok(Ran {
            reads_per_cpu_s: reads / cpu_s,
            fastest,
            steady,
        })
    }
}

/// The cases of one way to read.
fn cases(way: &str, ours: &[Ran], valkey: Option<&Vec<Ran>>) -> [Case; 2] {
    let is_state = way == WAYS[0].0;
    let all = |rounds: &[Ran], pick: Pick| -> Vec<f64> { rounds.iter().map(pick).collect() };
    let name = |figure: &str| format!("{POINT_READS}/{way}/{figure}");
    let per_cpu_s: Pick = |ran| ran.reads_per_cpu_s / 1e3;
    let mut cost = Case::new(
        name("cost"),
        "k reads/CPU-s",
        Better::Higher,
        all(ours, per_cpu_s),
    );
    let p99_ms: Pick = |ran| ran.steady.p99_ms;
    let mut latency = Case::new(name("p99"), "ms", Better::Lower, all(ours, p99_ms));
    if is_state {
        latency = latency.bound(P99_MS_MAX);
    }
    if let Some(valkey) = valkey {
        cost = cost.by_hand(all(valkey, per_cpu_s));
        if is_state {
            cost = cost.target(READS_TARGET);
        }
        latency = latency.peer("Valkey", median(&all(valkey, p99_ms)));
    }
    let of_cost: [(&str, Pick); 3] = [
        ("k_reads_per_s", |ran| ran.fastest.requests_per_second / 1e3),
        ("p50_ms", |ran| ran.fastest.p50_us / 1e3),
        ("p99_ms", |ran| ran.fastest.p99_us / 1e3),
    ];
    let of_latency: [(&str, Pick); 3] = [
        ("p50_ms", |ran| ran.steady.p50_ms),
        ("reads_per_s", |ran| ran.steady.per_second),
        ("sent_late_p99_ms", |ran| ran.steady.late_p99_ms),
    ];
    let contenders = [
        ("", Some(ours)),
        ("valkey_", valkey.map(|valkey| &valkey[..])),
    ];
    for (prefix, rounds) in contenders {
        let Some(rounds) = rounds else { continue };
        for (figure, pick) in of_cost {
            cost = cost.detail(&format!("{prefix}{figure}"), median(&all(rounds, pick)));
        }
        for (figure, pick) in of_latency {
            latency = latency.detail(&format!("{prefix}{figure}"), median(&all(rounds, pick)));
        }
    }
    [cost, latency]
}
