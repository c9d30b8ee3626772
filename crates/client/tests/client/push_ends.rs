//! Pushes that stall or end: the consumer is slow or goes away; the server restarts, or is killed.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use millstream_base::{ByteSize, Offset};
use millstream_broker::BrokerConfig;
use millstream_client::{
    Client, ClientConfig, ClientError, Consumer, ConsumerConfig, DeliveryPath, Fetched,
    LocalConfig, LocalSource, Start,
};
use millstream_log::{Log, LogConfig, StreamConfig};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::timeout;

use crate::consuming::{place, try_values, values, values_there};
use crate::push::{next, pushed};
use crate::support::{Node, TIME_MAX, produce, serve, wait_until};

const FOLDER: &str = "MILLSTREAM_TEST_FOLDER";

async fn from_start(client: &Client, config: ConsumerConfig) -> Consumer {
    let places = [(place("t", 0), Start::Earliest)];
    Consumer::assigned(client, config, &places).await.unwrap()
}

fn numbers(from: usize, to: usize) -> Vec<String> {
    (from..to).map(|number| number.to_string()).collect()
}

/// Reads until there are `count` values, and again the records that the server took back.
async fn read_until(consumer: &mut Consumer, values: &mut Vec<String>, count: usize) {
    while values.len() < count {
        values.extend(values_there(&next(consumer).await.unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_loses_and_doubles_no_pushed_record() {
    for (node, path) in [
        (Node::local(), DeliveryPath::Shared),
        (Node::start(), DeliveryPath::Pushed),
    ] {
        node.create("t", 1);
        let client = node.client();
        let mut consumer = from_start(&client, pushed()).await;
        let mut node = node;
        let mut values = Vec::new();
        for round in 0..4 {
            produce(&client, "t", numbers(round * 100, round * 100 + 100)).await;
            // Half of it now, and the other half from the next server.
            read_until(&mut consumer, &mut values, round * 100 + 50).await;
            node = node.restart().await;
        }
        read_until(&mut consumer, &mut values, 400).await;
        assert_eq!(values, numbers(0, 400));
        produce(&client, "t", ["last".to_owned()]).await;
        let last = next(&mut consumer).await.unwrap();
        assert_eq!(last.path(), path);
    }
}

/// A notice of progress lay behind them in the queue, and moved the position past them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_skips_no_pushed_record_before_those_that_a_filter_leaves_out() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    let config = ConsumerConfig {
        filter: Some(r#"value = "wanted""#.parse().unwrap()),
        ..pushed()
    };
    let mut consumer = from_start(&client, config).await;
    let nothing = timeout(Duration::from_millis(100), consumer.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    produce(&client, "t", ["wanted".to_owned()]).await;
    produce(&client, "t", numbers(0, 100)).await;
    // The server tells its progress after a tenth of a second.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let node = node.restart().await;
    assert_eq!(values(&next(&mut consumer).await.unwrap()), ["wanted"]);
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reclaimed_memory_is_reported_and_its_records_come_again() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", numbers(0, 10)).await;
    let mut consumer = from_start(&client, pushed()).await;
    let fetched = next(&mut consumer).await.unwrap();
    let node = node.restart().await;
    let error = try_values(&fetched).unwrap_err().to_string();
    assert!(error.contains("has taken back the memory"), "{error}");
    assert_eq!(values(&next(&mut consumer).await.unwrap()), numbers(0, 10));
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_records_of_reclaimed_memory_come_again() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    let mut consumer = from_start(&client, pushed()).await;
    let mut held = Vec::new();
    for number in 0..4 {
        produce(&client, "t", numbers(number, number + 1)).await;
        held.push(next(&mut consumer).await.unwrap());
    }
    assert_eq!(values(&held.remove(0)), ["0"]);
    drop(held.remove(0));
    let node = node.restart().await;
    assert!(held.iter().all(|fetched| try_values(fetched).is_err()));
    let place = place("t", 0);
    assert_eq!(consumer.positions()[&place], Offset(2));
    let mut again = Vec::new();
    read_until(&mut consumer, &mut again, 2).await;
    assert_eq!(again, ["2", "3"]);
    drop(node);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_consumer_loses_its_memory_and_continues_over_the_network() {
    let node = Node::local_with(|config| config.push_stall_max = Duration::from_millis(200));
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", numbers(0, 10)).await;
    let mut consumer = from_start(&client, pushed()).await;
    let fetched = next(&mut consumer).await.unwrap();
    assert_eq!(fetched.path(), DeliveryPath::Shared);
    wait_until("it is taken back", || try_values(&fetched).is_err()).await;
    let error = try_values(&fetched).unwrap_err().to_string();
    assert!(error.contains("held for too long"), "{error}");
    let again = next(&mut consumer).await.unwrap();
    assert_eq!(values(&again), numbers(0, 10));
    assert_eq!(again.path(), DeliveryPath::Pushed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiet_push_over_the_network_outlasts_the_request_timeout() {
    let node = Node::start();
    node.create("t", 1);
    let mut config = ClientConfig::new(node.address().to_string());
    config.request_timeout = Duration::from_millis(100);
    let client = Client::new(config);
    let mut consumer = from_start(&client, pushed()).await;
    let nothing = timeout(Duration::from_millis(500), consumer.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    produce(&node.client(), "t", ["late".to_owned()]).await;
    assert_eq!(values(&next(&mut consumer).await.unwrap()), ["late"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_records_can_be_read_after_their_consumer_is_dropped() {
    let node = Node::local();
    node.create("t", 1);
    let client = node.client();
    produce(&client, "t", numbers(0, 10)).await;
    let mut consumer = from_start(&client, pushed()).await;
    let fetched = next(&mut consumer).await.unwrap();
    assert_eq!(fetched.path(), DeliveryPath::Shared);
    drop(consumer);
    produce(&client, "t", numbers(10, 1000)).await;
    assert_eq!(values(&fetched), numbers(0, 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_slow_consumer_is_bounded() {
    for node in [Node::local(), Node::start()] {
        node.create("t", 1);
        let client = node.client();
        let value = "x".repeat(10_000);
        produce(&client, "t", (0..400).map(|_| value.clone())).await;
        let config = ConsumerConfig {
            prefetch_bytes: 64 << 10,
            partition_bytes_max: 32 << 10,
            ..pushed()
        };
        let mut consumer = from_start(&client, config).await;
        let mut held = vec![next(&mut consumer).await.unwrap()];
        while let Ok(fetched) = timeout(Duration::from_millis(300), consumer.next()).await {
            held.push(fetched.unwrap());
        }
        let bytes: usize = held.iter().map(Fetched::bytes).sum();
        assert!((32 << 10..=192 << 10).contains(&bytes), "{bytes}");
        let mut count: usize = held.iter().map(|fetched| values(fetched).len()).sum();
        drop(held);
        while count < 400 {
            count += values(&next(&mut consumer).await.unwrap()).len();
        }
        assert_eq!(count, 400);
    }
}

/// Processor time of a thread of this process that has this name.
fn processor_time(name: &str) -> Option<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let path = task.ok()?.path();
        let found = std::fs::read_to_string(path.join("comm")).ok()?;
        let times = std::fs::read_to_string(path.join("schedstat")).ok()?;
        (found.trim() == name).then(|| times.split(' ').next()?.parse::<u64>().ok())?
    };
    let times: Vec<u64> = tasks.filter_map(of).collect();
    (!times.is_empty()).then(|| times.iter().sum())
}

/// Needs threads that no other test has: runs in a process of its own.
#[test]
#[ignore = "the other process of the test below"]
fn idle_consumer_process() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let node = Node::local();
        node.create("t", 1);
        let client = node.client();
        produce(&client, "t", numbers(0, 10)).await;
        let mut consumer = from_start(&client, pushed()).await;
        assert_eq!(values(&next(&mut consumer).await.unwrap()).len(), 10);
        let process = || Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap();
        let nothing = timeout(Duration::from_millis(200), consumer.next()).await;
        assert!(nothing.is_err());
        let (before, thread) = (process(), processor_time("millstream-cons").unwrap());
        let nothing = timeout(Duration::from_secs(1), consumer.next()).await;
        assert!(nothing.is_err());
        let used = process() - before;
        assert_eq!(processor_time("millstream-cons"), Some(thread));
        // Includes the server's housekeeping.
        assert!(used < Duration::from_millis(30), "{used:?}");
    });
}

#[test]
fn an_idle_consumer_takes_no_processor_time() {
    let status = other_process("push_ends::idle_consumer_process")
        .status()
        .unwrap();
    assert!(status.success());
}

pub fn other_process(test: &str) -> Command {
    let mut command = millstream_testing::command(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]);
    command
}

/// Serves until it is killed.
#[test]
#[ignore = "the other process of the test below"]
fn server_process() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let folder = Path::new(&folder);
    let address = std::fs::read_to_string(folder.join("address"));
    let address = address.map_or(([127, 0, 0, 1], 0).into(), |text| text.parse().unwrap());
    let data = folder.join("data");
    let log = Log::open(LogConfig::with_pool(&data, ByteSize(64 << 20))).unwrap();
    if log.stream("t").is_err() {
        log.create_stream("t", StreamConfig::default()).unwrap();
    }
    let mut config = BrokerConfig::new(address);
    config.local_socket = Some(data);
    let server = serve(&log, config);
    std::fs::write(folder.join("address"), server.local_address().to_string()).unwrap();
    println!("serving");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// A server that is killed when this is dropped.
struct Killed(Child);

impl Killed {
    fn start(folder: &Path) -> Killed {
        let mut command = other_process("push_ends::server_process");
        command.env(FOLDER, folder).stdout(Stdio::piped());
        let child = millstream_testing::start(&mut command, TIME_MAX);
        let mut child = Killed(child.unwrap());
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let serves = |line: String| line.contains("serving");
        assert!(lines.map_while(Result::ok).any(serves));
        child
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_thread_gets_an_error_when_the_server_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let server = Killed::start(folder.path());
    let address = std::fs::read_to_string(folder.path().join("address")).unwrap();
    let client = Client::new(ClientConfig::new(address));
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::Earliest)]);
    let config = LocalConfig::default();
    let subscribers = client.subscribe_local(&config, &[source]).await;
    let mut subscriber = subscribers.unwrap().pop().unwrap();
    let waits = std::thread::spawn(move || subscriber.take(TIME_MAX));
    drop(server);
    let ended = tokio::task::spawn_blocking(|| waits.join().unwrap()).await;
    let error = ended.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Disconnected { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_survive_a_killed_server_and_the_next_server_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Killed::start(folder.path());
    let address = std::fs::read_to_string(folder.path().join("address")).unwrap();
    let client = Client::new(ClientConfig::new(address));
    let mut consumer = from_start(&client, pushed()).await;
    let mut read = Vec::new();
    for round in 0..3 {
        produce(&client, "t", numbers(round * 10, round * 10 + 10)).await;
        let fetched = next(&mut consumer).await.unwrap();
        assert_eq!(fetched.path(), DeliveryPath::Shared);
        drop(server);
        // No server is left that could reuse the memory.
        read.extend(values(&fetched));
        drop(fetched);
        server = Killed::start(folder.path());
        read_until(&mut consumer, &mut read, (round + 1) * 10).await;
    }
    assert_eq!(read, numbers(0, 30));
    let nothing = timeout(Duration::from_millis(100), consumer.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    drop(server);
}
