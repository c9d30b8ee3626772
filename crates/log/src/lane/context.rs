//! The parts of a log that all of its lanes need to append: memory, the syncers' queue, and the state of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::files::disk_space::DiskSpace;
use crate::lane::compaction_marks::CompactionMarks;
use crate::lane::persist_signal::PersistSignal;
use crate::lane::residents::Residents;
use crate::lane::sync_queue::SyncQueue;
use crate::memory::pool::{Arena, Pool};

/// The persistence manager is woken when less than this part of the pool is free.
pub const POOL_FREE_MIN: f64 = 0.25;

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
}

impl AppendContext {
    pub fn new(pool: Arc<Pool>, disk: DiskSpace) -> AppendContext {
        AppendContext {
            pool,
            queue: SyncQueue::default(),
            residents: Residents::default(),
            disk,
            persister: PersistSignal::default(),
            compaction_marks: Arc::default(),
            closed: AtomicBool::new(false),
            recently_ms: AtomicU64::new(0),
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

    /// Returns how much of the segments' memory is free.
    pub fn free_bytes(&self) -> usize {
        self.pool.size_bytes(Arena::Segments) - self.pool.used_bytes(Arena::Segments)
    }

    /// Wakes the persistence manager where memory has become short.
    pub fn check_memory(&self) {
        let size = self.pool.size_bytes(Arena::Segments);
        if (self.free_bytes() as f64) < size as f64 * POOL_FREE_MIN {
            self.persister.notify();
        }
    }
}
