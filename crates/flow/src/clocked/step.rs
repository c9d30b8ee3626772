//! The work of processing-time windows for each item and timer.

use millstream_base::Timestamp;

use super::{ClockPane, ClockRecord};
use crate::stage::chain::Emit;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::timers::{Fired, TimeDomain, TimersOf};
use crate::state::values::Value;
use crate::windows::{Aggregate, ClockWindows, Combine, Key, SlidingGrid, WindowResult, clamp};

/// The end of a bounded input, as a timer of event time.
const END: Timestamp = Timestamp(i64::MAX);

type Records<'a, K, S> = OrderedMapOf<'a, K, Option<i64>, ClockRecord<S>>;

type EmitWindow<'a, K, A> = Emit<'a, WindowResult<K, <A as Combine>::Out>>;

/// The functions of processing-time windows: see [`Keyed::clock_windows`](crate::Keyed::clock_windows).
pub(crate) struct ClockStep<A> {
    windows: ClockWindows,
    aggregate: A,
}

/// A window that ends.
struct Ended<S> {
    start: i64,
    end: i64,
    pane: ClockPane<S>,
}

impl<A: Combine> ClockStep<A> {
    pub fn new(windows: ClockWindows, aggregate: A) -> Self {
        ClockStep { windows, aggregate }
    }

    /// Adds an item to the windows of its key at this moment.
    pub fn on_item<K, T>(
        &self,
        key: &K,
        records: &mut Records<'_, K, A::State>,
        timers: &mut TimersOf<'_, K, ()>,
        item: &T,
        emit: &mut EmitWindow<'_, K, A>,
    ) where
        K: Key,
        T: ?Sized,
        A: Aggregate<T>,
    {
        let now = timers.now().0;
        let (field, end) = match self.windows {
            ClockWindows::Grid(grid) => {
                let pane = grid.panes.start(grid.panes.index(now));
                (Some(pane), end_of(grid, grid.first_after(now)))
            }
            ClockWindows::Session { gap_ms } => {
                let open = last_pane(records);
                let goes_on = open.filter(|(_, last)| now < last.saturating_add(gap_ms));
                match (goes_on, open) {
                    (Some((first, _)), _) => (Some(first), i64::MAX),
                    (None, Some(_)) => {
                        // Its timer is due, and has not fired yet.
                        self.release(key, records, timers, emit);
                        (Some(now), now.saturating_add(gap_ms))
                    }
                    (None, None) => (Some(now), now.saturating_add(gap_ms)),
                }
            }
        };
        if let Some(ClockRecord::Pane(pane)) = records.get_mut(&field) {
            return pane.add(&self.aggregate, now, item);
        }
        let mut pane = ClockPane::empty(&self.aggregate);
        pane.add(&self.aggregate, now, item);
        records.insert(&field, ClockRecord::Pane(pane));
        let next = next_of(records);
        if next.is_none_or(|next| end < next) {
            set_next(records, timers, next, Some(end));
        }
    }

    /// Releases the next window of a key when its end has come, or at the end of the input.
    pub fn on_timer<K: Key>(
        &self,
        key: &K,
        records: &mut Records<'_, K, A::State>,
        timers: &mut TimersOf<'_, K, ()>,
        fired: &Fired<()>,
        emit: &mut EmitWindow<'_, K, A>,
    ) {
        match fired.domain {
            TimeDomain::Clock if next_of(records) != Some(fired.time.0) => {}
            TimeDomain::Clock => self.release(key, records, timers, emit),
            TimeDomain::Event => {
                self.release(key, records, timers, emit);
                // It fires again at once: one window in a call.
                if next_of(records).is_some() {
                    timers.set_event(END, &());
                }
            }
        }
    }

    /// Emits the next window, unless it goes on, and sets the timer of the one behind it.
    fn release<K: Key>(
        &self,
        key: &K,
        records: &mut Records<'_, K, A::State>,
        timers: &mut TimersOf<'_, K, ()>,
        emit: &mut EmitWindow<'_, K, A>,
    ) {
        let Some(next) = next_of(records) else {
            return;
        };
        let is_over = timers.watermark() == END;
        let (ended, behind) = match self.windows {
            ClockWindows::Grid(grid) => self.take_window(records, grid, next),
            ClockWindows::Session { gap_ms } => {
                let until = if is_over { i64::MAX } else { timers.now().0 };
                self.take_session(records, gap_ms, until)
            }
        };
        set_next(records, timers, Some(next), behind);
        if let Some(Ended { start, end, pane }) = ended {
            emit(&WindowResult {
                key: key.clone(),
                start: Timestamp(start),
                end: Timestamp(end),
                value: self.aggregate.result(&pane.state, pane.events),
                events: pane.events,
                time_max: Timestamp(pane.time_max),
                is_update: false,
            });
        }
    }

    /// Takes the window that ends at `next`, with the end of the one behind it. Panes that are in that one stay.
    fn take_window<K: Key>(
        &self,
        records: &mut Records<'_, K, A::State>,
        grid: SlidingGrid,
        next: i64,
    ) -> (Option<Ended<A::State>>, Option<i64>) {
        let window = grid.first_after(next.saturating_sub(1));
        let (start, end) = (clamp(grid.start(window)), end_of(grid, window));
        let behind = |records: &Records<'_, K, A::State>| {
            let (first, _) = first_pane(records)?;
            let pane = grid.panes.index(first);
            let next = window.saturating_add(1).max(grid.first_window_of(pane));
            Some(end_of(grid, next))
        };
        let Some((first, _)) = first_pane(records) else {
            return (None, None);
        };
        let first = grid.panes.index(first);
        if end != next || grid.last_window_of(first) < window {
            // A run with other windows has set it: none of these was emitted yet.
            return (None, Some(end_of(grid, grid.first_window_of(first))));
        }
        let mut all: Option<ClockPane<A::State>> = None;
        let mut over = Vec::new();
        for (field, record) in records.range(Some(i64::MIN)..) {
            let (Some(first), ClockRecord::Pane(pane)) = (field, record) else {
                continue;
            };
            let index = grid.panes.index(*first);
            // A window that ends with time has its last moment.
            if *first >= end && end != i64::MAX {
                break;
            }
            // No further window ends then.
            if grid.last_window_of(index) <= window || end == i64::MAX {
                over.push(*field);
            }
            if *first >= start {
                match &mut all {
                    Some(all) => all.merge(&self.aggregate, pane),
                    None => all = Some(pane.clone()),
                }
            }
        }
        for field in &over {
            records.remove(field);
        }
        (all.map(|pane| Ended { start, end, pane }), behind(records))
    }

    /// Takes the first session if it has ended at `until`, with the time at which to look at the next one.
    fn take_session<K: Key>(
        &self,
        records: &mut Records<'_, K, A::State>,
        gap_ms: i64,
        until: i64,
    ) -> (Option<Ended<A::State>>, Option<i64>) {
        let Some((start, last)) = first_pane(records) else {
            return (None, None);
        };
        let end = last.saturating_add(gap_ms);
        if end > until {
            return (None, Some(end));
        }
        let ended = match records.remove(&Some(start)) {
            Some(ClockRecord::Pane(pane)) => Some(Ended { start, end, pane }),
            _ => None,
        };
        let behind = first_pane(records).map(|(_, last)| last.saturating_add(gap_ms));
        (ended, behind)
    }
}

/// Returns the end of the next window of a key.
fn next_of<K: Key, S: Value>(records: &Records<'_, K, S>) -> Option<i64> {
    match records.get(&None) {
        Some(ClockRecord::Next(next)) => Some(*next),
        _ => None,
    }
}

/// Sets the end of the next window, and the timers of it and of the end of the input; `before` is the former one.
fn set_next<K: Key, S: Value>(
    records: &mut Records<'_, K, S>,
    timers: &mut TimersOf<'_, K, ()>,
    before: Option<i64>,
    next: Option<i64>,
) {
    if let Some(before) = before {
        timers.cancel_clock(Timestamp(before), &());
    }
    match next {
        Some(next) => {
            records.insert(&None, ClockRecord::Next(next));
            timers.set_clock(Timestamp(next), &());
            if before.is_none() {
                timers.set_event(END, &());
            }
        }
        None => {
            records.remove(&None);
            timers.cancel_event(END, &());
        }
    }
}

/// Returns the start of a record, and the largest time of its items.
fn times<S>((field, record): (&Option<i64>, &ClockRecord<S>)) -> Option<(i64, i64)> {
    match (field, record) {
        (Some(start), ClockRecord::Pane(pane)) => Some((*start, pane.time_max)),
        _ => None,
    }
}

/// Returns the times of the first pane or session.
fn first_pane<K: Key, S: Value>(records: &Records<'_, K, S>) -> Option<(i64, i64)> {
    records.range(Some(i64::MIN)..).find_map(times)
}

/// Returns the times of the last pane or session.
fn last_pane<K: Key, S: Value>(records: &Records<'_, K, S>) -> Option<(i64, i64)> {
    records.range(Some(i64::MIN)..).rev().find_map(times)
}

fn end_of(grid: SlidingGrid, window: i64) -> i64 {
    clamp(grid.end(window))
}
