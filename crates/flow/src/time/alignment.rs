//! Alignment of sources: a source that is too far ahead of others in event time is held, so that few windows are open
//! between them.
//!
//! Sources that lead to the same windows, on all ranks, are a *group* and are aligned. Each notes its watermark. The flow
//! does not poll a source whose watermark is too far ahead of the least of the others. The watermarks of other ranks
//! arrive between the items that they send.
//!
//! No source waits for ever: the slowest is ahead of no other, so it is never held. Others continue when it has
//! advanced, is idle or has ended. A worker that has polled it tries every stage before it sleeps, and so finds the
//! sources that are no longer held.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use millstream_base::Timestamp;

/// An input that holds back no other: it is idle, or has ended.
const OVER: i64 = i64::MAX;

/// An input without a watermark yet.
const UNKNOWN: i64 = i64::MIN;

/// A step is this fraction of the distance that sources may be ahead, since the watermark that other ranks know may be
/// older by one step.
const STEPS: i64 = 4;

/// The distance after which windows emit a watermark to other ranks although it closes none of them. A clone is another
/// handle of the same step.
#[derive(Clone)]
pub struct Step(Arc<AtomicI64>);

impl Default for Step {
    fn default() -> Self {
        Step(Arc::new(AtomicI64::new(i64::MAX)))
    }
}

impl Step {
    /// Returns whether the watermark `to` must be sent to other ranks, which know `from`.
    pub fn is_reached(&self, from: Timestamp, to: Timestamp) -> bool {
        to.0.saturating_sub(from.0) >= self.0.load(Ordering::Relaxed)
    }

    /// Lessens the step for a source that may be at most `ahead_max_ms` ahead of others.
    pub fn lessen(&self, ahead_max_ms: i64) {
        let step_ms = (ahead_max_ms / STEPS).max(1);
        self.0.fetch_min(step_ms, Ordering::Relaxed);
    }
}

/// Inputs that lead to the same windows.
struct Group {
    /// The watermark of each, or [`OVER`], or [`UNKNOWN`]. The worker in the input writes it.
    times: Vec<AtomicI64>,
    /// The least watermark of any. An input without a watermark counts as being there.
    beginning: AtomicI64,
}

/// A member of a group: one input.
#[derive(Clone)]
pub struct Aligned {
    group: Arc<Group>,
    member: usize,
}

impl Aligned {
    /// Makes a group of `count` inputs and returns its members.
    pub fn group(count: usize) -> impl Iterator<Item = Aligned> {
        let group = Arc::new(Group {
            times: (0..count).map(|_| AtomicI64::new(UNKNOWN)).collect(),
            beginning: AtomicI64::new(OVER),
        });
        (0..count).map(move |member| Aligned {
            group: Arc::clone(&group),
            member,
        })
    }

    /// Notes the input's watermark.
    pub fn reach(&self, Timestamp(time): Timestamp) {
        if time == UNKNOWN {
            return;
        }
        let time = time.min(OVER - 1);
        self.group.beginning.fetch_min(time, Ordering::Relaxed);
        self.group.times[self.member].store(time, Ordering::Relaxed);
    }

    /// Notes that the input is idle, or has ended.
    pub fn leave(&self) {
        self.group.times[self.member].store(OVER, Ordering::Relaxed);
    }

    /// Returns whether the input is more than `ahead_max_ms` ahead of another.
    pub fn is_ahead(&self, ahead_max_ms: i64) -> bool {
        let own = self.group.times[self.member].load(Ordering::Relaxed);
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
