//! The bytes of versions of Kafka's requests that the generated messages lack.

use bytes::BytesMut;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsTopic,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{
    BrokerId, DescribeLogDirsRequest, DescribeLogDirsResponse as GeneratedResponse,
    ListOffsetsRequest, ListOffsetsResponse, TopicName,
};
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::golden::hex;
use super::round_trips::{body, header};
use crate::forge::{Forge, Forged};
use crate::{
    ApiKey, DescribeLogDirsResponse, LogDir, Request, Response, decode_request, decode_response,
    encode_request, encode_response,
};

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

#[test]
fn describe_log_dirs_5_tells_whether_a_directory_is_cordoned() {
    let request = DescribeLogDirsRequest::default().with_topics(None);
    check_request(5, request, &["0000"]);
    let partition = DescribeLogDirsPartition::default()
        .with_partition_index(1)
        .with_partition_size(5);
    let topic = DescribeLogDirsTopic::default()
        .with_name(TopicName("t".into()))
        .with_partitions(vec![partition]);
    let dir = LogDir {
        log_dir: "/d".into(),
        topics: vec![topic],
        total_bytes: 1000,
        usable_bytes: 100,
        is_cordoned: true,
        ..LogDir::default()
    };
    let response = DescribeLogDirsResponse {
        results: vec![dir],
        ..DescribeLogDirsResponse::default()
    };
    let expected = [
        "000000000000",
        "020000032f64",
        "020274",
        "0200000001000000000000000500000000000000000000",
        "00",
        "00000000000003e80000000000000064",
        "0100",
        "00",
    ];
    check_response(5, response, &expected);
}

proptest! {
    #[test]
    fn log_dirs_equal_the_generated_encoders_bytes(seed: u64) {
        for version in 1..=4 {
            let mut forge = Forge::new(seed);
            let Some(mut generated) = GeneratedResponse::forge(&mut forge, version) else {
                continue;
            };
            // Millstream never sends these.
            generated.unknown_tagged_fields.clear();
            for dir in &mut generated.results {
                dir.unknown_tagged_fields.clear();
            }
            let mut expected = BytesMut::new();
            generated.encode(&mut expected, version).unwrap();
            let response = DescribeLogDirsResponse::from(generated);
            let api = ApiKey::DescribeLogDirs;
            let frame = body(encode_response(&header(api, version), &response.into()).unwrap());
            prop_assert!(frame.ends_with(&expected), "version {}", version);
            let header_bytes = if version >= 2 { 5 } else { 4 };
            prop_assert_eq!(frame.len(), header_bytes + expected.len());
        }
    }
}
