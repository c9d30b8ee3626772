//! The encoding of OffsetCommit and OffsetFetch requests in version 10 (KIP-848), which have topic ids in place of names.
//! The generated messages have their fields, but not their encoding.

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, OffsetFetchRequest};

use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;
use crate::request::Request;

/// The first version with topic ids in place of names.
pub(crate) const TOPIC_IDS_FROM: i16 = 10;

pub(crate) fn decode_commit(input: &mut Input) -> Result<Request, Malformed> {
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(input.string("group id")?))
        .with_generation_id_or_member_epoch(input.int32("generation or member epoch")?)
        .with_member_id(input.string("member id")?)
        .with_group_instance_id(input.nullable_string("group instance id")?)
        .with_topics(input.array("topics", |input| {
            let topic = OffsetCommitRequestTopic::default()
                .with_topic_id(input.uuid("topic id")?)
                .with_partitions(input.array("partitions", decode_committed)?);
            input.tags()?;
            Ok(topic)
        })?);
    input.tags()?;
    Ok(request.into())
}

fn decode_committed(input: &mut Input) -> Result<OffsetCommitRequestPartition, Malformed> {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(input.int32("partition")?)
        .with_committed_offset(input.int64("committed offset")?)
        .with_committed_leader_epoch(input.int32("committed leader epoch")?)
        .with_committed_metadata(input.nullable_string("committed metadata")?);
    input.tags()?;
    Ok(partition)
}

pub(crate) fn put_commit(request: &OffsetCommitRequest, output: &mut Output) {
    output.string(&request.group_id);
    output.int32(request.generation_id_or_member_epoch);
    output.string(&request.member_id);
    output.nullable_string(request.group_instance_id.as_deref());
    output.array(&request.topics, |output, topic| {
        output.uuid(topic.topic_id);
        output.array(&topic.partitions, |output, partition| {
            output.int32(partition.partition_index);
            output.int64(partition.committed_offset);
            output.int32(partition.committed_leader_epoch);
            output.nullable_string(partition.committed_metadata.as_deref());
            output.no_tags();
        });
        output.no_tags();
    });
    output.no_tags();
}

pub(crate) fn decode_fetch(input: &mut Input) -> Result<Request, Malformed> {
    let request = OffsetFetchRequest::default()
        .with_groups(input.array("groups", |input| {
            let group = OffsetFetchRequestGroup::default()
                .with_group_id(GroupId(input.string("group id")?))
                .with_member_id(input.nullable_string("member id")?)
                .with_member_epoch(input.int32("member epoch")?)
                .with_topics(input.nullable_array("topics", decode_fetched)?);
            input.tags()?;
            Ok(group)
        })?)
        .with_require_stable(input.boolean("require stable")?);
    input.tags()?;
    Ok(request.into())
}

fn decode_fetched(input: &mut Input) -> Result<OffsetFetchRequestTopics, Malformed> {
    let topic = OffsetFetchRequestTopics::default()
        .with_topic_id(input.uuid("topic id")?)
        .with_partition_indexes(input.array("partitions", |input| input.int32("partition"))?);
    input.tags()?;
    Ok(topic)
}

pub(crate) fn put_fetch(request: &OffsetFetchRequest, output: &mut Output) {
    output.array(&request.groups, |output, group| {
        output.string(&group.group_id);
        output.nullable_string(group.member_id.as_deref());
        output.int32(group.member_epoch);
        match &group.topics {
            Some(topics) => output.array(topics, |output, topic| {
                output.uuid(topic.topic_id);
                output.array(&topic.partition_indexes, |output, index| {
                    output.int32(*index);
                });
                output.no_tags();
            }),
            // Null stands for all topics.
            None => output.varint32(0),
        }
        output.no_tags();
    });
    output.boolean(request.require_stable);
    output.no_tags();
}
