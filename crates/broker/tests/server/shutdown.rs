//! The end of a server: pending requests are answered, and no client delays the end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_wire::messages::join_group_request::JoinGroupRequestProtocol;
use millstream_wire::messages::{ApiVersionsRequest, JoinGroupRequest};
use millstream_wire::{ApiKey, Response, ResponseError, StrBytes};

use crate::support::{Node, ask, chunk, fetch_request, group_id, produce_request, text};

/// A server ends within this time under any behaviour of its clients, also on a busy machine.
const END_MAX: Duration = Duration::from_secs(25);

#[test]
fn a_stopping_server_answers_waiting_fetches() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut waiting = node.connect();
    waiting.send(11, fetch_request(&[("t", 0, 0)]).with_max_wait_ms(600_000));
    // An answer to this request makes it likely that the other has come, too.
    client.ask(3, ApiVersionsRequest::default());
    thread::sleep(Duration::from_millis(300));
    node.stop();
    let Response::Fetch(fetched) = waiting.receive(ApiKey::Fetch, 11).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(fetched.topics[0].partitions[0].error_code, 0);
    assert_eq!(waiting.receive_frame(), None);
    assert_eq!(client.receive_frame(), None);
}

#[test]
fn idle_and_waiting_clients_do_not_delay_the_stop() {
    let node = Node::start();
    let silent = node.connect();
    let mut half = node.connect();
    half.create_topic("t", 1);
    half.send_bytes(&[0, 0, 1]);
    let mut patient = node.connect();
    patient.send(11, fetch_request(&[("t", 0, 0)]).with_max_wait_ms(i32::MAX));
    thread::sleep(Duration::from_millis(100));
    let started_at = Instant::now();
    node.stop();
    assert!(started_at.elapsed() < END_MAX, "{:?}", started_at.elapsed());
    drop(silent);
}

#[test]
fn members_that_wait_for_a_rebalance_do_not_delay_the_stop() {
    let node = Node::start();
    let mut client = node.connect();
    let request = |member: StrBytes| {
        let protocol = JoinGroupRequestProtocol::default().with_name(text("range"));
        JoinGroupRequest::default()
            .with_group_id(group_id("g"))
            .with_session_timeout_ms(60_000)
            .with_rebalance_timeout_ms(60_000)
            .with_member_id(member)
            .with_protocol_type(text("consumer"))
            .with_protocols(vec![protocol])
    };
    let first = ask!(client, JoinGroup, 5, request(StrBytes::default()));
    let joined = ask!(client, JoinGroup, 5, request(first.member_id));
    assert_eq!(joined.error_code, 0);
    // The other member waits for the first one to join again.
    let mut other = node.connect();
    let first = ask!(other, JoinGroup, 5, request(StrBytes::default()));
    other.send(5, request(first.member_id));
    thread::sleep(Duration::from_millis(300));
    let started_at = Instant::now();
    node.stop();
    let taken = started_at.elapsed();
    // Without the end of the wait the stop takes more than 5 seconds.
    assert!(taken < Duration::from_secs(4), "{taken:?}");
    let Response::JoinGroup(ended) = other.receive(ApiKey::JoinGroup, 5).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(ended.error_code, ResponseError::NotCoordinator.code());
}

#[test]
fn a_busy_producer_does_not_delay_the_stop_and_loses_no_answered_chunk() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let address = node.address();
    let is_ended = AtomicBool::new(false);
    let (dir, answered) = thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let mut producer = crate::support::Connection::to(address);
            let frame = producer.frame(9, produce_request("t", 0, chunk(&["value"])));
            // Several requests are always in flight, so the server is never idle.
            let mut answered = 0;
            for _ in 0..8 {
                producer.send_bytes(&frame);
            }
            while !is_ended.load(Ordering::Relaxed) && producer.receive_frame().is_some() {
                answered += 1;
                producer.try_send(&frame);
            }
            while producer.receive_frame().is_some() {
                answered += 1;
            }
            answered
        });
        thread::sleep(Duration::from_millis(500));
        let started_at = Instant::now();
        let dir = node.stop();
        assert!(
            started_at.elapsed() < Duration::from_secs(4),
            "{:?}",
            started_at.elapsed()
        );
        is_ended.store(true, Ordering::Relaxed);
        (dir, producer.join().unwrap())
    });
    assert!(answered > 0);
    let log = millstream_log::Log::open(millstream_log::LogConfig::new(dir.path())).unwrap();
    let partition = log.stream("t").unwrap().partition(0).unwrap();
    assert!(
        partition.durable_offset().0 >= answered,
        "{answered} were answered"
    );
    log.close().unwrap();
}
