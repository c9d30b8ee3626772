//! The permitted operations in answers to a client.

use millstream_broker::security::Operation;
use millstream_wire::messages::metadata_request::MetadataRequestTopic;
use millstream_wire::messages::*;

use Operation::*;

use crate::permissions::{CLUSTER, group, operation_code, topic, two_clients};
use crate::support::{Connection, Node, ask, group_id, topic_name};

fn bits(operations: &[Operation]) -> i32 {
    let codes = operations
        .iter()
        .map(|operation| operation_code(*operation));
    codes.fold(0, |bits, code| bits | 1 << code)
}

/// Returns the permitted operations on topic `t`, twice, on group `g`, twice, and on the cluster,
/// twice.
fn operations_of(client: &mut Connection, is_asked: bool) -> [i32; 6] {
    let named = MetadataRequestTopic::default().with_name(Some(topic_name("t")));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![named]))
        .with_include_topic_authorized_operations(is_asked)
        .with_include_cluster_authorized_operations(is_asked);
    let metadata = ask!(client, Metadata, 10, request);
    let request = DescribeGroupsRequest::default()
        .with_groups(vec![group_id("g")])
        .with_include_authorized_operations(is_asked);
    let group = ask!(client, DescribeGroups, 5, request).groups[0].clone();
    let request = ConsumerGroupDescribeRequest::default()
        .with_group_ids(vec![group_id("next")])
        .with_include_authorized_operations(is_asked);
    let next = ask!(client, ConsumerGroupDescribe, 1, request).groups[0].clone();
    let request = DescribeClusterRequest::default()
        .with_endpoint_type(1)
        .with_include_cluster_authorized_operations(is_asked);
    let cluster = ask!(client, DescribeCluster, 1, request);
    let described =
        describe_topic_partitions_request::TopicRequest::default().with_name(topic_name("t"));
    let request = DescribeTopicPartitionsRequest::default()
        .with_topics(vec![described])
        .with_response_partition_limit(10);
    let partitions = ask!(client, DescribeTopicPartitions, 0, request);
    [
        metadata.topics[0].topic_authorized_operations,
        partitions.topics[0].topic_authorized_operations,
        group.authorized_operations,
        next.authorized_operations,
        metadata.cluster_authorized_operations,
        cluster.cluster_authorized_operations,
    ]
}

fn join_next(client: &mut Connection) {
    let request = ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("next"))
        .with_member_id("m".into())
        .with_rebalance_timeout_ms(60_000)
        .with_subscribed_topic_names(Some(vec![topic_name("t")]))
        .with_topic_partitions(Some(Vec::new()));
    assert_eq!(
        ask!(client, ConsumerGroupHeartbeat, 1, request).error_code,
        0
    );
}

#[test]
fn a_client_may_request_its_authorized_operations() {
    let (_node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 1);
    join_next(&mut admin);
    admin.allow("alice", (Write, topic("t")));
    admin.allow("alice", (DescribeConfigs, topic("t")));
    admin.allow("alice", (Read, group("g")));
    admin.allow("alice", (Delete, group("next")));
    let of_topic = bits(&[Write, Describe, DescribeConfigs]);
    let of_group = bits(&[Read, Describe]);
    let of_next = bits(&[Delete, Describe]);
    let operations = operations_of(&mut alice, true);
    assert_eq!(operations, [of_topic, of_topic, of_group, of_next, 0, 0]);
    admin.allow("alice", (Alter, CLUSTER));
    let of_cluster = bits(&[Alter, Describe]);
    assert_eq!(operations_of(&mut alice, true)[4..], [of_cluster; 2]);
    // A client that does not ask gets none, except in answers to requests without the field.
    let nothing = i32::MIN;
    let operations = operations_of(&mut alice, false);
    let expected = [nothing, of_topic, nothing, nothing, nothing, nothing];
    assert_eq!(operations, expected);
}

#[test]
fn without_rules_every_operation_is_authorized() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    join_next(&mut client);
    let of_topic = [
        Read,
        Write,
        Create,
        Delete,
        Alter,
        Describe,
        DescribeConfigs,
        AlterConfigs,
    ];
    let of_group = [Read, Delete, Describe, DescribeConfigs, AlterConfigs];
    let of_cluster = [
        Create,
        Alter,
        Describe,
        ClusterAction,
        DescribeConfigs,
        AlterConfigs,
        IdempotentWrite,
    ];
    let (topic, group, cluster) = (bits(&of_topic), bits(&of_group), bits(&of_cluster));
    let expected = [topic, topic, group, group, cluster, cluster];
    assert_eq!(operations_of(&mut client, true), expected);
}
