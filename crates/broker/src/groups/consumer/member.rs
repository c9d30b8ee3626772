//! A member of a group of KIP-848: its subscription and its partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::groups::{Client, Epoch, Generation, InstanceId, Partition, TopicId, TopicName};

/// Partitions of topics; no topic without partitions.
pub type Assignment = BTreeMap<TopicId, BTreeSet<Partition>>;

/// What a member says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscription {
    pub instance: Option<InstanceId>,
    pub rack: Option<Arc<str>>,
    pub client: Client,
    /// As whom the access rules know it; empty if that was not kept.
    pub principal: Arc<str>,
    pub rebalance_timeout: Duration,
    pub topics: BTreeSet<TopicName>,
    /// A regular expression for further topics, of which it gets those that it may know of.
    pub regex: Option<Arc<str>>,
    pub assignor: Option<Arc<str>>,
}

/// What a member has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Current {
    /// 0 before the first target.
    pub epoch: Epoch,
    /// The one before: an answer with a new one may be lost.
    pub previous_epoch: Epoch,
    pub state: MemberState,
    pub assigned: Assignment,
    /// What it has yet to give up.
    pub revoking: Assignment,
    /// The epoch in which it got each partition of both: an older one says nothing of it.
    pub since: BTreeMap<(TopicId, Partition), Epoch>,
}

/// How far a member has followed the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemberState {
    /// It has what the target of its epoch gives it.
    #[default]
    Stable,
    /// It has yet to give up partitions.
    Unrevoked,
    /// It has given up what it should, and waits for others to do so.
    Unreleased,
}

impl Current {
    /// Whether the member has all that the target of an epoch gives it.
    pub fn has_reached(&self, epoch: Epoch) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// Whether the member has a partition, or has yet to give it up, and had it in an earlier epoch.
    pub fn had(&self, place: (TopicId, Partition), epoch: Generation) -> bool {
        let since = self.since.get(&place);
        since.is_some_and(|since| since.0 <= epoch.0)
    }

    /// What nobody else may have yet.
    pub fn owned(&self) -> impl Iterator<Item = (TopicId, Partition)> {
        let all = self.assigned.iter().chain(&self.revoking);
        all.flat_map(|(topic, partitions)| partitions.iter().map(|partition| (*topic, *partition)))
    }
}
