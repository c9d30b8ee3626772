//! Requests about groups, share groups, producers and transactions, each with its rights.

use millstream_broker::security::Operation;
use millstream_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use millstream_wire::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use millstream_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_wire::messages::*;
use millstream_wire::streams_group::StreamsGroupDescribeRequest;
use millstream_wire::{ShareAcknowledgeRequest, ShareFetchRequest, StrBytes};

use Operation::*;

use super::{CLUSTER, Case, case, group, topic, transaction};
use crate::streams;
use crate::support::{group_id, text, topic_name};

/// Requests about groups.
pub fn group_cases() -> Vec<Case> {
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
            [
                (Describe, group("g")),
                (Describe, topic("t")),
                (Describe, topic("r")),
                (Describe, topic("c")),
            ],
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
pub fn share_cases() -> Vec<Case> {
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
pub fn transaction_cases() -> Vec<Case> {
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
