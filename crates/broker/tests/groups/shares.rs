//! Share groups: their members, and the partitions that each of them reads.

use std::time::Duration;

use millstream_broker::groups::*;

use crate::support::*;

const ORDERS: u128 = 1;

fn world() -> World {
    let mut world = World::new();
    world.put_topic("orders", ORDERS, 3);
    world
}

fn joining(id: &str) -> ShareHeartbeat {
    ShareHeartbeat {
        group: GROUP.into(),
        member: id.into(),
        epoch: Epoch::JOIN,
        rack: None,
        client: client_of(id),
        topics: Some(vec!["orders".into()]),
    }
}

fn staying(id: &str, epoch: Epoch) -> ShareHeartbeat {
    ShareHeartbeat {
        epoch,
        topics: None,
        ..joining(id)
    }
}

fn beat(world: &mut World, heartbeat: ShareHeartbeat) -> Result<ShareBeat, GroupError> {
    match world.ask(Request::ShareHeartbeat(heartbeat)) {
        Answer::ShareHeartbeat(result) => result.map_err(|refused| refused.error),
        other => panic!("{other:?}"),
    }
}

fn described(world: &mut World) -> DescribedShareGroup {
    match world.ask(Request::DescribeShareGroups(vec![GROUP.into()])) {
        Answer::DescribeShareGroups(mut groups) => groups.remove(0),
        other => panic!("{other:?}"),
    }
}

fn create(world: &mut World) -> Result<(), GroupError> {
    match world.ask(Request::CreateShareGroup(GROUP.into())) {
        Answer::CreateShareGroup(result) => result,
        other => panic!("{other:?}"),
    }
}

/// The partitions of a heartbeat's assignment.
fn partitions(beat: &ShareBeat) -> Vec<i32> {
    let assignment = beat.assignment.as_ref().expect("an assignment");
    let partitions = assignment.iter().flat_map(|(_, partitions)| partitions);
    partitions.map(|partition| partition.0).collect()
}

#[test]
fn a_created_group_has_no_members_until_one_joins() {
    let mut world = world();
    assert_eq!(create(&mut world), Ok(()));
    let created = described(&mut world);
    assert_eq!((created.error, created.state), (None, GroupState::Empty));
    assert_eq!(create(&mut world), Ok(()));
    assert_eq!(described(&mut world), created);
    let joined = beat(&mut world, joining("a")).unwrap();
    assert_eq!(partitions(&joined), [0, 1, 2]);
    assert_eq!(create(&mut world), Err(GroupError::NonEmptyGroup));
}

#[test]
fn members_get_all_partitions_between_them_and_new_epochs_with_each_change() {
    let mut world = world();
    let first = beat(&mut world, joining("a")).unwrap();
    assert_eq!((first.epoch, partitions(&first)), (Epoch(1), vec![0, 1, 2]));
    let second = beat(&mut world, joining("b")).unwrap();
    assert_eq!((second.epoch, partitions(&second)), (Epoch(2), vec![1]));
    let news = beat(&mut world, staying("a", Epoch(1))).unwrap();
    assert_eq!((news.epoch, partitions(&news)), (Epoch(2), vec![0, 2]));
    // The answer was lost, so the member sends its epoch again.
    let again = beat(&mut world, staying("a", Epoch(1))).unwrap();
    assert_eq!(again, news);
    let quiet = beat(&mut world, staying("a", Epoch(2))).unwrap();
    assert_eq!((quiet.epoch, quiet.assignment), (Epoch(2), None));
    world.put_topic("orders", ORDERS, 5);
    let grown = beat(&mut world, staying("a", Epoch(2))).unwrap();
    assert_eq!((grown.epoch, partitions(&grown)), (Epoch(3), vec![0, 2, 4]));
    let fenced = beat(&mut world, staying("a", Epoch(9)));
    assert_eq!(fenced, Err(GroupError::FencedMemberEpoch));
    let unknown = beat(&mut world, staying("c", Epoch(1)));
    assert_eq!(unknown, Err(GroupError::UnknownMemberId));
}

#[test]
fn a_share_group_and_its_members_outlive_a_restart() {
    let mut world = world();
    beat(&mut world, joining("a")).unwrap();
    beat(&mut world, joining("b")).unwrap();
    world.restart();
    assert_eq!(described(&mut world).members.len(), 2);
    let beaten = beat(&mut world, staying("b", Epoch(2))).unwrap();
    assert_eq!((beaten.epoch, partitions(&beaten)), (Epoch(3), vec![1]));
    let left = beat(&mut world, staying("a", Epoch::LEAVE)).unwrap();
    assert_eq!(left.epoch, Epoch::LEAVE);
    world.restart();
    assert_eq!(described(&mut world).members.len(), 1);
    assert_eq!(
        world.coordinator.share_group_members(&GROUP.into()),
        Some(1)
    );
}

#[test]
fn a_silent_member_is_removed_and_an_empty_share_group_stays() {
    let mut world = world();
    beat(&mut world, joining("a")).unwrap();
    beat(&mut world, joining("b")).unwrap();
    world.pass(Duration::from_secs(40));
    beat(&mut world, staying("a", Epoch(1))).unwrap();
    world.pass(Duration::from_secs(10));
    let alone = beat(&mut world, staying("a", Epoch(2))).unwrap();
    assert_eq!((alone.epoch, partitions(&alone)), (Epoch(3), vec![0, 1, 2]));
    world.pass(Duration::from_secs(30 * 24 * 60 * 60));
    let group = described(&mut world);
    assert_eq!((group.error, group.state), (None, GroupState::Empty));
    // A share group stays one.
    let commit = Request::FetchOffsets(FetchOffsets {
        group: GROUP.into(),
        member: None,
        member_epoch: Generation::NONE,
        topics: None,
        require_stable: false,
    });
    let refused = Answer::FetchOffsets(Err(GroupError::GroupIdNotFound));
    assert_eq!(world.ask(commit), refused);
    let deleted = world.ask(Request::DeleteGroups(vec![GROUP.into()]));
    assert_eq!(deleted, Answer::DeleteGroups(vec![(GROUP.into(), Ok(()))]));
    assert!(world.log.is_empty());
}

#[test]
fn a_share_group_is_full_at_its_bound() {
    let mut world = World::with(Config {
        share_members_max: 2,
        ..Config::default()
    });
    world.put_topic("orders", ORDERS, 1);
    beat(&mut world, joining("a")).unwrap();
    beat(&mut world, joining("b")).unwrap();
    let full = beat(&mut world, joining("c"));
    assert_eq!(full, Err(GroupError::GroupMaxSizeReached));
    beat(&mut world, joining("a")).unwrap();
}
