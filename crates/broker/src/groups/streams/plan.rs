//! The plan of a topology: the tasks, or the missing topics, that follow from it and the existing topics.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::topology::{Copartition, InternalTopic, Subtopology, Topology, task_id};
use crate::groups::config::TASKS_PER_GROUP_MAX;
use crate::groups::consumer::matching;
use crate::groups::topics::Topics;
use crate::groups::{TopicId, TopicName};

/// The most topics that a status names.
const NAMES_LISTED_MAX: usize = 10;

/// A fault that stops a group of Kafka Streams: Kafka's status of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i8)]
pub enum StreamsStatus {
    /// The member's topology is older than the group's.
    StaleTopology = 0,
    /// Topics that the application reads do not exist.
    MissingSourceTopics = 1,
    /// Topics have other numbers of partitions than the application needs.
    IncorrectlyPartitionedTopics = 2,
    /// Topics that the broker creates do not exist yet.
    MissingInternalTopics = 3,
    /// A member asked all members to shut down.
    ShutdownApplication = 4,
}

impl StreamsStatus {
    /// Kafka's code.
    pub fn code(self) -> i8 {
        self as i8
    }
}

/// The result of a topology with the existing topics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// How many tasks each subtopology has; none while anything is missing.
    pub tasks: BTreeMap<TopicId, i32>,
    /// The sources of each subtopology, with their partitions.
    pub sources: BTreeMap<TopicId, BTreeMap<TopicName, i32>>,
    /// The fault that stops the group.
    pub fault: Option<(StreamsStatus, String)>,
    /// The internal topics that do not exist, with their partitions.
    pub missing: Vec<InternalTopic>,
}

/// The sources of each subtopology with their partitions, by its id.
type Sources<'a> = BTreeMap<&'a str, BTreeMap<TopicName, i32>>;

impl Plan {
    fn faulty(status: StreamsStatus, detail: String) -> Plan {
        Plan {
            fault: Some((status, detail)),
            ..Plan::default()
        }
    }
}

impl Topology {
    /// The topology with the partition counts of internal topics, and with topics in place of regular expressions;
    /// unchanged if these are not known.
    pub(super) fn configured(&self, plan: &Plan) -> Topology {
        let parts = self.subtopologies.iter().map(|(id, part)| {
            let sources = plan.sources.get(&task_id(id))?;
            let mut part = part.clone();
            for topic in &mut part.repartition_sources {
                topic.partitions = sources.get(&topic.name).copied()?;
            }
            let tasks = sources.values().copied().max()?;
            part.changelogs
                .iter_mut()
                .for_each(|topic| topic.partitions = tasks);
            let internal: BTreeSet<&TopicName> =
                part.repartition_sources.iter().map(|it| &it.name).collect();
            let external = sources.keys().filter(|topic| !internal.contains(topic));
            part.sources = external.cloned().collect();
            Some((Arc::clone(id), part))
        });
        let parts: Option<BTreeMap<_, _>> = parts.collect();
        Topology {
            epoch: self.epoch,
            subtopologies: parts.unwrap_or_else(|| self.subtopologies.clone()),
        }
    }

    /// Applies the topology to the existing topics. `sees` tests whether a regular expression may find a topic.
    pub(super) fn plan(
        &self,
        topics: &Topics,
        sees: &dyn Fn(&TopicName) -> bool,
        partitions_max: u32,
    ) -> Plan {
        let partitions = |topic: &TopicName| topics.get(topic).map(|topic| topic.partitions);
        let mut missing = BTreeSet::new();
        // The topics that each subtopology reads, without repartition topics.
        let mut sources = Sources::new();
        let mut by_regex: BTreeMap<&str, BTreeSet<TopicName>> = BTreeMap::new();
        for (id, part) in &self.subtopologies {
            let found = sources.entry(id).or_default();
            for topic in &part.sources {
                match partitions(topic) {
                    Some(count) => _ = found.insert(topic.clone(), count),
                    None => _ = missing.insert(topic.to_string()),
                }
            }
            for regex in &part.source_regexes {
                let matched = by_regex.entry(regex).or_insert_with(|| {
                    let matched = matching(regex, topics).into_iter();
                    matched.filter(|topic| sees(topic)).collect()
                });
                if matched.is_empty() {
                    missing.insert(regex.to_string());
                }
                let matched = matched.iter().filter_map(|topic| {
                    let count = partitions(topic)?;
                    Some((topic.clone(), count))
                });
                found.extend(matched);
            }
        }
        if !missing.is_empty() {
            let detail = format!("Source topics {} are missing.", listed(missing));
            return Plan::faulty(StreamsStatus::MissingSourceTopics, detail);
        }
        let repartition = self.repartition_counts(&mut sources, &by_regex);
        let repartition = repartition.and_then(|counts| {
            self.check_size(&sources, partitions_max)?;
            Ok(counts)
        });
        let repartition = match repartition {
            Ok(repartition) => repartition,
            Err(detail) => {
                return Plan::faulty(StreamsStatus::IncorrectlyPartitionedTopics, detail);
            }
        };
        self.with_internal_topics(topics, sources, &repartition)
    }

    /// The partition count of each repartition topic: its own, or that of its copartitioned sources, or that of the
    /// subtopologies that write it. Adds the counts to the sources.
    fn repartition_counts<'a>(
        &'a self,
        sources: &mut Sources<'a>,
        by_regex: &BTreeMap<&str, BTreeSet<TopicName>>,
    ) -> Result<BTreeMap<TopicName, i32>, String> {
        let mut counts = self.counts_as_written(sources);
        for (id, part) in &self.subtopologies {
            for group in &part.copartitions {
                part.even_out(group, sources.entry(id).or_default(), by_regex, &mut counts)?;
            }
        }
        for (id, part) in &self.subtopologies {
            for topic in &part.repartition_sources {
                let count = counts.get(&topic.name).copied().ok_or_else(|| {
                    format!(
                        "Repartition topic {} has no number of partitions.",
                        topic.name
                    )
                })?;
                sources
                    .entry(id)
                    .or_default()
                    .insert(topic.name.clone(), count);
            }
        }
        Ok(counts)
    }

    /// The partition counts of the repartition topics that set their own, and of those that follow from their writers:
    /// the highest count that any subtopology reads that writes the topic. Topics whose writers read in a circle are
    /// left out. Visits each subtopology once, after all writers of its sources.
    fn counts_as_written(&self, sources: &Sources<'_>) -> BTreeMap<TopicName, i32> {
        let mut counts: BTreeMap<TopicName, i32> = BTreeMap::new();
        let mut readers: BTreeMap<&TopicName, &Arc<str>> = BTreeMap::new();
        let mut writers: BTreeMap<&TopicName, usize> = BTreeMap::new();
        // For each subtopology, how many of its topics have no known partition count yet, and the highest count of the
        // others.
        let mut reads: BTreeMap<&str, (usize, i32)> = BTreeMap::new();
        for (id, part) in &self.subtopologies {
            let external = sources.get(&**id).into_iter().flat_map(BTreeMap::values);
            let (unknown, most) = reads.entry(id).or_default();
            *most = external.copied().max().unwrap_or_default();
            for topic in &part.repartition_sources {
                readers.insert(&topic.name, id);
                match topic.partitions {
                    0 => *unknown += 1,
                    fixed => {
                        *most = fixed.max(*most);
                        counts.insert(topic.name.clone(), fixed);
                    }
                }
            }
            for topic in part.sinks() {
                *writers.entry(topic).or_default() += 1;
            }
        }
        let is_ready = |(_, (unknown, _)): &(&&str, &(usize, i32))| *unknown == 0;
        let mut ready: Vec<&str> = reads.iter().filter(is_ready).map(|(id, _)| *id).collect();
        let mut written: BTreeMap<&TopicName, i32> = BTreeMap::new();
        while let Some(id) = ready.pop() {
            let (_, most) = reads.get(id).copied().unwrap_or_default();
            let part = self.subtopologies.get(id);
            for topic in part.into_iter().flat_map(Subtopology::sinks) {
                let count = written.entry(topic).or_default();
                *count = most.max(*count);
                let writers = writers.entry(topic).or_default();
                *writers = writers.saturating_sub(1);
                if *writers > 0 || counts.contains_key(topic) {
                    continue;
                }
                counts.insert(topic.clone(), *count);
                let Some(reader) = readers.get(topic) else {
                    continue;
                };
                let (unknown, most) = reads.entry(reader).or_default();
                (*unknown, *most) = (unknown.saturating_sub(1), (*count).max(*most));
                if *unknown == 0 {
                    ready.push(reader);
                }
            }
        }
        counts
    }

    /// Refuses a topic with more partitions than a topic may have, and a topology with too many tasks.
    fn check_size(&self, sources: &Sources<'_>, partitions_max: u32) -> Result<(), String> {
        let mut tasks: i64 = 0;
        for topics in sources.values() {
            let most = topics.iter().max_by_key(|(_, count)| **count);
            let Some((topic, count)) = most else {
                continue;
            };
            if u32::try_from(*count).is_ok_and(|count| count > partitions_max) {
                return Err(format!(
                    "Topic {topic} needs {count} partitions, and a topic has at most {partitions_max}."
                ));
            }
            tasks = tasks.saturating_add((*count).into());
        }
        match tasks > TASKS_PER_GROUP_MAX {
            true => Err(format!(
                "The topology has {tasks} tasks, and a group has at most {TASKS_PER_GROUP_MAX}."
            )),
            false => Ok(()),
        }
    }

    fn with_internal_topics(
        &self,
        topics: &Topics,
        sources: Sources<'_>,
        repartition: &BTreeMap<TopicName, i32>,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut wrong = Vec::new();
        for (id, part) in &self.subtopologies {
            let own = sources.get(&**id).cloned().unwrap_or_default();
            let tasks = own.values().copied().max().unwrap_or_default();
            let changelogs = part.changelogs.iter().map(|topic| (topic, tasks));
            let repartition = part.repartition_sources.iter().filter_map(|topic| {
                let count = repartition.get(&topic.name)?;
                Some((topic, *count))
            });
            for (topic, count) in changelogs.chain(repartition) {
                match topics.get(&topic.name) {
                    Some(found) if found.partitions == count => {}
                    Some(found) => wrong.push(format!(
                        "{} has {} partitions and needs {count}",
                        topic.name, found.partitions
                    )),
                    None => plan.missing.push(InternalTopic {
                        partitions: count,
                        ..topic.clone()
                    }),
                }
            }
            plan.tasks.insert(task_id(id), tasks);
            plan.sources.insert(task_id(id), own);
        }
        if !wrong.is_empty() {
            let detail = format!(
                "Internal topics are partitioned wrongly: {}.",
                listed(wrong)
            );
            return Plan::faulty(StreamsStatus::IncorrectlyPartitionedTopics, detail);
        }
        if !plan.missing.is_empty() {
            let names = plan.missing.iter().map(|topic| &topic.name);
            let detail = format!("Internal topics {} are missing.", listed(names));
            plan.fault = Some((StreamsStatus::MissingInternalTopics, detail));
            plan.tasks.clear();
        }
        plan
    }
}

impl Subtopology {
    /// The repartition topics that it writes, each once.
    fn sinks(&self) -> BTreeSet<&TopicName> {
        self.repartition_sinks.iter().collect()
    }

    /// Gives the repartition topics of a copartition group the partitions of its other sources.
    fn even_out(
        &self,
        group: &Copartition,
        sources: &mut BTreeMap<TopicName, i32>,
        by_regex: &BTreeMap<&str, BTreeSet<TopicName>>,
        counts: &mut BTreeMap<TopicName, i32>,
    ) -> Result<(), String> {
        let at = |place: &i16| usize::try_from(*place).unwrap_or(usize::MAX);
        let named = group
            .sources
            .iter()
            .filter_map(|place| self.sources.get(at(place)));
        let regexes = group.source_regexes.iter();
        let regexes = regexes.filter_map(|place| self.source_regexes.get(at(place)));
        let matched = regexes.filter_map(|regex| by_regex.get(&**regex)).flatten();
        let external: Vec<&TopicName> = named.chain(matched).collect();
        let repartition = group.repartition_sources.iter();
        let repartition: Vec<&InternalTopic> = repartition
            .filter_map(|place| self.repartition_sources.get(at(place)))
            .collect();
        let found = external
            .iter()
            .filter_map(|topic| sources.get(*topic).copied());
        let found: BTreeSet<i32> = found.collect();
        let fixed = repartition.iter().map(|topic| topic.partitions);
        let fixed: BTreeSet<i32> = fixed.filter(|count| *count > 0).collect();
        let wanted = &found | &fixed;
        if wanted.len() > 1 {
            let internal = repartition.iter().map(|topic| &topic.name);
            return Err(format!(
                "Topics {} must have equally many partitions.",
                listed(external.into_iter().chain(internal))
            ));
        }
        let derived = || {
            repartition
                .iter()
                .filter_map(|topic| counts.get(&topic.name).copied())
                .max()
        };
        let Some(count) = wanted.first().copied().or_else(derived) else {
            return Ok(());
        };
        for topic in repartition {
            counts.insert(topic.name.clone(), count);
        }
        Ok(())
    }
}

/// Lists the first of some names, and the number of the others.
fn listed<T: fmt::Display>(names: impl IntoIterator<Item = T>) -> String {
    let mut names = names.into_iter();
    let first: Vec<String> = names
        .by_ref()
        .take(NAMES_LISTED_MAX)
        .map(|name| name.to_string())
        .collect();
    let first = first.join(", ");
    match names.count() {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Topic;

    fn topics(all: &[(&str, i32)]) -> Topics {
        let mut topics = Topics::default();
        for (id, (name, partitions)) in (1..).zip(all) {
            topics.put(Topic {
                name: TopicName::from(*name),
                id: TopicId(id),
                partitions: *partitions,
            });
        }
        topics
    }

    fn internal(name: &str, partitions: i32) -> InternalTopic {
        InternalTopic {
            name: TopicName::from(name),
            partitions,
            ..InternalTopic::default()
        }
    }

    fn names(names: &[&str]) -> Vec<TopicName> {
        names.iter().map(|name| TopicName::from(*name)).collect()
    }

    /// `in` → repartition topic `r` → `out`.
    fn two_parts(partitions: i32) -> Topology {
        let first = Subtopology {
            sources: names(&["in"]),
            repartition_sinks: names(&["r"]),
            ..Subtopology::default()
        };
        let second = Subtopology {
            repartition_sources: vec![internal("r", partitions)],
            ..Subtopology::default()
        };
        Topology {
            epoch: 0,
            subtopologies: BTreeMap::from([("0".into(), first), ("1".into(), second)]),
        }
    }

    fn plan(topology: &Topology, all: &[(&str, i32)]) -> Plan {
        topology.check().unwrap();
        topology.plan(&topics(all), &|_| true, 10_000)
    }

    #[test]
    fn a_repartition_topic_has_the_partitions_of_its_writers_sources() {
        let made = plan(&two_parts(0), &[("in", 5)]);
        assert_eq!(made.missing, [internal("r", 5)]);
        let status = made.fault.map(|(status, _)| status);
        assert_eq!(status, Some(StreamsStatus::MissingInternalTopics));
        assert!(made.tasks.is_empty());
        let fixed = plan(&two_parts(3), &[("in", 5)]);
        assert_eq!(fixed.missing, [internal("r", 3)]);
    }

    #[test]
    fn each_partition_of_the_sources_is_a_task() {
        let made = plan(&two_parts(0), &[("in", 5), ("r", 5)]);
        assert_eq!((&made.fault, made.missing.len()), (&None, 0));
        assert_eq!(
            made.tasks,
            BTreeMap::from([(task_id("0"), 5), (task_id("1"), 5)])
        );
    }

    #[test]
    fn missing_and_wrongly_partitioned_topics_are_reported() {
        let status = |all: &[(&str, i32)]| plan(&two_parts(0), all).fault.map(|(status, _)| status);
        assert_eq!(status(&[]), Some(StreamsStatus::MissingSourceTopics));
        let wrong = Some(StreamsStatus::IncorrectlyPartitionedTopics);
        assert_eq!(status(&[("in", 5), ("r", 4)]), wrong);
    }

    #[test]
    fn copartitioned_sources_have_equally_many_partitions() {
        let mut topology = two_parts(0);
        let second = topology.subtopologies.get_mut("1").unwrap();
        second.sources = names(&["other"]);
        second.copartitions = vec![Copartition {
            sources: vec![0],
            repartition_sources: vec![0],
            ..Copartition::default()
        }];
        let made = plan(&topology, &[("in", 5), ("other", 2)]);
        assert_eq!(made.missing, [internal("r", 2)]);
        let second = topology.subtopologies.get_mut("1").unwrap();
        second.repartition_sources[0].partitions = 3;
        let made = plan(&topology, &[("in", 5), ("other", 2)]);
        let status = made.fault.map(|(status, _)| status);
        assert_eq!(status, Some(StreamsStatus::IncorrectlyPartitionedTopics));
    }

    #[test]
    fn topologies_that_contradict_themselves_are_refused() {
        assert!(Topology::default().check().is_err());
        let mut twice = two_parts(0);
        let second = twice.subtopologies["1"].clone();
        twice.subtopologies.insert("2".into(), second);
        assert!(twice.check().is_err());
        let mut outside = two_parts(0);
        let first = outside.subtopologies.get_mut("0").unwrap();
        first.copartitions = vec![Copartition {
            sources: vec![1],
            ..Copartition::default()
        }];
        assert!(outside.check().is_err());
        // A repartition topic that only reads itself has no number of partitions.
        let mut circle = two_parts(0);
        let second = circle.subtopologies.get_mut("1").unwrap();
        second.repartition_sinks = names(&["r"]);
        circle.subtopologies.remove("0");
        let made = circle.plan(&topics(&[]), &|_| true, 10_000);
        assert!(made.fault.is_some());
    }

    /// `in` → `r999` → … → `r0`: each subtopology reads the topic that the one after it writes.
    #[test]
    fn a_long_chain_of_repartition_topics_is_followed_to_its_beginning() {
        let parts = (0..1_000_u32).map(|place| {
            let written = place.checked_sub(1).map(|next| format!("r{next}"));
            let mut part = Subtopology {
                repartition_sinks: written.iter().map(|name| name.as_str().into()).collect(),
                repartition_sources: vec![internal(&format!("r{place}"), 0)],
                ..Subtopology::default()
            };
            if place == 999 {
                (part.sources, part.repartition_sources) = (names(&["in"]), Vec::new());
            }
            (Arc::from(format!("{place}")), part)
        });
        let chain = Topology {
            epoch: 0,
            subtopologies: parts.collect(),
        };
        let made = plan(&chain, &[("in", 7)]);
        assert_eq!(made.missing.len(), 999);
        assert!(made.missing.iter().all(|topic| topic.partitions == 7));
    }

    #[test]
    fn the_writer_with_the_most_source_partitions_sizes_a_repartition_topic() {
        let mut topology = two_parts(0);
        let third = Subtopology {
            sources: names(&["other"]),
            repartition_sinks: names(&["r", "r"]),
            ..Subtopology::default()
        };
        topology.subtopologies.insert("2".into(), third);
        for (first, other) in [(5, 2), (2, 5)] {
            let made = plan(&topology, &[("in", first), ("other", other)]);
            assert_eq!(made.missing, [internal("r", 5)]);
        }
    }
}
