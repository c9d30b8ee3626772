//! Transactions that stay open until they are decided from outside (KIP-939).

use millstream_broker::transactions::*;

use crate::support::*;

fn two_phase(expected: Option<Producer>) -> InitProducerId {
    InitProducerId {
        two_phase: true,
        ..init(expected)
    }
}

#[test]
fn neither_time_nor_a_restart_nor_expiry_ends_a_transaction_of_two_phases() {
    let mut world = World::new();
    let producer = world.init_with(two_phase(None)).unwrap();
    world.add(producer, &[("orders", 0)]).unwrap();
    world.pass(100 * TIMEOUT);
    assert_eq!(world.state(), State::Ongoing);
    world.restart();
    world.pass(2 * world.config.transactional_id_retention);
    assert_eq!(world.state(), State::Ongoing);
    let described = world.describe(ID).unwrap();
    assert_eq!((described.timeout, described.producer), (None, producer));
    world.end_and_bump(producer, Outcome::Committed).unwrap();
    world.deliver_outcomes();
    assert_eq!(world.state(), State::CompleteCommit);
}

#[test]
fn the_next_producer_gets_the_timeout_it_requests() {
    let mut world = World::new();
    let first = world.init_with(two_phase(None)).unwrap();
    world.add(first, &[("orders", 0)]).unwrap();
    // It aborts the open transaction.
    assert_eq!(world.init(), Err(TransactionError::ConcurrentTransactions));
    world.deliver_outcomes();
    let second = world.init().unwrap();
    world.add(second, &[("orders", 0)]).unwrap();
    world.pass(2 * TIMEOUT);
    world.deliver_outcomes();
    assert_eq!(world.state(), State::CompleteAbort);
}

#[test]
fn a_transaction_of_two_phases_has_a_timeout_of_any_length() {
    let mut world = World::new();
    let init = InitProducerId {
        timeout: 2 * world.config.timeout_max,
        ..two_phase(None)
    };
    assert!(world.init_with(init).is_ok());
}
