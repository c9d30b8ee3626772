//! Finds out which answers report an error.

use millstream_wire::Response;

/// Evaluates to whether one of several parts reports an error; or, with a field's name, one of the
/// parts in these fields.
macro_rules! any_error {
    ($parts:expr) => {
        $parts.iter().any(|part| part.error_code != 0)
    };
    ($wholes:expr, $parts:ident) => {
        $wholes
            .iter()
            .flat_map(|whole| &whole.$parts)
            .any(|part| part.error_code != 0)
    };
}

/// Returns whether an answer reports an error, for the whole request or for a part of it.
pub fn has_error(response: &Response) -> bool {
    use Response as R;
    match response {
        R::Produce(response) => any_error!(response.responses, partition_responses),
        R::Fetch(response) => response.error_code != 0 || any_error!(response.topics, partitions),
        R::ListOffsets(response) => any_error!(response.topics, partitions),
        R::OffsetCommit(response) => any_error!(response.topics, partitions),
        R::OffsetFetch(response) => response.error_code != 0 || any_error!(response.groups),
        R::Metadata(response) => any_error!(response.topics),
        R::CreateTopics(response) => any_error!(response.topics),
        R::DeleteTopics(response) => any_error!(response.responses),
        R::ApiVersions(response) => response.error_code != 0,
        R::JoinGroup(response) => response.error_code != 0,
        R::SyncGroup(response) => response.error_code != 0,
        R::Heartbeat(response) => response.error_code != 0,
        R::ConsumerGroupHeartbeat(response) => response.error_code != 0,
        R::StreamsGroupHeartbeat(response) => response.error_code != 0,
        R::LeaveGroup(response) => response.error_code != 0,
        R::FindCoordinator(response) => {
            response.error_code != 0 || any_error!(response.coordinators)
        }
        R::InitProducerId(response) => response.error_code != 0,
        R::AddOffsetsToTxn(response) => response.error_code != 0,
        R::EndTxn(response) => response.error_code != 0,
        R::SaslHandshake(response) => response.error_code != 0,
        R::SaslAuthenticate(response) => response.error_code != 0,
        R::DescribeGroups(response) => any_error!(response.groups),
        R::ConsumerGroupDescribe(response) => any_error!(response.groups),
        R::ShareGroupHeartbeat(response) => response.error_code != 0,
        R::ShareGroupDescribe(response) => any_error!(response.groups),
        R::ShareFetch(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            response.error_code != 0
                || partitions.any(|partition| {
                    partition.error_code != 0 || partition.acknowledge_error_code != 0
                })
        }
        R::ShareAcknowledge(response) => {
            response.error_code != 0 || any_error!(response.responses, partitions)
        }
        R::DescribeShareGroupOffsets(response) => {
            let mut topics = response.groups.iter().flat_map(|group| &group.topics);
            any_error!(response.groups) || topics.any(|topic| any_error!(topic.partitions))
        }
        R::AlterShareGroupOffsets(response) => {
            response.error_code != 0 || any_error!(response.responses, partitions)
        }
        R::DeleteShareGroupOffsets(response) => {
            response.error_code != 0 || any_error!(response.responses)
        }
        R::StreamsGroupDescribe(response) => any_error!(response.groups),
        R::ListGroups(response) => response.error_code != 0,
        R::DeleteGroups(response) => any_error!(response.results),
        R::OffsetDelete(response) => {
            response.error_code != 0 || any_error!(response.topics, partitions)
        }
        R::OffsetForLeaderEpoch(response) => any_error!(response.topics, partitions),
        R::DeleteRecords(response) => any_error!(response.topics, partitions),
        R::AddPartitionsToTxn(response) => {
            let newer = response.results_by_transaction.iter();
            let newer = newer.flat_map(|transaction| &transaction.topic_results);
            let topics = response.results_by_topic_v3_and_below.iter().chain(newer);
            let mut partitions = topics.flat_map(|topic| &topic.results_by_partition);
            response.error_code != 0
                || partitions.any(|partition| partition.partition_error_code != 0)
        }
        R::TxnOffsetCommit(response) => any_error!(response.topics, partitions),
        R::WriteTxnMarkers(response) => {
            let topics = response.markers.iter().flat_map(|marker| &marker.topics);
            let mut partitions = topics.flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::DescribeProducers(response) => any_error!(response.topics, partitions),
        R::DescribeTransactions(response) => any_error!(response.transaction_states),
        R::ListTransactions(response) => response.error_code != 0,
        R::DescribeAcls(response) => response.error_code != 0,
        R::CreateAcls(response) => any_error!(response.results),
        R::DeleteAcls(response) => any_error!(response.filter_results),
        R::DescribeConfigs(response) => any_error!(response.results),
        R::AlterConfigs(response) => any_error!(response.responses),
        R::IncrementalAlterConfigs(response) => any_error!(response.responses),
        R::DescribeLogDirs(response) => response.error_code != 0 || any_error!(response.results),
        R::CreatePartitions(response) => any_error!(response.results),
        R::ElectLeaders(response) => {
            response.error_code != 0
                || any_error!(response.replica_election_results, partition_result)
        }
        R::AlterPartitionReassignments(response) => {
            response.error_code != 0 || any_error!(response.responses, partitions)
        }
        R::ListPartitionReassignments(response) => response.error_code != 0,
        R::AlterReplicaLogDirs(response) => any_error!(response.results, partitions),
        R::DescribeQuorum(response) => {
            response.error_code != 0 || any_error!(response.topics, partitions)
        }
        R::UpdateFeatures(response) => response.error_code != 0 || any_error!(response.results),
        R::ListConfigResources(response) => response.error_code != 0,
        R::DescribeClientQuotas(response) => response.error_code != 0,
        R::AlterClientQuotas(response) => any_error!(response.entries),
        R::DescribeUserScramCredentials(response) => {
            response.error_code != 0 || any_error!(response.results)
        }
        R::AlterUserScramCredentials(response) => any_error!(response.results),
        R::DescribeCluster(response) => response.error_code != 0,
        R::DescribeTopicPartitions(response) => any_error!(response.topics),
        R::CreateStream(response) => response.error_code != 0,
        R::DescribeStream(response) => response.error_code != 0,
        R::ListStreams(response) => response.error_code != 0,
        R::GrowStream(response) => response.error_code != 0,
        R::DeleteStream(response) => response.error_code != 0,
        R::WriteChunks(response) => response.error_code != 0 || any_error!(response.chunks),
        R::ReadChunks(response) => response.error_code != 0 || any_error!(response.reads),
        R::NextGroups(response) => response.error_code != 0,
        R::NextSegments(response) => response.error_code != 0,
        R::AvailableGroups(response) => response.error_code != 0,
        R::AvailableSegments(response) => response.error_code != 0,
        R::CommitCursors(response) => response.error_code != 0 || any_error!(response.commits),
        R::ReleaseGroups(response) => response.error_code != 0,
        R::PutObject(response) => response.error_code != 0,
        R::GetObject(response) => response.error_code != 0,
        R::ListObjects(response) => response.error_code != 0,
        R::DeleteObject(response) => response.error_code != 0,
        R::LocalSocket(response) => response.error_code != 0,
        R::Subscribe(response) => response.error_code != 0,
        R::Receive(response) => response.error_code != 0 || any_error!(response.delivered),
        R::Unsubscribe(response) => response.error_code != 0,
        R::GetKeys(response) => response.error_code != 0 || any_error!(response.keys),
        R::ScanKeys(response) => response.error_code != 0,
        R::KeyHistory(response) => response.error_code != 0,
        R::PutKeys(response) => response.error_code != 0 || any_error!(response.entries),
        R::WatchKeys(response) => response.error_code != 0,
        R::FindKeys(response) => response.error_code != 0,
        R::ChangeHold(response) => response.error_code != 0,
        R::ListHolds(response) => response.error_code != 0,
    }
}

#[cfg(test)]
mod tests {
    use millstream_wire::messages::CreateAclsResponse;
    use millstream_wire::messages::create_acls_response::AclCreationResult;
    use millstream_wire::native::{CommitCursorsResponse, CommittedCursor};

    use super::*;

    #[test]
    fn errors_in_parts_of_the_answers_to_administrators_and_of_our_own_requests_count() {
        for code in [0, 31] {
            let created = AclCreationResult::default().with_error_code(code);
            let created = CreateAclsResponse::default().with_results(vec![created]);
            assert_eq!(has_error(&created.into()), code != 0);
            let commits = vec![CommittedCursor {
                error_code: code,
                ..CommittedCursor::default()
            }];
            let committed = CommitCursorsResponse {
                commits,
                ..CommitCursorsResponse::default()
            };
            assert_eq!(has_error(&committed.into()), code != 0);
        }
    }
}
