//! Sequential reads: detects them, and decides how far to read ahead of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Position;

use crate::group::Group;
use crate::read::catch_up::windows::{AHEAD_SHARE, WINDOW_BYTES};

/// The bytes of a run's first window, and the fewest where many readers share the memory.
const WINDOW_BYTES_MIN: usize = 128 << 10;

/// The factor by which each window is larger than the one before, up to the largest size.
const WINDOW_GROWTH: usize = 4;

/// The windows that a run has come to when the most is read ahead of it: 8 windows, a request for each thread.
const WINDOWS_GROWN: u32 = 4;

/// The most places that are remembered where sequential reads may go on.
const RUNS_MAX: usize = 1024;

/// A run without a read for this long has no claim to a part of the memory.
const ACTIVE_FOR: Duration = Duration::from_secs(1);

/// The runs that were read last.
#[derive(Default)]
pub struct Runs {
    /// The one used last comes last.
    runs: VecDeque<Run>,
    last_id: u64,
    /// How many windows readers have come to.
    turns: u64,
}

/// A series of reads, each of which began where the one before ended.
struct Run {
    id: u64,
    group: Arc<Group>,
    /// The position of its next read.
    next: Position,
    /// The time at which it reached this position.
    at: Duration,
    /// The number of windows that it has reached, up to a bound.
    windows: u32,
    /// The number of windows planned beyond `next` …
    ahead: usize,
    /// … up to here.
    planned: (Arc<Group>, Position),
}

/// The windows to read ahead.
#[derive(Debug)]
pub struct Plan {
    run: u64,
    pub from: (Arc<Group>, Position),
    pub count: usize,
    pub window_bytes: usize,
}

impl Runs {
    /// How many windows readers have come to.
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// Returns the size of the window for a read that begins where another one ended; `None` for other reads.
    pub fn window_at(
        &self,
        group: &Arc<Group>,
        from: Position,
        memory_bytes: usize,
        now: Duration,
    ) -> Option<usize> {
        let run = self.standing_at(group, from)?;
        let share = self.share(memory_bytes, now);
        Some(window_bytes(self.runs[run].windows, share))
    }

    /// How much of a memory may be read ahead of each active run.
    fn share(&self, memory_bytes: usize, now: Duration) -> usize {
        let is_active = |run: &&Run| run.windows > 0 && now.saturating_sub(run.at) <= ACTIVE_FOR;
        let active = self.runs.iter().filter(is_active).count();
        memory_bytes / AHEAD_SHARE / active.max(1)
    }

    /// Notes where a read ended that begins a run.
    pub fn begin(&mut self, group: &Arc<Group>, next: Position, now: Duration) {
        if self.has_come_to(group, next) {
            return;
        }
        if self.runs.len() >= RUNS_MAX {
            self.runs.pop_front();
        }
        self.last_id += 1;
        self.runs.push_back(Run {
            id: self.last_id,
            group: Arc::clone(group),
            next,
            at: now,
            windows: 0,
            ahead: 0,
            planned: (Arc::clone(group), next),
        });
    }

    /// Forgets the runs that are in a group.
    pub fn forget_group(&mut self, group: &Arc<Group>) {
        let is_in =
            |run: &Run| Arc::ptr_eq(&run.group, group) || Arc::ptr_eq(&run.planned.0, group);
        self.runs.retain(|run| !is_in(run));
    }

    /// Notes that the window that a reader comes to at a position is missing, and so are those behind it.
    pub fn missed(&mut self, group: &Arc<Group>, from: Position) {
        if let Some(run) = self.standing_at(group, from) {
            self.runs[run].ahead = 0;
        }
    }

    /// Notes that a reader went from `from` to the `end` of a window; returns the windows to be read ahead of
    /// it, if it came to this window just now.
    pub fn go_on(
        &mut self,
        group: &Arc<Group>,
        from: Position,
        end: Position,
        memory_bytes: usize,
        now: Duration,
    ) -> Option<Plan> {
        if self.has_come_to(group, end) {
            return None;
        }
        self.turns += 1;
        let Some(standing) = self.standing_at(group, from) else {
            self.begin(group, end, now);
            return None;
        };
        let run = self.runs.remove(standing)?;
        self.runs.push_back(run);
        let windows = (self.runs.back()?.windows + 1).min(WINDOWS_GROWN);
        let share = self.share(memory_bytes, now);
        let window_bytes = window_bytes(windows, share);
        let run = self.runs.back_mut()?;
        (run.group, run.next, run.at, run.windows) = (Arc::clone(group), end, now, windows);
        run.ahead = run.ahead.saturating_sub(1);
        if run.ahead == 0 {
            run.planned = (Arc::clone(group), end);
        }
        // None at its first window, then 2, 4 and 8, as far as its share goes. The next one is planned at each window: if
        // several were planned together, threads would have nothing to read before that.
        let depth = (1_usize << (windows - 1)) & !1;
        let depth = depth.min((share / window_bytes).max(1));
        if run.ahead >= depth {
            return None;
        }
        let count = depth - run.ahead;
        run.ahead = depth;
        Some(Plan {
            run: run.id,
            from: run.planned.clone(),
            count,
            window_bytes,
        })
    }

    /// Notes up to where the windows of a plan were planned, and how many of them were not.
    pub fn planned(&mut self, plan: &Plan, to: (Arc<Group>, Position), missing: usize) {
        if let Some(run) = self.runs.iter_mut().find(|run| run.id == plan.run) {
            run.planned = to;
            run.ahead = run.ahead.saturating_sub(missing);
        }
    }

    /// The run that goes on at a position: it stands there, or at the end of an earlier group of the lane.
    fn standing_at(&self, group: &Arc<Group>, from: Position) -> Option<usize> {
        let stands_before = |run: &Run| {
            from == Position(0)
                && run.group.lane == group.lane
                && run.group.id < group.id
                && run.group.end().is_some_and(|end| end.position == run.next)
        };
        let stands_there = |run: &Run| Arc::ptr_eq(&run.group, group) && run.next == from;
        let mut runs = self.runs.iter();
        runs.rposition(|run| stands_there(run) || stands_before(run))
    }

    fn has_come_to(&self, group: &Arc<Group>, end: Position) -> bool {
        let is_there = |run: &Run| Arc::ptr_eq(&run.group, group) && run.next == end;
        self.runs.iter().rev().any(is_there)
    }
}

/// Returns the size of the next window of a run that has come to `windows`: two of them fit its share.
fn window_bytes(windows: u32, share: usize) -> usize {
    let grown = WINDOW_BYTES_MIN * WINDOW_GROWTH.pow(windows.min(WINDOWS_GROWN));
    grown.min(share / 2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES)
}

#[cfg(test)]
mod tests {
    use millstream_base::{GroupId, LaneIndex, Offset, StreamId, StreamletIndex, Timestamp};

    use super::*;
    use crate::group::end::GroupEnd;
    use crate::ids::{GroupName, LaneId};

    const MEMORY: usize = 64 << 20;
    const NOW: Duration = Duration::ZERO;

    fn group(id: u64) -> Arc<Group> {
        let lane = LaneId {
            stream: StreamId(1),
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        let name = GroupName::of_new(lane, GroupId(id), Offset(0));
        Arc::new(Group::new(name, uuid::Uuid::nil(), 0))
    }

    fn at(window: usize) -> Position {
        Position((window * WINDOW_BYTES) as u64)
    }

    #[test]
    fn read_ahead_grows_with_each_window_that_a_reader_reaches() {
        let mut runs = Runs::default();
        let group = group(1);
        assert_eq!(runs.window_at(&group, at(0), MEMORY, NOW), None);
        runs.begin(&group, at(0), NOW);
        let first = runs.window_at(&group, at(0), MEMORY, NOW);
        assert_eq!(first, Some(WINDOW_BYTES_MIN));
        assert!(runs.go_on(&group, at(0), at(1), MEMORY, NOW).is_none());
        let mut planned = 1;
        for window in 1..100 {
            // It reaches the same window again and again.
            let plan = runs.go_on(&group, at(window), at(window + 1), MEMORY, NOW);
            assert!(
                runs.go_on(&group, at(window), at(window + 1), MEMORY, NOW)
                    .is_none()
            );
            if let Some(plan) = plan {
                assert_eq!(plan.from.1, at(planned.max(window + 1)));
                planned = planned.max(window + 1) + plan.count;
                let to = (Arc::clone(&group), at(planned));
                runs.planned(&plan, to, 0);
            }
            let ahead = planned - (window + 1);
            let expected = match window {
                1 => 2,
                2 => 4,
                _ => 8,
            };
            assert_eq!(ahead, expected, "ahead of window {window}");
        }
        let grown = runs.window_at(&group, at(100), MEMORY, NOW);
        assert_eq!(grown, Some(WINDOW_BYTES));
    }

    #[test]
    fn a_sequential_read_that_lost_its_windows_plans_read_ahead_anew() {
        let mut runs = Runs::default();
        let group = group(1);
        runs.begin(&group, at(0), NOW);
        for window in 0..8 {
            let plan = runs.go_on(&group, at(window), at(window + 1), MEMORY, NOW);
            assert!(window == 0 || plan.is_some());
        }
        runs.missed(&group, at(8));
        let plan = runs.go_on(&group, at(8), at(9), MEMORY, NOW).unwrap();
        assert_eq!((plan.from.1, plan.count), (at(9), 8));
        // There was memory for two of them.
        runs.planned(&plan, (Arc::clone(&group), at(11)), 6);
        let plan = runs.go_on(&group, at(9), at(10), MEMORY, NOW).unwrap();
        assert_eq!((plan.from.1, plan.count), (at(11), 7));
    }

    #[test]
    fn a_sequential_read_continues_in_the_next_group_and_active_reads_share_the_memory() {
        let mut runs = Runs::default();
        let (one, two) = (group(1), group(2));
        runs.begin(&one, at(3), NOW);
        assert_eq!(runs.window_at(&two, at(0), MEMORY, NOW), None);
        one.close(GroupEnd {
            position: at(3),
            offset: Offset(9),
            max_timestamp: Timestamp(0),
            stable: Offset(9),
        });
        assert!(runs.window_at(&two, at(0), MEMORY, NOW).is_some());
        assert_eq!(runs.window_at(&two, at(1), MEMORY, NOW), None);

        let others: Vec<_> = (10..138).map(group).collect();
        for other in &others {
            runs.begin(other, at(0), NOW);
            for window in 0..4 {
                runs.go_on(other, at(window), at(window + 1), MEMORY, NOW);
            }
        }
        let share = MEMORY / AHEAD_SHARE / others.len();
        let shared = runs.window_at(&others[0], at(4), MEMORY, NOW);
        assert_eq!(shared, Some(share / 2));
        // Each has as much ahead of it as its share allows, and no more.
        let plan = runs.go_on(&others[0], at(4), at(5), MEMORY, NOW);
        assert!(plan.is_none_or(|plan| plan.count <= 2));
        let later = 2 * ACTIVE_FOR;
        let alone = runs.window_at(&others[0], at(5), MEMORY, later);
        assert_eq!(alone, Some(WINDOW_BYTES));
    }

    #[test]
    fn the_number_of_remembered_read_positions_is_bounded() {
        let mut runs = Runs::default();
        let group = group(1);
        for window in 0..2 * RUNS_MAX {
            runs.begin(&group, at(window), NOW);
        }
        assert_eq!(runs.runs.len(), RUNS_MAX);
        assert_eq!(runs.window_at(&group, at(0), MEMORY, NOW), None);
    }
}
