//! Reads offsets.

use super::Offsets;
use crate::groups::answer::{FetchedOffset, TopicOffsets};
use crate::groups::{GroupError, Partition, TopicName};

impl Offsets {
    /// Reads offsets; all of the group if the request names none.
    pub fn fetch(
        &self,
        topics: Option<Vec<(TopicName, Vec<Partition>)>>,
        require_stable: bool,
    ) -> Vec<TopicOffsets> {
        let named = topics.unwrap_or_else(|| {
            let all = self.committed.iter();
            all.map(|(topic, offsets)| (topic.clone(), offsets.keys().copied().collect()))
                .collect()
        });
        let read = |(topic, partitions): (TopicName, Vec<Partition>)| {
            let partitions = partitions.into_iter();
            let read = |partition| (partition, self.read(&topic, partition, require_stable));
            TopicOffsets {
                partitions: partitions.map(read).collect(),
                topic: topic.clone(),
            }
        };
        named.into_iter().map(read).collect()
    }

    fn read(
        &self,
        topic: &TopicName,
        partition: Partition,
        require_stable: bool,
    ) -> Result<Option<FetchedOffset>, GroupError> {
        if require_stable && self.is_pending(topic, partition) {
            return Err(GroupError::UnstableOffsetCommit);
        }
        let offset = self
            .committed
            .get(topic)
            .and_then(|offsets| offsets.get(&partition));
        Ok(offset.map(|offset| FetchedOffset {
            offset: offset.offset,
            leader_epoch: offset.leader_epoch,
            metadata: offset.metadata.clone(),
            topic: offset.topic,
        }))
    }
}
