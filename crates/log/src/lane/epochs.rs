//! The leader epochs of a lane: each begins at an offset, and ends where the next one begins.
//!
//! A consumer that knows the epoch of the last record that it has read asks where that epoch ends. If that is before its position,
//! the lane lost records that it has read (KIP-320). So each loss of records that consumers may have read must raise the epoch. Epoch 0
//! begins with the lane.

use std::sync::atomic::{AtomicI32, Ordering};

use millstream_base::Offset;
use parking_lot::RwLock;

/// The epochs of a lane. They change before the lane takes anything.
#[derive(Debug, Default)]
pub struct Epochs {
    /// The last one, for appends.
    current: AtomicI32,
    /// The epochs after epoch 0, each with its first offset. Both increase.
    starts: RwLock<Vec<(i32, Offset)>>,
}

impl Epochs {
    /// Returns the epochs that the manifest lists.
    pub fn new(starts: Vec<(i32, Offset)>) -> Epochs {
        Epochs {
            current: AtomicI32::new(starts.last().map_or(0, |last| last.0)),
            starts: RwLock::new(starts),
        }
    }

    /// Returns the epoch that the next chunk gets.
    #[inline]
    pub fn current(&self) -> i32 {
        self.current.load(Ordering::Relaxed)
    }

    /// Begins an epoch, which is listed.
    pub fn begin(&self, epoch: i32, from: Offset) {
        begin(&mut self.starts.write(), epoch, from);
        self.current.store(epoch, Ordering::Relaxed);
    }

    /// Returns the epoch of the chunk at an offset.
    pub fn at(&self, offset: Offset) -> i32 {
        epoch_at(&self.starts.read(), offset)
    }

    /// Returns the largest epoch up to `epoch`, and where it ends; the current one ends at `end`. `None` for an epoch
    /// that is not known.
    pub fn end_of(&self, epoch: i32, end: Offset) -> Option<(i32, Offset)> {
        let starts = self.starts.read();
        let next = starts.partition_point(|start| start.0 <= epoch);
        let found = next.checked_sub(1).map_or(0, |last| starts[last].0);
        match starts.get(next) {
            _ if epoch < 0 => None,
            Some((_, next_start)) => Some((found, *next_start)),
            None if epoch == found => Some((epoch, end)),
            None => None,
        }
    }
}

/// Returns the epoch of the chunk at an offset, where epochs begin at `starts`.
pub fn epoch_at(starts: &[(i32, Offset)], offset: Offset) -> i32 {
    let next = starts.partition_point(|start| start.1 <= offset);
    next.checked_sub(1).map_or(0, |last| starts[last].0)
}

/// Adds an epoch. Earlier ones from its offset on have no records.
pub fn begin(starts: &mut Vec<(i32, Offset)>, epoch: i32, from: Offset) {
    starts.truncate(starts.partition_point(|start| start.1 < from));
    starts.push((epoch, from));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules of Kafka's `LeaderEpochFileCache.endOffsetFor`, where epoch 0 begins with the log.
    #[test]
    fn an_epoch_ends_where_the_next_one_begins() {
        let epochs = Epochs::new(vec![(2, Offset(10)), (3, Offset(10)), (7, Offset(50))]);
        let end = Offset(60);
        let ends = |epoch| epochs.end_of(epoch, end).map(|(epoch, end)| (epoch, end.0));
        assert_eq!(ends(-1), None);
        assert_eq!(ends(0), Some((0, 10)));
        // One that is not there: the largest one before it, up to the next one.
        assert_eq!(ends(1), Some((0, 10)));
        assert_eq!(ends(2), Some((2, 10)));
        assert_eq!(ends(3), Some((3, 50)));
        assert_eq!(ends(6), Some((3, 50)));
        assert_eq!(ends(7), Some((7, 60)));
        assert_eq!(ends(8), None);
        assert_eq!(epochs.current(), 7);
        let at = [0, 9, 10, 49, 50, 70].map(|offset| epochs.at(Offset(offset)));
        assert_eq!(at, [0, 0, 3, 3, 7, 7]);

        let none = Epochs::default();
        assert_eq!((none.current(), none.at(Offset(5))), (0, 0));
        assert_eq!(none.end_of(0, end), Some((0, end)));
        assert_eq!(none.end_of(1, end), None);
    }

    #[test]
    fn a_new_epoch_replaces_earlier_epochs_without_records() {
        let epochs = Epochs::new(vec![(1, Offset(10)), (2, Offset(30))]);
        epochs.begin(3, Offset(30));
        assert_eq!(*epochs.starts.read(), [(1, Offset(10)), (3, Offset(30))]);
        // The lane was truncated.
        epochs.begin(4, Offset(5));
        assert_eq!(*epochs.starts.read(), [(4, Offset(5))]);
        assert_eq!(epochs.current(), 4);
        assert_eq!(epochs.end_of(3, Offset(9)), Some((0, Offset(5))));
    }
}
