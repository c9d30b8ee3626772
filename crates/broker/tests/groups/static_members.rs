//! Static members of classic groups: those with an instance id.

use millstream_broker::groups::*;

use crate::support::*;

fn static_join(instance: &str) -> JoinGroup {
    JoinGroup {
        instance: Some(instance.into()),
        ..join("app")
    }
}

/// A stable group of static members, the leader first.
fn static_group(world: &mut World, instances: &[&str]) -> Vec<Joined> {
    let joins = instances
        .iter()
        .zip(1..)
        .map(|(instance, random)| JoinGroup {
            random: RandomBytes(random),
            ..static_join(instance)
        });
    world.join_all(joins.collect())
}

fn come_back(world: &mut World, instance: &str) -> RequestId {
    let join = JoinGroup {
        random: RandomBytes(99),
        ..static_join(instance)
    };
    world.send(Request::JoinGroup(join))
}

#[test]
fn a_static_member_joins_at_once_under_its_instance_id() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one"]);
    assert!(members[0].member.starts_with("one-"));
    assert_eq!(world.describe().members[0].instance, Some("one".into()));
}

#[test]
fn a_static_follower_comes_back_without_a_rebalance() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one", "two"]);
    let follower = &members[1];
    let instance = follower.member.split('-').next().unwrap().to_owned();
    let back = come_back(&mut world, &instance);
    let back = world.joined(back);
    assert_ne!(back.member, follower.member);
    assert_eq!(
        (back.generation, back.skip_assignment),
        (Generation(1), false)
    );
    assert_eq!(world.heartbeat(&members[0]), Ok(()));
    let id = world.send(Request::SyncGroup(sync(&back)));
    assert_eq!(
        world.synced(id),
        follower.member.as_bytes(),
        "it keeps its assignment"
    );

    // The earlier incarnation is out, also after a restart.
    let mut old = heartbeat(follower);
    old.instance = Some(instance.as_str().into());
    for _ in 0..2 {
        let answer = world.ask(Request::Heartbeat(old.clone()));
        assert_eq!(answer, Answer::Heartbeat(Err(GroupError::FencedInstanceId)));
        world.restart();
    }
    assert_eq!(world.heartbeat(&back), Ok(()));
}

#[test]
fn a_returning_static_leader_skips_the_assignment() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one", "two"]);
    let instance = members[0].member.split('-').next().unwrap().to_owned();
    let back = come_back(&mut world, &instance);
    let back = world.joined(back);
    assert_eq!((&back.leader, back.skip_assignment), (&back.member, true));
    assert_eq!(back.members.len(), 2);
    assert_eq!(world.state(), GroupState::Stable);
}

#[test]
fn before_version_9_a_returning_static_leader_gets_no_list_of_members() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one", "two"]);
    let instance = members[0].member.split('-').next().unwrap().to_owned();
    let mut join = static_join(&instance);
    join.can_skip_assignment = false;
    join.random = RandomBytes(99);
    let id = world.send(Request::JoinGroup(join));
    let back = world.joined(id);
    assert_eq!(back.leader, members[0].member);
    assert_eq!((back.members.len(), back.skip_assignment), (0, false));
}

#[test]
fn a_static_member_that_comes_back_with_another_protocol_rebalances() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one"]);
    let mut join = static_join("one");
    join.protocols = vec![
        protocol("range", &["orders"]),
        protocol("sticky", &["orders"]),
    ];
    join.protocols.reverse();
    join.random = RandomBytes(99);
    let id = world.send(Request::JoinGroup(join));
    let joined = world.joined(id);
    assert_eq!(joined.protocol.as_deref(), Some("sticky"));
    assert!(joined.generation > members[0].generation);
}

#[test]
fn a_second_member_with_the_same_instance_id_fences_the_first() {
    let mut world = World::new();
    let first = world.send(Request::JoinGroup(static_join("one")));
    let second = come_back(&mut world, "one");
    let answer = world.answer(first).unwrap();
    assert_eq!(join_error(answer), GroupError::FencedInstanceId);
    world.settle();
    assert_eq!(world.joined(second).members.len(), 1);
}

#[test]
fn a_static_member_that_comes_back_while_the_leader_assigns_rebalances() {
    let mut world = World::new();
    let ids = ["one", "two"].map(|instance| world.send(Request::JoinGroup(static_join(instance))));
    world.settle();
    let [one, two] = ids.map(|id| world.joined(id));
    let waiting = world.send(Request::SyncGroup(sync(&two)));
    let back = come_back(&mut world, "one");
    assert_eq!(world.answer(back), None);
    let answer = world.answer(waiting).unwrap();
    assert_eq!(sync_error(answer), GroupError::RebalanceInProgress);
    assert_eq!(world.heartbeat(&one), Err(GroupError::UnknownMemberId));
    assert_eq!(world.heartbeat(&two), Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_static_member_that_comes_back_has_to_ask_for_its_assignment_too() {
    let mut world = World::new();
    let ids = ["one", "two"].map(|instance| world.send(Request::JoinGroup(static_join(instance))));
    world.settle();
    let mut joined = ids.map(|id| world.joined(id));
    joined.sort_by_key(|joined| joined.leader != joined.member);
    let [leader, follower] = joined;
    let id = world.send(Request::SyncGroup(sync(&leader)));
    assert_eq!(world.synced(id), "");
    let instance = follower.member.split('-').next().unwrap();
    let back = come_back(&mut world, instance);
    let back = world.joined(back);
    for _ in 0..12 {
        assert_eq!(world.heartbeat(&back), Ok(()));
        assert_eq!(world.heartbeat(&leader), Ok(()));
        world.pass(REBALANCE / 12);
    }
    assert_eq!(world.heartbeat(&back), Err(GroupError::UnknownMemberId));
    assert_eq!(
        world.heartbeat(&leader),
        Err(GroupError::RebalanceInProgress)
    );
}

#[test]
fn a_static_member_keeps_its_place_in_a_rebalance_until_its_session_ends() {
    let mut world = World::new();
    let joins = ["one", "two"].map(|instance| JoinGroup {
        session_timeout: 300 * SECOND,
        ..static_join(instance)
    });
    let members = world.join_all(joins.into());
    let again = JoinGroup {
        member: members[0].member.clone(),
        session_timeout: 300 * SECOND,
        protocols: vec![protocol("range", &["payments"])],
        ..join("app")
    };
    let id = world.send(Request::JoinGroup(again));
    world.pass(REBALANCE);
    assert_eq!(
        world.joined(id).members.len(),
        2,
        "the absent one is still a member"
    );
    world.pass(300 * SECOND);
    assert_eq!(world.state(), GroupState::Empty);
}

#[test]
fn an_administrator_removes_a_static_member_by_its_instance_id() {
    let mut world = World::new();
    let members = static_group(&mut world, &["one", "two"]);
    let answer = world.ask(leave(&[
        ("", Some("one")),
        ("", Some("three")),
        ("other", Some("two")),
    ]));
    let unknown = GroupError::UnknownMemberId;
    let fenced = GroupError::FencedInstanceId;
    assert_eq!(left(answer), [None, Some(unknown), Some(fenced)]);
    let one = members
        .iter()
        .find(|member| member.member.starts_with("one-"))
        .unwrap();
    assert_eq!(world.heartbeat(one), Err(GroupError::UnknownMemberId));
}
