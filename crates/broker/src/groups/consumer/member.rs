//! A member of a group of KIP-848: its subscription and its partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::groups::{Client, Epoch, Generation, InstanceId, Partition, TopicId, TopicName};

/// Partitions of topics; no topic without partitions.
pub type Assignment = BTreeMap<TopicId, BTreeSet<Partition>>;

/// A member's subscription and settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subscription {
    pub instance: Option<InstanceId>,
    pub rack: Option<Arc<str>>,
    pub client: Client,
    /// Its principal, for the access rules; empty if the stored record is older than this field.
    pub principal: Arc<str>,
    pub rebalance_timeout: Duration,
    pub topics: BTreeSet<TopicName>,
    /// A regular expression for further topics; it matches only topics that the member may see.
    pub regex: Option<Arc<str>>,
    pub assignor: Option<Arc<str>>,
}

/// A member's epoch and its partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Current {
    /// 0 before the first target.
    pub epoch: Epoch,
    /// The epoch before: the member may have missed the answer with the new one.
    pub previous_epoch: Epoch,
    pub state: MemberState,
    pub assigned: Assignment,
    /// The partitions that it has yet to give up.
    pub revoking: Assignment,
    /// The epoch in which it got each partition of both; older records lack this.
    pub since: BTreeMap<(TopicId, Partition), Epoch>,
}

/// How far a member has followed the target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MemberState {
    /// It has the target assignment of its epoch.
    #[default]
    Stable,
    /// It has yet to give up partitions.
    Unrevoked,
    /// It has given up its partitions, and waits for other members to give up theirs.
    Unreleased,
}

impl Current {
    /// Whether the member has the whole target assignment of an epoch.
    pub fn has_reached(&self, epoch: Epoch) -> bool {
        self.state == MemberState::Stable && self.epoch == epoch
    }

    /// Whether the member has a partition, or has yet to give it up, and had it in an earlier epoch.
    pub fn had(&self, place: (TopicId, Partition), epoch: Generation) -> bool {
        let since = self.since.get(&place);
        since.is_some_and(|since| since.0 <= epoch.0)
    }

    /// The partitions that no other member may have yet.
    pub fn owned(&self) -> impl Iterator<Item = (TopicId, Partition)> {
        let all = self.assigned.iter().chain(&self.revoking);
        all.flat_map(|(topic, partitions)| partitions.iter().map(|partition| (*topic, *partition)))
    }
}
