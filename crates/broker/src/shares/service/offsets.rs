//! The positions of groups.

use millstream_base::Offset;
use millstream_log::StreamPartition;
use millstream_wire::{ResponseError, SharePartitionOffsets};

use super::ShareService;
use crate::groups::{GroupName, TopicId};
use crate::shares::SharePartition;
use crate::shares::record::Key;

/// The start offset in responses for a share-partition that no member has read from.
pub const NO_OFFSET: i64 = -1;

impl ShareService {
    /// Checks that a share group exists and has no members.
    pub fn check_empty(&self, group: &GroupName) -> Result<(), ResponseError> {
        if self.is_damaged() {
            return Err(ResponseError::CoordinatorNotAvailable);
        }
        match self.groups.share_group_members(group) {
            None => Err(ResponseError::GroupIdNotFound),
            Some(0) => Ok(()),
            Some(_) => Err(ResponseError::NonEmptyGroup),
        }
    }

    /// Moves a share-partition to another offset; returns the offset up to which the ledger has to be durable.
    pub fn alter(&self, key: &Key, start: Offset) -> Result<Offset, ResponseError> {
        let has_group = || self.groups.share_group_members(&key.group).is_some();
        let kept = self.begin(key, start, has_group)?;
        let mut kept = kept.lock();
        if kept.is_gone {
            return Err(ResponseError::GroupIdNotFound);
        }
        self.put(key, &mut kept, SharePartition::new(start))
    }

    /// Returns the keys of a group's share-partitions.
    pub fn keys_of(&self, group: &GroupName) -> Vec<Key> {
        self.of_group(group)
            .into_iter()
            .map(|(key, _)| key)
            .collect()
    }

    /// Removes the share-partitions of a group in a topic; returns the offset up to which the ledger has to be durable, or
    /// `None` if there are none.
    pub fn forget_topic(
        &self,
        group: &GroupName,
        topic: TopicId,
    ) -> Result<Option<Offset>, ResponseError> {
        let of_group = self.of_group(group).into_iter();
        self.forget(of_group.filter(|(key, _)| key.topic == topic))
    }

    /// The current position of a share-partition.
    pub fn describe_partition(&self, key: &Key, lane: &StreamPartition) -> SharePartitionOffsets {
        let mut described = SharePartitionOffsets {
            partition_index: key.partition.0,
            start_offset: NO_OFFSET,
            leader_epoch: lane.leader_epoch(),
            ..SharePartitionOffsets::default()
        };
        if let Some(kept) = self.find(key) {
            let settings = self.settings(&key.group);
            let mut kept = kept.lock();
            kept.shares.expire(self.now(), &settings);
            kept.shares.advance(lane.earliest_offset());
            self.count(key, &mut kept);
            described.start_offset = kept.shares.start().0 as i64;
            described.lag = kept.shares.lag(lane.high_watermark()) as i64;
        }
        described
    }
}
