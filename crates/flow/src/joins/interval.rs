//! Pairs of items that are close to each other in event time.
//!
//! The state of a key has an entry for each item of both sides, in the order of their times. An item is needed until the
//! watermark has passed the time of its last possible partner. Of each side that has items, one timer is set.

use std::ops::{Bound, RangeInclusive};

use millstream_base::Timestamp;

use crate::stage::ends::steps::Steps;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::timers::TimersOf;
use crate::state::values::Value;
use crate::windows::Key;

/// The items of one side of a key, by their times and by numbers that tell those of one time apart.
pub type Items<'a, K, T> = OrderedMapOf<'a, K, Place, T>;

/// The time of an item, and its number among those of this time.
pub type Place = (i64, u64);

/// The most items that one timer removes; then it fires again.
const REMOVED_AT_ONCE: usize = 256;

/// An item may stay for this part of the interval longer than it is needed, so that one timer removes many.
const SLACK: i128 = 16;

/// The times of partners, relative to the time of an item of one side. Differences of times are beyond `i64`.
#[derive(Debug, Clone, Copy)]
pub struct Reach {
    lower: i128,
    upper: i128,
    /// The tag of the side's timers.
    side: u8,
}

impl Reach {
    /// Returns the reach of both sides, where partners of an item of the first lie in this interval.
    pub fn of_sides(interval: &RangeInclusive<i64>) -> [Reach; 2] {
        let (lower, upper) = (i128::from(*interval.start()), i128::from(*interval.end()));
        [(lower, upper, 0), (-upper, -lower, 1)].map(|(lower, upper, side)| Reach {
            lower,
            upper,
            side,
        })
    }

    /// Whether this is the side of a timer with this tag.
    pub fn is_of(&self, tag: u8) -> bool {
        self.side == tag
    }

    /// Calls `pair` with each partner of an item of this time, in the order of their times, as far as there is room. If there
    /// are more, the next call goes on with them.
    pub fn partners<K: Key, B: Value>(
        &self,
        time: Timestamp,
        other: &Items<'_, K, B>,
        steps: &mut Steps<Bound<Place>>,
        mut pair: impl FnMut(&B),
    ) {
        let time = i128::from(time.0);
        let is_possible =
            time + self.upper >= i64::MIN.into() && time + self.lower <= i64::MAX.into();
        if !is_possible {
            return;
        }
        let (first, last) = (clamp(time + self.lower), clamp(time + self.upper));
        let mut from = steps.rest.take().unwrap_or(Bound::Included((first, 0)));
        for (place, partner) in other.range((from, Bound::Included((last, u64::MAX)))) {
            if steps.room == 0 {
                steps.rest = Some(from);
                return;
            }
            steps.room -= 1;
            pair(partner);
            from = Bound::Excluded(*place);
        }
    }

    /// Keeps an item of this side as long as partners may come.
    pub fn keep<K: Key, A: Value>(
        &self,
        time: Timestamp,
        item: &A,
        items: &mut Items<'_, K, A>,
        timers: &mut TimersOf<'_, K, u8>,
    ) {
        if self.is_over(time.0, timers.watermark()) {
            return;
        }
        if items.is_empty() {
            self.set_timer(time.0, timers);
        }
        insert_behind(items, time, item);
    }

    /// Removes items of this side that have no more partners. Called when the side's timer has fired at `fired_at`.
    pub fn remove_some<K: Key, A: Value>(
        &self,
        fired_at: Timestamp,
        items: &mut Items<'_, K, A>,
        timers: &mut TimersOf<'_, K, u8>,
    ) {
        let first = items.iter().take(REMOVED_AT_ONCE);
        let first: Vec<Place> = first.map(|(place, _)| *place).collect();
        for place in &first {
            if !self.is_over(place.0, timers.watermark()) {
                return self.set_timer(place.0, timers);
            }
            items.remove(place);
        }
        if first.len() == REMOVED_AT_ONCE {
            timers.set_event(fired_at, &self.side);
        }
    }

    /// Whether no partner of an item of this time can come any more: those before the watermark are late.
    fn is_over(&self, time: i64, watermark: Timestamp) -> bool {
        // At the end of the input the watermark is at the end of time.
        watermark.0 == i64::MAX || i128::from(time) + self.upper < watermark.0.into()
    }

    /// Sets the timer of the side, whose first item has this time.
    fn set_timer<K: Key>(&self, first: i64, timers: &mut TimersOf<'_, K, u8>) {
        let slack = (self.upper - self.lower) / SLACK;
        let time = clamp(i128::from(first) + self.upper + 1 + slack);
        timers.set_event(Timestamp(time), &self.side);
    }
}

/// Adds an item behind those of the same time.
pub fn insert_behind<K: Key, A: Value>(items: &mut Items<'_, K, A>, time: Timestamp, item: &A) {
    let same_time = (time.0, 0)..=(time.0, u64::MAX);
    let last = items.range(same_time).next_back();
    let number = last.map_or(0, |((_, last), _)| last + 1);
    items.insert(&(time.0, number), item.clone());
}

fn clamp(time: i128) -> i64 {
    time.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}
