//! The response to Fetch. Encoding it does not copy its records.

use bytes::Bytes;
use kafka_protocol::messages::fetch_response::{
    AbortedTransaction, EpochEndOffset, FetchableTopicResponse, LeaderIdAndEpoch, NodeEndpoint,
    PartitionData,
};
use kafka_protocol::messages::{BrokerId, FetchResponse as GeneratedResponse, TopicName};
use kafka_protocol::protocol::Encodable;
use uuid::Uuid;

use crate::api::ApiKey;
use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// The first version with errors and sessions.
const SESSIONS_FROM: i16 = 7;
/// The first version with the start offset of a partition.
const LOG_START_FROM: i16 = 5;
/// The first version that can redirect a consumer to another replica.
const READ_REPLICA_FROM: i16 = 11;
/// The first version whose topics have ids instead of names.
const TOPIC_ID_FROM: i16 = 13;
/// The first version with the addresses of new leaders.
const NODE_ENDPOINTS_FROM: i16 = 16;

/// The tags of the optional fields.
const TAG_DIVERGING_EPOCH: u32 = 0;
const TAG_CURRENT_LEADER: u32 = 1;
const TAG_NODE_ENDPOINTS: u32 = 0;

/// The answer to Fetch: the generated message, but records may have several pieces.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FetchResponse {
    /// How long the client is throttled, in milliseconds.
    pub throttle_time_ms: i32,
    /// The error code of the whole request; 0 if there is none. From version 7 on.
    pub error_code: i16,
    /// The fetch session, or 0 if there is none. From version 7 on.
    pub session_id: i32,
    /// The fetched topics.
    pub topics: Vec<FetchedTopic>,
    /// The addresses of the new leaders that partitions name. From version 16 on.
    pub node_endpoints: Vec<NodeEndpoint>,
}

/// The fetched partitions of a topic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FetchedTopic {
    /// Its name; up to version 12.
    pub name: TopicName,
    /// Its id; from version 13 on.
    pub id: Uuid,
    /// The fetched partitions.
    pub partitions: Vec<FetchedPartition>,
}

/// The fetched records of a partition.
#[derive(Debug, Clone, PartialEq)]
pub struct FetchedPartition {
    /// Its number.
    pub partition: i32,
    /// The error code; 0 if there is none.
    pub error_code: i16,
    /// The high watermark: the offset behind the last record that consumers may read, or -1.
    pub high_watermark: i64,
    /// The last stable offset: every transaction with earlier records has ended. -1 if unknown.
    pub last_stable_offset: i64,
    /// The offset of the first record, or -1. From version 5 on.
    pub log_start_offset: i64,
    /// The epoch and end offset at which the client's log diverged from the leader's. From version 12 on.
    pub diverging_epoch: Option<EpochEndOffset>,
    /// The leader, if the client asked another broker. From version 12 on.
    pub current_leader: Option<LeaderIdAndEpoch>,
    /// The aborted transactions, whose records a consumer of committed records skips.
    pub aborted_transactions: Option<Vec<AbortedTransaction>>,
    /// The replica to read from instead, or -1. From version 11 on.
    pub preferred_read_replica: i32,
    /// Whole chunks, in pieces that are not copied.
    pub records: Vec<Bytes>,
}

impl Default for FetchedPartition {
    fn default() -> FetchedPartition {
        FetchedPartition {
            partition: 0,
            error_code: 0,
            high_watermark: -1,
            last_stable_offset: -1,
            log_start_offset: -1,
            diverging_epoch: None,
            current_leader: None,
            aborted_transactions: None,
            preferred_read_replica: -1,
            records: Vec::new(),
        }
    }
}

impl Body for FetchResponse {
    fn decode(input: &mut Input, version: i16) -> Result<FetchResponse, Malformed> {
        input.message::<GeneratedResponse>(version).map(Into::into)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.throttle_time_ms);
        if version >= SESSIONS_FROM {
            output.int16(self.error_code);
            output.int32(self.session_id);
        } else if self.session_id != 0 {
            return Err("there are no fetch sessions before version 7".to_owned());
        }
        output.length_in(is_flexible(version), self.topics.len());
        for topic in &self.topics {
            topic.encode(output, version)?;
        }
        if is_flexible(version) {
            self.encode_tags(output, version)?;
        }
        Ok(())
    }
}

impl FetchResponse {
    fn encode_tags(&self, output: &mut Output, version: i16) -> Result<(), String> {
        if version < NODE_ENDPOINTS_FROM || self.node_endpoints.is_empty() {
            output.no_tags();
            return Ok(());
        }
        let mut endpoints = Output::new();
        endpoints.length(self.node_endpoints.len());
        for endpoint in &self.node_endpoints {
            put_generated(&mut endpoints, version, endpoint)?;
        }
        output.varint32(1);
        output.tag(TAG_NODE_ENDPOINTS, endpoints);
        Ok(())
    }
}

impl FetchedTopic {
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        if version >= TOPIC_ID_FROM {
            output.uuid(self.id);
        } else {
            output.string_in(is_flexible(version), &self.name)?;
        }
        output.length_in(is_flexible(version), self.partitions.len());
        for partition in &self.partitions {
            partition.encode(output, version)?;
        }
        if is_flexible(version) {
            output.no_tags();
        }
        Ok(())
    }
}

impl FetchedPartition {
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int32(self.partition);
        output.int16(self.error_code);
        output.int64(self.high_watermark);
        output.int64(self.last_stable_offset);
        if version >= LOG_START_FROM {
            output.int64(self.log_start_offset);
        }
        match &self.aborted_transactions {
            Some(transactions) => {
                output.length_in(is_flexible(version), transactions.len());
                for transaction in transactions {
                    put_generated(output, version, transaction)?;
                }
            }
            None if is_flexible(version) => output.varint32(0),
            None => output.int32(-1),
        }
        if version >= READ_REPLICA_FROM {
            output.int32(self.preferred_read_replica);
        } else if self.preferred_read_replica != -1 {
            return Err("there are no other replicas before version 11".to_owned());
        }
        output.length_in(
            is_flexible(version),
            self.records.iter().map(Bytes::len).sum(),
        );
        self.records
            .iter()
            .for_each(|piece| output.put_shared(piece));
        if is_flexible(version) {
            self.encode_tags(output, version)?;
        }
        Ok(())
    }

    fn encode_tags(&self, output: &mut Output, version: i16) -> Result<(), String> {
        let diverging_epoch = self.diverging_epoch.as_ref();
        let current_leader = self.current_leader.as_ref();
        let count = diverging_epoch.iter().count() + current_leader.iter().count();
        output.varint32(count as u32);
        if let Some(epoch) = diverging_epoch {
            let mut tagged = Output::new();
            put_generated(&mut tagged, version, epoch)?;
            output.tag(TAG_DIVERGING_EPOCH, tagged);
        }
        if let Some(leader) = current_leader {
            let mut tagged = Output::new();
            put_generated(&mut tagged, version, leader)?;
            output.tag(TAG_CURRENT_LEADER, tagged);
        }
        Ok(())
    }
}

fn is_flexible(version: i16) -> bool {
    ApiKey::Fetch.is_flexible(version)
}

fn put_generated(output: &mut Output, version: i16, part: &impl Encodable) -> Result<(), String> {
    part.encode(output.copied(), version)
        .map_err(|error| error.to_string())
}

impl From<GeneratedResponse> for FetchResponse {
    fn from(response: GeneratedResponse) -> FetchResponse {
        FetchResponse {
            throttle_time_ms: response.throttle_time_ms,
            error_code: response.error_code,
            session_id: response.session_id,
            topics: response.responses.into_iter().map(Into::into).collect(),
            node_endpoints: response.node_endpoints,
        }
    }
}

impl From<FetchableTopicResponse> for FetchedTopic {
    fn from(topic: FetchableTopicResponse) -> FetchedTopic {
        FetchedTopic {
            name: topic.topic,
            id: topic.topic_id,
            partitions: topic.partitions.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<PartitionData> for FetchedPartition {
    fn from(data: PartitionData) -> FetchedPartition {
        let BrokerId(preferred_read_replica) = data.preferred_read_replica;
        FetchedPartition {
            partition: data.partition_index,
            error_code: data.error_code,
            high_watermark: data.high_watermark,
            last_stable_offset: data.last_stable_offset,
            log_start_offset: data.log_start_offset,
            diverging_epoch: Some(data.diverging_epoch)
                .filter(|epoch| *epoch != EpochEndOffset::default()),
            current_leader: Some(data.current_leader)
                .filter(|leader| *leader != LeaderIdAndEpoch::default()),
            aborted_transactions: data.aborted_transactions,
            preferred_read_replica,
            records: data
                .records
                .into_iter()
                .filter(|records| !records.is_empty())
                .collect(),
        }
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for FetchResponse {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<FetchResponse> {
        GeneratedResponse::forge(forge, version).map(Into::into)
    }
}
