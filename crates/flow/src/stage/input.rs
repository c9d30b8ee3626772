//! The input of a stage: a source, a ring that other stages write, or another rank.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;

use crate::error::{BoxError, Failure};
use crate::ranks::outlets::Outlets;
use crate::sources::positions::Positions;
use crate::stage::row::RowStart;
use crate::time::control_event::ControlEvent;
use crate::time::partitions::{PartitionId, Partitions};

/// The outcome of an attempt to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    /// There are items in hand.
    Items,
    /// No items, but room that writers left empty is passed: writers may have room now, an event may be due, or the
    /// input finished.
    Passed,
    Idle,
    End,
}

/// An input. It holds a batch of items from `take` until `done`, whichever worker processes it: a worker that dies
/// leaves the rest of its batch to the next one.
pub trait Input: RowStart {
    /// Whether it reads from other ranks.
    const IS_REMOTE: bool = false;

    /// Returns how many items `take` may give at once, as far as that is known.
    fn readable(&self) -> usize;

    /// Whether there will never be anything again where nothing is readable.
    fn is_finished(&self) -> bool;

    /// Whether a control event lies where it has read up to.
    fn has_due_event(&self) -> bool {
        false
    }

    /// Observes the control events up to behind the items in hand; returns their combination if that is new.
    fn observe_event(&mut self) -> Option<ControlEvent> {
        None
    }

    /// Returns how many items at most may be taken before the next control event that has not been observed.
    fn items_before_event(&self) -> usize {
        usize::MAX
    }

    /// The watermark behind the items taken so far, as observed by any instance that shares the input.
    fn time(&self) -> Timestamp {
        Timestamp(i64::MIN)
    }

    /// Makes sure that a worker is awake at `time` of the flow's clock.
    fn wake_at(&self, _time: Duration) {}

    /// Takes a batch of up to `budget` items in hand, which must be empty.
    fn take(&mut self, budget: usize) -> Result<Took, Failure>;

    /// The items in hand.
    fn parts(&self) -> [&[Self::Item]; 2];

    /// Returns the partition of an item in hand, if the source has several.
    fn partition_of(&self, _item: &Self::Item) -> Option<PartitionId> {
        None
    }

    /// The partitions of the source, if it has several.
    fn partitions(&self) -> Option<Partitions> {
        None
    }

    /// If it reads from other ranks: the way on which this rank sends the same to them.
    fn inlet(&self) -> Option<Arc<Outlets>> {
        None
    }

    /// When the newest item in hand that is known of entered the flow, in ns of the flow's clock.
    fn stamp(&mut self) -> u64;

    /// Calls `visit` with the stamps of a hundredth of the records in hand, and how many records have this stamp.
    fn sample(&mut self, visit: impl FnMut(u64, u64));

    /// Drops the items in hand.
    fn done(&mut self);

    fn wants_commits(&self) -> bool {
        false
    }

    /// The positions of its source; `None` if it has none, or the source does not know.
    fn positions(&self) -> Option<Arc<dyn Positions>> {
        None
    }

    /// Whether it gives nothing more before the snapshot `number` is taken, except for the items in its ring.
    fn is_at_rest(&self, _number: u64) -> bool {
        true
    }

    /// Saves the position to resume from; `None` if that is in its ring.
    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        Ok(None)
    }

    /// Whether any number of inputs of this source can resume from the saved bytes of one.
    fn shares_position(&self) -> bool {
        false
    }

    /// Resumes from [saved](Input::save) bytes.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    /// The flow is over.
    fn close(&mut self) {}

    /// All taken items have arrived durably at their destination.
    fn commit(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}
