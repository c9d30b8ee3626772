//! Requests and responses about the records of share groups. The generated messages lack their newest versions (KIP-1206,
//! KIP-1222, KIP-1226), and would copy the records of ShareFetch; unchanged parts have the generated types.

use bytes::Bytes;
use kafka_protocol::messages::share_acknowledge_request::AcknowledgeTopic;
use kafka_protocol::messages::share_acknowledge_response::{
    NodeEndpoint as AcknowledgeEndpoint, ShareAcknowledgeTopicResponse,
};
use kafka_protocol::messages::share_fetch_request::{FetchTopic, ForgottenTopic};
use kafka_protocol::messages::share_fetch_response::{
    AcquiredRecords, LeaderIdAndEpoch, NodeEndpoint,
};
use kafka_protocol::messages::{GroupId, TopicName};
use kafka_protocol::protocol::StrBytes;
use uuid::Uuid;

use crate::versioned::{generated, versioned};

generated! { 1:
    AcknowledgeTopic, AcknowledgeEndpoint, ShareAcknowledgeTopicResponse,
    FetchTopic, ForgottenTopic, AcquiredRecords, LeaderIdAndEpoch, NodeEndpoint
}

/// The value of an unknown lag.
const NO_LAG: i64 = -1;

versioned! {
    /// Kafka's ShareFetch.
    #[derive(Default)]
    ShareFetchRequest {
        /// The group.
        group_id: Option<GroupId>,
        /// The member.
        member_id: Option<StrBytes>,
        /// The epoch of the share session; 0 begins and -1 ends it.
        share_session_epoch: i32,
        /// How long the broker waits for records, in milliseconds.
        max_wait_ms: i32,
        /// The broker answers as soon as it has this many bytes of records.
        min_bytes: i32,
        /// The most bytes of records.
        max_bytes: i32,
        /// The most records.
        max_records: i32,
        /// The number of records that the client wants to acknowledge together.
        batch_size: i32,
        /// 0 if the broker may exceed `max_records` for whole batches, 1 if not; from version 2 on. Kafka leaves it out of
        /// version 1, too.
        share_acquire_mode: i8 [2, 0],
        /// Whether acknowledgements may renew locks, from version 2 on. A request that renews locks fetches nothing.
        is_renew_ack: bool [2, false, needed],
        /// The partitions to add to the session, and acknowledgements.
        topics: Vec<FetchTopic>,
        /// The partitions to remove from the session.
        forgotten_topics_data: Vec<ForgottenTopic>,
    }

    /// Answers [`ShareFetchRequest`]: the generated message, but records may have several pieces.
    #[derive(Default)]
    ShareFetchResponse {
        /// How long the client is throttled, in milliseconds.
        throttle_time_ms: i32,
        /// The error code of the whole request; 0 if there is none.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// How long the member holds the acquired records, in milliseconds.
        acquisition_lock_timeout_ms: i32,
        /// The fetched and acknowledged records.
        topics: Vec<ShareFetchedTopic>,
        /// The addresses of the new leaders that partitions name.
        node_endpoints: Vec<NodeEndpoint>,
    }

    /// The fetched and acknowledged records of a topic.
    #[derive(Default)]
    ShareFetchedTopic {
        /// Its id.
        id: Uuid,
        /// Its partitions.
        partitions: Vec<ShareFetchedPartition>,
    }

    /// The fetched and acknowledged records of a partition.
    #[derive(Default)]
    ShareFetchedPartition {
        /// Its number.
        partition: i32,
        /// The error of the fetch; 0 if there is none.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The error of the partition's acknowledgements; 0 if there is none. After an error none takes effect.
        acknowledge_error_code: i16,
        /// The description of the error.
        acknowledge_error_message: Option<StrBytes>,
        /// The leader, if the client asked another broker.
        current_leader: LeaderIdAndEpoch,
        /// Whole chunks, in pieces that are not copied.
        records: Vec<Bytes>,
        /// The records among them that the member acquired.
        acquired: Vec<AcquiredRecords>,
    }

    /// Kafka's ShareAcknowledge.
    #[derive(Default)]
    ShareAcknowledgeRequest {
        /// The group.
        group_id: Option<GroupId>,
        /// The member.
        member_id: Option<StrBytes>,
        /// The epoch of the share session; -1 ends it.
        share_session_epoch: i32,
        /// Whether acknowledgements may renew locks, from version 2 on.
        is_renew_ack: bool [2, false, needed],
        /// The records.
        topics: Vec<AcknowledgeTopic>,
    }

    /// Answers [`ShareAcknowledgeRequest`].
    #[derive(Default)]
    ShareAcknowledgeResponse {
        /// How long the client is throttled, in milliseconds.
        throttle_time_ms: i32,
        /// The error of the whole request; 0 if there is none.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The duration of the locks that the member renewed, in milliseconds, from version 2 on.
        acquisition_lock_timeout_ms: i32 [2, 0],
        /// The result of each partition.
        responses: Vec<ShareAcknowledgeTopicResponse>,
        /// The addresses of the new leaders that partitions name.
        node_endpoints: Vec<AcknowledgeEndpoint>,
    }

    /// Answers DescribeShareGroupOffsets.
    #[derive(Default)]
    DescribeShareGroupOffsetsResponse {
        /// How long the client is throttled, in milliseconds.
        throttle_time_ms: i32,
        /// One element for each group.
        groups: Vec<ShareGroupOffsets>,
    }

    /// The offsets of a share group.
    #[derive(Default)]
    ShareGroupOffsets {
        /// The group.
        group_id: GroupId,
        /// Its topics.
        topics: Vec<ShareTopicOffsets>,
        /// The error of the group; 0 if there is none.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
    }

    /// The offsets of a share group in a topic.
    #[derive(Default)]
    ShareTopicOffsets {
        /// The topic's name.
        topic_name: TopicName,
        /// The topic's id.
        topic_id: Uuid,
        /// Its partitions.
        partitions: Vec<SharePartitionOffsets>,
    }

    /// The offsets of a share group in a partition.
    SharePartitionOffsets {
        /// The partition's number.
        partition_index: i32,
        /// The offset of the first unfinished record; -1 if the group has no position.
        start_offset: i64,
        /// The leader epoch of the partition.
        leader_epoch: i32,
        /// The number of unfinished records, from version 1 on; -1 if unknown.
        lag: i64 [1, NO_LAG],
        /// The error of the partition; 0 if there is none.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
    }
}

impl Default for SharePartitionOffsets {
    fn default() -> SharePartitionOffsets {
        SharePartitionOffsets {
            partition_index: 0,
            start_offset: 0,
            leader_epoch: 0,
            lag: NO_LAG,
            error_code: 0,
            error_message: None,
        }
    }
}
