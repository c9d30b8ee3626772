//! A member of a group of Kafka Streams: its tasks, its endpoint and its process.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::groups::{Partition, TopicName};

/// Tasks: subtopologies, and partitions of their sources.
pub type Tasks = Vec<(Arc<str>, Vec<Partition>)>;

/// The address of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The host.
    pub host: Arc<str>,
    /// The port.
    pub port: u16,
}

/// The partitions of the tasks at an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointPartitions {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// Partitions by topic.
    pub partitions: BTreeMap<TopicName, Vec<Partition>>,
}

/// A member's fields beyond those of members of any group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamsMember {
    pub topology_epoch: i32,
    pub process: Arc<str>,
    pub endpoint: Option<Endpoint>,
    pub tags: Vec<(Arc<str>, Arc<str>)>,
}
