//! A coordinator that resumes from the end of the log.

use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

#[test]
fn an_interrupted_ending_continues_after_a_restart() {
    for outcome in [Outcome::Committed, Outcome::Aborted] {
        let mut world = World::new();
        let producer = world.ongoing();
        world.add(producer, &[("orders", 1)]).unwrap();
        world.add_offsets(producer, GROUP).unwrap();
        world.end(producer, outcome).unwrap();
        let before = world.markers.clone();
        let (ending, _) = before[0].clone();
        world.report(Report::MarkersWritten(ending, partitions(&[("orders", 0)])));

        world.restart();
        assert_eq!(world.end(producer, outcome), Err(ConcurrentTransactions));
        world.pass(SECOND);
        assert_eq!(world.markers, before, "also the markers written already");
        assert_eq!(world.groups.len(), 1);
        world.pass(TIMEOUT);
        assert_eq!(
            world.markers.len(),
            1,
            "and not again before it is reported"
        );
        world.deliver_outcomes();
        assert_eq!(world.end(producer, outcome), Ok(producer));
    }
}

#[test]
fn an_ending_without_participants_is_completed() {
    let mut world = World::new();
    let first = world.init().unwrap();
    world.end_and_bump(first, Outcome::Aborted).unwrap();
    // The log ends between the two records.
    world.records.pop();
    let records = world.records.clone();
    world.coordinator = Coordinator::restore(Config::default(), world.now, records).unwrap();
    assert_eq!(world.state(), State::PrepareAbort);
    let actions = world.coordinator.tick(world.now);
    assert!(matches!(actions[..], [Action::Persist(_)]), "{actions:?}");
    assert_eq!(world.state(), State::CompleteAbort);
}

#[test]
fn an_open_transaction_keeps_its_remaining_time_over_a_restart() {
    let mut world = World::new();
    let producer = world.ongoing();
    world.pass(TIMEOUT / 2);
    world.restart();
    assert_eq!(world.verify(producer, "orders", 0), Ok(()));
    world.pass(TIMEOUT / 2 - SECOND);
    assert_eq!(world.state(), State::Ongoing);
    world.pass(SECOND);
    assert_eq!(world.state(), State::PrepareAbort);
}

#[test]
fn a_clock_that_was_set_back_gives_no_more_than_the_whole_time() {
    let mut world = World::new();
    world.ongoing();
    world.now.timestamp.0 -= 1 << 40;
    world.restart();
    world.pass(TIMEOUT);
    assert_eq!(world.state(), State::PrepareAbort);
}

#[test]
fn a_transaction_whose_time_passed_meanwhile_is_aborted_at_once() {
    let mut world = World::new();
    world.ongoing();
    world.now.timestamp.0 += 1 << 40;
    world.restart();
    world.pass(SECOND);
    assert_eq!(world.state(), State::PrepareAbort);
}

#[test]
fn records_of_unknown_kinds_are_refused() {
    let record = Record {
        key: b"\x07"[..].into(),
        value: None,
    };
    let world = World::new();
    let restored = Coordinator::restore(Config::default(), world.now, [record]);
    assert!(matches!(
        restored,
        Err(RecordError::Unknown { field: "kind", .. })
    ));

    let record = Record {
        key: b"\x01"[..].into(),
        value: None,
    };
    let restored = Coordinator::restore(Config::default(), world.now, [record]);
    let field = "producer ids";
    let removed = RecordError::Removed { field };
    assert_eq!(restored.err(), Some(removed));
}
