//! Write slices.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;

use crate::lane::LaneRef;

/// Room that one writer holds. Dropped uncommitted, it is committed as empty.
#[must_use = "a slice that is not committed is committed as empty"]
pub struct WriteSlice<T> {
    lane: LaneRef<T>,
    /// The lane's slots.
    slots: *mut T,
    /// Index of the slot that the next item goes to.
    next: usize,
    /// Where the slots from `next` end: with the room, or at the end of the buffer.
    end: usize,
    /// Slots from the beginning of the buffer that come after `end`.
    wrapped: usize,
    reserved: Range<u64>,
    /// Items for which there was no room.
    beyond: Vec<T>,
    stamp: u64,
}

// SAFETY: the slots belong to this slice alone, and all else of a lane is shared by threads anyway.
unsafe impl<T: Send> Send for WriteSlice<T> {}
// SAFETY: without `&mut` nothing but numbers can be had.
unsafe impl<T: Send> Sync for WriteSlice<T> {}

impl<T> WriteSlice<T> {
    #[inline]
    pub(crate) fn new(lane: LaneRef<T>, reserved: Range<u64>) -> Self {
        let buffer = lane.buffer();
        let count = (reserved.end - reserved.start) as usize;
        let [first, wrapped] = buffer.indices(reserved.start, count);
        WriteSlice {
            lane,
            slots: buffer.slots(),
            next: first.start,
            end: first.end,
            wrapped: wrapped.len(),
            reserved,
            beyond: Vec::new(),
            stamp: 0,
        }
    }

    /// Appends an item. One that goes beyond the room is kept by the slice and read in its place.
    #[inline(always)]
    pub fn push(&mut self, item: T) {
        if self.next == self.end {
            return self.push_past_end(item);
        }
        // SAFETY: slots up to `end` belong to this slice.
        unsafe { self.slots.add(self.next).write(item) };
        self.next += 1;
    }

    #[cold]
    #[inline(never)]
    fn push_past_end(&mut self, item: T) {
        if self.wrapped == 0 {
            return self.beyond.push(item);
        }
        self.next = 0;
        self.end = mem::take(&mut self.wrapped);
        self.push(item);
    }

    /// How much of the reserved room is left.
    #[inline]
    pub fn room(&self) -> usize {
        self.end - self.next + self.wrapped
    }

    /// How many items were pushed.
    pub fn len(&self) -> usize {
        (self.filled() - self.reserved.start) as usize + self.beyond.len()
    }

    /// Whether nothing was pushed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position behind the last item that was pushed: what others write later lies behind it.
    /// Items beyond the room share the last position.
    #[inline]
    pub fn end(&self) -> u64 {
        self.filled()
    }

    /// Sets the time of these items, for [`ReadSlice::stamps`](crate::ReadSlice::stamps).
    #[inline]
    pub fn set_stamp(&mut self, stamp: u64) {
        self.stamp = stamp;
    }

    /// Makes the items readable, after those of all slices reserved earlier. Room that was not used
    /// is free again as soon as it can be.
    #[inline]
    pub fn commit(self) {
        let mut slice = ManuallyDrop::new(self);
        let filled = slice.filled();
        slice.finish(filled);
    }

    /// Up to which position the slots are written.
    #[inline]
    fn filled(&self) -> u64 {
        self.reserved.end - self.room() as u64
    }

    /// Commits the slots up to `filled`. The slice is not used again.
    #[inline]
    fn finish(&mut self, filled: u64) {
        let beyond = mem::take(&mut self.beyond);
        self.lane
            .commit(self.reserved.clone(), filled, beyond, self.stamp);
        self.lane.leave_writer();
    }
}

impl<T> Drop for WriteSlice<T> {
    fn drop(&mut self) {
        /// Commits even if dropping an item panics.
        struct Finish<'a, T>(&'a mut WriteSlice<T>);
        impl<T> Drop for Finish<'_, T> {
            fn drop(&mut self) {
                self.0.finish(self.0.reserved.start);
            }
        }
        let written = (self.filled() - self.reserved.start) as usize;
        let beyond = mem::take(&mut self.beyond);
        let slice = Finish(self);
        let parts = slice.0.lane.parts(slice.0.reserved.start, written);
        drop(beyond);
        for part in parts {
            // SAFETY: these slots are written, belong to this slice and are not looked at again.
            unsafe { part.drop_in_place() };
        }
    }
}

impl<T> fmt::Debug for WriteSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteSlice")
            .field("len", &self.len())
            .field("room", &self.room())
            .finish_non_exhaustive()
    }
}
