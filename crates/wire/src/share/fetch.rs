//! The messages of ShareFetch. Encoding the response does not copy its records.

use bytes::Bytes;
use kafka_protocol::messages::share_fetch_request::{FetchTopic, ForgottenTopic};
use kafka_protocol::messages::share_fetch_response::{
    AcquiredRecords, LeaderIdAndEpoch, NodeEndpoint, PartitionData, ShareFetchableTopicResponse,
};
use kafka_protocol::messages::{
    GroupId, ShareFetchRequest as GeneratedRequest, ShareFetchResponse as GeneratedResponse,
};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use super::{GENERATED, RENEWS_FROM, check_is_default, put, put_all, take_all};
use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// Kafka's ShareFetch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchRequest {
    /// The group.
    pub group_id: Option<GroupId>,
    /// The member.
    pub member_id: Option<StrBytes>,
    /// The epoch of the share session; 0 begins and -1 ends it.
    pub share_session_epoch: i32,
    /// How long the broker waits for records, in milliseconds.
    pub max_wait_ms: i32,
    /// The broker answers as soon as it has this many bytes of records.
    pub min_bytes: i32,
    /// The most bytes of records.
    pub max_bytes: i32,
    /// The most records.
    pub max_records: i32,
    /// The number of records that the client wants to acknowledge together.
    pub batch_size: i32,
    /// 0 if the broker may exceed `max_records` for whole batches, 1 if not; from version 2 on.
    pub share_acquire_mode: i8,
    /// Whether acknowledgements may renew locks, from version 2 on. Such a request fetches nothing.
    pub is_renew_ack: bool,
    /// The partitions to add to the session, and acknowledgements.
    pub topics: Vec<FetchTopic>,
    /// The partitions to remove from the session.
    pub forgotten_topics_data: Vec<ForgottenTopic>,
}

/// Answers [`ShareFetchRequest`]: the generated message, but records may have several pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchResponse {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// The error code of the whole request; 0 if there is none.
    pub error_code: i16,
    /// The description of the error.
    pub error_message: Option<StrBytes>,
    /// How long the member holds the acquired records, in milliseconds.
    pub acquisition_lock_timeout_ms: i32,
    /// The fetched and acknowledged records.
    pub topics: Vec<ShareFetchedTopic>,
    /// The addresses of the new leaders that partitions name.
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// The fetched and acknowledged records of a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchedTopic {
    /// Its id.
    pub id: Uuid,
    /// Its partitions.
    pub partitions: Vec<ShareFetchedPartition>,
}

/// The fetched and acknowledged records of a partition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ShareFetchedPartition {
    /// Its number.
    pub partition: i32,
    /// The error of the fetch; 0 if there is none.
    pub error_code: i16,
    /// The description of the error.
    pub error_message: Option<StrBytes>,
    /// The error of the partition's acknowledgements; 0 if there is none. After an error none takes effect.
    pub acknowledge_error_code: i16,
    /// The description of the error.
    pub acknowledge_error_message: Option<StrBytes>,
    /// The leader, if the client asked another broker.
    pub current_leader: LeaderIdAndEpoch,
    /// Whole chunks, in pieces that are not copied.
    pub records: Vec<Bytes>,
    /// The records among them that the member acquired.
    pub acquired: Vec<AcquiredRecords>,
}

impl Body for ShareFetchRequest {
    fn decode(input: &mut Input, version: i16) -> Result<ShareFetchRequest, Malformed> {
        if version < RENEWS_FROM {
            return input.message::<GeneratedRequest>(version).map(Into::into);
        }
        let request = ShareFetchRequest {
            group_id: input.nullable_string("group id")?.map(GroupId),
            member_id: input.nullable_string("member id")?,
            share_session_epoch: input.int32("share session epoch")?,
            max_wait_ms: input.int32("max wait")?,
            min_bytes: input.int32("min bytes")?,
            max_bytes: input.int32("max bytes")?,
            max_records: input.int32("max records")?,
            batch_size: input.int32("batch size")?,
            share_acquire_mode: input.int8("share acquire mode")?,
            is_renew_ack: input.boolean("is renew ack")?,
            topics: take_all(input, "topics")?,
            forgotten_topics_data: take_all(input, "forgotten topics")?,
        };
        input.tags()?;
        Ok(request)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.nullable_string(self.group_id.as_ref().map(|id| &***id));
        output.nullable_string(self.member_id.as_deref());
        output.int32(self.share_session_epoch);
        output.int32(self.max_wait_ms);
        output.int32(self.min_bytes);
        output.int32(self.max_bytes);
        output.int32(self.max_records);
        output.int32(self.batch_size);
        if version >= RENEWS_FROM {
            output.int8(self.share_acquire_mode);
            output.boolean(self.is_renew_ack);
        } else {
            // Kafka leaves out the acquire mode: it is ignorable.
            check_is_default(!self.is_renew_ack, "is_renew_ack")?;
        }
        put_all(output, &self.topics)?;
        put_all(output, &self.forgotten_topics_data)?;
        output.no_tags();
        Ok(())
    }
}

impl Body for ShareFetchResponse {
    fn decode(input: &mut Input, _: i16) -> Result<ShareFetchResponse, Malformed> {
        // The versions do not differ.
        let generated = input.message::<GeneratedResponse>(GENERATED);
        generated.map(Into::into)
    }

    fn encode(&self, output: &mut Output, _: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        output.int16(self.error_code);
        output.nullable_string(self.error_message.as_deref());
        output.int32(self.acquisition_lock_timeout_ms);
        output.length(self.topics.len());
        for topic in &self.topics {
            output.uuid(topic.id);
            output.length(topic.partitions.len());
            for partition in &topic.partitions {
                partition.encode(output)?;
            }
            output.no_tags();
        }
        put_all(output, &self.node_endpoints)?;
        output.no_tags();
        Ok(())
    }
}

impl ShareFetchedPartition {
    fn encode(&self, output: &mut Output) -> Result<(), String> {
        output.int32(self.partition);
        output.int16(self.error_code);
        output.nullable_string(self.error_message.as_deref());
        output.int16(self.acknowledge_error_code);
        output.nullable_string(self.acknowledge_error_message.as_deref());
        put(output, &self.current_leader)?;
        output.bytes(&self.records);
        put_all(output, &self.acquired)?;
        output.no_tags();
        Ok(())
    }
}

impl From<GeneratedRequest> for ShareFetchRequest {
    fn from(request: GeneratedRequest) -> ShareFetchRequest {
        ShareFetchRequest {
            group_id: request.group_id,
            member_id: request.member_id,
            share_session_epoch: request.share_session_epoch,
            max_wait_ms: request.max_wait_ms,
            min_bytes: request.min_bytes,
            max_bytes: request.max_bytes,
            max_records: request.max_records,
            batch_size: request.batch_size,
            share_acquire_mode: 0,
            is_renew_ack: false,
            topics: request.topics,
            forgotten_topics_data: request.forgotten_topics_data,
        }
    }
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

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for ShareFetchRequest {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<ShareFetchRequest> {
        let request = GeneratedRequest::forge(forge, GENERATED)?.into();
        if version < RENEWS_FROM {
            return Some(request);
        }
        Some(ShareFetchRequest {
            share_acquire_mode: forge.below(256) as i8,
            is_renew_ack: forge.boolean(),
            ..request
        })
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for ShareFetchResponse {
    fn forge(forge: &mut crate::forge::Forge, _: i16) -> Option<ShareFetchResponse> {
        GeneratedResponse::forge(forge, GENERATED).map(Into::into)
    }
}
