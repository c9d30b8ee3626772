//! The response to DescribeShareGroupOffsets.

use kafka_protocol::messages::describe_share_group_offsets_response::{
    DescribeShareGroupOffsetsResponseGroup, DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
};
use kafka_protocol::messages::{
    DescribeShareGroupOffsetsResponse as GeneratedResponse, GroupId, TopicName,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// The first version with the lag.
const LAG_FROM: i16 = 1;

/// The value of an unknown lag.
const NO_LAG: i64 = -1;

/// Answers DescribeShareGroupOffsets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DescribeShareGroupOffsetsResponse {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// One element for each group.
    pub groups: Vec<ShareGroupOffsets>,
}

/// The offsets of a share group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareGroupOffsets {
    /// The group.
    pub group_id: GroupId,
    /// Its topics.
    pub topics: Vec<ShareTopicOffsets>,
    /// The error of the group; 0 if there is none.
    pub error_code: i16,
    /// The description of the error.
    pub error_message: Option<StrBytes>,
}

/// The offsets of a share group in a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareTopicOffsets {
    /// The topic's name.
    pub topic_name: TopicName,
    /// The topic's id.
    pub topic_id: Uuid,
    /// Its partitions.
    pub partitions: Vec<SharePartitionOffsets>,
}

/// The offsets of a share group in a partition.
#[derive(Debug, Clone, PartialEq)]
pub struct SharePartitionOffsets {
    /// The partition's number.
    pub partition_index: i32,
    /// The offset of the first unfinished record; -1 if the group has no position.
    pub start_offset: i64,
    /// The leader epoch of the partition.
    pub leader_epoch: i32,
    /// The number of unfinished records, from version 1 on; -1 if unknown.
    pub lag: i64,
    /// The error of the partition; 0 if there is none.
    pub error_code: i16,
    /// The description of the error.
    pub error_message: Option<StrBytes>,
}

impl Default for SharePartitionOffsets {
    fn default() -> SharePartitionOffsets {
        DescribeShareGroupOffsetsResponsePartition::default().into()
    }
}

impl Body for DescribeShareGroupOffsetsResponse {
    fn decode(
        input: &mut Input,
        version: i16,
    ) -> Result<DescribeShareGroupOffsetsResponse, Malformed> {
        if version < LAG_FROM {
            return input.message::<GeneratedResponse>(version).map(Into::into);
        }
        let throttle_time_ms = input.int32("throttle time")?;
        let groups = input.array("groups", take_group)?;
        input.tags()?;
        Ok(DescribeShareGroupOffsetsResponse {
            throttle_time_ms,
            groups,
        })
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        output.array(&self.groups, |output, group| {
            put_group(group, output, version);
        });
        output.no_tags();
        Ok(())
    }
}

fn take_group(input: &mut Input) -> Result<ShareGroupOffsets, Malformed> {
    let group = ShareGroupOffsets {
        group_id: GroupId(input.string("group id")?),
        topics: input.array("topics", take_topic)?,
        error_code: input.int16("error code")?,
        error_message: input.nullable_string("error message")?,
    };
    input.tags()?;
    Ok(group)
}

fn take_topic(input: &mut Input) -> Result<ShareTopicOffsets, Malformed> {
    let topic = ShareTopicOffsets {
        topic_name: TopicName(input.string("topic name")?),
        topic_id: input.uuid("topic id")?,
        partitions: input.array("partitions", take_partition)?,
    };
    input.tags()?;
    Ok(topic)
}

fn take_partition(input: &mut Input) -> Result<SharePartitionOffsets, Malformed> {
    let partition = SharePartitionOffsets {
        partition_index: input.int32("partition index")?,
        start_offset: input.int64("start offset")?,
        leader_epoch: input.int32("leader epoch")?,
        lag: input.int64("lag")?,
        error_code: input.int16("error code")?,
        error_message: input.nullable_string("error message")?,
    };
    input.tags()?;
    Ok(partition)
}

fn put_group(group: &ShareGroupOffsets, output: &mut Output, version: i16) {
    output.string(&group.group_id);
    output.array(&group.topics, |output, topic| {
        output.string(&topic.topic_name);
        output.uuid(topic.topic_id);
        output.array(&topic.partitions, |output, partition| {
            put_partition(partition, output, version);
        });
        output.no_tags();
    });
    output.int16(group.error_code);
    output.nullable_string(group.error_message.as_deref());
    output.no_tags();
}

fn put_partition(partition: &SharePartitionOffsets, output: &mut Output, version: i16) {
    output.int32(partition.partition_index);
    output.int64(partition.start_offset);
    output.int32(partition.leader_epoch);
    if version >= LAG_FROM {
        output.int64(partition.lag);
    }
    output.int16(partition.error_code);
    output.nullable_string(partition.error_message.as_deref());
    output.no_tags();
}

impl From<GeneratedResponse> for DescribeShareGroupOffsetsResponse {
    fn from(response: GeneratedResponse) -> DescribeShareGroupOffsetsResponse {
        DescribeShareGroupOffsetsResponse {
            throttle_time_ms: response.throttle_time_ms,
            groups: response.groups.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<DescribeShareGroupOffsetsResponseGroup> for ShareGroupOffsets {
    fn from(group: DescribeShareGroupOffsetsResponseGroup) -> ShareGroupOffsets {
        ShareGroupOffsets {
            group_id: group.group_id,
            topics: group.topics.into_iter().map(Into::into).collect(),
            error_code: group.error_code,
            error_message: group.error_message,
        }
    }
}

impl From<DescribeShareGroupOffsetsResponseTopic> for ShareTopicOffsets {
    fn from(topic: DescribeShareGroupOffsetsResponseTopic) -> ShareTopicOffsets {
        ShareTopicOffsets {
            topic_name: topic.topic_name,
            topic_id: topic.topic_id,
            partitions: topic.partitions.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<DescribeShareGroupOffsetsResponsePartition> for SharePartitionOffsets {
    fn from(partition: DescribeShareGroupOffsetsResponsePartition) -> SharePartitionOffsets {
        SharePartitionOffsets {
            partition_index: partition.partition_index,
            start_offset: partition.start_offset,
            leader_epoch: partition.leader_epoch,
            lag: NO_LAG,
            error_code: partition.error_code,
            error_message: partition.error_message,
        }
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for DescribeShareGroupOffsetsResponse {
    fn forge(
        forge: &mut crate::forge::Forge,
        version: i16,
    ) -> Option<DescribeShareGroupOffsetsResponse> {
        let generated = GeneratedResponse::forge(forge, 0)?;
        let mut response = DescribeShareGroupOffsetsResponse::from(generated);
        let topics = response
            .groups
            .iter_mut()
            .flat_map(|group| &mut group.topics);
        if version >= LAG_FROM {
            for partition in topics.flat_map(|topic| &mut topic.partitions) {
                partition.lag = forge.int64();
            }
        }
        Some(response)
    }
}
