//! The ring between two stages of a flow: bounded, shared by any number of writers and readers,
//! written and read in slices.
//!
//! Nothing here waits. Who finds no room or nothing to read is told so at once; the ring's waker
//! tells when that may have changed.
//!
//! ```
//! use std::task::Waker;
//! use millstream_ring::Ring;
//!
//! let ring = Ring::new(4, Waker::noop().clone());
//! let mut slice = ring.try_write(3).unwrap();
//! slice.push("one").unwrap();
//! slice.push("two").unwrap();
//! slice.commit();
//!
//! let slice = ring.try_read(10).unwrap();
//! assert_eq!(slice.parts(), [["one", "two"].as_slice(), &[]]);
//! slice.done();
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use parking_lot::Mutex;

/// A bounded queue of items in the order in which room for them was reserved.
pub struct Ring<T> {
    capacity: usize,
    /// Woken whenever something may have become readable, room free, or the end reached.
    waker: Waker,
    positions: Mutex<Positions<T>>,
}

/// `readable.len() + reserved + reading <= capacity` at all times.
struct Positions<T> {
    readable: VecDeque<T>,
    /// Items that readers hold and have not finished.
    reading: usize,
    /// Room of the write slices in `writes`.
    reserved: usize,
    /// Write slices in the order of reservation. One that is committed before an earlier one
    /// waits here ("semi-commit").
    writes: VecDeque<Option<Vec<T>>>,
    /// Number of the first write slice in `writes`.
    first_write: u64,
    /// Emptied buffers of former slices, so that a slice allocates nothing.
    spare: Vec<Vec<T>>,
    closed: bool,
}

impl<T> Ring<T> {
    /// A ring with room for `capacity` items.
    ///
    /// # Panics
    /// When `capacity` is 0.
    pub fn new(capacity: usize, waker: Waker) -> Self {
        assert!(capacity > 0, "a ring needs room for at least one item");
        Ring {
            capacity,
            waker,
            positions: Mutex::new(Positions {
                readable: VecDeque::new(),
                reading: 0,
                reserved: 0,
                writes: VecDeque::new(),
                first_write: 0,
                spare: Vec::new(),
                closed: false,
            }),
        }
    }

    /// Reserves room for up to `items_max` items; `None` when there is none at all.
    pub fn try_write(&self, items_max: usize) -> Option<WriteSlice<'_, T>> {
        let mut positions = self.positions.lock();
        let room = self.room_in(&positions).min(items_max);
        if room == 0 {
            return None;
        }
        positions.reserved += room;
        positions.writes.push_back(None);
        Some(WriteSlice {
            ring: self,
            number: positions.first_write + positions.writes.len() as u64 - 1,
            room,
            items: positions.spare.pop().unwrap_or_default(),
        })
    }

    /// Takes up to `items_max` items to read; `None` when there are none.
    pub fn try_read(&self, items_max: usize) -> Option<ReadSlice<'_, T>> {
        let mut positions = self.positions.lock();
        let count = positions.readable.len().min(items_max);
        if count == 0 {
            return None;
        }
        positions.reading += count;
        let mut items = positions.spare.pop().unwrap_or_default();
        items.extend(positions.readable.drain(..count));
        Some(ReadSlice { ring: self, items })
    }

    /// How many items wait to be read.
    pub fn readable(&self) -> usize {
        self.positions.lock().readable.len()
    }

    /// How many items a writer could reserve.
    pub fn room(&self) -> usize {
        self.room_in(&self.positions.lock())
    }

    /// Says that no further slice will be reserved for writing.
    pub fn close(&self) {
        self.positions.lock().closed = true;
        self.waker.wake_by_ref();
    }

    /// Whether the ring is closed and everything written has been read and finished.
    pub fn is_finished(&self) -> bool {
        let positions = self.positions.lock();
        positions.closed
            && positions.writes.is_empty()
            && positions.readable.is_empty()
            && positions.reading == 0
    }

    fn room_in(&self, positions: &Positions<T>) -> usize {
        self.capacity - positions.readable.len() - positions.reserved - positions.reading
    }

    /// Makes a write slice and all semi-committed ones behind it readable, if none before it is
    /// still open.
    fn commit(&self, number: u64, room: usize, items: Vec<T>) {
        let mut positions = self.positions.lock();
        positions.reserved -= room - items.len();
        let index = (number - positions.first_write) as usize;
        positions.writes[index] = Some(items);
        while let Some(Some(_)) = positions.writes.front() {
            let Some(Some(mut items)) = positions.writes.pop_front() else {
                break;
            };
            positions.first_write += 1;
            positions.reserved -= items.len();
            positions.readable.extend(items.drain(..));
            positions.spare.push(items);
        }
        drop(positions);
        self.waker.wake_by_ref();
    }
}

impl<T> fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("capacity", &self.capacity)
            .field("readable", &self.readable())
            .finish_non_exhaustive()
    }
}

/// Room that one writer holds. Dropped uncommitted, it is committed as empty.
#[must_use = "a slice that is not committed is committed as empty"]
pub struct WriteSlice<'a, T> {
    ring: &'a Ring<T>,
    number: u64,
    room: usize,
    items: Vec<T>,
}

impl<T> WriteSlice<'_, T> {
    /// How many more items fit.
    pub fn room(&self) -> usize {
        self.room - self.items.len()
    }

    /// Appends an item.
    ///
    /// # Errors
    /// Gives the item back when the slice is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.room() == 0 {
            return Err(item);
        }
        self.items.push(item);
        Ok(())
    }

    /// Makes the items readable, after those of all slices reserved earlier. Room that was not
    /// used is free again.
    pub fn commit(mut self) {
        let items = std::mem::take(&mut self.items);
        self.ring.commit(self.number, self.room, items);
        std::mem::forget(self);
    }
}

impl<T> Drop for WriteSlice<'_, T> {
    fn drop(&mut self) {
        self.items.clear();
        let items = std::mem::take(&mut self.items);
        self.ring.commit(self.number, self.room, items);
    }
}

/// Items that one reader holds. Dropped unfinished, they are handed out again.
#[must_use = "a slice that is not finished is handed out again"]
pub struct ReadSlice<'a, T> {
    ring: &'a Ring<T>,
    items: Vec<T>,
}

impl<T> ReadSlice<'_, T> {
    /// The items, in order; in two parts where the slice runs over the end of the ring.
    pub fn parts(&self) -> [&[T]; 2] {
        [&self.items, &[]]
    }

    /// Drops the items; their room is free again.
    pub fn done(mut self) {
        let mut items = std::mem::take(&mut self.items);
        let count = items.len();
        // Outside the lock: dropping an item may be expensive.
        items.clear();
        let mut positions = self.ring.positions.lock();
        positions.reading -= count;
        positions.spare.push(items);
        drop(positions);
        self.ring.waker.wake_by_ref();
        std::mem::forget(self);
    }
}

impl<T> Drop for ReadSlice<'_, T> {
    fn drop(&mut self) {
        let mut positions = self.ring.positions.lock();
        positions.reading -= self.items.len();
        for item in self.items.drain(..).rev() {
            positions.readable.push_front(item);
        }
        drop(positions);
        self.ring.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    fn ring(capacity: usize) -> Ring<u64> {
        Ring::new(capacity, Waker::noop().clone())
    }

    fn write(ring: &Ring<u64>, items: &[u64]) {
        let mut slice = ring.try_write(items.len()).expect("room");
        for item in items {
            slice.push(*item).expect("room in the slice");
        }
        slice.commit();
    }

    fn read_all(ring: &Ring<u64>) -> Vec<u64> {
        let mut items = Vec::new();
        while let Some(slice) = ring.try_read(3) {
            items.extend(slice.parts().concat());
            slice.done();
        }
        items
    }

    #[test]
    fn commits_take_effect_in_the_order_of_reservation() {
        let ring = ring(10);
        let mut first = ring.try_write(2).unwrap();
        let mut second = ring.try_write(2).unwrap();
        second.push(2).unwrap();
        second.commit();
        assert_eq!(ring.readable(), 0);
        first.push(1).unwrap();
        first.commit();
        assert_eq!(read_all(&ring), [1, 2]);
        assert_eq!(ring.room(), 10);
    }

    #[test]
    fn a_write_slice_that_is_dropped_is_empty_and_lets_later_ones_pass() {
        let ring = ring(4);
        let mut first = ring.try_write(2).unwrap();
        first.push(1).unwrap();
        write(&ring, &[2]);
        drop(first);
        assert_eq!(read_all(&ring), [2]);
        assert_eq!(ring.room(), 4);
    }

    #[test]
    fn a_read_slice_that_is_dropped_is_handed_out_again() {
        let ring = ring(4);
        write(&ring, &[1, 2, 3]);
        ring.close();
        drop(ring.try_read(2).unwrap());
        assert!(!ring.is_finished());
        assert_eq!(read_all(&ring), [1, 2, 3]);
        assert!(ring.is_finished());
    }

    #[test]
    fn items_that_are_being_read_keep_their_room() {
        let ring = ring(2);
        write(&ring, &[1, 2]);
        let slice = ring.try_read(1).unwrap();
        assert!(ring.try_write(1).is_none());
        slice.done();
        assert_eq!(ring.try_write(5).unwrap().room(), 1);
    }

    #[test]
    fn every_item_arrives_once_through_many_threads() {
        const ITEMS: u64 = 20_000;
        let ring = ring(17);
        let (sum, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for writer in 0..2 {
                let ring = &ring;
                scope.spawn(move || {
                    let mut next = writer * ITEMS;
                    while next < (writer + 1) * ITEMS {
                        let Some(mut slice) = ring.try_write(5) else {
                            thread::yield_now();
                            continue;
                        };
                        while next < (writer + 1) * ITEMS && slice.push(next).is_ok() {
                            next += 1;
                        }
                        slice.commit();
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while count.load(Ordering::Relaxed) < 2 * ITEMS as usize {
                        let Some(slice) = ring.try_read(7) else {
                            thread::yield_now();
                            continue;
                        };
                        let items = slice.parts().concat();
                        sum.fetch_add(items.iter().sum::<u64>() as usize, Ordering::Relaxed);
                        count.fetch_add(items.len(), Ordering::Relaxed);
                        slice.done();
                    }
                });
            }
        });
        assert_eq!(count.into_inner() as u64, 2 * ITEMS);
        assert_eq!(sum.into_inner() as u64, (0..2 * ITEMS).sum::<u64>());
    }

    proptest! {
        /// Any series of writes and reads on one thread acts like a queue.
        #[test]
        fn a_ring_is_a_queue(capacity in 1usize..9, steps in prop::collection::vec((any::<bool>(), 1usize..9), 0..60)) {
            let ring = ring(capacity);
            let mut queue = VecDeque::new();
            let mut next = 0;
            for (is_write, count) in steps {
                if is_write {
                    let Some(mut slice) = ring.try_write(count) else {
                        prop_assert_eq!(queue.len(), capacity);
                        continue;
                    };
                    prop_assert_eq!(slice.room(), count.min(capacity - queue.len()));
                    while slice.push(next).is_ok() {
                        queue.push_back(next);
                        next += 1;
                    }
                    slice.commit();
                } else if let Some(slice) = ring.try_read(count) {
                    let expected: Vec<u64> = queue.drain(..count.min(queue.len())).collect();
                    prop_assert_eq!(slice.parts().concat(), expected);
                    slice.done();
                } else {
                    prop_assert!(queue.is_empty());
                }
            }
        }
    }
}
