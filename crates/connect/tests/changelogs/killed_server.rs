//! A server that is killed while a flow reads its state.

use std::env;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::ClientConfig;
use millstream_connect::ServerCheckpoints;
use millstream_flow::sources::Generator;
use millstream_flow::{
    Checkpointing, Flow, FlowError, FlowSettings, ReadLevel, Resume, Running, StateReader, Values,
};
use millstream_log::{Log, LogConfig};

const DIR: &str = "MILLSTREAM_TEST_DIR";
const ADDRESS: &str = "MILLSTREAM_TEST_ADDRESS";

/// The longest life of a server, and the longest wait for a flow.
pub const TIME_MAX: Duration = Duration::from_secs(120);

/// More than a start reads at once.
const KEYS: u64 = 70_000;
const NUMBERS: u64 = KEYS + 20_000;

/// The process that is killed: no test of its own.
#[test]
#[ignore = "started by the tests below"]
fn server_that_the_test_kills() {
    let (Ok(dir), Ok(address)) = (env::var(DIR), env::var(ADDRESS)) else {
        return;
    };
    let log = Log::open(LogConfig::with_pool(dir, ByteSize(64 << 20))).unwrap();
    let config = BrokerConfig::new(address.parse().unwrap());
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let _server = Server::start(&TcpNetwork, config, log, clock, random).unwrap();
    thread::sleep(TIME_MAX);
}

/// A server in a process of its own.
pub struct ServerProcess {
    child: Child,
}

impl ServerProcess {
    pub fn start(dir: &Path, address: &str) -> ServerProcess {
        let test = "killed_server::server_that_the_test_kills";
        let mut command = millstream_testing::command(env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", test, "--nocapture"])
            .env(DIR, dir)
            .env(ADDRESS, address)
            .stdout(Stdio::null());
        let child = millstream_testing::start(&mut command, TIME_MAX).unwrap();
        let started_at = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(started_at.elapsed() < TIME_MAX, "the server does not start");
            thread::sleep(Duration::from_millis(10));
        }
        ServerProcess { child }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns an address that is free now.
pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Each key comes once, then some come again.
fn key(number: u64) -> u64 {
    match number {
        ..KEYS => number,
        _ => number.wrapping_mul(number) % KEYS,
    }
}

/// The settings of a flow that tries as long to reach its server.
pub fn settings(address: &str, resume: Resume, request_timeout: Duration) -> FlowSettings {
    let config = ClientConfig {
        request_timeout,
        ..ClientConfig::new(address)
    };
    FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::new(ServerCheckpoints::new(&config, "shop").unwrap()),
            interval: Some(Duration::from_millis(5)),
            resume,
        }),
        ..FlowSettings::default()
    }
}

/// Counts the first numbers by key.
fn start(
    address: &str,
    resume: Resume,
    count: u64,
) -> Result<(Running, Values<u64, u64>), FlowError> {
    let settings = settings(address, resume, Duration::from_secs(10));
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<u64, u64>("users");
    let numbers = Generator::new(|number| {
        // Slow enough to be interrupted, once all keys are there.
        if number >= KEYS && number % 64 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        number
    });
    flow.source("numbers", numbers.limit(count))
        .key_by(|number| key(*number))
        .count("count", &counts);
    Ok((flow.run()?, counts))
}

/// Lets a flow count each key once, and drops it when a complete checkpoint has all keys.
fn fill(address: &str) {
    let (_running, counts) = start(address, Resume::Never, NUMBERS).unwrap();
    let last = (KEYS - 1).to_string();
    let started_at = Instant::now();
    loop {
        let read = counts.ordered().unwrap().read(&last, ReadLevel::Committed);
        if read.is_some_and(|read| read.value.is_some()) {
            break;
        }
        assert!(started_at.elapsed() < TIME_MAX, "the keys do not come");
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn wait_for_end(running: &Running) {
    let started_at = Instant::now();
    while !running.is_finished() {
        assert!(started_at.elapsed() < TIME_MAX, "it stands still");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flow_counts_each_number_once_although_its_server_is_killed_while_it_reads_state() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let mut server = ServerProcess::start(dir.path(), &address);
    fill(&address);
    let mut lazy_starts = 0;
    for pause_ms in [0, 30, 100] {
        let (running, counts) = start(&address, Resume::Always, NUMBERS).unwrap();
        thread::sleep(Duration::from_millis(pause_ms));
        lazy_starts += u32::from(!counts.is_whole().unwrap());
        server.kill();
        thread::sleep(Duration::from_millis(200));
        server = ServerProcess::start(dir.path(), &address);
        // Lists wait for all values.
        assert_eq!(counts.keys(usize::MAX).len() as u64, KEYS);
        // A flow that has counted all numbers while the server was away has ended with an error.
        let kept = running.checkpoints().unwrap().kept;
        let started_at = Instant::now();
        while !running.is_finished() && running.checkpoints().unwrap().kept == kept {
            assert!(started_at.elapsed() < TIME_MAX, "no checkpoint is kept");
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(lazy_starts > 0, "no start was lazy");
    let (running, counts) = start(&address, Resume::Always, NUMBERS).unwrap();
    wait_for_end(&running);
    running.join().unwrap();
    let mut expected = vec![0; KEYS as usize];
    (0..NUMBERS).for_each(|number| expected[key(number) as usize] += 1);
    for (key, count) in (0..).zip(expected) {
        assert_eq!(counts.get(&key), Some(count), "key {key}");
    }
    server.kill();
}

#[test]
fn a_flow_whose_server_stays_away_while_it_reads_state_ends_and_names_the_stream() {
    let (dir, address) = (tempfile::tempdir().unwrap(), free_address());
    let server = ServerProcess::start(dir.path(), &address);
    fill(&address);
    let (running, counts) = start(&address, Resume::Always, u64::MAX).unwrap();
    let is_whole = counts.is_whole().unwrap();
    server.kill();
    wait_for_end(&running);
    let error = running.join().unwrap_err().to_string();
    assert!(error.contains("shop.state.users"), "{error}");
    assert!(!is_whole, "the start was not lazy");

    // Dropping a flow does not wait for the server.
    let server = ServerProcess::start(dir.path(), &address);
    let (running, _) = start(&address, Resume::Always, u64::MAX).unwrap();
    server.kill();
    let began = Instant::now();
    drop(running);
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}
