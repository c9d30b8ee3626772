//! The ring between two stages of a flow: bounded, lock-free, shared by any number of writers and
//! readers, written and read in slices.
//!
//! After the "shared thread-safe ring buffers" of Ordo (section 3.1.1).
//!
//! Nothing here waits. Who finds no room or nothing to read is told so at once; to wake the other
//! side after a commit is the user's part.
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
    /// Room at first, in items; rounded up to a power of two per lane.
    pub capacity_min: NonZeroUsize,
    /// What the ring may [grow](Ring::grow) to, in items; rounded likewise.
    pub capacity_max: NonZeroUsize,
    /// With one lane, items are read in the order in which room for them was reserved. With more, each
    /// thread writes and reads a lane of its own first: writers do not wait for each other's
    /// commits, and only what goes through the same lane keeps its order.
    pub lanes: NonZeroUsize,
}

/// A bounded queue of items.
///
/// # Growing and shrinking
///
/// [`grow`](Ring::grow) and [`shrink`](Ring::shrink) ask; it is done by whoever gives up the last open
/// slice. Until then no room is reserved any more: first the open write slices come to their end,
/// while readers go on; then, for a moment, the open read slices do. A slice that was handed back has
/// to be taken and finished, too. So who holds a read slice of a ring must not wait for room in the
/// same ring: reserve the room first.
pub struct Ring<T> {
    lanes: Box<[LaneRef<T>]>,
    /// Per lane, both of them.
    capacity_min: usize,
    capacity_max: usize,
}

// SAFETY: items are handed from thread to thread, and a slice has its items alone.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above. `&Ring<T>` gives no `&T`.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    /// Memory that room for an item takes.
    pub const SLOT_BYTES: usize = Buffer::<T>::SLOT_BYTES;

    /// An empty ring.
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

    /// Reserves room for up to `items` items; `None` when there is none at all, or when the ring is
    /// about to be resized.
    #[inline]
    pub fn try_write(&self, items: usize) -> Option<WriteSlice<T>> {
        self.try_write_at_least(1, items)
    }

    /// As [`try_write`](Ring::try_write); `None` also when no lane has room for `items_min`, or for as
    /// many as a lane holds, if that is less.
    #[inline]
    pub fn try_write_at_least(&self, items_min: usize, items: usize) -> Option<WriteSlice<T>> {
        if let [lane] = *self.lanes {
            return Some(WriteSlice::new(lane, lane.try_write(items_min, items)?));
        }
        let mut lanes = self.lanes_from_own(|| 0);
        lanes.find_map(|lane| Some(WriteSlice::new(lane, lane.try_write(items_min, items)?)))
    }

    /// Takes up to `items` items to read; `None` when there are none. More only where a write slice
    /// among them was committed with more items than it had room for: these are not torn apart, since
    /// what is left of them would hold up a resize until somebody comes for it.
    #[inline]
    pub fn try_read(&self, items: usize) -> Option<ReadSlice<T>> {
        if let [lane] = *self.lanes {
            return Some(ReadSlice::new(lane, lane.try_read(items)?));
        }
        let mut lanes = self.lanes_from_own(read_away);
        lanes.find_map(|lane| Some(ReadSlice::new(lane, lane.try_read(items)?)))
    }

    /// How many items wait to be read; never 0 when there are any. Where write slices were
    /// committed with more or fewer items than they had room for, it may be wrong by those while
    /// commits are under way, and above 0 with nothing to read until a reader has looked.
    pub fn readable(&self) -> usize {
        self.lanes.iter().map(|lane| lane.readable()).sum()
    }

    /// The part of [`readable`](Ring::readable) that is in this thread's own lane.
    pub fn own_readable(&self) -> usize {
        let own = self.lanes_from_own(|| 0).next();
        own.map_or(0, |lane| lane.readable())
    }

    /// Up to which position everything is read, or in somebody's hands. Of a ring with one lane.
    pub fn read_to(&self) -> u64 {
        self.positions().shadow_head
    }

    /// How many items a writer could reserve.
    pub fn room(&self) -> usize {
        self.lanes.iter().map(|lane| lane.room()).sum()
    }

    /// How many items a writer could reserve in the emptiest lane: a slice is in one lane.
    pub fn slice_room(&self) -> usize {
        let rooms = self.lanes.iter().map(|lane| lane.room());
        rooms.max().unwrap_or(0)
    }

    /// How many items a lane has room for in all.
    pub fn lane_capacity(&self) -> usize {
        self.lanes.first().map_or(0, |lane| lane.capacity())
    }

    /// What the ring may [grow](Ring::grow) to, in items.
    pub fn capacity_max(&self) -> usize {
        self.capacity_max * self.lanes.len()
    }

    /// How many items the ring has room for in all.
    pub fn capacity(&self) -> usize {
        self.lanes.iter().map(|lane| lane.capacity()).sum()
    }

    /// Items ever committed.
    pub fn written(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.written()).sum()
    }

    /// Items ever taken and finished; those beyond a write slice's room count as soon as they are
    /// taken.
    pub fn read(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.read()).sum()
    }

    /// Whether nothing is readable, being written or being read. With several lanes this is exact
    /// only when [`positions`](Ring::positions) are the same before and after.
    pub fn is_empty(&self) -> bool {
        self.positions().is_empty()
    }

    /// Where the ring stands; tells when several rings are quiet.
    ///
    /// No item is in any of several rings, nor on its way from one to another, when the positions of
    /// all of them are collected twice, are empty, and are the same both times, provided that who
    /// turns items into others commits those before it finishes the read slice. Heads and tails
    /// only grow, so those that are the same twice did not change between the end of the first collection
    /// and the begin of the second: at that instant no item was readable or held by a reader in any
    /// ring, so none was being turned into others. (A write slice may have been open then; without
    /// a read slice it gets its items from outside of the rings. One that comes to nothing leaves no
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

    /// Asks for twice the capacity; `false` when there is nothing to gain, or a resize is under way.
    pub fn grow(&self) -> bool {
        let max = self.capacity_max;
        self.resize(|capacity| Some(capacity * 2).filter(|_| capacity < max))
    }

    /// Asks for half the capacity; `false` when that is too small, or a resize is under way.
    pub fn shrink(&self) -> bool {
        let min = self.capacity_min;
        self.resize(|capacity| Some(capacity / 2).filter(|_| capacity > min))
    }

    /// Like [`grow`](Ring::grow), whatever `capacity_max` says.
    pub fn grow_past_max(&self) -> bool {
        self.resize(|capacity| Some(capacity * 2).filter(|_| capacity < RANGE_MAX))
    }

    fn resize(&self, wanted: impl Fn(usize) -> Option<usize>) -> bool {
        let asked = self.lanes.iter().map(|lane| lane.resize(&wanted));
        asked.fold(false, |any, asked| any | asked)
    }

    /// All lanes, beginning with the one that is so many away from this thread's own.
    #[inline]
    fn lanes_from_own(&self, away: impl FnOnce() -> usize) -> impl Iterator<Item = LaneRef<T>> {
        let first = match self.lanes.len() {
            1 => 0,
            lanes => thread_number().wrapping_add(away()) % lanes,
        };
        let (after, from) = self.lanes.split_at(first);
        from.iter().chain(after).copied()
    }
}

/// After so many reads a thread begins with another lane than its own once, so that what is in a lane
/// without a thread is not forgotten.
const OWN_READS: usize = 16;

per_thread! {
    /// `usize::MAX` before the thread has one.
    NUMBER = usize::MAX;
    /// Reads of rings with several lanes.
    READS = 0;
}

/// Gives this thread a number: it begins with the lane of this number, modulo the lanes. Threads that
/// work side by side should have numbers that follow each other. Without this they are numbered in the
/// order in which they first use a ring of several lanes.
pub fn set_thread_number(number: usize) {
    NUMBER.with(|own| own.set(number));
}

#[inline]
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}

/// By how many lanes a read begins away from the thread's own.
#[inline]
fn read_away() -> usize {
    let reads = READS.with(|reads| {
        reads.set(reads.get().wrapping_add(1));
        reads.get()
    });
    match reads % OWN_READS {
        0 => reads / OWN_READS,
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

/// Where a ring stands, summed over its lanes; see [`Ring::positions`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    head: u64,
    shadow_head: u64,
    tail: u64,
    shadow_tail: u64,
}

impl Positions {
    /// Whether nothing is readable, being written or being read.
    pub fn is_empty(&self) -> bool {
        // `head` is the least of each lane's positions and `shadow_tail` the greatest.
        self.head == self.shadow_tail
    }
}
