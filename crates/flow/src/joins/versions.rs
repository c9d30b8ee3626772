//! Items and the versions of a row that were valid at their times.
//!
//! The state of a key has the items that wait for the watermark, and the versions that they or items to come may need: the one
//! that is valid at the watermark, and all later ones. One timer is set at the time at which the first item can be joined, and one
//! at the time from which on the first version is not needed.

use std::fmt::Debug;

use millstream_base::Timestamp;

use crate::changes::Upsert;
use crate::joins::interval::{Items, insert_behind};
use crate::ranks::message::Message;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::timers::TimersOf;
use crate::state::values::Value;
use crate::windows::Key;

/// A version of a row, from its time to that of the next one: an [`Upsert`], or another item that has one.
pub trait Version: Message + Clone + Debug {
    /// The row.
    type Row;

    /// Returns the row; `None` if it is no more from this time on.
    fn row(&self) -> Option<&Self::Row>;
}

impl<R: Message + Clone + Debug> Version for Upsert<R> {
    type Row = R;

    fn row(&self) -> Option<&R> {
        match self {
            Upsert::Put(row) => Some(row),
            Upsert::Delete(_) => None,
        }
    }
}

/// The most items or versions that one timer removes; then it fires again.
const REMOVED_AT_ONCE: usize = 256;

/// The tag of the timer for items. Of two timers of one time it fires first, so versions are removed behind the items that need
/// them.
const JOIN: u8 = 0;

/// The tag of the timer for versions.
const FORGET: u8 = 1;

/// The items that wait, and the versions by their times, of one key; and its timers.
pub struct Versions<'a, 'b, K, L, V> {
    pub waiting: Items<'a, K, L>,
    pub versions: OrderedMapOf<'a, K, i64, V>,
    pub timers: &'a mut TimersOf<'b, K, u8>,
}

impl<K: Key, L: Value, V: Version> Versions<'_, '_, K, L, V> {
    /// Adds an item, which is not late.
    pub fn wait(&mut self, time: Timestamp, item: &L) {
        let until = ..=(time.0, u64::MAX);
        if self.waiting.range(until).next_back().is_none() {
            self.set_join_timer(time.0);
        }
        insert_behind(&mut self.waiting, time, item);
    }

    /// Adds a version. Returns whether it has a use: none if it comes behind the watermark, and there is a newer one at the
    /// watermark.
    pub fn add(&mut self, time: Timestamp, version: &V) -> bool {
        let watermark = self.timers.watermark();
        if time < watermark {
            let newer = self.versions.range(time.0..=watermark.0).next_back();
            if newer.is_some_and(|(newer, _)| *newer > time.0) {
                return false;
            }
        }
        self.versions.insert(&time.0, version.clone());
        self.forget();
        true
    }

    /// Does the work of a timer of this tag. `join` gets each item that waits no more, and the version that was valid at its time.
    pub fn fire(&mut self, tag: u8, mut join: impl FnMut(&L, Option<&V::Row>)) {
        let watermark = self.timers.watermark();
        if tag == JOIN {
            // At the end of the input the watermark is at the end of time.
            let is_ready = |time: i64| time < watermark.0 || watermark.0 == i64::MAX;
            let mut joined = Vec::new();
            let ready = self.waiting.iter().take(REMOVED_AT_ONCE);
            for (place, item) in ready.take_while(|((time, _), _)| is_ready(*time)) {
                let valid = self.versions.range(..=place.0).next_back();
                join(item, valid.and_then(|(_, it)| it.row()));
                joined.push(*place);
            }
            for place in &joined {
                self.waiting.remove(place);
            }
            let next = self.waiting.first().map(|((time, _), _)| *time);
            if let Some(time) = next {
                self.set_join_timer(time);
            }
        }
        self.forget();
    }

    /// An item can be joined when no version of its time can come any more.
    fn set_join_timer(&mut self, time: i64) {
        let time = Timestamp(time.saturating_add(1));
        self.timers.set_event(time, &JOIN);
    }

    /// Removes versions that no item can need, and sets the timer for the next ones.
    fn forget(&mut self) {
        let first = self
            .waiting
            .first()
            .map_or(i64::MAX, |((time, _), _)| *time);
        let needed_from = first.min(self.timers.watermark().0);
        for _ in 0..REMOVED_AT_ONCE {
            match self.needed_until() {
                Some(until) if until <= needed_from => drop(self.versions.pop_first()),
                _ => break,
            }
        }
        if let Some(until) = self.needed_until() {
            self.timers.set_event(Timestamp(until), &FORGET);
        }
    }

    /// Returns the time from which on the first version is not needed: that of the second one, or its own if the row is no more
    /// from then on. `None` if it is needed for ever.
    fn needed_until(&self) -> Option<i64> {
        let mut versions = self.versions.range(..);
        let (first, version) = versions.next()?;
        match versions.next() {
            Some((second, _)) => Some(*second),
            None => version.row().is_none().then_some(*first),
        }
    }
}
