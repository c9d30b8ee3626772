//! The heartbeat: members join by it, follow the target assignment, and stay.

use std::collections::BTreeSet;

use super::assignor::NAMES;
use super::{Assignment, ConsumerGroup, Subscription};
use crate::groups::answer::{ConsumerBeat, HeartbeatRefused};
use crate::groups::config::{ID_BYTES_MAX, INSTANCE_ID_BYTES_MAX};
use crate::groups::config::{MEMBER_BYTES_MAX, REGEXES_PER_GROUP_MAX, TOPICS_PER_MEMBER_MAX};
use crate::groups::record::{Key, Value};
use crate::groups::turn::Turn;
use crate::groups::{ConsumerHeartbeat, Epoch, GroupError, MemberId, TopicPartitions};
use crate::pattern::compile;

type Result<T> = std::result::Result<T, HeartbeatRefused>;

/// Checks the fields that do not depend on the group.
pub(in crate::groups) fn check(heartbeat: &ConsumerHeartbeat) -> Result<()> {
    let invalid = |reason| Err(HeartbeatRefused::new(GroupError::InvalidRequest, reason));
    let is_blank = |text: Option<&str>| text.is_some_and(|text| text.trim().is_empty());
    if is_blank(heartbeat.instance.as_deref()) || is_blank(heartbeat.rack.as_deref()) {
        return invalid("the instance id and the rack must not be empty");
    }
    let is_join = heartbeat.epoch == Epoch::JOIN;
    if heartbeat.member.trim().is_empty() && !(is_join && heartbeat.gets_member_id) {
        return invalid("the member id must not be empty");
    }
    if heartbeat.epoch < Epoch::LEAVE_FOR_NOW {
        return invalid("the member epoch is invalid");
    }
    if heartbeat.epoch == Epoch::LEAVE_FOR_NOW && heartbeat.instance.is_none() {
        return invalid("only a member with an instance id may leave for now");
    }
    if is_join {
        if heartbeat.rebalance_timeout.is_none() {
            return invalid("a member that joins must send a rebalance timeout");
        }
        if heartbeat
            .owned
            .as_ref()
            .is_none_or(|owned| !owned.is_empty())
        {
            return invalid(
                "a member that joins must own no partitions, and send an empty list of them",
            );
        }
        if heartbeat.topics.is_none() && heartbeat.regex.is_none() {
            return invalid(
                "a member that joins must subscribe to topics or to a regular expression",
            );
        }
    }
    check_bounds(heartbeat)?;
    match heartbeat.assignor.as_deref() {
        Some(name) if !NAMES.contains(&name) => {
            let reason = format!("the group knows only the assignors {}", NAMES.join(", "));
            Err(HeartbeatRefused::new(
                GroupError::UnsupportedAssignor,
                reason,
            ))
        }
        _ => Ok(()),
    }
}

fn check_bounds(heartbeat: &ConsumerHeartbeat) -> Result<()> {
    let client = &heartbeat.client;
    let texts = [&*client.id, &*client.host, &*heartbeat.member].into_iter();
    let texts = texts
        .chain(heartbeat.rack.as_deref())
        .chain(heartbeat.regex.as_deref());
    let topics = heartbeat.topics.iter().flatten();
    let topics_bytes: usize = topics.clone().map(|topic| topic.len()).sum();
    let mut texts = texts.chain(topics.map(|topic| topic.as_str()));
    let is_too_long = texts.any(|text| text.len() > ID_BYTES_MAX)
        || topics_bytes > MEMBER_BYTES_MAX
        || heartbeat
            .instance
            .as_ref()
            .is_some_and(|id| id.len() > INSTANCE_ID_BYTES_MAX)
        || heartbeat
            .topics
            .as_ref()
            .is_some_and(|topics| topics.len() > TOPICS_PER_MEMBER_MAX);
    match is_too_long {
        true => {
            let reason = "a text is too long, or there are too many topics";
            Err(HeartbeatRefused::new(GroupError::InvalidRequest, reason))
        }
        false => Ok(()),
    }
}

impl ConsumerGroup {
    /// Handles the heartbeat of a member that joins or stays.
    pub fn heartbeat(
        &mut self,
        turn: &mut Turn,
        mut heartbeat: ConsumerHeartbeat,
    ) -> Result<ConsumerBeat> {
        if heartbeat.member.is_empty() {
            heartbeat.member = heartbeat.random.uuid().into();
        }
        let id = heartbeat.member.clone();
        let owned = heartbeat.owned.as_ref().map(to_assignment);
        let replaced = self.check_member(turn, &heartbeat)?;
        let subscription = self.subscription(&heartbeat, replaced.as_ref())?;
        // All checks have passed; nothing has changed so far.
        let is_full = heartbeat.epoch == Epoch::JOIN
            || heartbeat.rebalance_timeout.is_some()
                && heartbeat.topics.is_some()
                && heartbeat.owned.is_some();
        if let Some(replaced) = &replaced {
            self.replace(turn, replaced, &id);
        }
        let has_changed = self.subscribe(turn, &id, subscription);
        self.refresh_target(turn, has_changed);
        let before = self
            .members
            .get(&id)
            .map(|member| member.current.assigned.clone());
        self.reconcile(turn, &id, owned.as_ref());
        turn.set_timer(self.session_timer(&id), self.session_timeout(turn));
        let current = self.members.get(&id).map(|member| member.current.clone());
        let current = current.unwrap_or_default();
        let is_news = is_full || before.as_ref() != Some(&current.assigned);
        Ok(ConsumerBeat {
            member: id,
            epoch: current.epoch,
            heartbeat_interval: self.heartbeat_interval(turn),
            assignment: is_news.then(|| from_assignment(current.assigned)),
        })
    }

    /// Checks that the member may stay or join; returns the static member that it replaces.
    pub fn check_member(
        &self,
        turn: &Turn,
        heartbeat: &ConsumerHeartbeat,
    ) -> std::result::Result<Option<MemberId>, GroupError> {
        let is_known = self.members.contains_key(&heartbeat.member);
        let is_full = self.members.len() >= turn.config.members_max;
        if !is_known && is_full && !self.replaces(heartbeat) {
            return Err(GroupError::GroupMaxSizeReached);
        }
        let owned = heartbeat.owned.as_ref().map(to_assignment);
        self.admit(heartbeat, owned.as_ref())
    }

    /// The member's new subscription: a field that the heartbeat omits stays as it was.
    fn subscription(
        &self,
        heartbeat: &ConsumerHeartbeat,
        replaced: Option<&MemberId>,
    ) -> Result<Subscription> {
        let known = self.members.get(replaced.unwrap_or(&heartbeat.member));
        let mut subscription = known
            .map(|member| member.subscription.clone())
            .unwrap_or_default();
        subscription.client = heartbeat.client.clone();
        subscription.principal = heartbeat.principal.clone();
        if let Some(instance) = &heartbeat.instance {
            subscription.instance = Some(instance.clone());
        }
        if let Some(rack) = &heartbeat.rack {
            subscription.rack = Some(rack.clone());
        }
        if let Some(timeout) = heartbeat.rebalance_timeout {
            subscription.rebalance_timeout = timeout;
        }
        if let Some(topics) = &heartbeat.topics {
            subscription.topics = topics.iter().cloned().collect();
        }
        if let Some(assignor) = &heartbeat.assignor {
            subscription.assignor = Some(assignor.clone());
        }
        if let Some(regex) = &heartbeat.regex {
            let is_new = subscription.regex.as_ref() != Some(regex);
            subscription.regex = Some(regex.clone()).filter(|regex| !regex.is_empty());
            if is_new && subscription.regex.is_some() {
                self.check_regex(regex)?;
            }
        }
        Ok(subscription)
    }

    fn check_regex(&self, regex: &str) -> Result<()> {
        let error = GroupError::InvalidRegularExpression;
        compile(regex).map_err(|reason| HeartbeatRefused::new(error, reason.to_string()))?;
        let others = self
            .members
            .values()
            .filter_map(|member| member.subscription.regex.as_deref());
        let mut regexes: BTreeSet<&str> = others.collect();
        regexes.insert(regex);
        if regexes.len() > REGEXES_PER_GROUP_MAX {
            let reason = "the members of the group use too many regular expressions";
            return Err(HeartbeatRefused::new(error, reason));
        }
        Ok(())
    }

    /// Replaces a member's subscription; returns whether its topics or its regular expression have changed.
    fn subscribe(&mut self, turn: &mut Turn, id: &MemberId, subscription: Subscription) -> bool {
        let is_new = !self.members.contains_key(id);
        let member = self.members.entry(id.clone()).or_default();
        let before = &member.subscription;
        let has_changed =
            is_new || before.topics != subscription.topics || before.regex != subscription.regex;
        let sees_as_before = before.principal == subscription.principal
            && before.client.host == subscription.client.host;
        self.topics_changed |= subscription.regex.is_some() && !sees_as_before;
        if is_new || *before != subscription {
            if let Some(instance) = &subscription.instance {
                self.static_members.insert(instance.clone(), id.clone());
            }
            member.subscription = subscription.clone();
            let key = Key::ConsumerMember(self.name.clone(), id.clone());
            turn.store(&key, &Value::ConsumerMember(subscription));
        }
        has_changed
    }
}

fn to_assignment(owned: &TopicPartitions) -> Assignment {
    let mut assignment = Assignment::new();
    for (topic, partitions) in owned {
        if !partitions.is_empty() {
            assignment.entry(*topic).or_default().extend(partitions);
        }
    }
    assignment
}

fn from_assignment(assignment: Assignment) -> TopicPartitions {
    let topics = assignment.into_iter();
    topics
        .map(|(topic, partitions)| (topic, partitions.into_iter().collect()))
        .collect()
}
