//! The offsets that a group has committed, and those that wait for the end of a transaction.

pub(super) mod commit;
mod fetch;

use std::collections::BTreeMap;

use millstream_base::{Offset, ProducerId, Timestamp};
use millstream_wire::FLOW_OFFSETS;

use super::record::{CommittedOffset, Key, Value, record};
use super::turn::Turn;
use super::{GroupName, Partition, TopicId, TopicName};
use crate::ledger::Record;

/// The offsets of one group.
#[derive(Debug, Default)]
pub(super) struct Offsets {
    /// The committed offsets.
    committed: BTreeMap<TopicName, BTreeMap<Partition, CommittedOffset>>,
    /// The offsets of open transactions; they are committed with them. No entry is empty.
    pending: BTreeMap<ProducerId, BTreeMap<(TopicName, Partition), CommittedOffset>>,
    /// The number of offsets in both.
    count: usize,
    /// The order of the next commit.
    next_order: u64,
}

impl Offsets {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether the offsets are the positions of a flow, which commits all offsets of its group. Looks at the first
    /// only.
    pub fn are_of_flow(&self) -> bool {
        let mut committed = self.committed.values().flat_map(BTreeMap::values);
        let first = committed.next();
        first.is_some_and(|offset| &*offset.metadata == FLOW_OFFSETS)
    }

    /// The committed offsets, by topic and partition.
    pub fn positions(&self) -> Vec<(TopicName, Vec<(u32, Offset)>)> {
        let topics = self.committed.iter().map(|(topic, partitions)| {
            let offsets = partitions
                .iter()
                .map(|(partition, committed)| (partition.0 as u32, committed.offset));
            (topic.clone(), offsets.collect())
        });
        topics.collect()
    }

    fn is_pending(&self, topic: &TopicName, partition: Partition) -> bool {
        let place = (topic.clone(), partition);
        self.pending
            .values()
            .any(|offsets| offsets.contains_key(&place))
    }

    fn insert(&mut self, topic: &TopicName, partition: Partition, offset: CommittedOffset) {
        let partitions = self.committed.entry(topic.clone()).or_default();
        if partitions.insert(partition, offset).is_none() {
            self.count += 1;
        }
    }

    fn insert_pending(
        &mut self,
        producer: ProducerId,
        place: (TopicName, Partition),
        offset: CommittedOffset,
    ) {
        let offsets = self.pending.entry(producer).or_default();
        if offsets.insert(place, offset).is_none() {
            self.count += 1;
        }
    }

    /// Removes the offset of a partition, and those that open transactions would commit to it.
    fn remove(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        topic: &TopicName,
        partition: Partition,
    ) {
        if let Some(partitions) = self.committed.get_mut(topic) {
            if partitions.remove(&partition).is_some() {
                self.count -= 1;
                turn.remove(&Key::Offset(group.clone(), topic.clone(), partition));
            }
            if partitions.is_empty() {
                self.committed.remove(topic);
            }
        }
        let place = (topic.clone(), partition);
        for (producer, offsets) in &mut self.pending {
            if offsets.remove(&place).is_some() {
                self.count -= 1;
                let topic = topic.clone();
                turn.remove(&Key::PendingOffset(
                    group.clone(),
                    *producer,
                    topic,
                    partition,
                ));
            }
        }
        self.pending.retain(|_, offsets| !offsets.is_empty());
    }

    /// Removes all offsets.
    pub fn clear(&mut self, turn: &mut Turn, group: &GroupName) {
        for key in self.entries(group).map(|(key, _)| key) {
            turn.remove(&key);
        }
        *self = Offsets {
            next_order: self.next_order,
            ..Offsets::default()
        };
    }

    /// Removes all offsets of a deleted topic; not those of the topic `new`, which now has its name.
    pub fn remove_topic(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        topic: &TopicName,
        new: Option<TopicId>,
    ) {
        let stays = |offset: &CommittedOffset| new.is_some() && offset.topic == new;
        let mut removed = Vec::new();
        if let Some(partitions) = self.committed.get_mut(topic) {
            partitions.retain(|partition, offset| {
                let stays = stays(offset);
                if !stays {
                    removed.push(Key::Offset(group.clone(), topic.clone(), *partition));
                }
                stays
            });
            if partitions.is_empty() {
                self.committed.remove(topic);
            }
        }
        for (producer, offsets) in &mut self.pending {
            offsets.retain(|(pending, partition), offset| {
                let stays = pending != topic || stays(offset);
                if !stays {
                    let topic = topic.clone();
                    let key = Key::PendingOffset(group.clone(), *producer, topic, *partition);
                    removed.push(key);
                }
                stays
            });
        }
        self.pending.retain(|_, offsets| !offsets.is_empty());
        self.count -= removed.len();
        removed.iter().for_each(|key| turn.remove(key));
    }

    /// Removes expired offsets of topics that are not in use. `since` returns the time from which the retention of an
    /// offset counts, given the time of its commit, and `None` if the offset must stay.
    pub fn expire(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        is_in_use: impl Fn(&TopicName) -> bool,
        since: impl Fn(Timestamp) -> Option<Timestamp>,
    ) {
        let now = turn.now.timestamp;
        let retention = turn.config.offsets_retention.as_millis();
        let has_expired =
            |offset: &CommittedOffset| match (since(offset.committed_at), offset.expires_at) {
                (None, _) => false,
                (Some(_), Some(at)) => now >= at,
                (Some(since), None) => {
                    i128::from(now.0) - i128::from(since.0) >= retention.cast_signed()
                }
            };
        let mut expired = Vec::new();
        for (topic, partitions) in &self.committed {
            if is_in_use(topic) {
                continue;
            }
            for (partition, offset) in partitions {
                if has_expired(offset) && !self.is_pending(topic, *partition) {
                    expired.push((topic.clone(), *partition));
                }
            }
        }
        for (topic, partition) in expired {
            self.remove(turn, group, &topic, partition);
        }
    }

    /// The keys and values of all stored offsets.
    fn entries<'a>(
        &'a self,
        group: &'a GroupName,
    ) -> impl Iterator<Item = (Key, &'a CommittedOffset)> {
        let committed = self.committed.iter().flat_map(move |(topic, partitions)| {
            let key = move |partition| Key::Offset(group.clone(), topic.clone(), partition);
            partitions
                .iter()
                .map(move |(partition, offset)| (key(*partition), offset))
        });
        let pending = self.pending.iter().flat_map(move |(producer, offsets)| {
            let key = move |topic: &TopicName, partition| {
                Key::PendingOffset(group.clone(), *producer, topic.clone(), partition)
            };
            offsets
                .iter()
                .map(move |((topic, partition), offset)| (key(topic, *partition), offset))
        });
        committed.chain(pending)
    }

    pub fn snapshot(&self, group: &GroupName, records: &mut Vec<Record>) {
        let entries = self.entries(group);
        records.extend(
            entries.map(|(key, offset)| record(&key, Some(&Value::Offset(offset.clone())))),
        );
    }

    /// Restores a stored offset.
    pub fn restore(&mut self, topic: TopicName, partition: Partition, offset: CommittedOffset) {
        self.next_order = self.next_order.max(offset.order.saturating_add(1));
        self.insert(&topic, partition, offset);
    }

    /// Restores a stored offset of an open transaction.
    pub fn restore_pending(
        &mut self,
        producer: ProducerId,
        topic: TopicName,
        partition: Partition,
        offset: CommittedOffset,
    ) {
        self.next_order = self.next_order.max(offset.order.saturating_add(1));
        self.insert_pending(producer, (topic, partition), offset);
    }
}
