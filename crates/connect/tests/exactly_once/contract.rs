//! The behaviour that sinks into a log and over a server have in common.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use millstream_base::{Clock, ProducerEpoch, SystemClock, Timestamp};
use millstream_client::ClientConfig;
use millstream_connect::{EncodedRecord, Network, ServerSink, StreamSink};
use millstream_flow::windows::WindowResult;
use millstream_flow::{BoxError, Sink, SinkStart};
use millstream_record::{EndMarker, TransactionEnd};

use crate::world::{Into, PARTITIONS, World, wait_until};

type Results = Box<dyn Sink<WindowResult<u64, u64>>>;

/// The transactions of a sink that may be under way.
const TRANSACTIONS_MAX: u64 = 8;

const START: SinkStart<'static> = SinkStart {
    flow: "counted",
    sink: "results",
    rank: 0,
    ranks: 1,
    takes_checkpoints: true,
    prepared: None,
};

fn result(key: u64) -> WindowResult<u64, u64> {
    WindowResult {
        key,
        start: Timestamp(0),
        end: Timestamp(1),
        value: key,
        events: 1,
        time_max: Timestamp(0),
        is_update: false,
    }
}

/// Wakes this thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Asks until it is done.
fn until(mut ask: impl FnMut(&Waker) -> Result<bool, BoxError>) -> Result<(), BoxError> {
    let started_at = Instant::now();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !ask(&waker)? {
        let waited = started_at.elapsed();
        assert!(waited < Duration::from_secs(60), "it is never done");
        thread::park_timeout(Duration::from_secs(60));
    }
    Ok(())
}

fn until_done(ask: impl FnMut(&Waker) -> Result<bool, BoxError>) {
    until(ask).unwrap();
}

fn prepare(sink: &mut Results, checkpoint: u64) -> Vec<u8> {
    until_done(|waker| Ok(sink.push(&[result(checkpoint)], waker)? == 1));
    until_done(|waker| sink.flush(waker));
    sink.prepare(checkpoint).unwrap()
}

fn keys(world: &World) -> Vec<u64> {
    let mut keys: Vec<u64> = world.results().into_iter().map(|(key, ..)| key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn a_sink_with_eight_prepared_transactions_waits_for_a_commit() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 0);
        let mut sink = world.sink();
        sink.recover(&START).unwrap();
        for checkpoint in 1..=TRANSACTIONS_MAX {
            prepare(&mut sink, checkpoint);
        }
        let waiting = Waker::from(Arc::new(Unpark(thread::current())));
        assert_eq!(sink.push(&[result(9)], &waiting).unwrap(), 0, "{into:?}");
        assert!(keys(&world).is_empty(), "nothing is committed");
        until_done(|waker| sink.commit(3, waker));
        wait_until("they count", || keys(&world) == [1, 2, 3]);
        prepare(&mut sink, 9);
        until_done(|waker| sink.commit(9, waker));
        wait_until("they count", || keys(&world) == Vec::from_iter(1..=9));
    }
}

#[test]
fn a_sink_commits_the_transactions_that_a_checkpoint_names_and_aborts_the_rest() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 0);
        let mut sink = world.sink();
        sink.recover(&START).unwrap();
        prepare(&mut sink, 1);
        let named = prepare(&mut sink, 2);
        prepare(&mut sink, 3);
        drop(sink);
        let start = SinkStart {
            prepared: Some(&named),
            ..START
        };
        world.sink().recover(&start).unwrap();
        wait_until("they count", || keys(&world) == [1, 2]);
    }
}

/// The system's clock, set ahead.
#[derive(Default)]
struct ClockAhead {
    clock: SystemClock,
    hours: AtomicU64,
}

impl ClockAhead {
    fn ahead(&self) -> Duration {
        Duration::from_secs(60 * 60 * self.hours.load(Ordering::Relaxed))
    }
}

impl Clock for ClockAhead {
    fn now(&self) -> Timestamp {
        Timestamp(self.clock.now().0 + self.ahead().as_millis() as i64)
    }

    fn monotonic(&self) -> Duration {
        self.clock.monotonic() + self.ahead()
    }
}

#[test]
fn a_transaction_whose_producer_has_expired_is_decided_once() {
    let clock = Arc::new(ClockAhead::default());
    let world = World::with_clock(Into::Server, 0, Arc::clone(&clock) as _);
    let network = Network::start("test").unwrap();
    let client = world.client();
    let known = || network.wait(client.transactions()).unwrap();
    let weeks_pass = || clock.hours.fetch_add(3 * 7 * 24, Ordering::Relaxed);
    let mut sink = world.sink();
    sink.recover(&START).unwrap();
    let committed = prepare(&mut sink, 1);
    until_done(|waker| sink.commit(1, waker));
    wait_until("it counts", || keys(&world) == [1]);
    // A prepared transaction stays, however long the flow is away.
    let prepared = prepare(&mut sink, 2);
    drop(sink);
    weeks_pass();
    wait_until("the ids of decided transactions expire", || {
        // Another request makes the server look at the time.
        known().iter().all(|known| known.is_open())
    });
    let resume = |prepared: &[u8]| {
        let start = SinkStart {
            prepared: Some(prepared),
            ..START
        };
        let mut sink = world.sink();
        sink.recover(&start).unwrap();
        sink
    };
    drop(resume(&prepared));
    wait_until("it counts", || keys(&world) == [1, 2]);
    // The checkpoints name transactions of producers that the server has forgotten.
    weeks_pass();
    wait_until("all ids expire", || known().is_empty());
    for named in [&committed, &prepared] {
        let mut sink = resume(named);
        prepare(&mut sink, 3);
        drop(sink);
    }
    drop(resume(&prepared));
    assert!(world.open_transactions().is_empty());
    assert_eq!(keys(&world), [1, 2]);
}

#[test]
fn a_sink_refuses_a_checkpoint_that_it_cannot_read() {
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 0);
        let start = SinkStart {
            prepared: Some(&[7]),
            ..START
        };
        let error = world.sink().recover(&start).unwrap_err().to_string();
        assert!(error.starts_with("stream results: the checkpoint names"));
        assert!(error.contains("begin anew"), "{error}");
    }
}

#[test]
fn an_error_of_a_sink_names_its_stream() {
    let large = |_: &u64, record: &mut EncodedRecord| record.value.resize(9 << 20, 0);
    for into in [Into::Log, Into::Server] {
        let world = World::new(into, 0);
        let mut sink: Box<dyn Sink<u64>> = match into {
            Into::Log => Box::new(StreamSink::new(&world.stream, large).unwrap()),
            Into::Server => {
                let server = ClientConfig::new(world.address());
                Box::new(ServerSink::new(&server, "results", large).unwrap())
            }
        };
        sink.recover(&START).unwrap();
        let stored = until(|waker| Ok(sink.push(&[1], waker)? == 1))
            .and_then(|()| until(|waker| sink.flush(waker)));
        let error = stored.unwrap_err().to_string();
        assert!(error.starts_with("stream results: "), "{error}");
    }
}

#[test]
fn committing_a_transaction_that_was_aborted_by_force_writes_no_second_marker() {
    let world = World::new(Into::Log, 0);
    let mut sink = world.sink();
    sink.recover(&START).unwrap();
    prepare(&mut sink, 1);
    let partitions = (0..PARTITIONS).map(|partition| world.stream.partition(partition).unwrap());
    let partitions: Vec<_> = partitions.collect();
    for partition in &partitions {
        for known in partition.producers() {
            let abort = EndMarker {
                producer_id: known.producer,
                producer_epoch: ProducerEpoch(0),
                end: TransactionEnd::Abort,
                coordinator_epoch: 0,
            };
            partition.append_marker(&abort).unwrap();
        }
    }
    let ends = || -> Vec<_> { partitions.iter().map(|it| it.next_offset()).collect() };
    let before = ends();
    until_done(|waker| sink.commit(1, waker));
    assert_eq!(ends(), before);
}

/// Its partitions answered that they have more records of the producer already, and the sink dropped its own.
#[test]
fn a_sink_fails_when_another_run_with_its_name_writes() {
    let world = World::new(Into::Log, 0);
    let mut first = world.sink();
    first.recover(&START).unwrap();
    prepare(&mut first, 1);
    until_done(|waker| first.commit(1, waker));
    let mut second = world.sink();
    second.recover(&START).unwrap();
    prepare(&mut second, 1);
    until_done(|waker| second.commit(1, waker));
    let stored = until(|waker| Ok(first.push(&[result(1)], waker)? == 1))
        .and_then(|()| until(|waker| first.flush(waker)));
    assert!(stored.is_err());
}
