//! The protocol of KIP-848, step by step.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_base::ProducerId;
use millstream_broker::groups::*;

use crate::support::*;

const ORDERS: u128 = 1;
const PAYMENTS: u128 = 2;

/// A member, as its client sees it.
#[derive(Debug, Clone)]
struct Consumer {
    id: MemberId,
    instance: Option<InstanceId>,
    epoch: Epoch,
    owned: BTreeSet<(u128, i32)>,
    /// What it was told to have.
    wanted: BTreeSet<(u128, i32)>,
}

fn world() -> World {
    let mut world = World::new();
    world.put_topic("orders", ORDERS, 4);
    world
}

/// What a consumer of topic `orders` sends to join.
fn joining(id: &str) -> ConsumerHeartbeat {
    ConsumerHeartbeat {
        group: GROUP.into(),
        member: id.into(),
        gets_member_id: false,
        epoch: Epoch::JOIN,
        instance: None,
        rack: None,
        client: client_of(id),
        rebalance_timeout: Some(REBALANCE),
        topics: Some(vec!["orders".into()]),
        regex: None,
        assignor: None,
        owned: Some(Vec::new()),
        random: RandomBytes(7),
    }
}

/// What a member sends that has nothing to tell.
fn staying(member: &MemberId, epoch: Epoch) -> ConsumerHeartbeat {
    ConsumerHeartbeat {
        epoch,
        rebalance_timeout: None,
        topics: None,
        owned: None,
        ..joining(member)
    }
}

fn beat(world: &mut World, heartbeat: ConsumerHeartbeat) -> Result<ConsumerBeat, GroupError> {
    match world.ask(Request::ConsumerHeartbeat(heartbeat)) {
        Answer::ConsumerHeartbeat(result) => result.map_err(|refused| refused.error),
        other => panic!("heartbeat, not {other:?}"),
    }
}

fn set(partitions: &TopicPartitions) -> BTreeSet<(u128, i32)> {
    let topics = partitions.iter();
    topics
        .flat_map(|(topic, numbers)| numbers.iter().map(|number| (topic.0, number.0)))
        .collect()
}

fn of(topic: u128, numbers: impl IntoIterator<Item = i32>) -> BTreeSet<(u128, i32)> {
    numbers.into_iter().map(|number| (topic, number)).collect()
}

impl Consumer {
    fn join(world: &mut World, heartbeat: ConsumerHeartbeat) -> Result<Consumer, GroupError> {
        let instance = heartbeat.instance.clone();
        let beat = beat(world, heartbeat)?;
        let mut consumer = Consumer {
            id: beat.member.clone(),
            instance,
            epoch: beat.epoch,
            owned: BTreeSet::new(),
            wanted: BTreeSet::new(),
        };
        consumer.learn(&beat);
        consumer.owned = consumer.wanted.clone();
        Ok(consumer)
    }

    fn learn(&mut self, beat: &ConsumerBeat) {
        self.epoch = beat.epoch;
        if let Some(assignment) = &beat.assignment {
            self.wanted = set(assignment);
        }
    }

    /// Sends a heartbeat that says nothing; does not act on what it learns.
    fn beat(&mut self, world: &mut World) -> Result<(), GroupError> {
        let mut heartbeat = staying(&self.id, self.epoch);
        heartbeat.instance = self.instance.clone();
        let beat = beat(world, heartbeat)?;
        self.learn(&beat);
        Ok(())
    }

    /// Does as it was told, and says so.
    fn follow(&mut self, world: &mut World) -> Result<(), GroupError> {
        self.owned = self.wanted.clone();
        let topics = self.owned.iter();
        let owned = topics.map(|(topic, number)| (TopicId(*topic), vec![Partition(*number)]));
        let mut heartbeat = staying(&self.id, self.epoch);
        heartbeat.instance = self.instance.clone();
        heartbeat.owned = Some(owned.collect());
        let beat = beat(world, heartbeat)?;
        self.learn(&beat);
        self.owned = self.owned.intersection(&self.wanted).copied().collect();
        Ok(())
    }

    fn leave(&self, world: &mut World, epoch: Epoch) -> Result<Epoch, GroupError> {
        let mut heartbeat = staying(&self.id, epoch);
        heartbeat.instance = self.instance.clone();
        Ok(beat(world, heartbeat)?.epoch)
    }
}

fn join_one(world: &mut World, id: &str) -> Consumer {
    Consumer::join(world, joining(id)).unwrap()
}

fn described(world: &mut World) -> DescribedConsumerGroup {
    match world.ask(Request::DescribeConsumerGroups(vec![GROUP.into()])) {
        Answer::DescribeConsumerGroups(groups) => groups.into_iter().next().unwrap(),
        other => panic!("described, not {other:?}"),
    }
}

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

    // Nothing new: no assignment.
    let answer = beat(&mut world, staying(&"a".into(), Epoch(1))).unwrap();
    assert_eq!((answer.epoch, answer.assignment), (Epoch(1), None));
}

#[test]
fn in_version_0_a_member_gets_its_id() {
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
fn a_partition_is_handed_over_after_it_was_given_up() {
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
        "and until it has given up, nobody else gets anything"
    );

    a.follow(&mut world).unwrap();
    assert_eq!(a.epoch, Epoch(2));
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 2);
    assert!(a.wanted.is_disjoint(&b.wanted));
    assert_eq!(described(&mut world).state, GroupState::Stable);
}

#[test]
fn what_a_member_that_leaves_had_goes_to_the_others() {
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
fn a_silent_member_is_put_out() {
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
fn a_member_that_does_not_give_up_in_time_is_put_out() {
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
    // It says what it owns, with the epoch that it knows.
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
fn a_member_that_lost_its_way_joins_again_and_keeps_its_partitions() {
    let mut world = world();
    let mut a = join_one(&mut world, "a");
    let mut b = join_one(&mut world, "b");
    let again = join_one(&mut world, "a");
    // With nothing left there was nothing to give up.
    assert_eq!((again.epoch, again.wanted.len()), (Epoch(2), 2));
    a.wanted = again.wanted;
    b.beat(&mut world).unwrap();
    assert_eq!(b.wanted.len(), 2);
    assert!(a.wanted.is_disjoint(&b.wanted));
}

#[test]
fn a_static_member_that_leaves_for_now_finds_its_partitions_again() {
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

    // The first is out now.
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
fn a_static_member_that_does_not_come_back_is_put_out() {
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

    // Another topic of the same name is another topic.
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
fn topics_by_regular_expression() {
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

    // Who had yet to give up when the restart came has its time from then on.
    world.put_topic("orders", ORDERS, 8);
    let mut c = join_one(&mut world, "c");
    a.beat(&mut world).unwrap();
    b.beat(&mut world).unwrap();
    world.restart();
    for _ in 0..9 {
        world.pass(REBALANCE / 8);
        let _ = c.beat(&mut world);
    }
    assert_eq!(described(&mut world).members.len(), 1);
}

#[test]
fn an_empty_group_may_change_its_protocol() {
    let mut world = world();
    let members = world.stable_group(&["classic"]);
    assert_eq!(world.commit(commit_by(&members[0], "orders", 5)), Ok(()));
    // Not while it has members.
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
