//! The protocol of KIP-848, step by step: which member has which partitions, and when.

use std::time::Duration;

use millstream_broker::groups::*;

use crate::member::*;
use crate::support::*;

#[test]
fn the_first_member_gets_everything_at_once() {
    let mut world = world();
    let answer = beat(&mut world, joining("a")).unwrap();
    assert_eq!((&*answer.member, answer.epoch), ("a", Epoch(1)));
    assert_eq!(answer.heartbeat_interval, Duration::from_secs(5));
    assert_eq!(set(&answer.assignment.unwrap()), of(ORDERS, 0..4));
    let group = described(&mut world);
    assert_eq!(
        (group.state, group.epoch, group.target_epoch),
        (GroupState::Stable, Epoch(1), Epoch(1))
    );
    assert_eq!(&*group.assignor, "uniform");

    // Nothing has changed, so there is no assignment.
    let answer = beat(&mut world, staying(&"a".into(), Epoch(1))).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (Epoch(1), None));
}

#[test]
fn a_partition_is_assigned_only_after_its_revocation() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    assert_eq!(
        (b.epoch, b.wanted.len()),
        (Epoch(2), 0),
        "nothing is free yet"
    );
    assert_eq!(described(&mut world).state, GroupState::Reconciling);

    a.beat(&mut world).unwrap();
    assert_eq!(
        (a.epoch, a.wanted.len()),
        (Epoch(1), 2),
        "it stays in its epoch"
    );
    b.beat(&mut world).unwrap();
    assert_eq!(
        b.wanted.len(),
        0,
        "and until it has given up, no other member gets a partition"
    );

    a.follow(&mut world).unwrap();
    assert_eq!(a.epoch, Epoch(2));
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 2);
    assert!(a.wanted.is_disjoint(&b.wanted));
    assert_eq!(described(&mut world).state, GroupState::Stable);
}

#[test]
fn partitions_of_a_leaving_member_go_to_the_others() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    a.beat(&mut world).unwrap();
    a.follow(&mut world).unwrap();
    b.beat(&mut world).unwrap();
    assert_eq!(b.leave(&mut world, Epoch::LEAVE), Ok(Epoch::LEAVE));
    assert_eq!(described(&mut world).state, GroupState::Assigning);
    a.beat(&mut world).unwrap();
    assert_eq!((a.wanted.len(), a.epoch), (4, Epoch(3)));
    assert_eq!(b.beat(&mut world), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_silent_member_is_removed() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    let session = world.config.consumer_session_timeout;
    world.pass(session - SECOND);
    b.beat(&mut world).unwrap();
    world.pass(2 * SECOND);
    assert_eq!(a.beat(&mut world), Err(GroupError::UnknownMemberId));
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 4);
}

#[test]
fn a_member_that_does_not_revoke_in_time_is_removed() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    for _ in 0..7 {
        a.beat(&mut world).unwrap();
        b.beat(&mut world).unwrap();
        assert_eq!((a.epoch, b.wanted.len()), (Epoch(1), 0));
        world.pass(REBALANCE / 8);
    }
    world.pass(REBALANCE / 4);
    assert_eq!(a.beat(&mut world), Err(GroupError::UnknownMemberId));
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 4);
}

#[test]
fn epochs_that_are_not_current_are_fenced() {
    let mut world = world();
    let a = join_one(&mut world, "a");
    let at = |epoch| staying(&a.id, Epoch(epoch));
    assert_eq!(beat(&mut world, at(2)), Err(GroupError::FencedMemberEpoch));
    let b = join_one(&mut world, "b");
    b.leave(&mut world, Epoch::LEAVE).unwrap();
    beat(&mut world, at(1)).unwrap();
    let mut c = join_one(&mut world, "c");
    c.leave(&mut world, Epoch::LEAVE).unwrap();
    beat(&mut world, at(3)).unwrap();
    assert_eq!(beat(&mut world, at(1)), Err(GroupError::FencedMemberEpoch));
    assert_eq!(c.beat(&mut world), Err(GroupError::UnknownMemberId));
}

#[test]
fn a_lost_answer_with_a_new_epoch_does_no_harm() {
    let mut world = world();
    let a = join_one(&mut world, "a");
    let b = join_one(&mut world, "b");
    b.leave(&mut world, Epoch::LEAVE).unwrap();
    let lost = beat(&mut world, staying(&a.id, Epoch(1))).unwrap();
    assert_eq!(lost.epoch, Epoch(3));
    // The member names the partitions that it owns, with the epoch that it knows.
    let mut again = staying(&a.id, Epoch(1));
    again.owned = Some(vec![(TopicId(ORDERS), (0..4).map(Partition).collect())]);
    assert_eq!(beat(&mut world, again).unwrap().epoch, Epoch(3));
    let mut with_more = staying(&a.id, Epoch(1));
    with_more.owned = Some(vec![(TopicId(PAYMENTS), vec![Partition(0)])]);
    assert_eq!(
        beat(&mut world, with_more),
        Err(GroupError::FencedMemberEpoch)
    );
}

#[test]
fn a_member_with_lost_state_rejoins_and_keeps_its_partitions() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    let again = join_one(&mut world, "a");
    // The member had no partitions left to give up.
    assert_eq!((again.epoch, again.wanted.len()), (Epoch(2), 2));
    a.wanted = again.wanted;
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 2);
    assert!(a.wanted.is_disjoint(&b.wanted));
}

#[test]
fn a_static_member_that_leaves_temporarily_gets_its_partitions_back() {
    let mut world = world();
    let static_joining = |id: &str| ConsumerHeartbeat {
        instance: Some("one".into()),
        ..joining(id)
    };
    let one = Consumer::join(&mut world, static_joining("first")).unwrap();
    let mut other = join_one(&mut world, "other");
    let taken = Consumer::join(&mut world, static_joining("second")).unwrap_err();
    assert_eq!(taken, GroupError::UnreleasedInstanceId);

    assert_eq!(
        one.leave(&mut world, Epoch::LEAVE_FOR_NOW),
        Ok(Epoch::LEAVE_FOR_NOW)
    );
    world.restart();
    other.beat(&mut world).unwrap();
    assert_eq!(other.wanted.len(), 0, "they wait for it");
    let mut back = Consumer::join(&mut world, static_joining("second")).unwrap();
    assert_eq!(back.epoch, Epoch(2));
    assert_eq!(back.wanted.len(), 2);
    assert!(back.wanted.is_subset(&one.wanted));
    other.beat(&mut world).unwrap();
    assert_eq!(other.wanted.len(), 2);

    // The first member is out now.
    let mut old = staying(&"first".into(), Epoch(1));
    assert_eq!(
        beat(&mut world, old.clone()),
        Err(GroupError::UnknownMemberId)
    );
    old.instance = Some("one".into());
    assert_eq!(beat(&mut world, old), Err(GroupError::FencedInstanceId));
    back.follow(&mut world).unwrap();
}

#[test]
fn a_static_member_that_does_not_return_is_removed() {
    let mut world = world();
    let heartbeat = ConsumerHeartbeat {
        instance: Some("one".into()),
        ..joining("first")
    };
    let one = Consumer::join(&mut world, heartbeat).unwrap();
    one.leave(&mut world, Epoch::LEAVE_FOR_NOW).unwrap();
    let session = world.config.consumer_session_timeout;
    world.pass(session + SECOND);
    assert_eq!(described(&mut world).state, GroupState::Empty);
}

#[test]
fn a_group_may_have_its_own_session_timeout() {
    let mut world = world();
    let own = GroupConfig {
        consumer_session_timeout: Some(10 * SECOND),
        ..GroupConfig::default()
    };
    world
        .coordinator
        .set_group_config(GROUP.into(), own.clone());
    world.config.of_groups.insert(GROUP.into(), own);
    for restarts in [false, true] {
        join_one(&mut world, "a");
        if restarts {
            world.restart();
        }
        world.pass(9 * SECOND);
        assert_ne!(described(&mut world).state, GroupState::Empty);
        world.pass(2 * SECOND);
        assert_eq!(described(&mut world).state, GroupState::Empty);
    }
}

#[test]
fn members_go_on_after_a_restart() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    a.beat(&mut world).unwrap();
    world.restart();
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 0);
    a.follow(&mut world).unwrap();
    world.restart();
    b.beat(&mut world).unwrap();
    assert_eq!((a.epoch, b.epoch, b.wanted.len()), (Epoch(2), Epoch(2), 2));

    // After a restart, a member that has yet to give up partitions gets its whole timeout again.
    let mut c = join_one(&mut world, "c");
    a.beat(&mut world).unwrap();
    b.beat(&mut world).unwrap();
    world.restart();
    for _ in 0..8 {
        for member in [&mut a, &mut b, &mut c] {
            member.beat(&mut world).unwrap();
        }
        world.pass(REBALANCE / 8);
    }
    assert_eq!(described(&mut world).members.len(), 2);
}
