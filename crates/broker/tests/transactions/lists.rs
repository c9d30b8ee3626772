//! Requests of administrators.

use std::time::Duration;

use millstream_base::ProducerId;
use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

/// Creates three transactional ids: one that is empty, one that is open for a minute, one that is
/// ended.
fn three() -> World {
    let mut world = World::new();
    let begin = |world: &mut World, id: &str| {
        let init = InitProducerId {
            transactional_id: Some(id.into()),
            timeout: 10 * TIMEOUT,
            ..init(None)
        };
        world.init_with(init).unwrap()
    };
    begin(&mut world, "a-empty");
    let open = begin(&mut world, "b-open");
    let ended = begin(&mut world, "c-ended");
    for (id, producer) in [("b-open", open), ("c-ended", ended)] {
        let add = AddPartitions {
            transactional_id: id.into(),
            ..add(producer, &[("orders", 0)])
        };
        world.add_with(add).unwrap();
        world.pass(60 * SECOND);
    }
    let end = EndTransaction {
        transactional_id: "c-ended".into(),
        ..end(ended, Outcome::Committed)
    };
    world.end_with(end).unwrap();
    world.deliver_outcomes();
    world
}

#[test]
fn transactions_are_listed_by_state() {
    let mut world = three();
    assert_eq!(
        world.listed(ListTransactions::default()),
        ["a-empty", "b-open", "c-ended"]
    );
    let list = ListTransactions {
        states: Some([State::Ongoing, State::Empty].into()),
        ..Default::default()
    };
    let listed = world.list(list.clone()).unwrap();
    assert_eq!(listed[1].state, State::Ongoing);
    assert_eq!(world.listed(list), ["a-empty", "b-open"]);
    let list = ListTransactions {
        states: Some([].into()),
        ..Default::default()
    };
    assert_eq!(world.listed(list), [""; 0]);
}

#[test]
fn transactions_are_listed_by_producer() {
    let mut world = three();
    let list = ListTransactions {
        producers: [ProducerId(1), ProducerId(77)].into(),
        ..Default::default()
    };
    assert_eq!(world.listed(list), ["b-open"]);
}

#[test]
fn transactions_are_listed_by_duration() {
    let mut world = three();
    let over = |seconds| ListTransactions {
        duration: Some(Duration::from_secs(seconds)),
        ..Default::default()
    };
    assert_eq!(world.listed(over(0)), ["b-open", "c-ended"]);
    assert_eq!(world.listed(over(60)), ["b-open"]);
    assert_eq!(world.listed(over(120)), [""; 0]);
}

#[test]
fn transactions_are_listed_by_a_pattern_of_the_whole_name() {
    let mut world = three();
    let named = |pattern: &str| ListTransactions {
        pattern: Some(pattern.into()),
        ..Default::default()
    };
    assert_eq!(world.listed(named("a|b-.*")), ["b-open"]);
    assert_eq!(world.listed(named("")).len(), 3);
    for pattern in ["(", "a)(b", r"\w{1000}{1000}"] {
        assert_eq!(world.list(named(pattern)), Err(InvalidRegularExpression));
    }
}

#[test]
fn a_transactional_id_is_described() {
    let mut world = three();
    let described = world.describe("c-ended").unwrap();
    assert_eq!(described.state.to_string(), "CompleteCommit");
    assert_eq!(described.producer, producer(2, 0));
    assert_eq!(described.timeout, Some(10 * TIMEOUT));
    let passed = world.now.timestamp.0 - described.started.unwrap().0;
    assert_eq!(passed, 60_000);
    assert_eq!(world.describe("a-empty").unwrap().started, None);
    assert_eq!(world.describe("d"), Err(TransactionalIdNotFound));
    assert_eq!(world.describe(""), Err(InvalidRequest));
}
