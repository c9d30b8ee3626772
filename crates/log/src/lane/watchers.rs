//! The watches that wait for a lane: it notifies each of them once, when a head has moved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use event_listener::Event;
use hashbrown::HashMap;
use millstream_base::Offset;
use parking_lot::Mutex;

/// The heads of a lane at a moment, for its watches.
#[derive(Debug, Clone, Copy)]
pub struct LaneHeads {
    pub durable: Offset,
    pub high_watermark: Offset,
    /// The lane's stream is deleted.
    pub is_removed: bool,
}

/// The value of [`WatchEntry::after`] while the lane must not notify the watch.
pub const DISARMED: u64 = u64::MAX;

#[derive(Debug, Default)]
pub struct WatchShared {
    /// Keys of lanes that have notified the watch; at most one for each entry that was armed.
    pub ready: Mutex<Vec<u64>>,
    /// Notified when a key was added.
    pub changed: Event,
}

#[derive(Debug)]
pub struct WatchEntry {
    pub watch: Arc<WatchShared>,
    pub key: u64,
    pub head: WatchedHead,
    /// The lane notifies the watch when its head is beyond this. Stored by the thread that arms; swapped for
    /// [`DISARMED`] by the thread that notifies.
    pub after: AtomicU64,
}

/// The head of a lane that a watch observes.
#[derive(Debug, Clone, Copy)]
pub enum WatchedHead {
    Durable,
    HighWatermark,
}

impl WatchedHead {
    fn of(self, heads: &LaneHeads) -> Offset {
        match self {
            WatchedHead::Durable => heads.durable,
            WatchedHead::HighWatermark => heads.high_watermark,
        }
    }
}

impl WatchEntry {
    /// Adds the key to the ready ones, if it is armed for less than the lane's head. Returns whether the caller must wake the
    /// watch.
    pub fn note(&self, heads: &LaneHeads) -> bool {
        let after = self.after.load(Ordering::Relaxed);
        if after == DISARMED || (self.head.of(heads).0 <= after && !heads.is_removed) {
            return false;
        }
        // A thread that arms it meanwhile looks by itself.
        let disarmed =
            self.after
                .compare_exchange(after, DISARMED, Ordering::Relaxed, Ordering::Relaxed);
        if disarmed.is_ok() {
            self.watch.ready.lock().push(self.key);
        }
        disarmed.is_ok()
    }

    pub fn wake(&self) {
        self.watch.changed.notify(usize::MAX);
    }
}

/// The watches that a lane is in.
#[derive(Debug, Default)]
pub struct Watchers {
    /// How many there are: a lane without watches takes no lock. Stored under the lock of `entries`.
    pub count: AtomicUsize,
    /// By address.
    pub entries: Mutex<HashMap<usize, Arc<WatchEntry>>>,
}

impl Watchers {
    pub fn add(&self, entry: &Arc<WatchEntry>) {
        let mut entries = self.entries.lock();
        entries.insert(Arc::as_ptr(entry) as usize, Arc::clone(entry));
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    pub fn remove(&self, entry: &Arc<WatchEntry>) {
        let mut entries = self.entries.lock();
        entries.remove(&(Arc::as_ptr(entry) as usize));
        self.count.store(entries.len(), Ordering::Relaxed);
    }

    /// Whether there are any. The caller has moved the lane's offset, and then made a sequentially
    /// consistent fence.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Notifies those that are armed for less than the lane's head.
    pub fn notify(&self, heads: &LaneHeads) {
        let entries = self.entries.lock();
        let notified: Vec<Arc<WatchEntry>> = entries
            .values()
            .filter(|entry| entry.note(heads))
            .cloned()
            .collect();
        // A woken thread may drop its entry.
        drop(entries);
        notified.iter().for_each(|entry| entry.wake());
    }
}
