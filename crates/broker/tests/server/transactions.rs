//! Transactions over the wire.

use bytes::Bytes;
use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{ChunkBuilder, Compression, Producer};
use millstream_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use millstream_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use millstream_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use millstream_wire::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest,
    InitProducerIdResponse, ListTransactionsRequest, TransactionalId, TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
};
use millstream_wire::{ResponseError, StrBytes};

use crate::support::{Connection, Node, ask, group_id, produce_request, topic_name, wait_until};
use crate::topic_ids::{delete_topic, fetch_by_name};

fn tx() -> TransactionalId {
    TransactionalId(StrBytes::from_static_str("tx"))
}

/// Starts a node with a topic `t` of this many partitions.
fn with_topic(partitions: i32) -> (Node, Connection) {
    let node = Node::start();
    let mut client = node.connect();
    client.create_topic("t", partitions);
    (node, client)
}

fn init(client: &mut Connection) -> InitProducerIdResponse {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(tx()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id((-1).into())
        .with_producer_epoch(-1);
    let init = ask!(client, InitProducerId, 4, request);
    assert_eq!(init.error_code, 0);
    init
}

fn add_partition(client: &mut Connection, producer: &InitProducerIdResponse) {
    let topic = AddPartitionsToTxnTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![0]);
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(tx())
        .with_v3_and_below_producer_id(producer.producer_id)
        .with_v3_and_below_producer_epoch(producer.producer_epoch)
        .with_v3_and_below_topics(vec![topic]);
    let added = ask!(client, AddPartitionsToTxn, 3, request);
    let topic = &added.results_by_topic_v3_and_below[0];
    assert_eq!(topic.results_by_partition[0].partition_error_code, 0);
}

fn chunk(id: i64, epoch: i16) -> Bytes {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder
        .push(Timestamp(7), None, Some(b"value"), &[])
        .unwrap();
    builder.set_transactional(true);
    let producer = Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        sequence: Sequence(0),
    };
    Bytes::copy_from_slice(builder.finish(Some(producer)).unwrap())
}

#[test]
fn transactions_are_listed_by_the_names_of_their_states() {
    let (_node, mut client) = with_topic(1);
    init(&mut client);
    let many = ["Dead"; 100_000];
    for (states, unknown, listed) in [
        (
            &["Ongoing", "Empty", "Dead", "empty"][..],
            &["empty"][..],
            1,
        ),
        (&["Ongoing", "PrepareEpochFence"], &[], 0),
        (&["None"], &["None"], 0),
        (&[], &[], 1),
        (&many, &[], 0),
    ] {
        let names = |names: &[&'static str]| -> Vec<StrBytes> {
            let names = names.iter();
            names.map(|name| StrBytes::from_static_str(name)).collect()
        };
        let request = ListTransactionsRequest::default().with_state_filters(names(states));
        let response = ask!(client, ListTransactions, 1, request);
        assert_eq!(response.error_code, 0);
        assert_eq!(response.unknown_state_filters, names(unknown));
        assert_eq!(response.transaction_states.len(), listed);
    }
}

#[test]
fn chunks_of_another_producer_id_are_refused_in_a_transaction() {
    let (_node, mut client) = with_topic(2);
    let producer = init(&mut client);
    add_partition(&mut client, &producer);
    let mut request = produce_request(
        "t",
        0,
        chunk(producer.producer_id.0, producer.producer_epoch),
    )
    .with_transactional_id(Some(tx()));
    let mut other = request.topic_data[0].partition_data[0].clone();
    other.index = 1;
    other.records = Some(chunk(producer.producer_id.0 + 1, 0));
    request.topic_data[0].partition_data.push(other);
    let response = ask!(client, Produce, 9, request);
    let partitions = &response.responses[0].partition_responses;
    assert_eq!(partitions[0].error_code, 0);
    let refused = ResponseError::InvalidProducerIdMapping.code();
    assert_eq!(partitions[1].error_code, refused);
}

#[test]
fn records_without_a_key_are_refused_in_transactions_of_compacted_topics() {
    let (node, mut client) = with_topic(1);
    let producer = init(&mut client);
    add_partition(&mut client, &producer);
    let policy = ("cleanup.policy".to_owned(), "compact".to_owned());
    node.log()
        .alter_stream("t", |config| config.settings.extend([policy]))
        .unwrap();
    let chunk = chunk(producer.producer_id.0, producer.producer_epoch);
    let request = produce_request("t", 0, chunk).with_transactional_id(Some(tx()));
    let produced = ask!(client, Produce, 9, request);
    let refused = &produced.responses[0].partition_responses[0];
    assert_eq!(refused.error_code, ResponseError::InvalidRecord.code());
    assert_eq!(refused.record_errors[0].batch_index, 0);
}

#[test]
fn clients_cannot_use_the_transactions_of_the_broker() {
    let (_node, mut client) = with_topic(1);
    let own = || TransactionalId(StrBytes::from_static_str("__millstream.keys.0"));
    let refused = ResponseError::InvalidRequest.code();

    let request = InitProducerIdRequest::default().with_transactional_id(Some(own()));
    assert_eq!(ask!(client, InitProducerId, 4, request).error_code, refused);

    let topic = AddPartitionsToTxnTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![0]);
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(own())
        .with_v3_and_below_topics(vec![topic.clone()]);
    let added = ask!(client, AddPartitionsToTxn, 3, request).results_by_topic_v3_and_below;
    let added = added[0].results_by_partition[0].partition_error_code;
    assert_eq!(added, refused);
    let transaction = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(own())
        .with_topics(vec![topic]);
    let request = AddPartitionsToTxnRequest::default().with_transactions(vec![transaction]);
    let added = ask!(client, AddPartitionsToTxn, 4, request);
    assert_eq!(added.error_code, refused);

    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(own())
        .with_group_id(group_id("g"));
    let added = ask!(client, AddOffsetsToTxn, 3, request);
    assert_eq!(added.error_code, refused);

    let partition = TxnOffsetCommitRequestPartition::default();
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(own())
        .with_group_id(group_id("g"))
        .with_topics(vec![topic]);
    let committed = ask!(client, TxnOffsetCommit, 3, request);
    assert_eq!(committed.topics[0].partitions[0].error_code, refused);

    for version in [9, 12] {
        let request = produce_request("t", 0, chunk(0, 0)).with_transactional_id(Some(own()));
        let produced = ask!(client, Produce, version, request);
        let produced = produced.responses[0].partition_responses[0].error_code;
        assert_eq!(produced, refused);
    }

    let request = EndTxnRequest::default().with_transactional_id(own());
    assert_eq!(ask!(client, EndTxn, 3, request).error_code, refused);
}

fn commit_offsets(
    client: &mut Connection,
    producer: &InitProducerIdResponse,
    offset: i64,
    version: i16,
) -> i16 {
    let partition = TxnOffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset);
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(tx())
        .with_group_id(group_id("g"))
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_generation_id(-1)
        .with_topics(vec![topic]);
    let response = ask!(client, TxnOffsetCommit, version, request);
    response.topics[0].partitions[0].error_code
}

#[test]
fn offsets_of_transactions_are_refused_with_errors_that_producers_know() {
    let (_node, mut client) = with_topic(1);
    let fenced = init(&mut client);
    let producer = init(&mut client);
    let code = ResponseError::code;
    for version in [3, 5] {
        let refused = commit_offsets(&mut client, &fenced, 1, version);
        assert_eq!(refused, code(&ResponseError::InvalidProducerEpoch));
    }
    // The group takes no part.
    let refused = commit_offsets(&mut client, &producer, 1, 3);
    assert_eq!(refused, code(&ResponseError::InvalidTxnState));
    let refused = commit_offsets(&mut client, &producer, 1, 4);
    assert_eq!(refused, code(&ResponseError::TransactionAbortable));
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(tx())
        .with_group_id(group_id("g"))
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch);
    assert_eq!(ask!(client, AddOffsetsToTxn, 3, request).error_code, 0);
    assert_eq!(commit_offsets(&mut client, &producer, 1, 3), 0);
    let refused = commit_offsets(&mut client, &producer, -1, 3);
    assert_eq!(refused, code(&ResponseError::OffsetOutOfRange));
}

#[test]
fn a_topic_that_was_made_again_lacks_the_offsets_of_earlier_transactions() {
    let (node, mut client) = with_topic(1);
    let producer = init(&mut client);
    assert_eq!(commit_offsets(&mut client, &producer, 7, 5), 0);
    let request = EndTxnRequest::default()
        .with_transactional_id(tx())
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_committed(true);
    assert_eq!(ask!(client, EndTxn, 5, request).error_code, 0);
    wait_until("it is committed", || fetch_by_name(&mut client) == (7, 0));
    delete_topic(&mut client);
    client.create_topic("t", 1);
    drop(client);
    let node = node.restart();
    assert_eq!(fetch_by_name(&mut node.connect()), (-1, 0));
}

#[test]
fn transactional_offsets_of_unknown_partitions_are_refused() {
    let (_node, mut client) = with_topic(1);
    let producer = init(&mut client);
    let topic = |name, partitions: &[i32]| {
        let partitions = partitions.iter().map(|partition| {
            TxnOffsetCommitRequestPartition::default()
                .with_partition_index(*partition)
                .with_committed_offset(7)
        });
        TxnOffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.collect())
    };
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(tx())
        .with_group_id(group_id("g"))
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_generation_id(-1)
        .with_topics(vec![topic("t", &[0, 1]), topic("none", &[0])]);
    let response = ask!(client, TxnOffsetCommit, 5, request);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let of_topic = |place: usize| {
        let partitions = response.topics[place].partitions.iter();
        let errors = partitions.map(|partition| (partition.partition_index, partition.error_code));
        errors.collect::<Vec<_>>()
    };
    assert_eq!(of_topic(0), [(0, 0), (1, unknown)]);
    assert_eq!(of_topic(1), [(0, unknown)]);
}

#[test]
fn newer_clients_add_nothing_and_have_an_epoch_for_each_transaction() {
    let (node, mut client) = with_topic(1);
    let first = init(&mut client);
    let id = first.producer_id;
    let mut epoch = first.producer_epoch;
    for committed in [true, false, true] {
        // The next transaction begins at once, though the one before may not have ended everywhere.
        let request = produce_request("t", 0, chunk(id.0, epoch));
        let request = request.with_transactional_id(Some(tx()));
        let produced = ask!(client, Produce, 12, request);
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
        let request = EndTxnRequest::default()
            .with_transactional_id(tx())
            .with_producer_id(id)
            .with_producer_epoch(epoch)
            .with_committed(committed);
        let ended = ask!(client, EndTxn, 5, request);
        assert_eq!((ended.error_code, ended.producer_id), (0, id));
        assert_eq!(ended.producer_epoch, epoch + 1);
        epoch = ended.producer_epoch;
    }
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    // Three records, and as many markers.
    wait_until("all is ended", || {
        partition.last_stable_offset() == Offset(6)
    });
    let aborted = partition
        .aborted_transactions(Offset(0), Offset(6))
        .unwrap();
    let offsets = aborted.iter().map(|aborted| aborted.first_offset);
    assert_eq!(offsets.collect::<Vec<_>>(), [Offset(2)]);
}

/// Returns the marker by which an administrator aborts a producer's transaction in a partition of
/// `t`.
fn marker(id: i64, epoch: i16, partition: i32) -> WritableTxnMarker {
    let topic = WritableTxnMarkerTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![partition]);
    WritableTxnMarker::default()
        .with_producer_id(id.into())
        .with_producer_epoch(epoch)
        .with_topics(vec![topic])
}

fn abort(client: &mut Connection, marker: WritableTxnMarker) -> i16 {
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let response = ask!(client, WriteTxnMarkers, 1, request);
    response.markers[0].topics[0].partitions[0].error_code
}

#[test]
fn an_administrator_aborts_a_transaction_as_a_whole() {
    let (node, mut client) = with_topic(1);
    let producer = init(&mut client);
    add_partition(&mut client, &producer);
    let (id, epoch) = (producer.producer_id.0, producer.producer_epoch);
    let request = produce_request("t", 0, chunk(id, epoch)).with_transactional_id(Some(tx()));
    let produced = ask!(client, Produce, 9, request);
    assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    assert_eq!(partition.last_stable_offset(), Offset(0));
    let invalid = ResponseError::InvalidProducerEpoch.code();
    assert_eq!(abort(&mut client, marker(id, epoch + 1, 0)), invalid);
    assert_eq!(abort(&mut client, marker(id, epoch, 0)), 0);
    wait_until("it is aborted", || {
        partition.last_stable_offset() == Offset(2)
    });
    let request = EndTxnRequest::default()
        .with_transactional_id(tx())
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(epoch)
        .with_committed(true);
    let fenced = ResponseError::ProducerFenced.code();
    assert_eq!(ask!(client, EndTxn, 3, request).error_code, fenced);
    // Sent again, the marker has no effect.
    assert_eq!(abort(&mut client, marker(id, epoch, 0)), 0);
}

#[test]
fn an_administrator_aborts_a_hanging_transaction() {
    let (node, mut client) = with_topic(1);
    let partition = node.log().stream("t").unwrap().partition(0).unwrap();
    partition.append(&chunk(777, 3)).unwrap();
    wait_until("it is durable", || partition.durable_offset() == Offset(1));
    let code = |error: ResponseError| error.code();
    let hanging = marker(777, 3, 0);
    for (marker, refused) in [
        (marker(777, 2, 0), ResponseError::InvalidProducerEpoch),
        (marker(777, 4, 0), ResponseError::InvalidProducerEpoch),
        (marker(777, 3, 1), ResponseError::UnknownTopicOrPartition),
        (
            hanging.clone().with_transaction_result(true),
            ResponseError::InvalidRequest,
        ),
        (
            hanging.clone().with_coordinator_epoch(1),
            ResponseError::TransactionCoordinatorFenced,
        ),
    ] {
        assert_eq!(abort(&mut client, marker), code(refused));
    }
    assert_eq!(partition.last_stable_offset(), Offset(0));
    assert_eq!(
        abort(&mut client, marker(1, 0, 0)),
        0,
        "it has nothing here"
    );
    assert_eq!(abort(&mut client, hanging), 0);
    assert_eq!(partition.last_stable_offset(), Offset(2));
    let aborted = partition
        .aborted_transactions(Offset(0), Offset(2))
        .unwrap();
    assert_eq!(aborted.len(), 1);
}
