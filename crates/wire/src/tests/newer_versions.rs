//! The bytes of versions of Kafka's requests that the generated messages lack.

use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{BrokerId, ListOffsetsRequest, ListOffsetsResponse, TopicName};

use super::golden::hex;
use super::round_trips::{body, header};
use crate::{Request, Response, decode_request, decode_response, encode_request, encode_response};

/// The bytes before the body: api key, version, correlation id, the client id "client", no tagged fields.
const REQUEST_HEADER_BYTES: usize = 17;
/// The bytes before the body: correlation id, no tagged fields.
const RESPONSE_HEADER_BYTES: usize = 5;

#[track_caller]
fn check_request(version: i16, request: impl Into<Request>, expected: &[&str]) {
    let request = request.into();
    let header = header(request.api(), version);
    let frame = body(encode_request(&header, &request).unwrap());
    assert_eq!(hex(&frame[REQUEST_HEADER_BYTES..]), expected.concat());
    assert_eq!(decode_request(frame), Ok((header, request)));
}

#[track_caller]
fn check_response(version: i16, response: impl Into<Response>, expected: &[&str]) {
    let response = response.into();
    let header = header(response.api(), version);
    let frame = body(encode_response(&header, &response).unwrap());
    assert_eq!(hex(&frame[RESPONSE_HEADER_BYTES..]), expected.concat());
    let decoded = decode_response(header.api, version, frame);
    assert_eq!(decoded, Ok((header.correlation_id, response)));
}

#[test]
fn list_offsets_11_has_the_layout_of_version_10() {
    let name = || TopicName("t".into());
    let partition = ListOffsetsPartition::default()
        .with_partition_index(1)
        .with_timestamp(-6);
    let topic = ListOffsetsTopic::default()
        .with_name(name())
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic])
        .with_timeout_ms(1000);
    let expected = [
        "ffffffff00",
        "020274",
        "0200000001fffffffffffffffffffffffa00",
        "00",
        "000003e800",
    ];
    check_request(11, request, &expected);
    let partition = ListOffsetsPartitionResponse::default().with_partition_index(1);
    let topic = ListOffsetsTopicResponse::default()
        .with_name(name())
        .with_partitions(vec![partition]);
    let response = ListOffsetsResponse::default().with_topics(vec![topic]);
    let expected = [
        "00000000",
        "020274",
        "02000000010000ffffffffffffffffffffffffffffffffffffffff00",
        "00",
        "00",
    ];
    check_response(11, response, &expected);
}
