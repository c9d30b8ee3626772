//! Write slices.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;

use crate::buffer::Overflow;
use crate::lane::LaneRef;

/// Room that one writer holds. If the slice is dropped uncommitted, it is committed as empty.
#[must_use = "a slice that is not committed is committed as empty"]
pub struct WriteSlice<T> {
    lane: LaneRef<T>,
    /// The lane's slots.
    slots: *mut T,
    /// Index of the slot for the next item.
    next: usize,
    /// The end of the slots from `next`: the end of the room, or of the buffer.
    end: usize,
    /// The number of slots at the beginning of the buffer that follow `end`.
    wrapped: usize,
    reserved: Range<u64>,
    /// Items beyond the room.
    overflow: Option<Box<Overflow<T>>>,
    stamp: u64,
}

// SAFETY: only this slice uses the slots, and threads share all other fields of a lane anyway.
unsafe impl<T: Send> Send for WriteSlice<T> {}
// SAFETY: `&WriteSlice<T>` gives only numbers.
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
            overflow: None,
            stamp: 0,
        }
    }

    /// Appends an item. The slice itself retains an item beyond the room; readers get it in its order.
    // Only inlined functions borrow the slice, so the compiler holds it in registers.
    #[inline(always)]
    pub fn push(&mut self, item: T) {
        if self.next == self.end {
            if self.wrapped == 0 {
                self.overflow = Some(push_overflow(self.overflow.take(), item));
                return;
            }
            self.next = 0;
            self.end = mem::take(&mut self.wrapped);
        }
        // SAFETY: this slice owns the slots up to `end`.
        unsafe { self.slots.add(self.next).write(item) };
        self.next += 1;
    }

    /// The unused room, in items.
    #[inline]
    pub fn room(&self) -> usize {
        self.end - self.next + self.wrapped
    }

    /// The number of items that were pushed.
    pub fn len(&self) -> usize {
        let overflow = self.overflow.as_ref();
        (self.filled() - self.reserved.start) as usize
            + overflow.map_or(0, |overflow| overflow.items.len())
    }

    /// Whether no item was pushed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the position where it begins.
    pub fn start(&self) -> u64 {
        self.reserved.start
    }

    /// The position behind the last item that was pushed. Slices that are reserved later lie behind it.
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

    /// Makes the items readable, after the items of all slices reserved earlier. Unused room is free at once
    /// if no later slice was reserved, or else when a reader passes it.
    #[inline]
    pub fn commit(self) {
        let mut slice = ManuallyDrop::new(self);
        let (filled, overflow) = (slice.filled(), slice.overflow.take());
        finish(
            slice.lane,
            slice.reserved.clone(),
            filled,
            overflow,
            slice.stamp,
        );
    }

    /// The position behind the last written slot.
    #[inline]
    fn filled(&self) -> u64 {
        self.reserved.end - self.room() as u64
    }
}

#[cold]
#[inline(never)]
fn push_overflow<T>(overflow: Option<Box<Overflow<T>>>, item: T) -> Box<Overflow<T>> {
    let mut overflow = overflow.unwrap_or_else(|| {
        Box::new(Overflow {
            items: Vec::new(),
            stamp: 0,
        })
    });
    overflow.items.push(item);
    overflow
}

/// Commits the slots up to `filled`.
#[inline]
fn finish<T>(
    lane: LaneRef<T>,
    reserved: Range<u64>,
    filled: u64,
    overflow: Option<Box<Overflow<T>>>,
    stamp: u64,
) {
    if filled == reserved.end && overflow.is_none() {
        lane.commit(reserved, stamp);
    } else if let Some(written) = lane.settle(reserved, filled, overflow, stamp) {
        lane.commit(written, stamp);
    }
}

impl<T> Drop for WriteSlice<T> {
    #[inline]
    fn drop(&mut self) {
        let filled = self.filled();
        let reserved = self.reserved.clone();
        cancel(self.lane, reserved, filled, self.overflow.take());
    }
}

/// Drops the written items and commits none of them, even if dropping an item panics.
#[cold]
#[inline(never)]
fn cancel<T>(
    lane: LaneRef<T>,
    reserved: Range<u64>,
    filled: u64,
    overflow: Option<Box<Overflow<T>>>,
) {
    struct Finish<T>(LaneRef<T>, Range<u64>);
    impl<T> Drop for Finish<T> {
        fn drop(&mut self) {
            finish(self.0, self.1.clone(), self.1.start, None, 0);
        }
    }
    let start = reserved.start;
    let _finish = Finish(lane, reserved);
    let parts = lane.parts(start, (filled - start) as usize);
    drop(overflow);
    for part in parts {
        // SAFETY: the slice owns these slots and has written them, and no reader will get them.
        unsafe { part.drop_in_place() };
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
