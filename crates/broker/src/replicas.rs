//! Requests that move replicas and leaders: one broker has the only replica of every partition, and leads it.

use std::collections::HashSet;

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
    ListPartitionReassignmentsResponse,
};
use millstream_wire::{ResponseError, StrBytes, refuse};

use crate::broker::Broker;
use crate::partitions::lane_of;
use crate::reply::Reply;
use crate::user_streams::stream_of_users;

/// Kinds of elections: of the preferred replica, or of any.
const ELECTIONS: [i8; 2] = [0, 1];

/// Checks that the partition exists.
fn find(broker: &Broker, topic: &str, partition: i32) -> Result<(), String> {
    let stream = stream_of_users(broker.log(), topic);
    let stream = stream.map_err(|_| format!("there is no topic {topic}"))?;
    let lane = lane_of(&stream, partition);
    lane.map(drop)
        .map_err(|_| format!("topic {topic} has no partition {partition}"))
}

/// Elects no leader: this broker leads every partition already.
pub fn elect_leaders(broker: &Broker, version: i16, request: ElectLeadersRequest) -> Reply {
    if !ELECTIONS.contains(&request.election_type) {
        let error = ResponseError::InvalidRequest;
        let why = Some("elections are of the preferred replica (0) or of any (1)");
        return refuse(&request.into(), version, error, why).into();
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
pub fn alter_reassignments(broker: &Broker, request: AlterPartitionReassignmentsRequest) -> Reply {
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

/// Lists no reassignment: none is ever under way.
pub fn list_reassignments() -> Reply {
    ListPartitionReassignmentsResponse::default().into()
}

/// Moves no replica between folders: there is one data directory.
pub fn alter_log_dirs(broker: &Broker, request: AlterReplicaLogDirsRequest) -> Reply {
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
