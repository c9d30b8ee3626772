//! Tumbling windows in event time.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use hashbrown::HashMap;
use millstream_base::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde_json::{Value, json};

use crate::attempt::{Attempt, Label};
use crate::error::Failure;
use crate::state::StateReader;
use crate::terminal::{InputEnd, Outbox, Slice, Terminal};

/// Windows of equal size, one after another, aligned to 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TumblingWindows {
    /// Length of a window; at least 1.
    pub size_ms: i64,
    /// How far an item's time may lie behind the newest one's: a window closes when an item
    /// arrives whose time is this much behind the window's end.
    pub lateness_ms: i64,
}

impl TumblingWindows {
    fn start_of(self, time: Timestamp) -> i64 {
        time.0.saturating_sub(time.0.rem_euclid(self.size_ms))
    }
}

/// What windows may be kept by: as text it is the key under which state is read.
pub trait Key: Hash + Eq + Clone + Display + FromStr + Send + Sync + 'static {}

impl<K: Hash + Eq + Clone + Display + FromStr + Send + Sync + 'static> Key for K {}

/// The aggregate of a key over one window, given when the window closes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WindowResult<K, A> {
    /// The key.
    pub key: K,
    /// First moment of the window.
    pub window_start: Timestamp,
    /// What the items add up to.
    pub value: A,
    /// How many items that were.
    pub events: u64,
    /// The items came after the window had closed: add this to the earlier result.
    pub is_late: bool,
}

/// What all windows of a state element have taken in: `open_events + closed_events` is every item
/// that reached them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct WindowTotals {
    /// Windows that take items; a window counts once for each of its keys.
    pub open_windows: u64,
    /// Items in them.
    pub open_events: u64,
    /// Results given.
    pub closed_windows: u64,
    /// Items in them.
    pub closed_events: u64,
    /// Those of the items that came when their window had closed already.
    pub late_events: u64,
}

/// The windows of a keyed state element; a clone is another handle of the same element.
pub struct Windowed<K, A> {
    pub(crate) windows: TumblingWindows,
    partitions: Arc<Mutex<Vec<SharedPartition<K, A>>>>,
}

/// Locked by the stage for the time of a slice, and by readers of the state.
type SharedPartition<K, A> = Arc<Mutex<Partition<K, A>>>;

impl<K, A> Clone for Windowed<K, A> {
    fn clone(&self) -> Self {
        Windowed {
            windows: self.windows,
            partitions: Arc::clone(&self.partitions),
        }
    }
}

impl<K: Key, A: Default + Clone + Serialize + Send + 'static> Windowed<K, A> {
    pub(crate) fn new(windows: TumblingWindows) -> Self {
        assert!(windows.size_ms >= 1, "a window lasts at least 1 ms");
        Windowed {
            windows,
            partitions: Arc::default(),
        }
    }

    /// The newest window of a key, open or not.
    pub fn newest(&self, key: &K) -> Option<WindowResult<K, A>> {
        let partitions = self.partitions.lock();
        partitions.iter().find_map(|part| part.lock().newest(key))
    }

    /// The sums at this moment.
    pub fn totals(&self) -> WindowTotals {
        let mut sum = WindowTotals::default();
        for part in self.partitions.lock().iter() {
            let part = part.lock();
            sum.closed_windows += part.closed.closed_windows;
            sum.closed_events += part.closed.closed_events;
            sum.late_events += part.closed.late_events;
            for cell in part.open.values().flat_map(|window| window.values()) {
                sum.open_windows += 1;
                sum.open_events += cell.events;
            }
        }
        sum
    }

    pub(crate) fn add_partition(&self) -> SharedPartition<K, A> {
        let partition = Arc::new(Mutex::new(Partition {
            open: BTreeMap::new(),
            last_closed: HashMap::new(),
            time_max: i64::MIN,
            closed_to: i64::MIN,
            closed: WindowTotals::default(),
        }));
        self.partitions.lock().push(Arc::clone(&partition));
        partition
    }
}

impl<K: Key, A: Default + Clone + Serialize + Send + 'static> StateReader for Windowed<K, A> {
    fn get(&self, key: &str) -> Option<Value> {
        let newest = self.newest(&key.parse().ok()?)?;
        Some(json!({
            "window_start": newest.window_start,
            "value": newest.value,
            "events": newest.events,
        }))
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for part in self.partitions.lock().iter() {
            let part = part.lock();
            let mut seen: hashbrown::HashSet<&K> = part.last_closed.keys().collect();
            seen.extend(part.open.values().flat_map(|window| window.keys()));
            let room = limit - keys.len();
            keys.extend(seen.into_iter().take(room).map(ToString::to_string));
        }
        keys
    }
}

/// The windows of the keys that one instance of the stage is responsible for.
pub struct Partition<K, A> {
    /// By start. A late item opens its window again; it closes with the slice.
    open: BTreeMap<i64, HashMap<K, Cell<A>>>,
    /// The newest closed window of each key, to be read until the next one opens.
    last_closed: HashMap<K, (i64, Cell<A>)>,
    /// Largest time seen.
    time_max: i64,
    /// Every window that ends at or before this has been closed.
    closed_to: i64,
    /// `open_…` are not kept here.
    closed: WindowTotals,
}

#[derive(Clone, Default)]
struct Cell<A> {
    value: A,
    events: u64,
}

impl<K: Key, A: Default + Clone> Partition<K, A> {
    fn newest(&self, key: &K) -> Option<WindowResult<K, A>> {
        let open = self.open.iter().rev();
        let (start, cell) = open
            .filter_map(|(start, window)| Some((*start, window.get(key)?)))
            .chain(
                self.last_closed
                    .get(key)
                    .map(|(start, cell)| (*start, cell)),
            )
            .max_by_key(|(start, _)| *start)?;
        Some(WindowResult {
            key: key.clone(),
            window_start: Timestamp(start),
            value: cell.value.clone(),
            events: cell.events,
            is_late: false,
        })
    }

    fn add(
        &mut self,
        windows: TumblingWindows,
        key: &K,
        time: Timestamp,
        step: impl FnOnce(&mut A),
    ) {
        let start = windows.start_of(time);
        self.time_max = self.time_max.max(time.0);
        if start.saturating_add(windows.size_ms) <= self.closed_to {
            self.closed.late_events += 1;
        }
        let window = self.open.entry(start).or_default();
        let cell = match window.get_mut(key) {
            Some(cell) => cell,
            None => window.entry(key.clone()).or_default(),
        };
        step(&mut cell.value);
        cell.events += 1;
    }

    /// Closes all windows that end at or before `watermark`.
    fn close(
        &mut self,
        windows: TumblingWindows,
        watermark: i64,
        out: &mut Outbox<WindowResult<K, A>>,
    ) {
        while let Some(first) = self.open.first_entry() {
            let (start, end) = (*first.key(), first.key().saturating_add(windows.size_ms));
            if end > watermark {
                break;
            }
            let is_late = end <= self.closed_to;
            for (key, cell) in first.remove() {
                self.closed.closed_windows += 1;
                self.closed.closed_events += cell.events;
                self.remember(&key, start, &cell);
                out.put(
                    0,
                    WindowResult {
                        key,
                        window_start: Timestamp(start),
                        value: cell.value,
                        events: cell.events,
                        is_late,
                    },
                );
            }
        }
        self.closed_to = self.closed_to.max(watermark);
    }

    fn remember(&mut self, key: &K, start: i64, cell: &Cell<A>) {
        match self.last_closed.get_mut(key) {
            Some(last) if last.0 < start => *last = (start, cell.clone()),
            Some(_) => {}
            None => {
                self.last_closed.insert(key.clone(), (start, cell.clone()));
            }
        }
    }
}

/// Into the windows of one partition, and from them on to the next stage.
pub struct ToWindows<K, A, T, E, F> {
    pub windows: TumblingWindows,
    pub partition: SharedPartition<K, A>,
    pub time: Arc<E>,
    pub step: Arc<F>,
    pub label: Label,
    pub outbox: Outbox<WindowResult<K, A>>,
    /// When the newest item entered the flow.
    pub stamp: u64,
    pub item: PhantomData<fn(&T)>,
}

impl<K, A, T, E, F> Terminal<(K, T)> for ToWindows<K, A, T, E, F>
where
    K: Key,
    A: Default + Clone + Send + 'static,
    T: Debug + 'static,
    E: Fn(&T) -> Timestamp + Send + Sync + 'static,
    F: Fn(&mut A, &T) + Send + Sync + 'static,
{
    type Slice<'a> = WindowSlice<'a, K, A, E, F>;

    const HOLDS_BACK: bool = true;

    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        Ok(self.outbox.reserve(results))
    }

    fn cancel(&mut self) {
        self.outbox.cancel();
    }

    fn begin(&mut self) -> WindowSlice<'_, K, A, E, F> {
        WindowSlice {
            windows: self.windows,
            partition: self.partition.lock(),
            time: &*self.time,
            step: &*self.step,
            label: &self.label,
        }
    }

    fn commit(&mut self, stamp: u64) -> Result<usize, Failure> {
        let mut partition = self.partition.lock();
        let watermark = partition.time_max.saturating_sub(self.windows.lateness_ms);
        partition.close(self.windows, watermark, &mut self.outbox);
        drop(partition);
        self.stamp = stamp;
        Ok(self.outbox.commit(stamp))
    }

    /// The end of a bounded input closes all windows; a flow that is stopped leaves them open.
    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        if end == InputEnd::Stopped {
            return Ok(Some(0));
        }
        if self.outbox.reserve(1).is_none() {
            return Ok(None);
        }
        let mut partition = self.partition.lock();
        partition.close(self.windows, i64::MAX, &mut self.outbox);
        drop(partition);
        Ok(Some(self.outbox.commit(self.stamp)))
    }
}

/// Holds the partition's lock for the time of one slice.
pub struct WindowSlice<'a, K, A, E, F> {
    windows: TumblingWindows,
    partition: MutexGuard<'a, Partition<K, A>>,
    time: &'a E,
    step: &'a F,
    label: &'a Label,
}

impl<K, A, T, E, F> Slice<(K, T)> for WindowSlice<'_, K, A, E, F>
where
    K: Key,
    A: Default + Clone,
    T: Debug,
    E: Fn(&T) -> Timestamp,
    F: Fn(&mut A, &T),
{
    #[inline]
    fn take<Try: Attempt>(&mut self, attempt: &Try, (key, item): &(K, T)) {
        attempt.call(self.label, item, || {
            let time = (self.time)(item);
            let step = |value: &mut A| (self.step)(value, item);
            self.partition.add(self.windows, key, time, step);
        });
    }
}
