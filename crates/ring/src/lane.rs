//! One lane of a ring: the four positions and how they move.

mod resize;
mod taken;

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

pub use self::taken::{Items, Taken};

use self::taken::Returned;
use crate::buffer::{Buffer, Note, Overflow, sampled};
use crate::reserve::{ReadReserve, WriteReserve};
use crate::sync::{AtomicI64, AtomicU64, AtomicUsize, Mutex, Ordering, Padded, Track};

/// A bounded queue of slots, moved through by four positions.
///
/// # Positions
///
/// Positions count slots from the beginning of the lane and never wrap; a slot is the position
/// modulo the capacity. At all times
///
/// ```text
/// head ≤ shadow_head ≤ tail ≤ shadow_tail ≤ head + capacity
///   └ being read ┘ └ readable ┘ └ being written ┘
/// ```
///
/// and every position in `head..shadow_head` and `tail..shadow_tail` belongs to one slice, except
/// ranges that were finished before their turn. `shadow_tail` may move back; the other three only grow.
///
/// - A writer reserves `start..end` by moving `shadow_tail` from `start` to `end`. Before the move it
///   loads a `head` with `end ≤ head + capacity`. `head` only grows, so the readers of the previous lap
///   have finished the slots of `start..end`. This holds even if `shadow_tail` has moved forth and back
///   between the load and the move.
/// - A writer that needs less than it has reserved moves `shadow_tail` back from `end`, if it still
///   stands there: then no other slice holds a position behind `end`, and the writer gives up its own
///   positions. Otherwise the rest of its range becomes holes, which readers skip.
/// - A reader reserves `start..end` by moving `shadow_head`. Before the move it loads a `tail` with
///   `end ≤ tail`.
/// - `tail` and `head` move over finished ranges in order: see [`Turns`](crate::turns::Turns).
///
/// # Open slices
///
/// A slice is open from the atomic step that reserves its range to the step that finishes it or gives
/// back all of it. Its thread touches the lane's memory only between these steps. An unfinished range
/// holds up the turn of its side. So once a side is closed to reservations and the turn arrives at the
/// end of all of them, no slice of that side is open. The thread that observes this *claims* the side.
///
/// # Resizing and freeing
///
/// 1. A thread closes `shadow_tail`. From then on `shadow_tail` stays where it is: writers reserve
///    nothing and give nothing back.
/// 2. The same thread swaps `CLOSING` into the writers' cell at `shadow_tail`. Either it finds the turn
///    there, and claims the writers' side. Or the writer that lays the turn down there later finds
///    `CLOSING`, and claims the side. Both swap the same cell, so exactly one of them comes second and
///    claims.
/// 3. The claimer closes `shadow_head`, and swaps `CLOSING` into the readers' cell there. One thread
///    claims the readers' side in the same way. Now every written item is committed, every taken item
///    is finished, and that thread owns the lane exclusively.
/// 4. It replaces the memory, lays down the turns, and opens the readers' side, then the writers'.
///
/// Dropping the ring closes the lane for good by the same steps, and the exclusive owner frees it. If a
/// resize is under way by then, its claimer finds the lane abandoned in the step that would open it.
///
/// A slice that was handed back stays open until a reader takes it again and finishes it. Taking it
/// needs no reservation, so a closed side does not prevent it. Readers without slices never wait for
/// writers: the readers' side closes only when no write slice is open.
pub struct Lane<T> {
    /// `shadow_tail`. Written and read by writers, and by the threads that close and open the lane.
    write_reserve: Padded<WriteReserve>,
    /// Stored by the writer that holds the turn (`Turns::finish`); loaded by readers as they reserve, by
    /// `position`, and by the thread that closes or exclusively owns the lane.
    tail: Padded<AtomicU64>,
    /// `shadow_head`. Written and read by readers, and by the threads that close and open the lane.
    read_reserve: Padded<ReadReserve>,
    /// Stored by the reader that holds the turn (`Turns::finish`); loaded by writers as they reserve, by
    /// `position`, and by the exclusive owner.
    head: Padded<AtomicU64>,
    rest: Padded<Rest<T>>,
}

/// Fields that all threads read often and write seldom.
struct Rest<T> {
    /// Read by the owners of open slices, replaced by the exclusive owner of the lane.
    buffer: UnsafeCell<Buffer<T>>,
    buffer_track: Track,
    /// The capacity that a resize asks for. Written by the thread that has closed `shadow_tail` for the
    /// resize, before it swaps `CLOSING` into the cell; read by the exclusive owner. `Turns::close`
    /// releases the store, and the claim acquires it.
    capacity_wanted: AtomicUsize,
    /// Notes other than `Item` in slots of committed ranges and of ranges about to be committed. Writers
    /// add to it before they commit, and readers subtract the notes that they clear. `Turns::finish`
    /// releases the addition, so a reader that has acquired `tail` finds it above 0 if its range has a
    /// note.
    notes: AtomicUsize,
    /// Written items minus written positions: overflow counts up, holes count down. Writers add to it
    /// just before they commit; any thread reads it, as an estimate.
    surplus_written: AtomicI64,
    /// The share of `surplus_written` that readers have taken. Readers add to it as they clear notes; any
    /// thread reads it, as an estimate.
    surplus_read: AtomicI64,
    /// Items in `returned`. Written by readers under its lock; loaded by readers without the lock, to
    /// skip it while it is empty. A reader that loads an old 0 takes later items first.
    returned_items: AtomicUsize,
    /// Read slices that were dropped unfinished. `None` once the ring is dropped.
    returned: Mutex<Option<Returned<T>>>,
}

/// A lane's positions at one moment.
#[derive(Clone, Copy)]
pub struct Position {
    pub head: u64,
    pub shadow_head: u64,
    pub tail: u64,
    pub shadow_tail: u64,
}

impl<T> Lane<T> {
    pub fn new(capacity: usize) -> Self {
        Lane {
            rest: Padded(Rest {
                buffer: Buffer::new(capacity, 0, 0).into(),
                buffer_track: Track::default(),
                capacity_wanted: AtomicUsize::new(capacity),
                notes: AtomicUsize::new(0),
                surplus_written: AtomicI64::new(0),
                surplus_read: AtomicI64::new(0),
                returned_items: AtomicUsize::new(0),
                returned: Mutex::new(Some(BTreeMap::new())),
            }),
            write_reserve: Padded(WriteReserve::new(capacity)),
            tail: Padded::default(),
            read_reserve: Padded::default(),
            head: Padded::default(),
        }
    }

    /// The lane's memory. The caller has an open slice, or has closed a side that no thread has claimed
    /// yet, or has claimed a side, or owns the lane exclusively.
    #[inline]
    pub fn buffer(&self) -> &Buffer<T> {
        self.rest.buffer_track.reader();
        // SAFETY: only the thread that has claimed both sides replaces the buffer. Until the caller
        // finishes its slice, or swaps `CLOSING` into a cell, or goes on from its claim, no other
        // thread can claim the caller's side.
        unsafe { &*self.rest.buffer.get() }
    }

    pub fn capacity(&self) -> usize {
        self.write_reserve.capacity()
    }

    /// Loads the positions in ascending order, so each is at most the next one. Acquire keeps the loads
    /// in this order.
    pub fn position(&self) -> Position {
        let head = self.head.load(Ordering::Acquire);
        let shadow_head = self.read_reserve.position();
        let tail = self.tail.load(Ordering::Acquire);
        Position {
            head,
            shadow_head,
            tail,
            shadow_tail: self.write_reserve.position(tail),
        }
    }

    pub fn readable(&self) -> usize {
        let Position {
            shadow_head, tail, ..
        } = self.position();
        let surplus = self.rest.surplus_written.load(Ordering::Relaxed)
            - self.rest.surplus_read.load(Ordering::Relaxed);
        let items = match tail - shadow_head {
            0 => 0,
            // The surplus also counts commits under way, and must not hide readable items.
            positions => (positions as i64 + surplus).max(1) as usize,
        };
        items + self.rest.returned_items.load(Ordering::Relaxed)
    }

    pub fn room(&self) -> usize {
        let Position {
            head, shadow_tail, ..
        } = self.position();
        self.capacity()
            .saturating_sub((shadow_tail - head) as usize)
    }

    /// Items ever committed.
    pub fn written(&self) -> u64 {
        let surplus = self.rest.surplus_written.load(Ordering::Relaxed);
        self.position().tail.saturating_add_signed(surplus)
    }

    /// Items ever finished.
    pub fn read(&self) -> u64 {
        let surplus = self.rest.surplus_read.load(Ordering::Relaxed);
        self.position().head.saturating_add_signed(surplus)
    }
}

/// A pointer to a lane that the ring and its open slices share; the last of them frees the lane.
pub struct LaneRef<T>(NonNull<Lane<T>>);

impl<T> Clone for LaneRef<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LaneRef<T> {}

impl<T> Deref for LaneRef<T> {
    type Target = Lane<T>;

    #[inline(always)]
    fn deref(&self) -> &Lane<T> {
        // SAFETY: only the exclusive owner of an abandoned lane frees it. The caller prevents that: it
        // is the ring before `abandon` has closed the lane, or has an open slice, or has closed or
        // claimed a side and has not passed it on.
        unsafe { self.0.as_ref() }
    }
}

// These methods take `self` by value, since a thread may free the lane before they return.
impl<T> LaneRef<T> {
    pub fn new(capacity: usize) -> Self {
        LaneRef(NonNull::from(Box::leak(Box::new(Lane::new(capacity)))))
    }

    /// Reserves up to `count` positions to write; `None` when there is no room for `count_min`. The slice
    /// stays open until [`commit`](LaneRef::commit), or until [`settle`](LaneRef::settle) gives all of it
    /// back.
    #[inline]
    pub fn try_write(self, count_min: usize, count: usize) -> Option<Range<u64>> {
        let reserved = self.write_reserve.reserve(&self.head, count_min, count)?;
        self.buffer().own(reserved.clone());
        Some(reserved)
    }

    /// Prepares the commit of a slice that was filled in part or has overflow: gives back the unused
    /// positions, or leaves notes for readers. Returns the range to commit. `None` means that all of it
    /// was given back: the slice is closed, and the caller must not touch the lane any more.
    #[cold]
    #[inline(never)]
    pub fn settle(
        self,
        reserved: Range<u64>,
        filled: u64,
        overflow: Option<Box<Overflow<T>>>,
        stamp: u64,
    ) -> Option<Range<u64>> {
        let Range { start, mut end } = reserved;
        let buffer = self.buffer();
        buffer.own(start..end);
        if filled < end && self.write_reserve.give_back(filled, end) {
            if filled == start {
                return None;
            }
            end = filled;
        }
        let items_over = overflow.as_ref().map_or(0, |overflow| overflow.items.len());
        let surplus = items_over as i64 - (end - filled) as i64;
        if surplus != 0 {
            for hole in filled..end {
                // SAFETY: the open slice owns these positions, and their notes with them.
                unsafe { *buffer.note(hole) = Note::Hole };
            }
            let mut notes = (end - filled) as usize;
            if let Some(mut overflow) = overflow {
                overflow.stamp = stamp;
                // SAFETY: only a full slice has overflow, so `filled` is `end`, and the slice owns the
                // position before it.
                unsafe { *buffer.note(filled - 1) = Note::Overflow(overflow) };
                notes += 1;
            }
            // `Turns::finish` releases both to the readers that acquire `tail`.
            self.rest.notes.fetch_add(notes, Ordering::Relaxed);
            self.rest
                .surplus_written
                .fetch_add(surplus, Ordering::Relaxed);
        }
        Some(start..end)
    }

    /// Makes written positions readable.
    #[inline]
    pub fn commit(self, written: Range<u64>, stamp: u64) {
        let buffer = self.buffer();
        buffer.own(written.clone());
        for position in sampled(written.clone()) {
            // SAFETY: the open slice owns the position, and its stamp with it.
            unsafe { *buffer.stamp(position) = stamp };
        }
        if buffer.write_turns().finish(&self.tail, written) {
            self.on_writers_claimed();
        }
    }

    /// The slots of `count` positions from `start`.
    #[inline]
    pub fn parts(self, start: u64, count: usize) -> [*mut [T]; 2] {
        let buffer = self.buffer();
        buffer.indices(start, count).map(|indices| {
            // SAFETY: `indices` are within the buffer.
            let first = unsafe { buffer.slots().add(indices.start) };
            std::ptr::slice_from_raw_parts_mut(first, indices.len())
        })
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        // Every reservation is committed, and every taken range is finished.
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let buffer = self.buffer();
        buffer.own(head..tail);
        for position in head..tail {
            // SAFETY: `&mut self` owns the lane exclusively. Every committed slot but a hole holds an
            // item, which no reader has taken.
            unsafe {
                if !matches!(*buffer.note(position), Note::Hole) {
                    buffer.slot(position).drop_in_place();
                }
            }
        }
    }
}
