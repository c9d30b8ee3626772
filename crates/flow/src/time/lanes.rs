//! The lanes of a source: the partitions of a stream, for example. The items of a lane are in an order of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use parking_lot::{Mutex, MutexGuard};

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
/// A source that finds lanes while it runs adds them here, before it gives items that it read later. It asks before it
/// gives items of a lane whether that [is held](Lanes::is_held), since it is too far ahead of the others. A clone is
/// another handle of the same lanes; sources that share the work on their lanes have one each.
#[derive(Debug, Clone, Default)]
pub struct Lanes {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug, Default)]
struct Shared {
    lanes: BTreeMap<LaneId, Lane>,
    /// The earliest time that a lane was seen at: a lane that has given nothing yet is taken to be there.
    beginning: Option<Timestamp>,
    /// How lanes are aligned; none where they may be apart as far as they like.
    alignment: Option<Alignment>,
    /// A lane that is further ahead than this is held. `None` until it is asked for, and whenever it may have
    /// changed.
    held_behind: Option<Timestamp>,
}

/// The settings of the alignment of a source's lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Alignment {
    /// How far ahead of another a lane may be.
    pub skew_max_ms: i64,
    /// A lane that was silent for so long holds no other.
    pub idle_after: Duration,
    /// The flow's monotonic clock, as of the last look.
    pub now: Duration,
}

#[derive(Debug)]
struct Lane {
    /// The source still has to give the items before this offset. `None` once it has.
    end: Option<Offset>,
    /// The source will never give anything more of it.
    has_ended: bool,
    /// The latest time of an item that the source's stage has worked on.
    latest: Timestamp,
    /// When that was, by the flow's monotonic clock; none before this run.
    seen_at: Option<Duration>,
}

impl Default for Lane {
    fn default() -> Self {
        Lane {
            end: None,
            has_ended: false,
            latest: Timestamp(i64::MIN),
            seen_at: None,
        }
    }
}

impl Lane {
    fn is_waited_for(&self, now: Duration, idle_after: Duration) -> bool {
        let is_live = |seen_at| now.saturating_sub(seen_at) < idle_after;
        !self.has_ended && (self.end.is_some() || self.seen_at.is_some_and(is_live))
    }
}

impl Lanes {
    /// Adds a lane that the source reads from `next` on, and that ends at `end` now. For a lane that it has already,
    /// the source continues at another offset, or has found more in it.
    pub fn add(&self, lane: LaneId, next: Offset, end: Offset) {
        let mut shared = self.change();
        let lane = shared.lanes.entry(lane).or_default();
        lane.end = (next < end).then_some(end);
        lane.has_ended = false;
    }

    /// The source has given all items of a lane before `next`.
    pub fn pass(&self, lane: LaneId, next: Offset) {
        if let Some(lane) = self.change().lanes.get_mut(&lane) {
            lane.end.take_if(|end| *end <= next);
        }
    }

    /// The source has given all items of all lanes, but for those that are held. Returns whether that is new of some:
    /// others may be held no more then.
    pub fn pass_all(&self) -> bool {
        self.change_unheld(|lane| lane.end.take().is_some())
    }

    /// The source will give nothing more, but for lanes that are held. Returns whether that is new of some, as with
    /// [`pass_all`](Self::pass_all).
    pub fn end_all(&self) -> bool {
        self.change_unheld(|lane| {
            lane.end = None;
            !std::mem::replace(&mut lane.has_ended, true)
        })
    }

    /// The source will give nothing more of a lane: no other lane waits for it.
    pub fn end(&self, lane: LaneId) {
        if let Some(lane) = self.change().lanes.get_mut(&lane) {
            lane.end = None;
            lane.has_ended = true;
        }
    }

    /// Returns whether a lane is further ahead in event time than [`skew_max`](crate::Watermarks::skew_max) of
    /// another that the watermark waits for. The source then gives none of its items, and looks again whenever it is
    /// polled. If it has items of such lanes alone, it is idle; the flow polls it again when others have caught up.
    pub fn is_held(&self, lane: LaneId) -> bool {
        let mut shared = self.shared.lock();
        let held_behind = shared.held_behind();
        shared
            .lanes
            .get(&lane)
            .is_some_and(|lane| lane.latest > held_behind)
    }

    /// The source holds items before `next` of a lane that [is held](Self::is_held): it has to give them once the
    /// others have caught up, so the lane is not idle meanwhile.
    pub fn keep(&self, lane: LaneId, next: Offset) {
        let mut shared = self.change();
        let lane = shared.lanes.entry(lane).or_default();
        lane.end = lane.end.max(Some(next));
    }

    /// Changes all lanes that are not held; returns whether `change` did so to one.
    fn change_unheld(&self, mut change: impl FnMut(&mut Lane) -> bool) -> bool {
        let mut shared = self.shared.lock();
        let held_behind = shared.held_behind();
        let mut has_changed = false;
        for lane in shared.lanes.values_mut() {
            has_changed |= lane.latest <= held_behind && change(lane);
        }
        shared.held_behind = None;
        has_changed
    }

    /// Locks the lanes for a change of how far they are.
    fn change(&self) -> MutexGuard<'_, Shared> {
        let mut shared = self.shared.lock();
        shared.held_behind = None;
        shared
    }

    /// Sets how the lanes are aligned, before the source is polled.
    pub(crate) fn align(&self, alignment: Alignment) {
        self.change().alignment = Some(alignment);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shared.lock().lanes.is_empty()
    }

    /// Whether the source still has to give items of a lane that were there when it found the lane.
    pub(crate) fn is_behind(&self) -> bool {
        let shared = self.shared.lock();
        shared.lanes.values().any(|lane| lane.end.is_some())
    }

    /// When the next of the lanes will have been silent for `idle_after`: lanes that wait for it are held no longer.
    pub(crate) fn idle_at(&self, now: Duration, idle_after: Duration) -> Option<Duration> {
        let shared = self.shared.lock();
        let lanes = shared.lanes.values().filter(|lane| lane.end.is_none());
        let idle_at = lanes.filter_map(|lane| Some(lane.seen_at?.saturating_add(idle_after)));
        idle_at.filter(|at| *at > now).min()
    }

    /// The source gives something at `now`. After a stall it may give the items of one lane long before those of
    /// another: of a silence of all lanes no more than half of the time counts after which a lane is idle.
    pub(crate) fn go_on(&self, now: Duration, idle_after: Duration) {
        let mut shared = self.change();
        let lanes = &mut shared.lanes;
        let last = lanes.values().filter_map(|lane| lane.seen_at).max();
        let silence = last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let uncounted = silence.saturating_sub(idle_after / 2);
        for seen_at in lanes.values_mut().filter_map(|lane| lane.seen_at.as_mut()) {
            *seen_at += uncounted;
        }
    }

    /// Lanes of which the source still has to give items that were there when it found them.
    pub(crate) fn behind(&self) -> usize {
        let shared = self.shared.lock();
        let lanes = shared.lanes.values();
        lanes.filter(|lane| lane.end.is_some()).count()
    }

    /// The stage has worked on an item of this time.
    pub(crate) fn see(&self, lane: LaneId, latest: Timestamp, seen_at: Option<Duration>) {
        let mut shared = self.change();
        let beginning = shared.beginning.unwrap_or(latest).min(latest);
        shared.beginning = Some(beginning);
        let lane = shared.lanes.entry(lane).or_default();
        lane.latest = lane.latest.max(latest);
        lane.seen_at = lane.seen_at.max(seen_at);
    }

    /// How far the lane has come that is furthest behind of those that are waited for; if none is, how far the first of
    /// all has come.
    pub(crate) fn latest(&self, now: Duration, idle_after: Duration) -> Timestamp {
        let shared = self.shared.lock();
        let waited_for = shared.waited_for(now, idle_after);
        let least = waited_for.map(|lane| lane.latest).min();
        let furthest = || shared.lanes.values().map(|lane| lane.latest).max();
        least.or_else(furthest).unwrap_or(Timestamp(i64::MIN))
    }
}

impl Shared {
    fn waited_for(&self, now: Duration, idle_after: Duration) -> impl Iterator<Item = &Lane> {
        let lanes = self.lanes.values();
        lanes.filter(move |lane| lane.is_waited_for(now, idle_after))
    }

    /// How far a lane may come before it is held. None waits for ever: the one that is furthest behind is never held.
    fn held_behind(&mut self) -> Timestamp {
        const NONE: Timestamp = Timestamp(i64::MAX);
        let (Some(alignment), Some(beginning)) = (self.alignment, self.beginning) else {
            return NONE;
        };
        if let Some(held_behind) = self.held_behind {
            return held_behind;
        }
        let waited_for = self.waited_for(alignment.now, alignment.idle_after);
        let least = waited_for.map(|lane| lane.latest.max(beginning)).min();
        let held_behind = least.map_or(NONE, |Timestamp(least)| {
            Timestamp(least.saturating_add(alignment.skew_max_ms))
        });
        *self.held_behind.insert(held_behind)
    }
}
