//! Windows that have all of their events, in the items that contain them.
//!
//! Items of many events are retained in one chain, in the order in which they came; a window is a slice of it: where
//! it begins, how many items it has, and between which times. So an item is retained once, however many windows its
//! events are in, and a window costs the same however many items it has. Items that no window to come needs are
//! released from the chain's beginning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};

use millstream_base::Timestamp;

use crate::parts::Parts;

use super::grid::{SlidingGrid, clamp};
use super::spec::Windows;

/// When an event happened.
pub type TimeOf<T> = Arc<dyn Fn(&<T as Parts>::Part<'_>) -> Timestamp + Send + Sync>;

/// A shorter chain is not searched for items that stay in it too long.
const LOOKED_THROUGH_MIN: usize = 64;

/// A window that is over, with all of its events: its [`Parts`] are theirs. They lie where they lay
/// when they came; the window refers to them.
///
/// They come in the order in which their items came.
pub struct WindowEvents<T: Parts> {
    /// When the window starts.
    pub start: Timestamp,
    /// When it ends.
    pub end: Timestamp,
    /// The number of events.
    pub events: u64,
    /// Whether it replaces the result that was given before: late events have changed the window.
    pub is_update: bool,
    times: RangeInclusive<i64>,
    /// The number of its first item in the chain, and how many items of the chain it has.
    first: Arc<Kept<T>>,
    items: usize,
    time: TimeOf<T>,
}

/// A link of the chain.
struct Kept<T> {
    item: Arc<Item<T>>,
    /// Written once, when the next one comes.
    next: OnceLock<Arc<Kept<T>>>,
}

/// A retained item, and the times of its events.
struct Item<T> {
    item: T,
    /// Its earliest and its latest event but for late ones.
    times: RangeInclusive<i64>,
    /// Earlier events were late.
    in_time_from: i64,
    has_late: bool,
}

/// The times of the events of an item.
#[derive(Default)]
pub struct Found {
    /// How many events in time, by pane; a pane comes repeatedly.
    panes: Vec<(i64, u64)>,
    times: Option<RangeInclusive<i64>>,
    late: u64,
}

/// The items of windows that are not closed.
pub struct EventStore<T: Parts> {
    windows: Windows,
    grid: SlidingGrid,
    time: TimeOf<T>,
    watermark: Timestamp,
    /// How many events each pane has; panes of no window to come are left out.
    panes: BTreeMap<i64, u64>,
    /// The sum of these.
    events: u64,
    /// Windows before it are released. More than any window's number when all are.
    next: i128,
    /// Released windows that are not closed, of which something was given.
    given: BTreeSet<i64>,
    /// Released windows that are not closed and have changed since.
    changed: BTreeSet<i64>,
    chain: Option<Ends<T>>,
    /// Items of the chain.
    items: usize,
    /// How many of them there were when all were last looked through.
    items_looked_through: usize,
}

/// The beginning and the end of the chain.
struct Ends<T> {
    first: Arc<Kept<T>>,
    last: Arc<Kept<T>>,
}

impl<T: Parts> WindowEvents<T> {
    fn for_each(&self, mut visit: impl FnMut(&T::Part<'_>)) {
        let mut next = Some(&self.first);
        for _ in 0..self.items {
            let Some(kept) = next else {
                return;
            };
            kept.item
                .for_each_within(&self.times, &self.time, &mut visit);
            next = kept.next.get();
        }
    }
}

impl<T: Parts> Parts for WindowEvents<T> {
    type Part<'a> = T::Part<'a>;

    fn for_each_part(&self, visit: impl FnMut(&T::Part<'_>)) {
        self.for_each(visit);
    }

    fn show(part: &T::Part<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::show(part, f)
    }
}

impl<T: Parts> Clone for WindowEvents<T> {
    fn clone(&self) -> Self {
        WindowEvents {
            start: self.start,
            end: self.end,
            events: self.events,
            is_update: self.is_update,
            times: self.times.clone(),
            first: Arc::clone(&self.first),
            items: self.items,
            time: Arc::clone(&self.time),
        }
    }
}

impl<T: Parts> fmt::Debug for WindowEvents<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowEvents")
            .field("start", &self.start)
            .field("end", &self.end)
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

impl<T: Parts> Item<T> {
    fn for_each_within(
        &self,
        times: &RangeInclusive<i64>,
        time: &TimeOf<T>,
        visit: &mut impl FnMut(&T::Part<'_>),
    ) {
        let (start, end) = (*times.start(), *times.end());
        let (first, last) = (*self.times.start(), *self.times.end());
        if last < start || first > end {
            return;
        }
        if !self.has_late && first >= start && last <= end {
            return self.item.for_each_part(visit);
        }
        let times = start.max(self.in_time_from)..=end;
        self.item.for_each_part(|part: &T::Part<'_>| {
            if times.contains(&time(part).0) {
                visit(part);
            }
        });
    }
}

/// Drops the items one after another, so that a long chain does not overflow the stack.
impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut kept) = next.and_then(Arc::into_inner) {
            next = kept.next.take();
        }
    }
}

impl Found {
    fn add(&mut self, pane: i64, time: i64) {
        match self.panes.last_mut() {
            Some((last, events)) if *last == pane => *events += 1,
            _ => self.panes.push((pane, 1)),
        }
        self.times = Some(match &self.times {
            Some(times) => time.min(*times.start())..=time.max(*times.end()),
            None => time..=time,
        });
    }

    /// Returns the number of late events.
    pub fn late(&self) -> u64 {
        self.late
    }
}

impl<T: Parts> EventStore<T> {
    /// # Panics
    /// When the windows are neither tumbling nor sliding.
    pub fn new(windows: Windows, time: TimeOf<T>) -> Self {
        let size_and_slide_ms = windows.size_and_slide_ms();
        let (size_ms, slide_ms) =
            size_and_slide_ms.expect("events are collected in tumbling or sliding windows alone");
        let grid = SlidingGrid::new(size_ms, slide_ms);
        EventStore {
            windows,
            grid,
            time,
            watermark: Timestamp(i64::MIN),
            panes: BTreeMap::new(),
            events: 0,
            next: i128::from(i64::MIN),
            given: BTreeSet::new(),
            changed: BTreeSet::new(),
            chain: None,
            items: 0,
            items_looked_through: 0,
        }
    }

    pub fn windows(&self) -> Windows {
        self.windows
    }

    pub fn watermark(&self) -> Timestamp {
        self.watermark
    }

    /// Looks at the events of an item, and shows those that are late, with their times. Nothing is changed: this runs
    /// user code.
    pub fn find(&self, item: &T, mut late: impl FnMut(&T::Part<'_>, Timestamp)) -> Found {
        let mut found = Found::default();
        // The pane of the previous event: mostly the next event is in it, too.
        let mut pane = Timestamp(0)..Timestamp(0);
        let (mut number, mut is_late) = (0, false);
        item.for_each_part(|part: &T::Part<'_>| {
            let time = (self.time)(part);
            if !pane.contains(&time) {
                pane = self.windows.pane_of(time);
                number = self.grid.panes.index(time.0);
                is_late = self.windows.is_late(time, self.watermark);
            }
            if is_late {
                found.late += 1;
                late(part, time);
            } else {
                found.add(number, time.0);
            }
        });
        found
    }

    /// Keeps an item in which this was found just now. All windows that are due have been released.
    pub fn keep(&mut self, item: T, found: Found) {
        let Some(times) = found.times else {
            return;
        };
        for (pane, events) in found.panes {
            *self.panes.entry(pane).or_default() += events;
            self.events += events;
            let windows = self.grid.windows_after(pane, 0, self.closed());
            let released = windows.into_iter().flatten();
            let is_released = |window: &i64| i128::from(*window) < self.next;
            self.changed.extend(released.take_while(is_released));
        }
        self.look_through();
        self.append(Arc::new(Item {
            item,
            times,
            in_time_from: clamp(self.grid.start(self.grid.first_after(self.closed()))),
            has_late: found.late > 0,
        }));
    }

    /// Time has come so far; it does not go back.
    pub fn advance(&mut self, watermark: Timestamp) {
        self.watermark = self.watermark.max(watermark);
    }

    /// The next window that is over, or has changed since it was given.
    pub fn release(&mut self) -> Option<WindowEvents<T>> {
        if let Some(window) = self.changed.pop_first() {
            return self.window(window);
        }
        if let Some(window) = self.first_window(self.next)
            && clamp(self.grid.end(window)) <= self.watermark.0
        {
            self.next = i128::from(window) + 1;
            let released = self.window(window);
            self.let_go();
            return released;
        }
        let first_after = self.grid.first_after(self.watermark.0);
        self.next = self.next.max(first_after.into());
        self.let_go();
        None
    }

    /// Whether a window that was given has changed since.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// A window with all of its events so far.
    fn window(&mut self, window: i64) -> Option<WindowEvents<T>> {
        let first = Arc::clone(&self.chain.as_ref()?.first);
        let end = self.grid.end(window);
        let first_pane = clamp(self.grid.first_pane(window.into()));
        let end_pane = self.grid.panes.index(clamp(end - 1));
        let events = self.panes.range(first_pane..=end_pane);
        Some(WindowEvents {
            start: Timestamp(clamp(self.grid.start(window))),
            end: Timestamp(clamp(end)),
            events: events.map(|(_, events)| events).sum(),
            is_update: !self.given.insert(window),
            times: clamp(self.grid.start(window))..=clamp(end - 1),
            first,
            items: self.items,
            time: Arc::clone(&self.time),
        })
    }

    /// Items that are retained.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Events of windows that are not closed.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Windows that end by then take no more events.
    fn closed(&self) -> i64 {
        self.windows.lateness.closed_by(self.watermark.0)
    }

    /// The first window from `from` on that has events.
    fn first_window(&self, from: i128) -> Option<i64> {
        let first_pane = clamp(self.grid.first_pane(from));
        let (pane, _) = self.panes.range(first_pane..).next()?;
        let window = i128::from(self.grid.first_window_of(*pane));
        i64::try_from(from.max(window)).ok()
    }

    /// Windows before it are released and closed.
    fn first_kept(&self) -> i128 {
        match self.closed() {
            i64::MAX => self.next,
            closed => self.next.min(self.grid.first_after(closed).into()),
        }
    }

    /// The time before which no item is needed; `None` if no item is needed.
    fn needed_from(&self) -> Option<i64> {
        let first = self.first_window(self.first_kept())?;
        Some(clamp(self.grid.start(first)))
    }

    /// Releases items that no window to come needs, nor one that may come again.
    fn let_go(&mut self) {
        let first_kept = self.first_kept();
        while let Some(window) = self.given.first()
            && i128::from(*window) < first_kept
        {
            self.given.pop_first();
        }
        let first_pane = self.grid.first_pane(first_kept);
        while let Some(pane) = self.panes.first_entry()
            && i128::from(*pane.key()) < first_pane
        {
            self.events -= pane.remove();
        }
        let needed_from = self.needed_from();
        while let Some(ends) = &mut self.chain
            && needed_from.is_none_or(|from| *ends.first.item.times.end() < from)
        {
            self.items -= 1;
            match ends.first.next.get().cloned() {
                Some(next) => ends.first = next,
                None => self.chain = None,
            }
        }
    }

    /// An item whose events lie far apart holds up the items behind it in the chain: when the chain has doubled, it
    /// is made anew of the items that are needed.
    fn look_through(&mut self) {
        if self.items < LOOKED_THROUGH_MIN.max(2 * self.items_looked_through) {
            return;
        }
        let needed_from = self.needed_from();
        let is_needed = |item: &Item<T>| needed_from.is_some_and(|from| *item.times.end() >= from);
        let mut next = self.chain.take().map(|ends| ends.first);
        self.items = 0;
        while let Some(kept) = next {
            if is_needed(&kept.item) {
                self.append(Arc::clone(&kept.item));
            }
            next = kept.next.get().cloned();
        }
        self.items_looked_through = self.items;
    }

    fn append(&mut self, item: Arc<Item<T>>) {
        let kept = Arc::new(Kept {
            item,
            next: OnceLock::new(),
        });
        self.items += 1;
        match &mut self.chain {
            Some(ends) => {
                let is_new = ends.last.next.set(Arc::clone(&kept)).is_ok();
                assert!(is_new, "nothing is behind the last item");
                ends.last = kept;
            }
            None => {
                self.chain = Some(Ends {
                    first: Arc::clone(&kept),
                    last: kept,
                });
            }
        }
    }
}
