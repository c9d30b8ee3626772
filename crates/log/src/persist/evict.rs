//! Eviction: the pool gets the buffers of persisted segments back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use millstream_base::{GroupId, SegmentIndex};

use crate::core::Core;
use crate::group::Group;
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::lane::recent_reads::Place;
use crate::lane::residents::Resident;
use crate::lane::virtual_log::DIRECT_BYTES_MIN;
use crate::memory::pool::Arena;

/// The part of the pool for which streams that are never written to disk give their open groups.
const MEMORY_ONLY_FREE_MIN: usize = 16;

/// A pass of eviction where memory is short, by the segments that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictionPass {
    /// Those that all readers near the head have passed.
    Passed,
    /// Any.
    All,
}

/// The lanes of residents, as one pass of eviction knows them.
struct LaneUses<'a> {
    core: &'a Core,
    now: Duration,
    known: HashMap<LaneId, Option<LaneUse>>,
}

struct LaneUse {
    lane: Arc<LaneState>,
    needed_from: Option<Place>,
}

impl<'a> LaneUses<'a> {
    fn new(core: &'a Core) -> LaneUses<'a> {
        LaneUses {
            core,
            now: core.clock.monotonic(),
            known: HashMap::new(),
        }
    }

    /// Returns a lane; `None` if its stream was deleted.
    fn of(&mut self, id: LaneId) -> Option<&LaneUse> {
        let known = self.known.entry(id).or_insert_with(|| {
            let lane = self.core.lane(id)?;
            Some(LaneUse::new(lane, self.now))
        });
        known.as_ref()
    }
}

impl LaneUse {
    fn new(lane: Arc<LaneState>, now: Duration) -> LaneUse {
        LaneUse {
            needed_from: lane.needed_from(now),
            lane,
        }
    }

    /// Whether segments of the lane are evicted while memory is not short. Look-ups by key may read any record of a keyed
    /// stream, and a `memory` stream has its records nowhere else.
    fn is_trimmed(&self) -> bool {
        !self.lane.is_memory_only() && !self.lane.stream.limits.needs_keys()
    }

    /// Whether a segment is closed, and all readers near the head have passed it.
    fn has_passed(&self, resident: &Resident) -> bool {
        let end = resident.group.segment_end(resident.segment);
        end.is_some_and(|end| self.is_unneeded_before((resident.group.id, end)))
    }

    /// Whether no reader near the head needs anything before a place.
    fn is_unneeded_before(&self, place: Place) -> bool {
        self.needed_from.is_none_or(|needed| place <= needed)
    }
}

impl Core {
    /// Gives buffers back until `goal` bytes are free, in this order: segments that all their
    /// readers have passed, other persisted ones, those that first must be written to their files,
    /// and at last the heads of the lanes that were idle for longest.
    pub fn reclaim(&self, goal: usize) -> bool {
        let _one = self.reclaiming.lock();
        let before = self.appends.free_bytes();
        let mut residents = std::mem::take(&mut *self.appends.residents.lock());

        self.evict(&mut residents, goal, EvictionPass::Passed);
        self.evict(&mut residents, goal, EvictionPass::All);
        if self.appends.free_bytes() < goal {
            self.sync_written(self.appends.queue.drain_unsynced());
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, EvictionPass::All);
        }
        if self.appends.free_bytes() < goal {
            self.close_idlest(&residents, goal);
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, EvictionPass::All);
        }
        let least = self.pool.size_bytes(Arena::Segments) / MEMORY_ONLY_FREE_MIN;
        if self.appends.free_bytes() < goal.min(least) {
            self.close_memory_only(&residents);
            self.evict(&mut residents, goal.min(least), EvictionPass::All);
        }
        self.add_back(residents);
        self.appends.free_bytes() > before
    }

    /// Gives the buffers back that no reader near the head needs, oldest first, as far as more memory is in use than should be.
    /// Costs no I/O; leaves the work to another thread that does it. `true` if it gave any back.
    pub fn trim(&self) -> bool {
        self.trim_and(|_, _| ()).0
    }

    /// As [`trim`](Self::trim), and writes closed segments to their files if that does not suffice: those of groups that have
    /// much to write, since each costs a sync.
    pub fn trim_and_persist(&self) -> bool {
        let (has_trimmed, groups) = self.trim_and(|residents, lanes| {
            let exceeds_goal = self.appends.exceeds_goal();
            exceeds_goal.then(|| large_unsynced(residents, lanes))
        });
        let groups = groups.unwrap_or_default();
        if groups.is_empty() {
            return has_trimmed;
        }
        self.persist(groups);
        self.journal.release_obsolete();
        self.trim() | has_trimmed
    }

    /// Trims after a commit, where more memory is in use than should be: the committed segments may be persisted now.
    pub fn trim_after_commit(&self) {
        if !self.appends.wants_trim() {
            return;
        }
        self.trim();
        if self.appends.exceeds_goal() {
            self.exceeds_goal.store(true, Ordering::Relaxed);
            self.appends.persister.notify();
        }
    }

    /// Trims, then calls `look` with the segments that are left. Returns whether it gave any back, and the result of `look`.
    fn trim_and<R: Default>(
        &self,
        look: impl FnOnce(&VecDeque<Resident>, &mut LaneUses<'_>) -> R,
    ) -> (bool, R) {
        let Some(_one) = self.reclaiming.try_lock() else {
            return (false, R::default());
        };
        let used = self.appends.used_bytes();
        let mut residents = std::mem::take(&mut *self.appends.residents.lock());
        let before = residents.len();
        let mut lanes = LaneUses::new(self);

        // Step 1: count what trimming may free. All other memory is beside the goal: of streams that are not trimmed, and of
        // evicted segments that a slice holds.
        let mut trimmed = 0;
        residents.retain(|resident| {
            if resident.group.is_removed() && self.evict_segment(resident).is_some() {
                return false;
            }
            if lanes.of(resident.lane).is_some_and(LaneUse::is_trimmed) {
                trimmed += resident.group.segment_memory(resident.segment);
            }
            true
        });
        self.appends.note_untrimmed(used.saturating_sub(trimmed));

        // Step 2: evict.
        let mut excess = trimmed.saturating_sub(self.pool.goal_bytes());
        residents.retain(|resident| {
            if excess == 0 {
                return true;
            }
            let Some(lane) = lanes.of(resident.lane) else {
                // The stream was deleted, and its buffers with it.
                return false;
            };
            if !lane.is_trimmed() || !lane.has_passed(resident) {
                return true;
            }
            let evicted = self.evict_segment(resident);
            excess = excess.saturating_sub(evicted.unwrap_or(0));
            evicted.is_none()
        });

        let has_evicted = residents.len() < before;
        let result = look(&residents, &mut lanes);
        self.add_back(residents);
        self.appends.note_trimmed();
        (has_evicted, result)
    }

    /// Adds residents back that a pass of eviction has taken, before those that have come since.
    fn add_back(&self, mut residents: VecDeque<Resident>) {
        let mut current = self.appends.residents.lock();
        residents.append(&mut current);
        *current = residents;
    }

    /// Gives the buffers of persisted segments back, oldest first, until `goal` bytes are free.
    fn evict(&self, residents: &mut VecDeque<Resident>, goal: usize, pass: EvictionPass) {
        let mut lanes = LaneUses::new(self);
        residents.retain(|resident| {
            if self.appends.free_bytes() >= goal {
                return true;
            }
            let Some(lane) = lanes.of(resident.lane) else {
                // The stream was deleted, and its buffers with it.
                return false;
            };
            if lane.lane.is_memory_only() {
                return !self.evict_memory_only(&lane.lane, resident);
            }
            let may_go = pass == EvictionPass::All || lane.has_passed(resident);
            !(may_go && self.evict_segment(resident).is_some())
        });
    }

    /// Gives the buffer of a segment back, if it is persisted. Returns its size; `None` if it stays.
    fn evict_segment(&self, resident: &Resident) -> Option<usize> {
        let evicted = resident.group.evict(resident.segment);
        if evicted.is_some() {
            self.counters
                .evicted_segments
                .fetch_add(1, Ordering::Relaxed);
        }
        evicted
    }

    /// A stream that is never written to disk loses its oldest closed group instead.
    pub fn evict_memory_only(&self, lane: &LaneState, resident: &Resident) -> bool {
        if resident.group.end().is_some()
            && let Some(group) = lane.remove_first(resident.group.id)
        {
            // It has no files, so nothing can fail.
            let _ = group.remove(&self.dir);
        }
        resident.group.is_removed()
    }

    /// Persists the groups of closed segments, oldest first, as far as `goal` asks for.
    fn persist_closed(&self, residents: &VecDeque<Resident>, goal: usize) {
        let mut missing = goal.saturating_sub(self.appends.free_bytes()) as u64;
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for resident in residents {
            if missing == 0 {
                break;
            }
            let group = &resident.group;
            let Some(end) = group.segment_end(resident.segment) else {
                continue;
            };
            if group.synced() < end && end <= group.durable() {
                let base = group.segment_base(resident.segment).unwrap_or(end);
                missing = missing.saturating_sub(end.0 - base.0);
                groups.push(Arc::clone(group));
            }
        }
        if !groups.is_empty() {
            self.persist(groups);
        }
    }

    /// Closes the head segments of the lanes that were idle for longest.
    fn close_idlest(&self, residents: &VecDeque<Resident>, goal: usize) {
        let mut heads: Vec<(Duration, Arc<LaneState>)> = residents
            .iter()
            .filter(|resident| resident.group.segment_end(resident.segment).is_none())
            .filter_map(|resident| self.lane(resident.lane))
            .filter(|lane| !lane.is_memory_only())
            .map(|lane| (lane.appended_at(), lane))
            .collect();
        heads.sort_unstable_by_key(|(appended_at, _)| *appended_at);
        let mut missing = goal.saturating_sub(self.appends.free_bytes()) as u64;
        for (_, lane) in heads {
            if missing == 0 {
                break;
            }
            if lane.close_head_segment() {
                missing = missing.saturating_sub(crate::memory::pool::BLOCK_BYTES_MIN as u64);
            }
        }
    }

    /// Closes the open groups of streams that are never written to disk: their memory comes back
    /// group by group, and their lanes alone may fill the pool.
    pub fn close_memory_only(&self, residents: &VecDeque<Resident>) {
        for resident in residents {
            if let Some(lane) = self
                .lane(resident.lane)
                .filter(|lane| lane.is_memory_only())
            {
                lane.close_memory_only_group();
            }
        }
    }

    /// Takes the buffers of lanes that had no appends for a while, and gives memory back to the system that was not used since
    /// the last call.
    pub fn release_idle(&self) {
        let now = self.tick();
        self.release_idle_lanes(now);
        self.trim();
        self.reads.catch_up.forget_idle(now);
        self.pool.give_back_idle();
    }

    /// Closes the heads of idle lanes, and evicts their segments, as far as no reader needs them. A keyed lane gives back its
    /// head alone: look-ups read the others.
    fn release_idle_lanes(&self, now: Duration) {
        let _one = self.reclaiming.lock();
        let mut residents = std::mem::take(&mut *self.appends.residents.lock());
        let mut idle: HashMap<LaneId, Option<LaneUse>> = HashMap::new();

        // Step 1: close the heads, and write them to their files.
        let mut closed: HashSet<(LaneId, GroupId, SegmentIndex)> = HashSet::new();
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for resident in &residents {
            let found = idle.entry(resident.lane);
            let Some(found) = found.or_insert_with(|| self.idle_lane(resident.lane, now)) else {
                continue;
            };
            let group = &resident.group;
            let is_head = group.segment_end(resident.segment).is_none();
            if is_head
                && found.is_unneeded_before((group.id, group.durable()))
                && found.lane.close_head_segment()
            {
                closed.insert((resident.lane, group.id, resident.segment));
                groups.push(Arc::clone(group));
            }
        }
        if !groups.is_empty() {
            self.persist(groups);
        }

        // Step 2: evict.
        residents.retain(|resident| {
            let Some(Some(found)) = idle.get(&resident.lane) else {
                return true;
            };
            let segment = (resident.lane, resident.group.id, resident.segment);
            let may_go =
                closed.contains(&segment) || (found.is_trimmed() && found.has_passed(resident));
            !(may_go && self.evict_segment(resident).is_some())
        });

        // Step 3: lanes without memory need not know their readers.
        for resident in &residents {
            idle.remove(&resident.lane);
        }
        for found in idle.into_values().flatten() {
            found.lane.forget_reads();
        }
        self.add_back(residents);
    }

    /// Returns a lane if it had no appends for a while, and is written to disk.
    fn idle_lane(&self, id: LaneId, now: Duration) -> Option<LaneUse> {
        let lane = self.lane(id).filter(|lane| !lane.is_memory_only())?;
        let is_idle = now.saturating_sub(lane.appended_at()) >= self.config.idle_after;
        is_idle.then(|| LaneUse::new(lane, now))
    }
}

/// Returns groups whose closed segments have enough durable bytes that are not in their files: writing them costs more than
/// the sync.
fn large_unsynced(residents: &VecDeque<Resident>, lanes: &mut LaneUses<'_>) -> Vec<Arc<Group>> {
    let mut unsynced: HashMap<(LaneId, GroupId), (Arc<Group>, u64)> = HashMap::new();
    for resident in residents {
        let group = &resident.group;
        let (Some(base), Some(end)) = (
            group.segment_base(resident.segment),
            group.segment_end(resident.segment),
        ) else {
            continue;
        };
        let synced = group.synced();
        let is_writable = synced < end && end <= group.durable() && !group.has_failed();
        if is_writable && lanes.of(resident.lane).is_some_and(LaneUse::is_trimmed) {
            let of_group = unsynced
                .entry((group.lane, group.id))
                .or_insert_with(|| (Arc::clone(group), 0));
            of_group.1 += end.0 - base.max(synced).0;
        }
    }
    let all = unsynced.into_values();
    let large = all.filter(|(_, bytes)| *bytes >= DIRECT_BYTES_MIN as u64);
    large.map(|(group, _)| group).collect()
}
