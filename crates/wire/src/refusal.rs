//! Responses that refuse a whole request, with the error wherever the client looks for it.

mod administration;
mod groups;
mod records;
mod security;
mod shares;
mod topics;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{
    ApiVersionsResponse, DescribeClusterResponse, SaslAuthenticateResponse, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;

use crate::native;
use crate::request::{Request, Response};

/// Returns the response that refuses a whole request. The error stands in the response's field for the
/// whole request; a response without this field has the error for each topic, partition, group or other
/// item that the request names. The message stands in every field for one.
///
/// ```
/// use millstream_wire::messages::{HeartbeatRequest, HeartbeatResponse};
/// use millstream_wire::{Request, Response, ResponseError, refuse};
///
/// let error = ResponseError::CoordinatorNotAvailable;
/// let refused = refuse(&Request::Heartbeat(HeartbeatRequest::default()), 4, error, None);
/// let expected = HeartbeatResponse::default().with_error_code(error.code());
/// assert_eq!(refused, Response::Heartbeat(expected));
/// ```
pub fn refuse(
    request: &Request,
    version: i16,
    error: ResponseError,
    message: Option<&str>,
) -> Response {
    let refusal = Refusal {
        version,
        code: error.code(),
        message: message.map(|message| StrBytes::from_string(message.to_owned())),
    };
    refusal.answer(request)
}

/// The error of a response to a request of this version.
struct Refusal {
    version: i16,
    code: i16,
    message: Option<StrBytes>,
}

/// Makes a native response, since all have the same fields for errors.
macro_rules! native_refusal {
    ($refusal:expr, $response:ident) => {
        native::$response {
            error_code: $refusal.code,
            error_message: $refusal.message.clone(),
            ..native::$response::default()
        }
        .into()
    };
}

impl Refusal {
    fn answer(&self, request: &Request) -> Response {
        match request {
            Request::Produce(request) => self.produce(request).into(),
            Request::Fetch(request) => self.fetch(request).into(),
            Request::ListOffsets(request) => self.list_offsets(request).into(),
            Request::OffsetForLeaderEpoch(request) => self.offset_for_leader_epoch(request).into(),
            Request::DeleteRecords(request) => self.delete_records(request).into(),
            Request::DescribeProducers(request) => self.describe_producers(request).into(),
            Request::InitProducerId(_) => self.init_producer_id().into(),
            Request::AddPartitionsToTxn(request) => self.add_partitions_to_txn(request).into(),
            Request::AddOffsetsToTxn(_) => self.add_offsets_to_txn().into(),
            Request::EndTxn(_) => self.end_txn().into(),
            Request::WriteTxnMarkers(request) => self.write_txn_markers(request).into(),
            Request::TxnOffsetCommit(request) => self.txn_offset_commit(request).into(),
            Request::DescribeTransactions(request) => self.describe_transactions(request).into(),
            Request::ListTransactions(_) => self.list_transactions().into(),

            Request::Metadata(request) => self.metadata(request).into(),
            Request::CreateTopics(request) => self.create_topics(request).into(),
            Request::DeleteTopics(request) => self.delete_topics(request).into(),
            Request::CreatePartitions(request) => self.create_partitions(request).into(),
            Request::DescribeConfigs(request) => self.describe_configs(request).into(),
            Request::AlterConfigs(request) => self.alter_configs(request).into(),
            Request::IncrementalAlterConfigs(request) => {
                self.incremental_alter_configs(request).into()
            }
            Request::DescribeLogDirs(_) => self.describe_log_dirs().into(),
            Request::DescribeTopicPartitions(request) => {
                self.describe_topic_partitions(request).into()
            }

            Request::ElectLeaders(request) => self.elect_leaders(request).into(),
            Request::AlterPartitionReassignments(request) => {
                self.alter_reassignments(request).into()
            }
            Request::ListPartitionReassignments(_) => self.list_reassignments().into(),
            Request::AlterReplicaLogDirs(request) => self.alter_replica_log_dirs(request).into(),
            Request::DescribeQuorum(_) => self.describe_quorum().into(),
            Request::UpdateFeatures(_) => self.update_features().into(),
            Request::ListConfigResources(_) => self.list_config_resources().into(),

            Request::OffsetCommit(request) => self.offset_commit(request).into(),
            Request::OffsetFetch(request) => self.offset_fetch(request).into(),
            Request::OffsetDelete(_) => self.offset_delete().into(),
            Request::FindCoordinator(request) => self.find_coordinator(request).into(),
            Request::JoinGroup(request) => self.join_group(request).into(),
            Request::Heartbeat(_) => self.heartbeat().into(),
            Request::LeaveGroup(_) => self.leave_group().into(),
            Request::SyncGroup(_) => self.sync_group().into(),
            Request::DescribeGroups(request) => self.describe_groups(request).into(),
            Request::ListGroups(_) => self.list_groups().into(),
            Request::DeleteGroups(request) => self.delete_groups(request).into(),
            Request::ConsumerGroupHeartbeat(_) => self.consumer_group_heartbeat().into(),
            Request::ConsumerGroupDescribe(request) => self.consumer_group_describe(request).into(),
            Request::StreamsGroupHeartbeat(_) => self.streams_group_heartbeat().into(),
            Request::StreamsGroupDescribe(request) => self.streams_group_describe(request).into(),

            Request::ShareGroupHeartbeat(_) => self.share_group_heartbeat().into(),
            Request::ShareGroupDescribe(request) => self.share_group_describe(request).into(),
            Request::ShareFetch(_) => self.share_fetch().into(),
            Request::ShareAcknowledge(_) => self.share_acknowledge().into(),
            Request::DescribeShareGroupOffsets(request) => {
                self.describe_share_group_offsets(request).into()
            }
            Request::AlterShareGroupOffsets(_) => self.alter_share_group_offsets().into(),
            Request::DeleteShareGroupOffsets(_) => self.delete_share_group_offsets().into(),

            Request::DescribeAcls(_) => self.describe_acls().into(),
            Request::CreateAcls(request) => self.create_acls(request).into(),
            Request::DeleteAcls(request) => self.delete_acls(request).into(),
            Request::DescribeClientQuotas(_) => self.describe_client_quotas().into(),
            Request::AlterClientQuotas(request) => self.alter_client_quotas(request).into(),
            Request::DescribeUserScramCredentials(_) => self.describe_credentials().into(),
            Request::AlterUserScramCredentials(request) => self.alter_credentials(request).into(),

            Request::ApiVersions(_) => ApiVersionsResponse::default()
                .with_error_code(self.code)
                .into(),
            Request::SaslHandshake(_) => SaslHandshakeResponse::default()
                .with_error_code(self.code)
                .into(),
            Request::SaslAuthenticate(_) => SaslAuthenticateResponse::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .into(),
            Request::DescribeCluster(_) => DescribeClusterResponse::default()
                .with_error_code(self.code)
                .with_error_message(self.message.clone())
                .into(),

            Request::CreateStream(_) => native_refusal!(self, CreateStreamResponse),
            Request::DescribeStream(_) => native_refusal!(self, DescribeStreamResponse),
            Request::ListStreams(_) => native_refusal!(self, ListStreamsResponse),
            Request::GrowStream(_) => native_refusal!(self, GrowStreamResponse),
            Request::DeleteStream(_) => native_refusal!(self, DeleteStreamResponse),
            Request::WriteChunks(_) => native_refusal!(self, WriteChunksResponse),
            Request::ReadChunks(_) => native_refusal!(self, ReadChunksResponse),
            Request::NextGroups(_) => native_refusal!(self, NextGroupsResponse),
            Request::NextSegments(_) => native_refusal!(self, NextSegmentsResponse),
            Request::AvailableGroups(_) => native_refusal!(self, AvailableGroupsResponse),
            Request::AvailableSegments(_) => native_refusal!(self, AvailableSegmentsResponse),
            Request::CommitCursors(_) => native_refusal!(self, CommitCursorsResponse),
            Request::ReleaseGroups(_) => native_refusal!(self, ReleaseGroupsResponse),
            Request::PutObject(_) => native_refusal!(self, PutObjectResponse),
            Request::GetObject(_) => native_refusal!(self, GetObjectResponse),
            Request::ListObjects(_) => native_refusal!(self, ListObjectsResponse),
            Request::DeleteObject(_) => native_refusal!(self, DeleteObjectResponse),
            Request::LocalSocket(_) => native_refusal!(self, LocalSocketResponse),
            Request::Subscribe(_) => native_refusal!(self, SubscribeResponse),
            Request::Receive(_) => native_refusal!(self, ReceiveResponse),
            Request::Unsubscribe(_) => native_refusal!(self, UnsubscribeResponse),
            Request::GetKeys(_) => native_refusal!(self, GetKeysResponse),
            Request::ScanKeys(_) => native_refusal!(self, ScanKeysResponse),
            Request::PutKeys(_) => native_refusal!(self, PutKeysResponse),
            Request::WatchKeys(_) => native_refusal!(self, WatchKeysResponse),
            Request::FindKeys(_) => native_refusal!(self, FindKeysResponse),
            Request::KeyHistory(_) => native_refusal!(self, KeyHistoryResponse),
            Request::ChangeHold(_) => native_refusal!(self, ChangeHoldResponse),
            Request::ListHolds(_) => native_refusal!(self, ListHoldsResponse),
        }
    }
}

/// Returns one result for each item.
fn each<T, R>(items: &[T], result: impl Fn(&T) -> R) -> Vec<R> {
    items.iter().map(result).collect()
}
