//! Damages files while no server runs, and checks the answers of the next server to Kafka's
//! clients.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use millstream_wire::ResponseError;
use millstream_wire::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use millstream_wire::messages::{JoinGroupRequest, OffsetCommitRequest, OffsetFetchRequest};

use crate::support::{Connection, Node, ask, group_id, text, topic_name, values};

/// Returns the only file of a stream's only group.
pub fn file_of(node: &Node, stream: &str) -> PathBuf {
    let id = node.log().stream(stream).unwrap().id();
    node.dir().join(format!("streams/{id}"))
}

/// Returns the only file with chunks in a folder.
pub fn log_in(folder: &Path) -> PathBuf {
    let mut files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log");
    files.find(is_log).unwrap()
}

fn commit(client: &mut Connection, offset: i64) -> i16 {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let response = ask!(client, OffsetCommit, 7, request);
    response.topics[0].partitions[0].error_code
}

#[test]
fn requests_of_groups_are_refused_while_the_stream_of_groups_is_truncated() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for offset in 1..=51 {
        client.produce("t", 0, &["value"]);
        assert_eq!(commit(&mut client, offset), 0);
    }
    let folder = file_of(&node, "__groups");
    let dir = node.stop();
    let path = log_in(&folder);
    let len = fs::metadata(&path).unwrap().len();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len / 2)
        .unwrap();

    let node = Node::on(dir, |_| {}, |_| {});
    let mut client = node.connect();
    let unavailable = ResponseError::CoordinatorNotAvailable.code();
    let fetch = OffsetFetchRequest::default()
        .with_group_id(group_id("g"))
        .with_topics(None);
    let fetched = ask!(client, OffsetFetch, 5, fetch);
    assert_eq!(
        fetched.error_code, unavailable,
        "no older position is given"
    );
    assert!(fetched.topics.is_empty());
    assert_eq!(commit(&mut client, 52), unavailable);
    let join = JoinGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_session_timeout_ms(30_000)
        .with_protocol_type(text("consumer"));
    assert_eq!(ask!(client, JoinGroup, 5, join).error_code, unavailable);
    // All other records are served.
    assert_eq!(values(&client.fetch("t", 0, 50)), ["value"]);
    assert_eq!(client.produce("t", 0, &["more"]), 51);
}

#[test]
fn a_fetch_of_damaged_chunks_is_answered_with_corrupt_message() {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", 1);
    for _ in 0..3 {
        client.produce("t", 0, &["value"]);
    }
    let folder = file_of(&node, "t");
    let dir = node.stop();
    let path = log_in(&folder);
    let mut bytes = fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).unwrap();

    let node = Node::on(dir, |_| {}, |_| {});
    let mut client = node.connect();
    assert_eq!(values(&client.fetch("t", 0, 0)), ["value", "value"]);
    let error = client.fetch("t", 0, 2).error_code;
    assert_eq!(error, ResponseError::CorruptMessage.code());
    // The fetch before has met the damage, too, behind its last record.
    assert_eq!(node.log().stats().damaged_reads, 2);
    assert_eq!(node.log().stats().faulted_lanes, 1);
}
