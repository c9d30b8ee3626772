//! Records that a source has of partitions which are too far ahead of others in event time. It keeps them until the
//! others have caught up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millstream_base::Offset;
use millstream_client::ClientError;

use crate::server::ServerRecords;

/// The memory that an item costs beside its records: there are items without any.
const ITEM_BYTES: usize = 256;

/// Records in hand, by partition.
#[derive(Default)]
pub struct HeldRecords {
    partitions: BTreeMap<i32, HeldPartition>,
    /// Partitions that must not be read further, since their held records have reached the bound.
    full: BTreeSet<i32>,
}

#[derive(Default)]
struct HeldPartition {
    records: VecDeque<ServerRecords>,
    bytes: usize,
}

impl HeldRecords {
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Returns the offset behind the held records of a partition, if there are any.
    pub fn end(&self, partition: i32) -> Option<Offset> {
        Some(self.partitions.get(&partition)?.records.back()?.next())
    }

    /// The partitions that are not to be read for now.
    pub fn full(&self) -> &BTreeSet<i32> {
        &self.full
    }

    /// Adds records behind those already held. A partition is full beyond `bytes_max`; records that were read before it
    /// was full are held, too. Returns whether the partition has become full.
    ///
    /// # Errors
    /// When the server has reclaimed their memory.
    pub fn keep(
        &mut self,
        mut records: ServerRecords,
        bytes_max: usize,
    ) -> Result<bool, ClientError> {
        records.detach()?;
        let number = records.partition();
        let partition = self.partitions.entry(number).or_default();
        partition.bytes += cost(&records);
        partition.records.push_back(records);
        Ok(partition.bytes > bytes_max && self.full.insert(number))
    }

    /// Removes the first records of a partition that is not held back any more; also returns whether the partition is
    /// no longer full: reading resumes when half of its bound is left, lest it run dry.
    pub fn take(
        &mut self,
        bytes_max: usize,
        is_held: impl Fn(i32) -> bool,
    ) -> Option<(ServerRecords, bool)> {
        let numbers = self.partitions.keys().copied();
        let number = numbers.into_iter().find(|number| !is_held(*number))?;
        let partition = self.partitions.get_mut(&number)?;
        let records = partition.records.pop_front()?;
        partition.bytes -= cost(&records);
        let has_room = partition.bytes <= bytes_max / 2;
        if partition.records.is_empty() {
            self.partitions.remove(&number);
        }
        Some((records, has_room && self.full.remove(&number)))
    }
}

fn cost(records: &ServerRecords) -> usize {
    ITEM_BYTES + records.bytes()
}
