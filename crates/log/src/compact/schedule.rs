//! The schedule of compaction: which lanes to check, and which of them are due.
//!
//! A round must cost nothing for lanes at rest, of which a node may have 100,000. So it looks only at lanes that were
//! [marked](crate::lane::compaction_marks), since something has changed, and at those whose time has come.

use std::collections::BTreeSet;
use std::time::Duration;

use hashbrown::HashMap;
use millstream_base::{GroupId, Timestamp};

use crate::compact::due::{Due, Verdict};
use crate::ids::LaneId;

/// The longest time between checks of a lane that waits for a time, since the wall clock may jump.
const LOOK_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// The compacted lanes that need another look, or are due.
#[derive(Debug, Default)]
pub struct Schedule {
    lanes: HashMap<LaneId, Scheduled>,
    /// The lanes with a time of the next look, the earliest first. In the order of the lanes, so that a simulation repeats.
    looks: BTreeSet<(Duration, LaneId)>,
    due: BTreeSet<LaneId>,
}

/// The compaction state of a lane. All times but timestamps are monotonic.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scheduled {
    look_at: Option<Duration>,
    due: Option<Due>,
    /// No pass begins before this time.
    pub retry_at: Duration,
    /// Whether the last pass has failed.
    pub is_failing: bool,
    /// The time of the first record of a group.
    pub first_record: Option<(GroupId, Timestamp)>,
    /// See [`LaneFacts::rolled_at`](crate::compact::due::LaneFacts::rolled_at).
    pub rolled_at: Option<Timestamp>,
}

impl Scheduled {
    /// Whether a pass is due, and not only joins.
    pub fn is_for_pass(&self) -> bool {
        self.due.is_some_and(|due| due.is_for_pass())
    }
}

impl Schedule {
    /// Returns the compaction state of a lane.
    pub fn lane(&mut self, lane: LaneId) -> &mut Scheduled {
        self.lanes.entry(lane).or_default()
    }

    /// Records the work that is due for a lane. `now` is the time in both clocks.
    pub fn decide(&mut self, lane: LaneId, verdict: &Verdict, now: (Timestamp, Duration)) {
        let look_at = verdict.look_at.map(|at| {
            let wait = u64::try_from(at.0.saturating_sub(now.0.0)).unwrap_or_default();
            now.1 + Duration::from_millis(wait).min(LOOK_AFTER_MAX)
        });
        let scheduled = self.lanes.entry(lane).or_default();
        if let Some(before) = std::mem::replace(&mut scheduled.look_at, look_at) {
            self.looks.remove(&(before, lane));
        }
        scheduled.due = verdict.due;
        self.looks.extend(look_at.map(|at| (at, lane)));
        match verdict.due {
            Some(_) => self.due.insert(lane),
            None => self.due.remove(&lane),
        };
    }

    /// Forgets a lane that is not compacted any more.
    pub fn forget(&mut self, lane: LaneId) -> Option<Scheduled> {
        let forgotten = self.lanes.remove(&lane)?;
        if let Some(at) = forgotten.look_at {
            self.looks.remove(&(at, lane));
        }
        self.due.remove(&lane);
        Some(forgotten)
    }

    /// Takes the lanes whose time of the next look has come.
    pub fn take_looks(&mut self, now: Duration) -> Vec<LaneId> {
        let mut lanes = Vec::new();
        while let Some((at, lane)) = self.looks.first().copied()
            && at <= now
        {
            self.looks.pop_first();
            if let Some(scheduled) = self.lanes.get_mut(&lane) {
                scheduled.look_at = None;
            }
            lanes.push(lane);
        }
        lanes
    }

    /// Returns the lane that is most due and that may have a pass now.
    pub fn most_due(&self, now: (Timestamp, Duration)) -> Option<LaneId> {
        let due = self.due.iter().filter_map(|lane| {
            let scheduled = self.lanes.get(lane)?;
            let urgency = scheduled.due?.urgency(now.0);
            (scheduled.retry_at <= now.1).then_some((urgency, lane))
        });
        let most = due.max_by(|a, b| a.0.total_cmp(&b.0));
        most.map(|(_, lane)| *lane)
    }

    /// Returns the number of lanes that are due.
    pub fn due_count(&self) -> usize {
        self.due.len()
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::{LaneIndex, StreamId, StreamletIndex};

    use super::*;
    use crate::compact::due::{LaneFacts, judge};
    use crate::settings::compaction::Compaction;

    fn lane(number: u32) -> LaneId {
        LaneId {
            stream: StreamId(16),
            streamlet: StreamletIndex(0),
            lane: LaneIndex(number),
        }
    }

    fn at(seconds: u64) -> (Timestamp, Duration) {
        (
            Timestamp(1_000_000 + 1_000 * seconds as i64),
            Duration::from_secs(seconds),
        )
    }

    /// A verdict for a lane with this many dirty bytes of 100.
    fn dirty(bytes: u64) -> Verdict {
        let facts = LaneFacts {
            dirty_bytes: bytes,
            total_bytes: 100,
            is_settled: true,
            ..LaneFacts::default()
        };
        judge(&facts, &Compaction::default(), at(0).0)
    }

    fn look_at(seconds: u64) -> Verdict {
        Verdict {
            look_at: Some(at(seconds).0),
            ..Verdict::default()
        }
    }

    #[test]
    fn the_lane_with_the_largest_dirty_share_is_first_unless_it_must_wait() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.most_due(at(0)), None);
        for (number, bytes) in [(0, 60), (1, 90), (2, 40), (3, 70)] {
            schedule.decide(lane(number), &dirty(bytes), at(0));
        }
        assert_eq!(schedule.due_count(), 3);
        assert_eq!(schedule.most_due(at(0)), Some(lane(1)));
        schedule.lane(lane(1)).retry_at = at(5).1;
        assert_eq!(schedule.most_due(at(0)), Some(lane(3)));
        assert_eq!(schedule.most_due(at(5)), Some(lane(1)));
        schedule.decide(lane(1), &dirty(0), at(5));
        assert_eq!(schedule.most_due(at(5)), Some(lane(3)));
        schedule.forget(lane(3));
        assert_eq!(schedule.most_due(at(5)), Some(lane(0)));
        assert_eq!(schedule.due_count(), 1);
    }

    #[test]
    fn a_lane_is_checked_once_when_its_time_has_come() {
        let mut schedule = Schedule::default();
        schedule.decide(lane(0), &look_at(20), at(0));
        schedule.decide(lane(1), &look_at(10), at(0));
        schedule.decide(lane(2), &look_at(5), at(0));
        // The last decision counts.
        schedule.decide(lane(2), &Verdict::default(), at(1));
        schedule.decide(lane(0), &look_at(10), at(1));
        assert_eq!(schedule.take_looks(at(9).1), []);
        assert_eq!(schedule.take_looks(at(10).1), [lane(0), lane(1)]);
        assert_eq!(schedule.take_looks(at(100).1), []);
        schedule.decide(lane(1), &look_at(200), at(100));
        schedule.forget(lane(1));
        assert_eq!(schedule.take_looks(at(1_000).1), []);
    }

    #[test]
    fn a_wait_lasts_at_most_an_hour_since_the_wall_clock_may_jump() {
        let mut schedule = Schedule::default();
        schedule.decide(lane(0), &look_at(1_000_000), at(0));
        assert_eq!(schedule.take_looks(at(3_599).1), []);
        assert_eq!(schedule.take_looks(at(3_600).1), [lane(0)]);
        let never = Verdict {
            look_at: Some(Timestamp(i64::MAX)),
            ..Verdict::default()
        };
        schedule.decide(lane(0), &never, at(0));
        assert_eq!(schedule.take_looks(at(3_600).1), [lane(0)]);
    }
}
