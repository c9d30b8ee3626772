//! The checks that each kind of request passes.

use millstream_wire::ApiKey;

/// A check of a request, or of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The rights that the request as a whole needs: [`demands`](super::demands).
    Whole,
    /// The rights for each item of the request's lists: [`parts`](super::parts).
    Items,
    /// Each stream that an item names by its id: [`unknown`](super::unknown).
    Ids,
    /// Each resource that the answer lists: [`hidden`](super::hidden).
    Listed,
    /// The permitted operations in the answer: [`operations`](super::operations).
    Operations,
    /// The handler checks the rights for each topic that it looks up.
    Handler,
}

use Check::{Handler, Ids, Items, Listed, Operations, Whole};

/// Returns the checks of a kind of request. A kind without checks is open to every client.
pub fn checks(api: ApiKey) -> &'static [Check] {
    match api {
        ApiKey::JoinGroup
        | ApiKey::SyncGroup
        | ApiKey::Heartbeat
        | ApiKey::LeaveGroup
        | ApiKey::OffsetDelete
        | ApiKey::ConsumerGroupHeartbeat
        | ApiKey::ShareGroupHeartbeat
        | ApiKey::StreamsGroupHeartbeat
        | ApiKey::ShareFetch
        | ApiKey::ShareAcknowledge
        | ApiKey::AlterShareGroupOffsets
        | ApiKey::DeleteShareGroupOffsets
        | ApiKey::InitProducerId
        | ApiKey::AddPartitionsToTxn
        | ApiKey::AddOffsetsToTxn
        | ApiKey::WriteTxnMarkers
        | ApiKey::EndTxn
        | ApiKey::DescribeLogDirs
        | ApiKey::DescribeAcls
        | ApiKey::CreateAcls
        | ApiKey::DeleteAcls
        | ApiKey::DescribeQuorum
        | ApiKey::ElectLeaders
        | ApiKey::ListPartitionReassignments
        | ApiKey::AlterPartitionReassignments
        | ApiKey::AlterReplicaLogDirs
        | ApiKey::UpdateFeatures
        | ApiKey::DescribeUserScramCredentials
        | ApiKey::AlterUserScramCredentials
        | ApiKey::DescribeClientQuotas
        | ApiKey::AlterClientQuotas
        | ApiKey::ListConfigResources
        | ApiKey::CreateStream
        | ApiKey::DescribeStream
        | ApiKey::GrowStream
        | ApiKey::DeleteStream
        | ApiKey::WriteChunks
        | ApiKey::NextGroups
        | ApiKey::ReleaseGroups
        | ApiKey::NextSegments
        | ApiKey::AvailableGroups
        | ApiKey::AvailableSegments
        | ApiKey::PutObject
        | ApiKey::GetObject
        | ApiKey::DeleteObject
        | ApiKey::GetKeys
        | ApiKey::ScanKeys
        | ApiKey::KeyHistory
        | ApiKey::PutKeys
        | ApiKey::WatchKeys
        | ApiKey::FindKeys
        | ApiKey::ChangeHold
        | ApiKey::ListHolds
        | ApiKey::Subscribe
        | ApiKey::Receive => &[Whole],

        ApiKey::Produce
        | ApiKey::FindCoordinator
        | ApiKey::OffsetCommit
        | ApiKey::TxnOffsetCommit => &[Whole, Items],
        ApiKey::OffsetFetch => &[Whole, Items, Listed],
        ApiKey::ReadChunks | ApiKey::CommitCursors => &[Whole, Ids],

        ApiKey::ListOffsets
        | ApiKey::OffsetForLeaderEpoch
        | ApiKey::DeleteRecords
        | ApiKey::DescribeProducers
        | ApiKey::CreateTopics
        | ApiKey::DeleteTopics
        | ApiKey::CreatePartitions
        | ApiKey::DescribeConfigs
        | ApiKey::AlterConfigs
        | ApiKey::IncrementalAlterConfigs
        | ApiKey::DescribeShareGroupOffsets
        | ApiKey::DeleteGroups => &[Items],
        ApiKey::DescribeTransactions => &[Items, Listed],
        ApiKey::DescribeGroups
        | ApiKey::ConsumerGroupDescribe
        | ApiKey::ShareGroupDescribe
        | ApiKey::StreamsGroupDescribe => &[Items, Operations],

        ApiKey::ListGroups
        | ApiKey::ListTransactions
        | ApiKey::ListStreams
        | ApiKey::ListObjects => &[Listed],
        ApiKey::DescribeCluster => &[Operations],

        ApiKey::Fetch => &[Handler],
        ApiKey::Metadata | ApiKey::DescribeTopicPartitions => &[Handler, Operations],

        ApiKey::ApiVersions
        | ApiKey::SaslHandshake
        | ApiKey::SaslAuthenticate
        | ApiKey::LocalSocket
        | ApiKey::Unsubscribe => &[],
    }
}
