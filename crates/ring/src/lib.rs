//! The ring between two stages of a flow: bounded, lock-free, shared by any number of writers and
//! readers, written and read in slices.
//!
//! After the "shared thread-safe ring buffers" of Ordo (section 3.1.1).
//!
//! No call waits. A caller that finds no room or no items gets `None` at once. The user of the ring wakes
//! the other side after a commit.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use millstream_ring::{Ring, RingConfig};
//!
//! let ring = Ring::new(RingConfig {
//!     capacity_min: NonZeroUsize::new(4).unwrap(),
//!     capacity_max: NonZeroUsize::new(1024).unwrap(),
//!     lanes: NonZeroUsize::MIN,
//! });
//! let mut slice = ring.try_write(3).unwrap();
//! slice.push("one");
//! slice.push("two");
//! slice.commit();
//!
//! let slice = ring.try_read(10).unwrap();
//! assert_eq!(slice.parts(), [["one", "two"].as_slice(), &[]]);
//! slice.done();
//! assert!(ring.is_empty());
//! ```
#![allow(unsafe_code)]

mod buffer;
mod lane;
mod read;
mod reserve;
mod sync;
mod turns;
mod write;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use crate::buffer::SAMPLE_EVERY;
pub use crate::read::ReadSlice;
pub use crate::write::WriteSlice;

use crate::buffer::Buffer;
use crate::lane::LaneRef;
use crate::sync::per_thread;
use crate::turns::RANGE_MAX;

/// The configuration of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingConfig {
    /// The initial capacity, in items; rounded up to a power of two per lane.
    pub capacity_min: NonZeroUsize,
    /// The capacity that the ring may [grow](Ring::grow) to, in items; rounded likewise.
    pub capacity_max: NonZeroUsize,
    /// The number of lanes. With one lane, readers get items in the order in which writers reserved room.
    /// With more, each thread writes and reads its own lane first: writers do not wait for each other's
    /// commits, and only items of the same lane keep their order.
    pub lanes: NonZeroUsize,
}

/// A bounded queue of items.
///
/// # Growing and shrinking
///
/// [`grow`](Ring::grow) and [`shrink`](Ring::shrink) request a resize. The thread that finishes the last
/// open slice carries it out. Until then writers reserve no room: first the open write slices finish,
/// while readers go on; then, for a moment, the open read slices finish. A reader must also take and finish
/// every slice that was handed back. So a thread that holds a read slice of a ring must not wait for
/// room in the same ring: it reserves the room first.
pub struct Ring<T> {
    lanes: Box<[LaneRef<T>]>,
    /// Per lane.
    capacity_min: usize,
    /// Per lane.
    capacity_max: usize,
}

// SAFETY: the ring moves items from thread to thread, and each item belongs to one slice at a time.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: `&Ring<T>` moves items between threads, but gives no `&T` to two of them.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Memory per item of capacity, in bytes.
    pub const SLOT_BYTES: usize = Buffer::<T>::SLOT_BYTES;

    /// Creates an empty ring.
    pub fn new(config: RingConfig) -> Arc<Self> {
        let lanes = config.lanes.get();
        let per_lane = |items: NonZeroUsize| items.get().div_ceil(lanes).next_power_of_two();
        let capacity_min = per_lane(config.capacity_min);
        Arc::new(Ring {
            lanes: (0..lanes).map(|_| LaneRef::new(capacity_min)).collect(),
            capacity_min,
            capacity_max: per_lane(config.capacity_max).max(capacity_min),
        })
    }

    /// Reserves room for up to `items` items; `None` when the ring is full or about to be resized.
    #[inline]
    pub fn try_write(&self, items: usize) -> Option<WriteSlice<T>> {
        self.try_write_at_least(1, items)
    }

    /// Like [`try_write`](Ring::try_write), but `None` also when no lane has room for `items_min` items,
    /// or for a lane's capacity, if that is less.
    #[inline]
    pub fn try_write_at_least(&self, items_min: usize, items: usize) -> Option<WriteSlice<T>> {
        if let [lane] = *self.lanes {
            return Some(WriteSlice::new(lane, lane.try_write(items_min, items)?));
        }
        let mut lanes = self.lanes_from_own(|| 0);
        lanes.find_map(|lane| Some(WriteSlice::new(lane, lane.try_write(items_min, items)?)))
    }

    /// Takes up to `items` items to read; `None` when there are none. The slice has more only where a write
    /// slice among them was committed with more items than it had room for. The ring does not split that slice,
    /// since its remainder would hold up a resize until a reader takes it.
    #[inline]
    pub fn try_read(&self, items: usize) -> Option<ReadSlice<T>> {
        if let [lane] = *self.lanes {
            return Some(ReadSlice::new(lane, lane.try_read(items)?));
        }
        let mut lanes = self.lanes_from_own(lanes_to_skip);
        lanes.find_map(|lane| Some(ReadSlice::new(lane, lane.try_read(items)?)))
    }

    /// The number of items that wait for a reader; never 0 when there are any. Where write slices were
    /// committed with more or fewer items than they had room for, the number may be off by the difference
    /// while commits are under way. It may stay above 0 with nothing to read until the next read.
    pub fn readable(&self) -> usize {
        self.lanes.iter().map(|lane| lane.readable()).sum()
    }

    /// The items of [`readable`](Ring::readable) in this thread's own lane.
    pub fn own_readable(&self) -> usize {
        let own = self.lanes_from_own(|| 0).next();
        own.map_or(0, |lane| lane.readable())
    }

    /// The position up to which readers have taken all items, in a ring with one lane.
    pub fn read_to(&self) -> u64 {
        self.positions().shadow_head
    }

    /// The free room, in items.
    pub fn room(&self) -> usize {
        self.lanes.iter().map(|lane| lane.room()).sum()
    }

    /// The free room of the emptiest lane, in items: the most that one slice can reserve.
    pub fn slice_room(&self) -> usize {
        let rooms = self.lanes.iter().map(|lane| lane.room());
        rooms.max().unwrap_or(0)
    }

    /// The capacity of one lane, in items.
    pub fn lane_capacity(&self) -> usize {
        self.lanes.first().map_or(0, |lane| lane.capacity())
    }

    /// The capacity that the ring may [grow](Ring::grow) to, in items.
    pub fn capacity_max(&self) -> usize {
        self.capacity_max * self.lanes.len()
    }

    /// The capacity of all lanes, in items.
    pub fn capacity(&self) -> usize {
        self.lanes.iter().map(|lane| lane.capacity()).sum()
    }

    /// The number of items ever committed.
    pub fn written(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.written()).sum()
    }

    /// The number of items ever taken and finished. An item beyond its write slice's room counts as soon
    /// as it is taken.
    pub fn read(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.read()).sum()
    }

    /// Whether no item is readable, being written or being read. With several lanes this is exact only if
    /// [`positions`](Ring::positions) are the same before and after.
    pub fn is_empty(&self) -> bool {
        self.positions().is_empty()
    }

    /// The ring's positions, from which a caller learns that several rings are quiet.
    ///
    /// Collect the positions of all rings twice. If both collections are equal and all positions are
    /// empty, then no item is in any of the rings, nor on its way from one to another. This requires that
    /// each thread that turns items into others commits the new ones before it finishes the read slice.
    /// Heads and tails only grow, so equal values did not change between the end of the first collection
    /// and the begin of the second. At that instant no item was readable or held by a reader in any ring,
    /// so no thread was turning items into others. (A write slice may have been open then, but without a
    /// read slice its items come from outside of the rings. A write slice that is dropped leaves no
    /// trace.)
    pub fn positions(&self) -> Positions {
        let mut sum = Positions::default();
        for lane in &self.lanes {
            let position = lane.position();
            sum.head += position.head;
            sum.shadow_head += position.shadow_head;
            sum.tail += position.tail;
            sum.shadow_tail += position.shadow_tail;
        }
        sum
    }

    /// Requests twice the capacity; `false` when the ring has its maximum, or when a resize is under way.
    pub fn grow(&self) -> bool {
        let max = self.capacity_max;
        self.resize(|capacity| Some(capacity * 2).filter(|_| capacity < max))
    }

    /// Requests half the capacity; `false` when the ring has its minimum, or when a resize is under way.
    pub fn shrink(&self) -> bool {
        let min = self.capacity_min;
        self.resize(|capacity| Some(capacity / 2).filter(|_| capacity > min))
    }

    /// Like [`grow`](Ring::grow), but may exceed `capacity_max`.
    pub fn grow_past_max(&self) -> bool {
        self.resize(|capacity| Some(capacity * 2).filter(|_| capacity < RANGE_MAX))
    }

    fn resize(&self, wanted: impl Fn(usize) -> Option<usize>) -> bool {
        let requested = self.lanes.iter().map(|lane| lane.resize(&wanted));
        requested.fold(false, |any, requested| any | requested)
    }

    /// All lanes, beginning `skip` lanes after this thread's own.
    #[inline]
    fn lanes_from_own(&self, skip: impl FnOnce() -> usize) -> impl Iterator<Item = LaneRef<T>> {
        let first = match self.lanes.len() {
            1 => 0,
            lanes => thread_number().wrapping_add(skip()) % lanes,
        };
        let (after, from) = self.lanes.split_at(first);
        from.iter().chain(after).copied()
    }
}

/// A thread begins every read of this number with another lane than its own, so that items in a lane
/// without a thread are read, too.
const READS_PER_FOREIGN_LANE: usize = 16;

per_thread! {
    /// The thread's number; `usize::MAX` before it has one.
    NUMBER = usize::MAX;
    /// The thread's reads of rings with several lanes.
    READS = 0;
}

/// Gives this thread a number. The thread begins with the lane of this number, modulo the number of
/// lanes, so threads that work side by side should have consecutive numbers. Other threads are numbered in
/// the order in which they first use a ring with several lanes.
pub fn set_thread_number(number: usize) {
    NUMBER.with(|own| own.set(number));
}

#[inline]
fn thread_number() -> usize {
    // Every thread adds to it once. Relaxed: only the numbers matter, and they publish no memory.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

/// Returns the number of lanes between the thread's own and the one where the next read begins.
#[inline]
fn lanes_to_skip() -> usize {
    let reads = READS.with(|reads| {
        reads.set(reads.get().wrapping_add(1));
        reads.get()
    });
    match reads % READS_PER_FOREIGN_LANE {
        0 => reads / READS_PER_FOREIGN_LANE,
        _ => 0,
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.abandon();
        }
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("capacity", &self.capacity())
            .field("readable", &self.readable())
            .finish_non_exhaustive()
    }
}

/// A ring's positions, summed over its lanes; see [`Ring::positions`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    head: u64,
    shadow_head: u64,
    tail: u64,
    shadow_tail: u64,
}

impl Positions {
    /// Whether no item is readable, being written or being read.
    pub fn is_empty(&self) -> bool {
        // `head` is the least of each lane's positions and `shadow_tail` the greatest.
        self.head == self.shadow_tail
    }
}
