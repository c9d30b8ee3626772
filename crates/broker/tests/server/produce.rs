//! Produce: stored chunks, refused chunks, and their answers.

use bytes::{BufMut, Bytes, BytesMut};
use millstream_wire::messages::ProduceRequest;
use millstream_wire::messages::produce_response::PartitionProduceResponse;
use millstream_wire::{ApiKey, ResponseError, Uuid};

use crate::support::{Connection, Node, ask, chunk, produce_request, values, wait_until};

fn answer(
    client: &mut Connection,
    version: i16,
    request: ProduceRequest,
) -> PartitionProduceResponse {
    let response = ask!(client, Produce, version, request);
    response.responses[0].partition_responses[0].clone()
}

#[track_caller]
fn assert_refused(answer: &PartitionProduceResponse, error: ResponseError) {
    assert_eq!(answer.error_code, error.code(), "{answer:?}");
    assert_eq!(answer.base_offset, -1);
}

#[test]
fn produce_stores_records_under_every_acks_setting() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for (offset, acks) in [1, -1].into_iter().enumerate() {
        let request = produce_request("t", 0, chunk(&["value"])).with_acks(acks);
        let answer = answer(&mut client, 9, request);
        assert_eq!((answer.error_code, answer.base_offset), (0, offset as i64));
    }
    // This request gets no answer; the next one does.
    client.send(9, produce_request("t", 0, chunk(&["silent"])).with_acks(0));
    assert_eq!(client.produce("t", 0, &["last"]), 3);
    let fetched = client.fetch("t", 0, 0);
    assert_eq!(values(&fetched), ["value", "value", "silent", "last"]);
}

#[test]
fn unknown_acks_settings_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for acks in [-2, 2, i16::MAX] {
        let request = produce_request("t", 0, chunk(&["value"])).with_acks(acks);
        let answer = answer(&mut client, 9, request);
        assert_eq!(answer.error_code, ResponseError::InvalidRequiredAcks.code());
    }
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 0);
}

#[test]
fn without_acknowledgement_a_refusal_closes_the_connection() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.send(9, produce_request("t", 7, chunk(&["value"])).with_acks(0));
    assert_eq!(client.receive_frame(), None);
    assert_eq!(node.connect().produce("t", 0, &["value"]), 0);
}

#[test]
fn malformed_chunks_are_refused_and_not_stored() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let whole = chunk(&["value", "another"]);
    let mut damaged = whole.to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    let mut two = BytesMut::from(&whole[..]);
    two.put_slice(&whole);
    let cases = [
        (Bytes::from(damaged), ResponseError::CorruptMessage),
        (two.freeze(), ResponseError::InvalidRecord),
        (whole.slice(..whole.len() - 1), ResponseError::InvalidRecord),
        (whole.slice(..20), ResponseError::InvalidRecord),
        (Bytes::new(), ResponseError::InvalidRecord),
        (
            Bytes::from_static(&[255; 100]),
            ResponseError::InvalidRecord,
        ),
    ];
    for (records, error) in cases {
        let answer = answer(&mut client, 9, produce_request("t", 0, records));
        assert_refused(&answer, error);
        assert!(answer.error_message.is_some());
    }
    assert_eq!(client.fetch("t", 0, 0).high_watermark, 0);
}

#[test]
fn produce_reports_unknown_topics_partitions_and_ids() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let unknown = ResponseError::UnknownTopicOrPartition;
    for (topic, partition) in [
        ("u", 0),
        ("t", 2),
        ("t", -1),
        ("t", i32::MIN),
        ("__groups", 0),
    ] {
        let request = produce_request(topic, partition, chunk(&["value"]));
        assert_refused(&answer(&mut client, 9, request), unknown);
    }
    let mut by_id = produce_request("", 0, chunk(&["value"]));
    for id in [Uuid::nil(), Uuid::from_u128(7)] {
        by_id.topic_data[0].topic_id = id;
        let answer = answer(&mut client, 13, by_id.clone());
        assert_refused(&answer, ResponseError::UnknownTopicId);
    }
    by_id.topic_data[0].topic_id = node.log().stream("t").unwrap().uuid();
    assert_eq!(answer(&mut client, 13, by_id).base_offset, 0);
}

#[test]
fn produce_reports_chunks_that_are_too_large() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let bytes_max = node
        .log()
        .stream("t")
        .unwrap()
        .partition(0)
        .unwrap()
        .chunk_bytes_max();
    let large = "x".repeat(bytes_max);
    let request = produce_request("t", 0, chunk(&[&large]));
    let refused = answer(&mut client, 9, request);
    assert_refused(&refused, ResponseError::MessageTooLarge);
    assert_eq!(client.produce("t", 0, &["value"]), 0);
}

/// Newer fields of an answer must not get into older versions, whether it has offsets or errors.
#[test]
fn every_version_is_answered_with_offsets_and_with_errors() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = node.log().stream("t").unwrap().uuid();
    for (offset, version) in ApiKey::Produce.versions().enumerate() {
        for (partition, error) in [(0, 0), (1, ResponseError::UnknownTopicOrPartition.code())] {
            let mut request = produce_request("t", partition, chunk(&["value"]));
            if version >= 13 {
                request.topic_data[0].name = Default::default();
                request.topic_data[0].topic_id = id;
            }
            let answer = answer(&mut client, version, request);
            assert_eq!(answer.error_code, error, "version {version}");
            let expected = if error == 0 { offset as i64 } else { -1 };
            assert_eq!(answer.base_offset, expected, "version {version}");
        }
    }
}

#[test]
fn a_large_request_leaves_no_memory_behind_with_its_connection() {
    let node = Node::alone(|_| {});
    let mut client = node.connect();
    client.create_topic("t", 1);
    let before = crate::support::resident_bytes();
    // The request is refused, but was read as a whole.
    let request = produce_request("t", 9, Bytes::from(vec![7; 30 << 20]));
    let frame = client.frame(9, request);
    let mut clients: Vec<Connection> = (0..8).map(|_| node.connect()).collect();
    for client in &mut clients {
        client.send_bytes(&frame);
        client.receive(ApiKey::Produce, 9);
    }
    drop(frame);
    wait_until("memory is given back", || {
        crate::support::resident_bytes() < before + (60 << 20)
    });
    // Other clients are still served.
    assert_eq!(clients[7].produce("t", 0, &["value"]), 0);
}
