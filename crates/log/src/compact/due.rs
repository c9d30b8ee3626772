//! Decides whether a lane is due for compaction, and when to check it again.
//!
//! A lane is due for a pass for one of four reasons; the first three are Kafka's:
//!
//! - *Ratio*: the share of bytes that no pass has seen, its *dirty* bytes, has reached `min.cleanable.dirty.ratio`.
//! - *Lag*: its oldest dirty record is older than `max.compaction.lag.ms`. Then the open group is closed first, so that a pass can
//!   take its records.
//! - *Expiry*: tombstones or markers have stayed for `delete.retention.ms`, so they go without new writes. Values that
//!   have ended by the wall clock count as well.
//! - *Expired values*: in a stream with [a clock of its own](crate::KEYED_CLOCK), there are groups of which a quarter of the bytes,
//!   or all values with an expiry, have expired.
//!
//! In a lane that is due for none of them, many small groups may be [joined](crate::compact::joins).
//!
//! Only groups that a pass could take count: those that end before the last stable offset and whose newest record is older than
//! `min.compaction.lag.ms`.

use std::time::Duration;

use millstream_base::Timestamp;

use crate::settings::compaction::Compaction;

/// The time until the next check of a lane whose open group cannot be closed or read, or whose closed groups are not in their
/// files, because chunks are not durable yet.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The resolution of timestamps.
const MOMENT: Duration = Duration::from_millis(1);

/// The parts of a lane's state that decide.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LaneFacts {
    /// Bytes of the groups that a pass could take.
    pub total_bytes: u64,
    /// Bytes of the ones among these groups that no pass has seen.
    pub dirty_bytes: u64,
    /// The time of the oldest dirty record in any group. `None` without one, or where it is not known.
    pub oldest_dirty: Option<Timestamp>,
    /// The newest record of the closed group that is too young for a pass, if there is one.
    pub too_young: Option<Timestamp>,
    /// Whether the open group has records.
    pub has_open: bool,
    /// When the open group was closed last because of its age.
    pub rolled_at: Option<Timestamp>,
    /// When the first tombstones or markers expire that a pass has left, or values that end by the wall clock.
    pub expires_at: Option<Timestamp>,
    /// Bytes of the groups that a pass could take with many values that have ended by the stream's own clock.
    pub ended_bytes: u64,
    /// Whether the files of closed groups have all of their chunks.
    pub is_settled: bool,
    /// The share of the groups that a pass could take which joins would spare, from 0 to 1.
    pub spared: f64,
}

/// Why, and how urgently, a lane is due.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Due {
    /// The share of dirty bytes, if it is large enough.
    ratio: Option<f64>,
    /// Since when dirty records are too old, and the bound that they are beyond.
    late: Option<(Timestamp, Duration)>,
    /// The same for tombstones and markers that have expired.
    expired: Option<(Timestamp, Duration)>,
    /// The share of bytes in groups with values that have ended by the stream's own clock, if there are any.
    ended: Option<f64>,
    /// The share of groups that joins would spare, if they would any.
    spared: Option<f64>,
}

/// The work that is due for a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Verdict {
    pub due: Option<Due>,
    /// Whether to close the open group.
    pub must_roll: bool,
    /// When to check the lane again, if nothing happens before.
    pub look_at: Option<Timestamp>,
}

impl Due {
    /// Whether a pass is due, and not only joins.
    pub fn is_for_pass(&self) -> bool {
        let has_waited = self.late.is_some() || self.expired.is_some();
        self.ratio.is_some() || has_waited || self.ended.is_some()
    }

    /// Returns how urgent it is: more than 0, and larger is more urgent. A share counts as it is, a wait in units of its
    /// bound. So a lane that waits overtakes all others some time.
    pub fn urgency(&self, now: Timestamp) -> f64 {
        let wait = |since: Option<(Timestamp, Duration)>| {
            since.map(|(since, bound)| {
                let waited = now.0.saturating_sub(since.0).max(0) as f64;
                waited / (bound.as_millis() as f64).max(1_000.0)
            })
        };
        let waits = [wait(self.late), wait(self.expired)];
        let shares = [self.ratio, self.ended, self.spared];
        let each = waits.into_iter().chain(shares);
        each.flatten().fold(f64::MIN_POSITIVE, f64::max)
    }
}

/// Decides about a lane.
pub fn judge(facts: &LaneFacts, settings: &Compaction, now: Timestamp) -> Verdict {
    let mut looks = Looks { now, first: None };

    let share = |bytes: u64| bytes as f64 / facts.total_bytes.max(1) as f64;
    let ratio = share(facts.dirty_bytes);
    let has_dirty = facts.dirty_bytes > 0;
    let ratio = (has_dirty && ratio >= settings.dirty_ratio_min).then_some(ratio);
    if let Some(newest) = facts.too_young {
        looks.at(after(newest, settings.lag_min));
    }

    let mut late = None;
    let mut must_roll = false;
    if let (Some(lag_max), Some(oldest)) = (settings.lag_max, facts.oldest_dirty) {
        let late_at = after(oldest, lag_max);
        if late_at < now {
            // Only a pass that has something to do counts.
            late = has_dirty.then_some((late_at, lag_max));
            // Records that came after the group was closed have waited only since then, even if their producers gave them
            // older times.
            let roll_at = facts.rolled_at.map(|at| after(at, lag_max));
            must_roll = facts.has_open && roll_at.is_none_or(|at| at < now);
            if let Some(at) = roll_at.filter(|_| facts.has_open) {
                looks.at(after(at, MOMENT));
            }
            if must_roll {
                looks.at(after(now, LOOK_AGAIN_AFTER));
            }
        } else {
            looks.at(after(late_at, MOMENT));
        }
    }

    let is_unknown = settings.lag_max.is_some() && facts.oldest_dirty.is_none() && facts.has_open;
    if is_unknown || !facts.is_settled {
        looks.at(after(now, LOOK_AGAIN_AFTER));
    }

    let expiry = facts.expires_at.filter(|_| facts.total_bytes > 0);
    let expiry = expiry.map(|at| (at, settings.delete_retention));
    let expired = expiry.filter(|(at, _)| *at <= now);
    if let (Some((at, _)), None) = (expiry, expired) {
        looks.at(at);
    }

    let due = Due {
        ratio,
        late,
        expired,
        ended: (facts.ended_bytes > 0).then(|| share(facts.ended_bytes)),
        spared: (facts.spared > 0.0).then_some(facts.spared),
    };
    Verdict {
        due: (due.is_for_pass() || due.spared.is_some()).then_some(due),
        must_roll,
        look_at: looks.first,
    }
}

/// The first of several moments that are still to come.
struct Looks {
    now: Timestamp,
    first: Option<Timestamp>,
}

impl Looks {
    fn at(&mut self, time: Timestamp) {
        if time > self.now {
            self.first = Some(self.first.map_or(time, |first| first.min(time)));
        }
    }
}

pub fn after(time: Timestamp, wait: Duration) -> Timestamp {
    let wait = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
    Timestamp(time.0.saturating_add(wait))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000);

    fn before(ms: i64) -> Option<Timestamp> {
        Some(Timestamp(NOW.0 - ms))
    }

    fn settings() -> Compaction {
        Compaction {
            lag_min: Duration::from_secs(1),
            lag_max: Some(Duration::from_secs(10)),
            dirty_ratio_min: 0.5,
            delete_retention: Duration::from_secs(100),
            ..Compaction::default()
        }
    }

    /// A lane with these bytes, whose dirty records are new.
    fn lane(dirty_bytes: u64, total_bytes: u64) -> LaneFacts {
        LaneFacts {
            total_bytes,
            dirty_bytes,
            oldest_dirty: before(1_000),
            is_settled: true,
            ..LaneFacts::default()
        }
    }

    fn urgency(facts: &LaneFacts) -> Option<f64> {
        let due = judge(facts, &settings(), NOW).due?;
        Some(due.urgency(NOW))
    }

    #[test]
    fn a_share_of_dirty_bytes_makes_a_lane_due() {
        assert_eq!(urgency(&lane(0, 0)), None);
        assert_eq!(urgency(&lane(0, 100)), None);
        assert_eq!(urgency(&lane(49, 100)), None);
        assert_eq!(urgency(&lane(50, 100)), Some(0.5));
        assert_eq!(urgency(&lane(100, 100)), Some(1.0));
        // With the least ratio any dirty byte counts, and no clean one.
        let any = Compaction {
            dirty_ratio_min: 0.0,
            ..settings()
        };
        assert!(judge(&lane(1, 100), &any, NOW).due.is_some());
        assert_eq!(judge(&lane(0, 100), &any, NOW).due, None);
    }

    #[test]
    fn a_dirty_record_that_is_too_old_makes_a_lane_due_once_a_pass_can_take_it() {
        let old = LaneFacts {
            oldest_dirty: before(10_001),
            ..lane(1, 100)
        };
        assert!(urgency(&old).is_some());
        let at_bound = LaneFacts {
            oldest_dirty: before(10_000),
            ..old
        };
        let verdict = judge(&at_bound, &settings(), NOW);
        assert_eq!((verdict.due, verdict.must_roll), (None, false));
        assert_eq!(verdict.look_at, Some(Timestamp(NOW.0 + 1)));
        let held = LaneFacts {
            dirty_bytes: 0,
            ..old
        };
        assert_eq!(urgency(&held), None);
        let unbounded = Compaction {
            lag_max: None,
            ..settings()
        };
        assert_eq!(judge(&old, &unbounded, NOW), Verdict::default());
    }

    #[test]
    fn the_open_group_is_closed_when_a_dirty_record_is_too_old() {
        let open = LaneFacts {
            has_open: true,
            oldest_dirty: before(10_001),
            ..lane(0, 100)
        };
        let verdict = judge(&open, &settings(), NOW);
        assert_eq!((verdict.due, verdict.must_roll), (None, true));
        assert_eq!(verdict.look_at, Some(Timestamp(NOW.0 + 1_000)));
        // Records behind a group that was closed just now may have old times, too.
        let rolled = LaneFacts {
            rolled_at: before(4_000),
            ..open
        };
        let verdict = judge(&rolled, &settings(), NOW);
        assert!(!verdict.must_roll);
        assert_eq!(verdict.look_at, Some(Timestamp(NOW.0 + 6_001)));
        let young = LaneFacts {
            oldest_dirty: before(9_000),
            ..open
        };
        assert!(!judge(&young, &settings(), NOW).must_roll);
    }

    #[test]
    fn a_lane_with_chunks_that_are_not_durable_yet_is_checked_again() {
        let unknown = LaneFacts {
            has_open: true,
            oldest_dirty: None,
            ..lane(0, 100)
        };
        let verdict = judge(&unknown, &settings(), NOW);
        assert_eq!((verdict.due, verdict.must_roll), (None, false));
        assert_eq!(verdict.look_at, Some(Timestamp(NOW.0 + 1_000)));
        let unbounded = Compaction {
            lag_max: None,
            ..settings()
        };
        assert_eq!(judge(&unknown, &unbounded, NOW).look_at, None);
        let unsettled = LaneFacts {
            is_settled: false,
            ..lane(0, 100)
        };
        let verdict = judge(&unsettled, &unbounded, NOW);
        assert_eq!(verdict.look_at, Some(Timestamp(NOW.0 + 1_000)));
    }

    #[test]
    fn a_group_that_is_too_young_is_checked_again_when_it_is_old_enough() {
        let young = LaneFacts {
            too_young: before(300),
            ..lane(0, 0)
        };
        let verdict = judge(&young, &settings(), NOW);
        assert_eq!(
            (verdict.due, verdict.look_at),
            (None, Some(Timestamp(NOW.0 + 700)))
        );
    }

    #[test]
    fn tombstones_that_have_expired_make_a_lane_due_without_dirty_bytes() {
        let expires_at = |at| LaneFacts {
            expires_at: Some(at),
            ..lane(0, 100)
        };
        assert!(urgency(&expires_at(NOW)).is_some());
        let later = Timestamp(NOW.0 + 5);
        let verdict = judge(&expires_at(later), &settings(), NOW);
        assert_eq!((verdict.due, verdict.look_at), (None, Some(later)));
        // There is nothing that a pass could take.
        let held = LaneFacts {
            total_bytes: 0,
            ..expires_at(NOW)
        };
        assert_eq!(judge(&held, &settings(), NOW).due, None);
    }

    #[test]
    fn groups_to_join_do_not_make_a_lane_due_for_a_pass() {
        let spared = LaneFacts {
            spared: 0.25,
            ..lane(0, 100)
        };
        let due = judge(&spared, &settings(), NOW).due.unwrap();
        assert!(!due.is_for_pass());
        assert_eq!(due.urgency(NOW), 0.25);
        let dirty = LaneFacts {
            spared: 0.25,
            ..lane(50, 100)
        };
        let due = judge(&dirty, &settings(), NOW).due.unwrap();
        assert!(due.is_for_pass());
        assert_eq!(due.urgency(NOW), 0.5);
    }

    #[test]
    fn ended_values_make_a_lane_due_by_their_share() {
        let ended = LaneFacts {
            ended_bytes: 30,
            ..lane(0, 100)
        };
        let due = judge(&ended, &settings(), NOW).due.unwrap();
        assert!(due.is_for_pass());
        assert_eq!(due.urgency(NOW), 0.3);
    }

    #[test]
    fn a_lane_that_has_waited_too_long_is_the_most_urgent() {
        let late = |ms: i64| LaneFacts {
            oldest_dirty: before(10_000 + ms),
            ..lane(1, 100)
        };
        let expired = |ms: i64| LaneFacts {
            expires_at: before(ms),
            ..lane(0, 100)
        };
        let order = [
            expired(0),
            late(100),
            lane(60, 100),
            expired(70_000),
            lane(80, 100),
            late(9_000),
            lane(100, 100),
            expired(150_000),
            late(100_000),
        ];
        let urgencies: Vec<f64> = order.iter().map(|facts| urgency(facts).unwrap()).collect();
        assert!(urgencies[0] > 0.0 && urgencies.is_sorted(), "{urgencies:?}");
    }

    #[test]
    fn extreme_timestamps_do_not_overflow_the_due_time() {
        for at in [Timestamp(i64::MIN), Timestamp(-1), Timestamp(i64::MAX)] {
            let facts = LaneFacts {
                oldest_dirty: Some(at),
                too_young: Some(at),
                rolled_at: Some(at),
                expires_at: Some(at),
                has_open: true,
                ..lane(1, 1)
            };
            let verdict = judge(&facts, &settings(), NOW);
            let urgency = verdict.due.map(|due| due.urgency(NOW));
            assert!(urgency.is_some_and(f64::is_finite), "{at:?}");
        }
    }
}
