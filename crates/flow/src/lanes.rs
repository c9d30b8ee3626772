//! The lanes of a source: the partitions of a stream, for example. The items of a lane are in an order of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use parking_lot::Mutex;

/// Names a lane among those of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u64);

/// How many lanes a source has: see [`Source::lanes`](crate::Source::lanes).
#[derive(Debug)]
pub enum SourceLanes<'a, T> {
    /// One: all items are in one order.
    One,
    /// Several, of which one may be far ahead of another.
    Many {
        /// The lane of an item.
        lane_of: fn(&T) -> LaneId,
        /// How far the source has read each.
        lanes: &'a Lanes,
    },
}

/// How far a source has read each of its lanes, for event time to go by: the watermark waits for a lane that held
/// records when the source found it, until the source has given all of those. A lane that was empty then is idle: the
/// watermark waits for it from its first item on.
///
/// A source that finds lanes while it runs adds them here, before it gives items that it read later. A clone is
/// another handle of the same lanes; sources that share the work on their lanes have one each.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    lanes: Arc<Mutex<BTreeMap<LaneId, Lane>>>,
}

#[derive(Debug)]
struct Lane {
    /// The source still has to give what lies before. None from the time on that it has.
    end: Option<Offset>,
    /// The latest time of an item that the source's stage has worked on.
    latest: Timestamp,
    /// When that was, by the flow's monotonic clock; none before this run.
    seen_at: Option<Duration>,
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            end: None,
            latest: Timestamp(i64::MIN),
            seen_at: None,
        }
    }
}

impl Lane {
    fn is_waited_for(&self, now: Duration, idle_after: Duration) -> bool {
        let is_live = |seen_at| now.saturating_sub(seen_at) < idle_after;
        self.end.is_some() || self.seen_at.is_some_and(is_live)
    }
}

impl Lanes {
    /// Adds a lane that the source reads from `next` on, and that ends at `end` now. For a lane that it has already, the
    /// source goes on from another place, or has found more in it.
    pub fn add(&self, lane: LaneId, next: Offset, end: Offset) {
        let end = (next < end).then_some(end);
        self.lanes.lock().entry(lane).or_default().end = end;
    }

    /// The source has given all items of a lane before `next`.
    pub fn pass(&self, lane: LaneId, next: Offset) {
        if let Some(lane) = self.lanes.lock().get_mut(&lane) {
            lane.end.take_if(|end| *end <= next);
        }
    }

    /// The source has given all items of all lanes.
    pub fn pass_all(&self) {
        for lane in self.lanes.lock().values_mut() {
            lane.end = None;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.lock().is_empty()
    }

    /// Whether the source still has to give items of a lane that were there when it found the lane.
    pub(crate) fn is_behind(&self) -> bool {
        self.lanes.lock().values().any(|lane| lane.end.is_some())
    }

    /// The source gives something at `now`. After a stall it may give the items of one lane long before those of
    /// another: of a silence of all lanes no more than half of the time counts after which a lane is idle.
    pub(crate) fn go_on(&self, now: Duration, idle_after: Duration) {
        let mut lanes = self.lanes.lock();
        let last = lanes.values().filter_map(|lane| lane.seen_at).max();
        let silence = last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let uncounted = silence.saturating_sub(idle_after / 2);
        for seen_at in lanes.values_mut().filter_map(|lane| lane.seen_at.as_mut()) {
            *seen_at += uncounted;
        }
    }

    /// Lanes of which the source still has to give items that were there when it found them.
    pub(crate) fn behind(&self) -> usize {
        let lanes = self.lanes.lock();
        lanes.values().filter(|lane| lane.end.is_some()).count()
    }

    /// The stage has worked on an item of this time.
    pub(crate) fn see(&self, lane: LaneId, latest: Timestamp, seen_at: Option<Duration>) {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(lane).or_default();
        lane.latest = lane.latest.max(latest);
        lane.seen_at = lane.seen_at.max(seen_at);
    }

    /// How far the lane has come that is furthest behind of those that are waited for; if none is, how far the first of
    /// all has come.
    pub(crate) fn latest(&self, now: Duration, idle_after: Duration) -> Timestamp {
        let lanes = self.lanes.lock();
        let waited_for = lanes
            .values()
            .filter(|lane| lane.is_waited_for(now, idle_after));
        let least = waited_for.map(|lane| lane.latest).min();
        let furthest = || lanes.values().map(|lane| lane.latest).max();
        least.or_else(furthest).unwrap_or(Timestamp(i64::MIN))
    }
}
