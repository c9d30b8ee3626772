//! A group of the protocol of KIP-848: the coordinator assigns, and members follow one by one.
//!
//! The group has an epoch, which grows with every change of its members, of their subscriptions and of those topics.
//! For each epoch there is a *target*: the partitions that each member is to have. A member's heartbeats tell it which
//! partitions to give up and which to take. It reaches the epoch of the target as soon as it has given up the
//! partitions outside of the target. Only then do they go to another member: no partition has two owners.
//!
//! ```text
//!             a new target               all that it lacks is free
//!      Stable ────────────► Unrevoked ──────────────────────────────► Stable
//!        │                      │ has given up, but not all is free      ▲
//!        │ a new target,        ▼                                        │
//!        └─────────────────► Unreleased ─────────────────────────────────┘
//!          nothing to give up              all that it lacks is free
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
pub(super) use self::pattern::matching;
pub(super) use self::store::StoredConsumerMember;

/// A group of the protocol of KIP-848.
#[derive(Debug)]
pub(super) struct ConsumerGroup {
    name: GroupName,
    epoch: Epoch,
    /// The epoch of the members' targets; behind `epoch` until the next heartbeat.
    target_epoch: Epoch,
    /// The hash of the topics and their subscribers that the target was computed from; a difference calls for a new
    /// target.
    topics_hash: u64,
    /// Topics may have changed since the target was made.
    topics_changed: bool,
    members: BTreeMap<MemberId, Member>,
    /// The members of `members` that are static.
    static_members: BTreeMap<InstanceId, MemberId>,
    /// The member that has a partition, or has yet to give it up.
    owners: BTreeMap<(TopicId, Partition), MemberId>,
    /// The topics that match each regular expression in use, as of the target.
    patterns: BTreeMap<Arc<str>, BTreeSet<TopicName>>,
    /// The tasks to assign instead of the partitions of subscribed topics, in a group of Kafka Streams.
    tasks: Option<Tasks>,
}

/// Tasks that a group assigns regardless of subscriptions: every worker may have every task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Tasks {
    /// The number of tasks of each subtopology; its id takes the place of a topic's.
    counts: BTreeMap<TopicId, i32>,
    /// The members that may have tasks.
    workers: BTreeSet<MemberId>,
}

/// A member, as shown to administrators.
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

    /// Makes the group assign tasks from now on; there are none yet.
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

    /// Checks a commit of offsets. A member that has not learned yet that it is in the next epoch may commit offsets
    /// of partitions that it had before and has still (KIP-1251). `ids` are the ids by which the group assigns a
    /// topic: a partition of one of them is enough.
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

    /// Whether the group subscribes to the topic, and so keeps its offsets: also if a regular expression matches its
    /// name and no member may see it.
    pub fn subscribes_to(&self, topic: &TopicName) -> bool {
        let mut members = self.members.values();
        members.any(|member| {
            let subscription = &member.subscription;
            subscription.topics.contains(topic)
                || subscription.regex.as_ref().is_some_and(|regex| {
                    // The matches of a regular expression are known only after the next heartbeat.
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

/// Adds the names of topics; deleted topics have no name to show, and are left out.
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
