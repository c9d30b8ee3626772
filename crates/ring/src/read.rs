//! Read slices.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;

use crate::buffer::sampled;
use crate::lane::{Items, LaneRef, Taken};

/// Items that one reader holds. If the slice is dropped unfinished, the ring hands its items out again,
/// before later ones.
#[must_use = "a slice that is not finished is handed out again"]
pub struct ReadSlice<T> {
    lane: LaneRef<T>,
    taken: ManuallyDrop<Taken<T>>,
    /// The items of `taken`, in slots of the lane or in a vector on the heap.
    parts: [*const [T]; 2],
}

// SAFETY: only this slice points to the items, and threads share all other fields of a lane anyway.
unsafe impl<T: Send> Send for ReadSlice<T> {}
// SAFETY: `&ReadSlice<T>` gives only `&T` and numbers.
unsafe impl<T: Send + Sync> Sync for ReadSlice<T> {}

impl<T> ReadSlice<T> {
    #[inline]
    pub(crate) fn new(lane: LaneRef<T>, taken: Taken<T>) -> Self {
        let parts = match &taken.items {
            Items::Slots(count) => lane
                .parts(taken.positions.start, *count)
                .map(|part| part.cast_const()),
            Items::Gathered(gathered) => [
                ptr::from_ref(gathered.items.as_slice()),
                ptr::slice_from_raw_parts(ptr::NonNull::dangling().as_ptr(), 0),
            ],
        };
        ReadSlice {
            lane,
            taken: ManuallyDrop::new(taken),
            parts,
        }
    }

    /// The items, in order; in two parts where the slice wraps around the end of the ring.
    #[inline(always)]
    pub fn parts(&self) -> [&[T]; 2] {
        // SAFETY: the slice owns the items, and the result borrows the slice.
        self.parts.map(|part| unsafe { &*part })
    }

    /// The number of items; at least one.
    #[inline]
    #[expect(clippy::len_without_is_empty, reason = "no slice is empty")]
    pub fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }

    /// The position behind these items.
    pub fn end(&self) -> u64 {
        self.taken.positions.end
    }

    /// The times of some items: of every [`SAMPLE_EVERY`](crate::SAMPLE_EVERY)th, by position. Items beyond
    /// the room of their write slice count as if they had the positions behind it. A time is 0 where the
    /// writer has set none.
    pub fn stamps(&self) -> impl Iterator<Item = u64> {
        let range = &self.taken.positions;
        let (positions, beyond, stamp) = match &self.taken.items {
            Items::Slots(_) => (range.clone(), 0..0, 0),
            Items::Gathered(gathered) => {
                let start = range.start + gathered.before as u64;
                let end = start + gathered.items.len() as u64;
                // The first run of a gathered range has the stamps of its positions.
                let positions = match gathered.before {
                    0 => range.clone(),
                    _ => 0..0,
                };
                (positions, start.max(range.end)..end, gathered.stamp)
            }
        };
        let beyond = sampled(beyond).map(move |_| stamp);
        let buffer = self.lane.buffer();
        // SAFETY: this slice owns the positions, and their stamps with them.
        let within = sampled(positions).map(|position| unsafe { *buffer.stamp(position) });
        within.chain(beyond)
    }

    /// Drops the items and frees their room.
    #[inline]
    pub fn done(self) {
        let mut slice = ManuallyDrop::new(self);
        // SAFETY: this is the only take, since the slice is not used or dropped afterwards.
        let taken = unsafe { ManuallyDrop::take(&mut slice.taken) };
        slice.lane.finish(taken);
    }
}

impl<T> Drop for ReadSlice<T> {
    fn drop(&mut self) {
        // SAFETY: this is the only take, since the slice ends here.
        let taken = unsafe { ManuallyDrop::take(&mut self.taken) };
        self.lane.hand_back(taken);
    }
}

impl<T> fmt::Debug for ReadSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadSlice")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
