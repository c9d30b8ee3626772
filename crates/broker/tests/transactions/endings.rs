//! Transactions end, as older clients end them, or by their timeout.

use std::time::Duration;

use millstream_base::ProducerEpoch;
use millstream_broker::groups::RequestId;
use millstream_broker::transactions::TransactionError::*;
use millstream_broker::transactions::*;

use crate::support::*;

#[test]
fn the_outcome_is_persisted_before_markers_are_written() {
    let mut world = World::new();
    let producer = world.ongoing();
    let request = Request::EndTransaction(end(producer, Outcome::Committed));
    let actions = world.coordinator.handle(world.now, RequestId(0), request);
    let [
        Action::Persist(_),
        Action::WriteMarkers(ending, written),
        Action::Answer(_, answer),
    ] = &actions[..]
    else {
        panic!("persisted, sent, answered, not {actions:?}");
    };
    assert_eq!(*answer, Answer::EndTransaction(Ok(producer)));
    assert_eq!(*written, partitions(&[("orders", 0)]));
    assert_eq!(
        (ending.producer, ending.outcome),
        (producer, Outcome::Committed)
    );
}

#[test]
fn a_transaction_ends_when_all_participants_have_the_outcome() {
    for (outcome, prepared, complete) in [
        (
            Outcome::Committed,
            State::PrepareCommit,
            State::CompleteCommit,
        ),
        (Outcome::Aborted, State::PrepareAbort, State::CompleteAbort),
    ] {
        let mut world = World::new();
        let producer = world.ongoing();
        world.add(producer, &[("orders", 1)]).unwrap();
        world.add_offsets(producer, GROUP).unwrap();
        assert_eq!(world.end(producer, outcome), Ok(producer));
        let (ending, _) = world.markers[0].clone();

        let first = partitions(&[("orders", 0)]);
        world.report(Report::MarkersWritten(ending.clone(), first));
        let described = world.describe(ID).unwrap();
        assert_eq!(described.state, prepared);
        assert_eq!(described.partitions, partitions(&[("orders", 1)]));
        assert_eq!(described.groups, [GROUP.into()]);

        let second = partitions(&[("orders", 1)]);
        world.report(Report::MarkersWritten(ending.clone(), second));
        assert_eq!(world.state(), prepared);
        world.report(Report::GroupOffsetsEnded(ending, vec![GROUP.into()]));
        assert_eq!(world.state(), complete);
        assert_eq!(world.describe(ID).unwrap().partitions, []);
    }
}

#[test]
fn ending_a_transaction_twice_the_same_way_is_idempotent() {
    for outcome in [Outcome::Committed, Outcome::Aborted] {
        let other = match outcome {
            Outcome::Committed => Outcome::Aborted,
            Outcome::Aborted => Outcome::Committed,
        };
        let mut world = World::new();
        let producer = world.ongoing();
        world.end(producer, outcome).unwrap();
        assert_eq!(world.end(producer, outcome), Err(ConcurrentTransactions));
        assert_eq!(world.end(producer, other), Err(InvalidTxnState));
        world.deliver_outcomes();
        assert_eq!(world.end(producer, outcome), Ok(producer));
        assert_eq!(world.end(producer, other), Err(InvalidTxnState));
    }
}

#[test]
fn ending_a_transaction_that_never_began_is_refused() {
    let mut world = World::new();
    let producer = world.init().unwrap();
    assert_eq!(
        world.end(producer, Outcome::Committed),
        Err(InvalidTxnState)
    );
    assert_eq!(world.end(producer, Outcome::Aborted), Err(InvalidTxnState));
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() {
    let mut world = World::new();
    let old = world.ongoing();
    world.pass(TIMEOUT / 2);
    world.add(old, &[("orders", 1)]).unwrap();
    world.pass(TIMEOUT / 2 - SECOND);
    assert_eq!(
        world.state(),
        State::Ongoing,
        "it has its time from its begin on"
    );
    world.pass(SECOND);
    assert_eq!(world.state(), State::PrepareAbort);
    let (ending, _) = &world.markers[0];
    assert_eq!(
        (ending.producer, ending.outcome),
        (producer(0, 1), Outcome::Aborted)
    );
    for is_delivered in [false, true] {
        if is_delivered {
            world.deliver_outcomes();
        }
        assert_eq!(world.add(old, &[("orders", 1)]), Err(ProducerFenced));
        assert_eq!(world.verify(old, "orders", 0), Err(ProducerFenced));
        assert_eq!(world.end(old, Outcome::Committed), Err(ProducerFenced));
        assert_eq!(
            world.end_and_bump(old, Outcome::Aborted),
            Err(ProducerFenced)
        );
        assert_eq!(world.go_on(old), Err(ProducerFenced));
    }
    assert_eq!(world.init(), Ok(producer(0, 2)));
}

#[test]
fn a_transaction_that_is_ended_in_time_is_not_aborted_later() {
    let mut world = World::new();
    let producer = world.ongoing();
    world.pass(TIMEOUT - SECOND);
    world.end(producer, Outcome::Committed).unwrap();
    world.pass(2 * TIMEOUT);
    assert_eq!(world.state(), State::PrepareCommit);
    world.deliver_outcomes();
    world.pass(2 * TIMEOUT);
    assert_eq!(world.state(), State::CompleteCommit);
}

#[test]
fn failed_markers_are_written_again_after_a_backoff() {
    let mut world = World::new();
    let producer = world.ongoing();
    world
        .add(producer, &[("orders", 1), ("orders", 2)])
        .unwrap();
    world.add_offsets(producer, GROUP).unwrap();
    world.end(producer, Outcome::Committed).unwrap();
    let (ending, all) = world.markers.remove(0);
    assert_eq!(all.len(), 3);
    world.groups.clear();

    world.report(Report::MarkersWritten(
        ending.clone(),
        partitions(&[("orders", 0)]),
    ));
    let failed = partitions(&[("orders", 1)]);
    world.report(Report::MarkersFailed(ending.clone(), failed.clone()));
    world.report(Report::GroupOffsetsFailed(
        ending.clone(),
        vec![GROUP.into()],
    ));
    assert!(world.markers.is_empty(), "not at once");
    world.pass(config::RETRY_BACKOFF_MIN);
    assert_eq!(world.markers, [(ending.clone(), failed.clone())]);
    assert_eq!(world.groups.len(), 1);

    // Partition 2 is still in flight. The longer it lasts, the fewer the attempts.
    world.markers.clear();
    world.report(Report::MarkersFailed(ending.clone(), failed.clone()));
    world.pass(config::RETRY_BACKOFF_MIN);
    assert!(world.markers.is_empty());
    world.pass(config::RETRY_BACKOFF_MIN);
    assert_eq!(world.markers, [(ending.clone(), failed)]);

    world.deliver_outcomes();
    assert_eq!(world.state(), State::PrepareCommit);
    world.report(Report::MarkersWritten(ending, partitions(&[("orders", 2)])));
    assert_eq!(world.state(), State::CompleteCommit);
}

#[test]
fn reports_about_other_endings_are_ignored() {
    let mut world = World::new();
    let producer = world.ongoing();
    world.end(producer, Outcome::Committed).unwrap();
    let (ending, all) = world.markers.remove(0);
    let others = [
        Ending {
            transactional_id: "other".into(),
            ..ending.clone()
        },
        Ending {
            outcome: Outcome::Aborted,
            ..ending.clone()
        },
        Ending {
            producer: crate::support::producer(0, 1),
            ..ending.clone()
        },
    ];
    for other in others {
        world.report(Report::MarkersWritten(other, all.clone()));
    }
    let strange = partitions(&[("payments", 7)]);
    world.report(Report::MarkersFailed(ending.clone(), strange));
    world.pass(Duration::from_secs(10));
    assert!(world.markers.is_empty());
    assert_eq!(world.state(), State::PrepareCommit);
    world.report(Report::MarkersWritten(ending.clone(), all.clone()));
    assert_eq!(world.state(), State::CompleteCommit);
    let records = world.records.len();
    world.report(Report::MarkersFailed(ending, all));
    assert_eq!(world.records.len(), records);
}

#[test]
fn transactions_of_different_producers_are_independent() {
    let mut world = World::new();
    let one = world.ongoing();
    let other = InitProducerId {
        transactional_id: Some("other".into()),
        ..init(None)
    };
    let other = world.init_with(other).unwrap();
    assert_ne!(one.id, other.id);
    let add = AddPartitions {
        transactional_id: "other".into(),
        ..add(other, &[("orders", 0)])
    };
    assert_eq!(world.add_with(add), Ok(()));
    world.end(one, Outcome::Aborted).unwrap();
    world.deliver_outcomes();
    assert_eq!(world.describe("other").unwrap().state, State::Ongoing);
    let mixed = EndTransaction {
        transactional_id: "other".into(),
        ..end(one, Outcome::Committed)
    };
    assert_eq!(world.end_with(mixed), Err(InvalidProducerIdMapping));
}

#[test]
fn an_administrator_aborts_all_of_a_transaction_by_one_of_its_partitions() {
    let mut world = World::new();
    let producer = world.ongoing();
    let abort = |world: &mut World, producer, number| {
        let partition = partitions(&[("orders", number)]).remove(0);
        let request = AbortTransaction {
            producer,
            partition,
        };
        match world.ask(Request::AbortTransaction(request)) {
            Answer::AbortTransaction(result) => result,
            other => panic!("aborted, not {other:?}"),
        }
    };
    let other = Producer {
        epoch: ProducerEpoch(producer.epoch.0 + 1),
        ..producer
    };
    assert_eq!(abort(&mut world, producer, 7), Ok(Abort::Unknown));
    assert_eq!(abort(&mut world, other, 0), Err(InvalidProducerEpoch));
    assert_eq!(world.state(), State::Ongoing);
    assert_eq!(abort(&mut world, producer, 0), Ok(Abort::UnderWay));
    assert_eq!(abort(&mut world, producer, 0), Ok(Abort::UnderWay));
    assert_eq!(world.state(), State::PrepareAbort);
    world.deliver_outcomes();
    assert_eq!(world.state(), State::CompleteAbort);
    assert_eq!(abort(&mut world, producer, 0), Ok(Abort::Unknown));
    assert_eq!(world.end(producer, Outcome::Committed), Err(ProducerFenced));

    // A decided outcome is final.
    let mut world = World::new();
    let producer = world.ongoing();
    world.end(producer, Outcome::Committed).unwrap();
    assert_eq!(abort(&mut world, producer, 0), Err(ConcurrentTransactions));
}
