//! The coordinator: events in, actions out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::config::{Config, GroupConfig};
use super::group::Groups;
use super::record::decode;
use super::restore::Restoring;
use super::share::ShareGroup;
use super::timers::{Timer, Timers};
use super::topics::{Topic, TopicAccess, Topics};
use super::turn::{Action, Moment, Turn};
use super::{GroupName, MemberId, Record, RecordError, Request, RequestId, Standing, TopicName};

/// The coordinator of all groups.
///
/// It does no I/O and asks no clock: the caller passes events and times in, and carries out the actions that come
/// back. It answers every request exactly once, unless it is dropped before.
///
/// Its memory runs ahead of the log. If an append fails, drop the coordinator, and [restore](Coordinator::restore)
/// another from the log.
#[derive(Debug)]
pub struct Coordinator {
    config: Config,
    groups: Groups,
    topics: Topics,
    timers: Timers,
}

impl Coordinator {
    /// A coordinator without groups.
    pub fn new(config: Config, now: Moment) -> Self {
        let mut coordinator = Coordinator {
            config,
            groups: Groups::default(),
            topics: Topics::default(),
            timers: Timers::default(),
        };
        coordinator.turn(now, |_, turn| set_expiry_timer(turn));
        coordinator
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Gives a group settings of its own; the group need not exist. They apply to each member from its next heartbeat
    /// on.
    pub fn set_group_config(&mut self, group: GroupName, config: GroupConfig) {
        let of_groups = &mut self.config.of_groups;
        match config == GroupConfig::default() {
            true => of_groups.remove(&group),
            false => of_groups.insert(group, config),
        };
    }

    /// Restores a coordinator from the log. `records` are those of a [snapshot](Self::snapshot) and all that were
    /// persisted since, or all that were ever persisted, in their order.
    ///
    /// Each member's session timeout starts again now. The members of an interrupted rebalance begin it again.
    ///
    /// # Errors
    /// When a record is not one of this module.
    pub fn restore(
        config: Config,
        now: Moment,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Self, RecordError> {
        // Keep only the last value of each key.
        let mut values = BTreeMap::new();
        for record in records {
            match decode(record)? {
                (key, Some(value)) => values.insert(key, value),
                (key, None) => values.remove(&key),
            };
        }
        let mut coordinator = Coordinator::new(config, now);
        coordinator.turn(now, |groups, turn| {
            let mut restoring = Restoring::new(groups, turn);
            values
                .into_iter()
                .for_each(|(key, value)| restoring.add(key, value));
            restoring.complete();
        });
        Ok(coordinator)
    }

    /// Sets the rules for the topics that a client may see. Without them, every client may see all topics.
    pub fn set_access(&mut self, access: Arc<dyn TopicAccess>) {
        self.topics.access = access;
    }

    /// Notes that the access rules have changed.
    pub fn access_changed(&mut self) {
        self.groups.access_changed();
    }

    /// Handles a request. One of the actions answers it, or one of a later call.
    pub fn handle(&mut self, now: Moment, id: RequestId, request: Request) -> Vec<Action> {
        self.turn(now, |groups, turn| match request {
            Request::JoinGroup(join) => groups.join(turn, id, join),
            Request::SyncGroup(sync) => groups.sync(turn, id, sync),
            Request::Heartbeat(heartbeat) => groups.heartbeat(turn, id, &heartbeat),
            Request::LeaveGroup(leave) => groups.leave(turn, id, leave),
            Request::DescribeGroups(names) => groups.describe(turn, id, names),
            Request::ListGroups(list) => groups.list(turn, id, &list),
            Request::DeleteGroups(names) => groups.delete(turn, id, names),
            Request::CommitOffsets(commit) => groups.commit(turn, id, commit),
            Request::CommitTransactionOffsets(commit) => {
                groups.commit_transaction_offsets(turn, id, commit);
            }
            Request::EndTransaction(end) => groups.end_transaction(turn, id, end),
            Request::FetchOffsets(fetch) => groups.fetch(turn, id, fetch),
            Request::DeleteOffsets(delete) => groups.delete_offsets(turn, id, delete),
            Request::ConsumerHeartbeat(beat) => groups.consumer_heartbeat(turn, id, beat),
            Request::DescribeConsumerGroups(names) => {
                groups.describe_consumer_groups(turn, id, names);
            }
            Request::ShareHeartbeat(beat) => groups.share_heartbeat(turn, id, beat),
            Request::CreateShareGroup(name) => groups.create_share_group(turn, id, &name),
            Request::DescribeShareGroups(names) => groups.describe_share_groups(turn, id, names),
            Request::StreamsHeartbeat(beat) => groups.streams_heartbeat(turn, id, beat),
            Request::DescribeStreamsGroups(names) => {
                groups.describe_streams_groups(turn, id, names);
            }
        })
    }

    /// When to call [`tick`](Self::tick) next, in the time of [`Moment::elapsed`].
    pub fn next_deadline(&self) -> Option<Duration> {
        self.timers.next()
    }

    /// Handles all deadlines that have passed.
    pub fn tick(&mut self, now: Moment) -> Vec<Action> {
        let mut actions = Vec::new();
        while let Some(timer) = self.timers.pop(now.elapsed) {
            let done = self.turn(now, |groups, turn| {
                if timer == Timer::Expiry {
                    set_expiry_timer(turn);
                }
                groups.on_timer(turn, timer);
            });
            actions.extend(done);
        }
        actions
    }

    /// Notes that a topic was created, or has more partitions now. The caller must pass in all topics before the first
    /// request, since members of groups of KIP-848 have to give up the partitions of missing topics.
    pub fn put_topic(&mut self, topic: Topic) {
        self.groups.topic_changed(&topic.name);
        self.topics.put(topic);
    }

    /// Notes that a topic was deleted, and that this one now has its name. Removes the offsets of the deleted one.
    pub fn replace_topic(&mut self, now: Moment, topic: Topic) -> Vec<Action> {
        let (name, id) = (topic.name.clone(), topic.id);
        self.put_topic(topic);
        self.turn(now, |groups, turn| {
            groups.remove_topic(turn, &name, Some(id))
        })
    }

    /// Removes a deleted topic and its offsets.
    pub fn remove_topic(&mut self, now: Moment, topic: &TopicName) -> Vec<Action> {
        self.topics.remove(topic);
        self.groups.topic_changed(topic);
        self.turn(now, |groups, turn| groups.remove_topic(turn, topic, None))
    }

    /// Notes that the broker could not create the topics that a group needs; its members learn the reason.
    pub fn creation_failed(&mut self, group: &GroupName, why: String) {
        self.groups.creation_failed(group, why);
    }

    /// Returns all state as records, as if the log were just compacted: a coordinator can be [restored](Self::restore)
    /// from them.
    pub fn snapshot(&self) -> Vec<Record> {
        self.groups.snapshot()
    }

    /// Summaries of all groups, ordered by name.
    pub fn standings(&self) -> Vec<Standing> {
        self.groups.standings()
    }

    /// How many members a share group has; `None` if no share group has this name.
    pub fn share_group_members(&self, group: &GroupName) -> Option<usize> {
        self.groups.share_group(group).map(ShareGroup::len)
    }

    /// Whether a share group has this member.
    pub fn has_share_member(&self, group: &GroupName, member: &MemberId) -> bool {
        let group = self.groups.share_group(group);
        group.is_some_and(|group| group.has_member(member))
    }

    fn turn(&mut self, now: Moment, event: impl FnOnce(&mut Groups, &mut Turn)) -> Vec<Action> {
        let mut turn = Turn::new(now, &self.config, &self.topics, &mut self.timers);
        event(&mut self.groups, &mut turn);
        turn.actions
    }
}

fn set_expiry_timer(turn: &mut Turn) {
    // Never at once, or a tick would not end.
    let interval = turn.config.offsets_retention_check_interval;
    turn.set_timer(Timer::Expiry, interval.max(Duration::from_millis(1)));
}
