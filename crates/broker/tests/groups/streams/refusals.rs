//! Refused heartbeats and topologies, and the bounds of a group.

use std::sync::Arc;

use millstream_broker::groups::*;

use super::{IN, Member, beat, described, first, joining, set, staying, topology, world};
use crate::support::*;

#[test]
fn a_group_has_one_type_while_it_has_members() {
    let mut world = world(1);
    Member::join(&mut world, "a");
    let consumer = Request::DescribeConsumerGroups(vec![GROUP.into()]);
    match world.ask(consumer) {
        Answer::DescribeConsumerGroups(groups) => {
            assert_eq!(groups[0].error, Some(GroupError::GroupIdNotFound));
        }
        other => panic!("another answer: {other:?}"),
    }
    let listed = world.list(&[], &["streams"]);
    assert_eq!(listed[0].group_type, GroupType::Streams);
    assert_eq!(&*listed[0].protocol_type, "streams");
    let member = crate::member::joining("c");
    assert_eq!(
        crate::member::beat(&mut world, member),
        Err(GroupError::GroupIdNotFound)
    );
    beat(&mut world, staying("a", Epoch::LEAVE)).unwrap();
    let member = crate::member::joining("c");
    crate::member::beat(&mut world, member).unwrap();
    assert_eq!(
        beat(&mut world, joining("a")),
        Err(GroupError::GroupIdNotFound)
    );
}

#[test]
fn heartbeats_that_contradict_themselves_are_refused() {
    let mut world = world(1);
    let mut check = |heartbeat, error| assert_eq!(beat(&mut world, heartbeat), Err(error));
    let invalid = GroupError::InvalidRequest;
    check(
        StreamsHeartbeat {
            topology: None,
            ..joining("a")
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            process: None,
            ..joining("a")
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            owned: Some(vec![("0".into(), vec![Partition(0)])]),
            ..joining("a")
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            standby: Some(1),
            ..joining("a")
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            warmup: None,
            ..joining("a")
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            topology: Some(topology(0)),
            ..staying("a", Epoch(1))
        },
        invalid,
    );
    check(
        StreamsHeartbeat {
            rebalance_timeout: None,
            ..joining("a")
        },
        invalid,
    );
    check(staying("a", Epoch(-3)), invalid);
    check(staying("a", Epoch(3)), GroupError::GroupIdNotFound);
}

#[test]
fn heartbeats_of_unknown_members_and_other_epochs_are_refused() {
    let mut world = world(1);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    for (member, epoch, error) in [
        ("b", a.epoch, GroupError::UnknownMemberId),
        ("b", Epoch::LEAVE, GroupError::UnknownMemberId),
        ("a", Epoch(a.epoch.0 + 1), GroupError::FencedMemberEpoch),
        ("a", Epoch(i32::MAX), GroupError::FencedMemberEpoch),
    ] {
        let refused = beat(&mut world, staying(member, epoch));
        assert_eq!(refused, Err(error), "{member} {epoch:?}");
    }
    // Only a member that names its tasks may have missed its last answer.
    Member::join(&mut world, "b");
    a.learn(beat(&mut world, staying("a", a.epoch)).unwrap());
    a.follow(&mut world);
    let refused = beat(&mut world, staying("a", Epoch(a.epoch.0 - 1)));
    assert_eq!(refused, Err(GroupError::FencedMemberEpoch));
    assert_eq!(described(&mut world).members.len(), 2);
}

/// The topology after a change, and how a member is refused that joins with it.
fn refused(change: impl FnOnce(&mut Topology)) -> GroupError {
    let mut topology = topology(0);
    change(&mut topology);
    let mut world = world(1);
    let heartbeat = StreamsHeartbeat {
        topology: Some(topology),
        ..joining("a")
    };
    let refused = beat(&mut world, heartbeat).unwrap_err();
    assert!(world.log.is_empty(), "nothing of it is persisted");
    refused
}

#[test]
fn topologies_that_are_too_large_are_refused() {
    let invalid = GroupError::InvalidRequest;
    // Empty names take next to nothing on the wire.
    let names = |topology: &mut Topology| first(topology).sources = vec!["".into(); 10_001];
    assert_eq!(refused(names), invalid);
    let long = |topology: &mut Topology| {
        first(topology).sources = vec!["x".repeat(2000).as_str().into(); 600]
    };
    assert_eq!(refused(long), invalid);
    let places = |topology: &mut Topology| {
        let group = Copartition {
            sources: vec![0; 10_000],
            ..Copartition::default()
        };
        first(topology).copartitions = vec![group];
    };
    assert_eq!(refused(places), invalid);
    let parts = |topology: &mut Topology| {
        let part = first(topology).clone();
        let more = (0..1_000).map(|place| (Arc::from(format!("x{place}")), part.clone()));
        topology.subtopologies.extend(more);
    };
    assert_eq!(refused(parts), invalid);
    let regexes = |topology: &mut Topology| {
        let regexes = (0..101).map(|place| Arc::from(format!("x{place}")));
        first(topology).source_regexes = regexes.collect();
    };
    assert_eq!(refused(regexes), invalid);
}

#[test]
fn topologies_that_contradict_themselves_are_refused() {
    let changes: [fn(&mut Topology); 6] = [
        |topology| topology.subtopologies.clear(),
        |topology| first(topology).sources.clear(),
        |topology| first(topology).source_regexes = vec!["(".into()],
        |topology| {
            first(topology).changelogs = vec![InternalTopic {
                name: "changelog".into(),
                partitions: 1,
                ..InternalTopic::default()
            }];
        },
        |topology| {
            first(topology).changelogs = vec![InternalTopic {
                name: "__groups".into(),
                ..InternalTopic::default()
            }];
        },
        |topology| {
            let second = topology.subtopologies.get_mut("1").unwrap();
            second.repartition_sources[0].partitions = -1;
        },
    ];
    for (place, change) in changes.into_iter().enumerate() {
        assert_eq!(
            refused(change),
            GroupError::StreamsInvalidTopology,
            "change {place}"
        );
    }
}

#[test]
fn a_group_has_a_bounded_number_of_tasks() {
    let mut world = World::new();
    world.put_topic(IN, 1, 10_000);
    let part = Subtopology {
        sources: vec![IN.into()],
        ..Subtopology::default()
    };
    let parts = (0..11).map(|place| (Arc::from(place.to_string()), part.clone()));
    let heartbeat = StreamsHeartbeat {
        topology: Some(Topology {
            epoch: 0,
            subtopologies: parts.collect(),
        }),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    let (status, detail) = &answer.status[0];
    assert_eq!(*status, StreamsStatus::IncorrectlyPartitionedTopics);
    assert!(detail.contains("110000 tasks"), "{detail}");
    assert_eq!(set(&answer.tasks.unwrap()).len(), 0);
}
