//! Write slices.

use std::fmt;
use std::mem::{self, ManuallyDrop};
use std::ops::Range;

use crate::buffer::Beyond;
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
    beyond: Option<Box<Beyond<T>>>,
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
            beyond: None,
            stamp: 0,
        }
    }

    /// Appends an item. One that goes beyond the room is kept by the slice and read in its place.
    // The slice itself is not lent to anything that is not inlined: so it lies in registers.
    #[inline(always)]
    pub fn push(&mut self, item: T) {
        if self.next == self.end {
            if self.wrapped == 0 {
                self.beyond = Some(push_beyond(self.beyond.take(), item));
                return;
            }
            self.next = 0;
            self.end = mem::take(&mut self.wrapped);
        }
        // SAFETY: slots up to `end` belong to this slice.
        unsafe { self.slots.add(self.next).write(item) };
        self.next += 1;
    }

    /// How much of the reserved room is left.
    #[inline]
    pub fn room(&self) -> usize {
        self.end - self.next + self.wrapped
    }

    /// How many items were pushed.
    pub fn len(&self) -> usize {
        (self.filled() - self.reserved.start) as usize
            + self.beyond.as_ref().map_or(0, |beyond| beyond.items.len())
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
        let (filled, beyond) = (slice.filled(), slice.beyond.take());
        finish(
            slice.lane,
            slice.reserved.clone(),
            filled,
            beyond,
            slice.stamp,
        );
    }

    /// Up to which position the slots are written.
    #[inline]
    fn filled(&self) -> u64 {
        self.reserved.end - self.room() as u64
    }
}

#[cold]
#[inline(never)]
fn push_beyond<T>(beyond: Option<Box<Beyond<T>>>, item: T) -> Box<Beyond<T>> {
    let mut beyond = beyond.unwrap_or_else(|| {
        Box::new(Beyond {
            items: Vec::new(),
            stamp: 0,
        })
    });
    beyond.items.push(item);
    beyond
}

/// Commits the slots up to `filled`.
#[inline]
fn finish<T>(
    lane: LaneRef<T>,
    reserved: Range<u64>,
    filled: u64,
    beyond: Option<Box<Beyond<T>>>,
    stamp: u64,
) {
    if filled == reserved.end && beyond.is_none() {
        lane.commit(reserved, stamp);
    } else if let Some(written) = lane.settle(reserved, filled, beyond, stamp) {
        lane.commit(written, stamp);
    }
}

impl<T> Drop for WriteSlice<T> {
    #[inline]
    fn drop(&mut self) {
        let filled = self.filled();
        cancel(self.lane, self.reserved.clone(), filled, self.beyond.take());
    }
}

/// Drops what was written and commits nothing of it, even if dropping an item panics.
#[cold]
#[inline(never)]
fn cancel<T>(lane: LaneRef<T>, reserved: Range<u64>, filled: u64, beyond: Option<Box<Beyond<T>>>) {
    struct Finish<T>(LaneRef<T>, Range<u64>);
    impl<T> Drop for Finish<T> {
        fn drop(&mut self) {
            finish(self.0, self.1.clone(), self.1.start, None, 0);
        }
    }
    let start = reserved.start;
    let _finish = Finish(lane, reserved);
    let parts = lane.parts(start, (filled - start) as usize);
    drop(beyond);
    for part in parts {
        // SAFETY: these slots are written, belong to the slice and are not looked at again.
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
