//! The holds of a lane: offsets before which each key keeps the version that it has there.

use millstream_base::Offset;
use parking_lot::Mutex;

/// The number of a hold in this run of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u64);

/// A hold in a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LaneHold {
    id: HoldId,
    /// The offset behind the versions that it keeps; more than 0.
    end: Offset,
    /// The lane's first offset when the hold was made.
    first: Offset,
}

/// The holds in force of a lane. Passes take the [held offsets](HeldOffsets) when they have chosen their groups.
#[derive(Debug, Default)]
pub struct LaneHolds {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    holds: Vec<LaneHold>,
    /// Everything before this offset was compacted with the present holds in force, as far as this run knows.
    passed_to: Offset,
    /// Counts the holds that were released.
    releases: u64,
}

/// The offsets of the holds that were in force at some moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldOffsets {
    /// Sorted.
    offsets: Vec<Offset>,
    releases: u64,
}

impl LaneHolds {
    /// Adds a hold at the offset that `end` returns, and returns that. A pass that does not see the hold has chosen its groups
    /// before `end` is called.
    pub fn add(&self, id: HoldId, first: Offset, end: impl FnOnce() -> Offset) -> Offset {
        let mut state = self.state.lock();
        let end = end();
        if end > Offset(0) {
            state.holds.push(LaneHold { id, end, first });
        }
        end
    }

    /// Takes a hold away. `false` if the lane has not got it.
    pub fn release(&self, id: HoldId) -> bool {
        let mut state = self.state.lock();
        let Some(place) = state.holds.iter().position(|hold| hold.id == id) else {
            return false;
        };
        let released = state.holds.swap_remove(place);
        // Records behind it may supersede records before it.
        state.passed_to = state.passed_to.min(released.end);
        state.releases += 1;
        true
    }

    /// Returns the offsets held at this moment.
    pub fn held(&self) -> HeldOffsets {
        let state = self.state.lock();
        let mut offsets: Vec<Offset> = state.holds.iter().map(|hold| hold.end).collect();
        offsets.sort_unstable();
        HeldOffsets {
            offsets,
            releases: state.releases,
        }
    }

    /// Returns the offset before which all was compacted with the holds in force; 0 where this run does not know.
    pub fn passed_to(&self) -> Offset {
        self.state.lock().passed_to
    }

    /// Records that everything before an offset is compacted, except for records that `held` protected.
    pub fn note_passed(&self, to: Offset, held: &HeldOffsets) {
        let mut state = self.state.lock();
        if state.releases == held.releases {
            state.passed_to = state.passed_to.max(to);
        }
    }

    /// Returns where the lane began when the last hold at an offset was made; `None` without a hold there.
    pub fn first_of(&self, end: Offset) -> Option<Offset> {
        let state = self.state.lock();
        let at = state.holds.iter().filter(|hold| hold.end == end);
        at.map(|hold| hold.first).max()
    }
}

impl HeldOffsets {
    /// Whether there is an offset behind `before` and up to `at`: then records on both sides of it stay.
    pub fn divide(&self, before: Offset, at: Offset) -> bool {
        let next = self.offsets.partition_point(|held| *held <= before);
        self.offsets.get(next).is_some_and(|held| *held <= at)
    }

    /// Whether there is an offset within a group.
    pub fn split(&self, first: Offset, end: Offset) -> bool {
        let next = self.offsets.partition_point(|held| *held <= first);
        self.offsets.get(next).is_some_and(|held| *held < end)
    }

    #[cfg(test)]
    pub fn of(offsets: &[u64]) -> HeldOffsets {
        HeldOffsets {
            offsets: offsets.iter().copied().map(Offset).collect(),
            releases: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releasing_a_hold_makes_the_records_behind_it_dirty() {
        let holds = LaneHolds::default();
        let add = |id, end| holds.add(HoldId(id), Offset(id), || Offset(end));
        assert_eq!(add(1, 0), Offset(0));
        assert!(!holds.release(HoldId(1)), "it holds nothing");
        add(2, 30);
        add(3, 10);
        add(4, 30);
        let held = holds.held();
        assert_eq!(held, HeldOffsets::of(&[10, 30, 30]));
        assert_eq!(
            (holds.first_of(Offset(30)), holds.first_of(Offset(29))),
            (Some(Offset(4)), None)
        );
        holds.note_passed(Offset(50), &held);
        assert_eq!(holds.passed_to(), Offset(50));
        assert!(holds.release(HoldId(4)));
        assert_eq!(holds.passed_to(), Offset(30));
        // That pass kept the records that the hold has released since.
        holds.note_passed(Offset(60), &held);
        assert_eq!(holds.passed_to(), Offset(30));
        holds.note_passed(Offset(60), &holds.held());
        assert!(holds.release(HoldId(3)));
        assert_eq!(holds.passed_to(), Offset(10));
        assert!(!holds.release(HoldId(3)));
    }

    #[test]
    fn a_held_offset_lies_between_two_groups_or_inside_one() {
        let held = HeldOffsets::of(&[10, 20]);
        let divide = |before, at| held.divide(Offset(before), Offset(at));
        let split = |first, end| held.split(Offset(first), Offset(end));
        assert!(divide(5, 10) && divide(0, 50) && divide(10, 20));
        assert!(!divide(10, 19) && !divide(0, 9) && !divide(20, 99));
        assert!(split(5, 11) && split(10, 21));
        assert!(!split(10, 20) && !split(0, 10) && !split(20, 30));
    }
}
