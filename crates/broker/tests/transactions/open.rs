//! Partitions and groups take part.

use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

#[test]
fn a_transaction_begins_with_its_first_partition() {
    let mut world = World::new();
    let producer = world.init().unwrap();
    let began = world.now.timestamp;
    assert_eq!(world.add(producer, &[("orders", 0), ("orders", 1)]), Ok(()));
    world.pass(SECOND);
    assert_eq!(world.add(producer, &[("payments", 0)]), Ok(()));
    let described = world.describe(ID).unwrap();
    assert_eq!(described.state, State::Ongoing);
    assert_eq!(described.started, Some(began));
    let all = [("orders", 0), ("orders", 1), ("payments", 0)];
    assert_eq!(described.partitions, partitions(&all));
}

#[test]
fn adding_a_partition_again_writes_nothing() {
    let mut world = World::new();
    let producer = world.ongoing();
    let records = world.records.len();
    assert_eq!(world.add(producer, &[("orders", 0)]), Ok(()));
    assert_eq!(world.records.len(), records);
}

#[test]
fn a_transaction_may_begin_with_offsets() {
    let mut world = World::new();
    let producer = world.init().unwrap();
    assert_eq!(world.add_offsets(producer, GROUP), Ok(()));
    assert_eq!(world.state(), State::Ongoing);
    assert_eq!(world.add_offsets(producer, ""), Err(InvalidRequest));
    assert_eq!(world.end(producer, Outcome::Committed), Ok(producer));
    assert!(world.markers.is_empty());
    assert_eq!(world.groups[0].1, [GROUP]);
    assert_eq!(world.groups[0].0.outcome, Outcome::Committed);
    world.deliver_outcomes();
    assert_eq!(world.state(), State::CompleteCommit);
}

#[test]
fn only_the_current_producer_may_add() {
    let mut world = World::new();
    let unknown = producer(0, 0);
    assert_eq!(
        world.add(unknown, &[("orders", 0)]),
        Err(InvalidProducerIdMapping)
    );
    let first = world.init().unwrap();
    let second = world.init().unwrap();
    for (producer, error) in [
        (first, ProducerFenced),
        (producer(0, 2), ProducerFenced),
        (producer(7, 1), InvalidProducerIdMapping),
    ] {
        assert_eq!(world.add(producer, &[("orders", 0)]), Err(error));
        assert_eq!(world.add_offsets(producer, GROUP), Err(error));
        assert_eq!(world.verify(producer, "orders", 0), Err(error));
        assert_eq!(world.verify_offsets(producer, GROUP), Err(error));
        assert_eq!(world.end(producer, Outcome::Committed), Err(error));
    }
    assert_eq!(world.add(second, &[("orders", 0)]), Ok(()));
}

#[test]
fn nothing_is_added_while_the_transaction_before_is_being_ended() {
    let mut world = World::new();
    let producer = world.ongoing();
    world.end(producer, Outcome::Committed).unwrap();
    assert_eq!(
        world.add(producer, &[("orders", 0)]),
        Err(ConcurrentTransactions)
    );
    assert_eq!(
        world.add_offsets(producer, GROUP),
        Err(ConcurrentTransactions)
    );
    assert_eq!(
        world.verify(producer, "orders", 0),
        Err(ConcurrentTransactions)
    );
    world.deliver_outcomes();
    assert_eq!(world.add(producer, &[("orders", 0)]), Ok(()));
}

#[test]
fn only_participants_of_a_transaction_are_verified() {
    let mut world = World::new();
    let producer = world.ongoing();
    assert_eq!(world.verify(producer, "orders", 0), Ok(()));
    assert_eq!(
        world.verify(producer, "orders", 1),
        Err(TransactionAbortable)
    );
    assert_eq!(
        world.verify_offsets(producer, GROUP),
        Err(TransactionAbortable)
    );
    world.add_offsets(producer, GROUP).unwrap();
    assert_eq!(world.verify_offsets(producer, GROUP), Ok(()));
    world.end(producer, Outcome::Aborted).unwrap();
    world.deliver_outcomes();
    assert_eq!(
        world.verify(producer, "orders", 0),
        Err(TransactionAbortable)
    );
    assert_eq!(
        world.verify_offsets(producer, GROUP),
        Err(TransactionAbortable)
    );
}

#[test]
fn a_request_without_transactional_id_is_invalid() {
    let mut world = World::new();
    let add = AddPartitions {
        transactional_id: "".into(),
        ..add(producer(0, 0), &[("orders", 0)])
    };
    assert_eq!(world.add_with(add), Err(InvalidRequest));
    let end = EndTransaction {
        transactional_id: "".into(),
        ..end(producer(0, 0), Outcome::Committed)
    };
    assert_eq!(world.end_with(end), Err(InvalidRequest));
}
