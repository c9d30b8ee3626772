//! Bounds on the memory that clients can take.

use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

fn begin(world: &mut World, id: &str) -> Answered<Producer> {
    world.init_with(InitProducerId {
        transactional_id: Some(id.into()),
        ..init(None)
    })
}

#[test]
fn transactional_ids_are_bounded() {
    let config = Config {
        transactional_ids_max: 2,
        ..Config::default()
    };
    let mut world = World::with(config);
    begin(&mut world, "a").unwrap();
    begin(&mut world, "b").unwrap();
    assert_eq!(begin(&mut world, "c"), Err(PolicyViolation));
    assert_eq!(begin(&mut world, "a"), Ok(producer(0, 1)));
    world.pass(2 * world.config.transactional_id_retention);
    assert!(begin(&mut world, "c").is_ok());
}

#[test]
fn partitions_of_a_transaction_are_bounded() {
    let mut world = World::new();
    let producer = world.init().unwrap();
    let most = config::PARTICIPANTS_PER_TRANSACTION_MAX as i32 + 1;
    let all: Vec<_> = (0..most).map(|number| ("orders", number)).collect();
    assert_eq!(world.add(producer, &all), Err(PolicyViolation));
    assert_eq!(world.state(), State::Empty, "all of them or none");
    assert_eq!(world.add(producer, &all[1..]), Ok(()));
    assert_eq!(world.add(producer, &all[..1]), Err(PolicyViolation));
    assert_eq!(world.add_offsets(producer, GROUP), Err(PolicyViolation));
    assert_eq!(
        world.add(producer, &all[1..]),
        Ok(()),
        "those take part already"
    );
    assert_eq!(world.end(producer, Outcome::Committed), Ok(producer));
}

#[test]
fn name_bytes_of_a_transaction_are_bounded() {
    let mut world = World::new();
    let producer = world.init().unwrap();
    let long = "x".repeat(config::NAME_BYTES_MAX + 1);
    assert_eq!(world.add(producer, &[(&long, 0)]), Err(InvalidRequest));
    assert_eq!(world.add(producer, &[("", 0)]), Err(InvalidRequest));
    assert_eq!(world.add_offsets(producer, &long), Err(InvalidRequest));

    let room = config::NAME_BYTES_PER_TRANSACTION_MAX / config::NAME_BYTES_MAX;
    let name = |number: usize| format!("{number:04}").repeat(config::NAME_BYTES_MAX / 4);
    for number in 0..room {
        assert_eq!(world.add_offsets(producer, &name(number)), Ok(()));
    }
    assert_eq!(
        world.add_offsets(producer, &name(room)),
        Err(PolicyViolation)
    );
    assert_eq!(world.add(producer, &[("x", 0)]), Err(PolicyViolation));
    let largest = world
        .records
        .iter()
        .filter_map(|record| record.value.as_ref());
    assert!(largest.map(|value| value.len()).max() < Some(1 << 20));
}

#[test]
fn name_bytes_of_all_transactions_are_bounded() {
    let config = Config {
        name_bytes_max: ID.len() + 10,
        ..Config::default()
    };
    let mut world = World::with(config);
    let mut current = world.init().unwrap();
    assert_eq!(begin(&mut world, "01234567890"), Err(PolicyViolation));
    // The memory of a transaction is freed with its end, also over restarts.
    for _ in 0..3 {
        assert_eq!(world.add(current, &[("0123456789", 0)]), Ok(()));
        assert_eq!(world.add(current, &[("0123456789", 1)]), Ok(()));
        assert_eq!(world.add(current, &[("x", 0)]), Err(PolicyViolation));
        world.restart();
        assert_eq!(world.add(current, &[("x", 0)]), Err(PolicyViolation));
        current = world.end_and_bump(current, Outcome::Committed).unwrap();
        assert_eq!(begin(&mut world, "b"), Err(PolicyViolation));
        world.deliver_outcomes();
    }
    assert!(begin(&mut world, "0123456789").is_ok());
    assert_eq!(world.add(current, &[("x", 0)]), Err(PolicyViolation));
}

#[test]
fn a_forgotten_transactional_id_gives_its_bytes_back() {
    let config = Config {
        name_bytes_max: 10,
        ..Config::default()
    };
    let mut world = World::with(config);
    for id in ["0123456789", "9876543210"] {
        assert!(begin(&mut world, id).is_ok());
        assert_eq!(begin(&mut world, "x"), Err(PolicyViolation));
        world.pass(2 * world.config.transactional_id_retention);
    }
}
