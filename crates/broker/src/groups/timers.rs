//! What is to happen at which time.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{GroupName, MemberId};

/// What a deadline is for. Each has at most one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Timer {
    /// Time to look for offsets and groups that have expired.
    Expiry,
    /// The members of a classic group have had their time to join.
    ClassicJoin(GroupName),
    /// They have had their time to ask for their assignment.
    ClassicSync(GroupName),
    /// Nothing was heard of a classic member.
    ClassicSession(GroupName, MemberId),
    /// Nothing was heard of a member of a group of KIP-848.
    ConsumerSession(GroupName, MemberId),
    /// Nothing was heard of a member of a share group.
    ShareSession(GroupName, MemberId),
    /// A member of a group of KIP-848 has had its time to give up partitions.
    ConsumerRebalance(GroupName, MemberId),
}

/// Deadlines, the next one first; those of the same time in the order in which they were set.
#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeMap<(Duration, u64), Timer>,
    places: HashMap<Timer, (Duration, u64)>,
    /// Times that a deadline was set.
    set: u64,
}

impl Timers {
    /// Sets a deadline, in place of the one that there may be.
    pub fn set(&mut self, timer: Timer, at: Duration) {
        let place = (at, self.set);
        self.set += 1;
        if let Some(before) = self.places.insert(timer.clone(), place) {
            self.due.remove(&before);
        }
        self.due.insert(place, timer);
    }

    pub fn cancel(&mut self, timer: &Timer) {
        if let Some(place) = self.places.remove(timer) {
            self.due.remove(&place);
        }
    }

    /// The next deadline.
    pub fn next(&self) -> Option<Duration> {
        self.due.keys().next().map(|(at, _)| *at)
    }

    /// Takes what is due.
    pub fn pop(&mut self, now: Duration) -> Option<Timer> {
        let entry = self.due.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let timer = entry.remove();
        self.places.remove(&timer);
        Some(timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn deadlines_come_in_order_and_once() {
        let join = |name: &str| Timer::ClassicJoin(name.into());
        let mut timers = Timers::default();
        timers.set(join("late"), 3 * SECOND);
        timers.set(join("first"), 2 * SECOND);
        timers.set(join("second"), 2 * SECOND);
        timers.set(join("cancelled"), SECOND);
        timers.set(join("moved"), SECOND);
        timers.set(join("moved"), 4 * SECOND);
        timers.cancel(&join("cancelled"));

        assert_eq!(timers.next(), Some(2 * SECOND));
        assert_eq!(timers.pop(SECOND), None);
        let popped: Vec<_> = std::iter::from_fn(|| timers.pop(3 * SECOND)).collect();
        assert_eq!(popped, [join("first"), join("second"), join("late")]);
        assert_eq!(timers.next(), Some(4 * SECOND));
    }
}
