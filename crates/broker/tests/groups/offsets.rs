//! Offsets: committed, with and without transactions, read, deleted and expired.

use millstream_base::{Offset, ProducerId};
use millstream_broker::groups::*;
use millstream_wire::FLOW_OFFSETS;

use crate::member::*;
use crate::support::*;

const PRODUCER: ProducerId = ProducerId(5);

fn commit_in_transaction(world: &mut World, topic: &str, offset: u64) -> Result<(), GroupError> {
    let commit = CommitTransactionOffsets {
        group: GROUP.into(),
        producer: PRODUCER,
        member: MemberId::default(),
        instance: None,
        generation: Generation::NONE,
        topics: topic_commits(topic, offset),
    };
    match world.ask(Request::CommitTransactionOffsets(commit)) {
        Answer::CommitTransactionOffsets(topics) => topics[0].partitions[0].1,
        other => panic!("committed, not {other:?}"),
    }
}

fn end_transaction(world: &mut World, committed: bool) {
    let end = EndTransaction {
        producer: PRODUCER,
        committed,
    };
    assert_eq!(
        world.ask(Request::EndTransaction(end)),
        Answer::EndTransaction
    );
}

fn delete(world: &mut World, topic: &str) -> Result<Result<(), GroupError>, GroupError> {
    let delete = DeleteOffsets {
        group: GROUP.into(),
        topics: vec![(topic.into(), vec![Partition(0)])],
    };
    match world.ask(Request::DeleteOffsets(delete)) {
        Answer::DeleteOffsets(result) => result.map(|topics| topics[0].partitions[0].1),
        other => panic!("deleted, not {other:?}"),
    }
}

#[test]
fn a_commit_without_membership_creates_an_empty_group() {
    let mut world = World::new();
    assert_eq!(world.fetch("orders", false), Ok(None));
    assert_eq!(world.commit(commit("orders", 7)), Ok(()));
    assert_eq!(world.fetch("orders", false), Ok(Some(7)));
    let listed = world.list(&[], &[]);
    assert_eq!(
        (&*listed[0].protocol_type, listed[0].state),
        ("", GroupState::Empty)
    );
    world.restart();
    assert_eq!(world.fetch("orders", true), Ok(Some(7)));
}

#[test]
fn metadata_and_leader_epoch_return_with_the_offset() {
    let mut world = World::new();
    let mut commit = commit("orders", 7);
    commit.topics[0].partitions[0].leader_epoch = Some(LeaderEpoch(3));
    commit.topics[0].partitions[0].metadata = "from here".into();
    assert_eq!(world.commit(commit), Ok(()));
    world.restart();
    let all = FetchOffsets {
        group: GROUP.into(),
        member: None,
        member_epoch: Generation::NONE,
        topics: None,
        require_stable: false,
    };
    let offset = FetchedOffset {
        offset: Offset(7),
        leader_epoch: Some(LeaderEpoch(3)),
        metadata: "from here".into(),
        topic: Some(TOPIC_ID),
    };
    let orders = TopicOffsets {
        topic: "orders".into(),
        partitions: vec![(Partition(0), Ok(Some(offset)))],
    };
    let answer = world.ask(Request::FetchOffsets(all));
    assert_eq!(answer, Answer::FetchOffsets(Ok(vec![orders])));
}

fn commit_of_flow(topic: &str, offset: u64) -> CommitOffsets {
    let mut commit = commit(topic, offset);
    commit.topics[0].partitions[0].metadata = FLOW_OFFSETS.into();
    commit
}

#[test]
fn the_group_of_a_flow_refuses_members_and_offsets_of_other_clients() {
    let mut world = World::new();
    assert_eq!(world.commit(commit_of_flow("orders", 7)), Ok(()));
    for _ in 0..2 {
        let refused = Err(GroupError::InconsistentGroupProtocol);
        assert_eq!(world.commit(commit("orders", 1)), refused);
        assert_eq!(commit_in_transaction(&mut world, "orders", 1), refused);
        let join = world.ask(Request::JoinGroup(join("a")));
        assert_eq!(join_error(join), GroupError::InconsistentGroupProtocol);
        let refused = beat(&mut world, joining("a"));
        assert_eq!(refused.unwrap_err(), GroupError::InvalidRequest);
        assert_eq!(world.commit(commit_of_flow("orders", 7)), Ok(()));
        assert_eq!(world.fetch("orders", false), Ok(Some(7)));
        // An administrator sees a group without members.
        let listed = world.list(&[], &[]);
        let listed = (&*listed[0].protocol_type, listed[0].state);
        assert_eq!(listed, ("", GroupState::Empty));
        world.restart();
    }
    assert_eq!(world.delete_group(), Ok(()));
    assert_eq!(world.commit(commit("orders", 1)), Ok(()));
}

#[test]
fn a_flow_leaves_a_group_of_consumers_alone() {
    let mut world = World::new();
    assert_eq!(world.commit(commit("orders", 1)), Ok(()));
    let refused = world.commit(commit_of_flow("orders", 7));
    assert_eq!(refused, Err(GroupError::InconsistentGroupProtocol));
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
}

#[test]
fn only_members_may_commit_to_a_group_with_members() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    assert_eq!(
        world.commit(commit("orders", 1)),
        Err(GroupError::UnknownMemberId)
    );
    assert_eq!(world.commit(commit_by(&members[0], "orders", 2)), Ok(()));
    let mut stranger = commit_by(&members[0], "orders", 3);
    stranger.member = "stranger".into();
    assert_eq!(world.commit(stranger), Err(GroupError::UnknownMemberId));
    assert_eq!(world.fetch("orders", false), Ok(Some(2)));
}

#[test]
fn a_commit_to_a_missing_group_gets_the_error_of_its_version() {
    let mut world = World::new();
    let mut commit = commit("orders", 1);
    commit.generation = Generation(3);
    assert_eq!(
        world.commit(commit.clone()),
        Err(GroupError::GroupIdNotFound)
    );
    commit.knows_member_epochs = false;
    assert_eq!(world.commit(commit), Err(GroupError::IllegalGeneration));
    assert_eq!(world.list(&[], &[]), []);
}

#[test]
fn commits_are_refused_between_join_and_sync() {
    let mut world = World::new();
    let join = world.new_member("a");
    let id = world.send(Request::JoinGroup(join));
    world.settle();
    let joined = world.joined(id);
    let commit = commit_by(&joined, "orders", 1);
    assert_eq!(world.commit(commit), Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_member_that_commits_is_alive() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    for offset in 0..5 {
        world.pass(SESSION - SECOND);
        assert_eq!(
            world.commit(commit_by(&members[0], "orders", offset)),
            Ok(())
        );
    }
}

#[test]
fn long_metadata_is_refused_for_its_partition_alone() {
    let mut world = World::new();
    let mut commit = commit("orders", 7);
    let mut other = commit.topics[0].partitions[0].clone();
    other.partition = Partition(1);
    other.metadata = "x".repeat(world.config.offset_metadata_max + 1).into();
    commit.topics[0].partitions.push(other);
    let Answer::CommitOffsets(topics) = world.ask(Request::CommitOffsets(commit)) else {
        panic!("committed");
    };
    let results: Vec<_> = topics[0]
        .partitions
        .iter()
        .map(|(_, result)| *result)
        .collect();
    assert_eq!(results, [Ok(()), Err(GroupError::OffsetMetadataTooLarge)]);
}

#[test]
fn offsets_of_a_transaction_apply_when_it_commits() {
    let mut world = World::new();
    assert_eq!(world.commit(commit("orders", 1)), Ok(()));
    assert_eq!(commit_in_transaction(&mut world, "orders", 9), Ok(()));
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
    assert_eq!(
        world.fetch("orders", true),
        Err(GroupError::UnstableOffsetCommit)
    );
    world.restart();
    assert_eq!(
        world.fetch("orders", true),
        Err(GroupError::UnstableOffsetCommit)
    );
    end_transaction(&mut world, true);
    assert_eq!(world.fetch("orders", true), Ok(Some(9)));
    end_transaction(&mut world, true);
    assert_eq!(world.fetch("orders", true), Ok(Some(9)));
}

#[test]
fn offsets_of_an_aborted_transaction_are_dropped() {
    let mut world = World::new();
    assert_eq!(commit_in_transaction(&mut world, "orders", 9), Ok(()));
    end_transaction(&mut world, false);
    assert_eq!(world.fetch("orders", true), Ok(None));
    assert!(world.log.is_empty());
}

#[test]
fn a_later_commit_overtakes_a_transaction() {
    let mut world = World::new();
    assert_eq!(commit_in_transaction(&mut world, "orders", 9), Ok(()));
    assert_eq!(world.commit(commit("orders", 12)), Ok(()));
    world.restart();
    end_transaction(&mut world, true);
    assert_eq!(world.fetch("orders", true), Ok(Some(12)));
}

#[test]
fn a_transaction_names_members_of_this_generation() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    let mut commit = CommitTransactionOffsets {
        group: GROUP.into(),
        producer: PRODUCER,
        member: members[0].member.clone(),
        instance: None,
        generation: Generation(0),
        topics: topic_commits("orders", 9),
    };
    let mut commit_at = |generation| {
        commit.generation = generation;
        match world.ask(Request::CommitTransactionOffsets(commit.clone())) {
            Answer::CommitTransactionOffsets(topics) => topics[0].partitions[0].1,
            other => panic!("committed, not {other:?}"),
        }
    };
    assert_eq!(commit_at(Generation(0)), Err(GroupError::IllegalGeneration));
    assert_eq!(commit_at(members[0].generation), Ok(()));
    // Older producers do not send a member.
    assert_eq!(commit_in_transaction(&mut world, "orders", 10), Ok(()));
}

#[test]
fn offsets_are_deleted_unless_members_subscribe_to_the_topic() {
    let mut world = World::new();
    assert_eq!(
        delete(&mut world, "orders"),
        Err(GroupError::GroupIdNotFound)
    );
    let members = world.stable_group(&["a"]);
    for topic in ["orders", "payments"] {
        assert_eq!(world.commit(commit_by(&members[0], topic, 1)), Ok(()));
    }
    let subscribed = GroupError::GroupSubscribedToTopic;
    assert_eq!(delete(&mut world, "orders"), Ok(Err(subscribed)));
    assert_eq!(delete(&mut world, "payments"), Ok(Ok(())));
    assert_eq!(world.fetch("payments", false), Ok(None));
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
}

#[test]
fn deleting_a_topic_deletes_its_offsets() {
    let mut world = World::new();
    assert_eq!(world.commit(commit("orders", 1)), Ok(()));
    assert_eq!(commit_in_transaction(&mut world, "orders", 2), Ok(()));
    assert_eq!(world.commit(commit("payments", 1)), Ok(()));
    world.remove_topic("orders");
    end_transaction(&mut world, true);
    assert_eq!(world.fetch("orders", true), Ok(None));
    assert_eq!(world.fetch("payments", true), Ok(Some(1)));
}

#[test]
fn offsets_of_a_topic_stay_when_the_deletion_of_an_earlier_one_is_noticed() {
    let mut world = World::new();
    let new = Topic {
        name: "orders".into(),
        id: TopicId(7),
        partitions: 3,
    };
    assert_eq!(commit_in_transaction(&mut world, "orders", 1), Ok(()));
    let of_new = |partition, offset| {
        let mut commit = commit("orders", offset);
        commit.topics[0].id = new.id;
        commit.topics[0].partitions[0].partition = Partition(partition);
        commit
    };
    let mut of_old = of_new(2, 1);
    of_old.topics[0].id = TOPIC_ID;
    assert_eq!(world.commit(of_old), Ok(()));
    assert_eq!(world.commit(of_new(1, 5)), Ok(()));
    world.replace_topic(new.clone());
    assert_eq!(world.commit(of_new(0, 6)), Ok(()));
    end_transaction(&mut world, true);
    world.restart();
    let all = FetchOffsets {
        group: GROUP.into(),
        member: None,
        member_epoch: Generation::NONE,
        topics: None,
        require_stable: true,
    };
    let Answer::FetchOffsets(Ok(topics)) = world.ask(Request::FetchOffsets(all)) else {
        panic!("no offsets");
    };
    let partitions = topics[0].partitions.iter();
    let offsets = partitions.map(|(partition, offset)| {
        let offset = offset.as_ref().unwrap().as_ref().unwrap();
        (partition.0, offset.offset.0, offset.topic)
    });
    let expected = [(0, 6, Some(new.id)), (1, 5, Some(new.id))];
    assert_eq!(Vec::from_iter(offsets), expected);
}

#[test]
fn offsets_expire_when_the_group_has_been_empty_for_long() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    assert_eq!(world.commit(commit_by(&members[0], "orders", 1)), Ok(()));
    let retention = world.config.offsets_retention;
    // The wall clock jumps ahead, but the group has members.
    world.now.timestamp.0 += retention.as_millis() as i64;
    for _ in 0..240 {
        world.pass(SESSION / 2);
        assert_eq!(world.heartbeat(&members[0]), Ok(()));
    }
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
    world.pass(SESSION + SECOND);
    assert_eq!(world.state(), GroupState::Empty);
    world.pass(retention - 600 * SECOND);
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
    world.restart();
    world.pass(1200 * SECOND);
    assert_eq!(world.fetch("orders", false), Ok(None));
    assert_eq!(world.list(&[], &[]), []);
    assert!(world.log.is_empty());
}

#[test]
fn standalone_offsets_expire_after_their_commit_or_after_their_own_retention() {
    let mut world = World::new();
    assert_eq!(world.commit(commit("orders", 1)), Ok(()));
    let mut brief = commit("payments", 1);
    brief.retention = Some(3600 * SECOND);
    assert_eq!(world.commit(brief), Ok(()));
    assert_eq!(commit_in_transaction(&mut world, "orders", 2), Ok(()));
    world.pass(2 * 3600 * SECOND);
    assert_eq!(world.fetch("payments", false), Ok(None));
    let retention = world.config.offsets_retention;
    world.pass(retention);
    assert_eq!(
        world.fetch("orders", false),
        Ok(Some(1)),
        "a transaction is about to change it"
    );
    end_transaction(&mut world, false);
    world.pass(3600 * SECOND);
    assert_eq!(world.fetch("orders", false), Ok(None));
    assert_eq!(world.list(&[], &[]), []);
}

#[test]
fn an_offset_expires_when_no_member_subscribes_to_its_topic() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    for topic in ["orders", "payments"] {
        assert_eq!(world.commit(commit_by(&members[0], topic, 1)), Ok(()));
    }
    // The wall clock jumps ahead.
    let retention = world.config.offsets_retention;
    world.now.timestamp.0 += retention.as_millis() as i64;
    while world.fetch("payments", false) != Ok(None) {
        world.pass(SESSION / 2);
        assert_eq!(world.heartbeat(&members[0]), Ok(()));
    }
    assert_eq!(world.fetch("orders", false), Ok(Some(1)));
}
