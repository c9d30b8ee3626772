//! Gets and puts over the network, beside Valkey.

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use bytes::Bytes;
use fastrand::Rng;

use super::data::{key, value};
use super::in_process::keys;
use super::load::{self, Answered, Requests};
use super::ours::{self, Expected};
use super::valkey::{self, Sync, Valkey, has_valkey};
use crate::measure::{Bench, median};
use crate::proc::{cpu_by_thread, took};
use crate::project::{build_peers, our_program};
use crate::report::{Better, Case};
use crate::server::Server;

pub const NETWORK: &str = "network";

/// How many keys a request has when the tables are filled.
const KEYS_OF_FILL: u64 = 1000;

/// The operation of a request on its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Get,
    /// Answered before the disk has it; the disk has it within a second.
    Put,
    /// Answered when the disk has it.
    DurablePut,
}

/// How clients send requests.
struct Shape {
    name: &'static str,
    connections: u64,
    /// How many requests are sent before the first answer.
    batch: usize,
    keys_of_request: usize,
}

const ONE: Shape = Shape {
    name: "1-connection",
    connections: 1,
    batch: 1,
    keys_of_request: 1,
};
const MANY: Shape = Shape {
    name: "50-connections",
    connections: 50,
    batch: 1,
    keys_of_request: 1,
};
const PIPELINED: Shape = Shape {
    name: "pipelined",
    connections: 4,
    batch: 16,
    keys_of_request: 1,
};
const MULTI: Shape = Shape {
    name: "100-keys",
    connections: 4,
    batch: 1,
    keys_of_request: 100,
};

/// Puts that wait for the disk, and gets at the same time.
const PUTS_BESIDE: Shape = Shape {
    name: "pipelined",
    connections: 8,
    batch: 16,
    keys_of_request: 1,
};
const GETS_BESIDE: Shape = Shape {
    name: "beside-durable-puts",
    connections: 8,
    batch: 1,
    keys_of_request: 1,
};

/// The least ratio of our durable puts to those of Valkey.
const DURABLE_TARGET: f64 = 1.0;

/// The least ratio of our gets to those of Valkey, whose gets wait for the sync.
const BESIDE_TARGET: f64 = 5.0;

const GRID: [(Operation, Shape); 8] = [
    (Operation::Get, MANY),
    (Operation::Get, PIPELINED),
    (Operation::Get, MULTI),
    (Operation::Put, MANY),
    (Operation::Put, PIPELINED),
    (Operation::Put, MULTI),
    (Operation::DurablePut, ONE),
    (Operation::DurablePut, MANY),
];

/// The figures of one run, with the processor time of the server for each key.
struct Ran {
    answered: Answered,
    keys_per_second: f64,
    server_cpu_us: f64,
}

type Pick = fn(&Ran) -> f64;

/// Both sides: ours with a topic of each durability, and a Valkey of each.
struct Sides {
    ours: Server,
    valkey: Option<[Valkey; 2]>,
}

pub fn network(bench: &Bench) -> Result<Vec<Case>> {
    if our_program().is_none() {
        eprintln!(
            "bench: {NETWORK} left out: no program millstream beside this one; build it first"
        );
        return Ok(Vec::new());
    }
    if !bench.is_quick() {
        build_peers(["valkey"]);
    }
    let keys = keys(bench);
    let folder = bench.folder(NETWORK, 4 << 30)?;
    let log = bench.out().join("server.log");
    let sides = Sides {
        ours: Server::start(folder.path(), &log, Vec::new())?,
        valkey: match has_valkey() {
            true => Some([
                Valkey::start(bench, "valkey-everysec", Sync::EverySecond)?,
                Valkey::start(bench, "valkey-always", Sync::Always)?,
            ]),
            false => None,
        },
    };
    sides.fill(keys)?;
    let mut cases = Vec::new();
    for (operation, shape) in &GRID {
        cases.push(sides.measure(bench, *operation, shape, keys)?);
    }
    cases.push(sides.gets_beside_puts(bench, keys)?);
    Ok(cases)
}

impl Sides {
    /// Puts the first version of each key.
    fn fill(&self, keys: u64) -> Result<()> {
        ours::create_topics(self.ours.address())?;
        for durable in [false, true] {
            let mut ours = Vec::new();
            let mut theirs = Vec::new();
            for first in (0..keys).step_by(KEYS_OF_FILL as usize) {
                let numbers: Vec<u64> = (first..keys.min(first + KEYS_OF_FILL)).collect();
                ours.push(ours::put(durable, &numbers, 0)?);
                theirs.push(valkey_command(Operation::Put, &numbers));
            }
            let requests = |batches| Requests {
                batches,
                answers: 1,
            };
            load::run_once(self.ours.address(), &requests(ours), &ours::put_answer)?;
            if let Some(valkey) = &self.valkey {
                let address = valkey[usize::from(durable)].address;
                load::run_once(address, &requests(theirs), &valkey::answer)?;
            }
        }
        Ok(())
    }

    fn measure(
        &self,
        bench: &Bench,
        operation: Operation,
        shape: &Shape,
        keys: u64,
    ) -> Result<Case> {
        let durable = operation == Operation::DurablePut;
        let contenders = self.contenders();
        let lasts = Duration::from_millis(bench.size(1000, 20));
        let ours = shape.requests(keys, |numbers| match operation {
            Operation::Get => ours::get(durable, numbers),
            Operation::Put | Operation::DurablePut => ours::put(durable, numbers, 1),
        })?;
        let theirs = shape.requests(keys, |numbers| Ok(valkey_command(operation, numbers)))?;
        let expected = Expected::learn(self.ours.address(), &ours[0].batches[0])?;
        let rounds = bench.turns(contenders, |place| {
            bench.settle_disk();
            match (place, &self.valkey) {
                (0, _) => shape.run(self.ours.id(), || {
                    load::run(
                        self.ours.address(),
                        &ours,
                        &|bytes| expected.check(bytes),
                        lasts,
                    )
                }),
                (_, Some(valkey)) => {
                    let valkey = &valkey[usize::from(durable)];
                    shape.run(valkey.id(), || {
                        load::run(valkey.address, &theirs, &valkey::answer, lasts)
                    })
                }
                (_, None) => bail!("there is no Valkey"),
            }
        })?;
        let name = match operation {
            Operation::Get => "get",
            Operation::Put => "put",
            Operation::DurablePut => "durable-put",
        };
        let pick =
            |side: usize, pick: Pick| -> Vec<f64> { rounds[side].iter().map(pick).collect() };
        let rate = |side| pick(side, |ran| ran.keys_per_second / 1e3);
        let mut case = Case::new(
            format!("{NETWORK}/{name}/{}", shape.name),
            "k keys/s",
            Better::Higher,
            rate(0),
        );
        let figures: [(&str, Pick); 3] = [
            ("p50_us", |ran| ran.answered.p50_us),
            ("p99_us", |ran| ran.answered.p99_us),
            ("server_cpu_us_per_key", |ran| ran.server_cpu_us),
        ];
        for (figure, of) in figures {
            case = case.detail(figure, median(&pick(0, of)));
        }
        if contenders == 2 {
            case = case.by_hand(rate(1));
            if operation == Operation::DurablePut {
                case = case.target(DURABLE_TARGET);
            }
            for (figure, of) in figures {
                case = case.detail(&format!("valkey_{figure}"), median(&pick(1, of)));
            }
        }
        Ok(case)
    }

    /// Measures gets while other clients put durably.
    fn gets_beside_puts(&self, bench: &Bench, keys: u64) -> Result<Case> {
        const DURABLE: bool = true;
        let lasts = Duration::from_millis(bench.size(1000, 20));
        let gets = GETS_BESIDE.requests(keys, |numbers| ours::get(DURABLE, numbers))?;
        let puts = PUTS_BESIDE.requests(keys, |numbers| ours::put(DURABLE, numbers, 1))?;
        let command = |operation| move |numbers: &[u64]| Ok(valkey_command(operation, numbers));
        let their_gets = GETS_BESIDE.requests(keys, command(Operation::Get))?;
        let their_puts = PUTS_BESIDE.requests(keys, command(Operation::DurablePut))?;
        let address = self.ours.address();
        let got = Expected::learn(address, &gets[0].batches[0])?;
        let put = Expected::learn(address, &puts[0].batches[0])?;
        let rounds = bench.turns(self.contenders(), |place| {
            bench.settle_disk();
            match (place, &self.valkey) {
                (0, _) => both(
                    || load::run(address, &gets, &|bytes| got.check(bytes), lasts),
                    || load::run(address, &puts, &|bytes| put.check(bytes), lasts),
                ),
                (_, Some(valkey)) => {
                    let address = valkey[usize::from(DURABLE)].address;
                    both(
                        || load::run(address, &their_gets, &valkey::answer, lasts),
                        || load::run(address, &their_puts, &valkey::answer, lasts),
                    )
                }
                (_, None) => bail!("there is no Valkey"),
            }
        })?;
        type OfBoth = fn(&[Answered; 2]) -> f64;
        let pick =
            |side: usize, pick: OfBoth| -> Vec<f64> { rounds[side].iter().map(pick).collect() };
        let rate = |side| pick(side, |[gets, _]| gets.requests_per_second / 1e3);
        let name = format!("{NETWORK}/get/{}", GETS_BESIDE.name);
        let mut case = Case::new(name, "k keys/s", Better::Higher, rate(0));
        let figures: [(&str, OfBoth); 3] = [
            ("p50_us", |[gets, _]| gets.p50_us),
            ("p99_us", |[gets, _]| gets.p99_us),
            ("k_puts_per_s", |[_, puts]| puts.requests_per_second / 1e3),
        ];
        for (side, prefix) in ["", "valkey_"].iter().enumerate().take(rounds.len()) {
            for (figure, of) in figures {
                case = case.detail(&format!("{prefix}{figure}"), median(&pick(side, of)));
            }
        }
        Ok(match rounds.len() {
            1 => case,
            _ => case.by_hand(rate(1)).target(BESIDE_TARGET),
        })
    }

    fn contenders(&self) -> usize {
        1 + usize::from(self.valkey.is_some())
    }
}

/// Runs two tasks at the same time.
fn both<T: Send>(
    one: impl FnOnce() -> Result<T> + Send,
    other: impl FnOnce() -> Result<T> + Send,
) -> Result<[T; 2]> {
    std::thread::scope(|scope| {
        let other = scope.spawn(other);
        let one = one();
        let other = other.join().map_err(|_| anyhow!("a client panicked"))?;
        Ok([one?, other?])
    })
}

impl Shape {
    /// Makes the requests of all connections, for random keys.
    fn requests(&self, keys: u64, make: impl Fn(&[u64]) -> Result<Bytes>) -> Result<Vec<Requests>> {
        /// Of all connections together.
        const REQUESTS: usize = 25_600;
        let all_keys = self.connections as usize * self.batch * self.keys_of_request;
        let batches = (REQUESTS / all_keys).max(32);
        let connection = |connection| {
            let mut rng = Rng::with_seed(connection);
            let mut batch = || {
                let mut bytes = Vec::new();
                for _ in 0..self.batch {
                    let numbers = (0..self.keys_of_request).map(|_| rng.u64(..keys));
                    bytes.extend_from_slice(&make(&numbers.collect::<Vec<u64>>())?);
                }
                Ok(bytes.into())
            };
            Ok(Requests {
                batches: (0..batches).map(|_| batch()).collect::<Result<_>>()?,
                answers: self.batch,
            })
        };
        (0..self.connections).map(connection).collect()
    }

    fn run(&self, server: u32, load: impl FnOnce() -> Result<Answered>) -> Result<Ran> {
        let before = cpu_by_thread(server)?;
        let started_at = std::time::Instant::now();
        let answered = load()?;
        let seconds = started_at.elapsed().as_secs_f64();
        let cpu_ns: u64 = took(&before, &cpu_by_thread(server)?).sum();
        let keys_per_second = answered.requests_per_second * self.keys_of_request as f64;
        ensure!(keys_per_second > 0.0, "nothing was answered");
        Ok(Ran {
            answered,
            keys_per_second,
            server_cpu_us: cpu_ns as f64 / 1e3 / (keys_per_second * seconds),
        })
    }
}

fn valkey_command(operation: Operation, numbers: &[u64]) -> Bytes {
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();
    let values: Vec<_> = numbers.iter().map(|number| value(*number, 1)).collect();
    let mut words: Vec<&[u8]> = Vec::new();
    match (operation, numbers.len()) {
        (Operation::Get, 1) => words.push(b"GET"),
        (Operation::Get, _) => words.push(b"MGET"),
        (_, 1) => words.push(b"SET"),
        (_, _) => words.push(b"MSET"),
    }
    for (key, value) in keys.iter().zip(&values) {
        words.push(key);
        if operation != Operation::Get {
            words.push(value);
        }
    }
    valkey::command(&words)
}
