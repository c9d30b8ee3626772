//! Eviction: the pool gets the buffers of persisted segments back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::core::Core;
use crate::group::Group;
use crate::lane::LaneState;
use crate::lane::residents::Resident;
use crate::memory::pool::Arena;

/// The part of the pool for which streams that are never written to disk give their open groups.
const MEMORY_ONLY_FREE_MIN: usize = 16;

impl Core {
    /// Gives buffers back until `goal` bytes are free, in this order: segments that all their
    /// readers have passed, other persisted ones, those that first must be written to their files,
    /// and at last the heads of the lanes that were idle for longest.
    pub fn reclaim(&self, goal: usize) -> bool {
        let _one = self.reclaiming.lock();
        let before = self.appends.free_bytes();
        let mut residents = std::mem::take(&mut *self.appends.residents.lock());

        self.evict(&mut residents, goal, true);
        self.evict(&mut residents, goal, false);
        if self.appends.free_bytes() < goal {
            self.sync_written(self.appends.queue.drain_unsynced());
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, false);
        }
        if self.appends.free_bytes() < goal {
            self.close_idlest(&residents, goal);
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, false);
        }
        let least = self.pool.size_bytes(Arena::Segments) / MEMORY_ONLY_FREE_MIN;
        if self.appends.free_bytes() < goal.min(least) {
            self.close_memory_only(&residents);
            self.evict(&mut residents, goal.min(least), false);
        }

        let mut current = self.appends.residents.lock();
        residents.append(&mut current);
        *current = residents;
        self.appends.free_bytes() > before
    }

    /// Gives the buffers of persisted segments back, oldest first.
    pub fn evict(&self, residents: &mut VecDeque<Resident>, goal: usize, passed_only: bool) {
        residents.retain(|resident| {
            if self.appends.free_bytes() >= goal {
                return true;
            }
            let Some(lane) = self.lane(resident.lane) else {
                // The stream was deleted, and its buffers with it.
                return false;
            };
            if lane.is_memory_only() {
                return !self.evict_memory_only(&lane, resident);
            }
            let passed = || {
                resident
                    .group
                    .segment_end(resident.segment)
                    .is_some_and(|end| lane.readers_passed(resident.group.id, end))
            };
            if passed_only && !passed() {
                return true;
            }
            let evicted = resident.group.evict(resident.segment);
            if evicted {
                self.counters
                    .evicted_segments
                    .fetch_add(1, Ordering::Relaxed);
            }
            !evicted
        });
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

    /// Takes the buffers of lanes that had no appends for a while.
    pub fn release_idle(&self) {
        let now = self.tick();
        let _one = self.reclaiming.lock();
        let heads: Vec<Resident> = self
            .appends
            .residents
            .lock()
            .iter()
            .filter(|resident| resident.group.segment_end(resident.segment).is_none())
            .cloned()
            .collect();
        let mut closed = Vec::new();
        for resident in heads {
            if let Some(lane) = self
                .lane(resident.lane)
                .filter(|lane| !lane.is_memory_only())
                && now.saturating_sub(lane.appended_at()) >= self.config.idle_after
                && lane.close_head_segment()
            {
                closed.push(resident);
            }
        }
        if closed.is_empty() {
            return;
        }
        closed.sort_unstable_by_key(|idle| (idle.lane, idle.group.id));
        self.persist(closed.iter().map(|idle| Arc::clone(&idle.group)).collect());
        self.appends.residents.lock().retain(|resident| {
            let idle = closed
                .binary_search_by_key(&(resident.lane, resident.group.id), |idle| {
                    (idle.lane, idle.group.id)
                })
                .is_ok();
            !(idle && resident.group.evict(resident.segment))
        });
    }
}
