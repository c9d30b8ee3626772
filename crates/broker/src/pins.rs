//! The account of pool memory that consumers hold through shared memory. All together they may hold
//! half of each arena. When that is used up, the consumer that has made no progress for longest
//! loses its share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_log::{Arena, Pool, Slice};
use millstream_share::Doorbell;
use parking_lot::{Condvar, Mutex};

/// A consumer with memory that others need must have made progress within this time.
pub const PRESSED_STALL_MAX: Duration = Duration::from_secs(1);

/// The most subscriptions that share memory: each has a thread.
const SHARED_MAX: usize = 256;

const ARENAS: [Arena; 2] = [Arena::Segments, Arena::Windows];

/// Returns the position of an arena among all.
fn index(arena: Arena) -> usize {
    match arena {
        Arena::Segments => 0,
        Arena::Windows => 1,
    }
}

/// The account of all subscriptions that share memory.
pub struct Pins {
    /// The bound of each arena.
    bytes_max: [usize; ARENAS.len()],
    holders: Mutex<Vec<Arc<Holder>>>,
    /// Notified when a holder leaves.
    gone: Condvar,
}

/// The account of one subscription.
pub struct Holder {
    /// By arena: the bytes of the blocks that it has slices of. Written by its thread.
    bytes: [AtomicUsize; ARENAS.len()],
    /// The last known progress, in milliseconds since `began`. Written by its thread.
    went_on: AtomicU64,
    began: Instant,
    /// Set by another subscription that needs the memory.
    is_revoked: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl Pins {
    pub fn new(pool: &Pool) -> Pins {
        Pins {
            bytes_max: ARENAS.map(|arena| pool.size_bytes(arena) / 2),
            holders: Mutex::default(),
            gone: Condvar::new(),
        }
    }

    /// Adds a holder; `None` when there are too many.
    pub fn add(&self, doorbell: Arc<Doorbell>) -> Option<Arc<Holder>> {
        let holder = Arc::new(Holder {
            bytes: Default::default(),
            went_on: AtomicU64::new(0),
            began: Instant::now(),
            is_revoked: AtomicBool::new(false),
            doorbell,
        });
        let mut holders = self.holders.lock();
        if holders.len() >= SHARED_MAX {
            return None;
        }
        holders.push(Arc::clone(&holder));
        Some(holder)
    }

    pub fn remove(&self, holder: &Arc<Holder>) {
        self.holders
            .lock()
            .retain(|other| !Arc::ptr_eq(other, holder));
        self.gone.notify_all();
    }

    /// Waits until all holders have left, for at most `wait_max`.
    pub fn wait_until_empty(&self, wait_max: Duration) {
        let until = Instant::now() + wait_max;
        let mut holders = self.holders.lock();
        while !holders.is_empty() && !self.gone.wait_until(&mut holders, until).timed_out() {}
    }

    /// Returns whether a holder may take more memory. If not, the holder that has stalled for
    /// longest has to give up its share.
    pub fn has_room(&self, asking: &Holder) -> bool {
        // A holder without memory always gets some: the number of holders is small.
        let mut held = ARENAS.into_iter().filter(|arena| asking.bytes(*arena) > 0);
        let holders = self.holders.lock();
        let is_full = |arena: &Arena| {
            let bytes: usize = holders.iter().map(|holder| holder.bytes(*arena)).sum();
            bytes >= self.bytes_max[index(*arena)]
        };
        let Some(full) = held.find(is_full) else {
            return true;
        };
        let stalls = |holder: &&Arc<Holder>| {
            let is_other = !std::ptr::eq(&***holder, asking);
            is_other && holder.bytes(full) > 0 && holder.stalled() >= PRESSED_STALL_MAX
        };
        let stalled = holders
            .iter()
            .filter(stalls)
            .max_by_key(|holder| holder.stalled());
        if let Some(holder) = stalled {
            holder.is_revoked.store(true, Ordering::Relaxed);
            holder.doorbell.ring();
        }
        false
    }
}

impl Holder {
    fn bytes(&self, arena: Arena) -> usize {
        self.bytes[index(arena)].load(Ordering::Relaxed)
    }

    /// Notes the time of the last progress.
    pub fn note(&self, went_on: Instant) {
        let went_on = went_on.saturating_duration_since(self.began);
        self.went_on
            .store(went_on.as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the time since the last progress.
    fn stalled(&self) -> Duration {
        let went_on = Duration::from_millis(self.went_on.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(went_on)
    }

    /// Returns whether another subscription has needed this memory since the last call.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.swap(false, Ordering::Relaxed)
    }
}

/// The blocks that a holder has slices of.
pub struct Blocks {
    holder: Arc<Holder>,
    /// The number of slices of each block, by the block's start.
    slices: HashMap<usize, usize>,
}

impl Blocks {
    pub fn new(holder: &Arc<Holder>) -> Blocks {
        Blocks {
            holder: Arc::clone(holder),
            slices: HashMap::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.slices.is_empty()
    }

    pub fn add(&mut self, slice: &Slice) {
        let (block, bytes) = slice.block();
        let slices = self.slices.entry(block).or_default();
        *slices += 1;
        if *slices == 1 {
            self.holder.bytes[index(slice.arena())].fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Removes a slice that was added before.
    pub fn remove(&mut self, slice: &Slice) {
        let (block, bytes) = slice.block();
        let slices = self.slices.get_mut(&block).expect("it was added");
        *slices -= 1;
        if *slices == 0 {
            self.slices.remove(&block);
            self.holder.bytes[index(slice.arena())].fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}
