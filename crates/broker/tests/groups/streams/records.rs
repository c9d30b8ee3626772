//! Commits of members, and the persisted records of a group.

use std::collections::BTreeSet;

use bytes::Bytes;
use millstream_broker::groups::*;

use super::{IN, Member, REPARTITION, beat, described, first, joining, staying, topology, world};
use crate::support::*;

/// Commits an offset of each partition of a topic alone, as of an epoch; returns the partitions that accept it.
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
fn an_older_epoch_commits_only_tasks_owned_then_and_now() {
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
fn persisted_groups_are_restored_whole_or_refused() {
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
        let Record { key, value } = of_kind(kind).expect("a record of this kind");
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
