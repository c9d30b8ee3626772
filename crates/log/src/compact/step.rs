//! The compaction of a node: looks at lanes that may be due, and makes one pass at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::{Offset, Position, Timestamp};
use millstream_record::Chunks;

use crate::compact::compactor::Compactor;
use crate::compact::due::{LaneFacts, after, judge};
use crate::compact::join::{join, runs_to_join};
use crate::compact::pass::{PassOrder, PassReport, compacted, pass, range, values_end};
use crate::compact::schedule::{Schedule, Scheduled};
use crate::compact::stats::LogCompaction;
use crate::core::Core;
use crate::error::LogError;
use crate::group::Group;
use crate::ids::LaneId;
use crate::keys::expiry::KeyedClock;
use crate::lane::LaneState;
use crate::lane::holds::HeldOffsets;
use crate::read::group::read_group;
use crate::settings::compaction::Compaction;
use crate::stream::StreamState;

/// How long a lane is left alone after a pass that has failed. Kafka's `log.cleaner.backoff.ms`.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// The same after a pass that could not take all groups, since one had no key file or was being removed.
const GO_ON_AFTER: Duration = Duration::from_secs(1);

/// The time until the next check of a lane with expired markers that readers of replaced groups may still need.
const HELD_LOOK_AFTER: Duration = Duration::from_secs(60);

impl Core {
    /// Returns how compaction is doing.
    pub fn compaction(&self) -> LogCompaction {
        let counters = &self.compactor.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended_at = Timestamp(counters.ended_at.load(Ordering::Relaxed));
        LogCompaction {
            passes: count(&counters.passes),
            failed: count(&counters.failed),
            bytes_before: count(&counters.bytes_before),
            bytes_after: count(&counters.bytes_after),
            records_dropped: count(&counters.records_dropped),
            ended_at: (ended_at > Timestamp(0)).then_some(ended_at),
            due_partitions: count(&counters.due_lanes),
            failing_partitions: count(&counters.failing_lanes),
            replaced_groups: self.replaced.lock().len() as u64,
        }
    }

    /// Checks the lanes that may be due, and makes a pass over the lane that is most due. Returns whether there may be more to do.
    pub fn compact_step(&self) -> bool {
        let Some(mut schedule) = self.compactor.schedule.try_lock() else {
            return false;
        };
        if self.appends.disk.is_full() {
            return false;
        }
        let mut lanes = self.appends.compaction_marks.take();
        lanes.extend(schedule.take_looks(self.clock.monotonic()));
        let mut has_more = false;
        for lane in lanes {
            if self.compactor.signal.is_closed() {
                return false;
            }
            has_more |= self.look_at_lane(&mut schedule, lane);
        }
        let most_due = schedule.most_due(self.both_times());
        if let Some(lane) = most_due {
            self.compact_lane(&mut schedule, lane);
            has_more |= self.look_at_lane(&mut schedule, lane);
        }
        let due_lanes = schedule.due_count() as u64;
        let counters = &self.compactor.counters;
        counters.due_lanes.store(due_lanes, Ordering::Relaxed);
        (has_more || most_due.is_some()) && !self.compactor.signal.is_closed()
    }

    /// Makes compaction check all lanes of a stream, since its settings may have changed.
    pub fn mark_for_compaction(&self, stream: &StreamState) {
        for lane in stream.made_lanes() {
            self.appends.compaction_marks.add(lane.id);
        }
    }

    /// Returns the time by which records are dropped, and the monotonic time.
    fn both_times(&self) -> (Timestamp, Duration) {
        let now = self.compactor.time.now(&*self.clock);
        (now, self.clock.monotonic())
    }

    /// Returns the lane with the settings of its compaction; `None` if it is not compacted.
    fn compacted_lane(&self, id: LaneId) -> Option<(Arc<LaneState>, Compaction)> {
        let stream = self.stream(id.stream)?;
        let lane = stream.lane(id.streamlet, id.lane)?;
        let is_able = !lane.is_removed() && !lane.is_memory_only() && lane.fault().is_none();
        let config = self.effective(stream.kind, stream.shared.config.read().clone());
        let settings = Compaction::of(&config.settings).filter(|_| is_able)?;
        Some((lane, settings))
    }

    /// Decides whether a lane is due, and when to check it again. Returns whether that led to other
    /// background work.
    fn look_at_lane(&self, schedule: &mut Schedule, id: LaneId) -> bool {
        let Some((lane, settings)) = self.compacted_lane(id) else {
            let forgotten = schedule.forget(id);
            self.note_failing(forgotten.is_some_and(|lane| lane.is_failing), false);
            if let Some(lane) = self.lane(id) {
                lane.forget_compaction_stats();
            }
            return false;
        };
        let before = closed_in_journal(&lane);
        if !before.is_empty() {
            // They may be there for long, and get no key files meanwhile.
            self.persist(before.clone());
            self.key_builder.notify();
        }
        let left = closed_in_journal(&lane);
        let now = self.both_times();
        let facts = LaneFacts {
            is_settled: left.is_empty(),
            ..self.facts(&lane, &settings, schedule.lane(id), now.0)
        };
        let verdict = judge(&facts, &settings, now.0);
        schedule.decide(id, &verdict, now);
        let Some(next) = verdict.must_roll.then(|| lane.roll()).flatten() else {
            return left.len() < before.len();
        };
        schedule.lane(id).rolled_at = Some(now.0);
        self.persist(vec![Arc::clone(&next)]);
        // A pass leaves the last group alone, so a start must find this one.
        if let Err(error) = self.found(&lane, &next) {
            tracing::debug!(%error, "the group behind a closed one has no file yet");
        }
        // The lane is marked again when the closed group has its key file.
        self.key_builder.notify();
        true
    }

    /// Collects the facts that decide whether a lane is due.
    fn facts(
        &self,
        lane: &Arc<LaneState>,
        settings: &Compaction,
        scheduled: &mut Scheduled,
        now: Timestamp,
    ) -> LaneFacts {
        let (compacted_to, compacted_at) = compacted(self, lane.id);
        let newest_max = settings.newest_max(now);
        let taken = range(lane, newest_max);
        let held = lane.holds.held();
        // The offset up to which a pass has compacted while the present holds were in force.
        let passed_to = lane.holds.passed_to().max(compacted_to);
        let bytes = |group: &Arc<Group>| group.end().map_or(0, |end| end.position.0);
        let is_dirty = |group: &&Arc<Group>| group.first_offset >= passed_to;
        let spared = match settings.joins {
            true => spared(lane, &taken, compacted_to, &held),
            false => 0.0,
        };
        let total_bytes = taken.iter().map(bytes).sum();
        let dirty_bytes = taken.iter().filter(is_dirty).map(bytes).sum();
        lane.change_compaction_stats(|stats| {
            (stats.total_bytes, stats.dirty_bytes) = (total_bytes, dirty_bytes);
            stats.compacted_to = passed_to;
            stats.compacted_at = (compacted_at > Timestamp(0)).then_some(compacted_at);
        });

        let groups = lane.groups();
        let behind = taken.last().map(|last| last.id);
        let next = groups.iter().find(|group| Some(group.id) > behind);
        let next_end = next.and_then(|group| group.end());
        let too_young = next_end.map(|end| end.max_timestamp);
        let oldest_dirty = settings.lag_max.and_then(|_| {
            let dirty = groups.iter().find(|group| group.first_offset >= passed_to);
            self.first_record(lane, dirty?, scheduled)
        });
        let clean = taken
            .iter()
            .filter(|group| group.first_offset < compacted_to);
        let expiries = clean.filter_map(|group| {
            let unknown = after(compacted_at, settings.delete_retention);
            self.expiry_of(group, unknown, now)
        });
        let (ends, ended_bytes) = ends_of_values(lane, &taken, &held);
        let expiries = expiries.chain(ends.map(|end| after(end, settings.delete_retention)));
        LaneFacts {
            total_bytes,
            dirty_bytes,
            oldest_dirty,
            too_young: too_young.filter(|newest| *newest > newest_max),
            has_open: lane.open_max_timestamp().is_some(),
            rolled_at: scheduled.rolled_at,
            expires_at: expiries.min(),
            ended_bytes,
            is_settled: true,
            spared,
        }
    }

    /// Returns when the first tombstones or markers of a compacted group expire. Where an earlier program has made its key
    /// file, tombstones expire at `unknown`.
    fn expiry_of(&self, group: &Group, unknown: Timestamp, now: Timestamp) -> Option<Timestamp> {
        if !group.is_rewritten() {
            return None;
        }
        let Some(horizons) = group.horizons() else {
            let has_tombstones = group.key_counts().is_some_and(|keys| keys.tombstones > 0);
            return has_tombstones.then_some(unknown);
        };
        // Markers stay while a reader may have a group that was replaced.
        let is_held = self.replaced.has_any_of(group.lane);
        let markers = horizons.markers.map(|at| match is_held {
            true => at.max(after(now, HELD_LOOK_AFTER)),
            false => at,
        });
        [horizons.tombstones, markers].into_iter().flatten().min()
    }

    /// Returns the time of the first record of a group, if it can be read.
    fn first_record(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        scheduled: &mut Scheduled,
    ) -> Option<Timestamp> {
        if let Some((known, time)) = scheduled.first_record
            && known == group.id
        {
            return Some(time);
        }
        // One chunk at least.
        let slice = read_group(&self.reads, lane, group, Position(0), 1).ok()??;
        let first = Chunks::trusted(&slice).next()?.ok()?;
        let time = first.header().max_timestamp;
        scheduled.first_record = Some((group.id, time));
        Some(time)
    }

    /// Makes a pass over a lane, or joins its groups where no pass is due.
    fn compact_lane(&self, schedule: &mut Schedule, id: LaneId) {
        let Some((lane, settings)) = self.compacted_lane(id) else {
            return;
        };
        let (now, began) = self.both_times();
        let is_wanted = || match self.compacted_lane(id).is_some() {
            true => Ok(()),
            false => Err(LogError::Closed),
        };
        let spend = |bytes| {
            let Compactor { pace, signal, .. } = &self.compactor;
            pace.spend(bytes, &*self.clock, signal, is_wanted)
        };
        let order = PassOrder::new(&settings, now, &spend);
        let before = lane.holds.passed_to().max(compacted(self, id).0);
        let is_for_pass = schedule.lane(id).is_for_pass();
        let result = match is_for_pass {
            true => pass(self, &lane, &order),
            false => join(self, &lane, &order),
        };
        let scheduled = schedule.lane(id);
        let ended = self.clock.monotonic();
        match result {
            Ok(report) => {
                let goes_on = match is_for_pass {
                    true => report.compacted_to.is_some_and(|to| to > before),
                    false => report.groups_before > 0,
                };
                if report.is_left || !goes_on {
                    scheduled.retry_at = ended + GO_ON_AFTER;
                }
                self.note_pass(&lane, &report, ended.saturating_sub(began));
                self.note_failing(scheduled.is_failing, false);
                scheduled.is_failing = false;
            }
            // The log closes, or the lane is not to be compacted any more.
            Err(_) if self.compactor.signal.is_closed() || is_wanted().is_err() => {}
            Err(error) => {
                scheduled.retry_at = ended + RETRY_AFTER;
                self.note_failure(&lane, scheduled.is_failing, &error);
                self.note_failing(scheduled.is_failing, true);
                scheduled.is_failing = true;
            }
        }
    }

    fn note_pass(&self, lane: &LaneState, report: &PassReport, time: Duration) {
        let counters = &self.compactor.counters;
        add(&counters.passes, 1);
        add(&counters.bytes_before, report.bytes_before);
        add(&counters.bytes_after, report.bytes_after);
        add(&counters.records_dropped, report.records_dropped);
        let ended_at = self.clock.now();
        counters.ended_at.store(ended_at.0, Ordering::Relaxed);
        lane.change_compaction_stats(|stats| {
            stats.passes += 1;
            stats.bytes_before += report.bytes_before;
            stats.bytes_after += report.bytes_after;
            stats.fault = None;
        });
        tracing::info!(stream = %lane.stream.name, partition = lane.partition, ?report, ?time, "compacted a partition");
    }

    /// Takes note of a pass that has failed. `is_known` says that the one before it has failed, too.
    fn note_failure(&self, lane: &LaneState, is_known: bool, error: &LogError) {
        add(&self.compactor.counters.failed, 1);
        lane.change_compaction_stats(|stats| {
            stats.failed += 1;
            stats.fault = Some(error.to_string());
        });
        if !is_known {
            tracing::warn!(stream = %lane.stream.name, partition = lane.partition, %error,
                "a partition cannot be compacted now; it is tried again every 15 seconds, and all of its records stay");
        }
    }

    /// Takes note that the last pass of a lane has failed or not, and the one before it.
    fn note_failing(&self, before: bool, now: bool) {
        let failing = &self.compactor.counters.failing_lanes;
        match (before, now) {
            (false, true) => failing.fetch_add(1, Ordering::Relaxed),
            (true, false) => failing.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Returns when the first values of groups that a pass can rewrite end by the wall clock, or the bytes of those groups whose
/// values have ended by the stream's own clock.
fn ends_of_values(
    lane: &LaneState,
    groups: &[Arc<Group>],
    held: &HeldOffsets,
) -> (Option<Timestamp>, u64) {
    let limits = &lane.stream.limits;
    let with_end = groups.iter().filter_map(|group| {
        let is_split = held.split(group.first_offset, group.end()?.offset);
        let ends = values_end(group, limits.ttl()).filter(|_| !is_split);
        ends.map(|ends| (group, ends))
    });
    match limits.keyed_clock() {
        KeyedClock::Wall => (with_end.map(|(_, ends)| ends).min(), 0),
        KeyedClock::At(now) => {
            // Behind a hold, older records of their keys stay, so these values do, too.
            let first = groups.first().map_or(Offset(0), |first| first.first_offset);
            let ended = with_end
                .filter(|(group, ends)| *ends <= now && !held.divide(first, group.first_offset));
            let bytes = ended.filter_map(|(group, _)| Some(group.end()?.position.0));
            (None, bytes.sum())
        }
    }
}

/// Returns the share of groups that joins would spare.
fn spared(
    lane: &LaneState,
    groups: &[Arc<Group>],
    compacted_to: Offset,
    held: &HeldOffsets,
) -> f64 {
    let runs = runs_to_join(lane, groups, compacted_to, held);
    let spared: usize = runs.iter().map(|run| run.len() - 1).sum();
    spared as f64 / groups.len().max(1) as f64
}

/// Returns the closed groups whose files do not have all of their chunks.
fn closed_in_journal(lane: &LaneState) -> Vec<Arc<Group>> {
    let last = lane.last_group();
    last.map_or_else(Vec::new, |last| lane.unsettled_before(last.id))
}
