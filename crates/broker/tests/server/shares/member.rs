//! A member of a share group, and helpers for frequent steps in tests of share groups.

use millstream_record::Chunks;
use millstream_wire::messages::describe_share_group_offsets_request::DescribeShareGroupOffsetsRequestGroup;
use millstream_wire::messages::share_fetch_request::{
    AcknowledgementBatch, FetchPartition, FetchTopic,
};
use millstream_wire::messages::{
    DescribeShareGroupOffsetsRequest, ShareGroupHeartbeatRequest,
    share_acknowledge_request as acknowledge,
};
use millstream_wire::{
    ApiKey, Response, ShareAcknowledgeRequest, ShareFetchRequest, ShareFetchResponse,
    ShareFetchedPartition, SharePartitionOffsets, Uuid,
};

use crate::configs::{GROUP, set};
use crate::support::{Connection, Node, ask, group_id, text, topic_name};

pub(super) const ACCEPT: i8 = 1;
pub(super) const RELEASE: i8 = 2;
pub(super) const REJECT: i8 = 3;

/// A node with a topic `t`, which the group `g` reads from the beginning.
pub(super) fn with_topic(partitions: i32) -> (Node, Connection) {
    topic_on(Node::start(), partitions)
}

/// Returns the same on another node.
pub(super) fn topic_on(node: Node, partitions: i32) -> (Node, Connection) {
    let mut client = node.connect();
    client.create_topic("t", partitions);
    from_beginning(&mut client, &[]);
    (node, client)
}

/// Lets the group `g` begin at the first record of a topic, and gives it other settings.
pub(super) fn from_beginning(client: &mut Connection, settings: &[(&str, &str)]) {
    set(client, (GROUP, "g"), "share.auto.offset.reset", "earliest");
    for (setting, value) in settings {
        set(client, (GROUP, "g"), setting, value);
    }
}

pub(super) fn topic_id(node: &Node) -> Uuid {
    node.log().stream("t").unwrap().uuid()
}

/// A member of the group `g`, which has a session for all partitions of `t`.
pub(super) struct Member {
    pub(super) client: Connection,
    pub(super) id: &'static str,
    pub(super) topic: Uuid,
    pub(super) epoch: i32,
    pub(super) partitions: i32,
    /// The version of ShareFetch and ShareAcknowledge. From 2 on acknowledgements may renew locks.
    pub(super) version: i16,
}

pub(super) fn joining(id: &str) -> ShareGroupHeartbeatRequest {
    ShareGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text(id))
        .with_subscribed_topic_names(Some(vec![topic_name("t")]))
}

pub(super) fn batch(first: i64, last: i64, types: &[i8]) -> AcknowledgementBatch {
    AcknowledgementBatch::default()
        .with_first_offset(first)
        .with_last_offset(last)
        .with_acknowledge_types(types.to_vec())
}

impl Member {
    pub(super) fn join(node: &Node, id: &'static str) -> Member {
        let mut client = node.connect();
        let joined = ask!(client, ShareGroupHeartbeat, 1, joining(id));
        assert_eq!(joined.error_code, 0, "{joined:?}");
        assert!(joined.assignment.is_some());
        Member {
            client,
            id,
            topic: topic_id(node),
            epoch: 0,
            partitions: node.log().stream("t").unwrap().partition_count() as i32,
            version: 1,
        }
    }

    /// Leaves the group over the connection over which it joined.
    pub(super) fn leave(&mut self) -> i16 {
        let request = joining(self.id)
            .with_member_epoch(-1)
            .with_subscribed_topic_names(None);
        ask!(self.client, ShareGroupHeartbeat, 1, request).error_code
    }

    /// Returns the next request of the session, with acknowledgements of partition 0.
    pub(super) fn request(&mut self, batches: Vec<AcknowledgementBatch>) -> ShareFetchRequest {
        let partition = |index: i32| FetchPartition::default().with_partition_index(index);
        let partitions = match self.epoch {
            0 => (0..self.partitions).map(partition).collect(),
            _ if batches.is_empty() => Vec::new(),
            _ => vec![partition(0).with_acknowledgement_batches(batches)],
        };
        let topic = FetchTopic::default()
            .with_topic_id(self.topic)
            .with_partitions(partitions);
        let request = ShareFetchRequest {
            group_id: Some(group_id("g")),
            member_id: Some(text(self.id)),
            share_session_epoch: self.epoch,
            min_bytes: 1,
            max_bytes: 16 << 20,
            max_records: 500,
            batch_size: 500,
            topics: vec![topic],
            ..ShareFetchRequest::default()
        };
        self.epoch += 1;
        request
    }

    pub(super) fn ask(&mut self, request: ShareFetchRequest) -> ShareFetchResponse {
        let response = ask!(self.client, ShareFetch, self.version, request);
        assert_eq!(response.error_code, 0, "{response:?}");
        response
    }

    /// Fetches the available records: offset and delivery count of each.
    pub(super) fn fetch(&mut self) -> Vec<(i64, i16)> {
        let request = self.request(Vec::new());
        acquired(&self.ask(request))
    }

    /// Sends a request that waits for records.
    pub(super) fn begin_fetch(&mut self) {
        let request = ShareFetchRequest {
            max_wait_ms: 60_000,
            ..self.request(Vec::new())
        };
        self.client.send(self.version, request);
    }

    /// Returns the records for a fetch that waited.
    pub(super) fn end_fetch(&mut self) -> Vec<(i64, i16)> {
        match self.client.receive(ApiKey::ShareFetch, self.version).1 {
            Response::ShareFetch(response) => acquired(&response),
            other => panic!("no answer to that: {other:?}"),
        }
    }

    /// Acknowledges records of partition 0; returns the error.
    pub(super) fn acknowledge(&mut self, batches: Vec<AcknowledgementBatch>) -> i16 {
        let batches = batches.into_iter().map(|batch| {
            acknowledge::AcknowledgementBatch::default()
                .with_first_offset(batch.first_offset)
                .with_last_offset(batch.last_offset)
                .with_acknowledge_types(batch.acknowledge_types)
        });
        let partition = acknowledge::AcknowledgePartition::default()
            .with_partition_index(0)
            .with_acknowledgement_batches(batches.collect());
        let topic = acknowledge::AcknowledgeTopic::default()
            .with_topic_id(self.topic)
            .with_partitions(vec![partition]);
        let request = ShareAcknowledgeRequest {
            group_id: Some(group_id("g")),
            member_id: Some(text(self.id)),
            share_session_epoch: self.epoch,
            is_renew_ack: self.version > 1,
            topics: vec![topic],
        };
        self.epoch += 1;
        let response = ask!(self.client, ShareAcknowledge, self.version, request);
        assert_eq!(response.error_code, 0, "{response:?}");
        response.responses[0].partitions[0].error_code
    }
}

pub(super) fn partitions(
    response: &ShareFetchResponse,
) -> impl Iterator<Item = &ShareFetchedPartition> {
    response.topics.iter().flat_map(|topic| &topic.partitions)
}

/// Returns offset and delivery count of each record that a member got. Each is in the received
/// chunks.
pub(super) fn acquired(response: &ShareFetchResponse) -> Vec<(i64, i16)> {
    let mut acquired = Vec::new();
    for partition in partitions(response) {
        assert_eq!(partition.error_code, 0, "{partition:?}");
        assert_eq!(partition.acknowledge_error_code, 0, "{partition:?}");
        let mut sent = Vec::new();
        for piece in &partition.records {
            for chunk in Chunks::new(piece) {
                let header = *chunk.unwrap().header();
                sent.push(header.base_offset.0 as i64..=header.last_offset().0 as i64);
            }
        }
        for run in &partition.acquired {
            for offset in run.first_offset..=run.last_offset {
                assert!(sent.iter().any(|chunk| chunk.contains(&offset)), "{sent:?}");
                acquired.push((offset, run.delivery_count));
            }
        }
    }
    acquired
}

/// Returns the group's position in partition 0.
pub(super) fn start_offset(client: &mut Connection) -> i64 {
    described(client).map_or(-1, |partition| partition.start_offset)
}

/// Describes partition 0; `None` if the group has no position.
pub(super) fn described(client: &mut Connection) -> Option<SharePartitionOffsets> {
    let group = DescribeShareGroupOffsetsRequestGroup::default()
        .with_group_id(group_id("g"))
        .with_topics(None);
    let request = DescribeShareGroupOffsetsRequest::default().with_groups(vec![group]);
    let mut described = ask!(client, DescribeShareGroupOffsets, 1, request);
    assert_eq!(described.groups[0].error_code, 0, "{described:?}");
    let mut topics = described.groups.remove(0).topics;
    (!topics.is_empty()).then(|| topics.remove(0).partitions.remove(0))
}
