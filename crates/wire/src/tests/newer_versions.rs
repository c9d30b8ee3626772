//! The bytes of versions of Kafka's requests that the generated messages lack.

use bytes::BytesMut;
use kafka_protocol::messages::describe_log_dirs_response::{
    DescribeLogDirsPartition, DescribeLogDirsTopic,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartitions, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{
    BrokerId, DescribeLogDirsRequest, DescribeLogDirsResponse as GeneratedResponse, GroupId,
    ListOffsetsRequest, ListOffsetsResponse, OffsetCommitRequest, OffsetCommitResponse,
    OffsetFetchRequest, OffsetFetchResponse, TopicName,
};
use kafka_protocol::protocol::Encodable;
use proptest::prelude::*;

use super::golden::hex;
use super::round_trips::{body, header};
use crate::forge::{Forge, Forged};
use crate::{
    ApiKey, DescribeLogDirsResponse, LogDir, Request, Response, Uuid, decode_request,
    decode_response, encode_request, encode_response,
};

/// The bytes before the body: api key, version, correlation id, the client id "client", no tagged fields.
const REQUEST_HEADER_BYTES: usize = 17;
/// The bytes before the body: correlation id, no tagged fields.
const RESPONSE_HEADER_BYTES: usize = 5;

const TOPIC_ID: Uuid = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);

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
fn offset_commit_10_has_topic_ids_in_place_of_names() {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(1)
        .with_committed_offset(42)
        .with_committed_leader_epoch(3)
        .with_committed_metadata(Some("note".into()));
    let topic = OffsetCommitRequestTopic::default()
        .with_topic_id(TOPIC_ID)
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId("g".into()))
        .with_generation_id_or_member_epoch(7)
        .with_member_id("m".into())
        .with_topics(vec![topic]);
    let expected = [
        "026700000007026d00",
        "020102030405060708090a0b0c0d0e0f10",
        "0200000001000000000000002a00000003056e6f746500",
        "00",
        "00",
    ];
    check_request(10, request, &expected);
    let partition = OffsetCommitResponsePartition::default()
        .with_partition_index(1)
        .with_error_code(100);
    let topic = OffsetCommitResponseTopic::default()
        .with_topic_id(TOPIC_ID)
        .with_partitions(vec![partition]);
    let response = OffsetCommitResponse::default().with_topics(vec![topic]);
    let expected = [
        "00000000",
        "020102030405060708090a0b0c0d0e0f10",
        "0200000001006400",
        "00",
        "00",
    ];
    check_response(10, response, &expected);
}

#[test]
fn offset_fetch_10_has_topic_ids_in_place_of_names() {
    let topic = OffsetFetchRequestTopics::default()
        .with_topic_id(TOPIC_ID)
        .with_partition_indexes(vec![1]);
    let some = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId("g".into()))
        .with_member_id(Some("m".into()))
        .with_member_epoch(7)
        .with_topics(Some(vec![topic]));
    let all = OffsetFetchRequestGroup::default()
        .with_group_id(GroupId("h".into()))
        .with_topics(None);
    let request = OffsetFetchRequest::default()
        .with_groups(vec![some, all])
        .with_require_stable(true);
    let expected = [
        "03",
        "0267026d00000007",
        "020102030405060708090a0b0c0d0e0f10",
        "020000000100",
        "00",
        "026800ffffffff0000",
        "0100",
    ];
    check_request(10, request, &expected);
    let partition = OffsetFetchResponsePartitions::default()
        .with_partition_index(1)
        .with_committed_offset(42)
        .with_committed_leader_epoch(3)
        .with_metadata(Some("note".into()));
    let topic = OffsetFetchResponseTopics::default()
        .with_topic_id(TOPIC_ID)
        .with_partitions(vec![partition]);
    let group = OffsetFetchResponseGroup::default()
        .with_group_id(GroupId("g".into()))
        .with_topics(vec![topic]);
    let response = OffsetFetchResponse::default().with_groups(vec![group]);
    let expected = [
        "00000000",
        "020267",
        "020102030405060708090a0b0c0d0e0f10",
        "0200000001000000000000002a00000003056e6f7465000000",
        "00",
        "000000",
        "00",
    ];
    check_response(10, response, &expected);
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
