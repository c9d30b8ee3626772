//! Keys are linearizable, also if the server is killed: clients see the operations on a key as if each took effect at
//! one moment between its request and its answer.

mod clients;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use millstream_base::partition_of_key;
use millstream_testing::linearizable::{
    Clock, KeyAnswer, KeyCall, KeyCondition, KeyOperation, Operation, check_keys,
};
use tempfile::tempdir;
use tokio::runtime::{Handle, Runtime};

use self::clients::{Door, Http, Kind, Native, Outcome, Request, STREAM};
use crate::http::start;
use crate::support::{Server, wait_until};

const PARTITIONS: usize = 2;

/// Half of them use native requests, the others HTTP.
const CLIENTS: usize = 8;

/// The client that looks after the accounts while no other one is connected.
const KEEPER: usize = CLIENTS;

const KILLS: usize = 3;

/// Half of all writes are of the first one.
const KEYS: [&str; 5] = ["key-hot", "key-a", "key-b", "key-c", "key-d"];

/// Keys whose sum never changes, in both partitions.
const ACCOUNTS: [&str; 4] = ["account-0", "account-1", "account-2", "account-3"];

/// The value of each account at first.
const BALANCE: i64 = 1_000;

/// A key of each partition.
const PROBES: [&str; PARTITIONS] = ["probe-0", "probe-4"];

/// The time for the first look-ups and writes after a start: the transactions of the run before have ended before the server
/// listens, so nothing waits for them.
const PROMPT_MAX: Duration = Duration::from_secs(5);

/// Settings with which compaction drops older versions and deletions at once.
const COMPACTION: [&str; 4] = [
    "max.compaction.lag.ms=100",
    "min.cleanable.dirty.ratio=0.01",
    "delete.retention.ms=0",
    "file.delete.delay.ms=0",
];

/// A search of a history of a run takes some thousands.
const STEPS_MAX: u64 = 2_000_000;

fn partition(key: &str) -> usize {
    partition_of_key(key.as_bytes(), PARTITIONS)
}

/// The share of the operations of clients.
#[derive(Clone, Copy)]
struct Mix {
    /// For each client.
    operations: usize,
    /// Transfers between accounts, in percent.
    transfers: u8,
}

type History = Vec<(String, KeyOperation)>;

/// Where the server listens.
#[derive(Clone, Default)]
struct Place {
    /// The starts of the server.
    start: usize,
    native: String,
    http: String,
}

/// The state that all clients of a run share.
struct Shared {
    runtime: Handle,
    clock: Clock,
    place: Mutex<Place>,
    moved: Condvar,
    /// The requests that have ended.
    ended: AtomicUsize,
    /// Recent versions of keys.
    versions: Mutex<HashMap<&'static str, u64>>,
}

impl Shared {
    /// Waits for another start of the server than this one, which is gone.
    fn place_after(&self, start: usize) -> Place {
        let place = self.place.lock().unwrap();
        let same = |place: &mut Place| place.start == start;
        let time = Duration::from_secs(60);
        let (place, waited) = self.moved.wait_timeout_while(place, time, same).unwrap();
        assert!(!waited.timed_out(), "the server has closed a connection");
        place.clone()
    }

    fn listens_at(&self, native: &str, http: &str) {
        let mut place = self.place.lock().unwrap();
        *place = Place {
            start: place.start + 1,
            native: native.to_owned(),
            http: http.to_owned(),
        };
        drop(place);
        self.moved.notify_all();
    }

    fn door(&self, client: usize, place: &Place) -> Box<dyn Door> {
        match client % 2 {
            0 => Box::new(Native::new(&self.runtime, &place.native)),
            _ => Box::new(Http::new(&place.http)),
        }
    }

    /// Makes a request and adds its operations to a history.
    fn ask(
        &self,
        client: usize,
        door: &mut dyn Door,
        request: &Request,
        history: &mut History,
    ) -> Outcome {
        let called_at = self.clock.now();
        let outcome = door.ask(request);
        let at = self.clock.now();
        let answer = |place: usize| match &outcome {
            Outcome::Answered(answers) => Some(Some((at, answers[place]))),
            Outcome::Refused | Outcome::NotSent => None,
            Outcome::Lost => Some(None),
        };
        for (place, (key, call)) in request.calls.iter().enumerate() {
            let Some(answer) = answer(place) else {
                continue;
            };
            if let Some((
                _,
                KeyAnswer::Found(Some((_, version)))
                | KeyAnswer::Changed {
                    version: Some(version),
                    ..
                },
            )) = answer
            {
                self.versions.lock().unwrap().insert(key, version);
            }
            let operation = Operation {
                client,
                called_at,
                call: *call,
                answer,
            };
            history.push(((*key).to_owned(), operation));
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        outcome
    }
}

fn alone(key: &'static str, call: KeyCall) -> Request {
    Request {
        kind: Kind::Alone,
        calls: vec![(key, call)],
    }
}

fn get_many(keys: &[&'static str], kind: Kind) -> Request {
    Request {
        kind,
        calls: keys.iter().map(|key| (*key, KeyCall::Get)).collect(),
    }
}

/// Draws the next request of a client. The values of all puts differ.
fn draw(shared: &Shared, mix: Mix, unique: usize, rng: &mut Rng) -> Request {
    if rng.u8(..100) < mix.transfers {
        let from = rng.usize(..ACCOUNTS.len());
        let to = (from + rng.usize(1..ACCOUNTS.len())) % ACCOUNTS.len();
        let amount = rng.i64(1..100);
        let calls = [(from, -amount), (to, amount)];
        let calls = calls.map(|(account, amount)| (ACCOUNTS[account], KeyCall::Add(amount)));
        return Request {
            kind: Kind::Together,
            calls: calls.to_vec(),
        };
    }
    let key = match rng.bool() {
        true => KEYS[0],
        false => KEYS[rng.usize(1..KEYS.len())],
    };
    let value = (unique as i64 + 1) * 1_000_000;
    let known = shared.versions.lock().unwrap().get(key).copied();
    let known = known.map_or(KeyCondition::Absent, KeyCondition::Version);
    match rng.u8(..100) {
        // Two keys together, perhaps of one partition.
        0..4 => Request {
            kind: Kind::Together,
            calls: vec![
                (key, KeyCall::Put(value, KeyCondition::Any)),
                (
                    if key == KEYS[1] { KEYS[2] } else { KEYS[1] },
                    KeyCall::Add(rng.i64(1..9)),
                ),
            ],
        },
        4..22 => alone(key, KeyCall::Put(value, KeyCondition::Any)),
        22..40 => alone(key, KeyCall::Put(value, known)),
        40..48 => alone(key, KeyCall::Put(value, KeyCondition::Absent)),
        48..51 => alone(key, KeyCall::Put(value, KeyCondition::Present)),
        51..62 => alone(key, KeyCall::Add(rng.i64(1..9))),
        62..67 => alone(key, KeyCall::Delete(KeyCondition::Any)),
        67..72 if known != KeyCondition::Absent => alone(key, KeyCall::Delete(known)),
        67..88 => alone(key, KeyCall::Get),
        88..92 => get_many(&KEYS, Kind::Scan),
        92..96 => get_many(&ACCOUNTS, Kind::GetMany),
        _ => get_many(&KEYS[..3], Kind::GetMany),
    }
}

fn run_client(shared: &Shared, mix: Mix, client: usize, mut rng: Rng) -> History {
    let mut history = Vec::new();
    let mut place = shared.place_after(0);
    let mut door = shared.door(client, &place);
    for number in 0..mix.operations {
        let request = draw(shared, mix, client * mix.operations + number, &mut rng);
        match shared.ask(client, &mut *door, &request, &mut history) {
            Outcome::Answered(_) | Outcome::Refused => {}
            Outcome::NotSent | Outcome::Lost => {
                place = shared.place_after(place.start);
                door = shared.door(client, &place);
            }
        }
    }
    history
}

/// Checks the state after a start, before the clients return: each transfer is complete or absent, and no open transfer
/// delays look-ups.
fn check_start(shared: &Shared, native: &str, history: &mut History) {
    let since = Instant::now();
    let mut door = Native::new(&shared.runtime, native);
    let mut ask = |request: &Request| match shared.ask(KEEPER, &mut door, request, history) {
        Outcome::Answered(answers) => answers,
        outcome => panic!("{request:?}: {outcome:?}"),
    };
    let balances = ask(&get_many(&ACCOUNTS, Kind::GetMany));
    let sum = balances.iter().map(|balance| match balance {
        KeyAnswer::Found(Some((value, _))) => *value,
        answer => panic!("an account is gone: {answer:?}"),
    });
    assert_eq!(
        sum.sum::<i64>(),
        BALANCE * ACCOUNTS.len() as i64,
        "{balances:?}"
    );
    for probe in PROBES {
        let KeyAnswer::Changed {
            sum: Some(sum),
            version: Some(version),
        } = ask(&alone(probe, KeyCall::Add(1)))[0]
        else {
            panic!("{probe} has no sum");
        };
        let found = ask(&alone(probe, KeyCall::Get));
        assert_eq!(found, [KeyAnswer::Found(Some((sum, version)))]);
    }
    assert!(since.elapsed() < PROMPT_MAX, "{:?}", since.elapsed());
}

fn create(server: &Server, shared: &Shared, history: &mut History) {
    let lanes = PARTITIONS.to_string();
    let create = ["stream", "create", STREAM, "--keyed", "--lanes", &lanes];
    server.run(&create).assert_done();
    // Compaction goes on all the time.
    for setting in COMPACTION {
        let stream = format!("stream/{STREAM}");
        server
            .run(&["config", "set", &stream, setting])
            .assert_done();
    }
    let puts = ACCOUNTS.map(|account| (account, KeyCall::Put(BALANCE, KeyCondition::Any)));
    let request = Request {
        kind: Kind::Together,
        calls: puts.to_vec(),
    };
    let mut door = Native::new(&shared.runtime, server.address());
    let outcome = shared.ask(KEEPER, &mut door, &request, history);
    assert!(matches!(outcome, Outcome::Answered(_)), "{outcome:?}");
}

/// Lets clients use the keys of a server that is killed meanwhile, and returns the outcomes that they saw.
fn run(data: &Path, mix: Mix, seed: u64) -> History {
    let mut rng = Rng::with_seed(seed);
    let runtime = Runtime::new().unwrap();
    let shared = Shared {
        runtime: runtime.handle().clone(),
        clock: Clock::default(),
        place: Mutex::default(),
        moved: Condvar::new(),
        ended: AtomicUsize::new(0),
        versions: Mutex::default(),
    };
    let (mut server, mut http) = start(data, &[]);
    let mut history = Vec::new();
    create(&server, &shared, &mut history);
    let server = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (shared, rng) = (&shared, rng.fork());
                scope.spawn(move || run_client(shared, mix, client, rng))
            })
            .collect();
        let share = CLIENTS * mix.operations / (KILLS + 1);
        for kill in 0..=KILLS {
            check_start(&shared, server.address(), &mut history);
            shared.listens_at(server.address(), &http);
            let until = kill * share + rng.usize(share / 2..share);
            wait_until("the clients go on", || {
                shared.ended.load(Ordering::SeqCst) >= until
                    || clients.iter().any(|client| client.is_finished())
            });
            if kill == KILLS {
                break;
            }
            thread::sleep(Duration::from_micros(rng.u64(..5_000)));
            let mut child = server.into_child();
            child.kill().unwrap();
            child.wait().unwrap();
            (server, http) = start(data, &[]);
        }
        for client in clients {
            history.extend(client.join().unwrap());
        }
        server
    });
    check_start(&shared, server.address(), &mut history);
    wait_until("both partitions are compacted", || {
        let described = server.run(&["stream", "describe", STREAM, "--json"]);
        let described = described.assert_done().json();
        let mut lanes = described["lanes"].as_array().unwrap().iter();
        lanes.all(|lane| lane["compaction"]["passes"].as_u64() > Some(0))
    });
    history
}

/// Checks runs with the seeds from `MILLSTREAM_SEED` on, `MILLSTREAM_CASES` of them; without these variables, one.
fn check_runs(mix: Mix) {
    let variable = |name: &str| {
        let value = std::env::var(name).ok();
        value.map(|value| value.parse::<u64>().expect(&value))
    };
    let first = variable("MILLSTREAM_SEED").unwrap_or(0);
    let cases = variable("MILLSTREAM_CASES").unwrap_or(1);
    for seed in first..first + cases {
        let dir = tempdir().unwrap();
        let history = run(dir.path(), mix, seed);
        let lost = history.iter().filter(|(_, it)| it.answer.is_none());
        let (count, lost) = (history.len(), lost.count());
        assert!(
            lost > 0,
            "no kill has come between a request and its answer"
        );
        eprintln!("seed {seed}: {count} operations, {lost} of them without an answer");
        check_keys(history, STEPS_MAX).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

#[test]
fn keys_of_a_killed_server_are_linearizable() {
    check_runs(Mix {
        operations: 300,
        transfers: 8,
    });
}

#[test]
fn a_killed_server_applies_all_changes_of_a_batch_or_none() {
    check_runs(Mix {
        operations: 100,
        transfers: 60,
    });
}

#[test]
fn accounts_and_probes_are_in_both_partitions() {
    for keys in [&ACCOUNTS[..], &PROBES, &KEYS] {
        let partitions = keys.iter().map(|key| partition(key));
        let sum: usize = partitions.sum();
        assert!((1..keys.len()).contains(&sum), "{keys:?}");
    }
}
