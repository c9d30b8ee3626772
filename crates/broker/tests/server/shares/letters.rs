//! Dead letters (KIP-1191): rejected records, and those delivered too often, go to a topic.

use std::collections::BTreeMap;

use millstream_record::{Chunks, Compression, Decompressor};

use super::member::*;
use crate::configs::{GROUP, set};
use crate::support::{
    Connection, Node, ask, fetch_request, keyed_chunk, produce_request, wait_until,
};

const TOPIC: i8 = 2;
const DEAD: &str = "dlq.t";
const NAME: &str = "errors.deadletterqueue.topic.name";
const ENABLE: &str = "errors.deadletterqueue.group.enable";
const COPY: (&str, &str) = ("errors.deadletterqueue.copy.record.enable", "true");
const ORDER: (&str, &str) = ("share.order", "key");

/// A letter: key, value, and headers.
#[derive(Debug, PartialEq, Eq)]
struct Letter {
    key: Option<String>,
    value: Option<String>,
    headers: BTreeMap<String, String>,
}

impl Letter {
    fn header(&self, name: &str) -> &str {
        &self.headers[&format!("__dlq.errors.{name}")]
    }
}

/// All letters in a partition.
fn letters(client: &mut Connection, partition: i32) -> Vec<Letter> {
    let request = fetch_request(&[(DEAD, partition, 0)]).with_max_wait_ms(0);
    let fetched = ask!(client, Fetch, 11, request);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut decompressor = Decompressor::default();
    let mut letters = Vec::new();
    for piece in &fetched.topics[0].partitions[0].records {
        for chunk in Chunks::new(piece) {
            for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                let record = record.unwrap();
                let headers = record.headers();
                letters.push(Letter {
                    key: record.key.map(text),
                    value: record.value.map(text),
                    headers: headers
                        .map(|header| (text(header.name), text(header.value.unwrap())))
                        .collect(),
                });
            }
        }
    }
    letters
}

fn wait_for_letters(client: &mut Connection, partition: i32, count: usize) -> Vec<Letter> {
    wait_until("the letters are written", || {
        letters(client, partition).len() >= count
    });
    let letters = letters(client, partition);
    assert_eq!(letters.len(), count, "{letters:?}");
    letters
}

fn create_dead_letter_topic(client: &mut Connection, partitions: i32) {
    client.create_topic(DEAD, partitions);
    set(client, (TOPIC, DEAD), ENABLE, "true");
}

/// A group with a topic for dead letters, which may be missing, and records with these keys.
fn with_letters(keys: &str, settings: &[(&str, &str)]) -> (Node, Connection) {
    let (node, mut client) = with_topic(1);
    from_beginning(&mut client, settings);
    set(&mut client, (GROUP, "g"), NAME, DEAD);
    let keys: Vec<String> = keys.chars().map(String::from).collect();
    let records: Vec<_> = keys
        .iter()
        .map(|key| (Some(key.as_str()), "value"))
        .collect();
    let chunk = keyed_chunk(&records, Compression::Gzip);
    let produced = ask!(client, Produce, 9, produce_request("t", 0, chunk));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    (node, client)
}

#[test]
fn rejected_and_exhausted_records_go_to_the_topic_with_their_origin() {
    let (node, mut client) = with_letters("abc", &[COPY, ("share.delivery.count.limit", "2")]);
    create_dead_letter_topic(&mut client, 3);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (2, 1)]);
    let types = [REJECT, RELEASE, ACCEPT];
    assert_eq!(member.acknowledge(vec![batch(0, 2, &types)]), 0);
    assert_eq!(member.fetch(), [(1, 2)]);
    assert_eq!(member.acknowledge(vec![batch(1, 1, &[RELEASE])]), 0);
    let letters = wait_for_letters(&mut client, 0, 2);
    for (letter, (key, offset, count)) in letters.iter().zip([("a", "0", "1"), ("b", "1", "2")]) {
        assert_eq!(
            (letter.key.as_deref(), letter.value.as_deref()),
            (Some(key), Some("value"))
        );
        assert_eq!(letter.header("topic"), "t");
        assert_eq!(letter.header("partition"), "0");
        assert_eq!(letter.header("offset"), offset);
        assert_eq!(letter.header("group"), "g");
        assert_eq!(letter.header("delivery.count"), count);
    }
    assert_eq!(letters[0].header("message"), "a member rejected the record");
    let why = "no member accepted the record in 2 deliveries";
    assert_eq!(letters[1].header("message"), why);
    wait_until("they are archived", || start_offset(&mut client) == 3);
    assert_eq!(member.fetch(), []);
}

#[test]
fn a_letter_without_a_copy_has_only_the_origin() {
    let (node, mut client) = with_letters("a", &[]);
    create_dead_letter_topic(&mut client, 1);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1)]);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[REJECT])]), 0);
    let letters = wait_for_letters(&mut client, 0, 1);
    assert_eq!((&letters[0].key, &letters[0].value), (&None, &None));
    assert_eq!(letters[0].header("offset"), "0");
}

#[test]
fn the_next_record_of_a_key_waits_for_the_letter_and_a_waiting_member_gets_it() {
    let (node, mut client) = with_letters("aa", &[ORDER]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1)]);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[REJECT])]), 0);
    assert_eq!(member.fetch(), []);
    member.begin_fetch();
    create_dead_letter_topic(&mut client, 1);
    assert_eq!(member.end_fetch(), [(1, 1)]);
    assert_eq!(wait_for_letters(&mut client, 0, 1)[0].header("offset"), "0");
}

#[test]
fn no_record_is_lost_while_its_letter_cannot_be_written_also_over_a_restart() {
    let (node, mut client) = with_letters("ab", &[COPY]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1), (1, 1)]);
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[REJECT])]), 0);
    // There is no topic, then one that does not allow letters.
    client.create_topic(DEAD, 1);
    assert_eq!(start_offset(&mut client), 0);
    assert_eq!(member.fetch(), []);
    let node = node.restart();
    let mut client = node.connect();
    assert_eq!(start_offset(&mut client), 0);
    assert_eq!(node.broker().status().dead_letter_partitions, 1);
    set(&mut client, (TOPIC, DEAD), ENABLE, "true");
    let letters = wait_for_letters(&mut client, 0, 2);
    assert_eq!(letters[1].key.as_deref(), Some("b"));
    wait_until("they are archived", || start_offset(&mut client) == 2);
    let status = node.broker().status();
    assert_eq!((status.dead_letters, status.dead_letter_partitions), (2, 0));
}

#[test]
fn a_group_without_a_dead_letter_topic_archives_dead_records() {
    let (node, mut client) = with_letters("a", &[]);
    let mut member = Member::join(&node, "a");
    assert_eq!(member.fetch(), [(0, 1)]);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[REJECT])]), 0);
    assert_eq!(start_offset(&mut client), 0);
    set(&mut client, (GROUP, "g"), NAME, "");
    wait_until("it is archived", || start_offset(&mut client) == 1);
}
