//! Clients that may share memory, and clients that receive without it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use millstream_broker::security::{Operation, Resource};
use millstream_log::SOCKET;
use millstream_share::{Mapping, Taken, layout};
use millstream_wire::ResponseError;
use millstream_wire::native::*;
use rustix::process::{Resource as Limited, Rlimit, getrlimit, setrlimit};

use super::{Consumer, shared_request, start, value};
use crate::logins::{ADMIN, add_admin, guard};
use crate::permissions::topic;
use crate::push::{lanes, receive_request, subscribe_request, values_of};
use crate::quotas::limit_reading;
use crate::support::{Connection, Node, TIME_MAX, ask};

#[test]
fn the_shared_pool_is_read_only_for_clients() {
    let node = start(|_| {});
    let (path, bytes) = node.log().pool().shared();
    assert!(Mapping::read_only(&path, bytes as u64).is_ok());
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o400);
    let file = OpenOptions::new().read(true).write(true).open(&path);
    // The superuser opens every file.
    let is_refused = file.map_or(true, |file| file.set_len(0).is_err());
    assert!(is_refused);
}

#[test]
fn only_the_owner_may_use_the_socket_and_the_server_removes_it() {
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
fn a_server_replaces_the_socket_that_a_killed_server_left() {
    let node = start(|_| {});
    node.connect().create_topic("t", 1);
    let dir = node.stop();
    File::create(dir.path().join(SOCKET)).unwrap();
    let socket_dir = dir.path().to_owned();
    let node = Node::on(dir, |_| {}, |config| config.local_socket = Some(socket_dir));
    Consumer::begin(node.connect_locally(), vec![lanes(&[(0, 0)])]);
}

#[test]
fn network_clients_and_clients_with_another_layout_get_no_shared_memory() {
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
    // The standard streams are the only ones below, and they are open. Files of other threads may come and go.
    let none = Rlimit {
        current: Some(3),
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
fn chunks_are_received_over_the_connection_when_memory_cannot_be_shared() {
    let mut other = millstream_testing::command(std::env::current_exe().unwrap());
    other.args(["--exact", "push_shared::access::without_room", "--ignored"]);
    let output = other.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
}

#[test]
fn sharing_memory_needs_the_right_to_read_every_stream() {
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
fn a_client_with_a_read_quota_does_not_share_memory() {
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
