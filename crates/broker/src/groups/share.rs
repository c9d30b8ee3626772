//! A share group (KIP-932): members that read the same partitions, each record delivered to one of them at a time.
//!
//! The coordinator assigns. A partition may be assigned to several members, so none has to give one up before another
//! gets it: a change of the group makes a new assignment, which members learn with their next heartbeats.
//! [`crate::shares`] decides which records a member gets.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::{
    DescribedShareGroup, GroupState, GroupType, HeartbeatRefused, ListedGroup, ShareBeat,
    ShareMember, TopicAssignment,
};
use super::config::{ID_BYTES_MAX, MEMBER_BYTES_MAX, TOPICS_PER_MEMBER_MAX};
use super::consumer::{Assignment, with_names};
use super::record::{Key, StoredShareMember, Value, record};
use super::timers::Timer;
use super::topics::{Topic, Topics};
use super::turn::Turn;
use super::{Epoch, GroupError, GroupName, MemberId, Partition, ShareHeartbeat, TopicName};
use crate::ledger::Record;

/// Kafka's name of the type of group, of its protocol, and of nothing else.
pub(super) const SHARE: &str = "share";

/// Kafka's name of the only assignor.
pub(super) const ASSIGNOR: &str = "simple";

/// A share group.
#[derive(Debug)]
pub(super) struct ShareGroup {
    name: GroupName,
    /// Grows with every new assignment; 0 while the group is not stored.
    epoch: Epoch,
    /// Members or topics have changed since the assignment was made.
    is_stale: bool,
    members: BTreeMap<MemberId, Member>,
}

#[derive(Debug, Clone, Default)]
struct Member {
    stored: StoredShareMember,
    assigned: Assignment,
}

/// Checks the fields that do not depend on the group.
pub(super) fn check(heartbeat: &ShareHeartbeat) -> Result<(), HeartbeatRefused> {
    let invalid = |reason| Err(HeartbeatRefused::new(GroupError::InvalidRequest, reason));
    let is_blank = |text: Option<&str>| text.is_some_and(|text| text.trim().is_empty());
    if heartbeat.member.trim().is_empty() {
        return invalid("the member id must not be empty");
    }
    if is_blank(heartbeat.rack.as_deref()) {
        return invalid("the rack must not be empty");
    }
    if heartbeat.epoch < Epoch::LEAVE {
        return invalid("the member epoch is invalid");
    }
    let topics = heartbeat.topics.as_deref();
    if heartbeat.epoch == Epoch::JOIN && topics.is_none_or(<[_]>::is_empty) {
        return invalid("a member that joins must name the topics that it subscribes to");
    }
    let topics = topics.unwrap_or_default();
    let client = &heartbeat.client;
    let texts = [&*client.id, &*client.host, &*heartbeat.member].into_iter();
    let mut texts = texts
        .chain(heartbeat.rack.as_deref())
        .chain(topics.iter().map(TopicName::as_str));
    let bytes: usize = topics.iter().map(|topic| topic.len()).sum();
    if texts.any(|text| text.len() > ID_BYTES_MAX)
        || topics.len() > TOPICS_PER_MEMBER_MAX
        || bytes > MEMBER_BYTES_MAX
    {
        return invalid("a text is too long, or there are too many topics");
    }
    Ok(())
}

impl ShareGroup {
    pub fn new(name: GroupName) -> Self {
        ShareGroup {
            name,
            epoch: Epoch(0),
            is_stale: false,
            members: BTreeMap::new(),
        }
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn has_member(&self, member: &MemberId) -> bool {
        self.members.contains_key(member)
    }

    /// Whether nothing of it is stored: its epoch is, from its creation or the first member on.
    pub fn is_unused(&self) -> bool {
        self.epoch == Epoch(0)
    }

    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        let mut members = self.members.values();
        members.any(|member| member.stored.subscription.topics.contains(topic))
    }

    /// Notes that a topic was created, changed or deleted: the next heartbeat makes a new assignment.
    pub fn topic_changed(&mut self, topic: &TopicName) {
        self.is_stale |= self.subscribes_to(topic);
    }

    /// Stores the group, so that it stays although no member has joined yet.
    pub fn create(&mut self, turn: &mut Turn) {
        if self.is_unused() {
            self.epoch = Epoch(1);
            self.store_group(turn);
        }
    }

    /// Handles the heartbeat of a member that joins or stays.
    pub fn heartbeat(
        &mut self,
        turn: &mut Turn,
        heartbeat: ShareHeartbeat,
    ) -> Result<ShareBeat, HeartbeatRefused> {
        let id = heartbeat.member.clone();
        let known = self.members.get(&id);
        let is_join = heartbeat.epoch == Epoch::JOIN;
        match known {
            None if !is_join => return Err(GroupError::UnknownMemberId.into()),
            None if self.members.len() >= turn.config.share_members_max => {
                return Err(GroupError::GroupMaxSizeReached.into());
            }
            // The member may have missed the answer with the current epoch.
            Some(Member { stored, .. })
                if !is_join
                    && heartbeat.epoch != stored.epoch
                    && heartbeat.epoch != stored.previous_epoch =>
            {
                return Err(GroupError::FencedMemberEpoch.into());
            }
            _ => {}
        }
        let before = known.map(|member| member.stored.clone());
        let mut stored = before.clone().unwrap_or_default();
        let subscription = &mut stored.subscription;
        subscription.client = heartbeat.client;
        if heartbeat.rack.is_some() {
            subscription.rack = heartbeat.rack;
        }
        let is_told_all = is_join || heartbeat.topics.is_some();
        if let Some(topics) = heartbeat.topics {
            subscription.topics = topics.into_iter().collect();
        }
        self.is_stale |= before
            .as_ref()
            .is_none_or(|before| before.subscription.topics != subscription.topics);
        self.members.entry(id.clone()).or_default().stored = stored;
        if self.is_stale {
            self.assign(turn.topics);
            self.store_group(turn);
        }
        let (epoch, key) = (self.epoch, self.member_key(&id));
        let member = self.members.entry(id.clone()).or_default();
        let stored = &mut member.stored;
        if stored.epoch != epoch {
            stored.previous_epoch = stored.epoch;
            stored.epoch = epoch;
        }
        if before.as_ref() != Some(stored) {
            turn.store(&key, &Value::ShareMember(stored.clone()));
        }
        let is_news = is_told_all || heartbeat.epoch != epoch;
        let assigned = is_news.then(|| member.assigned.clone());
        let assigned = assigned.map(|assigned| {
            let topics = assigned.into_iter();
            topics
                .map(|(topic, partitions)| (topic, partitions.into_iter().collect()))
                .collect()
        });
        turn.set_timer(
            self.session_timer(&id),
            turn.config.share_session_timeout_of(&self.name),
        );
        Ok(ShareBeat {
            member: id,
            epoch,
            heartbeat_interval: turn.config.share_heartbeat_interval_of(&self.name),
            assignment: assigned,
        })
    }

    /// Handles the heartbeat of a member that leaves.
    pub fn leave(
        &mut self,
        turn: &mut Turn,
        heartbeat: &ShareHeartbeat,
    ) -> Result<ShareBeat, HeartbeatRefused> {
        if !self.take_out(turn, &heartbeat.member) {
            return Err(GroupError::UnknownMemberId.into());
        }
        Ok(ShareBeat {
            member: heartbeat.member.clone(),
            epoch: Epoch::LEAVE,
            heartbeat_interval: Default::default(),
            assignment: None,
        })
    }

    /// Removes a member that was silent for the session timeout.
    pub fn session_is_over(&mut self, turn: &mut Turn, member: &MemberId) {
        self.take_out(turn, member);
    }

    fn take_out(&mut self, turn: &mut Turn, member: &MemberId) -> bool {
        if self.members.remove(member).is_none() {
            return false;
        }
        turn.cancel_timer(&self.session_timer(member));
        turn.remove(&self.member_key(member));
        self.is_stale = true;
        true
    }

    /// Makes a new assignment. The partitions of a topic and the members that subscribe to it are gone through in
    /// circles until each had its turn: so every partition has a member, every member has a partition, and none has more
    /// than one above its share.
    fn assign(&mut self, topics: &Topics) {
        self.epoch = Epoch(self.epoch.0.saturating_add(1));
        self.is_stale = false;
        let mut subscribers: BTreeMap<TopicName, Vec<MemberId>> = BTreeMap::new();
        for (id, member) in &mut self.members {
            member.assigned.clear();
            for topic in &member.stored.subscription.topics {
                subscribers
                    .entry(topic.clone())
                    .or_default()
                    .push(id.clone());
            }
        }
        let mut begin = 0;
        for (topic, members) in subscribers {
            let Some(Topic { id, partitions, .. }) = topics.get(&topic) else {
                continue;
            };
            let partitions = usize::try_from(*partitions).unwrap_or_default();
            if partitions == 0 {
                continue;
            }
            for turn in 0..partitions.max(members.len()) {
                let member = &members[(begin + turn) % members.len()];
                if let Some(member) = self.members.get_mut(member) {
                    let assigned: &mut BTreeSet<Partition> =
                        member.assigned.entry(*id).or_default();
                    assigned.insert(Partition((turn % partitions) as i32));
                }
            }
            // Begin the next topic at the member behind the one with this topic's last partition.
            begin += partitions;
        }
    }

    fn state(&self) -> GroupState {
        match self.is_empty() {
            true => GroupState::Empty,
            false => GroupState::Stable,
        }
    }

    pub fn listed(&self) -> ListedGroup {
        ListedGroup {
            group: self.name.clone(),
            protocol_type: SHARE.into(),
            state: self.state(),
            group_type: GroupType::Share,
        }
    }

    pub fn described(&self, topics: &Topics) -> DescribedShareGroup {
        let describe = |(id, member): (&MemberId, &Member)| {
            let subscription = &member.stored.subscription;
            let assigned: Vec<TopicAssignment> = with_names(&member.assigned, topics);
            ShareMember {
                member: id.clone(),
                rack: subscription.rack.clone(),
                epoch: member.stored.epoch,
                client: subscription.client.clone(),
                topics: subscription.topics.iter().cloned().collect(),
                assigned,
            }
        };
        DescribedShareGroup {
            group: self.name.clone(),
            error: None,
            state: self.state(),
            epoch: self.epoch,
            assignor: ASSIGNOR.into(),
            members: self.members.iter().map(describe).collect(),
        }
    }

    /// Adds the records that the log holds of the group.
    pub fn snapshot(&self, records: &mut Vec<Record>) {
        if !self.is_unused() {
            records.push(record(
                &self.group_key(),
                Some(&Value::ShareGroup(self.epoch)),
            ));
        }
        for (id, member) in &self.members {
            let value = Value::ShareMember(member.stored.clone());
            records.push(record(&self.member_key(id), Some(&value)));
        }
    }

    /// Restores a group from the log. The next heartbeat makes a new assignment.
    pub fn restore(
        name: GroupName,
        epoch: Epoch,
        members: BTreeMap<MemberId, StoredShareMember>,
    ) -> Self {
        let members = members.into_iter().map(|(id, stored)| {
            let assigned = Assignment::new();
            (id, Member { stored, assigned })
        });
        ShareGroup {
            name,
            epoch,
            is_stale: true,
            members: members.collect(),
        }
    }

    /// Starts the sessions of all members.
    pub fn start_sessions(&self, turn: &mut Turn) {
        for id in self.members.keys() {
            let session_timeout = turn.config.share_session_timeout_of(&self.name);
            turn.set_timer(self.session_timer(id), session_timeout);
        }
    }

    fn store_group(&self, turn: &mut Turn) {
        turn.store(&self.group_key(), &Value::ShareGroup(self.epoch));
    }

    /// Removes the stored records of an empty group.
    pub fn remove_stored(&self, turn: &mut Turn) {
        if !self.is_unused() {
            turn.remove(&self.group_key());
        }
    }

    fn group_key(&self) -> Key {
        Key::ShareGroup(self.name.clone())
    }

    fn member_key(&self, member: &MemberId) -> Key {
        Key::ShareMember(self.name.clone(), member.clone())
    }

    fn session_timer(&self, member: &MemberId) -> Timer {
        Timer::ShareSession(self.name.clone(), member.clone())
    }
}
