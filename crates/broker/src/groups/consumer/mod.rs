//! A group of the protocol of KIP-848: the coordinator assigns, and members follow one by one.
//!
//! The group has an epoch, which grows with every change of its members, of what they subscribe to and of
//! those topics. For each epoch there is a *target*: what each member is to have. A member learns with
//! its heartbeats what to give up and what to take, and has the epoch of the target as soon as it has given
//! up what it is not to have. Only then does somebody else get it: no partition has two owners.
//!
//! ```text
//!             a new target               all that it lacks is free
//!      Stable ────────────► Unrevoked ──────────────────────────────► Stable
//!        │                      │ has given up, but not all is free      ▲
//!        │ a new target,        ▼                                        │
//!        └─────────────────► Unreleased ─────────────────────────────────┘
//!          nothing to give up              what it lacks is free
//! ```

mod assign;
mod assignor;
mod heartbeat;
mod member;
mod members;
mod pattern;
mod reconcile;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::answer::{
    ConsumerMember, DescribedConsumerGroup, GroupState, GroupType, ListedGroup, TopicAssignment,
};
use super::classic::CONSUMER;
use super::timers::Timer;
use super::topics::Topics;
use super::turn::Turn;
use super::{
    Client, Epoch, Generation, GroupError, GroupName, InstanceId, MemberId, Partition, TopicCommit,
    TopicId, TopicName,
};

pub(super) use self::heartbeat::check;
pub(super) use self::member::{Assignment, Current, MemberState, Subscription};
pub(super) use self::pattern::{compile, matching};
pub(super) use self::store::StoredConsumerMember;

/// A group of the protocol of KIP-848.
#[derive(Debug)]
pub(super) struct ConsumerGroup {
    name: GroupName,
    epoch: Epoch,
    /// The epoch that the members' targets are of; behind `epoch` until the next heartbeat.
    target_epoch: Epoch,
    /// Tells whether the topics that members subscribe to, and who does, are still what they were for the target.
    topics_hash: u64,
    /// Topics may have changed since the target was made.
    topics_changed: bool,
    members: BTreeMap<MemberId, Member>,
    /// The members of `members` that are static.
    static_members: BTreeMap<InstanceId, MemberId>,
    /// Who has a partition, or has yet to give it up.
    owners: BTreeMap<(TopicId, Partition), MemberId>,
    /// The topics that match each regular expression in use, as of the target.
    patterns: BTreeMap<Arc<str>, BTreeSet<TopicName>>,
    /// What is assigned in place of the topics that members subscribe to, in a group of Kafka Streams.
    tasks: Option<Tasks>,
}

/// What a group assigns that does not go by subscriptions: every member may have every task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tasks {
    /// How many there are, by what stands for a topic.
    counts: BTreeMap<TopicId, i32>,
    /// The members that may have some.
    workers: BTreeSet<MemberId>,
}

/// A member, for those who look at it.
pub(super) struct MemberView<'a> {
    pub instance: Option<&'a InstanceId>,
    pub rack: Option<&'a Arc<str>>,
    pub client: &'a Client,
    pub epoch: Epoch,
    pub assigned: &'a Assignment,
    pub target: &'a Assignment,
}

#[derive(Debug, Clone, Default)]
struct Member {
    subscription: Subscription,
    current: Current,
    target: Assignment,
}

impl ConsumerGroup {
    pub fn new(name: GroupName) -> Self {
        ConsumerGroup {
            name,
            epoch: Epoch(0),
            target_epoch: Epoch(0),
            topics_hash: 0,
            topics_changed: false,
            members: BTreeMap::new(),
            static_members: BTreeMap::new(),
            owners: BTreeMap::new(),
            patterns: BTreeMap::new(),
            tasks: None,
        }
    }

    /// The same group, which assigns tasks from now on; there are none yet.
    pub fn of_tasks(mut self) -> Self {
        self.tasks = Some(Tasks::default());
        self
    }

    pub fn name(&self) -> &GroupName {
        &self.name
    }

    pub fn contains(&self, member: &MemberId) -> bool {
        self.members.contains_key(member)
    }

    /// Its epoch, and that of the members' targets.
    pub fn epochs(&self) -> (Epoch, Epoch) {
        (self.epoch, self.target_epoch)
    }

    pub fn each_member(&self) -> impl Iterator<Item = (&MemberId, MemberView<'_>)> {
        self.members.iter().map(|(id, member)| {
            let subscription = &member.subscription;
            let view = MemberView {
                instance: subscription.instance.as_ref(),
                rack: subscription.rack.as_ref(),
                client: &subscription.client,
                epoch: member.current.epoch,
                assigned: &member.current.assigned,
                target: &member.target,
            };
            (id, view)
        })
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether nothing of it is stored: its epoch is, from the first member on.
    pub fn is_unused(&self) -> bool {
        self.epoch == Epoch(0)
    }

    /// Checks a commit of offsets. A member that has not heard yet that it is in the next epoch may commit
    /// those of partitions that it had before and has still (KIP-1251). `ids` are those by which the group assigns a topic:
    /// having a partition of one of them is enough.
    pub fn check_commit(
        &self,
        member: &MemberId,
        epoch: Generation,
        offsets: &[TopicCommit],
        ids: impl Fn(&TopicName) -> Vec<TopicId>,
        is_transactional: bool,
        knows_member_epochs: bool,
    ) -> Result<(), GroupError> {
        if epoch.0 < 0 && self.is_empty() {
            return Ok(());
        }
        let member = self
            .members
            .get(member)
            .ok_or(GroupError::UnknownMemberId)?;
        if !is_transactional && !knows_member_epochs {
            return Err(GroupError::UnsupportedVersion);
        }
        let current = &member.current;
        let had_all = || {
            offsets.iter().all(|commit| {
                let ids = ids(&commit.topic);
                let mut partitions = commit.partitions.iter().map(|commit| commit.partition);
                partitions.all(|partition| {
                    let mut ids = ids.iter();
                    ids.any(|id| current.had((*id, partition), epoch))
                })
            })
        };
        match epoch.0 == current.epoch.0 || epoch.0 < current.epoch.0 && had_all() {
            true => Ok(()),
            false => Err(GroupError::StaleMemberEpoch),
        }
    }

    /// Checks the member of a request for offsets, if it names one.
    pub fn check_fetch(
        &self,
        member: Option<&MemberId>,
        epoch: Generation,
    ) -> Result<(), GroupError> {
        match member {
            None if epoch.0 < 0 => Ok(()),
            None => Err(GroupError::UnknownMemberId),
            Some(member) => {
                let member = self.members.get(member);
                member
                    .ok_or(GroupError::UnknownMemberId)?
                    .check_epoch(epoch)
            }
        }
    }

    /// Whether offsets of the topic are in use: also if its name matches and no member may know of it.
    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        let mut members = self.members.values();
        members.any(|member| {
            let subscription = &member.subscription;
            subscription.topics.contains(topic)
                || subscription.regex.as_ref().is_some_and(|regex| {
                    // What a regular expression matches is known only after the next heartbeat.
                    let matched = self.patterns.get(regex).filter(|_| !self.topics_changed);
                    matched.is_none_or(|topics| topics.contains(topic))
                })
        })
    }

    pub fn state(&self) -> GroupState {
        let mut members = self.members.values();
        if self.is_empty() {
            GroupState::Empty
        } else if self.epoch > self.target_epoch {
            GroupState::Assigning
        } else if members.any(|member| !member.current.has_reached(self.target_epoch)) {
            GroupState::Reconciling
        } else {
            GroupState::Stable
        }
    }

    pub fn listed(&self) -> ListedGroup {
        ListedGroup {
            group: self.name.clone(),
            protocol_type: CONSUMER.into(),
            state: self.state(),
            group_type: GroupType::Consumer,
        }
    }

    pub fn described(&self, topics: &Topics) -> DescribedConsumerGroup {
        let describe = |(id, member): (&MemberId, &Member)| {
            let subscription = &member.subscription;
            ConsumerMember {
                member: id.clone(),
                instance: subscription.instance.clone(),
                rack: subscription.rack.clone(),
                epoch: member.current.epoch,
                client: subscription.client.clone(),
                topics: subscription.topics.iter().cloned().collect(),
                regex: subscription.regex.clone(),
                assigned: with_names(&member.current.assigned, topics),
                target: with_names(&member.target, topics),
            }
        };
        DescribedConsumerGroup {
            group: self.name.clone(),
            error: None,
            state: self.state(),
            epoch: self.epoch,
            target_epoch: self.target_epoch,
            assignor: self.assignor().into(),
            members: self.members.iter().map(describe).collect(),
        }
    }

    fn session_timeout(&self, turn: &Turn) -> Duration {
        match self.tasks {
            Some(_) => turn.config.streams_session_timeout_of(&self.name),
            None => turn.config.session_timeout_of(&self.name),
        }
    }

    fn heartbeat_interval(&self, turn: &Turn) -> Duration {
        match self.tasks {
            Some(_) => turn.config.streams_heartbeat_interval_of(&self.name),
            None => turn.config.heartbeat_interval_of(&self.name),
        }
    }

    fn session_timer(&self, member: &MemberId) -> Timer {
        Timer::ConsumerSession(self.name.clone(), member.clone())
    }

    fn rebalance_timer(&self, member: &MemberId) -> Timer {
        Timer::ConsumerRebalance(self.name.clone(), member.clone())
    }
}

/// Topics that are gone have no name to show.
pub(super) fn with_names(assignment: &Assignment, topics: &Topics) -> Vec<TopicAssignment> {
    let named = assignment.iter().filter_map(|(id, partitions)| {
        Some(TopicAssignment {
            id: *id,
            topic: topics.name(*id)?.clone(),
            partitions: partitions.iter().copied().collect(),
        })
    });
    named.collect()
}

impl Member {
    fn check_epoch(&self, epoch: Generation) -> Result<(), GroupError> {
        match epoch.0 == self.current.epoch.0 {
            true => Ok(()),
            false => Err(GroupError::StaleMemberEpoch),
        }
    }
}
