//! The memory of a lane.

use std::cell::UnsafeCell;
use std::iter;
use std::mem::{self, MaybeUninit};
use std::ops::Range;

use crate::sync::{AtomicU32, Track};
use crate::turns::{self, RANGE_MAX, Turns};

/// One position in this many carries the time of its write slice. A reader samples with it how long items took, at no
/// cost per item.
pub const SAMPLE_EVERY: u64 = 100;

/// Slots for a power of two of positions, and what goes with each. A slot, its note and its stamp
/// belong to the owner of the slot's position; the cells of turns are shared.
pub struct Buffer<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// `Item` wherever nobody has written otherwise: readers clear what they find.
    notes: Box<[UnsafeCell<Note<T>>]>,
    /// One for each sampled position.
    stamps: Box<[UnsafeCell<u64>]>,
    tracks: Box<[Track]>,
    write_cells: Box<[AtomicU32]>,
    read_cells: Box<[AtomicU32]>,
}

/// Items of a write slice for which it had no room.
pub struct Beyond<T> {
    pub items: Vec<T>,
    /// When they were written.
    pub stamp: u64,
}

/// What stands in a slot that is written.
#[derive(Default)]
pub enum Note<T> {
    #[default]
    Item,
    /// Nothing: its writer had reserved more than it needed.
    Hole,
    /// An item, and behind it more for which its writer had no room.
    Beyond(Box<Beyond<T>>),
}

impl<T> Buffer<T> {
    /// A slot with all that goes with it, but for the stamps, which are few.
    pub const SLOT_BYTES: usize =
        size_of::<T>() + size_of::<Note<T>>() + 2 * (2 * size_of::<AtomicU32>());

    /// For a lane whose writers and readers have finished everything before `tail` and `head`.
    ///
    /// # Panics
    /// When `capacity` is not a power of two, or more than [`RANGE_MAX`].
    pub fn new(capacity: usize, head: u64, tail: u64) -> Self {
        assert!(capacity.is_power_of_two(), "positions are masked");
        assert!(capacity <= RANGE_MAX, "a slice may have all of it");
        Buffer {
            slots: filled(capacity, || UnsafeCell::new(MaybeUninit::uninit())),
            notes: filled(capacity, UnsafeCell::default),
            // `capacity` positions in a row hold no more sampled ones than this.
            stamps: filled(capacity / SAMPLE_EVERY as usize + 1, UnsafeCell::default),
            tracks: filled(capacity, Track::default),
            write_cells: turns::cells(capacity, tail),
            read_cells: turns::cells(capacity, head),
        }
    }

    #[inline]
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub fn index(&self, position: u64) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    /// The slots of `count` positions from `start`: they may run over the end of the buffer.
    #[inline]
    pub fn indices(&self, start: u64, count: usize) -> [Range<usize>; 2] {
        let first = self.index(start);
        let end = self.capacity().min(first + count);
        [first..end, 0..count - (end - first)]
    }

    /// The first slot.
    #[inline]
    pub fn slots(&self) -> *mut T {
        UnsafeCell::raw_get(self.slots.as_ptr()).cast()
    }

    #[inline]
    pub fn slot(&self, position: u64) -> *mut T {
        self.slots[self.index(position)].get().cast()
    }

    #[inline]
    pub fn note(&self, position: u64) -> *mut Note<T> {
        self.notes[self.index(position)].get()
    }

    #[inline]
    pub fn stamp(&self, position: u64) -> *mut u64 {
        self.stamps[(position / SAMPLE_EVERY) as usize % self.stamps.len()].get()
    }

    #[inline]
    pub fn write_turns(&self) -> Turns<'_> {
        Turns::new(&self.write_cells)
    }

    #[inline]
    pub fn read_turns(&self) -> Turns<'_> {
        Turns::new(&self.read_cells)
    }

    /// The caller holds these positions.
    #[inline(always)]
    pub fn own(&self, positions: Range<u64>) {
        if cfg!(loom) {
            positions.for_each(|position| self.tracks[self.index(position)].owner());
        }
    }

    /// Moves what stands at `positions` into a buffer with room for it.
    ///
    /// # Safety
    /// The caller owns both buffers, and all `positions` are written.
    pub unsafe fn move_to(&self, larger: &Self, positions: Range<u64>) {
        self.own(positions.clone());
        for position in sampled(positions.clone()) {
            // SAFETY: both stamps are the caller's.
            unsafe { *larger.stamp(position) = *self.stamp(position) };
        }
        for position in positions {
            // SAFETY: slots and notes are the caller's, and not the same. A slot is not read
            // again; what was a hole is copied as the memory that it is.
            unsafe {
                larger
                    .slot(position)
                    .cast::<MaybeUninit<T>>()
                    .write(self.slot(position).cast::<MaybeUninit<T>>().read());
                *larger.note(position) = mem::take(&mut *self.note(position));
            }
        }
    }
}

/// Those positions that carry a stamp.
#[inline]
pub fn sampled(positions: Range<u64>) -> impl Iterator<Item = u64> {
    (positions.start.next_multiple_of(SAMPLE_EVERY)..positions.end).step_by(SAMPLE_EVERY as usize)
}

fn filled<E>(count: usize, element: impl FnMut() -> E) -> Box<[E]> {
    iter::repeat_with(element).take(count).collect()
}
