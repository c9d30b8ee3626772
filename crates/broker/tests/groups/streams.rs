//! Groups of Kafka Streams: members, and the tasks that they own.

mod records;
mod refusals;
mod topics;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

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
fn a_task_is_assigned_only_after_its_revocation() {
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
        "it has the revocation, and has not confirmed it"
    );
    a.follow(&mut world);
    b.follow(&mut world);
    assert!(a.owns().is_disjoint(&b.owns()));
    assert_eq!(&a.owns() | &b.owns(), all(3));
    assert_eq!(described(&mut world).state, GroupState::Stable);
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
fn a_returning_static_member_gets_its_tasks_at_once() {
    let mut world = world(2);
    let named = |heartbeat| StreamsHeartbeat {
        instance: Some("i".into()),
        ..heartbeat
    };
    let answer = beat(&mut world, named(joining("a"))).unwrap();
    assert_eq!(set(&answer.tasks.unwrap()), all(2));
    beat(&mut world, named(staying("a", Epoch::LEAVE_FOR_NOW))).unwrap();
    let other = beat(&mut world, joining("b")).unwrap();
    assert_eq!(
        set(&other.tasks.unwrap()),
        BTreeSet::new(),
        "the other member retains its tasks"
    );
    let answer = beat(&mut world, named(joining("c"))).unwrap();
    let tasks = set(&answer.tasks.unwrap());
    assert!(tasks.len() == 2 && tasks.is_subset(&all(2)), "{tasks:?}");
    let members = described(&mut world).members;
    let ids: Vec<&str> = members.iter().map(|member| &*member.member).collect();
    assert_eq!(ids, ["b", "c"]);
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
fn one_member_may_shut_down_all_members() {
    let mut world = world(2);
    let a = Member::join(&mut world, "a");
    let b = Member::join(&mut world, "b");
    let heartbeat = StreamsHeartbeat {
        shuts_down: true,
        ..staying("a", a.epoch)
    };
    beat(&mut world, heartbeat).unwrap();
    let answer = beat(&mut world, staying("b", b.epoch)).unwrap();
    let last = answer.status.last().unwrap();
    assert_eq!(last.0, StreamsStatus::ShutdownApplication);
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

fn first(topology: &mut Topology) -> &mut Subtopology {
    topology.subtopologies.get_mut("0").unwrap()
}
