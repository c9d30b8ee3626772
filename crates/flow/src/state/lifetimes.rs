//! The lifetimes of the runs of a flow: the changelog of an element has changes that end by the lifetime of a former run.

use serde::{Deserialize, Serialize};

/// The part of a checkpoint that belongs to an element with a lifetime, beside the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifetimeHead {
    /// The element's time, in milliseconds since 1970.
    pub time: i64,
    pub lifetimes: Lifetimes,
}

/// The lifetimes by which the changes in an element's changelog end. Lifetimes are in milliseconds, times in milliseconds since
/// 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lifetimes {
    /// The lifetime of this run.
    length: i64,
    /// The shortest lifetime by which a change up to `shortest_until` ends, if that is shorter than `length`.
    shortest: i64,
    shortest_until: i64,
    /// Values that were changed last by then had ended in a former run.
    ended: i64,
}

impl Lifetimes {
    /// The lifetimes of a flow that has had no other one.
    pub fn of(length: i64) -> Lifetimes {
        Lifetimes {
            length,
            shortest: length,
            shortest_until: i64::MIN,
            ended: i64::MIN,
        }
    }

    /// Returns those of a run with a lifetime of `length` that resumes from a checkpoint with these ones, taken at `time`.
    pub fn resumed(self, time: i64, length: i64) -> Lifetimes {
        let ended = self.ended.max(time.saturating_sub(self.length));
        if length == self.length {
            return Lifetimes { ended, ..self };
        }
        let former = match self.has_shorter(time) {
            true => self.shortest,
            false => self.length,
        };
        Lifetimes {
            length,
            shortest: former.min(length),
            shortest_until: time,
            ended,
        }
    }

    /// Returns the time of last changes up to which values had ended in a former run. They stay so in a run with a longer
    /// lifetime: some have left the changelog.
    pub fn ended(&self) -> i64 {
        self.ended
    }

    /// Returns the time up to which the changelog may drop changes by their ends, if values have ended up to `time`. Changes of
    /// a run with a shorter lifetime end earlier in the changelog than in this run, so the changelog drops all changes later
    /// until none of those is needed any more.
    pub fn passed(&self, time: i64) -> i64 {
        match self.has_shorter(time) {
            true => time.saturating_sub(self.length - self.shortest),
            false => time,
        }
    }

    /// Whether the changelog may need a change with a shorter lifetime at `time`.
    fn has_shorter(&self, time: i64) -> bool {
        self.shortest < self.length && time < self.shortest_until.saturating_add(self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_a_shorter_lifetime_stay_until_the_longer_one_has_passed() {
        let first = Lifetimes::of(100);
        assert_eq!((first.passed(1_000), first.ended()), (1_000, i64::MIN));
        let longer = first.resumed(1_000, 300);
        assert_eq!(longer.ended(), 900);
        // A change at 1,000 ends at 1,100 in the changelog, and at 1,300 in this run.
        assert_eq!(
            [1_299, 1_300].map(|time| longer.passed(time)),
            [1_099, 1_300]
        );
        // A restart changes nothing.
        let again = longer.resumed(1_200, 300);
        assert_eq!(
            [1_299, 1_300].map(|time| again.passed(time)),
            [1_099, 1_300]
        );
        assert_eq!(again.ended(), 900);
        // A third lifetime while changes of the first are there, and later.
        let third = again.resumed(1_250, 400);
        assert_eq!(
            [1_649, 1_650].map(|time| third.passed(time)),
            [1_349, 1_650]
        );
        let third = again.resumed(1_300, 400);
        assert_eq!(
            [1_699, 1_700].map(|time| third.passed(time)),
            [1_599, 1_700]
        );
        // A shorter one needs nothing for longer.
        assert_eq!(third.resumed(1_350, 50).passed(1_360), 1_360);
    }

    #[test]
    fn the_longest_lifetimes_do_not_overflow() {
        let for_ever = Lifetimes::of(1).resumed(i64::MAX, i64::MAX);
        assert_eq!(for_ever.passed(i64::MAX - 1), 0);
        let ended = for_ever.resumed(i64::MIN + 1, 1).ended();
        assert_eq!(ended, i64::MAX - 1);
        assert_eq!(Lifetimes::of(i64::MAX).resumed(-10, 5).ended(), i64::MIN);
    }
}
