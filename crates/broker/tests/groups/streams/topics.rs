//! Topics of a topology: sources, and internal topics that the broker creates.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_broker::groups::*;

use super::{
    IN, Member, REPARTITION, all, beat, described, first, joining, set, staying, topology, world,
};
use crate::support::*;

#[test]
fn missing_internal_topics_are_requested_from_the_broker() {
    let mut world = World::new();
    world.put_topic(IN, 1, 4);
    let answer = beat(&mut world, joining("a")).unwrap();
    let (status, detail) = &answer.status[0];
    assert_eq!(*status, StreamsStatus::MissingInternalTopics);
    assert!(detail.contains(REPARTITION), "{detail}");
    assert_eq!(described(&mut world).state, GroupState::NotReady);
    let creation = world.creations.remove(0);
    assert_eq!(creation.group, GROUP.into());
    let made: Vec<_> = creation
        .topics
        .iter()
        .map(|it| (&*it.name, it.partitions))
        .collect();
    assert_eq!(made, [(REPARTITION, 4)]);
    // The coordinator does not ask with each heartbeat.
    let mut epoch = answer.epoch;
    epoch = beat(&mut world, staying("a", epoch)).unwrap().epoch;
    assert_eq!(world.creations.len(), 0);
    // If the broker cannot create them, members learn the reason, and the next try comes later.
    world
        .coordinator
        .creation_failed(&GROUP.into(), "The disk is full.".to_owned());
    let answer = beat(&mut world, staying("a", epoch)).unwrap();
    assert!(
        answer.status[0].1.ends_with("The disk is full."),
        "{:?}",
        answer.status
    );
    world.pass(Duration::from_secs(11));
    beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(world.creations.len(), 1);
    world.put_topic(REPARTITION, 2, 4);
    let answer = beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(
        (set(&answer.tasks.unwrap()), answer.status),
        (all(4), Vec::new())
    );
}

#[test]
fn a_group_waits_for_its_missing_sources() {
    let mut world = World::new();
    let answer = beat(&mut world, joining("a")).unwrap();
    assert_eq!(answer.status[0].0, StreamsStatus::MissingSourceTopics);
    assert_eq!(set(&answer.tasks.unwrap()), BTreeSet::new());
    world.put_topic(IN, 1, 2);
    world.put_topic(REPARTITION, 2, 2);
    let answer = beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(set(&answer.tasks.unwrap()), all(2));
}

#[test]
fn growing_sources_add_tasks_once_the_internal_topics_match() {
    let mut world = world(2);
    let mut a = Member::join(&mut world, "a");
    world.put_topic(IN, 1, 3);
    let answer = beat(&mut world, staying("a", a.epoch)).unwrap();
    assert_eq!(
        answer.status[0].0,
        StreamsStatus::IncorrectlyPartitionedTopics
    );
    a.learn(answer);
    a.follow(&mut world);
    world.put_topic(REPARTITION, 2, 3);
    a.learn(beat(&mut world, staying("a", a.epoch)).unwrap());
    assert_eq!(a.owns(), all(3));
}

#[test]
fn sources_are_found_by_regular_expressions() {
    let mut world = World::new();
    let mut by_regex = topology(0);
    let part = first(&mut by_regex);
    (part.sources, part.source_regexes) = (Vec::new(), vec!["in-.*".into()]);
    let heartbeat = StreamsHeartbeat {
        topology: Some(by_regex),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    assert_eq!(answer.status[0].0, StreamsStatus::MissingSourceTopics);
    world.put_topic("in-1", 1, 2);
    world.put_topic("other", 2, 9);
    world.put_topic(REPARTITION, 3, 2);
    let answer = beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(set(&answer.tasks.unwrap()), all(2));
    let parts = described(&mut world).topology.unwrap().subtopologies;
    assert_eq!(parts["0"].sources, vec![TopicName::from("in-1")]);
    // The regular expression also finds a topic that is created later.
    world.put_topic("in-2", 4, 3);
    world.put_topic(REPARTITION, 3, 3);
    let answer = beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(set(&answer.tasks.unwrap()), all(3));
}

#[test]
fn internal_topics_with_too_many_partitions_are_not_requested() {
    let mut world = World::new();
    world.put_topic(IN, 1, 2);
    let mut million = topology(0);
    let second = million.subtopologies.get_mut("1").unwrap();
    second.repartition_sources[0].partitions = 1_000_000;
    let heartbeat = StreamsHeartbeat {
        topology: Some(million),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    let (status, detail) = &answer.status[0];
    assert_eq!(*status, StreamsStatus::IncorrectlyPartitionedTopics);
    assert!(detail.contains("at most 10000"), "{detail}");
    assert_eq!(
        (world.creations.len(), set(&answer.tasks.unwrap()).len()),
        (0, 0)
    );
}

#[test]
fn a_long_list_of_missing_topics_is_truncated() {
    let mut world = World::new();
    let mut many = topology(0);
    first(&mut many).sources = (0..9_000)
        .map(|place| format!("t{place:04}").as_str().into())
        .collect();
    let heartbeat = StreamsHeartbeat {
        topology: Some(many),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    let (status, detail) = &answer.status[0];
    assert_eq!(*status, StreamsStatus::MissingSourceTopics);
    assert!(detail.contains("t0009 and 8990 more"), "{detail}");
    assert!(detail.len() < 200);
}
