//! Authorization: every request needs the same rights as in Kafka, and a refused part of a request
//! does not hold up the rest.

use bytes::Bytes;
use millstream_base::{Cursor, GroupId, Position, SegmentIndex, StreamId, StreamletIndex};
use millstream_broker::security::{Operation, Resource, ResourceType};
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::alter_client_quotas_request::{EntityData, EntryData};
use millstream_wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic,
};
use millstream_wire::messages::alter_user_scram_credentials_request::ScramCredentialDeletion;
use millstream_wire::messages::create_acls_request::AclCreation;
use millstream_wire::messages::create_partitions_request::CreatePartitionsTopic;
use millstream_wire::messages::create_topics_request::CreatableTopic;
use millstream_wire::messages::delete_acls_request::DeleteAclsFilter;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::describe_configs_request::DescribeConfigsResource;
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::incremental_alter_configs_request::AlterConfigsResource;
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_wire::messages::*;
use millstream_wire::native::*;
use millstream_wire::streams_group::StreamsGroupDescribeRequest;
use millstream_wire::{
    ApiKey, Request, ResponseError, SUPPORTED, ShareAcknowledgeRequest, ShareFetchRequest,
    StrBytes, Uuid,
};

use Operation::*;

use crate::logins::{ADMIN, guarded};
use crate::push::{lanes, of_application, subscribe_request};
use crate::streams;
use crate::support::{
    Connection, Node, ask, chunk, fetch_request, group_id, produce_request, text, topic_name,
    values,
};

const ALICE: (&str, &str) = ("alice", "alice's secret");

pub type Right<'a> = (Operation, Resource<'a>);

pub const CLUSTER: Resource<'static> = Resource::CLUSTER;

pub fn topic(name: &str) -> Resource<'_> {
    Resource::topic(name)
}

pub fn group(name: &str) -> Resource<'_> {
    Resource::group(name)
}

fn transaction(name: &str) -> Resource<'_> {
    Resource::transactional_id(name)
}

fn resource_code(kind: ResourceType) -> i8 {
    match kind {
        ResourceType::Topic => 2,
        ResourceType::Group => 3,
        ResourceType::Cluster => 4,
        ResourceType::TransactionalId => 5,
    }
}

pub fn operation_code(operation: Operation) -> i8 {
    match operation {
        All => 2,
        Read => 3,
        Write => 4,
        Create => 5,
        Delete => 6,
        Alter => 7,
        Describe => 8,
        ClusterAction => 9,
        DescribeConfigs => 10,
        AlterConfigs => 11,
        IdempotentWrite => 12,
        TwoPhaseCommit => 15,
    }
}

impl Connection {
    pub fn allow(&mut self, user: &str, (operation, resource): Right<'_>) {
        let creation = AclCreation::default()
            .with_resource_type(resource_code(resource.kind))
            .with_resource_name(text(resource.name))
            .with_resource_pattern_type(3)
            .with_principal(text(&format!("User:{user}")))
            .with_host("*".into())
            .with_operation(operation_code(operation))
            .with_permission_type(3);
        let request = CreateAclsRequest::default().with_creations(vec![creation]);
        let created = ask!(self, CreateAcls, 3, request);
        assert_eq!(created.results[0].error_code, 0, "{created:?}");
    }

    pub fn forbid_all(&mut self) {
        let filter = DeleteAclsFilter::default()
            .with_resource_type_filter(1)
            .with_resource_name_filter(None)
            .with_pattern_type_filter(1)
            .with_principal_filter(None)
            .with_host_filter(None)
            .with_operation(1)
            .with_permission_type(1);
        let request = DeleteAclsRequest::default().with_filters(vec![filter]);
        let deleted = ask!(self, DeleteAcls, 3, request);
        assert_eq!(deleted.filter_results[0].error_code, 0, "{deleted:?}");
    }
}

/// Starts a server with the user alice, too; returns her connection, and that of the super user.
pub fn two_clients() -> (Node, Connection, Connection) {
    let node = guarded();
    let mut admin = node.connect().log_in(ADMIN);
    assert_eq!(admin.set_password(ALICE), 0);
    let alice = node.connect().log_in(ALICE);
    (node, admin, alice)
}

/// A request in a version, and the rights that it needs together.
struct Case {
    version: i16,
    request: Request,
    rights: Vec<Right<'static>>,
}

fn case(version: i16, request: impl Into<Request>, rights: impl Into<Vec<Right<'static>>>) -> Case {
    Case {
        version,
        request: request.into(),
        rights: rights.into(),
    }
}

/// Requests about records.
fn record_cases() -> Vec<Case> {
    let list = ListOffsetsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![ListOffsetsPartition::default().with_timestamp(-1)]);
    let epochs = OffsetForLeaderTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions(vec![OffsetForLeaderPartition::default()]);
    let deletion = DeleteRecordsTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![DeleteRecordsPartition::default()]);
    let producers = describe_producers_request::TopicRequest::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    let transactional = produce_request("t", 0, chunk(&["x"]))
        .with_transactional_id(Some(TransactionalId("x".into())));
    vec![
        case(
            9,
            produce_request("t", 0, chunk(&["x"])),
            [(Write, topic("t"))],
        ),
        case(
            9,
            transactional,
            [(Write, transaction("x")), (Write, topic("t"))],
        ),
        case(
            0,
            DescribeProducersRequest::default().with_topics(vec![producers]),
            [(Read, topic("t"))],
        ),
        case(
            11,
            fetch_request(&[("t", 0, 0)]).with_max_wait_ms(0),
            [(Read, topic("t"))],
        ),
        case(
            7,
            ListOffsetsRequest::default().with_topics(vec![list]),
            [(Describe, topic("t"))],
        ),
        case(
            4,
            OffsetForLeaderEpochRequest::default().with_topics(vec![epochs]),
            [(Describe, topic("t"))],
        ),
        case(
            2,
            DeleteRecordsRequest::default().with_topics(vec![deletion]),
            [(Delete, topic("t"))],
        ),
    ]
}

/// Requests about topics and their settings, and the cluster's.
fn topic_cases() -> Vec<Case> {
    let named = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
    let created = |name| {
        let topic = CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(1)
            .with_replication_factor(1);
        CreateTopicsRequest::default().with_topics(vec![topic])
    };
    let deleted = DeleteTopicState::default().with_name(Some(topic_name("none")));
    let grown = CreatePartitionsTopic::default()
        .with_name(topic_name("none"))
        .with_count(2);
    let described = DescribeConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name("t".into());
    let broker = DescribeConfigsResource::default()
        .with_resource_type(4)
        .with_resource_name("1".into());
    let altered = AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name("t".into());
    let replaced = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(2)
        .with_resource_name("none".into());
    let asked =
        describe_topic_partitions_request::TopicRequest::default().with_name(topic_name("t"));
    let describe_partitions = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![asked])
        .with_response_partition_limit(10);
    vec![
        case(
            12,
            MetadataRequest::default().with_topics(Some(vec![named])),
            [(Describe, topic("t"))],
        ),
        case(0, describe_partitions, [(Describe, topic("t"))]),
        case(7, created("made"), [(Create, topic("made"))]),
        case(7, created("also-made"), [(Create, CLUSTER)]),
        case(
            6,
            DeleteTopicsRequest::default().with_topics(vec![deleted]),
            [(Delete, topic("none"))],
        ),
        case(
            5,
            DeleteTopicsRequest::default().with_topic_names(vec![topic_name("none")]),
            [(Delete, topic("none"))],
        ),
        case(
            3,
            CreatePartitionsRequest::default().with_topics(vec![grown]),
            [(Alter, topic("none"))],
        ),
        case(
            4,
            DescribeConfigsRequest::default().with_resources(vec![described]),
            [(DescribeConfigs, topic("t"))],
        ),
        case(
            4,
            DescribeConfigsRequest::default().with_resources(vec![broker]),
            [(DescribeConfigs, CLUSTER)],
        ),
        case(
            1,
            IncrementalAlterConfigsRequest::default().with_resources(vec![altered]),
            [(AlterConfigs, topic("t"))],
        ),
        case(
            2,
            AlterConfigsRequest::default().with_resources(vec![replaced]),
            [(AlterConfigs, topic("none"))],
        ),
        case(
            4,
            DescribeLogDirsRequest::default().with_topics(None),
            [(Describe, CLUSTER)],
        ),
    ]
}

/// Requests about the cluster, and about settings of resources other than topics.
fn cluster_cases() -> Vec<Case> {
    let described = |kind: i8, name: &str| {
        let resource = DescribeConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name));
        DescribeConfigsRequest::default().with_resources(vec![resource])
    };
    let altered = |kind: i8, name: &str| {
        let resource = AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name));
        IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
    };
    let moved = AlterReplicaLogDirTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![0]);
    let dir = AlterReplicaLogDir::default()
        .with_path(text("/"))
        .with_topics(vec![moved]);
    let quota = EntryData::default().with_entity(vec![
        EntityData::default()
            .with_entity_type(text("user"))
            .with_entity_name(Some(text("bob"))),
    ]);
    let deleted_user = ScramCredentialDeletion::default()
        .with_name(text("bob"))
        .with_mechanism(1);
    vec![
        case(4, described(8, "1"), [(DescribeConfigs, CLUSTER)]),
        case(4, described(16, "m"), [(DescribeConfigs, CLUSTER)]),
        case(4, described(32, "g"), [(DescribeConfigs, group("g"))]),
        case(1, altered(4, "1"), [(AlterConfigs, CLUSTER)]),
        case(1, altered(8, "1"), [(AlterConfigs, CLUSTER)]),
        case(1, altered(16, "m"), [(AlterConfigs, CLUSTER)]),
        case(1, altered(32, "g"), [(AlterConfigs, group("g"))]),
        case(
            1,
            ListConfigResourcesRequest::default(),
            [(DescribeConfigs, CLUSTER)],
        ),
        case(
            2,
            ElectLeadersRequest::default().with_topic_partitions(None),
            [(Alter, CLUSTER)],
        ),
        case(
            1,
            AlterPartitionReassignmentsRequest::default(),
            [(Alter, CLUSTER)],
        ),
        case(
            0,
            ListPartitionReassignmentsRequest::default().with_topics(None),
            [(Describe, CLUSTER)],
        ),
        case(2, DescribeQuorumRequest::default(), [(Describe, CLUSTER)]),
        case(2, UpdateFeaturesRequest::default(), [(Alter, CLUSTER)]),
        case(
            2,
            AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]),
            [(Alter, CLUSTER)],
        ),
        case(
            1,
            AlterClientQuotasRequest::default().with_entries(vec![quota]),
            [(AlterConfigs, CLUSTER)],
        ),
        case(
            0,
            AlterUserScramCredentialsRequest::default().with_deletions(vec![deleted_user]),
            [(Alter, CLUSTER)],
        ),
    ]
}

/// Requests about groups.
fn group_cases() -> Vec<Case> {
    let commit = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![OffsetCommitRequestPartition::default()]);
    let deleted = OffsetDeleteRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![OffsetDeleteRequestPartition::default()]);
    let fetched = OffsetFetchRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(Some(vec![
            OffsetFetchRequestTopics::default()
                .with_name(topic_name("t"))
                .with_partition_indexes(vec![0]),
        ]));
    let heartbeat = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("next"))
        .with_member_id("m".into())
        .with_member_epoch(-1)
        .with_subscribed_topic_names(Some(vec![topic_name("t")]));
    let coordinator = FindCoordinatorRequest::default();
    let coordinators = coordinator.clone().with_coordinator_keys(vec!["g".into()]);
    let of_transaction = coordinator.clone().with_key_type(1).with_key("x".into());
    vec![
        case(
            9,
            JoinGroupRequest::default()
                .with_group_id(group_id("g"))
                .with_session_timeout_ms(30_000)
                .with_protocol_type("consumer".into()),
            [(Read, group("g"))],
        ),
        case(
            5,
            SyncGroupRequest::default().with_group_id(group_id("g")),
            [(Read, group("g"))],
        ),
        case(
            4,
            HeartbeatRequest::default().with_group_id(group_id("g")),
            [(Read, group("g"))],
        ),
        case(
            5,
            LeaveGroupRequest::default().with_group_id(group_id("g")),
            [(Read, group("g"))],
        ),
        case(
            1,
            heartbeat,
            [(Read, group("next")), (Describe, topic("t"))],
        ),
        case(
            8,
            OffsetCommitRequest::default()
                .with_group_id(group_id("g"))
                .with_generation_id_or_member_epoch(-1)
                .with_topics(vec![commit]),
            [(Read, group("g")), (Read, topic("t"))],
        ),
        case(
            9,
            OffsetFetchRequest::default().with_groups(vec![fetched]),
            [(Describe, group("g")), (Describe, topic("t"))],
        ),
        case(
            5,
            OffsetFetchRequest::default()
                .with_group_id(group_id("g"))
                .with_topics(None),
            [(Describe, group("g"))],
        ),
        case(
            0,
            OffsetDeleteRequest::default()
                .with_group_id(group_id("g"))
                .with_topics(vec![deleted]),
            [(Delete, group("g")), (Read, topic("t"))],
        ),
        case(
            5,
            DescribeGroupsRequest::default().with_groups(vec![group_id("g")]),
            [(Describe, group("g"))],
        ),
        case(
            1,
            ConsumerGroupDescribeRequest::default().with_group_ids(vec![group_id("g")]),
            [(Describe, group("g"))],
        ),
        case(
            0,
            streams::joining(),
            [
                (Read, group("g")),
                (Describe, topic("t")),
                (Describe, topic("r")),
                (Describe, topic("c")),
            ],
        ),
        case(
            0,
            StreamsGroupDescribeRequest {
                group_ids: vec![text("g")],
                include_authorized_operations: false,
            },
            [(Describe, group("g"))],
        ),
        case(
            2,
            DeleteGroupsRequest::default().with_groups_names(vec![group_id("none")]),
            [(Delete, group("none"))],
        ),
        case(
            3,
            coordinator.with_key("g".into()),
            [(Describe, group("g"))],
        ),
        case(4, coordinators, [(Describe, group("g"))]),
        case(3, of_transaction, [(Describe, transaction("x"))]),
    ]
}

/// Requests about share groups.
fn share_cases() -> Vec<Case> {
    let heartbeat = ShareGroupHeartbeatRequest::default()
        .with_group_id(group_id("shared"))
        .with_member_id("m".into())
        .with_member_epoch(-1)
        .with_subscribed_topic_names(Some(vec![topic_name("t")]));
    let described = DescribeShareGroupOffsetsRequestGroup::default()
        .with_group_id(group_id("shared"))
        .with_topics(None);
    let coordinator = FindCoordinatorRequest::default()
        .with_key_type(2)
        .with_coordinator_keys(vec!["shared".into()]);
    vec![
        case(
            1,
            heartbeat,
            [(Read, group("shared")), (Describe, topic("t"))],
        ),
        case(
            1,
            ShareGroupDescribeRequest::default().with_group_ids(vec![group_id("shared")]),
            [(Describe, group("shared"))],
        ),
        case(
            1,
            ShareFetchRequest {
                group_id: Some(group_id("shared")),
                member_id: Some("m".into()),
                ..ShareFetchRequest::default()
            },
            [(Read, group("shared"))],
        ),
        case(
            1,
            ShareAcknowledgeRequest {
                group_id: Some(group_id("shared")),
                member_id: Some("m".into()),
                ..ShareAcknowledgeRequest::default()
            },
            [(Read, group("shared"))],
        ),
        case(
            0,
            DescribeShareGroupOffsetsRequest::default().with_groups(vec![described]),
            [(Describe, group("shared"))],
        ),
        case(
            0,
            AlterShareGroupOffsetsRequest::default().with_group_id(group_id("shared")),
            [(Read, group("shared"))],
        ),
        case(
            0,
            DeleteShareGroupOffsetsRequest::default().with_group_id(group_id("shared")),
            [(Delete, group("shared"))],
        ),
        case(6, coordinator, [(ClusterAction, CLUSTER)]),
    ]
}

/// Requests about producers and transactions.
fn transaction_cases() -> Vec<Case> {
    let id = || TransactionalId(StrBytes::from_static_str("x"));
    let added = AddPartitionsToTxnTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![0]);
    let committed = TxnOffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![TxnOffsetCommitRequestPartition::default()]);
    let marked = write_txn_markers_request::WritableTxnMarkerTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    let marker = write_txn_markers_request::WritableTxnMarker::default().with_topics(vec![marked]);
    let aborted = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    vec![
        case(
            4,
            InitProducerIdRequest::default().with_transactional_id(None),
            [(IdempotentWrite, CLUSTER)],
        ),
        case(
            4,
            InitProducerIdRequest::default().with_transactional_id(None),
            [(Write, topic("any"))],
        ),
        case(
            4,
            InitProducerIdRequest::default()
                .with_transactional_id(Some(id()))
                .with_transaction_timeout_ms(1000),
            [(Write, transaction("x"))],
        ),
        case(
            6,
            InitProducerIdRequest::default()
                .with_transactional_id(Some(id()))
                .with_enable_2_pc(true),
            [
                (Write, transaction("x")),
                (TwoPhaseCommit, transaction("x")),
            ],
        ),
        case(
            3,
            AddPartitionsToTxnRequest::default()
                .with_v3_and_below_transactional_id(id())
                .with_v3_and_below_topics(vec![added]),
            [(Write, transaction("x")), (Write, topic("t"))],
        ),
        case(
            3,
            AddOffsetsToTxnRequest::default()
                .with_transactional_id(id())
                .with_group_id(group_id("g")),
            [(Write, transaction("x")), (Read, group("g"))],
        ),
        case(
            3,
            TxnOffsetCommitRequest::default()
                .with_transactional_id(id())
                .with_group_id(group_id("g"))
                .with_topics(vec![committed]),
            [
                (Write, transaction("x")),
                (Read, group("g")),
                (Read, topic("t")),
            ],
        ),
        case(
            3,
            EndTxnRequest::default().with_transactional_id(id()),
            [(Write, transaction("x"))],
        ),
        case(1, aborted.clone(), [(Alter, CLUSTER)]),
        case(1, aborted, [(ClusterAction, CLUSTER)]),
        case(
            0,
            DescribeTransactionsRequest::default().with_transactional_ids(vec![id()]),
            [(Describe, transaction("x"))],
        ),
    ]
}

/// Requests about security itself.
fn security_cases() -> Vec<Case> {
    vec![
        case(
            3,
            DescribeAclsRequest::default()
                .with_resource_type_filter(1)
                .with_pattern_type_filter(1)
                .with_operation(1)
                .with_permission_type(1),
            [(Describe, CLUSTER)],
        ),
        case(
            3,
            CreateAclsRequest::default().with_creations(vec![AclCreation::default()]),
            [(Alter, CLUSTER)],
        ),
        case(
            3,
            DeleteAclsRequest::default().with_filters(vec![DeleteAclsFilter::default()]),
            [(Alter, CLUSTER)],
        ),
        case(
            0,
            DescribeUserScramCredentialsRequest::default(),
            [(Describe, CLUSTER)],
        ),
        case(
            1,
            DescribeClientQuotasRequest::default(),
            [(DescribeConfigs, CLUSTER)],
        ),
    ]
}

/// Native requests about stream `t`, with this id.
fn native_cases(stream: StreamId) -> Vec<Case> {
    let (streamlet, group_of_segments) = (StreamletIndex(0), GroupId(0));
    let cursor = Cursor {
        stream,
        streamlet,
        group: group_of_segments,
        segment: SegmentIndex(0),
        position: Position(0),
    };
    let name = || StrBytes::from_static_str("t");
    let application = || StrBytes::from_static_str("g");
    let consumer = || StrBytes::from_static_str("c");
    let created = CreateStreamRequest {
        name: "made-natively".into(),
        settings: StreamSettings::default(),
        or_existing: true,
    };
    let named = DescribeStreamRequest {
        name: Some(name()),
        stream: StreamId(0),
        with_lanes: false,
    };
    let by_id = DescribeStreamRequest {
        name: None,
        stream,
        ..named.clone()
    };
    let grown = GrowStreamRequest {
        name: name(),
        streamlets: 1,
        lanes: 1,
    };
    let deleted = DeleteStreamRequest {
        name: "none".into(),
    };
    let chunks = Vec::new();
    let read = ReadChunksRequest {
        cursors: vec![cursor],
        bytes_max: 1,
        bytes_min: 0,
        wait_ms_max: 0,
    };
    let next = NextGroupsRequest {
        stream,
        streamlet,
        shared_group: application(),
        consumer: consumer(),
        groups_max: 1,
    };
    let committed = CommitCursorsRequest {
        shared_group: application(),
        consumer: consumer(),
        cursors: vec![cursor],
    };
    let released = ReleaseGroupsRequest {
        stream,
        shared_group: application(),
        consumer: consumer(),
    };
    let segments = AvailableSegmentsRequest {
        stream,
        streamlet,
        group: group_of_segments,
    };
    let next_segments = NextSegmentsRequest {
        stream,
        streamlet,
        group: group_of_segments,
        from: SegmentIndex(0),
        segments_max: 1,
    };
    let put = PutObjectRequest {
        name: "o".into(),
        start: 0,
        content: Bytes::from_static(b"content"),
        is_last: true,
    };
    let got = GetObjectRequest {
        name: "o".into(),
        start: 0,
        bytes_max: 10,
    };
    let groups = AvailableGroupsRequest { stream, streamlet };
    let object_deleted = DeleteObjectRequest { name: "o".into() };
    vec![
        case(0, created, [(Create, topic("made-natively"))]),
        case(0, named, [(Describe, topic("t"))]),
        case(0, by_id, [(Describe, topic("t"))]),
        case(0, grown, [(Alter, topic("t"))]),
        case(0, deleted, [(Delete, topic("none"))]),
        case(
            0,
            WriteChunksRequest { stream, chunks },
            [(Write, topic("t"))],
        ),
        case(0, read, [(Read, topic("t"))]),
        case(0, next, [(Read, group("g")), (Read, topic("t"))]),
        case(0, committed, [(Read, group("g")), (Read, topic("t"))]),
        case(0, released, [(Read, group("g")), (Read, topic("t"))]),
        case(0, groups, [(Describe, topic("t"))]),
        case(0, segments, [(Describe, topic("t"))]),
        case(0, next_segments, [(Describe, topic("t"))]),
        case(0, put, [(Write, topic("o"))]),
        case(0, got, [(Read, topic("o"))]),
        case(0, object_deleted, [(Delete, topic("o"))]),
        case(
            0,
            subscribe_request(vec![lanes(&[(0, 0)])]),
            [(Read, topic("t"))],
        ),
        case(
            0,
            subscribe_request(vec![of_application("g", "one")]),
            [(Read, group("g")), (Read, topic("t"))],
        ),
    ]
}

/// Returns whether an answer says that something is not allowed.
fn is_denied(response: &impl std::fmt::Debug) -> bool {
    let response = format!("{response:?}");
    [
        ResponseError::TopicAuthorizationFailed,
        ResponseError::GroupAuthorizationFailed,
        ResponseError::ClusterAuthorizationFailed,
        ResponseError::TransactionalIdAuthorizationFailed,
        // Streams that are named by an id get the same answers.
        ResponseError::UnknownTopicId,
    ]
    .iter()
    .any(|error| response.contains(&format!("error_code: {},", error.code())))
}

/// Requests that every client may send. The answers of those that list something leave out all that the client may not
/// know of.
const WITHOUT_RIGHTS: [ApiKey; 11] = [
    // The rights are those of its subscription: see the tests of push.
    ApiKey::Receive,
    ApiKey::ApiVersions,
    ApiKey::DescribeCluster,
    ApiKey::SaslHandshake,
    ApiKey::SaslAuthenticate,
    ApiKey::LocalSocket,
    ApiKey::Unsubscribe,
    ApiKey::ListGroups,
    ApiKey::ListTransactions,
    ApiKey::ListStreams,
    ApiKey::ListObjects,
];

#[test]
fn every_request_needs_each_of_its_rights() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    let stream = node.log().stream("t").unwrap().id();
    let cases = [
        record_cases(),
        topic_cases(),
        cluster_cases(),
        group_cases(),
        share_cases(),
        transaction_cases(),
        security_cases(),
        native_cases(stream),
    ];
    let cases: Vec<Case> = cases.into_iter().flatten().collect();
    let is_tested = |api: ApiKey| {
        let has_case = cases.iter().any(|case| case.request.api() == api);
        has_case != WITHOUT_RIGHTS.contains(&api)
    };
    let apis = SUPPORTED.iter().map(|supported| supported.api);
    let untested: Vec<ApiKey> = apis.filter(|api| !is_tested(*api)).collect();
    assert_eq!(untested, [], "each request has a case, or needs no rights");
    for case in cases {
        let (request, rights) = (&case.request, &case.rights);
        // Without any right, and with all but one.
        for missing in 0..rights.len() {
            for (number, right) in rights.iter().enumerate() {
                if number != missing {
                    admin.allow("alice", *right);
                }
            }
            let response = alice.ask(case.version, request.clone());
            assert!(is_denied(&response), "{:?}: {response:?}", request.api());
            admin.forbid_all();
        }
        rights.iter().for_each(|right| admin.allow("alice", *right));
        let response = alice.ask(case.version, request.clone());
        assert!(!is_denied(&response), "{:?}: {response:?}", request.api());
        admin.forbid_all();
    }
}

/// Requests about a topic by its id, and about a stream by its id.
fn cases_by_id(topic_id: Uuid, stream: StreamId) -> Vec<Case> {
    let mut produced = produce_request("", 0, chunk(&["value"]));
    produced.topic_data[0].topic_id = topic_id;
    let mut fetched = fetch_request(&[("", 0, 0)]).with_max_wait_ms(0);
    fetched.topics[0].topic_id = topic_id;
    let asked = MetadataRequestTopic::default()
        .with_topic_id(topic_id)
        .with_name(None);
    let metadata = MetadataRequest::default().with_topics(Some(vec![asked]));
    let deleted = DeleteTopicState::default()
        .with_topic_id(topic_id)
        .with_name(None);
    let deleted = DeleteTopicsRequest::default().with_topics(vec![deleted]);
    let mut cases = vec![
        case(13, produced, [(Write, topic("t"))]),
        case(13, fetched, [(Read, topic("t"))]),
        case(12, metadata, [(Describe, topic("t"))]),
        case(6, deleted, [(Delete, topic("t"))]),
    ];
    let natively = native_cases(stream).into_iter();
    cases.extend(natively.filter(|case| match &case.request {
        Request::DescribeStream(request) => request.name.is_none(),
        Request::WriteChunks(_)
        | Request::ReadChunks(_)
        | Request::NextGroups(_)
        | Request::CommitCursors(_)
        | Request::ReleaseGroups(_)
        | Request::AvailableGroups(_)
        | Request::AvailableSegments(_)
        | Request::NextSegments(_) => true,
        _ => false,
    }));
    cases
}

#[test]
fn no_answer_tells_which_ids_exist() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    admin.produce("t", 0, &["old"]);
    let stream = node.log().stream("t").unwrap();
    let ledger = node.log().stream("__security").unwrap();
    let (unknown_topic, unknown_stream) = (Uuid::from_u128(77), StreamId(77_777));
    let real = [stream, ledger].map(|stream| (stream.uuid(), stream.id()));
    for (topic_id, stream_id) in real {
        let there = cases_by_id(topic_id, stream_id);
        let missing = cases_by_id(unknown_topic, unknown_stream);
        for (there, missing) in there.into_iter().zip(missing) {
            let needs_group = there.rights.contains(&(Read, group("g")));
            if needs_group {
                admin.allow("alice", (Read, group("g")));
            }
            let api = there.request.api();
            let [there, missing] = [there, missing].map(|case| {
                let response = alice.ask(case.version, case.request);
                format!("{response:?}")
            });
            assert!(missing.contains("error_code: 100,"), "{api:?}: {missing}");
            let missing = missing
                .replace(&unknown_topic.to_string(), &topic_id.to_string())
                .replace(&format!("{unknown_stream:?}"), &format!("{stream_id:?}"));
            assert_eq!(there, missing, "{api:?}");
            admin.forbid_all();
        }
    }
    // It may know of the topic, and not use it.
    let (topic_id, stream_id) = real[0];
    for case in cases_by_id(topic_id, stream_id) {
        if case.rights.contains(&(Describe, topic("t"))) {
            continue;
        }
        admin.allow("alice", (Read, group("g")));
        admin.allow("alice", (Describe, topic("t")));
        let response = format!("{:?}", alice.ask(case.version, case.request));
        assert!(response.contains("error_code: 29,"), "{response}");
        admin.forbid_all();
    }
}

#[test]
fn cursors_in_unknown_streams_do_not_hold_up_the_others() {
    let (node, mut admin, mut alice) = two_clients();
    let cursors = ["mine", "others"].map(|name| {
        admin.create_topic(name, 1);
        admin.produce(name, 0, &["value"]);
        let stream = node.log().stream(name).unwrap();
        let streamlet = StreamletIndex(0);
        let (first, _) = stream.available_groups(streamlet).unwrap().unwrap();
        stream.segment_cursor(streamlet, first, SegmentIndex(0))
    });
    let [mine, others] = cursors.map(Result::unwrap);
    let missing = Cursor {
        stream: StreamId(77_777),
        ..mine
    };
    admin.allow("alice", (Read, topic("mine")));
    let request = ReadChunksRequest {
        cursors: vec![others, mine, missing, mine, others],
        bytes_max: 1 << 20,
        bytes_min: 1 << 20,
        // No request waits for that: the unknown ones are answered at once.
        wait_ms_max: 3_600_000,
    };
    let read = ask!(alice, ReadChunks, 0, request);
    let answers = read.reads.iter();
    let answers = answers.map(|read| (read.error_code, read.next.stream, read.chunks.0.is_empty()));
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [
            (100, others.stream, true),
            (0, mine.stream, false),
            (100, missing.stream, true),
            (0, mine.stream, false),
            (100, others.stream, true),
        ]
    );
}

#[test]
fn a_topic_is_not_deleted_by_name_with_the_right_to_another_id() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("mine", 1);
    admin.create_topic("others", 1);
    admin.allow("alice", (Delete, topic("mine")));
    let both = DeleteTopicState::default()
        .with_name(Some(topic_name("others")))
        .with_topic_id(node.log().stream("mine").unwrap().uuid());
    let request = DeleteTopicsRequest::default().with_topics(vec![both]);
    let deleted = ask!(alice, DeleteTopics, 6, request);
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(deleted.responses[0].error_code, invalid);
    assert!(node.log().stream("others").is_ok());
    assert!(node.log().stream("mine").is_ok());
}

#[test]
fn what_may_be_done_of_a_request_is_done() {
    let (_node, mut admin, mut alice) = two_clients();
    for name in ["mine", "others"] {
        admin.create_topic(name, 1);
        admin.produce(name, 0, &["old"]);
    }
    admin.allow("alice", (Read, topic("mine")));
    admin.allow("alice", (Write, topic("mine")));
    let denied = ResponseError::TopicAuthorizationFailed.code();

    let mut request = produce_request("others", 0, chunk(&["new"]));
    let mine = produce_request("mine", 0, chunk(&["new"]));
    request.topic_data.extend(mine.topic_data);
    let produced = ask!(alice, Produce, 9, request.clone());
    let answers = produced.responses.iter();
    let mut errors: Vec<(String, i16)> = answers
        .map(|topic| {
            (
                topic.name.to_string(),
                topic.partition_responses[0].error_code,
            )
        })
        .collect();
    errors.sort();
    assert_eq!(errors, [("mine".into(), 0), ("others".into(), denied)]);

    let fetched = ask!(
        alice,
        Fetch,
        11,
        fetch_request(&[("others", 0, 0), ("mine", 0, 0)])
    );
    let partition = |topic: usize| &fetched.topics[topic].partitions[0];
    assert_eq!(
        (partition(0).error_code, partition(0).records.len()),
        (denied, 0)
    );
    assert_eq!(values(partition(1)), ["old", "new"]);

    // A list of everything shows only the topics that she may know of.
    let request = MetadataRequest::default().with_topics(None);
    let metadata = ask!(alice, Metadata, 12, request);
    let names = metadata
        .topics
        .iter()
        .map(|topic| topic.name.clone().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), [topic_name("mine")]);

    // Without an answer, closing the connection is the only way to report the error.
    let request = produce_request("others", 0, chunk(&["new"])).with_acks(0);
    alice.send(9, request);
    assert!(alice.receive_frame().is_none());
    assert_eq!(values(&admin.fetch("others", 0, 0)), ["old"]);
}

#[test]
fn topics_without_permission_are_not_made_by_asking_for_them() {
    let (node, mut admin, mut alice) = two_clients();
    admin.allow("alice", (Describe, topic("wanted")));
    let named = MetadataRequestTopic::default().with_name(Some(topic_name("wanted")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![named]))
        .with_allow_auto_topic_creation(true);
    let denied = ResponseError::TopicAuthorizationFailed.code();
    let metadata = ask!(alice, Metadata, 12, request.clone());
    assert_eq!(metadata.topics[0].error_code, denied);
    assert!(node.log().stream("wanted").is_err());
    admin.allow("alice", (Create, topic("wanted")));
    let metadata = ask!(alice, Metadata, 12, request);
    assert_eq!(metadata.topics[0].error_code, 0);
}

#[test]
fn a_fetch_session_ends_where_the_permission_ends() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    admin.produce("t", 0, &["one"]);
    admin.allow("alice", (Read, topic("t")));
    let request = fetch_request(&[("t", 0, 0)]).with_session_epoch(0);
    let fetched = ask!(alice, Fetch, 11, request);
    assert_eq!(values(&fetched.topics[0].partitions[0]), ["one"]);
    admin.forbid_all();
    let again = fetch_request(&[])
        .with_max_wait_ms(0)
        .with_session_id(fetched.session_id)
        .with_session_epoch(1);
    let fetched = ask!(alice, Fetch, 11, again.clone());
    let partition = &fetched.topics[0].partitions[0];
    let denied = ResponseError::TopicAuthorizationFailed.code();
    assert_eq!((partition.error_code, partition.records.len()), (denied, 0));
    admin.allow("alice", (Read, topic("t")));
    let fetched = ask!(alice, Fetch, 11, again.with_session_epoch(2));
    assert_eq!(values(&fetched.topics[0].partitions[0]), ["one"]);
}

#[test]
fn lists_show_only_what_one_may_know_of() {
    let (_node, mut admin, mut alice) = two_clients();
    for name in ["mine", "others"] {
        admin.create_topic(name, 1);
        let commit = OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![OffsetCommitRequestPartition::default()]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id(name))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![commit]);
        ask!(admin, OffsetCommit, 8, request);
    }
    let groups = |client: &mut Connection| -> Vec<String> {
        let listed = ask!(client, ListGroups, 5, ListGroupsRequest::default());
        let names = listed.groups.iter().map(|group| group.group_id.to_string());
        names.collect()
    };
    let streams = |client: &mut Connection| -> Vec<String> {
        let request = ListStreamsRequest {
            prefix: "".into(),
            after: None,
            streams_max: 10,
        };
        let listed = ask!(client, ListStreams, 0, request);
        listed
            .streams
            .iter()
            .map(|stream| stream.name.to_string())
            .collect()
    };
    assert_eq!((groups(&mut alice), streams(&mut alice)), (vec![], vec![]));
    admin.allow("alice", (Describe, group("mine")));
    admin.allow("alice", (Describe, topic("mine")));
    assert_eq!(groups(&mut alice), ["mine"]);
    assert_eq!(streams(&mut alice), ["mine"]);
    admin.allow("alice", (Describe, CLUSTER));
    assert_eq!(groups(&mut alice).len(), 2);
}

#[test]
fn a_regular_expression_of_a_group_finds_what_its_member_may_know_of() {
    let (node, mut admin, mut alice) = two_clients();
    for name in ["log-mine", "log-others"] {
        admin.create_topic(name, 1);
    }
    let id = |name| node.log().stream(name).unwrap().uuid();
    let (mine, others) = (id("log-mine"), id("log-others"));
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Describe, topic("log-mine")));
    let joining = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id("m".into())
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_regex(Some("log-.*".into()))
        .with_topic_partitions(Some(Vec::new()));
    let joined = ask!(alice, ConsumerGroupHeartbeat, 1, joining.clone());
    assert_eq!(joined.error_code, 0, "{joined:?}");
    let topics = |assignment: Option<consumer_group_heartbeat_response::Assignment>| {
        let topics = assignment.unwrap_or_default().topic_partitions;
        topics
            .iter()
            .map(|topic| topic.topic_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(topics(joined.assignment), [mine]);

    admin.allow("alice", (Describe, topic("log-others")));
    let mut epoch = joined.member_epoch;
    let mut beat = |owned: &[Uuid]| {
        let owned = owned.iter().map(|id| {
            consumer_group_heartbeat_request::TopicPartitions::default()
                .with_topic_id(*id)
                .with_partitions(vec![0])
        });
        let request = joining
            .clone()
            .with_member_epoch(epoch)
            .with_topic_partitions(Some(owned.collect()));
        let beat = ask!(alice, ConsumerGroupHeartbeat, 1, request);
        assert_eq!(beat.error_code, 0, "{beat:?}");
        epoch = beat.member_epoch;
        let mut topics = topics(beat.assignment);
        topics.sort();
        topics
    };
    let mut both = [mine, others];
    both.sort();
    assert_eq!(beat(&[mine]), both);
    admin.forbid_all();
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Describe, topic("log-others")));
    assert_eq!(beat(&both), [others]);
}

#[test]
fn rules_last() {
    let (node, mut admin, _) = two_clients();
    admin.create_topic("t", 1);
    admin.allow("alice", (Write, topic("t")));
    let node = Node::on(node.stop(), |_| {}, crate::logins::guard);
    let mut alice = node.connect().log_in(ALICE);
    alice.produce("t", 0, &["x"]);
}
