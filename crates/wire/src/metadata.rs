//! The response to Metadata. A partition with one replica takes no memory beside its own, since an answer may have
//! tens of thousands of partitions.

use std::ops::Deref;

use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataResponse as GeneratedResponse, TopicName};
use kafka_protocol::protocol::{Encodable, StrBytes};
use uuid::Uuid;

use crate::api::ApiKey;
use crate::body::Body;
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// The first version with the controller, and with internal topics.
const CONTROLLER_FROM: i16 = 1;
/// The first version with the id of the cluster.
const CLUSTER_ID_FROM: i16 = 2;
/// The first version with the time for which the client is throttled.
const THROTTLE_FROM: i16 = 3;
/// The first version with the replicas that are offline.
const OFFLINE_FROM: i16 = 5;
/// The first version with the epoch of a partition's leader.
const LEADER_EPOCH_FROM: i16 = 7;
/// The first version with the operations that the client may do.
const OPERATIONS_FROM: i16 = 8;
/// The last version with the operations that the client may do on the cluster.
const CLUSTER_OPERATIONS_TO: i16 = 10;
/// The first version with the ids of topics.
const TOPIC_ID_FROM: i16 = 10;
/// The first version with an error for the whole request.
const ERROR_FROM: i16 = 13;

/// Kafka's value for operations that the client did not ask for.
const NO_OPERATIONS: i32 = i32::MIN;

/// The answer to Metadata: the generated message, but lists of one broker need no memory of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataResponse {
    /// How long the client is throttled, in milliseconds. From version 3 on.
    pub throttle_time_ms: i32,
    /// The brokers.
    pub brokers: Vec<MetadataResponseBroker>,
    /// The id of the cluster. From version 2 on.
    pub cluster_id: Option<StrBytes>,
    /// The broker that creates and deletes topics. From version 1 on.
    pub controller_id: BrokerId,
    /// The topics.
    pub topics: Vec<MetadataTopic>,
    /// The operations that the client may do on the cluster, as bits. In versions 8 to 10.
    pub cluster_authorized_operations: i32,
    /// The error code of the whole request; 0 if there is none. From version 13 on.
    pub error_code: i16,
}

/// A topic, or the reason why it is not described.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataTopic {
    /// The error code; 0 if there is none.
    pub error_code: i16,
    /// Its name; null if the client named it by an id that is unknown.
    pub name: Option<TopicName>,
    /// Its id. From version 10 on.
    pub topic_id: Uuid,
    /// Whether the broker uses it for itself. From version 1 on.
    pub is_internal: bool,
    /// Its partitions.
    pub partitions: Vec<MetadataPartition>,
    /// The operations that the client may do on the topic, as bits. From version 8 on.
    pub topic_authorized_operations: i32,
}

/// A partition, and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct MetadataPartition {
    /// The error code; 0 if there is none.
    pub error_code: i16,
    /// Its number.
    pub partition_index: i32,
    /// The broker that serves it.
    pub leader_id: BrokerId,
    /// The epoch of this leader, or -1. From version 7 on.
    pub leader_epoch: i32,
    /// The brokers that have a copy.
    pub replica_nodes: Brokers,
    /// The brokers whose copy is complete.
    pub isr_nodes: Brokers,
    /// The offline brokers. From version 5 on.
    pub offline_replicas: Brokers,
}

/// A list of brokers. A list of one needs no memory of its own.
#[derive(Debug, Clone, PartialEq)]
pub enum Brokers {
    /// A list of one broker.
    One(BrokerId),
    /// A list of any other length.
    Some(Vec<BrokerId>),
}

impl Default for Brokers {
    fn default() -> Brokers {
        Brokers::Some(Vec::new())
    }
}

impl Deref for Brokers {
    type Target = [BrokerId];

    fn deref(&self) -> &[BrokerId] {
        match self {
            Brokers::One(broker) => std::slice::from_ref(broker),
            Brokers::Some(brokers) => brokers,
        }
    }
}

impl From<Vec<BrokerId>> for Brokers {
    fn from(brokers: Vec<BrokerId>) -> Brokers {
        match brokers[..] {
            [broker] => Brokers::One(broker),
            _ => Brokers::Some(brokers),
        }
    }
}

impl Default for MetadataResponse {
    fn default() -> MetadataResponse {
        GeneratedResponse::default().into()
    }
}

impl Default for MetadataTopic {
    fn default() -> MetadataTopic {
        MetadataResponseTopic::default().into()
    }
}

impl Default for MetadataPartition {
    fn default() -> MetadataPartition {
        MetadataResponsePartition::default().into()
    }
}

impl Body for MetadataResponse {
    fn decode(input: &mut Input, version: i16) -> Result<MetadataResponse, Malformed> {
        input.message::<GeneratedResponse>(version).map(Into::into)
    }

    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        if version >= THROTTLE_FROM {
            output.int32(self.throttle_time_ms);
        }
        output.length_in(is_flexible(version), self.brokers.len());
        for broker in &self.brokers {
            let encoded = Encodable::encode(broker, output.copied(), version);
            encoded.map_err(|error| error.to_string())?;
        }
        if version >= CLUSTER_ID_FROM {
            put_nullable(output, version, self.cluster_id.as_deref())?;
        }
        if version >= CONTROLLER_FROM {
            output.int32(self.controller_id.0);
        }
        output.length_in(is_flexible(version), self.topics.len());
        for topic in &self.topics {
            topic.encode(output, version)?;
        }
        if (OPERATIONS_FROM..=CLUSTER_OPERATIONS_TO).contains(&version) {
            output.int32(self.cluster_authorized_operations);
        } else if self.cluster_authorized_operations != NO_OPERATIONS {
            return Err("this version has no operations on the cluster".to_owned());
        }
        if version >= ERROR_FROM {
            output.int16(self.error_code);
        }
        if is_flexible(version) {
            output.no_tags();
        }
        Ok(())
    }
}

impl MetadataTopic {
    fn encode(&self, output: &mut Output, version: i16) -> Result<(), String> {
        output.int16(self.error_code);
        put_nullable(output, version, self.name.as_ref().map(|name| &***name))?;
        if version >= TOPIC_ID_FROM {
            output.uuid(self.topic_id);
        }
        if version >= CONTROLLER_FROM {
            output.boolean(self.is_internal);
        }
        output.length_in(is_flexible(version), self.partitions.len());
        for partition in &self.partitions {
            partition.encode(output, version);
        }
        if version >= OPERATIONS_FROM {
            output.int32(self.topic_authorized_operations);
        } else if self.topic_authorized_operations != NO_OPERATIONS {
            return Err("this version has no operations on topics".to_owned());
        }
        if is_flexible(version) {
            output.no_tags();
        }
        Ok(())
    }
}

impl MetadataPartition {
    fn encode(&self, output: &mut Output, version: i16) {
        output.int16(self.error_code);
        output.int32(self.partition_index);
        output.int32(self.leader_id.0);
        if version >= LEADER_EPOCH_FROM {
            output.int32(self.leader_epoch);
        }
        let offline = (version >= OFFLINE_FROM).then_some(&self.offline_replicas);
        let lists = [Some(&self.replica_nodes), Some(&self.isr_nodes), offline];
        for brokers in lists.into_iter().flatten() {
            output.length_in(is_flexible(version), brokers.len());
            brokers.iter().for_each(|broker| output.int32(broker.0));
        }
        if is_flexible(version) {
            output.no_tags();
        }
    }
}

fn is_flexible(version: i16) -> bool {
    ApiKey::Metadata.is_flexible(version)
}

fn put_nullable(output: &mut Output, version: i16, value: Option<&str>) -> Result<(), String> {
    match value {
        Some(value) => output.string_in(is_flexible(version), value)?,
        None if is_flexible(version) => output.nullable_string(None),
        None => output.int16(-1),
    }
    Ok(())
}

impl From<GeneratedResponse> for MetadataResponse {
    fn from(response: GeneratedResponse) -> MetadataResponse {
        MetadataResponse {
            throttle_time_ms: response.throttle_time_ms,
            brokers: response.brokers,
            cluster_id: response.cluster_id,
            controller_id: response.controller_id,
            topics: response.topics.into_iter().map(Into::into).collect(),
            cluster_authorized_operations: response.cluster_authorized_operations,
            error_code: response.error_code,
        }
    }
}

impl From<MetadataResponseTopic> for MetadataTopic {
    fn from(topic: MetadataResponseTopic) -> MetadataTopic {
        MetadataTopic {
            error_code: topic.error_code,
            name: topic.name,
            topic_id: topic.topic_id,
            is_internal: topic.is_internal,
            partitions: topic.partitions.into_iter().map(Into::into).collect(),
            topic_authorized_operations: topic.topic_authorized_operations,
        }
    }
}

impl From<MetadataResponsePartition> for MetadataPartition {
    fn from(partition: MetadataResponsePartition) -> MetadataPartition {
        MetadataPartition {
            error_code: partition.error_code,
            partition_index: partition.partition_index,
            leader_id: partition.leader_id,
            leader_epoch: partition.leader_epoch,
            replica_nodes: partition.replica_nodes.into(),
            isr_nodes: partition.isr_nodes.into(),
            offline_replicas: partition.offline_replicas.into(),
        }
    }
}

#[cfg(any(test, feature = "forge"))]
impl crate::forge::Forged for MetadataResponse {
    fn forge(forge: &mut crate::forge::Forge, version: i16) -> Option<MetadataResponse> {
        GeneratedResponse::forge(forge, version).map(Into::into)
    }
}
