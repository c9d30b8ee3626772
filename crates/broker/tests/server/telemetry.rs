//! Metrics that clients report (KIP-714): which client is asked for which metrics, and the records of its reports.

use bytes::Bytes;
use millstream_broker::security::Operation;
use millstream_record::{Chunks, Decompressor};
use millstream_wire::messages::{
    ApiVersionsRequest, GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
};
use millstream_wire::{ResponseError, Uuid};

use crate::configs::set;
use crate::permissions::{topic, two_clients};
use crate::support::{Connection, Node, ask};

const TOPIC: &str = "otlp_metrics";

/// The type of subscriptions to metrics.
const CLIENT_METRICS: i8 = 16;

/// The id that the client instances of these tests have, and its text.
const INSTANCE: Uuid = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
const INSTANCE_TEXT: &str = "AQIDBAUGBwgJCgsMDQ4PEA";

/// Returns the metrics that a client instance is asked for.
fn subscriptions(client: &mut Connection, instance: Uuid) -> GetTelemetrySubscriptionsResponse {
    let request = GetTelemetrySubscriptionsRequest::default().with_client_instance_id(instance);
    let response = ask!(client, GetTelemetrySubscriptions, 0, request);
    assert_eq!(response.error_code, 0, "{response:?}");
    response
}

fn metrics(asked: &GetTelemetrySubscriptionsResponse) -> Vec<&str> {
    asked.requested_metrics.iter().map(|name| &**name).collect()
}

/// Sets a setting of a subscription.
fn subscribe(client: &mut Connection, name: &str, setting: &str, value: &str) {
    set(client, (CLIENT_METRICS, name), setting, value);
}

fn report(
    asked: &GetTelemetrySubscriptionsResponse,
    metrics: &'static [u8],
) -> PushTelemetryRequest {
    PushTelemetryRequest::default()
        .with_client_instance_id(INSTANCE)
        .with_subscription_id(asked.subscription_id)
        .with_metrics(Bytes::from_static(metrics))
}

fn push(client: &mut Connection, request: &PushTelemetryRequest) -> i16 {
    ask!(client, PushTelemetry, 0, request.clone()).error_code
}

/// The key, the value and the headers of a record.
type Stored = (String, String, Vec<(String, String)>);

fn stored(client: &mut Connection) -> Vec<Stored> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let fetched = client.fetch(TOPIC, 0, 0);
    let mut records = Vec::new();
    for piece in &fetched.records {
        for chunk in Chunks::new(piece) {
            for record in chunk
                .unwrap()
                .records(&mut Decompressor::default())
                .unwrap()
            {
                let record = record.unwrap();
                let headers = record.headers();
                let headers =
                    headers.map(|header| (text(header.name), text(header.value.unwrap())));
                records.push((
                    text(record.key.unwrap()),
                    text(record.value.unwrap()),
                    headers.collect(),
                ));
            }
        }
    }
    records
}

#[test]
fn a_report_becomes_a_record_that_names_its_client() {
    let node = Node::start();
    let mut client = node.connect();
    let software = ApiVersionsRequest::default()
        .with_client_software_name("a-client".into())
        .with_client_software_version("1.2.3".into());
    ask!(client, ApiVersions, 3, software);
    client.create_topic(TOPIC, 1);
    subscribe(&mut client, "m", "metrics", "a.b,c");
    let asked = subscriptions(&mut client, INSTANCE);
    assert_eq!(asked.client_instance_id, INSTANCE);
    assert_eq!(metrics(&asked), ["a.b", "c"]);
    assert_eq!(asked.push_interval_ms, 300_000);
    assert_eq!(asked.telemetry_max_bytes, 1 << 20);
    assert_eq!(asked.accepted_compression_types, [0_i8; 0]);
    assert!(asked.delta_temporality);
    assert_eq!(push(&mut client, &report(&asked, b"the metrics")), 0);
    // A report without metrics stores nothing.
    let last = report(&asked, b"").with_terminating(true);
    assert_eq!(push(&mut client, &last), 0);
    let records = stored(&mut client);
    let (key, value, headers) = &records[0];
    assert_eq!((records.len(), key.as_str()), (1, INSTANCE_TEXT));
    assert_eq!(value, "the metrics");
    let port = headers[5].1.clone();
    let expected = [
        ("client_instance_id", INSTANCE_TEXT),
        ("client_id", "test"),
        ("client_software_name", "a-client"),
        ("client_software_version", "1.2.3"),
        ("client_source_address", "127.0.0.1"),
        ("client_source_port", &port),
        ("principal", "User:ANONYMOUS"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(*headers, expected);
}

#[test]
fn a_client_without_an_id_gets_one() {
    let node = Node::start();
    let mut client = node.connect();
    let [first, second] = [(); 2].map(|()| subscriptions(&mut client, Uuid::nil()));
    assert!(!first.client_instance_id.is_nil());
    assert_ne!(first.client_instance_id, second.client_instance_id);
}

#[test]
fn subscriptions_choose_clients_by_patterns_and_survive_a_restart() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic(TOPIC, 1);
    subscribe(&mut client, "mine", "metrics", "mine.");
    subscribe(&mut client, "mine", "interval.ms", "2000");
    let patterns = format!("client_id=te.t, client_instance_id={INSTANCE_TEXT}");
    subscribe(&mut client, "mine", "match", &patterns);
    subscribe(&mut client, "others", "metrics", "others.");
    subscribe(&mut client, "others", "interval.ms", "1000");
    // A pattern must match the whole value.
    subscribe(&mut client, "others", "match", "client_id=tes");
    let node = node.restart();
    let mut client = node.connect();
    let asked = subscriptions(&mut client, INSTANCE);
    assert_eq!(
        (metrics(&asked), asked.push_interval_ms),
        (vec!["mine."], 2000)
    );
    assert_eq!(
        metrics(&subscriptions(&mut client, Uuid::from_u128(7))),
        [""; 0]
    );

    subscribe(
        &mut client,
        "others",
        "match",
        "client_source_address=127.*",
    );
    let asked = subscriptions(&mut client, INSTANCE);
    assert_eq!(metrics(&asked), ["mine.", "others."]);
    assert_eq!(asked.push_interval_ms, 1000);
    subscribe(&mut client, "others", "metrics", "*");
    assert_eq!(metrics(&subscriptions(&mut client, INSTANCE)), ["*"]);
}

#[test]
fn no_client_is_asked_while_there_is_no_topic() {
    let node = Node::start();
    let mut client = node.connect();
    subscribe(&mut client, "m", "metrics", "*");
    let nothing = subscriptions(&mut client, INSTANCE);
    assert_eq!(metrics(&nothing), [""; 0]);
    assert_eq!(nothing.push_interval_ms, 300_000);
    client.create_topic(TOPIC, 1);
    let unknown = ResponseError::UnknownSubscriptionId.code();
    assert_eq!(push(&mut client, &report(&nothing, b"old")), unknown);
    let asked = subscriptions(&mut client, INSTANCE);
    assert_eq!(metrics(&asked), ["*"]);
    assert_eq!(push(&mut client, &report(&asked, b"new")), 0);
    assert_eq!(stored(&mut client).len(), 1);
}

#[test]
fn wrong_reports_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic(TOPIC, 1);
    subscribe(&mut client, "m", "metrics", "*");
    subscribe(&mut client, "m", "interval.ms", "3600000");
    let asked = subscriptions(&mut client, INSTANCE);
    let good = report(&asked, b"metrics");
    let large = Bytes::from(vec![0; (1 << 20) + 1]);
    let mut refused = |request: PushTelemetryRequest, error: ResponseError| {
        subscriptions(&mut client, INSTANCE);
        assert_eq!(push(&mut client, &request), error.code(), "{error:?}");
    };
    let other = asked.subscription_id.wrapping_add(1);
    refused(
        good.clone().with_client_instance_id(Uuid::nil()),
        ResponseError::InvalidRequest,
    );
    refused(
        good.clone().with_subscription_id(other),
        ResponseError::UnknownSubscriptionId,
    );
    refused(
        good.clone().with_compression_type(1),
        ResponseError::UnsupportedCompressionType,
    );
    refused(
        good.clone().with_metrics(large),
        ResponseError::TelemetryTooLarge,
    );
    subscriptions(&mut client, INSTANCE);
    assert_eq!(push(&mut client, &good), 0);
    let early = ResponseError::ThrottlingQuotaExceeded.code();
    assert_eq!(push(&mut client, &good), early);
    // The last report may come early, and no other one follows it.
    let last = good.clone().with_terminating(true);
    assert_eq!(push(&mut client, &last), 0);
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(push(&mut client, &good), invalid);
    assert_eq!(stored(&mut client).len(), 2);
}

#[test]
fn reports_need_the_right_to_write_to_the_topic() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic(TOPIC, 1);
    subscribe(&mut admin, "m", "metrics", "*");
    assert_eq!(metrics(&subscriptions(&mut alice, INSTANCE)), [""; 0]);
    let asked = subscriptions(&mut admin, INSTANCE);
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!(push(&mut alice, &report(&asked, b"metrics")), denied);
    admin.allow("alice", (Operation::Write, topic(TOPIC)));
    let asked = subscriptions(&mut alice, INSTANCE);
    assert_eq!(metrics(&asked), ["*"]);
    assert_eq!(push(&mut alice, &report(&asked, b"metrics")), 0);
    let principal = ("principal".to_owned(), "User:alice".to_owned());
    assert_eq!(stored(&mut admin)[0].2[6], principal);
}
