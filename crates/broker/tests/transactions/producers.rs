//! Producers begin, and go on after errors.

use std::time::Duration;

use millstream_base::ProducerEpoch;
use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

fn without_id() -> InitProducerId {
    InitProducerId {
        transactional_id: None,
        // Clients without transactions send this.
        timeout: Duration::from_millis(i32::MAX as u64),
        ..init(None)
    }
}

#[test]
fn without_a_transactional_id_each_request_gets_a_new_producer_id() {
    let mut world = World::new();
    assert_eq!(world.init_with(without_id()), Ok(producer(0, 0)));
    assert_eq!(world.init_with(without_id()), Ok(producer(1, 0)));
    let again = InitProducerId {
        expected: Some(producer(1, 0)),
        ..without_id()
    };
    assert_eq!(world.init_with(again), Ok(producer(2, 0)));
}

#[test]
fn a_restart_after_any_record_gives_no_producer_id_twice() {
    let mut world = World::new();
    for _ in 0..5 {
        let before = world.init_with(without_id()).unwrap();
        world.restart();
        let after = world.init_with(without_id()).unwrap();
        assert!(before.id < after.id);
    }
}

#[test]
fn a_producer_id_is_reserved_before_it_is_given() {
    let mut world = World::new();
    world.init_with(without_id()).unwrap();
    assert_eq!(world.records.len(), 1, "one record for a whole block");
    world.init_with(without_id()).unwrap();
    assert_eq!(world.records.len(), 1);
    world.init().unwrap();
    assert_eq!(world.records.len(), 2);
}

#[test]
fn a_known_transactional_id_gets_the_next_epoch() {
    let mut world = World::new();
    assert_eq!(world.init(), Ok(producer(0, 0)));
    assert_eq!(world.init(), Ok(producer(0, 1)));
    world.restart();
    assert_eq!(world.init(), Ok(producer(0, 2)));
    assert_eq!(world.state(), State::Empty);
}

#[test]
fn a_transactional_id_that_is_empty_or_too_long_is_refused() {
    let mut world = World::new();
    for id in [
        String::new(),
        "x".repeat(config::TRANSACTIONAL_ID_BYTES_MAX + 1),
    ] {
        let init = InitProducerId {
            transactional_id: Some(id.into()),
            ..init(None)
        };
        assert_eq!(world.init_with(init), Err(InvalidRequest));
    }
}

#[test]
fn a_timeout_of_zero_or_above_the_bound_is_refused() {
    let mut world = World::new();
    let longest = world.config.timeout_max;
    for timeout in [Duration::ZERO, longest + Duration::from_millis(1)] {
        let init = InitProducerId {
            timeout,
            ..init(None)
        };
        assert_eq!(world.init_with(init), Err(InvalidTransactionTimeout));
    }
    let init = InitProducerId {
        timeout: longest,
        ..init(None)
    };
    assert!(world.init_with(init).is_ok());
}

#[test]
fn a_new_producer_aborts_the_open_transaction_of_its_predecessor() {
    let mut world = World::new();
    let old = world.ongoing();
    assert_eq!(world.init(), Err(ConcurrentTransactions));
    assert_eq!(
        world.init(),
        Err(ConcurrentTransactions),
        "until the markers are there"
    );
    assert_eq!(world.end(old, Outcome::Committed), Err(ProducerFenced));
    assert_eq!(world.add(old, &[("orders", 1)]), Err(ProducerFenced));

    let (ending, _) = &world.markers[0];
    assert_eq!(
        (ending.producer, ending.outcome),
        (producer(0, 1), Outcome::Aborted)
    );
    world.deliver_outcomes();
    assert_eq!(world.state(), State::CompleteAbort);
    assert_eq!(world.init(), Ok(producer(0, 2)));
    assert_eq!(world.end(old, Outcome::Aborted), Err(ProducerFenced));
}

#[test]
fn a_reinitialization_gets_the_next_epoch_and_its_repetition_the_same_one() {
    let mut world = World::new();
    let first = world.init().unwrap();
    let second = world.go_on(first);
    assert_eq!(second, Ok(producer(0, 1)));
    assert_eq!(world.go_on(first), second, "the answer was lost");
    world.restart();
    assert_eq!(world.go_on(first), second);
    assert_eq!(world.go_on(producer(0, 1)), Ok(producer(0, 2)));
    assert_eq!(world.go_on(first), Err(ProducerFenced));
}

#[test]
fn a_reinitialization_is_fenced_by_a_newer_producer() {
    let mut world = World::new();
    let first = world.init().unwrap();
    world.init().unwrap();
    assert_eq!(world.go_on(first), Err(ProducerFenced));
    assert_eq!(
        world.go_on(producer(7, 1)),
        Err(ProducerFenced),
        "another producer's id"
    );
}

#[test]
fn a_reinitialization_under_a_forgotten_transactional_id_starts_anew() {
    let mut world = World::new();
    assert_eq!(world.go_on(producer(77, 3)), Ok(producer(0, 0)));
}

#[test]
fn a_reinitialization_aborts_the_open_transaction_of_its_producer() {
    let mut world = World::new();
    let old = world.ongoing();
    assert_eq!(world.go_on(old), Err(ConcurrentTransactions));
    world.deliver_outcomes();
    assert_eq!(world.go_on(old), Ok(producer(0, 1)));
    assert_eq!(world.end(old, Outcome::Aborted), Err(ProducerFenced));
}

#[test]
fn a_late_reinitialization_leaves_the_transaction_alone() {
    let mut world = World::new();
    let first = world.init().unwrap();
    let second = world.go_on(first).unwrap();
    world.add(second, &[("orders", 0)]).unwrap();
    assert_eq!(world.go_on(first), Err(ProducerFenced));
    assert_eq!(world.end(second, Outcome::Committed), Ok(second));
}

#[test]
fn after_the_last_epoch_there_is_a_new_producer_id() {
    let mut world = World::new();
    let mut last = world.init().unwrap();
    while last.epoch < ProducerEpoch(i16::MAX - 1) {
        last = next(&mut world, None);
    }
    assert_eq!(last, producer(0, i16::MAX - 1));
    assert_eq!(world.go_on(last), Ok(producer(1, 0)));
    assert_eq!(world.go_on(last), Ok(producer(1, 0)), "the answer was lost");
}

#[test]
fn a_producer_can_be_fenced_in_the_last_epoch_that_is_given() {
    for expected in [false, true] {
        let mut world = World::new();
        let mut last = world.init().unwrap();
        while last.epoch < ProducerEpoch(i16::MAX - 1) {
            last = next(&mut world, None);
        }
        world.add(last, &[("orders", 0)]).unwrap();
        let expected = expected.then_some(last);
        assert_eq!(world.init_with(init(expected)), Err(ConcurrentTransactions));
        assert_eq!(world.markers[0].0.producer, producer(0, i16::MAX));
        let unknown = producer(0, i16::MAX);
        assert_eq!(world.end(unknown, Outcome::Aborted), Err(ProducerFenced));
        world.deliver_outcomes();
        assert_eq!(world.init_with(init(expected)), Ok(producer(1, 0)));
    }
}

/// Returns the next producer, without a check of the persisted records.
fn next(world: &mut World, expected: Option<Producer>) -> Producer {
    let request = Request::InitProducerId(init(expected));
    let id = millstream_broker::groups::RequestId(0);
    let mut producer = None;
    for action in world.coordinator.handle(world.now, id, request) {
        match action {
            Action::Answer(_, Answer::InitProducerId(result)) => producer = Some(result.unwrap()),
            Action::Persist(record) => world.append(record),
            other => panic!("not {other:?}"),
        }
    }
    producer.unwrap()
}

#[test]
fn clients_without_fencing_get_an_invalid_epoch() {
    let mut world = World::new();
    let old = world.init().unwrap();
    world.init().unwrap();
    let init = InitProducerId {
        knows_fencing: false,
        ..init(Some(old))
    };
    assert_eq!(world.init_with(init), Err(InvalidProducerEpoch));
    let add = AddPartitions {
        knows_fencing: false,
        ..add(old, &[("orders", 0)])
    };
    assert_eq!(world.add_with(add), Err(InvalidProducerEpoch));
    let end = EndTransaction {
        knows_fencing: false,
        ..end(old, Outcome::Committed)
    };
    assert_eq!(world.end_with(end), Err(InvalidProducerEpoch));
}

#[test]
fn an_unused_transactional_id_is_forgotten_after_its_retention() {
    let mut world = World::new();
    let old = world.init().unwrap();
    let retention = world.config.transactional_id_retention;
    world.pass(retention / 2);
    let used = world.init().unwrap();
    world.pass(retention - SECOND);
    assert_eq!(world.state(), State::Empty);
    world.pass(world.config.retention_check_interval + SECOND);
    assert_eq!(world.describe(ID), Err(TransactionalIdNotFound));
    assert_eq!(
        world.add(used, &[("orders", 0)]),
        Err(InvalidProducerIdMapping)
    );
    world.restart();
    let new = world.init().unwrap();
    assert!(
        new.id > old.id,
        "it does not come back under the same producer id"
    );
}

#[test]
fn an_open_transaction_is_never_forgotten() {
    let config = Config {
        timeout_max: Duration::from_secs(1 << 30),
        ..Config::default()
    };
    let mut world = World::with(config);
    let init = InitProducerId {
        timeout: world.config.timeout_max,
        ..init(None)
    };
    let producer = world.init_with(init).unwrap();
    world.add(producer, &[("orders", 0)]).unwrap();
    world.pass(2 * world.config.transactional_id_retention);
    assert_eq!(world.end(producer, Outcome::Committed), Ok(producer));
    world.pass(2 * world.config.transactional_id_retention);
    assert_eq!(
        world.state(),
        State::PrepareCommit,
        "nor one whose markers are missing"
    );
}
