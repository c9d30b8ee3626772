//! The parts of a log that all of its lanes need to append: memory, the syncers' queue, and the state of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::files::disk_space::DiskSpace;
use crate::lane::compaction_marks::CompactionMarks;
use crate::lane::persist_signal::PersistSignal;
use crate::lane::residents::Residents;
use crate::lane::sync_queue::SyncQueue;
use crate::memory::pool::{Arena, Pool};

/// The persistence manager is woken when less than this part of the pool is free.
pub const POOL_FREE_MIN: f64 = 0.25;

/// When trimming cannot reach the goal, it waits until this part of the goal more is in use: so its cost stays in proportion to
/// the appended bytes.
const TRIM_STEP_SHARE: usize = 4;

/// The parts of the log that appends need. They reach no others.
pub struct AppendContext {
    pub pool: Arc<Pool>,
    pub queue: SyncQueue,
    pub residents: Residents,
    pub disk: DiskSpace,
    pub persister: PersistSignal,
    /// The lanes that may be due for compaction.
    pub compaction_marks: Arc<CompactionMarks>,
    /// Whether the log is closed. Stored by its end, loaded by appends under their lane's lock.
    pub closed: AtomicBool,
    /// See [`AppendContext::recently`].
    recently_ms: AtomicU64,
    /// The memory that trimming cannot free, at the last look. Stored by the thread that trims, loaded by others.
    untrimmed_bytes: AtomicUsize,
    /// The use of memory above which trimming may be worth it. Stored by the thread that trims, loaded by appends and syncers.
    trim_above: AtomicUsize,
}

impl AppendContext {
    pub fn new(pool: Arc<Pool>, disk: DiskSpace) -> AppendContext {
        let goal = pool.goal_bytes();
        AppendContext {
            pool,
            queue: SyncQueue::default(),
            residents: Residents::default(),
            disk,
            persister: PersistSignal::default(),
            compaction_marks: Arc::default(),
            closed: AtomicBool::new(false),
            recently_ms: AtomicU64::new(0),
            untrimmed_bytes: AtomicUsize::new(0),
            trim_above: AtomicUsize::new(goal + goal / TRIM_STEP_SHARE),
        }
    }

    /// Returns the monotonic time at the last tick: it costs no call, and is exact enough to find idle lanes.
    pub fn recently(&self) -> Duration {
        Duration::from_millis(self.recently_ms.load(Ordering::Relaxed))
    }

    /// Notes the monotonic time.
    pub fn set_recently(&self, now: Duration) {
        self.recently_ms
            .store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns how much of the segments' memory is in use.
    pub fn used_bytes(&self) -> usize {
        self.pool.used_bytes(Arena::Segments)
    }

    /// Returns how much of the segments' memory is free.
    pub fn free_bytes(&self) -> usize {
        self.pool.size_bytes(Arena::Segments) - self.used_bytes()
    }

    /// Returns how much of the segments' memory should be in use at most.
    fn allowed_bytes(&self) -> usize {
        self.pool.goal_bytes() + self.untrimmed_bytes.load(Ordering::Relaxed)
    }

    /// Whether more memory is in use than should be.
    pub fn exceeds_goal(&self) -> bool {
        self.used_bytes() > self.allowed_bytes()
    }

    /// Notes the memory that trimming cannot free: it is beside the goal.
    pub fn note_untrimmed(&self, bytes: usize) {
        self.untrimmed_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Whether the memory in use has grown enough that trimming may be worth it.
    pub fn wants_trim(&self) -> bool {
        self.used_bytes() > self.trim_above.load(Ordering::Relaxed)
    }

    /// Notes that trimming is over: the next one is worth it when more is in use.
    pub fn note_trimmed(&self) {
        let step = self.pool.goal_bytes() / TRIM_STEP_SHARE;
        let used = self.used_bytes().max(self.allowed_bytes());
        self.trim_above.store(used + step, Ordering::Relaxed);
    }

    /// Wakes the persistence manager where memory has become short, or more is in use than should be.
    pub fn check_memory(&self) {
        let size = self.pool.size_bytes(Arena::Segments);
        if (self.free_bytes() as f64) < size as f64 * POOL_FREE_MIN || self.wants_trim() {
            self.persister.notify();
        }
    }
}
