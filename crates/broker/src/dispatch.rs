//! The dispatcher: hands each request to the handler of its kind, after the login and the access rules.
//!
//! The dispatcher lies above all handlers: they share the state of [`Broker`], which knows none of
//! them.

use std::sync::Arc;

use millstream_wire::{Request, RequestHeader, refuse};

use crate::broker::Broker;
use crate::client::Client;
use crate::reply::Reply;
use crate::{
    access, cluster, commits, configs, features, fetch, groups, native, offsets, produce,
    producers, replicas, security, shares, topics, transactions,
};

/// Carries out a request. When this returns, its changes are made, or under way in their order.
pub fn handle(
    broker: &Arc<Broker>,
    client: &mut Client,
    header: &RequestHeader,
    request: Request,
) -> Reply {
    let version = header.version;
    client.set_id(header.client_id.as_deref());
    if let Err(error) = client.admit(request.api()) {
        let why = Some("log in first: SaslHandshake, then SaslAuthenticate");
        return refuse(&request, version, error, why).into();
    }
    access::guard(client, version, request, |client, request| {
        carry_out(broker, client, version, request)
    })
}

fn carry_out(broker: &Arc<Broker>, client: &mut Client, version: i16, request: Request) -> Reply {
    match request {
        Request::Produce(request) => produce::produce(broker, client, version, request),
        Request::Fetch(request) => fetch::fetch(broker, client, version, request),
        Request::ListOffsets(request) => offsets::list(client, version, request),
        Request::OffsetForLeaderEpoch(request) => offsets::for_leader_epoch(client, request),
        Request::DescribeProducers(request) => producers::describe(client, request),
        Request::DeleteRecords(request) => offsets::delete_records(broker, client, request),
        Request::Metadata(request) => topics::metadata(broker, client, version, request),
        Request::CreateTopics(request) => topics::create(broker, request),
        Request::DeleteTopics(request) => topics::delete(broker, version, request),
        Request::CreatePartitions(request) => topics::create_partitions(broker, request),
        Request::DescribeTopicPartitions(request) => topics::describe(broker, client, request),
        Request::DescribeConfigs(request) => configs::describe(broker, request),
        Request::AlterConfigs(request) => configs::alter(broker, request),
        Request::IncrementalAlterConfigs(request) => configs::alter_incrementally(broker, request),
        Request::ListConfigResources(request) => configs::list(broker, version, request),
        Request::ElectLeaders(request) => replicas::elect_leaders(broker, version, request),
        Request::AlterPartitionReassignments(request) => {
            replicas::alter_reassignments(broker, request)
        }
        Request::ListPartitionReassignments(_) => replicas::list_reassignments(),
        Request::AlterReplicaLogDirs(request) => replicas::alter_log_dirs(broker, request),
        Request::DescribeQuorum(request) => {
            features::describe_quorum(broker, client, version, request)
        }
        Request::UpdateFeatures(request) => features::update(version, request),
        Request::ApiVersions(_) => millstream_wire::api_versions().into(),
        Request::DescribeCluster(request) => cluster::describe(broker, client, request),
        Request::DescribeLogDirs(request) => cluster::describe_log_dirs(broker, request),
        Request::FindCoordinator(request) => {
            cluster::find_coordinator(broker, client, version, request)
        }
        Request::OffsetCommit(request) => {
            commits::of_known_partitions(client, version, request, |client, request| {
                groups::service::handle(broker, client, version, request)
            })
        }
        Request::TxnOffsetCommit(request) => {
            commits::of_known_partitions(client, version, request, |_, request| {
                transactions::service::handle(broker, version, request)
            })
        }
        request @ (Request::JoinGroup(_)
        | Request::SyncGroup(_)
        | Request::Heartbeat(_)
        | Request::LeaveGroup(_)
        | Request::DescribeGroups(_)
        | Request::ListGroups(_)
        | Request::DeleteGroups(_)
        | Request::OffsetFetch(_)
        | Request::OffsetDelete(_)
        | Request::ConsumerGroupHeartbeat(_)
        | Request::ConsumerGroupDescribe(_)
        | Request::ShareGroupHeartbeat(_)
        | Request::ShareGroupDescribe(_)
        | Request::StreamsGroupHeartbeat(_)
        | Request::StreamsGroupDescribe(_)) => {
            groups::service::handle(broker, client, version, request)
        }
        Request::ShareFetch(request) => shares::service::fetch(broker, client, request),
        Request::ShareAcknowledge(request) => shares::service::acknowledge(broker, client, request),
        Request::DescribeShareGroupOffsets(request) => {
            shares::service::describe_offsets(broker, client, request)
        }
        Request::AlterShareGroupOffsets(request) => {
            shares::service::alter_offsets(broker, client, request)
        }
        Request::DeleteShareGroupOffsets(request) => {
            shares::service::delete_offsets(broker, client, request)
        }
        request @ (Request::InitProducerId(_)
        | Request::AddPartitionsToTxn(_)
        | Request::AddOffsetsToTxn(_)
        | Request::EndTxn(_)
        | Request::WriteTxnMarkers(_)
        | Request::DescribeTransactions(_)
        | Request::ListTransactions(_)) => transactions::service::handle(broker, version, request),
        request @ (Request::SaslHandshake(_)
        | Request::SaslAuthenticate(_)
        | Request::DescribeAcls(_)
        | Request::CreateAcls(_)
        | Request::DeleteAcls(_)
        | Request::DescribeUserScramCredentials(_)
        | Request::AlterUserScramCredentials(_)
        | Request::DescribeClientQuotas(_)
        | Request::AlterClientQuotas(_)) => {
            security::service::handle(broker, client, version, request)
        }
        request => native::handle(broker, client, version, request),
    }
}
