//! Streams of a server as sources of flows.

mod numbers;

use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{ClientConfig, ConsumerConfig, DeliveryMode};
use millstream_connect::{ServerEnd, ServerSource};
use millstream_flow::{BoxError, Emit, Flow, Sink};
use millstream_log::{Log, LogConfig, StreamConfig};

use numbers::produce;

/// The sum of the numbers that the sources give.
fn sum(sources: Vec<ServerSource>) -> Result<u64, String> {
    let mut flow = Flow::new("sum");
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
fn a_flow_reads_a_servers_stream_up_to_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let config = BrokerConfig {
        local_socket: Some(dir.path().to_owned()),
        ..BrokerConfig::new(([127, 0, 0, 1], 0).into())
    };
    let clock = Arc::clone(log.clock());
    let server = Server::start(
        &TcpNetwork,
        config,
        log.clone(),
        clock,
        Arc::new(SystemRandom),
    );
    let server = server.unwrap();
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
        // What comes later is not part of it.
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
fn records_that_the_server_took_back_while_a_source_waited_come_again() {
    const NUMBERS: u64 = 200_000;
    const STALL_MAX: Duration = Duration::from_millis(200);
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
            stall: Some(10 * STALL_MAX),
        };
        let mut flow = Flow::new("slow");
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
