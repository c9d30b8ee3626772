//! The table of all requests. Keys, bodies, decoders, the answer to ApiVersions and the documentation come from it.

/// Calls a macro with all requests. Each has a name, a key, the bodies of request and response, its versions, and its
/// first flexible version.
macro_rules! apis {
    ($macro:ident) => {
        $macro! {
            Produce = 0, messages::ProduceRequest, messages::ProduceResponse, 3..=13, 9;
            Fetch = 1, messages::FetchRequest, fetch::FetchResponse, 4..=18, 12;
            ListOffsets = 2, messages::ListOffsetsRequest, messages::ListOffsetsResponse, 1..=10, 6;
            Metadata = 3, messages::MetadataRequest, metadata::MetadataResponse, 0..=13, 9;
            OffsetCommit = 8, messages::OffsetCommitRequest, messages::OffsetCommitResponse, 2..=9, 8;
            OffsetFetch = 9, messages::OffsetFetchRequest, messages::OffsetFetchResponse, 1..=9, 6;
            FindCoordinator = 10, messages::FindCoordinatorRequest, messages::FindCoordinatorResponse, 0..=6, 3;
            JoinGroup = 11, messages::JoinGroupRequest, messages::JoinGroupResponse, 0..=9, 6;
            Heartbeat = 12, messages::HeartbeatRequest, messages::HeartbeatResponse, 0..=4, 4;
            LeaveGroup = 13, messages::LeaveGroupRequest, messages::LeaveGroupResponse, 0..=5, 4;
            SyncGroup = 14, messages::SyncGroupRequest, messages::SyncGroupResponse, 0..=5, 4;
            DescribeGroups = 15, messages::DescribeGroupsRequest, messages::DescribeGroupsResponse, 0..=6, 5;
            ListGroups = 16, messages::ListGroupsRequest, messages::ListGroupsResponse, 0..=5, 3;
            SaslHandshake = 17, messages::SaslHandshakeRequest, messages::SaslHandshakeResponse, 0..=1, NEVER;
            ApiVersions = 18, messages::ApiVersionsRequest, messages::ApiVersionsResponse, 0..=4, 3;
            CreateTopics = 19, messages::CreateTopicsRequest, messages::CreateTopicsResponse, 2..=7, 5;
            DeleteTopics = 20, messages::DeleteTopicsRequest, messages::DeleteTopicsResponse, 1..=6, 4;
            DeleteRecords = 21, messages::DeleteRecordsRequest, messages::DeleteRecordsResponse, 0..=2, 2;
            InitProducerId = 22, messages::InitProducerIdRequest, messages::InitProducerIdResponse, 0..=6, 2;
            OffsetForLeaderEpoch = 23, messages::OffsetForLeaderEpochRequest, messages::OffsetForLeaderEpochResponse, 2..=4, 4;
            AddPartitionsToTxn = 24, messages::AddPartitionsToTxnRequest, messages::AddPartitionsToTxnResponse, 0..=5, 3;
            AddOffsetsToTxn = 25, messages::AddOffsetsToTxnRequest, messages::AddOffsetsToTxnResponse, 0..=4, 3;
            EndTxn = 26, messages::EndTxnRequest, messages::EndTxnResponse, 0..=5, 3;
            WriteTxnMarkers = 27, messages::WriteTxnMarkersRequest, messages::WriteTxnMarkersResponse, 1..=1, 0;
            TxnOffsetCommit = 28, messages::TxnOffsetCommitRequest, messages::TxnOffsetCommitResponse, 0..=5, 3;
            DescribeAcls = 29, messages::DescribeAclsRequest, messages::DescribeAclsResponse, 1..=3, 2;
            CreateAcls = 30, messages::CreateAclsRequest, messages::CreateAclsResponse, 1..=3, 2;
            DeleteAcls = 31, messages::DeleteAclsRequest, messages::DeleteAclsResponse, 1..=3, 2;
            DescribeConfigs = 32, messages::DescribeConfigsRequest, messages::DescribeConfigsResponse, 1..=4, 4;
            AlterConfigs = 33, messages::AlterConfigsRequest, messages::AlterConfigsResponse, 0..=2, 2;
            AlterReplicaLogDirs = 34, messages::AlterReplicaLogDirsRequest, messages::AlterReplicaLogDirsResponse, 1..=2, 2;
            DescribeLogDirs = 35, messages::DescribeLogDirsRequest, messages::DescribeLogDirsResponse, 1..=4, 2;
            SaslAuthenticate = 36, messages::SaslAuthenticateRequest, messages::SaslAuthenticateResponse, 0..=2, 2;
            CreatePartitions = 37, messages::CreatePartitionsRequest, messages::CreatePartitionsResponse, 0..=3, 2;
            DeleteGroups = 42, messages::DeleteGroupsRequest, messages::DeleteGroupsResponse, 0..=2, 2;
            ElectLeaders = 43, messages::ElectLeadersRequest, messages::ElectLeadersResponse, 0..=2, 2;
            IncrementalAlterConfigs = 44, messages::IncrementalAlterConfigsRequest, messages::IncrementalAlterConfigsResponse, 0..=1, 1;
            AlterPartitionReassignments = 45, messages::AlterPartitionReassignmentsRequest, messages::AlterPartitionReassignmentsResponse, 0..=1, 0;
            ListPartitionReassignments = 46, messages::ListPartitionReassignmentsRequest, messages::ListPartitionReassignmentsResponse, 0..=0, 0;
            OffsetDelete = 47, messages::OffsetDeleteRequest, messages::OffsetDeleteResponse, 0..=0, NEVER;
            DescribeClientQuotas = 48, messages::DescribeClientQuotasRequest, messages::DescribeClientQuotasResponse, 0..=1, 1;
            AlterClientQuotas = 49, messages::AlterClientQuotasRequest, messages::AlterClientQuotasResponse, 0..=1, 1;
            DescribeUserScramCredentials = 50, messages::DescribeUserScramCredentialsRequest, messages::DescribeUserScramCredentialsResponse, 0..=0, 0;
            AlterUserScramCredentials = 51, messages::AlterUserScramCredentialsRequest, messages::AlterUserScramCredentialsResponse, 0..=0, 0;
            DescribeQuorum = 55, messages::DescribeQuorumRequest, messages::DescribeQuorumResponse, 0..=2, 0;
            UpdateFeatures = 57, messages::UpdateFeaturesRequest, messages::UpdateFeaturesResponse, 0..=2, 0;
            DescribeCluster = 60, messages::DescribeClusterRequest, messages::DescribeClusterResponse, 0..=2, 0;
            DescribeProducers = 61, messages::DescribeProducersRequest, messages::DescribeProducersResponse, 0..=0, 0;
            DescribeTransactions = 65, messages::DescribeTransactionsRequest, messages::DescribeTransactionsResponse, 0..=0, 0;
            ListTransactions = 66, messages::ListTransactionsRequest, messages::ListTransactionsResponse, 0..=2, 0;
            ConsumerGroupHeartbeat = 68, messages::ConsumerGroupHeartbeatRequest, messages::ConsumerGroupHeartbeatResponse, 0..=1, 0;
            ConsumerGroupDescribe = 69, messages::ConsumerGroupDescribeRequest, messages::ConsumerGroupDescribeResponse, 0..=1, 0;
            ListConfigResources = 74, messages::ListConfigResourcesRequest, messages::ListConfigResourcesResponse, 0..=1, 0;
            DescribeTopicPartitions = 75, messages::DescribeTopicPartitionsRequest, messages::DescribeTopicPartitionsResponse, 0..=0, 0;
            ShareGroupHeartbeat = 76, messages::ShareGroupHeartbeatRequest, messages::ShareGroupHeartbeatResponse, 1..=1, 0;
            ShareGroupDescribe = 77, messages::ShareGroupDescribeRequest, messages::ShareGroupDescribeResponse, 1..=1, 0;
            ShareFetch = 78, share::ShareFetchRequest, share::ShareFetchResponse, 1..=2, 0;
            ShareAcknowledge = 79, share::ShareAcknowledgeRequest, share::ShareAcknowledgeResponse, 1..=2, 0;
            StreamsGroupHeartbeat = 88, streams_group::StreamsGroupHeartbeatRequest, streams_group::StreamsGroupHeartbeatResponse, 0..=0, 0;
            StreamsGroupDescribe = 89, streams_group::StreamsGroupDescribeRequest, streams_group::StreamsGroupDescribeResponse, 0..=0, 0;
            DescribeShareGroupOffsets = 90, messages::DescribeShareGroupOffsetsRequest, share::DescribeShareGroupOffsetsResponse, 0..=1, 0;
            AlterShareGroupOffsets = 91, messages::AlterShareGroupOffsetsRequest, messages::AlterShareGroupOffsetsResponse, 0..=0, 0;
            DeleteShareGroupOffsets = 92, messages::DeleteShareGroupOffsetsRequest, messages::DeleteShareGroupOffsetsResponse, 0..=0, 0;

            CreateStream = 10000, native::CreateStreamRequest, native::CreateStreamResponse, 0..=0, 0;
            DescribeStream = 10001, native::DescribeStreamRequest, native::DescribeStreamResponse, 0..=0, 0;
            ListStreams = 10002, native::ListStreamsRequest, native::ListStreamsResponse, 0..=0, 0;
            GrowStream = 10003, native::GrowStreamRequest, native::GrowStreamResponse, 0..=0, 0;
            DeleteStream = 10004, native::DeleteStreamRequest, native::DeleteStreamResponse, 0..=0, 0;
            WriteChunks = 10005, native::WriteChunksRequest, native::WriteChunksResponse, 0..=0, 0;
            ReadChunks = 10006, native::ReadChunksRequest, native::ReadChunksResponse, 0..=0, 0;
            NextGroups = 10007, native::NextGroupsRequest, native::NextGroupsResponse, 0..=0, 0;
            NextSegments = 10008, native::NextSegmentsRequest, native::NextSegmentsResponse, 0..=0, 0;
            AvailableGroups = 10009, native::AvailableGroupsRequest, native::AvailableGroupsResponse, 0..=0, 0;
            AvailableSegments = 10010, native::AvailableSegmentsRequest, native::AvailableSegmentsResponse, 0..=0, 0;
            CommitCursors = 10011, native::CommitCursorsRequest, native::CommitCursorsResponse, 0..=0, 0;
            ReleaseGroups = 10012, native::ReleaseGroupsRequest, native::ReleaseGroupsResponse, 0..=0, 0;
            PutObject = 10013, native::PutObjectRequest, native::PutObjectResponse, 0..=0, 0;
            GetObject = 10014, native::GetObjectRequest, native::GetObjectResponse, 0..=0, 0;
            ListObjects = 10015, native::ListObjectsRequest, native::ListObjectsResponse, 0..=0, 0;
            DeleteObject = 10016, native::DeleteObjectRequest, native::DeleteObjectResponse, 0..=0, 0;
            LocalSocket = 10017, native::LocalSocketRequest, native::LocalSocketResponse, 0..=0, 0;
            Subscribe = 10018, native::SubscribeRequest, native::SubscribeResponse, 0..=0, 0;
            Receive = 10019, native::ReceiveRequest, native::ReceiveResponse, 0..=0, 0;
            Unsubscribe = 10020, native::UnsubscribeRequest, native::UnsubscribeResponse, 0..=0, 0;
            GetKeys = 10021, native::GetKeysRequest, native::GetKeysResponse, 0..=0, 0;
            ScanKeys = 10022, native::ScanKeysRequest, native::ScanKeysResponse, 0..=0, 0;
            PutKeys = 10023, native::PutKeysRequest, native::PutKeysResponse, 0..=0, 0;
            WatchKeys = 10024, native::WatchKeysRequest, native::WatchKeysResponse, 0..=0, 0;
            KeyHistory = 10025, native::KeyHistoryRequest, native::KeyHistoryResponse, 0..=0, 0;
            ChangeHold = 10026, native::ChangeHoldRequest, native::ChangeHoldResponse, 0..=0, 0;
            ListHolds = 10027, native::ListHoldsRequest, native::ListHoldsResponse, 0..=0, 0;
            FindKeys = 10028, native::FindKeysRequest, native::FindKeysResponse, 0..=0, 0;
        }
    };
}

pub(crate) use apis;
