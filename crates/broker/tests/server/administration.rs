//! Requests of administrators, as one broker answers them: elections, reassignments, folders,
//! quorum, features, and Kafka's internal topics.

use std::collections::BTreeSet;

use millstream_wire::messages::alter_partition_reassignments_request::{
    ReassignablePartition, ReassignableTopic,
};
use millstream_wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic,
};
use millstream_wire::messages::create_topics_request::CreatableTopic;
use millstream_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use millstream_wire::messages::delete_topics_request::DeleteTopicState;
use millstream_wire::messages::describe_quorum_request::{PartitionData, TopicData};
use millstream_wire::messages::elect_leaders_request::TopicPartitions;
use millstream_wire::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::update_features_request::FeatureUpdateKey;
use millstream_wire::messages::{
    AlterPartitionReassignmentsRequest, AlterReplicaLogDirsRequest, BrokerId,
    ConsumerGroupHeartbeatRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
    DescribeQuorumRequest, DescribeTopicPartitionsRequest, ElectLeadersRequest, GroupId,
    ListOffsetsRequest, ListPartitionReassignmentsRequest, MetadataRequest, OffsetCommitRequest,
    UnregisterBrokerRequest, UpdateFeaturesRequest,
};
use millstream_wire::{ApiKey, MetadataTopic, ResponseError, Uuid};

use crate::support::{Connection, Node, ask, chunk, produce_request, text, topic_name};

/// The id of the broker of these tests, and one that does not exist.
const ID: BrokerId = BrokerId(1);
const OTHER: BrokerId = BrokerId(9);

/// The topic in which Kafka stores committed offsets.
const OFFSETS: &str = "__consumer_offsets";

#[test]
fn no_election_is_needed_where_one_broker_leads_all() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 2);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let not_needed = ResponseError::ElectionNotNeeded.code();
    for version in ApiKey::ElectLeaders.versions() {
        let requested = [("t", vec![0, 1, 9]), ("u", vec![0])].map(|(topic, partitions)| {
            TopicPartitions::default()
                .with_topic(topic_name(topic))
                .with_partitions(partitions)
        });
        let some = ElectLeadersRequest::default().with_topic_partitions(Some(requested.to_vec()));
        let elected = ask!(client, ElectLeaders, version, some);
        assert_eq!(elected.error_code, 0);
        let results = elected.replica_election_results.iter();
        let codes = results.flat_map(|topic| &topic.partition_result);
        let codes: Vec<i16> = codes.map(|partition| partition.error_code).collect();
        assert_eq!(codes, [not_needed, not_needed, unknown, unknown]);
        // Of all partitions, the answer names only those that need an election.
        let all = ElectLeadersRequest::default().with_topic_partitions(None);
        let elected = ask!(client, ElectLeaders, version, all);
        assert_eq!(
            (elected.error_code, elected.replica_election_results.len()),
            (0, 0)
        );
    }
    let other = ElectLeadersRequest::default().with_election_type(7);
    let refused = ask!(client, ElectLeaders, 2, other);
    assert_eq!(refused.error_code, ResponseError::InvalidRequest.code());
}

#[test]
fn replicas_cannot_be_reassigned() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let mut reassign = |topic: &str, partition: i32, replicas: Option<Vec<BrokerId>>| {
        let partition = ReassignablePartition::default()
            .with_partition_index(partition)
            .with_replicas(replicas);
        let topic = ReassignableTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let request = AlterPartitionReassignmentsRequest::default().with_topics(vec![topic]);
        let response = ask!(client, AlterPartitionReassignments, 1, request);
        assert_eq!(response.error_code, 0);
        response.responses[0].partitions[0].error_code
    };
    let invalid = ResponseError::InvalidReplicaAssignment.code();
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let idle = ResponseError::NoReassignmentInProgress.code();
    assert_eq!(reassign("t", 0, Some(vec![ID])), 0);
    assert_eq!(reassign("t", 0, Some(vec![OTHER])), invalid);
    assert_eq!(reassign("t", 0, Some(vec![ID, OTHER])), invalid);
    assert_eq!(reassign("t", 0, Some(vec![ID, ID])), invalid);
    assert_eq!(reassign("t", 0, Some(vec![])), invalid);
    assert_eq!(reassign("t", 0, None), idle);
    assert_eq!(reassign("t", 9, Some(vec![ID])), unknown);
    assert_eq!(reassign("u", 0, None), unknown);

    let list = ListPartitionReassignmentsRequest::default().with_topics(None);
    let listed = ask!(client, ListPartitionReassignments, 0, list);
    assert_eq!((listed.error_code, listed.topics.len()), (0, 0));

    let data = node.log().dir().display().to_string();
    let mut move_to = |path: &str, topic: &str, partition: i32| {
        let topic = AlterReplicaLogDirTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition]);
        let dir = AlterReplicaLogDir::default()
            .with_path(text(path))
            .with_topics(vec![topic]);
        let request = AlterReplicaLogDirsRequest::default().with_dirs(vec![dir]);
        let moved = ask!(client, AlterReplicaLogDirs, 2, request);
        moved.results[0].partitions[0].error_code
    };
    let no_folder = ResponseError::LogDirNotFound.code();
    assert_eq!(move_to(&data, "t", 0), 0);
    assert_eq!(move_to(&data, "t", 9), unknown);
    assert_eq!(move_to(&data, "u", 0), unknown);
    assert_eq!(move_to("/nope", "t", 0), no_folder);
    assert_eq!(move_to("/nope", "u", 0), no_folder);
}

#[test]
fn the_node_is_its_own_quorum() {
    let node = Node::start();
    let mut client = node.connect();
    for version in ApiKey::DescribeQuorum.versions() {
        let topic = |name: &str, partition: i32| {
            let partition = PartitionData::default().with_partition_index(partition);
            TopicData::default()
                .with_topic_name(topic_name(name))
                .with_partitions(vec![partition])
        };
        let topics = vec![topic("__cluster_metadata", 0), topic("t", 0)];
        let request = DescribeQuorumRequest::default().with_topics(topics);
        let response = ask!(client, DescribeQuorum, version, request);
        assert_eq!(response.error_code, 0);
        let metadata = &response.topics[0].partitions[0];
        assert_eq!((metadata.error_code, metadata.leader_id), (0, ID));
        assert!(
            metadata.high_watermark > 0,
            "the catalog has the topics made so far"
        );
        assert_eq!(metadata.current_voters.len(), 1);
        assert_eq!(metadata.current_voters[0].replica_id, ID);
        assert_eq!(metadata.observers.len(), 0);
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        assert_eq!(response.topics[1].partitions[0].error_code, unknown);
        let ports: Vec<u16> = response
            .nodes
            .iter()
            .map(|node| node.listeners[0].port)
            .collect();
        let expected = (version >= 2).then(|| node.address().port());
        assert_eq!(ports, Vec::from_iter(expected), "version {version}");
    }
}

#[test]
fn the_only_broker_cannot_be_unregistered() {
    let node = Node::start();
    let mut client = node.connect();
    let mut unregister = |id: BrokerId| {
        let request = UnregisterBrokerRequest::default().with_broker_id(id);
        let refused = ask!(client, UnregisterBroker, 0, request);
        (
            refused.error_code,
            refused.error_message.unwrap().to_string(),
        )
    };
    let (code, why) = unregister(BrokerId(7));
    assert_eq!(code, ResponseError::BrokerIdNotRegistered.code());
    assert_eq!(why, "there is no broker 7: the only one is 1");
    let (code, why) = unregister(ID);
    assert_eq!(code, ResponseError::InvalidRequest.code());
    assert!(why.ends_with("stop the server instead"), "{why}");
    client.create_topic("t", 1);
}

#[test]
fn a_regular_expression_of_a_group_matches_the_topic_of_committed_offsets() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let id = |name| node.log().stream(name).unwrap().uuid();
    for (regex, expected) in [
        (".*", BTreeSet::from([id("t"), id(OFFSETS)])),
        ("t", BTreeSet::from([id("t")])),
    ] {
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(GroupId(text(regex)))
            .with_member_id(text("m"))
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_regex(Some(text(regex)))
            .with_topic_partitions(Some(Vec::new()));
        let joined = ask!(client, ConsumerGroupHeartbeat, 1, request);
        assert_eq!(joined.error_code, 0, "{joined:?}");
        let assigned = joined.assignment.unwrap().topic_partitions;
        let assigned: BTreeSet<Uuid> = assigned.iter().map(|topic| topic.topic_id).collect();
        assert_eq!(assigned, expected, "{regex}");
    }
}

#[test]
fn features_cannot_change_their_levels() {
    let node = Node::start();
    let mut client = node.connect();
    for version in ApiKey::UpdateFeatures.versions() {
        let mut update = |feature: &str, level: i16| {
            let update = FeatureUpdateKey::default()
                .with_feature(text(feature))
                .with_max_version_level(level);
            let request = UpdateFeaturesRequest::default().with_feature_updates(vec![update]);
            let response = ask!(client, UpdateFeatures, version, request);
            let listed = response.error_code == 0 && version < 2;
            assert_eq!(response.results.len(), usize::from(listed));
            assert!(response.results.iter().all(|result| result.error_code == 0));
            response.error_code
        };
        let invalid = ResponseError::InvalidUpdateVersion.code();
        assert_eq!(update("transaction.version", 2), 0, "version {version}");
        assert_eq!(
            update("transaction.version", 1),
            invalid,
            "version {version}"
        );
        assert_eq!(
            update("transaction.version", 9),
            invalid,
            "version {version}"
        );
        assert_eq!(update("foo", 1), invalid, "version {version}");
    }
}

fn metadata(client: &mut Connection, names: Option<&[&str]>) -> Vec<MetadataTopic> {
    let requested = names.map(|names| {
        let names = names.iter();
        let requested =
            names.map(|name| MetadataRequestTopic::default().with_name(Some(topic_name(name))));
        requested.collect()
    });
    let request = MetadataRequest::default().with_topics(requested);
    ask!(client, Metadata, 12, request).topics
}

fn create(client: &mut Connection, name: &str) -> i16 {
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(1)
        .with_replication_factor(-1);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    ask!(client, CreateTopics, 7, request).topics[0].error_code
}

/// The broker refused them, though tools like Debezium and Strimzi use these names.
#[test]
fn topics_with_two_leading_underscores_are_ordinary_topics() {
    let node = Node::start();
    let mut client = node.connect();
    for name in ["__debezium-heartbeat.db", "__strimzi_store_topic", "__t"] {
        assert_eq!(create(&mut client, name), 0, "{name}");
        assert_eq!(client.produce(name, 0, &["value"]), 0);
        let shown = metadata(&mut client, Some(&[name]));
        assert_eq!((shown[0].error_code, shown[0].is_internal), (0, false));
    }
    // A topic that a client asks for is created, too.
    assert_eq!(metadata(&mut client, Some(&["__made"]))[0].error_code, 0);
    let all = metadata(&mut client, None);
    let names: Vec<String> = all
        .iter()
        .map(|topic| topic.name.as_ref().unwrap().to_string())
        .collect();
    let expected = [
        "__debezium-heartbeat.db",
        "__made",
        "__strimzi_store_topic",
        "__t",
    ];
    assert_eq!(names, expected);
    let deleted = DeleteTopicState::default().with_name(Some(topic_name("__t")));
    let request = DeleteTopicsRequest::default().with_topics(vec![deleted]);
    assert_eq!(
        ask!(client, DeleteTopics, 6, request).responses[0].error_code,
        0
    );
    let invalid = ResponseError::InvalidTopicException.code();
    for name in [
        "__groups",
        "__configs",
        "__consumer_offsets",
        "__share_group_state",
    ] {
        assert_eq!(create(&mut client, name), invalid, "{name}");
    }
}

#[test]
fn the_topic_of_committed_offsets_appears_with_the_first_group_and_is_read_only() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(
        metadata(&mut client, Some(&[OFFSETS]))[0].error_code,
        unknown
    );
    assert_eq!(metadata(&mut client, None).len(), 1);

    let partition = OffsetCommitRequestPartition::default().with_committed_offset(0);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let commit = OffsetCommitRequest::default()
        .with_group_id(GroupId(text("g")))
        .with_topics(vec![topic]);
    let committed = ask!(client, OffsetCommit, 8, commit);
    assert_eq!(committed.topics[0].partitions[0].error_code, 0);

    let shown = metadata(&mut client, Some(&[OFFSETS]));
    let shown = &shown[0];
    assert_eq!((shown.error_code, shown.is_internal), (0, true));
    let id = node.log().stream(OFFSETS).unwrap().uuid();
    assert_eq!((shown.partitions.len(), shown.topic_id), (1, id));
    let by_id = MetadataRequestTopic::default()
        .with_name(None)
        .with_topic_id(id);
    let request = MetadataRequest::default().with_topics(Some(vec![by_id]));
    let found = &ask!(client, Metadata, 12, request).topics[0];
    assert_eq!(found.error_code, 0);
    assert_eq!(found.name, Some(topic_name(OFFSETS)));
    let all = metadata(&mut client, None);
    assert_eq!(all.len(), 2);
    assert!(all.iter().any(|topic| topic.is_internal));
    let request = DescribeTopicPartitionsRequest::default().with_response_partition_limit(10);
    let described = ask!(client, DescribeTopicPartitions, 0, request).topics;
    assert_eq!(
        described.iter().filter(|topic| topic.is_internal).count(),
        1
    );

    // It is empty.
    let place = ListOffsetsPartition::default().with_timestamp(-1);
    let topic = ListOffsetsTopic::default()
        .with_name(topic_name(OFFSETS))
        .with_partitions(vec![place]);
    let request = ListOffsetsRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_topics(vec![topic]);
    let end = ask!(client, ListOffsets, 7, request);
    let end = &end.topics[0].partitions[0];
    assert_eq!((end.error_code, end.offset), (0, 0));
    let fetched = client.fetch(OFFSETS, 0, 0);
    assert_eq!((fetched.error_code, fetched.high_watermark), (0, 0));

    // Clients cannot write to it or delete it.
    let invalid = ResponseError::InvalidTopicException.code();
    let produced = ask!(
        client,
        Produce,
        9,
        produce_request(OFFSETS, 0, chunk(&["value"]))
    );
    assert_eq!(
        produced.responses[0].partition_responses[0].error_code,
        invalid
    );
    let partition = DeleteRecordsPartition::default().with_offset(-1);
    let topic = DeleteRecordsTopic::default()
        .with_name(topic_name(OFFSETS))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
    let deleted = ask!(client, DeleteRecords, 2, request);
    assert_eq!(deleted.topics[0].partitions[0].error_code, invalid);
    let topic = DeleteTopicState::default().with_name(Some(topic_name(OFFSETS)));
    let request = DeleteTopicsRequest::default().with_topics(vec![topic]);
    assert_ne!(
        ask!(client, DeleteTopics, 6, request).responses[0].error_code,
        0
    );
    assert_eq!(metadata(&mut client, Some(&[OFFSETS]))[0].error_code, 0);
}
