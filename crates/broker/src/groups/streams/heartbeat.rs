//! The heartbeat: members bring the topology by it, get tasks, and stay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::plan::StreamsStatus;
use super::topology::{Topology, task_id};
use super::{EndpointPartitions, StreamsGroup, StreamsMember};
use crate::groups::answer::{HeartbeatRefused, StreamsBeat};
use crate::groups::config::{
    ID_BYTES_MAX, MEMBER_BYTES_MAX, REGEXES_PER_GROUP_MAX, SUBTOPOLOGIES_MAX, TOPOLOGY_ITEMS_MAX,
};
use crate::groups::consumer;
use crate::groups::record::{Key, Value};
use crate::groups::turn::{Action, Creation, Turn};
use crate::groups::{
    ConsumerHeartbeat, Epoch, GroupError, MemberId, Partition, RandomBytes, StreamsHeartbeat,
    TopicName,
};

type Result<T> = std::result::Result<T, HeartbeatRefused>;

/// If topics are still missing after this time, the coordinator asks the broker again to create them.
const CREATE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Checks the fields that do not depend on the group.
pub(in crate::groups) fn check(heartbeat: &StreamsHeartbeat) -> Result<()> {
    let invalid = |reason: &str| Err(HeartbeatRefused::new(GroupError::InvalidRequest, reason));
    consumer::check(&of_members(heartbeat))?;
    let is_join = heartbeat.epoch == Epoch::JOIN;
    if is_join != heartbeat.topology.is_some() {
        return invalid("a member must send its topology when it joins, and only then");
    }
    if is_join && heartbeat.process.as_deref().is_none_or(str::is_empty) {
        return invalid("a member that joins must send its process");
    }
    let kinds = [
        heartbeat.owned.is_some(),
        heartbeat.standby.is_some(),
        heartbeat.warmup.is_some(),
    ];
    if kinds.contains(&true) && kinds.contains(&false) {
        return invalid("a member that sends its tasks must send those of each kind");
    }
    if heartbeat.standby > Some(0) || heartbeat.warmup > Some(0) {
        return invalid("a member has no standby or warm-up tasks, since none are assigned");
    }
    let tags = heartbeat.tags.as_deref().unwrap_or_default();
    if tags.len() > TOPOLOGY_ITEMS_MAX {
        return invalid("there are too many tags");
    }
    let tags = tags.iter().map(|(key, value)| key.len() + value.len());
    let tags: usize = tags.sum();
    let process = heartbeat.process.as_ref().map_or(0, |id| id.len());
    let host = heartbeat.endpoint.as_ref().map_or(0, |it| it.host.len());
    if process > ID_BYTES_MAX || host > ID_BYTES_MAX || tags > MEMBER_BYTES_MAX {
        return invalid("a text is too long");
    }
    if let Some(topology) = &heartbeat.topology {
        if !topology.is_small() {
            return invalid("the topology is too large");
        }
        let wrong = |reason| HeartbeatRefused::new(GroupError::StreamsInvalidTopology, reason);
        topology.check().map_err(wrong)?;
    }
    Ok(())
}

/// The part of a heartbeat that all groups with epochs share: a subtopology stands for a topic.
fn of_members(heartbeat: &StreamsHeartbeat) -> ConsumerHeartbeat {
    let owned = heartbeat.owned.as_ref().map(|tasks| {
        let owned = tasks.iter();
        owned
            .map(|(id, partitions)| (task_id(id), partitions.clone()))
            .collect()
    });
    ConsumerHeartbeat {
        group: heartbeat.group.clone(),
        member: heartbeat.member.clone(),
        gets_member_id: false,
        epoch: heartbeat.epoch,
        instance: heartbeat.instance.clone(),
        rack: heartbeat.rack.clone(),
        client: heartbeat.client.clone(),
        principal: Arc::clone(&heartbeat.principal),
        rebalance_timeout: heartbeat.rebalance_timeout,
        topics: Some(Vec::new()),
        regex: None,
        assignor: None,
        owned,
        random: RandomBytes::default(),
    }
}

impl StreamsGroup {
    /// Handles the heartbeat of a member that joins or stays.
    pub fn heartbeat(
        &mut self,
        turn: &mut Turn,
        heartbeat: StreamsHeartbeat,
    ) -> Result<StreamsBeat> {
        let of_members = of_members(&heartbeat);
        self.tasks.check_member(turn, &of_members)?;
        self.check_topology(heartbeat.topology.as_ref())?;
        // All checks have passed; nothing has changed so far.
        let id = heartbeat.member.clone();
        self.take_topology(turn, heartbeat.topology.as_ref());
        self.note_member(turn, &heartbeat);
        if heartbeat.shuts_down {
            self.shut_down_by = Some(id.clone());
        }
        self.refresh_plan(turn, &heartbeat, &id);
        let beat = self.tasks.heartbeat(turn, of_members)?;
        self.forget_gone(turn);
        self.refresh_endpoints();
        let assignment = beat.assignment.map(|assignment| {
            let assignment = assignment.into_iter();
            let assignment = assignment
                .map(|(topic, partitions)| (topic, partitions.into_iter().collect()))
                .collect();
            self.named(&assignment)
        });
        let knows_endpoints = heartbeat.endpoint_epoch == self.endpoint_epoch;
        Ok(StreamsBeat {
            member: beat.member,
            epoch: beat.epoch,
            heartbeat_interval: beat.heartbeat_interval,
            status: self.status(&id),
            tasks: assignment,
            endpoint_epoch: self.endpoint_epoch,
            endpoints: (!knows_endpoints).then(|| self.endpoints.clone()),
        })
    }

    /// Handles the heartbeat of a member that leaves: for good, or, as a static member, for a while.
    pub fn leave(&mut self, turn: &mut Turn, heartbeat: &StreamsHeartbeat) -> Result<StreamsBeat> {
        let beat = self.tasks.leave(turn, &of_members(heartbeat))?;
        self.forget_gone(turn);
        Ok(StreamsBeat {
            member: beat.member,
            epoch: beat.epoch,
            heartbeat_interval: beat.heartbeat_interval,
            status: Vec::new(),
            tasks: None,
            endpoint_epoch: self.endpoint_epoch,
            endpoints: None,
        })
    }

    /// Removes a member that was silent for the session timeout.
    pub fn session_is_over(&mut self, turn: &mut Turn, id: &MemberId) {
        self.tasks.session_is_over(turn, id);
        self.forget_gone(turn);
    }

    /// Removes a member that has not given up its tasks in time.
    pub fn rebalance_time_is_up(&mut self, turn: &mut Turn, id: &MemberId) {
        self.tasks.rebalance_time_is_up(turn, id);
        self.forget_gone(turn);
    }

    /// Refuses a topology that differs from the group's at the same epoch: one of the two is wrong, and nothing shows
    /// which.
    fn check_topology(&self, brought: Option<&Topology>) -> Result<()> {
        let (Some(known), Some(brought)) = (&self.topology, brought) else {
            return Ok(());
        };
        let contradicts = brought.epoch == known.epoch && brought != known;
        match contradicts && !self.tasks.is_empty() {
            true => Err(HeartbeatRefused::new(
                GroupError::StreamsInvalidTopology,
                format!(
                    "the group has another topology of epoch {}: stop its members, or raise the epoch",
                    known.epoch
                ),
            )),
            false => Ok(()),
        }
    }

    /// Replaces the group's topology by a newer one; a group without members takes any.
    fn take_topology(&mut self, turn: &mut Turn, brought: Option<&Topology>) {
        let Some(brought) = brought else {
            return;
        };
        let is_newer = |known: &Topology| brought.epoch > known.epoch;
        let takes = self.tasks.is_empty() || self.topology.as_ref().is_none_or(is_newer);
        if takes && self.topology.as_ref() != Some(brought) {
            self.named = brought.topics().cloned().collect();
            self.topology = Some(brought.clone());
            self.creates_since = None;
            self.tasks.note_change();
            self.store_topology(turn);
        }
    }

    /// Stores the member's fields; one that the heartbeat omits stays as it was.
    fn note_member(&mut self, turn: &mut Turn, heartbeat: &StreamsHeartbeat) {
        let known = self.members.get(&heartbeat.member);
        let mut member = known.cloned().unwrap_or_default();
        if let Some(topology) = &heartbeat.topology {
            member.topology_epoch = topology.epoch;
        }
        if let Some(process) = &heartbeat.process {
            member.process = Arc::clone(process);
        }
        if let Some(endpoint) = &heartbeat.endpoint {
            member.endpoint = Some(endpoint.clone());
        }
        if let Some(tags) = &heartbeat.tags {
            member.tags.clone_from(tags);
        }
        if known != Some(&member) {
            let key = Key::StreamsMember(heartbeat.group.clone(), heartbeat.member.clone());
            turn.store(&key, &Value::StreamsMember(member.clone()));
            self.members.insert(heartbeat.member.clone(), member);
            self.tasks.note_change();
        }
    }

    /// Computes the tasks again, if they may have changed, and asks the broker to create missing topics.
    fn refresh_plan(&mut self, turn: &mut Turn, heartbeat: &StreamsHeartbeat, id: &MemberId) {
        let Some(topology) = &self.topology else {
            return;
        };
        if self.tasks.may_have_changed() {
            let sees = turn
                .topics
                .access
                .of(&heartbeat.principal, &heartbeat.client.host);
            let may_find = |topic: &TopicName| sees.as_ref().is_none_or(|sees| sees(topic));
            self.plan = topology.plan(turn.topics, &may_find, turn.config.partitions_max);
            let is_current = |id: &&MemberId| {
                let member = self.members.get(*id);
                member.is_some_and(|member| member.topology_epoch == topology.epoch)
            };
            let known = self.tasks.each_member().map(|(id, _)| id);
            let workers = known.chain([id]).filter(is_current).cloned().collect();
            self.tasks.set_tasks(self.plan.tasks.clone(), workers);
        }
        if self.plan.missing.is_empty() {
            (self.creates_since, self.creation_error) = (None, None);
            return;
        }
        let now = turn.now.elapsed;
        let is_due = |since: Duration| now.saturating_sub(since) >= CREATE_AGAIN_AFTER;
        if self.creates_since.is_none_or(is_due) {
            self.creates_since = Some(now);
            turn.actions.push(Action::CreateTopics(Creation {
                group: heartbeat.group.clone(),
                principal: Arc::clone(&heartbeat.principal),
                host: Arc::clone(&heartbeat.client.host),
                topics: self.plan.missing.clone(),
            }));
        }
    }

    /// The faults of the group, as its members see them.
    fn status(&self, id: &MemberId) -> Vec<(StreamsStatus, String)> {
        let mut status = Vec::new();
        let group = self.topology.as_ref().map(|topology| topology.epoch);
        let own = self.members.get(id).map(|member| member.topology_epoch);
        if own < group {
            let detail = "The topology of the member is older than that of the group.".to_owned();
            status.push((StreamsStatus::StaleTopology, detail));
        }
        if let Some((fault, detail)) = &self.plan.fault {
            let error = self.creation_error.iter();
            let error = error.filter(|_| *fault == StreamsStatus::MissingInternalTopics);
            let detail = std::iter::once(detail).chain(error).cloned();
            status.push((*fault, Vec::from_iter(detail).join(" ")));
        }
        if let Some(by) = &self.shut_down_by {
            let detail = format!("Member {by} asked all members to shut down.");
            status.push((StreamsStatus::ShutdownApplication, detail));
        }
        status
    }

    /// Removes the state of members that no longer belong to the group.
    pub(super) fn forget_gone(&mut self, turn: &mut Turn) {
        let tasks = &self.tasks;
        self.members.retain(|id, _| {
            let stays = tasks.contains(id);
            if !stays {
                turn.remove(&Key::StreamsMember(tasks.name().clone(), id.clone()));
            }
            stays
        });
        if self
            .shut_down_by
            .as_ref()
            .is_some_and(|id| !tasks.contains(id))
        {
            self.shut_down_by = None;
        }
    }

    /// Computes the partitions of each endpoint: those of the sources of its tasks.
    fn refresh_endpoints(&mut self) {
        let has_endpoint = |member: &StreamsMember| member.endpoint.is_some();
        if self.endpoints.is_empty() && !self.members.values().any(has_endpoint) {
            return;
        }
        let endpoints = self.tasks.each_member().filter_map(|(id, member)| {
            let endpoint = self.members.get(id)?.endpoint.clone()?;
            let mut partitions: BTreeMap<TopicName, BTreeSet<Partition>> = BTreeMap::new();
            for (task, of_task) in member.assigned {
                for (topic, count) in self.plan.sources.get(task).into_iter().flatten() {
                    let of_topic = of_task.iter().filter(|partition| partition.0 < *count);
                    partitions
                        .entry(topic.clone())
                        .or_default()
                        .extend(of_topic);
                }
            }
            let partitions = partitions.into_iter();
            let partitions = partitions.map(|(topic, all)| (topic, all.into_iter().collect()));
            Some(EndpointPartitions {
                endpoint,
                partitions: partitions.collect(),
            })
        });
        let endpoints: Vec<EndpointPartitions> = endpoints.collect();
        if endpoints != self.endpoints {
            self.endpoints = endpoints;
            self.endpoint_epoch = self.endpoint_epoch.wrapping_add(1);
        }
    }
}

impl Topology {
    fn is_small(&self) -> bool {
        let mut items = 0;
        let mut bytes = 0;
        let mut add = |text: &str| {
            items += 1;
            bytes += text.len();
        };
        let mut places = 0;
        for (id, part) in &self.subtopologies {
            add(id);
            part.sources.iter().for_each(|name| add(name));
            part.source_regexes.iter().for_each(|regex| add(regex));
            part.repartition_sinks.iter().for_each(|name| add(name));
            for topic in part.changelogs.iter().chain(&part.repartition_sources) {
                add(&topic.name);
                for (key, value) in &topic.settings {
                    add(key);
                    add(value);
                }
            }
            for group in &part.copartitions {
                places += 1 + group.sources.len();
                places += group.source_regexes.len() + group.repartition_sources.len();
            }
        }
        let regexes = self
            .subtopologies
            .values()
            .flat_map(|part| &part.source_regexes);
        let regexes: BTreeSet<&Arc<str>> = regexes.collect();
        self.subtopologies.len() <= SUBTOPOLOGIES_MAX
            && items + places <= TOPOLOGY_ITEMS_MAX
            && bytes <= MEMBER_BYTES_MAX
            && regexes.len() <= REGEXES_PER_GROUP_MAX
    }
}
