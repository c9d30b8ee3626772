//! Which requests there are, and in which versions: one table for the decoders, the answer to
//! ApiVersions and the documentation.

use std::ops::RangeInclusive;

use kafka_protocol::messages;
use kafka_protocol::messages::ApiVersionsResponse;
use kafka_protocol::messages::api_versions_response::{
    ApiVersion, FinalizedFeatureKey, SupportedFeatureKey,
};
use kafka_protocol::protocol::StrBytes;

use crate::body::Body;
use crate::error::{EncodeError, Malformed};
use crate::input::Input;
use crate::native;
use crate::pieces::Output;
use crate::{share, streams_group};

/// For requests without flexible versions.
const NEVER: i16 = i16::MAX;

/// What ApiVersions says of Produce: librdkafka does not compress for a broker that does not announce
/// the oldest versions (KAFKA-18659), though it never sends them.
const PRODUCE_VERSION_MIN_ANNOUNCED: i16 = 0;

/// The features that clients look for, each at its only level.
const FEATURES: [(&str, i16); 3] = [
    // Partitions and groups take part in a transaction without being added before, and every transaction has an
    // epoch of its own (KIP-890).
    ("transaction.version", 2),
    // There are share groups (KIP-932).
    ("share.version", 1),
    // There are groups of Kafka Streams (KIP-1071).
    ("streams.version", 1),
];

/// A request that is supported, and in which versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Supported {
    /// Which request it is.
    pub api: ApiKey,
    /// The oldest version.
    pub version_min: i16,
    /// The newest version.
    pub version_max: i16,
    /// From this version on the messages have compact lengths and tagged fields.
    pub flexible_from: i16,
}

/// Refused: no request has this api key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown api key {0}")]
pub struct UnknownApiKey(pub i16);

/// The body of a request, which knows what answers it.
pub trait Question: Into<Request> {
    /// The body of its response.
    type Answer;
    /// Which request it is.
    const API: ApiKey;

    /// The body of a response; `None` if it answers another request.
    fn answer(response: Response) -> Option<Self::Answer>;
}

macro_rules! apis {
    ($($name:ident = $key:literal, $request:ty, $response:ty, $min:literal..=$max:literal, $flexible:expr;)*) => {
        /// The key of a request: Kafka's, and from 10000 on our own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(#[doc = concat!("Request ", stringify!($key), ".")] $name = $key,)*
        }

        impl TryFrom<i16> for ApiKey {
            type Error = UnknownApiKey;

            fn try_from(key: i16) -> Result<ApiKey, UnknownApiKey> {
                match key {
                    $($key => Ok(ApiKey::$name),)*
                    _ => Err(UnknownApiKey(key)),
                }
            }
        }

        /// All requests that are supported, by key.
        pub const SUPPORTED: &[Supported] = &[
            $(Supported {
                api: ApiKey::$name,
                version_min: $min,
                version_max: $max,
                flexible_from: $flexible,
            },)*
        ];

        impl ApiKey {
            /// What is supported of it.
            pub const fn supported(self) -> Supported {
                match self {
                    $(ApiKey::$name => Supported {
                        api: self,
                        version_min: $min,
                        version_max: $max,
                        flexible_from: $flexible,
                    },)*
                }
            }
        }

        /// A request, without its header.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Request {
            $(#[doc = concat!("See [`ApiKey::", stringify!($name), "`].")] $name($request),)*
        }

        impl Request {
            /// Which request it is.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Request::$name(_) => ApiKey::$name,)*
                }
            }

            pub(crate) fn decode(
                api: ApiKey,
                version: i16,
                input: &mut Input,
            ) -> Result<Request, Malformed> {
                match api {
                    $(ApiKey::$name => Body::decode(input, version).map(Request::$name),)*
                }
            }

            pub(crate) fn encode(&self, version: i16, output: &mut Output) -> Result<(), EncodeError> {
                match self {
                    $(Request::$name(body) => encode_body(body, ApiKey::$name, version, output),)*
                }
            }
        }

        /// A response, without its header.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Response {
            $(#[doc = concat!("Answers [`Request::", stringify!($name), "`].")] $name($response),)*
        }

        impl Response {
            /// Which request it answers.
            pub fn api(&self) -> ApiKey {
                match self {
                    $(Response::$name(_) => ApiKey::$name,)*
                }
            }

            pub(crate) fn decode(
                api: ApiKey,
                version: i16,
                input: &mut Input,
            ) -> Result<Response, Malformed> {
                match api {
                    $(ApiKey::$name => Body::decode(input, version).map(Response::$name),)*
                }
            }

            pub(crate) fn encode(&self, version: i16, output: &mut Output) -> Result<(), EncodeError> {
                match self {
                    $(Response::$name(body) => encode_body(body, ApiKey::$name, version, output),)*
                }
            }
        }

        /// Random messages.
        #[cfg(test)]
        pub(crate) mod forged {
            use super::*;
            use crate::forge::{Forge, Forged};

            pub(crate) fn request(api: ApiKey, version: i16, forge: &mut Forge) -> Option<Request> {
                match api {
                    $(ApiKey::$name => Forged::forge(forge, version).map(Request::$name),)*
                }
            }

            pub(crate) fn response(api: ApiKey, version: i16, forge: &mut Forge) -> Option<Response> {
                match api {
                    $(ApiKey::$name => Forged::forge(forge, version).map(Response::$name),)*
                }
            }
        }

        $(
            impl From<$request> for Request {
                fn from(body: $request) -> Request {
                    Request::$name(body)
                }
            }

            impl From<$response> for Response {
                fn from(body: $response) -> Response {
                    Response::$name(body)
                }
            }

            impl Question for $request {
                type Answer = $response;
                const API: ApiKey = ApiKey::$name;

                fn answer(response: Response) -> Option<$response> {
                    match response {
                        Response::$name(body) => Some(body),
                        _ => None,
                    }
                }
            }
        )*
    };
}

// Name, key, messages, versions, and from which version on they are flexible.
apis! {
    Produce = 0, messages::ProduceRequest, messages::ProduceResponse, 3..=13, 9;
    Fetch = 1, messages::FetchRequest, crate::fetch::FetchResponse, 4..=18, 12;
    ListOffsets = 2, messages::ListOffsetsRequest, messages::ListOffsetsResponse, 1..=10, 6;
    Metadata = 3, messages::MetadataRequest, messages::MetadataResponse, 0..=13, 9;
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
}

impl ApiKey {
    /// The versions that are supported.
    pub fn versions(self) -> RangeInclusive<i16> {
        let supported = self.supported();
        supported.version_min..=supported.version_max
    }

    /// Whether the messages of this version have compact lengths and tagged fields.
    pub fn is_flexible(self, version: i16) -> bool {
        version >= self.supported().flexible_from
    }
}

fn encode_body(
    body: &impl Body,
    api: ApiKey,
    version: i16,
    output: &mut Output,
) -> Result<(), EncodeError> {
    body.encode(output, version)
        .map_err(|what| EncodeError::Field { api, version, what })
}

/// The answer to ApiVersions: all of [`SUPPORTED`], and the features that clients look for.
pub fn api_versions() -> ApiVersionsResponse {
    let ranges = SUPPORTED.iter().map(|supported| {
        let announced_min = match supported.api {
            ApiKey::Produce => PRODUCE_VERSION_MIN_ANNOUNCED,
            _ => supported.version_min,
        };
        ApiVersion::default()
            .with_api_key(supported.api as i16)
            .with_min_version(announced_min)
            .with_max_version(supported.version_max)
    });
    let (supported, finalized) = FEATURES.iter().map(feature).unzip();
    ApiVersionsResponse::default()
        .with_api_keys(ranges.collect())
        .with_supported_features(supported)
        .with_finalized_features(finalized)
        .with_finalized_features_epoch(0)
}

fn feature((name, level): &(&'static str, i16)) -> (SupportedFeatureKey, FinalizedFeatureKey) {
    let name = StrBytes::from_static_str(name);
    let supported = SupportedFeatureKey::default()
        .with_name(name.clone())
        // Older clients do not take a 0.
        .with_min_version(1)
        .with_max_version(*level);
    let finalized = FinalizedFeatureKey::default()
        .with_name(name)
        .with_min_version_level(*level)
        .with_max_version_level(*level);
    (supported, finalized)
}
