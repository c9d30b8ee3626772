//! Commits offsets, at once or with a transaction, and deletes them.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ProducerId, Timestamp};

use super::Offsets;
use crate::groups::answer::TopicResults;
use crate::groups::config::{ID_BYTES_MAX, OFFSETS_PER_GROUP_MAX};
use crate::groups::record::{CommittedOffset, Key, Value};
use crate::groups::turn::Turn;
use crate::groups::{
    GroupError, GroupName, Partition, PartitionCommit, TopicCommit, TopicId, TopicName,
};

/// Refuses every partition for the same reason.
pub fn refused(topics: Vec<TopicCommit>, error: GroupError) -> Vec<TopicResults> {
    each(topics, |_, _, _| Err(error))
}

/// Applies a function to every partition.
fn each(
    topics: Vec<TopicCommit>,
    mut commit: impl FnMut(&TopicName, TopicId, PartitionCommit) -> Result<(), GroupError>,
) -> Vec<TopicResults> {
    let results = topics.into_iter().map(|topic| {
        let TopicCommit {
            topic,
            id,
            partitions,
        } = topic;
        let result = |partition: PartitionCommit| {
            let number = partition.partition;
            (number, commit(&topic, id, partition))
        };
        TopicResults {
            partitions: partitions.into_iter().map(result).collect(),
            topic,
        }
    });
    results.collect()
}

impl Offsets {
    pub fn commit(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        topics: Vec<TopicCommit>,
        retention: Option<Duration>,
    ) -> Vec<TopicResults> {
        let expires_at = retention.map(|retention| later(turn.now.timestamp, retention));
        each(topics, |topic, id, commit| {
            let partition = commit.partition;
            let is_known = self
                .committed
                .get(topic)
                .is_some_and(|known| known.contains_key(&partition));
            let offset = self.accept(turn, (topic, id), commit, is_known, expires_at)?;
            let key = Key::Offset(group.clone(), topic.clone(), partition);
            turn.store(&key, &Value::Offset(offset.clone()));
            self.insert(topic, partition, offset);
            Ok(())
        })
    }

    pub fn commit_pending(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        producer: ProducerId,
        topics: Vec<TopicCommit>,
    ) -> Vec<TopicResults> {
        each(topics, |topic, id, commit| {
            let place = (topic.clone(), commit.partition);
            let of_producer = self.pending.get(&producer);
            let is_known = of_producer.is_some_and(|known| known.contains_key(&place));
            let offset = self.accept(turn, (topic, id), commit, is_known, None)?;
            let key = Key::PendingOffset(group.clone(), producer, topic.clone(), place.1);
            turn.store(&key, &Value::Offset(offset.clone()));
            self.insert_pending(producer, place, offset);
            Ok(())
        })
    }

    /// Checks an offset against the bounds.
    fn accept(
        &mut self,
        turn: &Turn,
        (topic, id): (&TopicName, TopicId),
        commit: PartitionCommit,
        is_known: bool,
        expires_at: Option<Timestamp>,
    ) -> Result<CommittedOffset, GroupError> {
        if commit.metadata.encode_utf16().count() > turn.config.offset_metadata_max {
            return Err(GroupError::OffsetMetadataTooLarge);
        }
        if topic.len() > ID_BYTES_MAX || !is_known && self.count >= OFFSETS_PER_GROUP_MAX {
            return Err(GroupError::InvalidCommitOffsetSize);
        }
        let order = self.next_order;
        self.next_order = order.saturating_add(1);
        Ok(CommittedOffset {
            offset: commit.offset,
            leader_epoch: commit.leader_epoch,
            // Copy it, since it is kept.
            metadata: Arc::from(&*commit.metadata),
            committed_at: turn.now.timestamp,
            expires_at,
            order,
            topic: Some(id),
        })
    }

    /// Ends a transaction: commits its pending offsets, unless a later commit has overtaken them, or drops them.
    pub fn end_transaction(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        producer: ProducerId,
        is_committed: bool,
    ) {
        let ended = self.pending.remove(&producer).unwrap_or_default();
        self.count -= ended.len();
        for ((topic, partition), offset) in ended {
            let known = self
                .committed
                .get(&topic)
                .and_then(|known| known.get(&partition));
            if is_committed && known.is_none_or(|known| known.order < offset.order) {
                let key = Key::Offset(group.clone(), topic.clone(), partition);
                turn.store(&key, &Value::Offset(offset.clone()));
                self.insert(&topic, partition, offset);
            }
            turn.remove(&Key::PendingOffset(
                group.clone(),
                producer,
                topic,
                partition,
            ));
        }
    }

    /// Deletes offsets, except those of topics that the group subscribes to.
    pub fn delete(
        &mut self,
        turn: &mut Turn,
        group: &GroupName,
        topics: Vec<(TopicName, Vec<Partition>)>,
        is_subscribed: impl Fn(&TopicName) -> bool,
    ) -> Vec<TopicResults> {
        let results = topics.into_iter().map(|(topic, partitions)| {
            let result = match is_subscribed(&topic) {
                true => Err(GroupError::GroupSubscribedToTopic),
                false => Ok(()),
            };
            let delete = |partition| {
                if result.is_ok() {
                    self.remove(turn, group, &topic, partition);
                }
                (partition, result)
            };
            let partitions = partitions.into_iter().map(delete).collect();
            TopicResults { topic, partitions }
        });
        results.collect()
    }
}

fn later(timestamp: Timestamp, duration: Duration) -> Timestamp {
    let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    Timestamp(timestamp.0.saturating_add(millis))
}
