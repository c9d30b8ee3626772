//! Records that a source has of partitions which are too far ahead of others in event time. It keeps them until the
//! others have caught up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millstream_base::Offset;
use millstream_client::ClientError;

use crate::server::ServerRecords;

/// What an item costs beside its records: there are items without any.
const ITEM_BYTES: usize = 256;

/// Records in hand, by partition.
#[derive(Default)]
pub struct HeldRecords {
    partitions: BTreeMap<i32, HeldPartition>,
    /// Partitions with so much in hand that no more of them is to be read.
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

    /// The offset behind what is in hand of a partition, if anything is.
    pub fn end(&self, partition: i32) -> Option<Offset> {
        Some(self.partitions.get(&partition)?.records.back()?.next())
    }

    /// The partitions that are not to be read for now.
    pub fn full(&self) -> &BTreeSet<i32> {
        &self.full
    }

    /// Keeps records, which come behind those in hand. A partition is full beyond `bytes_max`; what was read of it by
    /// then is kept, too. Returns whether that is new.
    ///
    /// # Errors
    /// When the server has taken back the memory that they lie in.
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

    /// Takes what comes first of a partition that is not held any more, and whether the partition is full no longer: it
    /// is read on when half of what it may have is left, lest it run dry.
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
