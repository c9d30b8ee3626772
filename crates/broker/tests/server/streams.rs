//! Groups of Kafka Streams over the wire, and the topics that the broker creates for them.

use millstream_broker::security::Operation;
use millstream_wire::ResponseError;
use millstream_wire::streams_group::{
    StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse,
    StreamsKeyValue, StreamsSubtopology, StreamsTasks, StreamsTopicInfo, StreamsTopology,
};

use crate::permissions::{group, topic, two_clients};
use crate::support::{Connection, Node, ask, text, wait_until};
use crate::topics::settings::setting;

const MISSING_INTERNAL_TOPICS: i8 = 3;

/// `t` → the repartition topic `r` → a store with the changelog `c`.
pub fn joining() -> StreamsGroupHeartbeatRequest {
    let first = StreamsSubtopology {
        source_topics: vec![text("t")],
        repartition_sink_topics: vec![text("r")],
        ..subtopology("0")
    };
    let second = StreamsSubtopology {
        repartition_source_topics: vec![internal("r", &[("retention.ms", "-1")])],
        state_changelog_topics: vec![internal("c", &[("cleanup.policy", "compact")])],
        ..subtopology("1")
    };
    StreamsGroupHeartbeatRequest {
        group_id: text("g"),
        member_id: text("m"),
        member_epoch: 0,
        endpoint_information_epoch: 0,
        instance_id: None,
        rack_id: None,
        rebalance_timeout_ms: 60_000,
        topology: Some(StreamsTopology {
            epoch: 0,
            subtopologies: vec![first, second],
        }),
        active_tasks: Some(Vec::new()),
        standby_tasks: Some(Vec::new()),
        warmup_tasks: Some(Vec::new()),
        process_id: Some(text("p")),
        user_endpoint: None,
        client_tags: None,
        task_offsets: None,
        task_end_offsets: None,
        shutdown_application: false,
    }
}

fn subtopology(id: &'static str) -> StreamsSubtopology {
    StreamsSubtopology {
        subtopology_id: text(id),
        source_topics: Vec::new(),
        source_topic_regex: Vec::new(),
        state_changelog_topics: Vec::new(),
        repartition_sink_topics: Vec::new(),
        repartition_source_topics: Vec::new(),
        copartition_groups: Vec::new(),
    }
}

fn internal(name: &'static str, settings: &[(&'static str, &'static str)]) -> StreamsTopicInfo {
    let settings = settings.iter().map(|(key, value)| StreamsKeyValue {
        key: text(key),
        value: text(value),
    });
    StreamsTopicInfo {
        name: text(name),
        partitions: 0,
        replication_factor: -1,
        topic_configs: settings.collect(),
    }
}

fn staying(epoch: i32) -> StreamsGroupHeartbeatRequest {
    StreamsGroupHeartbeatRequest {
        member_epoch: epoch,
        rebalance_timeout_ms: -1,
        topology: None,
        active_tasks: None,
        standby_tasks: None,
        warmup_tasks: None,
        process_id: None,
        ..joining()
    }
}

fn subtopology_of(
    request: &mut StreamsGroupHeartbeatRequest,
    place: usize,
) -> &mut StreamsSubtopology {
    let topology = request.topology.as_mut().expect("of a member that joins");
    &mut topology.subtopologies[place]
}

fn beat(
    client: &mut Connection,
    request: StreamsGroupHeartbeatRequest,
) -> StreamsGroupHeartbeatResponse {
    ask!(client, StreamsGroupHeartbeat, 0, request)
}

/// Joins, and sends heartbeats until the status changes; returns the last answer.
fn join_until(
    client: &mut Connection,
    request: StreamsGroupHeartbeatRequest,
    is_so: impl Fn(&StreamsGroupHeartbeatResponse) -> bool,
) -> StreamsGroupHeartbeatResponse {
    let mut answer = beat(client, request);
    assert_eq!(answer.error_code, 0, "{answer:?}");
    wait_until("the group goes on", || {
        if !is_so(&answer) {
            answer = beat(client, staying(answer.member_epoch));
            assert_eq!(answer.error_code, 0, "{answer:?}");
        }
        is_so(&answer)
    });
    answer
}

/// Joins, and waits until the members get this status about missing topics.
fn join_until_reported(client: &mut Connection, request: StreamsGroupHeartbeatRequest, why: &str) {
    join_until(client, request, |answer| {
        let status = answer.status.as_deref().unwrap_or_default();
        status.iter().any(|status| {
            status.status_code == MISSING_INTERNAL_TOPICS && status.status_detail.contains(why)
        })
    });
}

#[test]
fn internal_topics_are_created_for_a_group_and_its_tasks_begin() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 3);
    let is_ready = |answer: &StreamsGroupHeartbeatResponse| {
        let tasks = answer.active_tasks.iter().flatten();
        tasks.map(|tasks| tasks.partitions.len()).sum::<usize>() > 0
    };
    let answer = join_until(&mut client, joining(), is_ready);
    let tasks = |id: &'static str| StreamsTasks {
        subtopology_id: text(id),
        partitions: vec![0, 1, 2],
    };
    assert_eq!(answer.active_tasks, Some(vec![tasks("0"), tasks("1")]));
    assert_eq!(answer.status, Some(Vec::new()));
    assert_eq!(
        setting(&mut client, "c", "cleanup.policy").unwrap(),
        "compact"
    );
    let request = StreamsGroupDescribeRequest {
        group_ids: vec![text("g"), text("none")],
        include_authorized_operations: false,
    };
    let described = ask!(client, StreamsGroupDescribe, 0, request).groups;
    assert_eq!(
        described[1].error_code,
        ResponseError::GroupIdNotFound.code()
    );
    let group = &described[0];
    assert_eq!((group.error_code, &*group.group_state), (0, "Stable"));
    let parts = group
        .topology
        .as_ref()
        .unwrap()
        .subtopologies
        .as_ref()
        .unwrap();
    assert_eq!(parts[1].repartition_source_topics[0].partitions, 3);
    assert_eq!(parts[1].state_changelog_topics[0].partitions, 3);
    assert_eq!(group.members[0].assignment.active_tasks.len(), 2);
}

#[test]
fn members_get_the_reason_why_topics_are_not_created() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 3);
    let mut unknown = joining();
    let settings = &mut subtopology_of(&mut unknown, 1).repartition_source_topics[0].topic_configs;
    settings[0].key = text("no.such.setting");
    join_until_reported(&mut client, unknown, "no.such.setting");
    let mut copies = joining();
    subtopology_of(&mut copies, 1).repartition_source_topics[0].replication_factor = 3;
    copies.group_id = text("h");
    let answer = beat(&mut client, copies.clone());
    wait_until("the status is reported", || {
        let answer = beat(
            &mut client,
            StreamsGroupHeartbeatRequest {
                group_id: text("h"),
                ..staying(answer.member_epoch)
            },
        );
        let status = answer.status.unwrap_or_default();
        status
            .iter()
            .any(|status| status.status_detail.contains("the replication factor is 1"))
    });
    assert!(node.log().stream("r").is_err());
}

#[test]
fn topics_of_a_group_count_towards_the_partitions_of_the_node() {
    let node = Node::alone_with_log(|config| config.partitions_max = 100);
    let mut client = node.connect();
    client.create_topic("t", 3);
    let mut many = joining();
    subtopology_of(&mut many, 1).repartition_source_topics[0].partitions = 90;
    join_until_reported(&mut client, many, "partitions_max");
    assert!(node.log().stream("r").is_err() && node.log().stream("c").is_err());
}

#[test]
fn a_member_creates_only_topics_that_it_is_permitted_to_create() {
    let (node, mut admin, mut alice) = two_clients();
    admin.create_topic("t", 2);
    admin.allow("alice", (Operation::Read, group("g")));
    for name in ["t", "r", "c"] {
        let refused = beat(&mut alice, joining());
        let denied = ResponseError::TopicAuthorizationFailed.code();
        assert_eq!(refused.error_code, denied, "before {name}");
        admin.allow("alice", (Operation::Describe, topic(name)));
    }
    join_until_reported(&mut alice, joining(), "the member may not create it");
    assert!(node.log().stream("r").is_err() && node.log().stream("c").is_err());
}
