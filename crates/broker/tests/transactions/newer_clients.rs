//! Clients that get a new epoch with every transaction (KIP-890).

use millstream_base::ProducerEpoch;
use millstream_broker::transactions::Outcome::*;
use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

#[test]
fn every_transaction_has_an_epoch_of_its_own() {
    let mut world = World::new();
    let first = world.ongoing();
    let second = world.end_and_bump(first, Committed);
    assert_eq!(second, Ok(producer(0, 1)));
    let second = second.unwrap();
    assert_eq!(
        world.markers[0].0.producer, second,
        "markers have the new epoch"
    );
    world.deliver_outcomes();
    assert_eq!(world.add(first, &[("orders", 0)]), Err(ProducerFenced));
    assert_eq!(world.add(second, &[("orders", 0)]), Ok(()));
    assert_eq!(world.end_and_bump(second, Aborted), Ok(producer(0, 2)));
}

#[test]
fn ending_a_transaction_again_gives_the_same_answer() {
    for (outcome, other) in [(Committed, Aborted), (Aborted, Committed)] {
        let mut world = World::new();
        let first = world.ongoing();
        let second = world.end_and_bump(first, outcome).unwrap();
        assert_eq!(
            world.end_and_bump(first, outcome),
            Err(ConcurrentTransactions)
        );
        assert_eq!(world.end_and_bump(first, other), Err(InvalidTxnState));
        world.restart();
        world.pass(SECOND);
        world.deliver_outcomes();
        assert_eq!(world.end_and_bump(first, outcome), Ok(second));
        assert_eq!(world.end_and_bump(first, other), Err(InvalidTxnState));
    }
}

#[test]
fn a_producer_with_an_unknown_result_may_abort() {
    // Nothing yet, after an abort, after a commit.
    for before in [None, Some(Aborted), Some(Committed)] {
        let mut world = World::new();
        let mut current = world.init().unwrap();
        if let Some(outcome) = before {
            world.add(current, &[("orders", 0)]).unwrap();
            current = world.end_and_bump(current, outcome).unwrap();
            world.deliver_outcomes();
        }
        assert_eq!(world.end_and_bump(current, Committed), Err(InvalidTxnState));
        let next = world.end_and_bump(current, Aborted).unwrap();
        assert_eq!(next.epoch.0, current.epoch.0 + 1);
        assert_eq!(world.state(), State::CompleteAbort);
        assert!(world.markers.is_empty());
        assert_eq!(
            world.end_and_bump(current, Aborted),
            Ok(next),
            "a repeated request"
        );
    }
}

#[test]
fn ending_after_reinitialization_is_fenced() {
    let mut world = World::new();
    let first = world.init().unwrap();
    world.go_on(first).unwrap();
    assert_eq!(world.end_and_bump(first, Aborted), Err(ProducerFenced));
    assert_eq!(world.end_and_bump(first, Committed), Err(ProducerFenced));
}

#[test]
fn the_next_transaction_waits_until_the_one_before_is_ended() {
    let mut world = World::new();
    let first = world.ongoing();
    let second = world.end_and_bump(first, Committed).unwrap();
    assert_eq!(
        world.add(second, &[("orders", 0)]),
        Err(ConcurrentTransactions)
    );
    assert_eq!(
        world.add_offsets(second, GROUP),
        Err(ConcurrentTransactions)
    );
    assert_eq!(
        world.end_and_bump(second, Aborted),
        Err(ConcurrentTransactions)
    );
    assert_eq!(world.go_on(second), Err(ConcurrentTransactions));
    world.deliver_outcomes();
    assert_eq!(world.add(second, &[("orders", 0)]), Ok(()));
}

#[test]
fn a_producer_that_missed_the_answer_to_its_commit_may_go_on() {
    let mut world = World::new();
    let first = world.ongoing();
    let second = world.end_and_bump(first, Committed).unwrap();
    assert_eq!(world.go_on(first), Err(ConcurrentTransactions));
    world.deliver_outcomes();
    assert_eq!(world.go_on(first), Ok(second));
}

#[test]
fn when_the_epochs_are_used_up_a_transaction_ends_with_a_new_producer_id() {
    let mut world = World::new();
    let mut last = world.init().unwrap();
    while last.epoch < ProducerEpoch(i16::MAX - 1) {
        // With nothing in it, so that it is ended at once.
        last = world.end_and_bump(last, Aborted).unwrap();
    }
    world.add(last, &[("orders", 0)]).unwrap();
    let next = world.end_and_bump(last, Committed);
    assert_eq!(next, Ok(producer(1, 0)));
    let next = next.unwrap();
    assert_eq!(world.markers[0].0.producer, producer(0, i16::MAX));
    assert_eq!(world.describe(ID).unwrap().producer, next);

    assert_eq!(
        world.add(next, &[("orders", 0)]),
        Err(ConcurrentTransactions)
    );
    assert_eq!(
        world.end_and_bump(last, Committed),
        Err(ConcurrentTransactions)
    );
    assert_eq!(world.go_on(next), Err(ConcurrentTransactions));
    world.restart();
    world.pass(SECOND);
    world.deliver_outcomes();
    assert_eq!(
        world.end_and_bump(last, Committed),
        Ok(next),
        "a repeated request"
    );
    assert_eq!(world.end_and_bump(last, Aborted), Err(InvalidTxnState));
    assert_eq!(world.go_on(last), Ok(next));
    assert_eq!(
        world.add(last, &[("orders", 0)]),
        Err(InvalidProducerIdMapping)
    );
    assert_eq!(world.add(next, &[("orders", 0)]), Ok(()));
}

#[test]
fn a_producer_may_switch_between_the_two_transaction_protocols() {
    let mut world = World::new();
    let first = world.ongoing();
    let second = world.end_and_bump(first, Committed).unwrap();
    world.deliver_outcomes();
    world.add(second, &[("orders", 0)]).unwrap();
    assert_eq!(world.end(second, Aborted), Ok(second));
    world.deliver_outcomes();
    assert_eq!(
        world.end_and_bump(first, Aborted),
        Err(ProducerFenced),
        "not the one it means"
    );
    world.add(second, &[("orders", 0)]).unwrap();
    assert_eq!(world.end_and_bump(second, Committed), Ok(producer(0, 2)));
}
