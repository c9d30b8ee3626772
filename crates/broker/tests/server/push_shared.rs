//! Subscriptions of consumers on the same machine, which share the log's memory.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Offset};
use millstream_broker::BrokerConfig;
use millstream_broker::security::{Operation, Resource};
use millstream_log::{Arena, SOCKET};
use millstream_share::{
    Announced, Descriptor, Hold, Kind, Mapping, SourceRing, Subscription, Taken, layout,
};
use millstream_wire::native::*;
use millstream_wire::{ApiKey, Response, ResponseError};
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

use crate::logins::{ADMIN, add_admin, guard};
use crate::permissions::topic;
use crate::push::{error, lanes, of_application, receive_request, subscribe_request, values_of};
use crate::quotas::limit_reading;
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

#[test]
fn nobody_can_write_into_the_pool() {
    let node = start(|_| {});
    let (path, bytes) = node.log().pool().shared();
    assert!(Mapping::read_only(&path, bytes as u64).is_ok());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
}

#[test]
fn the_socket_is_its_owners_alone_and_goes_with_the_server() {
    let long = tempfile::tempdir().unwrap();
    let dir = long.path().join("d".repeat(150));
    std::fs::create_dir(&dir).unwrap();
    // The socket file is one that a killed server has left there.
    let path = dir.join(SOCKET);
    File::create(&path).unwrap();
    let node = Node::with(|config| config.local_socket = Some(dir.clone()));
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(node);
    assert!(!path.exists());

    // The folder cannot be created: clients go over the network.
    let node = Node::with(|config| config.local_socket = Some(long.path().join("none")));
    let answer = ask!(node.connect(), LocalSocket, 0, LocalSocketRequest {});
    assert_eq!((answer.error_code, answer.path), (0, None));
}

#[test]
fn a_data_directory_with_a_socket_that_was_left_is_opened() {
    let node = start(|_| {});
    node.connect().create_topic("t", 1);
    let dir = node.stop();
    File::create(dir.path().join(SOCKET)).unwrap();
    let socket_dir = dir.path().to_owned();
    let node = Node::on(dir, |_| {}, |config| config.local_socket = Some(socket_dir));
    Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
}

#[test]
fn who_comes_over_the_network_or_with_another_layout_receives_without_shared_memory() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    producer.produce("t", 0, &["a"]);
    let receive = |mut connection: Connection, layout: u32, why: &str| {
        let request = SubscribeRequest {
            layout,
            ..subscribe_request(vec![lanes(&[(0, 0)])])
        };
        let answer = ask!(connection, Subscribe, 0, request);
        let not_shared = answer.not_shared.unwrap();
        assert!(
            answer.shared.is_none() && not_shared.contains(why),
            "{not_shared}"
        );
        let received = ask!(connection, Receive, 0, receive_request(answer.subscription));
        assert_eq!(
            values_of(0, 0, &received.delivered[0].chunks.0.concat()),
            [value(0, "a")]
        );
    };
    receive(node.connect(), layout::VERSION, "local socket");
    receive(
        node.connect_locally(),
        layout::VERSION + 1,
        "same version of both",
    );
}

/// Runs where no further file can be created, not even one in memory: the limit is of the whole
/// process.
#[test]
#[ignore = "the other process of the test below"]
fn without_room() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    producer.produce("t", 0, &["a"]);
    let mut connection = node.connect_locally();
    // The answer shows that the server has its end of it.
    connection.fetch("t", 0, 0);
    let limit = getrlimit(Limited::Nofile);
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    let none = Rlimit {
        current: Some(next as u64),
        ..limit
    };
    setrlimit(Limited::Nofile, none).unwrap();
    let request = shared_request(vec![lanes(&[(0, 0)])]);
    let answer = ask!(connection, Subscribe, 0, request);
    setrlimit(Limited::Nofile, limit).unwrap();
    let not_shared = answer.not_shared.unwrap();
    assert!(not_shared.contains("no memory to share"), "{not_shared}");
    let received = ask!(connection, Receive, 0, receive_request(answer.subscription));
    let values = values_of(0, 0, &received.delivered[0].chunks.0.concat());
    assert_eq!(values, [value(0, "a")]);
}

#[test]
fn where_there_is_no_room_for_shared_memory_chunks_are_received_without() {
    let mut other = Command::new(std::env::current_exe().unwrap());
    other.args(["--exact", "push_shared::without_room", "--ignored"]);
    let output = other.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn only_who_may_read_everything_shares_memory() {
    let dir = tempfile::tempdir().unwrap();
    let socket_dir = dir.path().to_owned();
    let node = Node::on(dir, add_admin, |config| {
        guard(config);
        config.local_socket = Some(socket_dir);
    });
    let alice = ("alice", "alice's secret");
    let mut admin = node.connect().log_in(ADMIN);
    assert_eq!(admin.set_password(alice), 0);
    admin.create_topic("t", 1);
    admin.create_topic("u", 1);
    admin.allow("alice", (Operation::Read, topic("t")));
    let connect = || Connection::local(&node.dir().join(SOCKET)).log_in(alice);
    let mut client = connect();
    let answer = ask!(client, Subscribe, 0, shared_request(vec![lanes(&[(0, 0)])]));
    assert!(answer.not_shared.unwrap().contains("every stream"));

    admin.allow("alice", (Operation::Read, Resource::topic("*")));
    let mut consumer = Consumer::begin(client, vec![lanes(&[(0, 0)])]);
    admin.produce("t", 0, &["a"]);
    assert_eq!(consumer.values(0), [value(0, "a")]);

    // The permission is withdrawn: later records are not pushed.
    admin.forbid_all();
    admin.produce("t", 0, &["b"]);
    let (refused, _) = consumer.end();
    assert_eq!(refused, Some(ResponseError::TopicAuthorizationFailed));
    let taken = consumer.rings[0].take(TIME_MAX).unwrap();
    assert!(matches!(taken, Taken::Ended(_)), "{taken:?}");
}

#[test]
fn who_has_a_quota_for_reading_does_not_share_memory() {
    let node = start(|_| {});
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut before = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    limit_reading(&mut client);
    let mut connection = node.connect_locally();
    let answer = ask!(
        connection,
        Subscribe,
        0,
        shared_request(vec![lanes(&[(0, 0)])])
    );
    assert!(answer.not_shared.unwrap().contains("quota"));
    client.produce("t", 0, &["a"]);
    assert!(before.end().1.contains("quota"));
}

#[test]
fn a_subscriber_that_goes_gives_back_what_it_holds() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut consumer = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    producer.produce("t", 0, &["a"]);
    let held = consumer.take(0);
    node.log().delete_stream("t").unwrap();
    let used = || node.log().pool().used_bytes(Arena::Segments);
    let before = used();
    drop(consumer.connection);
    wait_until("the segment comes back", || used() < before);
    assert!(!held.1.is_live());
}

#[test]
fn a_subscriber_that_lies_loses_its_own_subscription() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut honest = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    for claimed in [100, u64::MAX] {
        let mut liar = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
        producer.produce("t", 0, &["a"]);
        drop(liar.take(0));
        // It moves its progress beyond the last handed-out chunk.
        let file = OpenOptions::new()
            .write(true)
            .open(&liar.rings_path)
            .unwrap();
        file.write_at(&claimed.to_le_bytes(), 384 + 128).unwrap();
        let (refused, why) = liar.end();
        assert_eq!(refused, Some(ResponseError::InvalidRequest));
        assert!(why.contains("broke the rules"), "{why}");
        assert!(matches!(
            liar.rings[0].take(TIME_MAX).unwrap(),
            Taken::Ended(_)
        ));
    }
    // It overwrites everything that the broker has written.
    let mut vandal = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    let file = OpenOptions::new()
        .write(true)
        .open(&vandal.rings_path)
        .unwrap();
    let bytes = file.metadata().unwrap().len() as usize;
    file.write_at(&vec![0xa5; bytes], 0).unwrap();
    producer.produce("t", 0, &["b"]);
    let (refused, _) = vandal.end();
    assert_eq!(refused, Some(ResponseError::InvalidRequest));

    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(honest.values(0));
    }
    assert_eq!(seen, [value(0, "a"), value(0, "a"), value(0, "b")]);
}

#[test]
fn a_subscriber_that_stalls_loses_its_own_subscription() {
    let node = start(|config| config.push_stall_max = Duration::from_millis(300));
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut stalls = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    let mut idles = Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
    producer.produce("t", 0, &["a"]);
    let (_, hold) = stalls.take(0);
    assert_eq!(idles.values(0), [value(0, "a")]);
    let (refused, why) = stalls.end();
    assert_eq!(refused, Some(ResponseError::RequestTimedOut));
    assert!(why.contains("in hand"), "{why}");
    assert!(!hold.is_live());
    // A consumer without chunks in hand may wait for ever.
    producer.produce("t", 0, &["b"]);
    assert_eq!(idles.values(0), [value(0, "b")]);
}

/// A source with progress hid the stall of the other.
#[test]
fn a_source_that_stalls_beside_one_that_goes_on_is_noticed() {
    let node = start(|config| config.push_stall_max = Duration::from_millis(500));
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    let sources = vec![lanes(&[(0, 0)]), lanes(&[(1, 0)])];
    let mut consumer = Consumer::begin(node.connect_locally(), sources);
    producer.produce("t", 1, &["held"]);
    let (_, held) = consumer.take(1);
    wait_until("it ends", || {
        producer.produce("t", 0, &["a"]);
        drop(consumer.rings[0].take(Duration::from_millis(50)).unwrap());
        !held.is_live()
    });
    assert_eq!(consumer.end().0, Some(ResponseError::RequestTimedOut));
}

/// Progress was reported only after a second in which the filter skipped nothing.
#[test]
fn how_far_a_filter_has_looked_is_told_while_it_keeps_leaving_out() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let mut connection = node.connect_locally();
    let mut request = subscribe_request(vec![lanes(&[(0, 0)])]);
    request.filter = Some("value = \"none\"".into());
    let asked = ask!(connection, Subscribe, 0, request.clone()).subscription;
    request.layout = layout::VERSION;
    let mut consumer = Consumer::with(node.connect_locally(), request);
    connection.send(0, receive_request(asked));
    let (mut is_told, mut is_answered) = (false, false);
    wait_until("both are told", || {
        producer.produce("t", 0, &["some"]);
        if let Taken::Descriptor(descriptor, _) = consumer.rings[0].try_take().unwrap() {
            is_told |= descriptor.kind == Kind::Moved && descriptor.next > 0;
        }
        if is_told && !is_answered {
            let Response::Receive(answer) = connection.receive(ApiKey::Receive, 0).1 else {
                panic!("it is an answer to that");
            };
            is_answered =
                answer.delivered[0].next > Offset(0) && answer.delivered[0].chunks.size() == 0;
        }
        is_told && is_answered
    });
}

/// All of them together may hold half of the pool: a consumer that makes progress gets the memory
/// of those that do not.
#[test]
fn memory_that_is_short_is_taken_from_who_has_not_gone_on_for_longest() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let ahead = ByteSize(64 << 20);
    let mut stalls = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut produce = || producer.produce("t", 0, &[&megabyte()]);
    let mut held: Vec<Hold> = Vec::new();
    for _ in 0..20 {
        produce();
        held.push(stalls.take(0).1);
    }
    let mut goes_on = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut in_hand = VecDeque::new();
    let mut next = 0;
    while next < 80 {
        if next >= 20 {
            produce();
        }
        let (descriptor, hold) = goes_on.take(0);
        next = descriptor.next;
        in_hand.push_back(hold);
        if in_hand.len() > 12 {
            in_hand.pop_front();
        }
    }
    let (refused, _) = stalls.end();
    assert_eq!(refused, Some(ResponseError::RequestTimedOut));
    assert!(held.iter().all(|hold| !hold.is_live()));
}

/// One consumer that stood still had all of it, and no other could read from the disk any more.
#[test]
fn half_of_the_memory_for_catch_up_reads_is_left_to_others() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    for _ in 0..40 {
        producer.produce("t", 0, &[&megabyte()]);
    }
    node.log().persist();
    node.log().evict();
    let pool = node.log().pool();
    let ahead = ByteSize(64 << 20);
    let mut stalls = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut held = vec![stalls.take(0)];
    while let Taken::Descriptor(descriptor, hold) =
        stalls.rings[0].take(Duration::from_millis(200)).unwrap()
    {
        held.push((descriptor, hold));
    }
    let is_catch_up = |(descriptor, _): &(Descriptor, Hold)| {
        descriptor.position as usize >= pool.size_bytes(Arena::Segments)
    };
    assert!(held.iter().all(is_catch_up) && held.len() < 30);
    assert!(!producer.fetch("t", 0, 30).records.is_empty());
    assert!(held.iter().all(|(_, hold)| hold.is_live()));
    let mut goes_on = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    let mut next = 0;
    while next < 40 {
        next = goes_on.take(0).0.next;
    }
}

#[test]
fn what_a_source_has_in_hand_is_bounded_and_it_goes_on_when_it_lets_go() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    let ahead = ByteSize(3 << 20);
    let mut consumer = Consumer::ahead(node.connect_locally(), vec![lanes(&[(0, 0)])], ahead);
    for _ in 0..8 {
        producer.produce("t", 0, &[&megabyte()]);
    }
    let mut held: Vec<Hold> = (0..3).map(|_| consumer.take(0).1).collect();
    let none = consumer.rings[0].take(Duration::from_millis(100)).unwrap();
    assert!(matches!(none, Taken::TimedOut), "{none:?}");
    held.drain(..2);
    for _ in 0..5 {
        held.push(consumer.take(0).1);
        held.remove(0);
    }
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

#[test]
fn an_offset_that_was_removed_is_told_with_the_earliest_and_other_lanes_go_on() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 2);
    producer.produce("t", 0, &["a", "b", "c"]);
    producer.produce("t", 1, &["d"]);
    let lane = node.log().stream("t").unwrap().partition(0).unwrap();
    node.log().delete_before(&[(lane, Offset(2))])[0]
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
fn subscribers_of_one_application_share_its_groups() {
    let node = start(|_| {});
    let mut producer = node.connect();
    producer.create_topic("t", 1);
    producer.produce("t", 0, &["a"]);
    let sources = vec![
        of_application("words", "one"),
        of_application("words", "two"),
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
    assert_eq!(first(), Some((1, 0, 1)));
    assert_eq!(first(), None);
    drop(consumer.connection);
    let mut other = Consumer::begin(
        node.connect_locally(),
        vec![of_application("words", "three")],
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
    // Waits until the thread has seen that the consumer holds nothing any more.
    std::thread::sleep(Duration::from_millis(1500));
    let before = push_thread_time();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(push_thread_time(), before);
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
fn a_server_that_ends_tells_those_who_share_its_memory() {
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

/// Its thread kept the log for a moment longer, so that it could not be opened again.
#[test]
fn nothing_of_a_server_that_has_ended_is_left_though_it_shared_memory() {
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

#[test]
fn several_sources_without_shared_memory_are_refused_with_the_reason() {
    let node = start(|_| {});
    let mut client = node.connect();
    client.create_topic("t", 1);
    let request = shared_request(vec![lanes(&[(0, 0)]), lanes(&[(0, 0)])]);
    let answer = ask!(client, Subscribe, 0, request);
    let why = answer.error_message.unwrap();
    assert!(
        why.contains("one source") && why.contains("local socket"),
        "{why}"
    );
}
