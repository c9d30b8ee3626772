//! The topology of an application of Kafka Streams.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::groups::{TopicId, TopicName};
use crate::pattern::compile;
use crate::topic_names::check_name;

/// The topology of an application of Kafka Streams.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Topology {
    /// Grows with each change of the topology.
    pub epoch: i32,
    /// The parts that are connected by topics alone, by their ids.
    pub subtopologies: BTreeMap<Arc<str>, Subtopology>,
}

/// A part of a topology. Each partition of its sources is a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subtopology {
    /// The topics that it reads.
    pub sources: Vec<TopicName>,
    /// Regular expressions of topics that it reads.
    pub source_regexes: Vec<Arc<str>>,
    /// The changelogs of its state; the partitions of these are 0.
    pub changelogs: Vec<InternalTopic>,
    /// The repartition topics that it writes.
    pub repartition_sinks: Vec<TopicName>,
    /// The repartition topics that it reads.
    pub repartition_sources: Vec<InternalTopic>,
    /// Sources that must have equally many partitions.
    pub copartitions: Vec<Copartition>,
}

/// A topic that the broker creates for an application.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InternalTopic {
    /// Its name.
    pub name: TopicName,
    /// How many partitions it has; 0 if that follows from the topology.
    pub partitions: i32,
    /// How many replicas it has; 0 for the broker's default.
    pub replication_factor: i16,
    /// Its settings.
    pub settings: Vec<(Arc<str>, Arc<str>)>,
}

/// Sources of a subtopology, by their places in its lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copartition {
    /// In `sources`.
    pub sources: Vec<i16>,
    /// In `source_regexes`.
    pub source_regexes: Vec<i16>,
    /// In `repartition_sources`.
    pub repartition_sources: Vec<i16>,
}

/// The id of a subtopology where groups know topics by ids (FNV-1a, 128 bits). [`Topology::check`] refuses a topology
/// in which two subtopologies have the same one.
pub(super) fn task_id(subtopology: &str) -> TopicId {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in subtopology.bytes() {
        hash ^= u128::from(byte);
        hash = hash.wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    TopicId(hash)
}

impl Topology {
    /// Checks the parts that do not depend on topics.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.subtopologies.is_empty() {
            return Err("the topology has no subtopologies".to_owned());
        }
        let ids: BTreeSet<TopicId> = self.subtopologies.keys().map(|id| task_id(id)).collect();
        if ids.len() < self.subtopologies.len() {
            return Err("two subtopologies have ids with one hash".to_owned());
        }
        let mut readers = BTreeSet::new();
        for (id, part) in &self.subtopologies {
            let has_sources = !part.sources.is_empty()
                || !part.source_regexes.is_empty()
                || !part.repartition_sources.is_empty();
            if !has_sources {
                return Err(format!("subtopology {id} has no sources"));
            }
            for regex in &part.source_regexes {
                compile(regex).map_err(|why| format!("{regex:?}: {why}"))?;
            }
            for topic in part.changelogs.iter().chain(&part.repartition_sources) {
                check_name(&topic.name).map_err(|why| format!("topic {}: {why}", topic.name))?;
            }
            if let Some(topic) = part.changelogs.iter().find(|topic| topic.partitions != 0) {
                return Err(format!(
                    "changelog {} must not set its number of partitions",
                    topic.name
                ));
            }
            for topic in &part.repartition_sources {
                if topic.partitions < 0 || !readers.insert(&topic.name) {
                    return Err(format!(
                        "repartition topic {} is not one source",
                        topic.name
                    ));
                }
            }
            part.copartitions
                .iter()
                .try_for_each(|group| part.check_copartition(group))
                .map_err(|why| format!("subtopology {id}: {why}"))?;
        }
        Ok(())
    }

    /// The topics that it names; those of regular expressions are left out.
    pub fn topics(&self) -> impl Iterator<Item = &TopicName> {
        self.subtopologies.values().flat_map(|part| {
            let internal = part.changelogs.iter().chain(&part.repartition_sources);
            let internal = internal.map(|topic| &topic.name);
            part.sources.iter().chain(internal)
        })
    }

    pub(super) fn has_regexes(&self) -> bool {
        let mut parts = self.subtopologies.values();
        parts.any(|part| !part.source_regexes.is_empty())
    }
}

impl Subtopology {
    fn check_copartition(&self, group: &Copartition) -> Result<(), String> {
        let is_in = |places: &[i16], len: usize| {
            let mut places = places.iter();
            places.all(|place| usize::try_from(*place).is_ok_and(|place| place < len))
        };
        let is_whole = is_in(&group.sources, self.sources.len())
            && is_in(&group.source_regexes, self.source_regexes.len())
            && is_in(&group.repartition_sources, self.repartition_sources.len());
        match is_whole {
            true => Ok(()),
            false => Err("a copartition group names a source that does not exist".to_owned()),
        }
    }
}
