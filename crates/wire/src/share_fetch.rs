//! The response to ShareFetch, whose records are written from where they lie.

use bytes::Bytes;
use kafka_protocol::messages::ShareFetchResponse as GeneratedResponse;
use kafka_protocol::messages::share_fetch_response::{
    AcquiredRecords, LeaderIdAndEpoch, NodeEndpoint, PartitionData, ShareFetchableTopicResponse,
};
use kafka_protocol::protocol::{Encodable, StrBytes};
use uuid::Uuid;

use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// What ShareFetch is answered with: the generated message, but records may be in several pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchResponse {
    /// For how long, in milliseconds, the client has been or should be kept from going on.
    pub throttle_time_ms: i32,
    /// What is wrong with the whole request; 0 if nothing.
    pub error_code: i16,
    /// The same in words.
    pub error_message: Option<StrBytes>,
    /// For how long, in milliseconds, the records are the member's.
    pub acquisition_lock_timeout_ms: i32,
    /// What was fetched and acknowledged.
    pub topics: Vec<ShareFetchedTopic>,
    /// Where the new leaders are that partitions name.
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// What was fetched and acknowledged of a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchedTopic {
    /// Its id.
    pub id: Uuid,
    /// Its partitions.
    pub partitions: Vec<ShareFetchedPartition>,
}

/// What was fetched and acknowledged of a partition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchedPartition {
    /// Its number.
    pub partition: i32,
    /// Why nothing was fetched; 0 if nothing is wrong.
    pub error_code: i16,
    /// The same in words.
    pub error_message: Option<StrBytes>,
    /// Why no acknowledgement of the partition counts; 0 if nothing is wrong.
    pub acknowledge_error_code: i16,
    /// The same in words.
    pub acknowledge_error_message: Option<StrBytes>,
    /// The leader, where the client asked another broker.
    pub current_leader: LeaderIdAndEpoch,
    /// Whole chunks, in as many pieces as they lie in. None is copied.
    pub records: Vec<Bytes>,
    /// The records among them that are the member's now.
    pub acquired: Vec<AcquiredRecords>,
}

impl Body for ShareFetchResponse {
    fn decode(input: &mut Input, version: i16) -> Result<ShareFetchResponse, Malformed> {
        input.message::<GeneratedResponse>(version).map(Into::into)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        output.int16(self.error_code);
        output.nullable_string(self.error_message.as_deref());
        output.int32(self.acquisition_lock_timeout_ms);
        output.length(self.topics.len());
        for topic in &self.topics {
            output.uuid(topic.id);
            output.length(topic.partitions.len());
            for partition in &topic.partitions {
                partition.encode(output, version)?;
            }
            output.no_tags();
        }
        put_all(output, version, &self.node_endpoints)?;
        output.no_tags();
        Ok(())
    }
}

impl ShareFetchedPartition {
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.partition);
        output.int16(self.error_code);
        output.nullable_string(self.error_message.as_deref());
        output.int16(self.acknowledge_error_code);
        output.nullable_string(self.acknowledge_error_message.as_deref());
        put(output, version, &self.current_leader)?;
        output.bytes(&self.records);
        put_all(output, version, &self.acquired)?;
        output.no_tags();
        Ok(())
    }
}

fn put_all(output: &mut Output, version: i16, parts: &[impl Encodable]) -> Result<(), String> {
    output.length(parts.len());
    parts.iter().try_for_each(|part| put(output, version, part))
}

fn put(output: &mut Output, version: i16, part: &impl Encodable) -> Result<(), String> {
    part.encode(output.copied(), version)
        .map_err(|error| error.to_string())
}

impl From<GeneratedResponse> for ShareFetchResponse {
    fn from(response: GeneratedResponse) -> ShareFetchResponse {
        ShareFetchResponse {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            error_message: response.error_message,
            acquisition_lock_timeout_ms: response.acquisition_lock_timeout_ms,
            topics: response.responses.into_iter().map(Into::into).collect(),
            node_endpoints: response.node_endpoints,
        }
    }
}

impl From<ShareFetchableTopicResponse> for ShareFetchedTopic {
    fn from(topic: ShareFetchableTopicResponse) -> ShareFetchedTopic {
        ShareFetchedTopic {
            id: topic.topic_id,
            partitions: topic.partitions.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<PartitionData> for ShareFetchedPartition {
    fn from(data: PartitionData) -> ShareFetchedPartition {
        let records = data.records.into_iter();
        ShareFetchedPartition {
            partition: data.partition_index,
            error_code: data.error_code,
            error_message: data.error_message,
            acknowledge_error_code: data.acknowledge_error_code,
            acknowledge_error_message: data.acknowledge_error_message,
            current_leader: data.current_leader,
            records: records.filter(|records| !records.is_empty()).collect(),
            acquired: data.acquired_records,
        }
    }
}

#[cfg(test)]
impl crate::forge::Forged for ShareFetchResponse {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<ShareFetchResponse> {
        GeneratedResponse::forge(forge, version).map(Into::into)
    }
}
