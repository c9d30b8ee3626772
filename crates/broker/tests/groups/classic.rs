//! The classic protocol, step by step.

use bytes::Bytes;
use millstream_broker::groups::*;

use crate::support::*;

#[test]
fn a_new_member_gets_an_id_and_joins_with_it() {
    let mut world = World::new();
    let join = world.new_member("app");
    let (client, uuid) = join.member.split_once('-').unwrap();
    assert_eq!((client, uuid.len()), ("app", 36));
    assert_eq!(world.state(), GroupState::Empty);

    let id = world.send(Request::JoinGroup(join.clone()));
    world.pass(world.config.initial_rebalance_delay);
    let joined = world.joined(id);
    assert_eq!(joined.generation, Generation(1));
    assert_eq!(
        (&joined.member, &joined.leader),
        (&join.member, &join.member)
    );
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.protocol.as_deref(), Some("range"));
    assert_eq!(joined.members[0].metadata, join.protocols[0].metadata);
    assert_eq!(world.state(), GroupState::CompletingRebalance);
}

#[test]
fn before_version_4_a_new_member_joins_at_once() {
    let mut world = World::new();
    let mut join = join("app");
    join.member_id_required = false;
    let id = world.send(Request::JoinGroup(join));
    world.pass(world.config.initial_rebalance_delay);
    assert!(world.joined(id).member.starts_with("app-"));
}

#[test]
fn an_unused_member_id_is_forgotten() {
    let mut world = World::new();
    let join = world.new_member("app");
    world.pass(SESSION);
    assert_eq!(
        join_error(world.ask(Request::JoinGroup(join))),
        GroupError::UnknownMemberId
    );
}

#[test]
fn the_first_members_wait_for_others_and_start_together() {
    let mut world = World::new();
    let delay = world.config.initial_rebalance_delay;
    let first = world.new_member("first");
    let first = world.send(Request::JoinGroup(first));
    world.pass(delay - SECOND);
    let second = world.new_member("second");
    let second = world.send(Request::JoinGroup(second));

    // The second member makes them wait once more.
    world.pass(2 * SECOND);
    assert_eq!(world.answer(first), None);
    world.pass(delay);
    let (first, second) = (world.joined(first), world.joined(second));
    assert_eq!(
        (first.generation, second.generation),
        (Generation(1), Generation(1))
    );
    assert_eq!((first.members.len(), second.members.len()), (2, 0));
    assert_eq!(second.leader, first.member);
}

#[test]
fn members_get_the_assignments_of_the_leader() {
    let mut world = World::new();
    let joins = ["a", "b", "c"].map(|client| world.new_member(client));
    let ids = joins.map(|join| world.send(Request::JoinGroup(join)));
    world.settle();
    let [a, b, c] = ids.map(|id| world.joined(id));

    let waiting = world.send(Request::SyncGroup(sync(&b)));
    assert_eq!(world.answer(waiting), None);
    let mut by_leader = sync(&a);
    by_leader.assignments = vec![
        (a.member.clone(), "of a".into()),
        (b.member.clone(), "of b".into()),
        ("unknown".into(), "of unknown".into()),
    ];
    let leader = world.send(Request::SyncGroup(by_leader));
    let late = world.send(Request::SyncGroup(sync(&c)));

    assert_eq!(world.synced(leader), "of a");
    assert_eq!(world.synced(waiting), "of b");
    assert_eq!(world.synced(late), Bytes::new());
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn members_continue_until_they_rejoin_after_a_new_member_joins() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    assert_eq!(world.heartbeat(&members[1]), Ok(()));

    let new = world.new_member("c");
    let new = world.send(Request::JoinGroup(new));
    // A cooperative consumer goes on reading, and sends heartbeats until it joins.
    for _ in 0..3 {
        world.pass(SESSION / 2);
        for member in &members {
            let heartbeat = world.heartbeat(member);
            assert_eq!(heartbeat, Err(GroupError::RebalanceInProgress));
        }
    }
    let commit = commit_by(&members[1], "orders", 5);
    assert_eq!(world.commit(commit), Ok(()));

    let again = members.iter().map(|member| JoinGroup {
        member: member.member.clone(),
        ..join("again")
    });
    let again: Vec<_> = again.map(Request::JoinGroup).collect();
    let again: Vec<_> = again.into_iter().map(|join| world.send(join)).collect();
    let joined = world.joined(new);
    assert_eq!(joined.generation, Generation(2));
    for id in again {
        assert_eq!(world.joined(id).generation, Generation(2));
    }
}

#[test]
fn a_member_that_does_not_join_again_in_time_is_left_behind() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    let new = world.new_member("c");
    let new = world.send(Request::JoinGroup(new));
    for _ in 0..12 {
        for member in &members {
            let _ = world.heartbeat(member);
        }
        world.pass(REBALANCE / 12);
    }
    let joined = world.joined(new);
    assert_eq!(
        (joined.generation, joined.members.len()),
        (Generation(2), 1)
    );
    assert_eq!(
        world.heartbeat(&members[0]),
        Err(GroupError::UnknownMemberId)
    );
}

#[test]
fn a_join_that_waits_too_long_is_refused() {
    let mut world = World::new();
    let slow = JoinGroup {
        rebalance_timeout: 3600 * SECOND,
        ..world.new_member("slow")
    };
    let members = world.join_all(vec![slow]);
    let new = world.new_member("new");
    let new = world.send(Request::JoinGroup(new));
    for _ in 0..100 {
        // The old incarnation sends heartbeats, and does not join again.
        assert_eq!(world.answer(new), None);
        let heartbeat = world.heartbeat(&members[0]);
        assert_eq!(heartbeat, Err(GroupError::RebalanceInProgress));
        world.pass(world.config.new_member_join_timeout / 100);
    }
    let answer = world.answer(new).unwrap();
    assert_eq!(join_error(answer), GroupError::UnknownMemberId);
}

#[test]
fn a_silent_member_is_removed_and_the_others_rebalance() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    world.pass(SESSION - SECOND);
    assert_eq!(world.heartbeat(&members[1]), Ok(()));
    world.pass(2 * SECOND);

    assert_eq!(
        world.heartbeat(&members[0]),
        Err(GroupError::UnknownMemberId)
    );
    assert_eq!(
        world.heartbeat(&members[1]),
        Err(GroupError::RebalanceInProgress)
    );
    let again = JoinGroup {
        member: members[1].member.clone(),
        ..join("b")
    };
    let again = world.send(Request::JoinGroup(again));
    let joined = world.joined(again);
    assert_eq!(
        (joined.generation, &joined.leader),
        (Generation(2), &joined.member)
    );
}

#[test]
fn a_group_whose_members_are_all_silent_becomes_empty() {
    let mut world = World::new();
    world.stable_group(&["a", "b"]);
    world.pass(SESSION + SECOND);
    let described = world.describe();
    assert_eq!(
        (described.state, described.members.len()),
        (GroupState::Empty, 0)
    );
    assert_eq!(&*described.protocol_type, "consumer");
}

#[test]
fn a_member_that_never_asks_for_its_assignment_is_removed() {
    let mut world = World::new();
    let joins = ["a", "b"].map(|client| world.new_member(client));
    let ids = joins.map(|join| world.send(Request::JoinGroup(join)));
    world.settle();
    let [a, b] = ids.map(|id| world.joined(id));
    let follower = world.send(Request::SyncGroup(sync(&b)));
    for _ in 0..12 {
        // The leader is alive, but assigns nothing.
        assert_eq!(world.answer(follower), None);
        assert_eq!(world.heartbeat(&a), Ok(()));
        world.pass(REBALANCE / 12);
    }
    let answer = world.answer(follower).unwrap();
    assert_eq!(sync_error(answer), GroupError::RebalanceInProgress);
    assert_eq!(world.heartbeat(&a), Err(GroupError::UnknownMemberId));
}

#[test]
fn the_group_uses_the_common_protocol_with_the_most_votes() {
    let mut world = World::new();
    let protocols = [
        vec!["sticky", "range", "roundrobin"],
        vec!["range", "roundrobin"],
        vec!["roundrobin", "range"],
    ];
    let mut joins = Vec::new();
    for names in protocols {
        let mut join = world.new_member("app");
        let offered = names.into_iter().map(|name| protocol(name, &["orders"]));
        join.protocols = offered.collect();
        joins.push(join);
    }
    let joined = world.join_all(joins);
    assert_eq!(joined[0].protocol.as_deref(), Some("range"));
    assert_eq!(&*world.describe().protocol, "range");
}

#[test]
fn a_member_without_a_common_protocol_is_refused() {
    let mut world = World::new();
    world.stable_group(&["a"]);
    let mut other = join("b");
    other.protocols = vec![protocol("sticky", &["orders"])];
    let refused = join_error(world.ask(Request::JoinGroup(other)));
    assert_eq!(refused, GroupError::InconsistentGroupProtocol);
    let mut other = join("b");
    other.protocol_type = "connect".into();
    let refused = join_error(world.ask(Request::JoinGroup(other)));
    assert_eq!(refused, GroupError::InconsistentGroupProtocol);
}

#[test]
fn a_refused_first_member_leaves_no_group_behind() {
    let mut world = World::new();
    let mut join = join("a");
    join.protocols.clear();
    let refused = join_error(world.ask(Request::JoinGroup(join)));
    assert_eq!(refused, GroupError::InconsistentGroupProtocol);
    assert_eq!(world.list(&[], &[]), []);
    assert!(world.log.is_empty());
}

#[test]
fn an_unchanged_rejoin_rebalances_only_for_the_leader() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    let again = |member: &Joined| {
        Request::JoinGroup(JoinGroup {
            member: member.member.clone(),
            ..join("again")
        })
    };
    let follower = world.send(again(&members[1]));
    let joined = world.joined(follower);
    assert_eq!(
        (joined.generation, joined.members.len()),
        (Generation(1), 0)
    );
    assert_eq!(world.state(), GroupState::Stable);

    let leader = world.send(again(&members[0]));
    assert_eq!(world.answer(leader), None);
    assert_eq!(world.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_changed_subscription_rebalances() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    let again = JoinGroup {
        member: members[1].member.clone(),
        protocols: vec![protocol("range", &["orders", "payments"])],
        ..join("b")
    };
    world.send(Request::JoinGroup(again));
    assert_eq!(
        world.heartbeat(&members[0]),
        Err(GroupError::RebalanceInProgress)
    );
}

#[test]
fn a_repeated_join_replaces_the_earlier_request() {
    let mut world = World::new();
    let join = world.new_member("a");
    let before = world.send(Request::JoinGroup(join.clone()));
    let again = world.send(Request::JoinGroup(join));
    let answer = world.answer(before).unwrap();
    assert_eq!(join_error(answer), GroupError::RebalanceInProgress);
    world.settle();
    assert_eq!(world.joined(again).generation, Generation(1));
}

#[test]
fn several_members_leave_at_once() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b", "c"]);
    let [a, b, c] = [0, 1, 2].map(|place| members[place].member.to_string());
    let answer = world.ask(leave(&[(&a, None), ("unknown", None), (&b, None)]));
    assert_eq!(
        left(answer),
        [None, Some(GroupError::UnknownMemberId), None]
    );
    assert_eq!(
        world.heartbeat(&members[2]),
        Err(GroupError::RebalanceInProgress)
    );

    assert_eq!(left(world.ask(leave(&[(&c, None)]))), [None]);
    assert_eq!(world.state(), GroupState::Empty);
    assert_eq!(
        left(world.ask(leave(&[(&c, None)]))),
        [Some(GroupError::UnknownMemberId)]
    );
}

#[test]
fn a_member_that_leaves_while_it_joins_is_answered() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    let again = JoinGroup {
        member: members[0].member.clone(),
        ..join("a")
    };
    let waiting = world.send(Request::JoinGroup(again));
    assert_eq!(
        left(world.ask(leave(&[(&members[0].member, None)]))),
        [None]
    );
    let answer = world.answer(waiting).unwrap();
    assert_eq!(join_error(answer), GroupError::UnknownMemberId);
}

#[test]
fn requests_of_another_generation_or_protocol_are_refused() {
    let mut world = World::new();
    let members = world.stable_group(&["a"]);
    let mut old = members[0].clone();
    old.generation = Generation(0);
    assert_eq!(world.heartbeat(&old), Err(GroupError::IllegalGeneration));
    let answer = world.ask(Request::SyncGroup(sync(&old)));
    assert_eq!(sync_error(answer), GroupError::IllegalGeneration);
    let commit = commit_by(&old, "orders", 1);
    assert_eq!(world.commit(commit), Err(GroupError::IllegalGeneration));

    let mut other = sync(&members[0]);
    other.protocol = Some("sticky".into());
    let answer = world.ask(Request::SyncGroup(other));
    assert_eq!(sync_error(answer), GroupError::InconsistentGroupProtocol);
}

#[test]
fn names_and_timeouts_are_checked() {
    let mut world = World::new();
    let mut nameless = join("a");
    nameless.group = "".into();
    let error = join_error(world.ask(Request::JoinGroup(nameless)));
    assert_eq!(error, GroupError::InvalidGroupId);
    for timeout in [SECOND, 3600 * SECOND] {
        let mut hasty = join("a");
        hasty.session_timeout = timeout;
        let error = join_error(world.ask(Request::JoinGroup(hasty)));
        assert_eq!(error, GroupError::InvalidSessionTimeout);
    }
    let mut large = join("a");
    large.protocols[0].metadata = vec![0; config::MEMBER_BYTES_MAX + 1].into();
    let error = join_error(world.ask(Request::JoinGroup(large)));
    assert_eq!(error, GroupError::InvalidRequest);
}

#[test]
fn a_full_group_takes_no_more_members() {
    let mut world = World::with(Config {
        members_max: 2,
        groups_max: 1,
        ..Config::default()
    });
    world.stable_group(&["a", "b"]);
    let error = join_error(world.ask(Request::JoinGroup(join("c"))));
    assert_eq!(error, GroupError::GroupMaxSizeReached);
    let mut other = join("c");
    other.group = "another".into();
    let error = join_error(world.ask(Request::JoinGroup(other)));
    assert_eq!(error, GroupError::GroupMaxSizeReached);
}

#[test]
fn unused_member_ids_count_towards_the_bound() {
    let mut world = World::with(Config {
        members_max: 2,
        ..Config::default()
    });
    world.new_member("a");
    world.new_member("b");
    let error = join_error(world.ask(Request::JoinGroup(join("c"))));
    assert_eq!(error, GroupError::GroupMaxSizeReached);
}

#[test]
fn groups_are_described_listed_and_deleted() {
    let mut world = World::new();
    let missing = world.describe();
    assert_eq!(
        (missing.state, missing.error),
        (GroupState::Dead, Some(GroupError::GroupIdNotFound))
    );
    assert_eq!(world.delete_group(), Err(GroupError::GroupIdNotFound));

    let members = world.stable_group(&["a"]);
    let described = world.describe();
    assert_eq!(
        (described.state, &*described.protocol),
        (GroupState::Stable, "range")
    );
    let member = &described.members[0];
    assert_eq!(member.member, members[0].member);
    assert_eq!(
        (&*member.client.id, &*member.client.host),
        ("a", "127.0.0.1")
    );
    assert_eq!(member.metadata, protocol("range", &["orders"]).metadata);
    assert_eq!(member.assignment, members[0].member.as_bytes());
    assert_eq!(world.list(&["stable"], &["Classic"]).len(), 1);
    assert_eq!(world.list(&["Empty"], &[]), []);
    assert_eq!(world.list(&[], &["consumer"]), []);
    assert_eq!(world.list(&[], &["no such type"]), []);
    assert_eq!(world.delete_group(), Err(GroupError::NonEmptyGroup));

    world.pass(SESSION + SECOND);
    assert_eq!(world.delete_group(), Ok(()));
    assert_eq!(world.list(&[], &[]), []);
    assert!(world.log.is_empty());
}

#[test]
fn a_filter_of_many_names_is_as_small_as_the_states_that_there_are() {
    let states = ["Dead", " stable ", "other"].repeat(100_000);
    let types = ["other"].repeat(100_000);
    let list = ListGroups {
        states: Some([GroupState::Stable, GroupState::Dead].into()),
        types: Some([].into()),
    };
    assert_eq!(ListGroups::named(&states, &types), list);
    assert_eq!(ListGroups::named::<&str>(&[], &[]), ListGroups::default());
}

#[test]
fn members_go_on_after_a_restart() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    world.restart();
    assert_eq!(world.state(), GroupState::Stable);
    for member in &members {
        assert_eq!(world.heartbeat(member), Ok(()));
        let id = world.send(Request::SyncGroup(sync(member)));
        assert_eq!(world.synced(id), member.member.as_bytes());
    }
    world.pass(SESSION + SECOND);
    assert_eq!(world.state(), GroupState::Empty);
    world.restart();
    let next = world.stable_group(&["c"]);
    assert!(
        next[0].generation > Generation(1),
        "generations grow over restarts"
    );
}

#[test]
fn a_rebalance_that_a_restart_interrupts_begins_again() {
    let mut world = World::new();
    let members = world.stable_group(&["a", "b"]);
    let new = world.new_member("c");
    world.send(Request::JoinGroup(new));
    world.restart();
    // The group is as before the rebalance.
    for member in &members {
        assert_eq!(world.heartbeat(member), Ok(()));
    }
}
