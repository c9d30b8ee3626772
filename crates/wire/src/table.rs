//! The table of all requests. Keys, bodies, decoders, the answer to ApiVersions and the documentation come from it, and in
//! the broker the hand-over of each request to its handler.

/// Calls a macro with all requests. Each has a name, a key, the bodies of request and response, its versions, and its
/// first flexible version; `i16::MAX` if it has none.
///
/// ```
/// macro_rules! names {
///     ($($name:ident = $key:literal, $request:ty, $response:ty, $versions:expr, $flexible:expr;)*) => {
///         [$(stringify!($name)),*]
///     };
/// }
///
/// assert_eq!(millstream_wire::apis!(names)[0], "Produce");
/// ```
#[macro_export]
macro_rules! apis {
    ($macro:ident) => {
        $macro! {
            Produce = 0, $crate::messages::ProduceRequest, $crate::messages::ProduceResponse, 3..=13, 9;
            Fetch = 1, $crate::messages::FetchRequest, $crate::FetchResponse, 4..=18, 12;
            ListOffsets = 2, $crate::messages::ListOffsetsRequest, $crate::messages::ListOffsetsResponse, 1..=11, 6;
            Metadata = 3, $crate::messages::MetadataRequest, $crate::MetadataResponse, 0..=13, 9;
            OffsetCommit = 8, $crate::messages::OffsetCommitRequest, $crate::messages::OffsetCommitResponse, 2..=10, 8;
            OffsetFetch = 9, $crate::messages::OffsetFetchRequest, $crate::messages::OffsetFetchResponse, 1..=10, 6;
            FindCoordinator = 10, $crate::messages::FindCoordinatorRequest, $crate::messages::FindCoordinatorResponse, 0..=6, 3;
            JoinGroup = 11, $crate::messages::JoinGroupRequest, $crate::messages::JoinGroupResponse, 0..=9, 6;
            Heartbeat = 12, $crate::messages::HeartbeatRequest, $crate::messages::HeartbeatResponse, 0..=4, 4;
            LeaveGroup = 13, $crate::messages::LeaveGroupRequest, $crate::messages::LeaveGroupResponse, 0..=5, 4;
            SyncGroup = 14, $crate::messages::SyncGroupRequest, $crate::messages::SyncGroupResponse, 0..=5, 4;
            DescribeGroups = 15, $crate::messages::DescribeGroupsRequest, $crate::messages::DescribeGroupsResponse, 0..=6, 5;
            ListGroups = 16, $crate::messages::ListGroupsRequest, $crate::messages::ListGroupsResponse, 0..=5, 3;
            SaslHandshake = 17, $crate::messages::SaslHandshakeRequest, $crate::messages::SaslHandshakeResponse, 0..=1, i16::MAX;
            ApiVersions = 18, $crate::messages::ApiVersionsRequest, $crate::messages::ApiVersionsResponse, 0..=4, 3;
            CreateTopics = 19, $crate::messages::CreateTopicsRequest, $crate::messages::CreateTopicsResponse, 2..=7, 5;
            DeleteTopics = 20, $crate::messages::DeleteTopicsRequest, $crate::messages::DeleteTopicsResponse, 1..=6, 4;
            DeleteRecords = 21, $crate::messages::DeleteRecordsRequest, $crate::messages::DeleteRecordsResponse, 0..=2, 2;
            InitProducerId = 22, $crate::messages::InitProducerIdRequest, $crate::messages::InitProducerIdResponse, 0..=6, 2;
            OffsetForLeaderEpoch = 23, $crate::messages::OffsetForLeaderEpochRequest, $crate::messages::OffsetForLeaderEpochResponse, 2..=4, 4;
            AddPartitionsToTxn = 24, $crate::messages::AddPartitionsToTxnRequest, $crate::messages::AddPartitionsToTxnResponse, 0..=5, 3;
            AddOffsetsToTxn = 25, $crate::messages::AddOffsetsToTxnRequest, $crate::messages::AddOffsetsToTxnResponse, 0..=4, 3;
            EndTxn = 26, $crate::messages::EndTxnRequest, $crate::messages::EndTxnResponse, 0..=5, 3;
            WriteTxnMarkers = 27, $crate::messages::WriteTxnMarkersRequest, $crate::messages::WriteTxnMarkersResponse, 1..=1, 0;
            TxnOffsetCommit = 28, $crate::messages::TxnOffsetCommitRequest, $crate::messages::TxnOffsetCommitResponse, 0..=5, 3;
            DescribeAcls = 29, $crate::messages::DescribeAclsRequest, $crate::messages::DescribeAclsResponse, 1..=3, 2;
            CreateAcls = 30, $crate::messages::CreateAclsRequest, $crate::messages::CreateAclsResponse, 1..=3, 2;
            DeleteAcls = 31, $crate::messages::DeleteAclsRequest, $crate::messages::DeleteAclsResponse, 1..=3, 2;
            DescribeConfigs = 32, $crate::messages::DescribeConfigsRequest, $crate::messages::DescribeConfigsResponse, 1..=4, 4;
            AlterConfigs = 33, $crate::messages::AlterConfigsRequest, $crate::messages::AlterConfigsResponse, 0..=2, 2;
            AlterReplicaLogDirs = 34, $crate::messages::AlterReplicaLogDirsRequest, $crate::messages::AlterReplicaLogDirsResponse, 1..=2, 2;
            DescribeLogDirs = 35, $crate::messages::DescribeLogDirsRequest, $crate::DescribeLogDirsResponse, 1..=5, 2;
            SaslAuthenticate = 36, $crate::messages::SaslAuthenticateRequest, $crate::messages::SaslAuthenticateResponse, 0..=2, 2;
            CreatePartitions = 37, $crate::messages::CreatePartitionsRequest, $crate::messages::CreatePartitionsResponse, 0..=3, 2;
            DeleteGroups = 42, $crate::messages::DeleteGroupsRequest, $crate::messages::DeleteGroupsResponse, 0..=2, 2;
            ElectLeaders = 43, $crate::messages::ElectLeadersRequest, $crate::messages::ElectLeadersResponse, 0..=2, 2;
            IncrementalAlterConfigs = 44, $crate::messages::IncrementalAlterConfigsRequest, $crate::messages::IncrementalAlterConfigsResponse, 0..=1, 1;
            AlterPartitionReassignments = 45, $crate::messages::AlterPartitionReassignmentsRequest, $crate::messages::AlterPartitionReassignmentsResponse, 0..=1, 0;
            ListPartitionReassignments = 46, $crate::messages::ListPartitionReassignmentsRequest, $crate::messages::ListPartitionReassignmentsResponse, 0..=0, 0;
            OffsetDelete = 47, $crate::messages::OffsetDeleteRequest, $crate::messages::OffsetDeleteResponse, 0..=0, i16::MAX;
            DescribeClientQuotas = 48, $crate::messages::DescribeClientQuotasRequest, $crate::messages::DescribeClientQuotasResponse, 0..=1, 1;
            AlterClientQuotas = 49, $crate::messages::AlterClientQuotasRequest, $crate::messages::AlterClientQuotasResponse, 0..=1, 1;
            DescribeUserScramCredentials = 50, $crate::messages::DescribeUserScramCredentialsRequest, $crate::messages::DescribeUserScramCredentialsResponse, 0..=0, 0;
            AlterUserScramCredentials = 51, $crate::messages::AlterUserScramCredentialsRequest, $crate::messages::AlterUserScramCredentialsResponse, 0..=0, 0;
            DescribeQuorum = 55, $crate::messages::DescribeQuorumRequest, $crate::messages::DescribeQuorumResponse, 0..=2, 0;
            UpdateFeatures = 57, $crate::messages::UpdateFeaturesRequest, $crate::messages::UpdateFeaturesResponse, 0..=2, 0;
            DescribeCluster = 60, $crate::messages::DescribeClusterRequest, $crate::messages::DescribeClusterResponse, 0..=2, 0;
            DescribeProducers = 61, $crate::messages::DescribeProducersRequest, $crate::messages::DescribeProducersResponse, 0..=0, 0;
            UnregisterBroker = 64, $crate::messages::UnregisterBrokerRequest, $crate::messages::UnregisterBrokerResponse, 0..=0, 0;
            DescribeTransactions = 65, $crate::messages::DescribeTransactionsRequest, $crate::messages::DescribeTransactionsResponse, 0..=0, 0;
            ListTransactions = 66, $crate::messages::ListTransactionsRequest, $crate::messages::ListTransactionsResponse, 0..=2, 0;
            ConsumerGroupHeartbeat = 68, $crate::messages::ConsumerGroupHeartbeatRequest, $crate::messages::ConsumerGroupHeartbeatResponse, 0..=1, 0;
            ConsumerGroupDescribe = 69, $crate::messages::ConsumerGroupDescribeRequest, $crate::messages::ConsumerGroupDescribeResponse, 0..=1, 0;
            GetTelemetrySubscriptions = 71, $crate::messages::GetTelemetrySubscriptionsRequest, $crate::messages::GetTelemetrySubscriptionsResponse, 0..=0, 0;
            PushTelemetry = 72, $crate::messages::PushTelemetryRequest, $crate::messages::PushTelemetryResponse, 0..=0, 0;
            ListConfigResources = 74, $crate::messages::ListConfigResourcesRequest, $crate::messages::ListConfigResourcesResponse, 0..=1, 0;
            DescribeTopicPartitions = 75, $crate::messages::DescribeTopicPartitionsRequest, $crate::messages::DescribeTopicPartitionsResponse, 0..=0, 0;
            ShareGroupHeartbeat = 76, $crate::messages::ShareGroupHeartbeatRequest, $crate::messages::ShareGroupHeartbeatResponse, 1..=1, 0;
            ShareGroupDescribe = 77, $crate::messages::ShareGroupDescribeRequest, $crate::messages::ShareGroupDescribeResponse, 1..=1, 0;
            ShareFetch = 78, $crate::ShareFetchRequest, $crate::ShareFetchResponse, 1..=2, 0;
            ShareAcknowledge = 79, $crate::ShareAcknowledgeRequest, $crate::ShareAcknowledgeResponse, 1..=2, 0;
            StreamsGroupHeartbeat = 88, $crate::streams_group::StreamsGroupHeartbeatRequest, $crate::streams_group::StreamsGroupHeartbeatResponse, 0..=0, 0;
            StreamsGroupDescribe = 89, $crate::streams_group::StreamsGroupDescribeRequest, $crate::streams_group::StreamsGroupDescribeResponse, 0..=0, 0;
            DescribeShareGroupOffsets = 90, $crate::messages::DescribeShareGroupOffsetsRequest, $crate::DescribeShareGroupOffsetsResponse, 0..=1, 0;
            AlterShareGroupOffsets = 91, $crate::messages::AlterShareGroupOffsetsRequest, $crate::messages::AlterShareGroupOffsetsResponse, 0..=0, 0;
            DeleteShareGroupOffsets = 92, $crate::messages::DeleteShareGroupOffsetsRequest, $crate::messages::DeleteShareGroupOffsetsResponse, 0..=0, 0;

            CreateStream = 10000, $crate::native::CreateStreamRequest, $crate::native::CreateStreamResponse, 0..=0, 0;
            DescribeStream = 10001, $crate::native::DescribeStreamRequest, $crate::native::DescribeStreamResponse, 0..=0, 0;
            ListStreams = 10002, $crate::native::ListStreamsRequest, $crate::native::ListStreamsResponse, 0..=0, 0;
            GrowStream = 10003, $crate::native::GrowStreamRequest, $crate::native::GrowStreamResponse, 0..=0, 0;
            DeleteStream = 10004, $crate::native::DeleteStreamRequest, $crate::native::DeleteStreamResponse, 0..=0, 0;
            WriteChunks = 10005, $crate::native::WriteChunksRequest, $crate::native::WriteChunksResponse, 0..=0, 0;
            ReadChunks = 10006, $crate::native::ReadChunksRequest, $crate::native::ReadChunksResponse, 0..=0, 0;
            NextGroups = 10007, $crate::native::NextGroupsRequest, $crate::native::NextGroupsResponse, 0..=0, 0;
            NextSegments = 10008, $crate::native::NextSegmentsRequest, $crate::native::NextSegmentsResponse, 0..=0, 0;
            AvailableGroups = 10009, $crate::native::AvailableGroupsRequest, $crate::native::AvailableGroupsResponse, 0..=0, 0;
            AvailableSegments = 10010, $crate::native::AvailableSegmentsRequest, $crate::native::AvailableSegmentsResponse, 0..=0, 0;
            CommitCursors = 10011, $crate::native::CommitCursorsRequest, $crate::native::CommitCursorsResponse, 0..=0, 0;
            ReleaseGroups = 10012, $crate::native::ReleaseGroupsRequest, $crate::native::ReleaseGroupsResponse, 0..=0, 0;
            PutObject = 10013, $crate::native::PutObjectRequest, $crate::native::PutObjectResponse, 0..=0, 0;
            GetObject = 10014, $crate::native::GetObjectRequest, $crate::native::GetObjectResponse, 0..=0, 0;
            ListObjects = 10015, $crate::native::ListObjectsRequest, $crate::native::ListObjectsResponse, 0..=0, 0;
            DeleteObject = 10016, $crate::native::DeleteObjectRequest, $crate::native::DeleteObjectResponse, 0..=0, 0;
            LocalSocket = 10017, $crate::native::LocalSocketRequest, $crate::native::LocalSocketResponse, 0..=0, 0;
            Subscribe = 10018, $crate::native::SubscribeRequest, $crate::native::SubscribeResponse, 0..=0, 0;
            Receive = 10019, $crate::native::ReceiveRequest, $crate::native::ReceiveResponse, 0..=0, 0;
            Unsubscribe = 10020, $crate::native::UnsubscribeRequest, $crate::native::UnsubscribeResponse, 0..=0, 0;
            GetKeys = 10021, $crate::native::GetKeysRequest, $crate::native::GetKeysResponse, 0..=1, 0;
            ScanKeys = 10022, $crate::native::ScanKeysRequest, $crate::native::ScanKeysResponse, 0..=0, 0;
            PutKeys = 10023, $crate::native::PutKeysRequest, $crate::native::PutKeysResponse, 0..=0, 0;
            WatchKeys = 10024, $crate::native::WatchKeysRequest, $crate::native::WatchKeysResponse, 0..=0, 0;
            KeyHistory = 10025, $crate::native::KeyHistoryRequest, $crate::native::KeyHistoryResponse, 0..=0, 0;
            ChangeHold = 10026, $crate::native::ChangeHoldRequest, $crate::native::ChangeHoldResponse, 0..=0, 0;
            ListHolds = 10027, $crate::native::ListHoldsRequest, $crate::native::ListHoldsResponse, 0..=0, 0;
            FindKeys = 10028, $crate::native::FindKeysRequest, $crate::native::FindKeysResponse, 0..=0, 0;
        }
    };
}
