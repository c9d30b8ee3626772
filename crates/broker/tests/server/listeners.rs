//! Listeners: several at once, each with its address, its protocol, and the address that it reports to its clients.

use std::net::SocketAddr;
use std::sync::Arc;

use millstream_base::{ByteSize, SystemRandom, TcpNetwork};
use millstream_broker::{BrokerConfig, ListenerConfig, Protocol, Server, StartError};
use millstream_log::{Log, LogConfig, SOCKET};
use millstream_wire::messages::{DescribeClusterRequest, FindCoordinatorRequest, MetadataRequest};
use millstream_wire::{ApiKey, Response};

use crate::logins::{ADMIN, add_admin, guard};
use crate::support::{Connection, Node, ask, text};

const LOCAL: [u8; 4] = [127, 0, 0, 1];

fn listener(protocol: Option<&str>) -> ListenerConfig {
    ListenerConfig {
        protocol: protocol.map(|name| name.parse::<Protocol>().unwrap()),
        ..ListenerConfig::new((LOCAL, 0).into())
    }
}

/// Returns the address of the broker by each of the requests that return it.
fn reported_addresses(client: &mut Connection) -> [(String, i32); 3] {
    let metadata = ask!(client, Metadata, 12, MetadataRequest::default());
    let broker = &metadata.brokers[0];
    let request = DescribeClusterRequest::default();
    let cluster = ask!(client, DescribeCluster, 0, request);
    let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![text("a group")]);
    let coordinators = ask!(client, FindCoordinator, 4, request);
    let coordinator = &coordinators.coordinators[0];
    [
        (broker.host.to_string(), broker.port),
        (cluster.brokers[0].host.to_string(), cluster.brokers[0].port),
        (coordinator.host.to_string(), coordinator.port),
    ]
}

#[track_caller]
fn check_addresses(node: &Node, listener: usize, host: &str, port: u16) {
    let mut client = Connection::to(node.addresses()[listener]);
    let expected = (host.to_owned(), i32::from(port));
    assert_eq!(
        reported_addresses(&mut client),
        [expected.clone(), expected.clone(), expected]
    );
}

#[test]
fn each_listener_sends_its_clients_to_its_own_address() {
    let node = Node::with(|config| config.listeners = vec![listener(None), listener(None)]);
    let addresses = node.addresses().to_vec();
    assert_ne!(addresses[0].port(), addresses[1].port());
    check_addresses(&node, 0, "127.0.0.1", addresses[0].port());
    check_addresses(&node, 1, "127.0.0.1", addresses[1].port());
}

#[test]
fn clients_are_sent_to_the_advertised_address() {
    let node = Node::with(|config| {
        let advertising = |host: &str, port| ListenerConfig {
            advertised: Some((host.to_owned(), port)),
            ..listener(None)
        };
        config.listeners = vec![
            advertising("broker.example.com", 19_092),
            advertising("localhost", 0),
        ];
    });
    check_addresses(&node, 0, "broker.example.com", 19_092);
    check_addresses(&node, 1, "localhost", node.addresses()[1].port());
}

/// Clients got `0.0.0.0`, which is no address to connect to.
#[test]
fn a_listener_on_all_addresses_reports_the_address_of_the_connection() {
    let node = Node::with(|config| {
        config.listeners[0].address = ([0, 0, 0, 0], 0).into();
    });
    let port = node.addresses()[0].port();
    for host in ["127.0.0.1", "127.0.0.2"] {
        let address = SocketAddr::new(host.parse().unwrap(), port);
        let expected = (host.to_owned(), i32::from(port));
        assert_eq!(
            reported_addresses(&mut Connection::to(address))[0],
            expected
        );
    }
}

#[test]
fn one_listener_asks_for_a_login_and_another_one_does_not() {
    let node = Node::on(tempfile::tempdir().unwrap(), add_admin, |config| {
        guard(config);
        config.security.authentication = false;
        config.listeners = vec![
            listener(Some("SASL_PLAINTEXT")),
            listener(Some("PLAINTEXT")),
        ];
    });
    let [guarded, open] = node.addresses() else {
        panic!("there are two listeners")
    };
    // The broker refuses requests before the login.
    let mut unknown = Connection::to(*guarded);
    unknown.send(12, MetadataRequest::default());
    unknown.receive(ApiKey::Metadata, 12);
    assert!(unknown.is_closed());
    let mut admin = Connection::to(*guarded).log_in(ADMIN);
    admin.create_topic("t", 1);
    // An anonymous user may do only what a rule allows, as on a Kafka broker with access rules.
    let mut anonymous = Connection::to(*open);
    let all = || MetadataRequest::default().with_topics(None);
    let seen = ask!(anonymous, Metadata, 12, all());
    assert!(seen.topics.is_empty());
    let seen = ask!(admin, Metadata, 12, all());
    assert_eq!(seen.topics.len(), 1);
    assert_eq!(seen.brokers[0].port, i32::from(guarded.port()));
}

#[test]
fn an_anonymous_superuser_of_an_open_listener_may_do_everything() {
    let node = Node::on(tempfile::tempdir().unwrap(), add_admin, |config| {
        guard(config);
        let anonymous = "User:ANONYMOUS".parse().unwrap();
        config.security.super_users.insert(anonymous);
        config.listeners = vec![listener(None), listener(Some("PLAINTEXT"))];
    });
    let mut anonymous = Connection::to(node.addresses()[1]);
    anonymous.create_topic("t", 1);
    anonymous.produce("t", 0, &["a"]);
}

/// Sends a request without a login to the local socket of a broker with these listeners; returns whether the broker
/// answers it.
fn answers_on_the_socket(protocols: [&str; 2]) -> bool {
    let dir = tempfile::tempdir().unwrap();
    let socket_dir = dir.path().to_owned();
    let node = Node::on(dir, add_admin, |config| {
        guard(config);
        config.listeners = protocols.map(|name| listener(Some(name))).into();
        config.local_socket = Some(socket_dir);
    });
    let socket = node.dir().join(SOCKET);
    Connection::local(&socket)
        .log_in(ADMIN)
        .create_topic("t", 1);
    let mut unknown = Connection::local(&socket);
    let metadata = MetadataRequest::default().with_topics(None);
    unknown.send(12, metadata);
    let (_, Response::Metadata(answer)) = unknown.receive(ApiKey::Metadata, 12) else {
        panic!("the answer is to Metadata")
    };
    // Anonymous users see nothing either way.
    assert!(answer.topics.is_empty());
    !answer.brokers.is_empty()
}

#[test]
fn the_local_socket_needs_a_login_if_all_listeners_do() {
    assert!(!answers_on_the_socket(["SASL_PLAINTEXT", "SASL_PLAINTEXT"]));
    assert!(answers_on_the_socket(["SASL_PLAINTEXT", "PLAINTEXT"]));
}

#[track_caller]
fn check_refused(change: impl FnOnce(&mut BrokerConfig), parts: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let mut config = BrokerConfig::new((LOCAL, 0).into());
    change(&mut config);
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let started = Server::start(&TcpNetwork, config, log, clock, random);
    let error = started.err().expect("it is refused");
    let message = error.to_string();
    assert!(!matches!(error, StartError::Log(_)), "{message}");
    for part in parts {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn two_listeners_on_one_port_are_refused() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    for other in [[127, 0, 0, 1], [0, 0, 0, 0]] {
        check_refused(
            |config| {
                config.listeners = vec![
                    ListenerConfig::new((LOCAL, port).into()),
                    ListenerConfig::new((other, port).into()),
                ];
            },
            &["same port", &port.to_string()],
        );
    }
}

/// The broker refused `[::1]` beside `0.0.0.0`, though Linux keeps their ports apart.
#[test]
fn a_listener_of_ipv6_shares_its_port_with_one_on_all_addresses_of_ipv4() {
    let free = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = free.local_addr().unwrap().port();
    let addresses = ["0.0.0.0", "::1"].map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
    let Ok(free_of_ipv6) = std::net::TcpListener::bind(addresses[1]) else {
        eprintln!("skipped: this machine has no IPv6");
        return;
    };
    drop((free, free_of_ipv6));
    let node = Node::with(|config| config.listeners = addresses.map(ListenerConfig::new).into());
    assert_eq!(node.addresses(), addresses);
    check_addresses(&node, 1, "::1", port);
}

#[test]
fn a_listener_with_tls_needs_a_certificate() {
    check_refused(
        |config| config.listeners = vec![listener(Some("SSL"))],
        &["SSL", "no certificate"],
    );
}

#[test]
fn the_broker_reports_the_configured_node_id() {
    let node = Node::with(|config| config.node_id = 7);
    let mut client = node.connect();
    client.create_topic("t", 1);
    let request = MetadataRequest::default().with_topics(None);
    let metadata = ask!(client, Metadata, 12, request);
    assert_eq!(
        (metadata.brokers[0].node_id.0, metadata.controller_id.0),
        (7, 7)
    );
    let partition = &metadata.topics[0].partitions[0];
    assert_eq!(partition.leader_id.0, 7);
    assert_eq!(partition.replica_nodes[0].0, 7);
    let request = FindCoordinatorRequest::default().with_coordinator_keys(vec![text("g")]);
    let found = ask!(client, FindCoordinator, 4, request);
    assert_eq!(found.coordinators[0].node_id.0, 7);
    assert_eq!(found.coordinators[0].error_code, 0);
}
