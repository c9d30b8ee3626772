//! Streams of a server as sources of flows.

mod numbers;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Offset, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{Client, ClientConfig, ConsumerConfig, DeliveryMode, TopicPartition};
use millstream_connect::{FlowGroup, ServerEnd, ServerSource, StreamSource};
use millstream_flow::{BoxError, Emit, Flow, Sink};
use millstream_log::{Log, LogConfig, StreamConfig};

use numbers::produce;

/// Waits until the group of a flow has these offsets.
fn wait_for_offsets(client: &ClientConfig, group: &str, expected: &[(i32, u64)]) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Client::new(client.clone());
    let started_at = Instant::now();
    loop {
        let found = runtime.block_on(client.group_offsets(group)).unwrap();
        let offsets = found.offsets.iter();
        let mut offsets: Vec<_> = offsets.map(|(place, at)| (place.partition, at.0)).collect();
        offsets.sort_unstable();
        if offsets == expected {
            assert!(found.are_of_flow());
            return;
        }
        assert!(
            started_at.elapsed() < Duration::from_secs(60),
            "{offsets:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Each of two ranks reads partitions of its own, and commits only their positions.
#[test]
fn a_flow_commits_its_positions_as_offsets_of_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let (log, server) = start(dir.path());
    let client = ClientConfig::new(server.local_address().to_string());
    let config = StreamConfig {
        streamlets: 3,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    produce(&stream, 0, 0..7);
    produce(&stream, 2, 0..5);
    let consumer = ConsumerConfig::default();
    let sources = ServerSource::of_stream(&client, &consumer, "s", 2, ServerEnd::Never).unwrap();
    let _flows: Vec<_> = sources
        .into_iter()
        .map(|source| {
            let flow = Flow::new("numbers");
            let count = flow.partial::<u64>("count");
            flow.source("numbers", source)
                .each(|_, emit: &mut Emit<u64>| {
                    emit(&1);
                    Ok(())
                })
                .fold_local(&count, |count, one| *count += one);
            let running = Arc::new(flow.run().unwrap());
            let group = FlowGroup::start(&running, &client).unwrap();
            (running, group)
        })
        .collect();
    wait_for_offsets(&client, "numbers", &[(0, 7), (1, 0), (2, 5)]);
    // It goes on from time to time.
    produce(&stream, 1, 0..3);
    wait_for_offsets(&client, "numbers", &[(0, 7), (1, 3), (2, 5)]);
}

/// A source of a log's stream is shown as one of a server's is, up to the end; the group of consumers with a flow's name
/// stays theirs.
#[test]
fn a_flow_shows_its_end_in_its_group_and_leaves_consumer_groups_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (log, server) = start(dir.path());
    let client = ClientConfig::new(server.local_address().to_string());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    produce(&stream, 0, 0..10_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let admin = Client::new(client.clone());
    let place = TopicPartition {
        topic: "s".into(),
        partition: 0,
    };
    let own = BTreeMap::from([(place.clone(), Offset(3))]);
    runtime
        .block_on(admin.set_offsets("consumers", &own))
        .unwrap();
    for (name, expected) in [("flow", 10_000), ("consumers", 3)] {
        let flow = Flow::new(name);
        let count = flow.partial::<u64>("count");
        flow.sources("numbers", StreamSource::bounded(&stream).split(2))
            .each(|_, emit: &mut Emit<u64>| {
                emit(&1);
                Ok(())
            })
            .fold_local(&count, |count, one| *count += one);
        let running = Arc::new(flow.run().unwrap());
        let group = FlowGroup::start(&running, &client).unwrap();
        running.join().unwrap();
        group.finish();
        let found = runtime.block_on(admin.group_offsets(name)).unwrap();
        assert_eq!(found.offsets[&place], Offset(expected), "{name}");
        assert_eq!(found.are_of_flow(), name == "flow");
    }
    let error = runtime.block_on(admin.set_offsets("flow", &own));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("shows how far the flow"), "{error}");
}

fn start(dir: &Path) -> (Log, Server) {
    let log = Log::open(LogConfig::with_pool(dir, ByteSize(64 << 20))).unwrap();
    let config = BrokerConfig {
        local_socket: Some(dir.to_owned()),
        ..BrokerConfig::new(([127, 0, 0, 1], 0).into())
    };
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random);
    (log, server.unwrap())
}

/// The sum of the numbers that the sources give.
fn sum(sources: Vec<ServerSource>) -> Result<u64, String> {
    let flow = Flow::new("sum");
    let state = flow.partial::<u64>("sum");
    flow.sources("numbers", sources)
        .each(|record, emit: &mut Emit<u64>| {
            let value = record.value.unwrap_or_default();
            emit(&u64::from_le_bytes(value.try_into()?));
            Ok(())
        })
        .fold_local(&state, |sum, number| *sum += number);
    let running = flow.run().unwrap();
    running.join().map_err(|error| error.to_string())?;
    Ok(state.merged())
}

/// A flow beside a server gets the same as one in its process.
#[test]
fn a_bounded_flow_reads_a_servers_stream_up_to_its_end_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (log, server) = start(dir.path());
    let client = ClientConfig::new(server.local_address().to_string());
    let config = StreamConfig {
        streamlets: 3,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    produce(&stream, 0, 0..100_000);
    produce(&stream, 2, 0..10);
    let consumer = ConsumerConfig::default();
    let mut expected = 99_999 * 50_000 + 45;
    for instances in [1, 2, 5] {
        let end = ServerEnd::Now;
        let sources = ServerSource::of_stream(&client, &consumer, "s", instances, end).unwrap();
        assert_eq!(sources.len(), instances);
        // Later records are not part of it.
        produce(&stream, 1, 0..10);
        produce(&stream, 2, 0..10);
        assert_eq!(sum(sources), Ok(expected));
        expected += 2 * 45;
    }
    let none = ServerSource::of_stream(&client, &consumer, "none", 1, ServerEnd::Now);
    assert!(none.err().unwrap().to_string().contains("none"));

    // Without an end it goes on, until the stream is deleted.
    let sources = ServerSource::of_stream(&client, &consumer, "s", 2, ServerEnd::Never).unwrap();
    log.delete_stream("s").unwrap();
    let error = sum(sources).unwrap_err();
    assert!(error.contains("stream s"), "{error}");
}

/// Stands still for a while when it is called first.
struct Slow {
    numbers: Arc<Mutex<Vec<u64>>>,
    stall: Option<Duration>,
}

impl Sink<u64> for Slow {
    fn push(&mut self, items: &[u64], _: &Waker) -> Result<usize, BoxError> {
        self.stall.take().into_iter().for_each(thread::sleep);
        self.numbers.lock().unwrap().extend(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

/// A flow that stands still for longer than the server leaves its memory to it goes on.
#[test]
fn a_stalled_source_reads_records_again_whose_memory_the_server_reclaimed() {
    const NUMBERS: u64 = 200_000;
    const STALL_MAX: Duration = Duration::from_millis(500);
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let config = BrokerConfig {
        local_socket: Some(dir.path().to_owned()),
        push_stall_max: STALL_MAX,
        ..BrokerConfig::new(([127, 0, 0, 1], 0).into())
    };
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
    let client = ClientConfig::new(server.local_address().to_string());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    produce(&stream, 0, 0..NUMBERS);
    for end in [ServerEnd::Now, ServerEnd::Never] {
        let consumer = ConsumerConfig {
            delivery: DeliveryMode::Push,
            partition_bytes_max: 1 << 10,
            ..ConsumerConfig::default()
        };
        let sources = ServerSource::of_stream(&client, &consumer, "s", 1, end).unwrap();
        let numbers = Arc::default();
        let slow = Slow {
            numbers: Arc::clone(&numbers),
            stall: Some(5 * STALL_MAX),
        };
        let flow = Flow::new("slow");
        flow.sources("numbers", sources)
            .each(|record, emit: &mut Emit<u64>| {
                let value = record.value.unwrap_or_default();
                emit(&u64::from_le_bytes(value.try_into()?));
                Ok(())
            })
            .sink("slow", slow);
        let running = flow.run().unwrap();
        while end == ServerEnd::Never
            && !running.is_finished()
            && numbers.lock().unwrap().len() < NUMBERS as usize
        {
            thread::sleep(Duration::from_millis(5));
        }
        if end == ServerEnd::Never {
            running.stop();
        }
        running.join().unwrap();
        let mut numbers = numbers.lock().unwrap().clone();
        numbers.sort_unstable();
        assert!(
            numbers == Vec::from_iter(0..NUMBERS),
            "{} came",
            numbers.len()
        );
    }
}
