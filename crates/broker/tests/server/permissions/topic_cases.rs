//! Requests about records, topics, the cluster and security, each with its rights.

use millstream_broker::security::Operation;
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
use millstream_wire::messages::incremental_alter_configs_request::AlterConfigsResource;
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use millstream_wire::messages::*;

use Operation::*;

use super::{CLUSTER, Case, case, group, topic, transaction};
use crate::support::{chunk, fetch_request, produce_request, text, topic_name};

/// Requests about records.
pub fn record_cases() -> Vec<Case> {
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
pub fn topic_cases() -> Vec<Case> {
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
    let requested =
        describe_topic_partitions_request::TopicRequest::default().with_name(topic_name("t"));
    let describe_partitions = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![requested])
        .with_response_partition_limit(10);
    vec![
        case(
            12,
            MetadataRequest::default().with_topics(Some(vec![named])),
            [(Describe, topic("t"))],
        ),
        case(
            0,
            PushTelemetryRequest::default(),
            [(Write, topic("otlp_metrics"))],
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
pub fn cluster_cases() -> Vec<Case> {
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
        case(0, UnregisterBrokerRequest::default(), [(Alter, CLUSTER)]),
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

/// Requests about security itself.
pub fn security_cases() -> Vec<Case> {
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
