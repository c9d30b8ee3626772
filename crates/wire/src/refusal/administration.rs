//! Refusals of requests about the placement and leaders of partitions, about the cluster, and about settings.

use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult,
};
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::*;

use super::{Refusal, each};

/// The first version of ElectLeaders with an error for the whole request.
const ELECT_ERROR_FROM: i16 = 1;
/// The first version of DescribeQuorum with an error message.
const QUORUM_MESSAGE_FROM: i16 = 2;

impl Refusal {
    pub(super) fn elect_leaders(&self, request: &ElectLeadersRequest) -> ElectLeadersResponse {
        let topics = request.topic_partitions.as_deref().unwrap_or_default();
        let results = each(topics, |topic| {
            ReplicaElectionResult::default()
                .with_topic(topic.topic.clone())
                .with_partition_result(each(&topic.partitions, |partition| {
                    PartitionResult::default()
                        .with_partition_id(*partition)
                        .with_error_code(self.code)
                        .with_error_message(self.message.clone())
                }))
        });
        let response = ElectLeadersResponse::default().with_replica_election_results(results);
        match self.version >= ELECT_ERROR_FROM {
            true => response.with_error_code(self.code),
            false => response,
        }
    }

    pub(super) fn alter_reassignments(
        &self,
        request: &AlterPartitionReassignmentsRequest,
    ) -> AlterPartitionReassignmentsResponse {
        let topics = each(&request.topics, |topic| {
            ReassignableTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    ReassignablePartitionResponse::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(self.code)
                        .with_error_message(self.message.clone())
                }))
        });
        AlterPartitionReassignmentsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
            .with_responses(topics)
    }

    pub(super) fn list_reassignments(&self) -> ListPartitionReassignmentsResponse {
        ListPartitionReassignmentsResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn alter_replica_log_dirs(
        &self,
        request: &AlterReplicaLogDirsRequest,
    ) -> AlterReplicaLogDirsResponse {
        let topics = request.dirs.iter().flat_map(|dir| &dir.topics);
        let results = topics.map(|topic| {
            AlterReplicaLogDirTopicResult::default()
                .with_topic_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    AlterReplicaLogDirPartitionResult::default()
                        .with_partition_index(*partition)
                        .with_error_code(self.code)
                }))
        });
        AlterReplicaLogDirsResponse::default().with_results(results.collect())
    }

    pub(super) fn describe_quorum(&self) -> DescribeQuorumResponse {
        let message = self.message.clone();
        DescribeQuorumResponse::default()
            .with_error_code(self.code)
            .with_error_message(message.filter(|_| self.version >= QUORUM_MESSAGE_FROM))
    }

    pub(super) fn update_features(&self) -> UpdateFeaturesResponse {
        UpdateFeaturesResponse::default()
            .with_error_code(self.code)
            .with_error_message(self.message.clone())
    }

    pub(super) fn list_config_resources(&self) -> ListConfigResourcesResponse {
        ListConfigResourcesResponse::default().with_error_code(self.code)
    }
}
