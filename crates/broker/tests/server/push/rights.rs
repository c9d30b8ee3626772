//! Rights that are revoked while a client has a subscription.

use millstream_broker::security::Operation;
use millstream_wire::ResponseError;

use super::{error, lanes, of_shared_group, receive_request, subscribe_request, value};
use crate::permissions::{group, topic, two_clients};
use crate::support::ask;

#[test]
fn a_revoked_read_right_ends_a_subscription() {
    let (node, mut admin, mut client) = two_clients();
    admin.create_topic("t", 1);
    admin.produce("t", 0, &["a"]);
    let refused = ask!(
        client,
        Subscribe,
        0,
        subscribe_request(vec![lanes(&[(0, 0)])])
    );
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::TopicAuthorizationFailed)
    );
    admin.allow("alice", (Operation::Read, topic("t")));
    let refused = ask!(
        client,
        Subscribe,
        0,
        subscribe_request(vec![of_shared_group("words", "one")])
    );
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::GroupAuthorizationFailed)
    );
    admin.allow("alice", (Operation::Read, group("words")));
    client.subscribe(of_shared_group("words", "one"));
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    client.send(0, receive_request(subscription));
    assert_eq!(client.received_values(), [value(0, "a")]);

    admin.forbid_all();
    let refused = ask!(client, Receive, 0, receive_request(subscription));
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::TopicAuthorizationFailed)
    );
    drop(node);
}

/// An earlier fault: the broker answered a request from before the ban with later records.
#[test]
fn a_revoked_read_right_ends_a_waiting_receive() {
    let (node, mut admin, mut client) = two_clients();
    admin.create_topic("t", 1);
    admin.allow("alice", (Operation::Read, topic("t")));
    let subscription = client.subscribe(lanes(&[(0, 0)]));
    // Both arrive together, so the second one is under way when the first is answered.
    let frames = [(); 2].map(|()| client.frame(0, receive_request(subscription)));
    client.send_bytes(&frames.concat());
    admin.produce("t", 0, &["a"]);
    assert_eq!(client.received_values(), [value(0, "a")]);
    admin.forbid_all();
    admin.produce("t", 0, &["b"]);
    let refused = client.received();
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::TopicAuthorizationFailed)
    );
    assert_eq!(refused.delivered, []);
    drop(node);
}

#[test]
fn a_revoked_group_right_ends_a_subscription() {
    let (node, mut admin, mut client) = two_clients();
    admin.create_topic("t", 1);
    admin.allow("alice", (Operation::Read, topic("t")));
    admin.allow("alice", (Operation::Read, group("words")));
    let subscription = client.subscribe(of_shared_group("words", "one"));
    admin.forbid_all();
    admin.allow("alice", (Operation::Read, topic("t")));
    let refused = ask!(client, Receive, 0, receive_request(subscription));
    assert_eq!(
        error(refused.error_code),
        Some(ResponseError::GroupAuthorizationFailed)
    );
    drop(node);
}
