//! Groups of KIP-848: topics, assignors, offsets, access rules and descriptions.

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_base::ProducerId;
use millstream_broker::groups::*;

use crate::member::*;
use crate::support::*;

#[test]
fn the_server_assigns_the_member_id_in_version_0() {
    let mut world = world();
    let mut heartbeat = joining("");
    heartbeat.gets_member_id = true;
    let answer = beat(&mut world, heartbeat).unwrap();
    assert_eq!(answer.member.len(), 36);
    assert_eq!(
        beat(&mut world, joining("")),
        Err(GroupError::InvalidRequest)
    );
}

#[test]
fn members_follow_their_topics_as_these_come_grow_and_go() {
    let mut world = world();
    let mut heartbeat = joining("a");
    heartbeat.topics = Some(vec!["orders".into(), "payments".into()]);
    let mut a = Consumer::join(&mut world, heartbeat).unwrap();
    assert_eq!(a.wanted, of(ORDERS, 0..4));
    world.put_topic("payments", PAYMENTS, 2);
    world.put_topic("orders", ORDERS, 5);
    a.beat(&mut world).unwrap();
    assert_eq!(a.wanted, &of(ORDERS, 0..5) | &of(PAYMENTS, 0..2));
    a.follow(&mut world).unwrap();

    world.remove_topic("orders");
    a.beat(&mut world).unwrap();
    assert_eq!(a.wanted, of(PAYMENTS, 0..2));
    a.follow(&mut world).unwrap();
    let epoch = a.epoch;

    // A topic that is created again under the same name has another id.
    world.put_topic("orders", 3, 1);
    a.beat(&mut world).unwrap();
    assert_eq!(a.wanted, &of(3, 0..1) | &of(PAYMENTS, 0..2));
    assert!(a.epoch > epoch);
}

#[test]
fn a_member_may_change_its_topics() {
    let mut world = world();
    world.put_topic("payments", PAYMENTS, 2);
    let mut a = join_one(&mut world, "a");
    let mut heartbeat = staying(&a.id, a.epoch);
    heartbeat.topics = Some(vec!["payments".into()]);
    let answer = beat(&mut world, heartbeat).unwrap();
    assert_eq!(set(&answer.assignment.clone().unwrap()), BTreeSet::new());
    a.learn(&answer);
    a.follow(&mut world).unwrap();
    assert_eq!(a.wanted, of(PAYMENTS, 0..2));
}

#[test]
fn a_member_subscribes_by_regular_expression() {
    let mut world = world();
    world.put_topic("payments", PAYMENTS, 2);
    let mut heartbeat = joining("a");
    heartbeat.topics = None;
    heartbeat.regex = Some("pay.*".into());
    let mut a = Consumer::join(&mut world, heartbeat.clone()).unwrap();
    assert_eq!(a.wanted, of(PAYMENTS, 0..2));
    world.put_topic("pay", 3, 1);
    world.put_topic("my-pay", 4, 1);
    a.beat(&mut world).unwrap();
    assert_eq!(a.wanted, &of(PAYMENTS, 0..2) | &of(3, 0..1));
    world.restart();
    let epoch = a.epoch;
    a.beat(&mut world).unwrap();
    assert_eq!(a.epoch, epoch, "a restart is no change");

    heartbeat.member = "b".into();
    heartbeat.regex = Some("(".into());
    assert_eq!(
        beat(&mut world, heartbeat),
        Err(GroupError::InvalidRegularExpression)
    );
    assert_eq!(described(&mut world).members.len(), 1);
}

/// Lets members see the topics whose names begin with theirs.
#[derive(Debug)]
struct OwnPrefix;

impl TopicAccess for OwnPrefix {
    fn of(&self, principal: &str, host: &str) -> Option<Sees<'_>> {
        assert_eq!(host, "127.0.0.1");
        let prefix = principal.to_owned();
        Some(Box::new(move |topic| topic.starts_with(&prefix)))
    }
}

#[test]
fn a_regular_expression_matches_only_describable_topics() {
    let mut world = World::new();
    world.coordinator.set_access(Arc::new(OwnPrefix));
    world.put_topic("pay-a", 1, 1);
    world.put_topic("pay-b", 2, 1);
    let heartbeat = |id: &str| ConsumerHeartbeat {
        topics: None,
        regex: Some("pay.*".into()),
        principal: format!("pay-{id}").into(),
        ..joining(id)
    };
    let a = Consumer::join(&mut world, heartbeat("a")).unwrap();
    let b = Consumer::join(&mut world, heartbeat("b")).unwrap();
    assert_eq!((a.wanted, b.wanted), (of(1, 0..1), of(2, 0..1)));

    // The group asks the rules again when the member has another principal, and when the rules have changed.
    let beat_as = |world: &mut World, principal: &str, epoch| {
        let mut heartbeat = staying(&a.id, epoch);
        heartbeat.principal = principal.into();
        let answer = beat(world, heartbeat).unwrap();
        (answer.epoch, answer.assignment.map(|given| set(&given)))
    };
    assert_eq!(beat_as(&mut world, "pay-a", a.epoch), (Epoch(2), None));
    assert_eq!(beat_as(&mut world, "pay-", Epoch(2)), (Epoch(3), None));
    let nothing = (Epoch(3), Some(of(1, 0..0)));
    world.coordinator.set_access(Arc::new(HidesAll));
    assert_eq!(beat_as(&mut world, "pay-", Epoch(3)), (Epoch(3), None));
    world.coordinator.access_changed();
    assert_eq!(beat_as(&mut world, "pay-", Epoch(3)), nothing);
}

/// Hides all topics from all members.
#[derive(Debug)]
struct HidesAll;

impl TopicAccess for HidesAll {
    fn of(&self, _principal: &str, _host: &str) -> Option<Sees<'_>> {
        Some(Box::new(|_| false))
    }
}

#[test]
fn the_assignor_that_most_members_want_is_used() {
    let mut world = world();
    world.put_topic("payments", PAYMENTS, 4);
    let heartbeat = |id: &str| ConsumerHeartbeat {
        assignor: Some("range".into()),
        topics: Some(vec!["orders".into(), "payments".into()]),
        ..joining(id)
    };
    let mut a = Consumer::join(&mut world, heartbeat("a")).unwrap();
    let mut b = Consumer::join(&mut world, heartbeat("b")).unwrap();
    a.beat(&mut world).unwrap();
    a.follow(&mut world).unwrap();
    b.beat(&mut world).unwrap();
    assert_eq!(&*described(&mut world).assignor, "range");
    assert_eq!(a.wanted, &of(ORDERS, 0..2) | &of(PAYMENTS, 0..2));
    assert_eq!(b.wanted, &of(ORDERS, 2..4) | &of(PAYMENTS, 2..4));

    let mut other = heartbeat("c");
    other.assignor = Some("sticky".into());
    assert_eq!(
        beat(&mut world, other),
        Err(GroupError::UnsupportedAssignor)
    );
}

#[test]
fn heartbeats_that_make_no_sense_are_refused() {
    let mut world = world();
    let cases: [fn(&mut ConsumerHeartbeat); 8] = [
        |beat| beat.group = "".into(),
        |beat| beat.instance = Some(" ".into()),
        |beat| beat.rack = Some("".into()),
        |beat| beat.rebalance_timeout = None,
        |beat| beat.owned = None,
        |beat| beat.owned = Some(vec![(TopicId(ORDERS), vec![Partition(0)])]),
        |beat| beat.topics = None,
        |beat| beat.epoch = Epoch(-3),
    ];
    for case in cases {
        let mut heartbeat = joining("a");
        case(&mut heartbeat);
        assert_eq!(beat(&mut world, heartbeat), Err(GroupError::InvalidRequest));
    }
    let leaving = staying(&"a".into(), Epoch::LEAVE_FOR_NOW);
    assert_eq!(beat(&mut world, leaving), Err(GroupError::InvalidRequest));
    let staying = staying(&"a".into(), Epoch(1));
    assert_eq!(beat(&mut world, staying), Err(GroupError::GroupIdNotFound));
    assert!(world.log.is_empty());
}

/// Commits an offset of each partition of `orders` alone, as of an epoch; returns the partitions that accept it.
fn commits_taken(world: &mut World, member: &MemberId, epoch: i32) -> Vec<i32> {
    let taken = (0..4).filter(|partition| {
        let mut commit = commit("orders", 5);
        commit.member = member.clone();
        commit.generation = Generation(epoch);
        commit.topics[0].partitions[0].partition = Partition(*partition);
        match world.commit(commit) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, GroupError::StaleMemberEpoch);
                false
            }
        }
    });
    taken.collect()
}

#[test]
fn an_older_epoch_commits_only_partitions_owned_then_and_now() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    // The member is to give up two partitions, and may commit until it has.
    a.beat(&mut world).unwrap();
    assert_eq!(commits_taken(&mut world, &a.id, 1), [0, 1, 2, 3]);
    a.follow(&mut world).unwrap();
    b.beat(&mut world).unwrap();
    let retained: Vec<i32> = a.wanted.iter().map(|(_, partition)| *partition).collect();
    assert_eq!((a.epoch, retained.len()), (Epoch(2), 2));
    assert_eq!(commits_taken(&mut world, &a.id, 1), retained);

    // The member did not have its later partitions in the earlier epoch.
    b.leave(&mut world, Epoch::LEAVE).unwrap();
    a.beat(&mut world).unwrap();
    a.follow(&mut world).unwrap();
    assert_eq!((a.epoch, a.wanted.len()), (Epoch(3), 4));
    for restarted in [false, true] {
        if restarted {
            world.restart();
        }
        assert_eq!(commits_taken(&mut world, &a.id, 0), Vec::<i32>::new());
        assert_eq!(commits_taken(&mut world, &a.id, 1), retained);
        assert_eq!(commits_taken(&mut world, &a.id, 2), retained);
        assert_eq!(commits_taken(&mut world, &a.id, 3), [0, 1, 2, 3]);
        assert_eq!(commits_taken(&mut world, &a.id, 4), Vec::<i32>::new());
    }
}

#[test]
fn commits_and_fetches_name_the_current_epoch() {
    let mut world = world();
    let a = join_one(&mut world, "a");
    let mut commit = commit("orders", 5);
    assert_eq!(
        world.commit(commit.clone()),
        Err(GroupError::UnknownMemberId)
    );
    commit.member = a.id.clone();
    commit.generation = Generation(0);
    assert_eq!(
        world.commit(commit.clone()),
        Err(GroupError::StaleMemberEpoch)
    );
    commit.generation = Generation(1);
    assert_eq!(world.commit(commit.clone()), Ok(()));
    commit.knows_member_epochs = false;
    assert_eq!(world.commit(commit), Err(GroupError::UnsupportedVersion));

    let mut fetch = FetchOffsets {
        group: GROUP.into(),
        member: Some(a.id.clone()),
        member_epoch: Generation(1),
        topics: None,
        require_stable: true,
    };
    let Answer::FetchOffsets(Ok(topics)) = world.ask(Request::FetchOffsets(fetch.clone())) else {
        panic!("fetched");
    };
    assert_eq!(topics.len(), 1);
    fetch.member_epoch = Generation(2);
    let answer = world.ask(Request::FetchOffsets(fetch));
    assert_eq!(
        answer,
        Answer::FetchOffsets(Err(GroupError::StaleMemberEpoch))
    );
    assert_eq!(
        world.fetch("orders", true),
        Ok(Some(5)),
        "an administrator names no member"
    );

    let in_transaction = CommitTransactionOffsets {
        group: GROUP.into(),
        producer: ProducerId(1),
        member: a.id,
        instance: None,
        generation: Generation(4),
        topics: topic_commits("orders", 6),
    };
    let answer = world.ask(Request::CommitTransactionOffsets(in_transaction));
    let Answer::CommitTransactionOffsets(topics) = answer else {
        panic!("committed");
    };
    assert_eq!(
        topics[0].partitions[0].1,
        Err(GroupError::IllegalGeneration)
    );
}

#[test]
fn an_empty_group_may_change_its_protocol() {
    let mut world = world();
    let members = world.stable_group(&["classic"]);
    assert_eq!(world.commit(commit_by(&members[0], "orders", 5)), Ok(()));
    // The protocol cannot change while the group has members.
    let error = beat(&mut world, joining("a")).unwrap_err();
    assert_eq!(error, GroupError::GroupIdNotFound);
    world.pass(SESSION + SECOND);

    let a = join_one(&mut world, "a");
    assert_eq!(world.fetch("orders", true), Ok(Some(5)), "its offsets stay");
    assert_eq!(world.list(&[], &["consumer"])[0].state, GroupState::Stable);
    let classic = world.describe();
    assert_eq!(
        (classic.state, classic.error),
        (GroupState::Dead, Some(GroupError::GroupIdNotFound))
    );
    let error = join_error(world.ask(Request::JoinGroup(join("classic"))));
    assert_eq!(error, GroupError::InconsistentGroupProtocol);
    assert_eq!(
        world.heartbeat(&members[0]),
        Err(GroupError::UnknownMemberId)
    );
    assert_eq!(
        left(world.ask(leave(&[("a", None)]))),
        [Some(GroupError::UnknownMemberId)]
    );

    a.leave(&mut world, Epoch::LEAVE).unwrap();
    world.restart();
    let members = world.stable_group(&["classic"]);
    assert_eq!(members[0].members.len(), 1);
    assert_eq!(world.fetch("orders", true), Ok(Some(5)));
}

#[test]
fn groups_are_described_and_deleted() {
    let mut world = world();
    let missing = described(&mut world);
    assert_eq!(
        (missing.state, missing.error),
        (GroupState::Dead, Some(GroupError::GroupIdNotFound))
    );
    let mut heartbeat = joining("a");
    heartbeat.rack = Some("here".into());
    heartbeat.regex = Some("x+".into());
    let a = Consumer::join(&mut world, heartbeat).unwrap();
    let group = described(&mut world);
    let member = &group.members[0];
    assert_eq!((&*member.member, member.epoch), ("a", Epoch(1)));
    assert_eq!(
        (member.rack.as_deref(), member.regex.as_deref()),
        (Some("here"), Some("x+"))
    );
    let orders = TopicAssignment {
        id: TopicId(ORDERS),
        topic: "orders".into(),
        partitions: (0..4).map(Partition).collect(),
    };
    assert_eq!(member.assigned, [orders]);
    assert_eq!(member.assigned, member.target);
    assert_eq!(world.delete_group(), Err(GroupError::NonEmptyGroup));
    a.leave(&mut world, Epoch::LEAVE).unwrap();
    let group = described(&mut world);
    assert_eq!(
        (group.state, group.epoch, group.target_epoch),
        (GroupState::Empty, Epoch(2), Epoch(2))
    );
    assert_eq!(world.delete_group(), Ok(()));
    assert!(world.log.is_empty());
}

#[test]
fn a_full_group_takes_a_static_member_back_but_no_new_one() {
    let mut world = World::with(Config {
        members_max: 1,
        ..Config::default()
    });
    world.put_topic("orders", ORDERS, 4);
    let static_joining = |id: &str| ConsumerHeartbeat {
        instance: Some("one".into()),
        ..joining(id)
    };
    let one = Consumer::join(&mut world, static_joining("first")).unwrap();
    assert_eq!(
        beat(&mut world, joining("b")),
        Err(GroupError::GroupMaxSizeReached)
    );
    one.leave(&mut world, Epoch::LEAVE_FOR_NOW).unwrap();
    Consumer::join(&mut world, static_joining("second")).unwrap();
}
