//! ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

use millstream_log::{Durability, StreamConfig};
use millstream_testing::lose_power;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::describe_topic_partitions_request::TopicRequest;
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::list_offsets_response::ListOffsetsPartitionResponse;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_wire::messages::{
    DeleteRecordsRequest, DescribeTopicPartitionsRequest, ListOffsetsRequest, MetadataRequest,
    OffsetForLeaderEpochRequest,
};
use millstream_wire::{ApiKey, ResponseError};

use crate::support::{Connection, Node, ask, fetch_request, topic_name, values};

fn list(
    client: &mut Connection,
    version: i16,
    place: (&str, i32),
    timestamp: i64,
) -> ListOffsetsPartitionResponse {
    let partition = ListOffsetsPartition::default()
        .with_partition_index(place.1)
        .with_timestamp(timestamp);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(place.0))
        .with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    let response = ask!(client, ListOffsets, version, request);
    response.topics[0].partitions[0].clone()
}

#[test]
fn list_offsets_answers_every_special_and_ordinary_timestamp() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    // Timestamps 1000 to 1002, twice.
    client.produce("t", 0, &["a", "b", "c"]);
    client.produce("t", 0, &["d", "e", "f"]);
    for (timestamp, offset, found) in [
        (-1, 6, -1),
        (-2, 0, -1),
        (-3, 2, 1002),
        (-4, 0, -1),
        (-5, -1, -1),
        (-6, -1, -1),
        (0, 0, 1000),
        (1001, 1, 1001),
        (1002, 2, 1002),
        (1003, -1, -1),
        (i64::MAX, -1, -1),
    ] {
        let answer = list(&mut client, 11, ("t", 0), timestamp);
        assert_eq!(answer.error_code, 0, "{timestamp}");
        assert_eq!(
            (answer.offset, answer.timestamp),
            (offset, found),
            "{timestamp}"
        );
    }
}

#[test]
fn an_empty_partition_has_only_a_first_and_a_next_offset() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for (timestamp, offset) in [
        (-1, 0),
        (-2, 0),
        (-3, -1),
        (-4, 0),
        (-5, -1),
        (-6, -1),
        (0, -1),
    ] {
        let answer = list(&mut client, 11, ("t", 0), timestamp);
        assert_eq!(
            (answer.error_code, answer.offset),
            (0, offset),
            "{timestamp}"
        );
    }
}

#[test]
fn timestamps_of_later_versions_are_refused() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let unsupported = ResponseError::UnsupportedVersion.code();
    for version in ApiKey::ListOffsets.versions() {
        for (timestamp, known_from) in [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11)] {
            let answer = list(&mut client, version, ("t", 0), timestamp);
            let expected = if version >= known_from {
                0
            } else {
                unsupported
            };
            assert_eq!(
                answer.error_code, expected,
                "{timestamp} in version {version}"
            );
        }
        for timestamp in [-7, i64::MIN] {
            let answer = list(&mut client, version, ("t", 0), timestamp);
            assert_eq!(answer.error_code, unsupported);
        }
    }
}

#[test]
fn unknown_partitions_have_no_offsets() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for place in [("t", 1), ("t", -1), ("u", 0), ("__groups", 0)] {
        let answer = list(&mut client, 5, place, -1);
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        assert_eq!(
            (answer.error_code, answer.offset),
            (unknown, -1),
            "{place:?}"
        );
    }
}

/// Returns the error, epoch and end offset of an epoch of a partition.
fn end_of_epoch(
    client: &mut Connection,
    partition: i32,
    current: i32,
    epoch: i32,
) -> (i16, i32, i64) {
    let requested = OffsetForLeaderPartition::default()
        .with_partition(partition)
        .with_current_leader_epoch(current)
        .with_leader_epoch(epoch);
    let topic = OffsetForLeaderTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![requested]);
    let request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
    let response = ask!(client, OffsetForLeaderEpoch, 4, request);
    let end = &response.topics[0].partitions[0];
    (end.error_code, end.leader_epoch, end.end_offset)
}

#[test]
fn the_only_epoch_ends_at_the_end_of_the_partition() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    client.produce("t", 0, &["a", "b"]);
    let unknown_epoch = ResponseError::UnknownLeaderEpoch.code();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    for (partition, current, epoch, expected) in [
        (0, -1, 0, (0, 0, 2)),
        (0, 0, 0, (0, 0, 2)),
        (0, -1, 1, (0, -1, -1)),
        (0, 1, 0, (unknown_epoch, -1, -1)),
        (7, -1, 0, (unknown, -1, -1)),
    ] {
        let end = end_of_epoch(&mut client, partition, current, epoch);
        assert_eq!(end, expected);
    }
}

#[test]
fn the_epoch_of_an_added_partition_ends_at_the_end_of_the_partition() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(end_of_epoch(&mut client, 1, -1, 0), (unknown, -1, -1));
    node.log().grow_stream("t", 2, 2).unwrap();
    for partition in 1..4 {
        assert_eq!(end_of_epoch(&mut client, partition, 0, 0), (0, 0, 0));
        client.produce("t", partition, &["a", "b"]);
        assert_eq!(end_of_epoch(&mut client, partition, 0, 0), (0, 0, 2));
        assert_eq!(list(&mut client, 5, ("t", partition), -1).offset, 2);
    }
}

#[test]
fn a_consumer_learns_from_the_epoch_that_a_crash_took_records_back() {
    let node = Node::start();
    let config = StreamConfig {
        durability: Durability::Written,
        ..StreamConfig::default()
    };
    let stream = node.log().create_stream("t", config).unwrap().id().0;
    let mut client = node.connect();
    for value in ["a", "b", "lost"] {
        client.produce("t", 0, &[value]);
    }
    assert_eq!(end_of_epoch(&mut client, 0, 0, 0), (0, 0, 3));
    drop(client);

    let dir = node.stop();
    lose_power(dir.path(), stream);
    let node = Node::with_log(dir, |_| {});
    let mut client = node.connect();
    // Others take the place of the record that is lost.
    for value in ["x", "y"] {
        client.produce("t", 0, &[value]);
    }
    let fenced = ResponseError::FencedLeaderEpoch.code();
    let unknown = ResponseError::UnknownLeaderEpoch.code();
    for (current, epoch, expected) in [
        // The position behind the lost record is not valid any more.
        (1, 0, (0, 0, 2)),
        (1, 1, (0, 1, 4)),
        (-1, 2, (0, -1, -1)),
        (1, -1, (0, -1, -1)),
        (0, 0, (fenced, -1, -1)),
        (2, 0, (unknown, -1, -1)),
    ] {
        assert_eq!(end_of_epoch(&mut client, 0, current, epoch), expected);
    }
    for (timestamp, offset, epoch) in [(-2, 0, 0), (-1, 4, 1)] {
        let found = list(&mut client, 10, ("t", 0), timestamp);
        assert_eq!((found.offset, found.leader_epoch), (offset, epoch));
    }
    for (current, error) in [(-1, 0), (0, fenced), (1, 0), (2, unknown)] {
        let mut request = fetch_request(&[("t", 0, 0)]);
        request.topics[0].partitions[0].current_leader_epoch = current;
        let fetched = ask!(client, Fetch, 11, request);
        let partition = &fetched.topics[0].partitions[0];
        assert_eq!(partition.error_code, error, "{current}");
        let found: &[&str] = if error == 0 {
            &["a", "b", "x", "y"]
        } else {
            &[]
        };
        assert_eq!(values(partition), found);
    }
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
    let request = MetadataRequest::default().with_topics(Some(vec![topic]));
    let metadata = ask!(client, Metadata, 9, request);
    assert_eq!(metadata.topics[0].partitions[0].leader_epoch, 1);
    let topic = TopicRequest::default().with_name(topic_name("t"));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![topic])
        .with_response_partition_limit(10);
    let described = ask!(client, DescribeTopicPartitions, 0, request);
    assert_eq!(described.topics[0].partitions[0].leader_epoch, 1);
    drop(client);

    // A clean stop takes nothing back.
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(end_of_epoch(&mut client, 0, 1, 0), (0, 0, 2));
    assert_eq!(end_of_epoch(&mut client, 0, 1, 1), (0, 1, 4));
}

/// Consumers see the records of an `async` or a `written` topic before they are durable.
#[test]
fn records_up_to_the_high_watermark_can_be_deleted() {
    const RECORDS: i64 = 20;
    let node = Node::start();
    let mut client = node.connect();
    for durability in [Durability::Async, Durability::Written, Durability::Sync] {
        let name = durability.name();
        let config = StreamConfig {
            durability,
            ..StreamConfig::default()
        };
        node.log().create_stream(name, config).unwrap();
        for number in 1..=RECORDS {
            client.produce(name, 0, &["x"]);
            let before = match number % 2 {
                0 => -1,
                _ => number,
            };
            let partition = DeleteRecordsPartition::default().with_offset(before);
            let topic = DeleteRecordsTopic::default()
                .with_name(topic_name(name))
                .with_partitions(vec![partition]);
            let request = DeleteRecordsRequest::default()
                .with_topics(vec![topic])
                .with_timeout_ms(60_000);
            let deleted = ask!(client, DeleteRecords, 2, request);
            let deleted = &deleted.topics[0].partitions[0];
            assert_eq!((deleted.error_code, deleted.low_watermark), (0, number));
        }
    }
}
