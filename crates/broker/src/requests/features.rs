//! Answers about the cluster's own consensus, which is this node alone, and about its features, of
//! which each has one level.

use std::sync::Arc;

use millstream_wire::messages::describe_quorum_response::{
    DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState, TopicData,
};
use millstream_wire::messages::update_features_response::{
    UpdatableFeatureResult, UpdateFeaturesResponse,
};
use millstream_wire::messages::{ApiVersionsRequest, DescribeQuorumRequest, UpdateFeaturesRequest};
use millstream_wire::{ResponseError, SUPPORTED, StrBytes, api_versions};

use super::bounds::{Bound, BoundContext, nested};
use super::handle::{
    Handle, Refusal, each, errors, messages, refuse_with_code, refuse_with_message,
};
use super::rights::{Check, Checked, need_cluster};
use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::security::Operation;

/// Kafka's name for the log of the cluster's metadata.
const METADATA: &str = "__cluster_metadata";

/// The stream of the node's metadata.
const CATALOG: &str = "__catalog";

/// The epoch of the only leader.
const LEADER_EPOCH: i32 = 1;

/// From this version of DescribeQuorum on the answer names the addresses of the voters.
const NODES_FROM: i16 = 2;

/// The first version of DescribeQuorum with an error message.
const QUORUM_MESSAGE_FROM: i16 = 2;

/// From this version of UpdateFeatures on the answer does not list the features.
const NO_RESULTS_FROM: i16 = 2;

/// Lists the requests with their versions, and the features.
impl Handle for ApiVersionsRequest {
    const CHECKS: &'static [Check] = &[];

    refuse_with_code!();
    errors!(error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(SUPPORTED.len())
    }

    fn handle(self, _: &Arc<Broker>, client: &mut Client, _: i16) -> Reply {
        client.set_software(&self.client_software_name, &self.client_software_version);
        api_versions().into()
    }
}

/// Describes the quorum for metadata: this broker alone.
impl Handle for DescribeQuorumRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Describe)
    }

    fn refuse(&self, refusal: &Refusal) -> DescribeQuorumResponse {
        let message = refusal.message.clone();
        DescribeQuorumResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(message.filter(|_| refusal.version >= QUORUM_MESSAGE_FROM))
    }

    errors!(error_code, topics.partitions.error_code);
    messages!(error_message, topics.partitions.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, client: &mut Client, version: i16) -> Reply {
        describe_quorum(broker, client, version, self)
    }
}

/// Changes no feature, since each has one level only.
impl Handle for UpdateFeaturesRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    refuse_with_message!();
    errors!(error_code, results.error_code);
    messages!(error_message, results.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(self.feature_updates.len())
    }

    fn handle(self, _: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        update(version, self)
    }
}

/// Describes the quorum: this node is its leader and its only voter.
fn describe_quorum(
    broker: &Broker,
    client: &Client,
    version: i16,
    request: DescribeQuorumRequest,
) -> Reply {
    let mut is_metadata = false;
    let topics = request.topics.into_iter().map(|topic| {
        let is_named = **topic.topic_name == *METADATA;
        let partitions = topic.partitions.iter().map(|partition| {
            match is_named && partition.partition_index == 0 {
                true => {
                    is_metadata = true;
                    metadata(broker)
                }
                false => PartitionData::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(ResponseError::UnknownTopicOrPartition.code()),
            }
        });
        let partitions = partitions.collect();
        TopicData::default()
            .with_topic_name(topic.topic_name)
            .with_partitions(partitions)
    });
    let response = DescribeQuorumResponse::default().with_topics(topics.collect());
    if version < NODES_FROM || !is_metadata {
        return response.into();
    }
    let (host, port) = client.advertised();
    let config = broker.config();
    let first = config.listeners.first();
    let name = first.map_or("", |listener| config.protocol(listener).name());
    let listener = Listener::default()
        .with_name(StrBytes::from_static_str(name))
        .with_host(StrBytes::from_string(host))
        .with_port(port);
    let node = Node::default()
        .with_node_id(broker.node_id())
        .with_listeners(vec![listener]);
    response.with_nodes(vec![node]).into()
}

fn metadata(broker: &Broker) -> PartitionData {
    let catalog = broker.log().stream(CATALOG);
    let lane = catalog.and_then(|catalog| catalog.partition(0));
    let (durable, end) = lane.map_or((0, 0), |lane| {
        (lane.durable_offset().0 as i64, lane.next_offset().0 as i64)
    });
    // The single voter is never behind itself, so it is caught up now.
    let now = broker.log().clock().now().0;
    let voter = ReplicaState::default()
        .with_replica_id(broker.node_id())
        .with_log_end_offset(end)
        .with_last_fetch_timestamp(now)
        .with_last_caught_up_timestamp(now);
    PartitionData::default()
        .with_leader_id(broker.node_id())
        .with_leader_epoch(LEADER_EPOCH)
        .with_high_watermark(durable)
        .with_current_voters(vec![voter])
}

/// Changes no feature: each has only one level. As in Kafka, one refused feature refuses them all, at
/// every version, and the error is that of the whole answer.
fn update(version: i16, request: UpdateFeaturesRequest) -> Reply {
    let features = api_versions().finalized_features;
    let refused = request.feature_updates.iter().find_map(|update| {
        let known = features.iter().find(|known| known.name == update.feature);
        match known {
            Some(known) if known.max_version_level == update.max_version_level => None,
            Some(known) => Some(format!(
                "feature {} has level {} only, and not {}",
                known.name, known.max_version_level, update.max_version_level
            )),
            None => Some(format!("this server has no feature {}", update.feature)),
        }
    });
    if let Some(why) = refused {
        let error = ResponseError::InvalidUpdateVersion;
        return request.refused_since(version, error, &why).into();
    }
    let response = UpdateFeaturesResponse::default();
    if version >= NO_RESULTS_FROM {
        return response.into();
    }
    let results = each(&request.feature_updates, |update| {
        UpdatableFeatureResult::default().with_feature(update.feature.clone())
    });
    response.with_results(results).into()
}
