//! A server that is killed before a flow ends: the flow waits for it, within a bound.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{Flow, Resume, Running, Source, Values};

use crate::killed_server::{ServerProcess, TIME_MAX, free_address, settings, wait_for_end};

/// A flow that counts its last number when the test allows it.
struct Gated {
    running: Running,
    counts: Values<u64, u64>,
    gate: Arc<AtomicBool>,
}

/// The numbers of a gated flow, and their keys.
const FEW_NUMBERS: u64 = 2_000;
const FEW_KEYS: u64 = 100;

/// A source whose last number comes when the gate is open.
fn gated(gate: &Arc<AtomicBool>) -> impl Source<Item = u64> + use<> {
    let (gate, began) = (Arc::clone(gate), Instant::now());
    let numbers = Generator::new(move |number| {
        while number + 1 == FEW_NUMBERS && !gate.load(Ordering::Relaxed) {
            assert!(began.elapsed() < TIME_MAX, "the gate stays closed");
            thread::sleep(Duration::from_millis(1));
        }
        number
    });
    numbers.limit(FEW_NUMBERS)
}

impl Gated {
    fn start(address: &str, resume: Resume, request_timeout: Duration) -> Gated {
        let gate = Arc::<AtomicBool>::default();
        let flow = Flow::with_settings("shop", settings(address, resume, request_timeout));
        let counts = flow.values::<u64, u64>("users");
        flow.source("numbers", gated(&gate))
            .key_by(|number| number % FEW_KEYS)
            .count("count", &counts);
        Gated {
            running: flow.run().unwrap(),
            counts,
            gate,
        }
    }

    fn open(&self) {
        self.gate.store(true, Ordering::Relaxed);
    }

    fn check_counts(&self) {
        wait_for_end(&self.running);
        self.running.join().unwrap();
        for key in 0..FEW_KEYS {
            assert_eq!(self.counts.get(&key), Some(FEW_NUMBERS / FEW_KEYS));
        }
    }
}

#[test]
fn a_flow_that_ends_while_its_server_restarts_waits_for_it() {
    let address = free_address();
    for pause_ms in [0, 20, 500, 3_000] {
        let dir = tempfile::tempdir().unwrap();
        let server = ServerProcess::start(dir.path(), &address);
        let flow = Gated::start(&address, Resume::Never, Duration::from_secs(60));
        if pause_ms == 0 {
            // The end and the kill come together.
            flow.open();
        }
        server.kill();
        flow.open();
        thread::sleep(Duration::from_millis(pause_ms));
        let server = ServerProcess::start(dir.path(), &address);
        flow.check_counts();
        drop(flow);
        // Its last checkpoint is complete.
        let flow = Gated::start(&address, Resume::Always, Duration::from_secs(60));
        flow.check_counts();
        drop(flow);
        server.kill();
    }
}

/// Adds up numbers to the end, with its state in shards alone, while the server is away.
fn end_without_server(dir: &Path, address: &str, request_timeout: Duration) -> Running {
    let server = ServerProcess::start(dir, address);
    let gate = Arc::<AtomicBool>::default();
    let settings = settings(address, Resume::IfAny, request_timeout);
    let flow = Flow::with_settings("shop", settings);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", gated(&gate))
        .fold_local(&sum, |sum, number| *sum += number);
    let running = flow.run().unwrap();
    server.kill();
    gate.store(true, Ordering::Relaxed);
    running
}

fn wait_until_failing(running: &Running) {
    let started_at = Instant::now();
    while running.checkpoints().unwrap().failed < 5 {
        assert!(!running.is_finished());
        assert!(started_at.elapsed() < TIME_MAX, "no shard fails");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flow_whose_last_shard_meets_no_server_stores_it_later() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let running = end_without_server(dir.path(), &address, Duration::from_secs(60));
    wait_until_failing(&running);
    let server = ServerProcess::start(dir.path(), &address);
    wait_for_end(&running);
    running.join().unwrap();
    server.kill();
}

#[test]
fn a_flow_that_ends_while_its_server_stays_away_fails_in_time() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let (began, retry_for) = (Instant::now(), Duration::from_secs(3));
    let running = end_without_server(dir.path(), &address, retry_for);
    wait_for_end(&running);
    let error = running.join().unwrap_err().to_string();
    let expected = "the last checkpoint is not stored";
    assert!(error.contains(expected), "{error}");
    assert!(error.contains("cannot reach a server"), "{error}");
    assert!(began.elapsed() >= retry_for, "{:?}", began.elapsed());
    drop(running);

    let running = end_without_server(dir.path(), &address, TIME_MAX);
    wait_until_failing(&running);
    let began = Instant::now();
    drop(running);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
}
