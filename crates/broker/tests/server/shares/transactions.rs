//! Acknowledgements that are part of a transaction.

use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{ChunkBuilder, Compression, Producer};
use millstream_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_wire::messages::{
    EndTxnRequest, InitProducerIdRequest, TransactionalId, TxnOffsetCommitRequest,
};
use millstream_wire::{ResponseError, StrBytes};

use super::member::*;
use crate::support::{
    Connection, Node, ask, fetch_request, group_id, keyed_chunk, produce_request, text, topic_name,
    wait_until,
};

/// The newest version of TxnOffsetCommit, whose clients add nothing before.
const NEWEST: i16 = 5;

/// A producer with the transactional id `tx`.
struct Transactional {
    client: Connection,
    id: i64,
    epoch: i16,
    sequence: i32,
    /// The member that its acknowledgements name, if any.
    member: &'static str,
}

fn tx() -> TransactionalId {
    TransactionalId(StrBytes::from_static_str("tx"))
}

impl Transactional {
    fn new(node: &Node) -> Transactional {
        let mut client = node.connect();
        let request = InitProducerIdRequest::default()
            .with_transactional_id(Some(tx()))
            .with_transaction_timeout_ms(60_000)
            .with_producer_id((-1).into())
            .with_producer_epoch(-1);
        let busy = ResponseError::ConcurrentTransactions.code();
        let mut init = ask!(client, InitProducerId, 5, request.clone());
        wait_until("the transaction before is ended", || {
            if init.error_code == busy {
                init = ask!(client, InitProducerId, 5, request.clone());
            }
            init.error_code != busy
        });
        assert_eq!(init.error_code, 0);
        Transactional {
            client,
            id: init.producer_id.0,
            epoch: init.producer_epoch,
            sequence: 0,
            member: "",
        }
    }

    /// Appends one record to `out`.
    fn produce(&mut self, value: &str) {
        let mut builder = ChunkBuilder::new(Compression::None);
        let value = Some(value.as_bytes());
        builder.push(Timestamp(7), None, value, &[]).unwrap();
        builder.set_transactional(true);
        let producer = Producer {
            id: ProducerId(self.id),
            epoch: ProducerEpoch(self.epoch),
            sequence: Sequence(self.sequence),
        };
        self.sequence += 1;
        let chunk = builder.finish(Some(producer)).unwrap().to_vec();
        let request = produce_request("out", 0, chunk.into()).with_transactional_id(Some(tx()));
        let produced = ask!(self.client, Produce, 12, request);
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    }

    /// Acknowledges records of `t`; returns the error.
    fn acknowledge(&mut self, version: i16, receipts: &str) -> i16 {
        let partition = TxnOffsetCommitRequestPartition::default()
            .with_partition_index(0)
            .with_committed_offset(0)
            .with_committed_metadata(Some(text(receipts)));
        let topic = TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name("t"))
            .with_partitions(vec![partition]);
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(tx())
            .with_group_id(group_id("g"))
            .with_producer_id(self.id.into())
            .with_producer_epoch(self.epoch)
            .with_generation_id(-1)
            .with_member_id(text(self.member))
            .with_topics(vec![topic]);
        let response = ask!(self.client, TxnOffsetCommit, version, request);
        response.topics[0].partitions[0].error_code
    }

    fn end(&mut self, is_committed: bool) {
        let request = EndTxnRequest::default()
            .with_transactional_id(tx())
            .with_producer_id(self.id.into())
            .with_producer_epoch(self.epoch)
            .with_committed(is_committed);
        let ended = ask!(self.client, EndTxn, 5, request);
        assert_eq!(ended.error_code, 0);
        (self.id, self.epoch) = (ended.producer_id.0, ended.producer_epoch);
        self.sequence = 0;
    }
}

/// A node with the topics `t`, which the group `g` reads, and `out`.
fn start() -> (Node, Connection) {
    let (node, mut client) = with_topic(1);
    client.create_topic("out", 1);
    (node, client)
}

fn waits_for_start(client: &mut Connection, offset: i64) {
    wait_until("the group has the outcome", || {
        start_offset(client) == offset
    });
}

/// How many records of `out` are committed.
fn committed(client: &mut Connection) -> usize {
    let request = fetch_request(&[("out", 0, 0)])
        .with_isolation_level(1)
        .with_max_wait_ms(0);
    let fetched = ask!(client, Fetch, 11, request);
    let partition = &fetched.topics[0].partitions[0];
    let aborted = partition.aborted_transactions.as_ref().map_or(0, Vec::len);
    let chunks = partition
        .records
        .iter()
        .flat_map(|piece| millstream_record::Chunks::new(piece));
    let records = chunks
        .filter(|chunk| !chunk.as_ref().unwrap().header().attributes.is_control())
        .count();
    records - aborted
}

#[test]
fn a_commit_finishes_the_acknowledged_records_and_an_abort_gives_them_back() {
    let (node, mut client) = start();
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"; 4]);
    assert_eq!(member.fetch(), [(0, 1), (1, 1), (2, 1), (3, 1)]);

    producer.produce("of 0 to 2");
    assert_eq!(producer.acknowledge(NEWEST, "0-1@1,2@1:reject"), 0);
    // A repetition changes nothing.
    assert_eq!(producer.acknowledge(NEWEST, "0-1@1,2@1:reject"), 0);
    assert_eq!(member.acknowledge(vec![batch(3, 3, &[RELEASE])]), 0);
    assert_eq!(member.fetch(), [(3, 2)]);
    producer.end(false);
    let mut again = Vec::new();
    wait_until("the records come again", || {
        again.extend(member.fetch());
        again.len() == 3
    });
    assert_eq!(again, [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(committed(&mut client), 0);

    producer.produce("of 0 to 2");
    assert_eq!(producer.acknowledge(NEWEST, "0-1@2"), 0);
    assert_eq!(producer.acknowledge(NEWEST, "2@2:reject"), 0);
    assert_eq!(start_offset(&mut client), 0, "the transaction is open");
    producer.end(true);
    waits_for_start(&mut client, 3);
    wait_until("the result is committed", || committed(&mut client) == 1);
    assert_eq!(member.acknowledge(vec![batch(3, 3, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 4);
}

#[test]
fn the_members_own_acceptance_of_a_record_in_a_transaction_changes_nothing() {
    let (node, mut client) = start();
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"; 3]);
    assert_eq!(member.fetch().len(), 3);
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), 0);
    let refused = ResponseError::InvalidRecordState.code();
    for kind in [RELEASE, REJECT] {
        assert_eq!(member.acknowledge(vec![batch(0, 1, &[kind])]), refused);
    }
    // As the next poll of a consumer does without explicit acknowledgements.
    assert_eq!(member.acknowledge(vec![batch(0, 1, &[ACCEPT])]), 0);
    assert_eq!(start_offset(&mut client), 0);
    producer.end(false);
    let mut again = Vec::new();
    wait_until("the record comes again", || {
        again.extend(member.fetch());
        !again.is_empty()
    });
    assert_eq!(again, [(0, 2)]);
}

#[test]
fn acknowledging_an_ended_delivery_in_a_transaction_is_abortable() {
    let (node, mut client) = start();
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"; 3]);
    assert_eq!(member.fetch().len(), 3);
    assert_eq!(member.acknowledge(vec![batch(0, 0, &[RELEASE])]), 0);
    let abortable = ResponseError::TransactionAbortable.code();
    let generation = ResponseError::IllegalGeneration.code();
    // Given back, another delivery, never delivered.
    for receipts in ["0@1", "1@2", "1-3@1", "0-2@1", "77@1"] {
        assert_eq!(producer.acknowledge(NEWEST, receipts), abortable);
        assert_eq!(producer.acknowledge(3, receipts), generation);
    }
    // Out again, to whichever member.
    let mut other = Member::join(&node, "other");
    assert_eq!(other.fetch(), [(0, 2)]);
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), abortable);
    assert_eq!(producer.acknowledge(NEWEST, "0@2"), 0);
    // Finished.
    assert_eq!(member.acknowledge(vec![batch(1, 1, &[ACCEPT])]), 0);
    assert_eq!(producer.acknowledge(NEWEST, "1@1"), abortable);
    let invalid = ResponseError::InvalidRequest.code();
    for receipts in ["", "2", "2@0", "2@1,2@1", "2@1:release", "-1@1"] {
        assert_eq!(
            producer.acknowledge(NEWEST, receipts),
            invalid,
            "{receipts}"
        );
    }
}

/// A reset or a crash makes the counts of other deliveries the same.
#[test]
fn only_the_holder_of_a_record_may_be_named_in_its_acknowledgement() {
    let (node, mut client) = start();
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"]);
    assert_eq!(member.fetch(), [(0, 1)]);
    producer.member = "other";
    let abortable = ResponseError::TransactionAbortable.code();
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), abortable);
    producer.member = "m";
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), 0);
}

#[test]
fn a_restart_keeps_the_acknowledgements_of_an_open_transaction() {
    let (node, mut client) = start();
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"; 3]);
    assert_eq!(member.fetch().len(), 3);
    producer.produce("of 0");
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), 0);
    drop((client, member));
    let node = node.restart();
    let mut client = node.connect();
    let mut member = Member::join(&node, "m");
    // Locks do not outlast the restart, and the record in the transaction is not delivered.
    assert_eq!(member.fetch(), [(1, 2), (2, 2)]);
    producer.client = node.connect();
    producer.end(true);
    waits_for_start(&mut client, 1);
    wait_until("the result is committed", || committed(&mut client) == 1);
}

#[test]
fn records_stay_in_their_transaction_when_their_member_or_lock_ends() {
    let (node, mut client) = start();
    from_beginning(&mut client, &[("share.record.lock.duration.ms", "1000")]);
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    client.produce("t", 0, &["x"; 2]);
    assert_eq!(member.fetch().len(), 2);
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), 0);
    assert_eq!(member.leave(), 0);
    drop(member);
    let mut other = Member::join(&node, "other");
    let mut got = Vec::new();
    wait_until("the lock ends", || {
        got.extend(other.fetch());
        !got.is_empty()
    });
    assert_eq!(got, [(1, 2)]);
    // Another producer with the transactional id aborts the transaction.
    Transactional::new(&node);
    let mut got = Vec::new();
    wait_until("the record is given back", || {
        got.extend(other.fetch());
        got.contains(&(0, 2))
    });
}

#[test]
fn the_next_record_of_a_key_waits_for_the_transaction() {
    let (node, mut client) = start();
    from_beginning(&mut client, &[("share.order", "key")]);
    let mut member = Member::join(&node, "m");
    let mut producer = Transactional::new(&node);
    let chunk = keyed_chunk(&[(Some("k"), "1"), (Some("k"), "2")], Compression::None);
    let produced = ask!(client, Produce, 9, produce_request("t", 0, chunk));
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    assert_eq!(member.fetch(), [(0, 1)]);
    assert_eq!(producer.acknowledge(NEWEST, "0@1"), 0);
    assert_eq!(member.fetch(), []);
    producer.end(true);
    let mut got = Vec::new();
    wait_until("the next record of the key comes", || {
        got.extend(member.fetch());
        !got.is_empty()
    });
    assert_eq!(got, [(1, 1)]);
}
