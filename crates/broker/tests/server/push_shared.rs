//! Subscriptions of consumers on the same machine, which share the log's memory.

mod access;
mod memory;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Offset};
use millstream_broker::BrokerConfig;
use millstream_log::{Arena, SOCKET};
use millstream_share::{
    Announced, Descriptor, Hold, Kind, Mapping, SourceRing, Subscription, Taken, layout,
};
use millstream_wire::native::*;
use millstream_wire::{ApiKey, Response, ResponseError};

use crate::push::{error, lanes, of_shared_group, receive_request, subscribe_request, values_of};
use crate::support::{Connection, Node, TIME_MAX, ask, wait_until};

/// Starts a server with a socket for clients on the same machine.
fn start(change: impl FnOnce(&mut BrokerConfig)) -> Node {
    let dir = tempfile::tempdir().unwrap();
    let socket_dir = dir.path().to_owned();
    Node::on(
        dir,
        |_| {},
        |config| {
            config.local_socket = Some(socket_dir);
            change(config);
        },
    )
}

impl Node {
    fn connect_locally(&self) -> Connection {
        let answer = ask!(self.connect(), LocalSocket, 0, LocalSocketRequest {});
        let path = PathBuf::from(answer.path.unwrap().to_string());
        assert_eq!(path, self.dir().join(SOCKET));
        Connection::local(&path)
    }
}

fn shared_request(sources: Vec<SubscribedSource>) -> SubscribeRequest {
    SubscribeRequest {
        layout: layout::VERSION,
        ..subscribe_request(sources)
    }
}

/// A consumer's side.
struct Consumer {
    connection: Connection,
    name: u32,
    subscription: Subscription,
    rings: Vec<SourceRing>,
    pool: Arc<Mapping>,
    rings_path: PathBuf,
}

impl Consumer {
    fn begin(connection: Connection, sources: Vec<SubscribedSource>) -> Consumer {
        Consumer::ahead(connection, sources, ByteSize(16 << 20))
    }

    fn ahead(connection: Connection, sources: Vec<SubscribedSource>, ahead: ByteSize) -> Consumer {
        let request = SubscribeRequest {
            ahead_bytes: ahead,
            ..shared_request(sources)
        };
        Consumer::with(connection, request)
    }

    fn with(mut connection: Connection, request: SubscribeRequest) -> Consumer {
        let places: Vec<u32> = request.sources.iter().map(|_| 100).collect();
        let answer = ask!(connection, Subscribe, 0, request);
        assert_eq!((answer.error_code, answer.not_shared), (0, None));
        let shared = answer.shared.unwrap();
        let announced = Announced {
            identity: shared.identity,
            pool_bytes: shared.pool_bytes.0,
            places: &places,
        };
        let rings_path = PathBuf::from(shared.rings_path.to_string());
        let (subscription, rings) = Subscription::open(&rings_path, announced).unwrap();
        let pool_path = shared.pool_path.to_string();
        Consumer {
            connection,
            name: answer.subscription,
            subscription,
            rings,
            pool: Mapping::read_only(Path::new(&pool_path), shared.pool_bytes.0).unwrap(),
            rings_path,
        }
    }

    fn take(&mut self, source: usize) -> (Descriptor, Hold) {
        match self.rings[source].take(TIME_MAX).unwrap() {
            Taken::Descriptor(descriptor, hold) => (descriptor, hold),
            other => panic!("{other:?}"),
        }
    }

    fn values(&mut self, source: usize) -> Vec<(u32, String)> {
        let (descriptor, hold) = self.take(source);
        assert_eq!(descriptor.kind, Kind::Chunks);
        let bytes = self
            .pool
            .slice(descriptor.position, descriptor.bytes)
            .unwrap();
        let values = values_of(descriptor.place, descriptor.from, &bytes);
        assert!(hold.is_live());
        values
    }

    /// Returns the reason of the subscription's end.
    fn end(&mut self) -> (Option<ResponseError>, String) {
        let request = ReceiveRequest {
            bytes_max: 0,
            ..receive_request(self.name)
        };
        let answer = ask!(self.connection, Receive, 0, request);
        let message = answer.error_message.unwrap_or_default();
        (error(answer.error_code), message.to_string())
    }
}

fn value(place: u32, value: &str) -> (u32, String) {
    (place, value.to_owned())
}

fn megabyte() -> String {
    "x".repeat(1 << 20)
}

#[test]
fn chunks_are_read_where_they_lie_in_the_pool() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    producer.produce("t", 0, &["old", "a"]);
    let mut consumer = Consumer::begin(
        node.connect_locally(),
        vec![lanes(&[(0, 1)]), lanes(&[(1, 0)])],
    );
    assert_eq!(consumer.values(0), [value(0, "a")]);
    producer.produce("t", 1, &["b"]);
    assert_eq!(consumer.values(1), [value(0, "b")]);

    // It is the segment itself.
    let (_, pool_bytes) = node.log().pool().shared();
    producer.produce("t", 0, &["c"]);
    let (descriptor, hold) = consumer.take(0);
    let at = descriptor.position as usize;
    assert!(at < node.log().pool().size_bytes(Arena::Segments) && at < pool_bytes);
    assert_eq!((descriptor.from, descriptor.next), (2, 3));
    drop(hold);
    let none = consumer.rings[0].take(Duration::from_millis(20)).unwrap();
    assert!(matches!(none, Taken::TimedOut), "{none:?}");
}

/// Progress was reported only after a second in which the filter skipped nothing.
#[test]
fn a_filter_reports_progress_while_it_skips_records() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut connection = node.connect_locally();
    let mut request = subscribe_request(vec![lanes(&[(0, 0)])]);
    request.filter = Some("value = \"none\"".into());
    let requested = ask!(connection, Subscribe, 0, request.clone()).subscription;
    request.layout = layout::VERSION;
    let mut consumer = Consumer::with(node.connect_locally(), request);
    connection.send(0, receive_request(requested));
    let (mut is_reported, mut is_answered) = (false, false);
    wait_until("both report progress", || {
        producer.produce("t", 0, &["some"]);
        if let Taken::Descriptor(descriptor, _) = consumer.rings[0].try_take().unwrap() {
            is_reported |= descriptor.kind == Kind::Moved && descriptor.next > 0;
        }
        if is_reported && !is_answered {
            let Response::Receive(answer) = connection.receive(ApiKey::Receive, 0).1 else {
                panic!("it is an answer to that");
            };
            is_answered =
                answer.delivered[0].next > Offset(0) && answer.delivered[0].chunks.size() == 0;
        }
        is_reported && is_answered
    });
}

#[test]
fn a_consumer_without_futexes_is_woken_by_an_answer() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    // It sets the flag that it waits, and then looks once more.
    let file = OpenOptions::new()
        .write(true)
        .open(&consumer.rings_path)
        .unwrap();
    file.write_at(&2u32.to_le_bytes(), 384 + 16).unwrap();
    assert!(matches!(
        consumer.rings[0].try_take().unwrap(),
        Taken::TimedOut
    ));
    for round in ["asks before", "asks after"] {
        if round == "asks before" {
            consumer.connection.send(0, receive_request(consumer.name));
        }
        producer.produce("t", 0, &[round]);
        if round == "asks after" {
            consumer.connection.send(0, receive_request(consumer.name));
        }
        let (_, answer) = consumer.connection.receive(ApiKey::Receive, 0);
        let Response::Receive(ReceiveResponse { error_code: 0, .. }) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(consumer.values(0), [value(0, round)]);
    }
    let request = ReceiveRequest {
        source: 1,
        ..receive_request(consumer.name)
    };
    let refused = ask!(consumer.connection, Receive, 0, request);
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::InvalidRequest)
    );
}

/// It held up the answers of other sources behind it.
#[test]
fn a_receive_of_a_quiet_source_is_answered_empty_and_may_be_repeated() {
    let node = start(|config| config.idle_max = Duration::from_millis(1500));
    node.connect().create_topic("t", 1);
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    for _ in 0..2 {
        let request = receive_request(consumer.name);
        let answer = ask!(consumer.connection, Receive, 0, request);
        assert_eq!((answer.error_code, answer.delivered), (0, vec![]));
    }
    node.connect().produce("t", 0, &["a"]);
    assert_eq!(consumer.values(0), [value(0, "a")]);
}

#[test]
fn a_removed_offset_is_reported_with_the_earliest_and_other_partitions_continue() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    producer.produce("t", 0, &["a", "b", "c"]);
    producer.produce("t", 1, &["d"]);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    node.log().delete_before(&[(partition, Offset(2))])[0]
        .as_ref()
        .unwrap();
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0), (1, 0)])]);
    let (descriptor, hold) = consumer.take(0);
    assert_eq!(descriptor.kind, Kind::Refused);
    assert_eq!(
        error(descriptor.code as i16),
        Some(ResponseError::OffsetOutOfRange)
    );
    assert_eq!((descriptor.place, descriptor.next), (0, 2));
    drop(hold);
    assert_eq!(consumer.values(0), [value(1, "d")]);
}

#[test]
fn subscribers_of_one_shared_group_divide_its_groups() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    producer.produce("t", 0, &["a"]);
    let sources = vec![
        of_shared_group("words", "one"),
        of_shared_group("words", "two"),
    ];
    let mut consumer = Consumer::begin(node.connect_locally(), sources);
    // One of them has the open group.
    let mut first = || {
        (0..2).find_map(|source| {
            let taken = consumer.rings[source]
                .take(Duration::from_millis(50))
                .unwrap();
            let Taken::Descriptor(descriptor, _) = taken else {
                return None;
            };
            Some((
                descriptor.cursor.group,
                descriptor.start_position,
                descriptor.next,
            ))
        })
    };
    let mut taken = None;
    wait_until("one of them has it", || {
        taken = first();
        taken.is_some()
    });
    assert_eq!(taken, Some((1, 0, 1)));
    assert_eq!(first(), None);
    drop(consumer.connection);
    let mut other = Consumer::begin(
        node.connect_locally(),
        vec![of_shared_group("words", "three")],
    );
    assert_eq!(other.values(0), [value(0, "a")]);
}

#[test]
fn an_idle_subscriber_costs_no_processor_time() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::alone(|config| config.local_socket = Some(dir.path().to_owned()));
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let connection = Connection::local(&dir.path().join(SOCKET));
    let mut consumer = Consumer::begin(connection, vec![lanes(&[(0, 0)])]);
    producer.produce("t", 0, &["a"]);
    assert_eq!(consumer.values(0), [value(0, "a")]);
    // At first the thread still checks the chunks that the consumer holds.
    wait_until("the thread sleeps for two seconds", || {
        let before = push_thread_time();
        std::thread::sleep(Duration::from_secs(2));
        push_thread_time() == before
    });
    drop(consumer);
}

/// The processor time of all push threads of this process, in nanoseconds.
fn push_thread_time() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let paths = tasks.map(|task| task.unwrap().path());
    let is_push = |path: &PathBuf| {
        std::fs::read_to_string(path.join("comm"))
            .is_ok_and(|name| name.trim() == "millstream-push")
    };
    let times = paths.filter(is_push).map(|path| {
        let stat = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        stat.split(' ')
            .next()
            .and_then(|time| time.parse::<u64>().ok())
            .unwrap_or(0)
    });
    times.sum()
}

#[test]
fn a_stopping_server_ends_subscriptions_that_share_memory() {
    let node = start(|_| {});
    node.connect().create_topic("t", 1);
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    let dir = node.stop();
    assert!(matches!(
        consumer.rings[0].take(TIME_MAX).unwrap(),
        Taken::Ended(_)
    ));
    assert!(!matches!(
        consumer.subscription.state(),
        millstream_share::State::Live
    ));
    drop(dir);
}

/// Its thread held the log open after the server ended, so that it could not be opened again.
#[test]
fn a_stopped_server_that_shared_memory_leaves_nothing_behind() {
    for _ in 0..10 {
        let node = start(|_| {});
        node.connect().create_topic("t", 1);
        let consumers =
            [(); 8].map(|()| Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]));
        let broker = Arc::downgrade(node.broker());
        let dir = node.stop();
        assert!(broker.upgrade().is_none());
        drop((consumers, dir));
    }
}
