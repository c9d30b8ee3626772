//! Requests that move replicas and leaders: one broker has the only replica of every partition, and leads it.

use std::collections::HashSet;
use std::sync::Arc;

use millstream_wire::messages::alter_partition_reassignments_request::ReassignablePartition;
use millstream_wire::messages::alter_partition_reassignments_response::{
    AlterPartitionReassignmentsResponse, ReassignablePartitionResponse, ReassignableTopicResponse,
};
use millstream_wire::messages::alter_replica_log_dirs_response::{
    AlterReplicaLogDirPartitionResult, AlterReplicaLogDirTopicResult, AlterReplicaLogDirsResponse,
};
use millstream_wire::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};
use millstream_wire::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, ElectLeadersRequest,
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};
use millstream_wire::{ResponseError, StrBytes};

use super::bounds::{Bound, BoundContext, nested};
use super::handle::{Handle, Refusal, each, errors, messages, refuse_with_message};
use super::rights::{Check, Checked, need_cluster};
use crate::broker::Broker;
use crate::client::Client;
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::security::Operation;
use crate::user_streams::stream_of_users;

/// Kinds of elections: of the preferred replica, or of any.
const ELECTIONS: [i8; 2] = [0, 1];

/// The first version of ElectLeaders with an error for the whole request.
const ELECT_ERROR_FROM: i16 = 1;

/// Elects no leader, since this broker leads every partition already.
impl Handle for ElectLeadersRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    fn refuse(&self, refusal: &Refusal) -> ElectLeadersResponse {
        let topics = self.topic_partitions.as_deref().unwrap_or_default();
        let results = each(topics, |topic| {
            ReplicaElectionResult::default()
                .with_topic(topic.topic.clone())
                .with_partition_result(each(&topic.partitions, |partition| {
                    PartitionResult::default()
                        .with_partition_id(*partition)
                        .with_error_code(refusal.code)
                        .with_error_message(refusal.message.clone())
                }))
        });
        let response = ElectLeadersResponse::default().with_replica_election_results(results);
        match refusal.version >= ELECT_ERROR_FROM {
            true => response.with_error_code(refusal.code),
            false => response,
        }
    }

    errors!(
        error_code,
        replica_election_results.partition_result.error_code
    );
    messages!(replica_election_results.partition_result.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        match &self.topic_partitions {
            Some(topics) => context.told(nested(topics, |topic| topic.partitions.len())),
            None => Bound::State,
        }
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, version: i16) -> Reply {
        elect_leaders(broker, version, self)
    }
}

/// Moves no replica, since this broker has the only one of every partition.
impl Handle for AlterPartitionReassignmentsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    fn refuse(&self, refusal: &Refusal) -> AlterPartitionReassignmentsResponse {
        let topics = each(&self.topics, |topic| {
            ReassignableTopicResponse::default()
                .with_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    ReassignablePartitionResponse::default()
                        .with_partition_index(partition.partition_index)
                        .with_error_code(refusal.code)
                        .with_error_message(refusal.message.clone())
                }))
        });
        AlterPartitionReassignmentsResponse::default()
            .with_error_code(refusal.code)
            .with_error_message(refusal.message.clone())
            .with_responses(topics)
    }

    errors!(error_code, responses.partitions.error_code);
    messages!(error_message, responses.partitions.error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.told(nested(&self.topics, |topic| topic.partitions.len()))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        alter_reassignments(broker, self)
    }
}

/// Lists no moves of replicas, since none is ever under way.
impl Handle for ListPartitionReassignmentsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Describe)
    }

    refuse_with_message!();
    errors!(error_code);
    messages!(error_message);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.plain()
    }

    /// Lists no reassignment: none is ever under way.
    fn handle(self, _: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        ListPartitionReassignmentsResponse::default().into()
    }
}

/// Moves no replica between folders, since the broker has one data directory.
impl Handle for AlterReplicaLogDirsRequest {
    const CHECKS: &'static [Check] = &[Check::Whole];

    fn check(&self, client: &Client, _: i16) -> Checked {
        need_cluster(client, Operation::Alter)
    }

    fn refuse(&self, refusal: &Refusal) -> AlterReplicaLogDirsResponse {
        let topics = self.dirs.iter().flat_map(|dir| &dir.topics);
        let results = topics.map(|topic| {
            AlterReplicaLogDirTopicResult::default()
                .with_topic_name(topic.name.clone())
                .with_partitions(each(&topic.partitions, |partition| {
                    AlterReplicaLogDirPartitionResult::default()
                        .with_partition_index(*partition)
                        .with_error_code(refusal.code)
                }))
        });
        AlterReplicaLogDirsResponse::default().with_results(results.collect())
    }

    errors!(results.partitions.error_code);

    fn bound(&self, context: &mut BoundContext<'_>) -> Bound {
        context.elements(nested(&self.dirs, |dir| {
            nested(&dir.topics, |topic| topic.partitions.len())
        }))
    }

    fn handle(self, broker: &Arc<Broker>, _: &mut Client, _: i16) -> Reply {
        alter_log_dirs(broker, self)
    }
}

/// Checks that the partition exists.
fn find(broker: &Broker, topic: &str, partition: i32) -> Result<(), String> {
    let stream = stream_of_users(broker.log(), topic);
    let stream = stream.map_err(|_| format!("there is no topic {topic}"))?;
    let lane = lane_of(&stream, partition);
    lane.map(drop)
        .map_err(|_| format!("topic {topic} has no partition {partition}"))
}

/// Elects no leader: this broker leads every partition already.
fn elect_leaders(broker: &Broker, version: i16, request: ElectLeadersRequest) -> Reply {
    if !ELECTIONS.contains(&request.election_type) {
        let error = ResponseError::InvalidRequest;
        let why = "elections are of the preferred replica (0) or of any (1)";
        return request.refused_since(version, error, why).into();
    }
    // For all partitions, Kafka names only those that need an election.
    let topics = request.topic_partitions.unwrap_or_default();
    let results = topics.into_iter().map(|asked| {
        let partitions = asked.partitions.iter().map(|partition| {
            let (error, why) = match find(broker, &asked.topic, *partition) {
                Ok(()) => (
                    ResponseError::ElectionNotNeeded,
                    "this broker leads the partition already".to_owned(),
                ),
                Err(why) => (ResponseError::UnknownTopicOrPartition, why),
            };
            PartitionResult::default()
                .with_partition_id(*partition)
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(why)))
        });
        let partitions = partitions.collect();
        ReplicaElectionResult::default()
            .with_topic(asked.topic)
            .with_partition_result(partitions)
    });
    ElectLeadersResponse::default()
        .with_replica_election_results(results.collect())
        .into()
}

/// Moves no replica: each has only one possible place.
fn alter_reassignments(broker: &Broker, request: AlterPartitionReassignmentsRequest) -> Reply {
    let allows_change = request.allow_replication_factor_change;
    let topics = request.topics.into_iter().map(|asked| {
        let partitions = asked.partitions.iter().map(|partition| {
            let response = ReassignablePartitionResponse::default()
                .with_partition_index(partition.partition_index);
            match reassign(broker, &asked.name, partition) {
                Ok(()) => response,
                Err((error, why)) => response
                    .with_error_code(error.code())
                    .with_error_message(Some(StrBytes::from_string(why))),
            }
        });
        let partitions = partitions.collect();
        ReassignableTopicResponse::default()
            .with_name(asked.name)
            .with_partitions(partitions)
    });
    AlterPartitionReassignmentsResponse::default()
        .with_allow_replication_factor_change(allows_change)
        .with_responses(topics.collect())
        .into()
}

fn reassign(
    broker: &Broker,
    topic: &str,
    partition: &ReassignablePartition,
) -> Result<(), (ResponseError, String)> {
    find(broker, topic, partition.partition_index)
        .map_err(|why| (ResponseError::UnknownTopicOrPartition, why))?;
    let Some(replicas) = &partition.replicas else {
        let why = "no replica of the partition is being moved".to_owned();
        return Err((ResponseError::NoReassignmentInProgress, why));
    };
    let invalid = |why| Err((ResponseError::InvalidReplicaAssignment, why));
    if replicas.is_empty() {
        return invalid("a partition has a replica".to_owned());
    }
    let id = broker.node_id();
    let mut named = HashSet::new();
    for replica in replicas {
        if *replica != id {
            return invalid(format!(
                "there is no broker {}: the only one is {}",
                replica.0, id.0
            ));
        }
        if !named.insert(replica.0) {
            return invalid(format!("broker {} is named more than once", replica.0));
        }
    }
    Ok(())
}

/// Moves no replica between folders: there is one data directory.
fn alter_log_dirs(broker: &Broker, request: AlterReplicaLogDirsRequest) -> Reply {
    let data = broker.log().dir().display().to_string();
    let mut results = Vec::new();
    for dir in request.dirs {
        let is_data = *dir.path == *data;
        results.extend(dir.topics.into_iter().map(|asked| {
            let partitions = asked.partitions.iter().map(|partition| {
                let error = match find(broker, &asked.name, *partition) {
                    _ if !is_data => Some(ResponseError::LogDirNotFound),
                    Ok(()) => None,
                    Err(_) => Some(ResponseError::UnknownTopicOrPartition),
                };
                AlterReplicaLogDirPartitionResult::default()
                    .with_partition_index(*partition)
                    .with_error_code(error.map_or(0, |error| error.code()))
            });
            let partitions = partitions.collect();
            AlterReplicaLogDirTopicResult::default()
                .with_topic_name(asked.name)
                .with_partitions(partitions)
        }));
    }
    AlterReplicaLogDirsResponse::default()
        .with_results(results)
        .into()
}
