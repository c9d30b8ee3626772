//! Memory of the pool that consumers hold who share it. All together they may hold half of each arena; who needs
//! some when there is none takes it from whom has not gone on for longest.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millstream_log::{Arena, Pool, Slice};
use millstream_share::Doorbell;
use parking_lot::{Condvar, Mutex};

/// Who holds memory that others need must have gone on within this time.
pub const PRESSED_STALL_MAX: Duration = Duration::from_secs(1);

/// The most subscriptions that share memory: each has a thread.
const SHARED_MAX: usize = 256;

const ARENAS: [Arena; 2] = [Arena::Segments, Arena::Windows];

/// The place of an arena among all.
fn index(arena: Arena) -> usize {
    match arena {
        Arena::Segments => 0,
        Arena::Windows => 1,
    }
}

/// What all subscriptions hold that share memory.
pub struct Pins {
    /// By arena.
    bytes_max: [usize; ARENAS.len()],
    holders: Mutex<Vec<Arc<Holder>>>,
    /// Notified when one goes.
    gone: Condvar,
}

/// What one of them holds.
pub struct Holder {
    /// By arena: blocks that it has slices of. Written by its thread.
    bytes: [AtomicUsize; ARENAS.len()],
    /// When it went on last, as far as is known, in milliseconds since it `began`. Written by its thread.
    went_on: AtomicU64,
    began: Instant,
    /// Set by who needs the memory.
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

    /// Adds one; `None` when there are too many.
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

    /// Waits until all have gone, but no longer than so.
    pub fn wait_until_empty(&self, wait_max: Duration) {
        let until = Instant::now() + wait_max;
        let mut holders = self.holders.lock();
        while !holders.is_empty() && !self.gone.wait_until(&mut holders, until).timed_out() {}
    }

    /// Whether a holder may take more. If not, whoever stalls has to give up what it holds.
    pub fn has_room(&self, asking: &Holder) -> bool {
        // Who holds nothing always gets something: there are not so many.
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

    /// Notes when it went on last.
    pub fn note(&self, went_on: Instant) {
        let went_on = went_on.saturating_duration_since(self.began);
        self.went_on
            .store(went_on.as_millis() as u64, Ordering::Relaxed);
    }

    /// For how long it has not.
    fn stalled(&self) -> Duration {
        let went_on = Duration::from_millis(self.went_on.load(Ordering::Relaxed));
        self.began.elapsed().saturating_sub(went_on)
    }

    /// Whether somebody needs what it holds, since this was asked for the last time.
    pub fn is_revoked(&self) -> bool {
        self.is_revoked.swap(false, Ordering::Relaxed)
    }
}

/// Blocks that a holder has slices of.
pub struct Blocks {
    holder: Arc<Holder>,
    /// How many slices of each, by where it begins.
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

    /// A slice that was added is let go.
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
