//! A group of Kafka Streams (KIP-1071): the coordinator turns the topology of an application into tasks and assigns
//! them.
//!
//! A task is a partition of the sources of a subtopology. Members get tasks as members of groups of KIP-848 get
//! partitions, by the same code: [`ConsumerGroup`], for which a subtopology is a topic. So no task has two owners.
//! This module adds the topology: it yields the tasks, and the topics that the broker creates for them.
//!
//! Standby and warm-up tasks are not assigned. While a topic is missing or partitioned wrongly there are no tasks, and
//! the members' heartbeats report the fault.

mod heartbeat;
mod member;
mod plan;
mod store;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::heartbeat::check;
pub(super) use self::member::StreamsMember;
pub use self::member::{Endpoint, EndpointPartitions, Tasks};
use self::plan::Plan;
pub use self::plan::StreamsStatus;
use self::topology::task_id;
pub use self::topology::{Copartition, InternalTopic, Subtopology, Topology};
use super::answer::{
    DescribedStreamsGroup, GroupState, GroupType, ListedGroup, StreamsMemberState,
};
use super::consumer::{Assignment, ConsumerGroup};
use super::{GroupName, MemberId, TopicId, TopicName};

/// The protocol type of groups of Kafka Streams.
const STREAMS: &str = "streams";

/// A group of Kafka Streams.
#[derive(Debug)]
pub(super) struct StreamsGroup {
    /// Members, and the tasks that they have.
    tasks: ConsumerGroup,
    /// `None` before the first member.
    topology: Option<Topology>,
    /// The topics that the topology names.
    named: BTreeSet<TopicName>,
    plan: Plan,
    /// As many as `tasks` has.
    members: BTreeMap<MemberId, StreamsMember>,
    /// A member that asked all members to shut down; until it leaves.
    shut_down_by: Option<MemberId>,
    endpoints: Vec<EndpointPartitions>,
    /// Grows with each change of `endpoints`.
    endpoint_epoch: i32,
    /// The time of the last request to create topics.
    creates_since: Option<Duration>,
    /// The reason why the broker could not create them.
    creation_error: Option<String>,
}

impl StreamsGroup {
    pub fn new(name: GroupName) -> Self {
        StreamsGroup::around(ConsumerGroup::new(name).of_tasks(), None, BTreeMap::new())
    }

    fn around(
        tasks: ConsumerGroup,
        topology: Option<Topology>,
        members: BTreeMap<MemberId, StreamsMember>,
    ) -> Self {
        let named = topology.iter().flat_map(Topology::topics).cloned();
        StreamsGroup {
            tasks,
            named: named.collect(),
            topology,
            plan: Plan::default(),
            members,
            shut_down_by: None,
            endpoints: Vec::new(),
            endpoint_epoch: 0,
            creates_since: None,
            creation_error: None,
        }
    }

    /// Its members, as the part that all groups with epochs share.
    pub fn tasks(&self) -> &ConsumerGroup {
        &self.tasks
    }

    /// Whether the group reads the topic, and so keeps its offsets.
    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        let mut sources = self.plan.sources.values();
        let is_read =
            self.named.contains(topic) || sources.any(|topics| topics.contains_key(topic));
        !self.tasks.is_empty() && is_read
    }

    /// The tasks that read the topic, by the ids of their subtopologies.
    pub fn readers(&self, topic: &TopicName) -> Vec<TopicId> {
        let parts = self.plan.sources.iter();
        let reading = parts.filter(|(_, sources)| sources.contains_key(topic));
        reading.map(|(id, _)| *id).collect()
    }

    /// Makes the next heartbeat check the tasks if the topology may name the topic, which was created, changed or
    /// deleted.
    pub fn topic_changed(&mut self, topic: &TopicName) {
        let has_regexes = self.topology.as_ref().is_some_and(Topology::has_regexes);
        if has_regexes || self.named.contains(topic) {
            self.tasks.note_change();
        }
    }

    /// Makes the next heartbeat check the tasks if the topology has regular expressions: the access rules have
    /// changed.
    pub fn access_changed(&mut self) {
        if self.topology.as_ref().is_some_and(Topology::has_regexes) {
            self.tasks.note_change();
        }
    }

    /// Notes that the broker could not create topics for the group.
    pub fn creation_failed(&mut self, why: String) {
        self.creation_error = Some(why);
    }

    fn state(&self) -> GroupState {
        match self.tasks.state() {
            state if !self.tasks.is_empty() && self.plan.fault.is_some() => match state {
                GroupState::Empty => state,
                _ => GroupState::NotReady,
            },
            state => state,
        }
    }

    pub fn listed(&self) -> ListedGroup {
        ListedGroup {
            protocol_type: STREAMS.into(),
            state: self.state(),
            group_type: GroupType::Streams,
            ..self.tasks.listed()
        }
    }

    pub fn described(&self) -> DescribedStreamsGroup {
        let members = self.tasks.each_member().map(|(id, member)| {
            let said = self.members.get(id).cloned().unwrap_or_default();
            StreamsMemberState {
                member: id.clone(),
                instance: member.instance.cloned(),
                rack: member.rack.cloned(),
                epoch: member.epoch,
                client: member.client.clone(),
                topology_epoch: said.topology_epoch,
                process: said.process,
                endpoint: said.endpoint,
                tags: said.tags,
                assigned: self.named(member.assigned),
                target: self.named(member.target),
            }
        });
        let (epoch, target_epoch) = self.tasks.epochs();
        DescribedStreamsGroup {
            group: self.tasks.listed().group,
            error: None,
            state: self.state(),
            epoch,
            target_epoch,
            topology: self.topology.as_ref().map(|it| it.configured(&self.plan)),
            members: members.collect(),
        }
    }

    /// Tasks by the ids of their subtopologies. Tasks of an earlier topology are left out.
    fn named(&self, assignment: &Assignment) -> Tasks {
        let parts = self.topology.iter().flat_map(|it| it.subtopologies.keys());
        let named = parts.filter_map(|id| {
            let partitions = assignment.get(&task_id(id))?;
            Some((Arc::clone(id), partitions.iter().copied().collect()))
        });
        named.collect()
    }
}
