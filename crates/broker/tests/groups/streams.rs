//! Groups of Kafka Streams: topologies, tasks, and the topics that the broker creates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_broker::groups::*;

use crate::support::*;

const IN: &str = "in";
const REPARTITION: &str = "app-r-repartition";

/// `in` → a repartition topic → the rest of the application.
fn topology(epoch: i32) -> Topology {
    let first = Subtopology {
        sources: vec![IN.into()],
        repartition_sinks: vec![REPARTITION.into()],
        ..Subtopology::default()
    };
    let second = Subtopology {
        repartition_sources: vec![InternalTopic {
            name: REPARTITION.into(),
            ..InternalTopic::default()
        }],
        ..Subtopology::default()
    };
    Topology {
        epoch,
        subtopologies: BTreeMap::from([("0".into(), first), ("1".into(), second)]),
    }
}

/// The topology with this number of partitions.
fn configured(partitions: i32) -> Topology {
    let mut topology = topology(0);
    let second = topology.subtopologies.get_mut("1").unwrap();
    second.repartition_sources[0].partitions = partitions;
    topology
}

fn joining(member: &str) -> StreamsHeartbeat {
    StreamsHeartbeat {
        group: GROUP.into(),
        member: member.into(),
        epoch: Epoch::JOIN,
        endpoint_epoch: 0,
        instance: None,
        rack: None,
        client: Client::default(),
        principal: Arc::default(),
        rebalance_timeout: Some(REBALANCE),
        topology: Some(topology(0)),
        owned: Some(Vec::new()),
        standby: Some(0),
        warmup: Some(0),
        process: Some("process".into()),
        endpoint: None,
        tags: None,
        shuts_down: false,
    }
}

fn staying(member: &str, epoch: Epoch) -> StreamsHeartbeat {
    StreamsHeartbeat {
        epoch,
        rebalance_timeout: None,
        topology: None,
        owned: None,
        standby: None,
        warmup: None,
        process: None,
        ..joining(member)
    }
}

fn beat(world: &mut World, heartbeat: StreamsHeartbeat) -> Result<StreamsBeat, GroupError> {
    match world.ask(Request::StreamsHeartbeat(heartbeat)) {
        Answer::StreamsHeartbeat(answer) => answer.map_err(|refused| refused.error),
        other => panic!("another answer: {other:?}"),
    }
}

fn described(world: &mut World) -> DescribedStreamsGroup {
    match world.ask(Request::DescribeStreamsGroups(vec![GROUP.into()])) {
        Answer::DescribeStreamsGroups(mut groups) => groups.remove(0),
        other => panic!("another answer: {other:?}"),
    }
}

fn set(tasks: &Tasks) -> BTreeSet<(String, i32)> {
    let tasks = tasks.iter().flat_map(|(id, partitions)| {
        let partitions = partitions.iter();
        partitions.map(move |partition| (id.to_string(), partition.0))
    });
    tasks.collect()
}

/// All tasks of `topology` with this number of partitions.
fn all(partitions: i32) -> BTreeSet<(String, i32)> {
    let of = |id: &'static str| (0..partitions).map(move |partition| (id.to_owned(), partition));
    of("0").chain(of("1")).collect()
}

/// A coordinator with the topics of the application.
fn world(partitions: i32) -> World {
    let mut world = World::new();
    world.put_topic(IN, 1, partitions);
    world.put_topic(REPARTITION, 2, partitions);
    world
}

/// A member that follows its assignment.
struct Member {
    id: &'static str,
    epoch: Epoch,
    tasks: Tasks,
}

impl Member {
    fn join(world: &mut World, id: &'static str) -> Member {
        let mut member = Member {
            id,
            epoch: Epoch::JOIN,
            tasks: Vec::new(),
        };
        let answer = beat(world, joining(id)).unwrap();
        member.learn(answer);
        member
    }

    fn learn(&mut self, answer: StreamsBeat) {
        self.epoch = answer.epoch;
        if let Some(tasks) = answer.tasks {
            self.tasks = tasks;
        }
    }

    /// Sends the tasks that it owns: those of the last answer.
    fn follow(&mut self, world: &mut World) {
        let heartbeat = StreamsHeartbeat {
            owned: Some(self.tasks.clone()),
            standby: Some(0),
            warmup: Some(0),
            ..staying(self.id, self.epoch)
        };
        self.learn(beat(world, heartbeat).unwrap());
    }

    fn owns(&self) -> BTreeSet<(String, i32)> {
        set(&self.tasks)
    }
}

#[test]
fn the_first_member_gets_all_tasks() {
    let mut world = world(3);
    let answer = beat(&mut world, joining("a")).unwrap();
    assert_eq!(answer.heartbeat_interval, Duration::from_secs(5));
    assert_eq!(set(&answer.tasks.unwrap()), all(3));
    assert_eq!(answer.status, []);
    let group = described(&mut world);
    assert_eq!(group.state, GroupState::Stable);
    assert_eq!(group.topology, Some(configured(3)));
    assert_eq!(set(&group.members[0].assigned), all(3));
    // Nothing has changed, so there are no tasks.
    let answer = beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(answer.tasks, None);
}

#[test]
fn a_task_is_handed_over_after_it_was_given_up() {
    let mut world = world(3);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    let mut b = Member::join(&mut world, "b");
    assert_eq!(b.owns(), BTreeSet::new(), "nothing is free yet");
    let before = a.owns();
    a.learn(beat(&mut world, staying("a", a.epoch)).unwrap());
    assert!(a.owns().is_subset(&before) && a.owns().len() == 3);
    b.follow(&mut world);
    assert_eq!(
        b.owns(),
        BTreeSet::new(),
        "it is told, and has not given up"
    );
    a.follow(&mut world);
    b.follow(&mut world);
    assert!(a.owns().is_disjoint(&b.owns()));
    assert_eq!(&a.owns() | &b.owns(), all(3));
    assert_eq!(described(&mut world).state, GroupState::Stable);
}

#[test]
fn the_broker_is_told_to_make_topics_that_are_missing() {
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
fn a_group_without_its_sources_waits_for_them() {
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
fn sources_that_grow_bring_more_tasks_when_the_internal_topics_fit() {
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
fn a_newer_topology_takes_the_place_of_the_older_one() {
    let mut world = world(2);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    let mut other = topology(0);
    other.subtopologies.remove("1");
    let heartbeat = |epoch| StreamsHeartbeat {
        topology: Some(Topology {
            epoch,
            ..other.clone()
        }),
        ..joining("b")
    };
    assert_eq!(
        beat(&mut world, heartbeat(0)),
        Err(GroupError::StreamsInvalidTopology)
    );
    beat(&mut world, heartbeat(1)).unwrap();
    // The member of the older topology gives up all tasks, and learns why.
    let answer = beat(&mut world, staying("a", a.epoch)).unwrap();
    assert_eq!(answer.status[0].0, StreamsStatus::StaleTopology);
    a.learn(answer);
    a.follow(&mut world);
    assert_eq!(a.owns(), BTreeSet::new());
    let b = described(&mut world).members.remove(1);
    let answer = beat(&mut world, staying("b", b.epoch)).unwrap();
    let expected = [("0".to_owned(), 0), ("0".to_owned(), 1)];
    assert_eq!(set(&answer.tasks.unwrap()), expected.into());
}

#[test]
fn tasks_of_members_that_leave_or_fall_silent_go_to_the_others() {
    let mut world = world(2);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    let mut b = Member::join(&mut world, "b");
    a.learn(beat(&mut world, staying("a", a.epoch)).unwrap());
    a.follow(&mut world);
    b.follow(&mut world);
    beat(&mut world, staying("a", Epoch::LEAVE)).unwrap();
    b.learn(beat(&mut world, staying("b", b.epoch)).unwrap());
    assert_eq!(b.owns(), all(2));
    world.pass(Duration::from_secs(46));
    let group = described(&mut world);
    assert_eq!((group.state, group.members.len()), (GroupState::Empty, 0));
    assert_eq!(
        beat(&mut world, staying("b", b.epoch)),
        Err(GroupError::UnknownMemberId)
    );
}

#[test]
fn a_group_may_have_a_session_timeout_and_a_heartbeat_interval_of_its_own() {
    let mut config = Config::default();
    let own = GroupConfig {
        streams_session_timeout: Some(10 * SECOND),
        streams_heartbeat_interval: Some(2 * SECOND),
        ..GroupConfig::default()
    };
    config.of_groups.insert(GROUP.into(), own);
    let mut world = World::with(config);
    world.put_topic(IN, 1, 1);
    world.put_topic(REPARTITION, 2, 1);
    for restarts in [false, true] {
        let answer = beat(&mut world, joining("a")).unwrap();
        assert_eq!(answer.heartbeat_interval, 2 * SECOND);
        if restarts {
            world.restart();
        }
        world.pass(9 * SECOND);
        assert_eq!(described(&mut world).members.len(), 1);
        world.pass(2 * SECOND);
        assert_eq!(described(&mut world).members.len(), 0);
    }
}

#[test]
fn a_static_member_that_comes_back_has_its_tasks_at_once() {
    let mut world = world(2);
    let named = |heartbeat| StreamsHeartbeat {
        instance: Some("i".into()),
        ..heartbeat
    };
    let answer = beat(&mut world, named(joining("a"))).unwrap();
    assert_eq!(set(&answer.tasks.unwrap()), all(2));
    beat(&mut world, named(staying("a", Epoch::LEAVE_FOR_NOW))).unwrap();
    let other = beat(&mut world, joining("b")).unwrap();
    assert_eq!(set(&other.tasks.unwrap()), BTreeSet::new(), "they are kept");
    let answer = beat(&mut world, named(joining("c"))).unwrap();
    let tasks = set(&answer.tasks.unwrap());
    assert!(tasks.len() == 2 && tasks.is_subset(&all(2)), "{tasks:?}");
    let members = described(&mut world).members;
    let ids: Vec<&str> = members.iter().map(|member| &*member.member).collect();
    assert_eq!(ids, ["b", "c"]);
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
fn a_group_goes_on_after_a_restart() {
    let mut world = world(2);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    world.restart();
    let group = described(&mut world);
    assert_eq!(
        (group.topology, group.members.len()),
        (Some(topology(0)), 1)
    );
    let answer = beat(&mut world, staying("a", a.epoch)).unwrap();
    assert_eq!((answer.epoch, answer.tasks), (a.epoch, None));
}

#[test]
fn one_member_may_ask_all_to_shut_down() {
    let mut world = world(2);
    let a = Member::join(&mut world, "a");
    let b = Member::join(&mut world, "b");
    let heartbeat = StreamsHeartbeat {
        shuts_down: true,
        ..staying("a", a.epoch)
    };
    beat(&mut world, heartbeat).unwrap();
    let answer = beat(&mut world, staying("b", b.epoch)).unwrap();
    let told = answer.status.last().unwrap();
    assert_eq!(told.0, StreamsStatus::ShutdownApplication);
    // Its request to shut down goes with it.
    beat(&mut world, staying("a", Epoch::LEAVE)).unwrap();
    let answer = beat(&mut world, staying("b", answer.epoch)).unwrap();
    assert_eq!(answer.status, []);
}

#[test]
fn members_find_each_other_by_their_endpoints() {
    let mut world = world(1);
    let endpoint = Endpoint {
        host: "host".into(),
        port: 8080,
    };
    let heartbeat = StreamsHeartbeat {
        endpoint: Some(endpoint.clone()),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    let partitions = vec![Partition(0)];
    let expected = EndpointPartitions {
        endpoint,
        partitions: BTreeMap::from([
            (REPARTITION.into(), partitions.clone()),
            (IN.into(), partitions),
        ]),
    };
    assert_eq!(answer.endpoints, Some(vec![expected]));
    let heartbeat = StreamsHeartbeat {
        endpoint_epoch: answer.endpoint_epoch,
        ..staying("a", answer.epoch)
    };
    assert_eq!(beat(&mut world, heartbeat).unwrap().endpoints, None);
}

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
    match world.ask(Request::ListGroups(ListGroups {
        types: vec!["streams".to_owned()],
        ..ListGroups::default()
    })) {
        Answer::ListGroups(groups) => {
            assert_eq!(groups[0].group_type, GroupType::Streams);
            assert_eq!(&*groups[0].protocol_type, "streams");
        }
        other => panic!("another answer: {other:?}"),
    }
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
    assert!(world.log.is_empty(), "nothing is kept of it");
    refused
}

fn first(topology: &mut Topology) -> &mut Subtopology {
    topology.subtopologies.get_mut("0").unwrap()
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
fn more_partitions_than_a_topic_may_have_are_not_made() {
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

#[test]
fn a_long_list_of_missing_topics_is_cut_off() {
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

/// Commits an offset of each partition of a topic alone, as of an epoch: of which it is taken.
fn commits_taken(world: &mut World, member: &str, topic: &str, epoch: Epoch) -> BTreeSet<i32> {
    let taken = (0..4).filter(|partition| {
        let mut commit = commit(topic, 5);
        commit.member = member.into();
        commit.generation = Generation(epoch.0);
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
fn commits_of_an_older_epoch_are_of_tasks_that_the_member_had_then_and_has_still() {
    let mut world = world(4);
    let mut a = Member::join(&mut world, "a");
    a.follow(&mut world);
    let old = a.epoch;
    Member::join(&mut world, "b");
    a.learn(beat(&mut world, staying("a", a.epoch)).unwrap());
    a.follow(&mut world);
    assert!(a.epoch > old && a.owns().len() == 4);
    for (part, topic) in [("0", IN), ("1", REPARTITION)] {
        let owns = a.owns().into_iter().filter(|(id, _)| id == part);
        let partitions: BTreeSet<i32> = owns.map(|(_, partition)| partition).collect();
        assert_eq!(commits_taken(&mut world, "a", topic, old), partitions);
        let now = a.epoch;
        assert_eq!(commits_taken(&mut world, "a", topic, now), (0..4).collect());
    }
    assert_eq!(
        commits_taken(&mut world, "a", "other", old),
        BTreeSet::new()
    );
}

/// The kinds of records that a group of Kafka Streams has beside those of any group whose members have epochs.
const STREAMS_GROUP: u8 = 20;
const STREAMS_MEMBER: u8 = 21;

#[test]
fn what_is_kept_of_a_group_is_read_whole_or_refused() {
    let mut world = world(2);
    let mut full = topology(3);
    let part = first(&mut full);
    part.source_regexes = vec!["in.*".into()];
    part.changelogs = vec![InternalTopic {
        name: "changelog".into(),
        replication_factor: -1,
        settings: vec![("cleanup.policy".into(), "compact".into())],
        ..InternalTopic::default()
    }];
    part.copartitions = vec![Copartition {
        sources: vec![0],
        source_regexes: vec![0],
        ..Copartition::default()
    }];
    world.put_topic("changelog", 3, 2);
    let heartbeat = StreamsHeartbeat {
        topology: Some(full.clone()),
        endpoint: Some(Endpoint {
            host: "host".into(),
            port: 65_535,
        }),
        tags: Some(vec![("zone".into(), "a".into())]),
        ..joining("a")
    };
    let answer = beat(&mut world, heartbeat).unwrap();
    let before = described(&mut world);
    world.restart();
    beat(&mut world, staying("a", answer.epoch)).unwrap();
    assert_eq!(described(&mut world), before);
    let restore = |key: &Bytes, value: &[u8]| {
        let record = Record {
            key: key.clone(),
            value: Some(Bytes::copy_from_slice(value)),
        };
        Coordinator::restore(Config::default(), world.now, vec![record])
    };
    let kinds = [STREAMS_GROUP, STREAMS_MEMBER];
    let of_kind = |kind: u8| world.records.iter().find(|record| record.key[0] == kind);
    for kind in kinds {
        let Record { key, value } = of_kind(kind).expect("kept");
        let value = value.as_ref().expect("a value");
        restore(key, value).unwrap();
        for end in 0..value.len() {
            assert!(restore(key, &value[..end]).is_err());
        }
        let longer = [value, b"x".as_slice()].concat();
        assert_eq!(
            restore(key, &longer).unwrap_err(),
            RecordError::TooLong { bytes: 1 }
        );
    }
}
