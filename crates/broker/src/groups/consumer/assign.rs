//! The target assignment: the partitions that each member is to have.

use std::collections::{BTreeMap, BTreeSet};

use super::assignor::{self, Demand};
use super::{ConsumerGroup, Member, Tasks, pattern};
use crate::groups::record::{Key, Value};
use crate::groups::topics::Topics;
use crate::groups::turn::Turn;
use crate::groups::{Epoch, MemberId, TopicId, TopicName};

impl ConsumerGroup {
    /// Makes the group assign these tasks from the next heartbeat on, instead of the partitions of subscribed topics.
    pub fn set_tasks(&mut self, counts: BTreeMap<TopicId, i32>, workers: BTreeSet<MemberId>) {
        self.tasks = Some(Tasks { counts, workers });
    }

    /// Makes the next heartbeat check whether the assignment has to change.
    pub fn note_change(&mut self) {
        self.topics_changed = true;
    }

    /// Whether the next heartbeat checks if the assignment has to change.
    pub fn may_have_changed(&self) -> bool {
        self.topics_changed || self.epoch > self.target_epoch
    }

    /// Makes a new target if the group has changed, or the topics that its members subscribe to have.
    pub(super) fn refresh_target(&mut self, turn: &mut Turn, has_changed: bool) {
        if !has_changed && !self.topics_changed && self.epoch == self.target_epoch {
            return;
        }
        self.topics_changed = false;
        self.refresh_patterns(turn.topics);
        let order = self.order();
        let demands = self.demands(&order, turn.topics);
        let topics_hash = hash(&demands);
        let has_changed = has_changed || topics_hash != self.topics_hash;
        if has_changed && self.epoch == self.target_epoch {
            self.epoch = self.epoch.next();
        }
        if self.epoch > self.target_epoch {
            self.topics_hash = topics_hash;
            self.assign(turn, order, &demands);
            self.target_epoch = self.epoch;
            self.store_group(turn);
        }
    }

    /// Matches all regular expressions in use anew.
    fn refresh_patterns(&mut self, topics: &Topics) {
        let in_use = self
            .members
            .values()
            .filter_map(|member| member.subscription.regex.clone());
        let in_use: BTreeSet<_> = in_use.collect();
        let matched = in_use.into_iter().map(|regex| {
            let matching = pattern::matching(&regex, topics);
            (regex, matching)
        });
        self.patterns = matched.collect();
    }

    /// The members in the order of assignment: static members by instance id, so that one that comes back gets the
    /// same partitions, then the others by member id.
    fn order(&self) -> Vec<MemberId> {
        let mut order: Vec<(bool, &str, &MemberId)> = Vec::with_capacity(self.members.len());
        for (id, member) in &self.members {
            match &member.subscription.instance {
                Some(instance) => order.push((false, instance, id)),
                None => order.push((true, id, id)),
            }
        }
        order.sort_unstable();
        order.into_iter().map(|(_, _, id)| id.clone()).collect()
    }

    /// The topics that members subscribe to, with their subscribers as places in `order`.
    fn demands(&self, order: &[MemberId], topics: &Topics) -> Vec<Demand> {
        if let Some(tasks) = &self.tasks {
            return tasks.demands(order);
        }
        let mut demands: BTreeMap<TopicId, Demand> = BTreeMap::new();
        for (place, id) in order.iter().enumerate() {
            let Some(member) = self.members.get(id) else {
                continue;
            };
            for topic in self.subscribed(member, topics) {
                let Some(topic) = topics.get(topic) else {
                    continue;
                };
                let demand = demands.entry(topic.id).or_insert_with(|| Demand {
                    topic: topic.id,
                    partitions: topic.partitions,
                    subscribers: Vec::new(),
                });
                demand.subscribers.push(place);
            }
        }
        demands.into_values().collect()
    }

    /// The topics that a member subscribes to, each once; they need not exist. Topics that match its regular
    /// expression count if the member may see them.
    fn subscribed<'a>(
        &'a self,
        member: &'a Member,
        topics: &'a Topics,
    ) -> impl Iterator<Item = &'a TopicName> {
        let subscription = &member.subscription;
        let named = &subscription.topics;
        let regex = subscription.regex.as_ref();
        let matched = regex.and_then(|regex| self.patterns.get(regex));
        let sees = matched.and_then(|_| {
            let host = &subscription.client.host;
            topics.access.of(&subscription.principal, host)
        });
        let matched = matched.into_iter().flatten().filter(move |topic| {
            !named.contains(*topic) && sees.as_ref().is_none_or(|sees| sees(topic))
        });
        named.iter().chain(matched)
    }

    fn assign(&mut self, turn: &mut Turn, order: Vec<MemberId>, demands: &[Demand]) {
        let before = order.iter().filter_map(|id| self.members.get(id));
        let before: Vec<_> = before.map(|member| &member.target).collect();
        let targets = assignor::by_name(self.assignor())(demands, &before);
        for (id, target) in order.into_iter().zip(targets) {
            if let Some(member) = self.members.get_mut(&id)
                && member.target != target
            {
                member.target = target;
                self.store_target(turn, &id);
            }
        }
    }

    /// Stores a member's target assignment. An empty one takes no record.
    pub(super) fn store_target(&self, turn: &mut Turn, id: &MemberId) {
        let key = Key::Target(self.name.clone(), id.clone());
        match self.members.get(id).map(|member| &member.target) {
            Some(target) if !target.is_empty() => turn.store(&key, &Value::Target(target.clone())),
            _ => turn.remove(&key),
        }
    }

    /// The assignor with the most votes of members.
    pub(super) fn assignor(&self) -> &'static str {
        let mut votes = [0; assignor::NAMES.len()];
        for member in self.members.values() {
            let wanted = member.subscription.assignor.as_deref();
            let place = assignor::NAMES
                .iter()
                .position(|name| Some(*name) == wanted);
            if let Some(place) = place {
                votes[place] += 1;
            }
        }
        let most = votes.iter().max().copied().unwrap_or_default();
        let place = votes
            .iter()
            .position(|count| *count == most)
            .unwrap_or_default();
        assignor::NAMES[place]
    }

    /// Makes the next heartbeat check the assignment if a regular expression is in use: the access rules have changed.
    pub fn access_changed(&mut self) {
        let mut members = self.members.values();
        self.topics_changed |= members.any(|member| member.subscription.regex.is_some());
    }

    /// Makes the next heartbeat check the assignment if a member may subscribe to the topic, which was created,
    /// changed or deleted.
    pub fn topic_changed(&mut self, topic: &TopicName) {
        let mut members = self.members.values();
        self.topics_changed |= members.any(|member| {
            member.subscription.regex.is_some() || member.subscription.topics.contains(topic)
        });
    }
}

impl Tasks {
    /// Every worker may have every task.
    fn demands(&self, order: &[MemberId]) -> Vec<Demand> {
        let places = order.iter().enumerate();
        let places = places.filter(|(_, id)| self.workers.contains(*id));
        let subscribers: Vec<usize> = places.map(|(place, _)| place).collect();
        if subscribers.is_empty() {
            return Vec::new();
        }
        let demands = self.counts.iter().map(|(topic, partitions)| Demand {
            topic: *topic,
            partitions: *partitions,
            subscribers: subscribers.clone(),
        });
        demands.collect()
    }
}

impl Epoch {
    pub(super) fn next(self) -> Epoch {
        Epoch(self.0.saturating_add(1))
    }
}

/// Hashes topics and their subscribers, to detect a change (FNV-1a, 64 bits). A client may forge a collision by its
/// choice of ids; then the group notices a change of topics only with the next change of members.
fn hash(demands: &[Demand]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for demand in demands {
        add(&demand.topic.0.to_be_bytes());
        add(&demand.partitions.to_be_bytes());
        for place in &demand.subscribers {
            add(&(*place as u64).to_be_bytes());
        }
    }
    hash
}
