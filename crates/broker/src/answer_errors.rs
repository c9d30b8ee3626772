//! Which answers tell of an error.

use millstream_wire::Response;

/// Whether an answer tells of an error, in the whole of the request or in a part of it.
pub fn has_error(response: &Response) -> bool {
    use Response as R;
    match response {
        R::Produce(response) => {
            let topics = response.responses.iter();
            let mut partitions = topics.flat_map(|topic| &topic.partition_responses);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::Fetch(response) => {
            let topics = response.topics.iter();
            let mut partitions = topics.flat_map(|topic| &topic.partitions);
            response.error_code != 0 || partitions.any(|partition| partition.error_code != 0)
        }
        R::ListOffsets(response) => {
            let topics = response.topics.iter();
            let mut partitions = topics.flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::OffsetCommit(response) => {
            let topics = response.topics.iter();
            let mut partitions = topics.flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::OffsetFetch(response) => {
            let mut groups = response.groups.iter();
            response.error_code != 0 || groups.any(|group| group.error_code != 0)
        }
        R::Metadata(response) => {
            let mut topics = response.topics.iter();
            topics.any(|topic| topic.error_code != 0)
        }
        R::CreateTopics(response) => {
            let mut topics = response.topics.iter();
            topics.any(|topic| topic.error_code != 0)
        }
        R::DeleteTopics(response) => {
            let mut topics = response.responses.iter();
            topics.any(|topic| topic.error_code != 0)
        }
        R::ApiVersions(response) => response.error_code != 0,
        R::JoinGroup(response) => response.error_code != 0,
        R::SyncGroup(response) => response.error_code != 0,
        R::Heartbeat(response) => response.error_code != 0,
        R::ConsumerGroupHeartbeat(response) => response.error_code != 0,
        R::LeaveGroup(response) => response.error_code != 0,
        R::FindCoordinator(response) => {
            let mut found = response.coordinators.iter();
            response.error_code != 0 || found.any(|found| found.error_code != 0)
        }
        R::InitProducerId(response) => response.error_code != 0,
        R::AddOffsetsToTxn(response) => response.error_code != 0,
        R::EndTxn(response) => response.error_code != 0,
        R::SaslHandshake(response) => response.error_code != 0,
        R::SaslAuthenticate(response) => response.error_code != 0,
        R::DescribeGroups(response) => {
            let mut groups = response.groups.iter();
            groups.any(|group| group.error_code != 0)
        }
        R::ConsumerGroupDescribe(response) => {
            let mut groups = response.groups.iter();
            groups.any(|group| group.error_code != 0)
        }
        R::ListGroups(response) => response.error_code != 0,
        R::DeleteGroups(response) => {
            let mut groups = response.results.iter();
            groups.any(|group| group.error_code != 0)
        }
        R::OffsetDelete(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            response.error_code != 0 || partitions.any(|partition| partition.error_code != 0)
        }
        R::OffsetForLeaderEpoch(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::DeleteRecords(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::AddPartitionsToTxn(response) => {
            let newer = response.results_by_transaction.iter();
            let newer = newer.flat_map(|transaction| &transaction.topic_results);
            let topics = response.results_by_topic_v3_and_below.iter().chain(newer);
            let mut partitions = topics.flat_map(|topic| &topic.results_by_partition);
            response.error_code != 0
                || partitions.any(|partition| partition.partition_error_code != 0)
        }
        R::TxnOffsetCommit(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::WriteTxnMarkers(response) => {
            let topics = response.markers.iter().flat_map(|marker| &marker.topics);
            let mut partitions = topics.flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::DescribeProducers(response) => {
            let mut partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.any(|partition| partition.error_code != 0)
        }
        R::DescribeTransactions(response) => {
            let mut transactions = response.transaction_states.iter();
            transactions.any(|transaction| transaction.error_code != 0)
        }
        R::ListTransactions(response) => response.error_code != 0,
        R::DescribeAcls(response) => response.error_code != 0,
        R::CreateAcls(response) => {
            let mut results = response.results.iter();
            results.any(|result| result.error_code != 0)
        }
        R::DeleteAcls(response) => {
            let mut results = response.filter_results.iter();
            results.any(|result| result.error_code != 0)
        }
        R::DescribeConfigs(response) => {
            let mut results = response.results.iter();
            results.any(|result| result.error_code != 0)
        }
        R::AlterConfigs(response) => {
            let mut results = response.responses.iter();
            results.any(|result| result.error_code != 0)
        }
        R::IncrementalAlterConfigs(response) => {
            let mut results = response.responses.iter();
            results.any(|result| result.error_code != 0)
        }
        R::DescribeLogDirs(response) => {
            let mut results = response.results.iter();
            response.error_code != 0 || results.any(|result| result.error_code != 0)
        }
        R::CreatePartitions(response) => {
            let mut results = response.results.iter();
            results.any(|result| result.error_code != 0)
        }
        R::DescribeClientQuotas(response) => response.error_code != 0,
        R::AlterClientQuotas(response) => {
            let mut entries = response.entries.iter();
            entries.any(|entry| entry.error_code != 0)
        }
        R::DescribeUserScramCredentials(response) => {
            let mut results = response.results.iter();
            response.error_code != 0 || results.any(|result| result.error_code != 0)
        }
        R::AlterUserScramCredentials(response) => {
            let mut results = response.results.iter();
            results.any(|result| result.error_code != 0)
        }
        R::DescribeCluster(response) => response.error_code != 0,
        R::DescribeTopicPartitions(response) => {
            let mut topics = response.topics.iter();
            topics.any(|topic| topic.error_code != 0)
        }
        R::CreateStream(response) => response.error_code != 0,
        R::DescribeStream(response) => response.error_code != 0,
        R::ListStreams(response) => response.error_code != 0,
        R::GrowStream(response) => response.error_code != 0,
        R::DeleteStream(response) => response.error_code != 0,
        R::WriteChunks(response) => {
            let mut chunks = response.chunks.iter();
            response.error_code != 0 || chunks.any(|chunk| chunk.error_code != 0)
        }
        R::ReadChunks(response) => {
            let mut reads = response.reads.iter();
            response.error_code != 0 || reads.any(|read| read.error_code != 0)
        }
        R::NextGroups(response) => response.error_code != 0,
        R::NextSegments(response) => response.error_code != 0,
        R::AvailableGroups(response) => response.error_code != 0,
        R::AvailableSegments(response) => response.error_code != 0,
        R::CommitCursors(response) => {
            let mut commits = response.commits.iter();
            response.error_code != 0 || commits.any(|commit| commit.error_code != 0)
        }
        R::ReleaseGroups(response) => response.error_code != 0,
        R::PutObject(response) => response.error_code != 0,
        R::GetObject(response) => response.error_code != 0,
        R::ListObjects(response) => response.error_code != 0,
        R::DeleteObject(response) => response.error_code != 0,
        R::LocalSocket(response) => response.error_code != 0,
        R::Subscribe(response) => response.error_code != 0,
        R::Receive(response) => {
            let mut handed = response.handed.iter();
            response.error_code != 0 || handed.any(|part| part.error_code != 0)
        }
        R::Unsubscribe(response) => response.error_code != 0,
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
