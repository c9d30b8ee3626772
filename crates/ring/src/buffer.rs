//! The memory of a lane.

use std::cell::UnsafeCell;
use std::iter;
use std::mem::{self, MaybeUninit};
use std::ops::Range;

use crate::sync::{AtomicU32, Track};
use crate::turns::{self, RANGE_MAX, Turns};

/// Every position divisible by this number carries the time of its write slice. A reader uses it to measure how long items
/// were in the ring, at no cost per item.
pub const SAMPLE_EVERY: u64 = 100;

/// Slots for a power of two of positions, each with a note, and stamps for some. The owner of a position
/// owns its slot, note and stamp; all threads share the cells of turns.
pub struct Buffer<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// `Item` until a writer leaves another note; the reader that finds that note resets it.
    notes: Box<[UnsafeCell<Note<T>>]>,
    /// The write time of each sampled position.
    stamps: Box<[UnsafeCell<u64>]>,
    tracks: Box<[Track]>,
    /// See [`Turns`] for the writers and readers of both.
    write_cells: Box<[AtomicU32]>,
    read_cells: Box<[AtomicU32]>,
}

/// Items beyond the room of their write slice.
pub struct Overflow<T> {
    pub items: Vec<T>,
    /// The time of the write slice.
    pub stamp: u64,
}

/// The content of a written slot.
#[derive(Default)]
pub enum Note<T> {
    #[default]
    Item,
    /// No item: the writer had reserved more room than it needed.
    Hole,
    /// An item; the overflow of its write slice follows it.
    Overflow(Box<Overflow<T>>),
}

impl<T> Buffer<T> {
    /// The size of a slot with its note and its cells. Stamps are too few to count.
    pub const SLOT_BYTES: usize =
        size_of::<T>() + size_of::<Note<T>>() + 2 * (2 * size_of::<AtomicU32>());

    /// Creates the memory of a lane whose writers have finished all positions before `tail`, and whose
    /// readers have finished all positions before `head`.
    ///
    /// # Panics
    /// When `capacity` is not a power of two, or more than [`RANGE_MAX`].
    pub fn new(capacity: usize, head: u64, tail: u64) -> Self {
        assert!(capacity.is_power_of_two(), "positions are masked");
        assert!(capacity <= RANGE_MAX, "a slice may take the whole buffer");
        Buffer {
            slots: filled(capacity, || UnsafeCell::new(MaybeUninit::uninit())),
            notes: filled(capacity, UnsafeCell::default),
            // `capacity` positions in a row include at most this many sampled ones.
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

    /// The slots of `count` positions from `start`, in two ranges where they wrap around.
    #[inline]
    pub fn indices(&self, start: u64, count: usize) -> [Range<usize>; 2] {
        let first = self.index(start);
        let end = self.capacity().min(first + count);
        [first..end, 0..count - (end - first)]
    }

    /// A pointer to the first slot.
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

    /// Reports to loom that the caller owns these positions.
    #[inline(always)]
    pub fn own(&self, positions: Range<u64>) {
        if cfg!(loom) {
            positions.for_each(|position| self.tracks[self.index(position)].owner());
        }
    }

    /// Moves the content of `positions` to `target`, which has room for it.
    ///
    /// # Safety
    /// The caller owns both buffers exclusively, and all `positions` are written.
    pub unsafe fn move_to(&self, target: &Self, positions: Range<u64>) {
        self.own(positions.clone());
        for position in sampled(positions.clone()) {
            // SAFETY: the caller owns the stamps of both buffers.
            unsafe { *target.stamp(position) = *self.stamp(position) };
        }
        for position in positions {
            // SAFETY: the caller owns the slots and notes of both buffers. No thread reads the old slot
            // again. A hole's slot may be uninitialized, and `MaybeUninit` may be copied all the same.
            unsafe {
                target
                    .slot(position)
                    .cast::<MaybeUninit<T>>()
                    .write(self.slot(position).cast::<MaybeUninit<T>>().read());
                *target.note(position) = mem::take(&mut *self.note(position));
            }
        }
    }
}

/// The positions of a range that carry a stamp.
#[inline]
pub fn sampled(positions: Range<u64>) -> impl Iterator<Item = u64> {
    (positions.start.next_multiple_of(SAMPLE_EVERY)..positions.end).step_by(SAMPLE_EVERY as usize)
}

fn filled<E>(count: usize, element: impl FnMut() -> E) -> Box<[E]> {
    iter::repeat_with(element).take(count).collect()
}
