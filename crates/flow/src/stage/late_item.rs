//! Items that come too late for their windows.

use std::fmt::{self, Debug, Display};

use millstream_base::Timestamp;

use crate::time::partitions::PartitionId;
use crate::time::stage_time::StageTime;
use crate::windows::Windows;

/// The reason for which an item is in none of its windows: the error of its dead letter. Times are in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateItem {
    time: Timestamp,
    watermark: Timestamp,
    /// The watermark from which on items of this time are late.
    over_since: Timestamp,
    partition: Option<PartitionId>,
}

impl LateItem {
    /// An item of `time` that was found in `windows` when event time was at `watermark`.
    pub fn new(
        windows: &Windows,
        time: Timestamp,
        watermark: Timestamp,
        at: &StageTime,
    ) -> LateItem {
        LateItem {
            time,
            watermark,
            over_since: windows.late_from(time),
            partition: at.current_partition(),
        }
    }
}

impl Display for LateItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "late: event time {} ms, watermark {} ms, windows over since {} ms",
            self.time.0, self.watermark.0, self.over_since.0
        )?;
        match self.partition {
            Some(PartitionId(partition)) => write!(f, ", of partition {partition}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for LateItem {}

/// Items that were added up before they turned out to be late, at the owner of their key: their source was idle, and
/// time went on without it on the way. The records are not known there.
#[derive(Clone, Copy)]
pub struct LatePartial<'a> {
    /// The key as text; `None` if it has none.
    pub key: Option<&'a str>,
    pub events: u64,
    /// The latest time of one of them.
    pub time_max: Timestamp,
    pub watermark: Timestamp,
}

/// The item of the dead letter.
impl Debug for LatePartial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LatePartial { key, events, .. } = self;
        match key {
            Some(key) => write!(f, "{events} items of key {key}"),
            None => write!(f, "{events} items of a key"),
        }
    }
}

/// The error of the dead letter.
impl Display for LatePartial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "late: event time up to {} ms, watermark {} ms; {self:?}, added up while time went on without their source, \
             so their records are not known here",
            self.time_max.0, self.watermark.0
        )
    }
}
