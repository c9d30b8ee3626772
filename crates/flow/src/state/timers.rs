//! Timers by key as a state element.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::Equivalent;
use millstream_base::{Clock, Timestamp};
use serde::{Deserialize, Serialize};

use crate::state::key_ref::KeyRef;
use crate::state::value_table::ValueTable;
use crate::state::values::{Layout, Place, SharedTable, Values};
use crate::windows::Key;

pub mod due;

use due::Due;

/// A state element with the timers of each key `K`, for the functions of one [`process`](crate::Keyed::process). Each timer
/// has a tag `T`, which its function gets when it fires; `()` where timers need none. A clone is another handle of the same
/// element.
///
/// A changelog has one record for each timer. To readers by text its key is the domain, the time, the key and the tag, such
/// as `["event",1000,"ann",null]`, and its value is `true`: a range of keys has timers in the order in which they fire.
pub struct Timers<K, T> {
    pub(crate) values: Values<TimerKey<K, T>, bool>,
    /// Whether an operator has them.
    is_taken: Arc<AtomicBool>,
}

/// A timer in a table: its domain, its time in milliseconds since 1970, its key and its tag.
pub(crate) type TimerKey<K, T> = (TimeDomain, i64, K, T);

/// The table of the timers of one partition. The value of each is `true`.
pub(crate) type TimerTable<K, T> = ValueTable<TimerKey<K, T>, bool>;

/// The time by which a timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeDomain {
    /// Event time: the watermark.
    Event,
    /// The wall clock of [`FlowSettings::clock`](crate::FlowSettings::clock); in Flink processing time.
    Clock,
}

/// A timer that has fired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fired<T> {
    /// The time by which it fires.
    pub domain: TimeDomain,
    /// The time that it was set to. It fires then or later.
    pub time: Timestamp,
    /// Its tag.
    pub tag: T,
}

impl<K, T> Clone for Timers<K, T> {
    fn clone(&self) -> Self {
        Timers {
            values: self.values.clone(),
            is_taken: Arc::clone(&self.is_taken),
        }
    }
}

impl<K: Key, T: Key> Timers<K, T> {
    pub(crate) fn new(place: &Place) -> Self {
        Timers {
            values: Values::new(Layout::of_timers("timers"), place),
            is_taken: Arc::default(),
        }
    }

    /// Whether a timer is set at present. `false` also if another rank owns the key.
    pub fn is_set(&self, domain: TimeDomain, time: Timestamp, key: &K, tag: &T) -> bool {
        let timer = (domain, time.0, key.clone(), tag.clone());
        self.values.get(&timer).is_some()
    }

    /// Returns the number of timers that are set on this rank. It looks at each.
    pub fn len(&self) -> usize {
        let tables = self.values.tables().iter();
        tables.map(|table| table.lock().iter().count()).sum()
    }

    /// Whether no timer is set on this rank.
    pub fn is_empty(&self) -> bool {
        let mut tables = self.values.tables().iter();
        tables.all(|table| table.lock().iter().next().is_none())
    }

    /// Reserves them for an operator. Returns whether no other has them.
    pub(crate) fn reserve(&self) -> bool {
        !self.is_taken.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn table(&self, partition: usize) -> SharedTable<TimerKey<K, T>, bool> {
        Arc::clone(&self.values.tables()[partition])
    }
}

/// The timers of one key, in the functions of a [`process`](crate::Keyed::process).
pub struct TimersOf<'a, K, T> {
    pub(crate) table: &'a mut TimerTable<K, T>,
    pub(crate) due: &'a mut Due,
    pub(crate) key: &'a K,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) watermark: Timestamp,
}

impl<K: Key, T: Key> TimersOf<'_, K, T> {
    /// Returns the watermark: the event time that all timers have fired up to. At first it is `i64::MIN`, and at the end of a
    /// bounded input `i64::MAX`. A flow that resumes continues at the watermark of its checkpoint.
    pub fn watermark(&self) -> Timestamp {
        self.watermark
    }

    /// Returns the time of the wall clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Sets a timer of the key that fires once the watermark is at `time` or later. Returns whether it was not set already.
    /// One at a time that the watermark has passed fires at once, behind the function. One at `i64::MAX` fires at the end of
    /// a bounded input.
    ///
    /// # Panics
    /// When the tag has no [canonical bytes](millstream_base::key).
    pub fn set_event(&mut self, time: Timestamp, tag: &T) -> bool {
        self.set(TimeDomain::Event, time, tag)
    }

    /// Sets a timer of the key that fires once the wall clock is at `time` or later. Otherwise as
    /// [`set_event`](Self::set_event); at the end of its input, a flow does not wait for it.
    ///
    /// # Panics
    /// When the tag has no canonical bytes.
    pub fn set_clock(&mut self, time: Timestamp, tag: &T) -> bool {
        self.set(TimeDomain::Clock, time, tag)
    }

    /// Cancels a timer of event time. Returns whether it was set.
    pub fn cancel_event(&mut self, time: Timestamp, tag: &T) -> bool {
        self.cancel(TimeDomain::Event, time, tag)
    }

    /// Cancels a timer of the wall clock. Returns whether it was set.
    pub fn cancel_clock(&mut self, time: Timestamp, tag: &T) -> bool {
        self.cancel(TimeDomain::Clock, time, tag)
    }

    fn set(&mut self, domain: TimeDomain, time: Timestamp, tag: &T) -> bool {
        let timer = TimerRef(domain, time.0, self.key, tag);
        let is_new = self.table.get(&timer).is_none();
        if is_new {
            self.due.insert(domain, time, self.key, tag);
            self.change(timer, Some(true));
        }
        is_new
    }

    pub(crate) fn cancel(&mut self, domain: TimeDomain, time: Timestamp, tag: &T) -> bool {
        let timer = TimerRef(domain, time.0, self.key, tag);
        let is_set = self.table.get(&timer).is_some();
        if is_set {
            self.due.remove(domain, time, self.key, tag);
            self.change(timer, None);
        }
        is_set
    }

    fn change(&mut self, timer: TimerRef<'_, K, T>, value: Option<bool>) {
        let changed = self.table.update(&timer, |present| *present = value);
        changed.expect("all timers are in memory");
    }
}

/// A timer of which the caller has the parts. It hashes as the tuple of them does.
#[derive(Hash)]
struct TimerRef<'a, K, T>(TimeDomain, i64, &'a K, &'a T);

impl<K: Eq, T: Eq> Equivalent<TimerKey<K, T>> for TimerRef<'_, K, T> {
    fn equivalent(&self, (domain, time, key, tag): &TimerKey<K, T>) -> bool {
        self.0 == *domain && self.1 == *time && self.2 == key && self.3 == tag
    }
}

impl<K: Key, T: Key> KeyRef<TimerKey<K, T>> for TimerRef<'_, K, T> {
    fn to_key(&self) -> TimerKey<K, T> {
        (self.0, self.1, self.2.clone(), self.3.clone())
    }
}
