//! Sources that are further ahead in event time than others are held back, so that the windows between
//! them are few.
//!
//! Sources that lead to the same windows, on all ranks, are a *group* and are aligned. Each notes its watermark; one
//! that is further ahead of the least of the others than it may be is not asked for more. The watermarks of other
//! ranks come in between the items that they send.
//!
//! None waits for ever: the one that is furthest behind is ahead of no other, so it is never held. Others move on as
//! it does, or when it is idle or has ended. A worker that has moved it tries every stage before it sleeps, and so
//! finds a source that is held no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millstream_base::Timestamp;

/// An input that holds back no other: it is idle, or has ended.
const OVER: i64 = i64::MAX;

/// An input without a watermark yet.
const UNKNOWN: i64 = i64::MIN;

/// A step is this part of how far sources may be ahead: other ranks may know a watermark that is older by that much.
const STEPS: i64 = 4;

/// How far event time advances before windows emit it to other ranks, though it closes none of them. A clone is
/// another handle of the same.
#[derive(Clone)]
pub struct Step(Arc<AtomicI64>);

impl Default for Step {
    fn default() -> Self {
        Step(Arc::new(AtomicI64::new(i64::MAX)))
    }
}

impl Step {
    /// Whether other ranks, which know `from`, are to know `to`.
    pub fn is_reached(&self, from: Timestamp, to: Timestamp) -> bool {
        to.0.saturating_sub(from.0) >= self.0.load(Ordering::Relaxed)
    }

    /// Lessens it where a source may be no more than `ahead_max_ms` ahead of others.
    pub fn lessen(&self, ahead_max_ms: i64) {
        let step_ms = (ahead_max_ms / STEPS).max(1);
        self.0.fetch_min(step_ms, Ordering::Relaxed);
    }
}

/// Inputs that lead to the same windows.
struct Group {
    /// How far each has come, [`OVER`] or [`UNKNOWN`]. Each is written by the worker that is in the input.
    times: Vec<AtomicI64>,
    /// The least watermark of any: an input without one is taken to be there.
    beginning: AtomicI64,
}

/// An input's place in its group.
#[derive(Clone)]
pub struct Aligned {
    group: Arc<Group>,
    place: usize,
}

impl Aligned {
    /// Makes the places of `count` inputs, which are aligned with each other.
    pub fn group(count: usize) -> impl Iterator<Item = Aligned> {
        let group = Arc::new(Group {
            times: (0..count).map(|_| AtomicI64::new(UNKNOWN)).collect(),
            beginning: AtomicI64::new(OVER),
        });
        (0..count).map(move |place| Aligned {
            group: Arc::clone(&group),
            place,
        })
    }

    /// The input has come so far.
    pub fn reach(&self, Timestamp(time): Timestamp) {
        if time == UNKNOWN {
            return;
        }
        let time = time.min(OVER - 1);
        self.group.beginning.fetch_min(time, Ordering::Relaxed);
        self.group.times[self.place].store(time, Ordering::Relaxed);
    }

    /// The input is idle, or has ended.
    pub fn leave(&self) {
        self.group.times[self.place].store(OVER, Ordering::Relaxed);
    }

    /// Whether the input is more than `ahead_max_ms` ahead of another.
    pub fn is_ahead(&self, ahead_max_ms: i64) -> bool {
        let own = self.group.times[self.place].load(Ordering::Relaxed);
        if own == OVER || own == UNKNOWN {
            return false;
        }
        let beginning = self.group.beginning.load(Ordering::Relaxed);
        let times = self.group.times.iter();
        let times = times.map(|time| time.load(Ordering::Relaxed));
        let least = times.fold(own, |least, time| match time {
            UNKNOWN => least.min(beginning),
            time => least.min(time),
        });
        own.saturating_sub(least) > ahead_max_ms
    }
}
