//! The deadlines of groups and members.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::{GroupName, MemberId};

/// The kind of a deadline, and its owner. At most one deadline is set for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Timer {
    /// Search for expired offsets and groups.
    Expiry,
    /// The members of a classic group have run out of time to join.
    ClassicJoin(GroupName),
    /// They have run out of time to ask for their assignment.
    ClassicSync(GroupName),
    /// A classic member was silent for its session timeout.
    ClassicSession(GroupName, MemberId),
    /// A member of a group of KIP-848 was silent for its session timeout.
    ConsumerSession(GroupName, MemberId),
    /// A member of a share group was silent for its session timeout.
    ShareSession(GroupName, MemberId),
    /// A member of a group of KIP-848 has run out of time to give up partitions.
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
    /// Sets a deadline; replaces an earlier one of the same kind.
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

    /// Takes the next deadline that has passed.
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
    fn each_timer_fires_once_in_the_order_of_deadlines() {
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
