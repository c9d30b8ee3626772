//! Resizing and freeing a lane, by the steps that stand above [`Lane`](super::Lane).

use std::collections::BTreeMap;

use super::LaneRef;
use crate::buffer::Buffer;
use crate::sync::{Ordering, lock};

impl<T> LaneRef<T> {
    /// Requests the capacity that `wanted` makes of the present one. `false` when it makes none, or when
    /// a resize is under way.
    pub fn resize(self, wanted: impl Fn(usize) -> Option<usize>) -> bool {
        let Some(capacity) = self.write_reserve.close(wanted) else {
            return false;
        };
        // `Turns::close` in `close_writers` releases it; the claim acquires it.
        self.rest.capacity_wanted.store(capacity, Ordering::Relaxed);
        self.close_writers();
        true
    }

    /// Closes the lane for good. The ring calls it once, as it is dropped.
    pub fn abandon(self) {
        let returned = lock(&self.rest.returned).take();
        for taken in returned.into_iter().flat_map(BTreeMap::into_values) {
            self.finish(taken);
        }
        if self.write_reserve.abandon() {
            self.close_writers();
        }
    }

    /// Step 2, for the thread that has closed `shadow_tail`.
    fn close_writers(self) {
        // `position` accepts any earlier position, so the load needs no order.
        let shadow_tail = self
            .write_reserve
            .position(self.tail.load(Ordering::Relaxed));
        if self.buffer().write_turns().close(shadow_tail) {
            self.on_writers_claimed();
        }
    }

    /// Goes on with step 3, for the thread that has claimed the writers' side.
    #[cold]
    pub fn on_writers_claimed(self) {
        if self.close_readers() {
            self.on_all_claimed();
        }
    }

    /// Step 3, for the thread that has claimed the writers' side. On `true` it has claimed the readers'
    /// side, too. On `false` it must not touch the lane any more.
    fn close_readers(self) -> bool {
        let shadow_head = self.read_reserve.close();
        self.buffer().read_turns().close(shadow_head)
    }

    /// Step 4, for the thread that has claimed both sides: reopens the lane, or frees it.
    #[cold]
    pub fn on_all_claimed(self) {
        loop {
            if self.write_reserve.is_abandoned() {
                // SAFETY: `new` leaked this box. The ring is gone and no slice is open, so this thread
                // has the only pointer that is still used.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
                return;
            }
            let capacity = self.replace_buffer();
            // Readers first: while the writers' side is closed, no thread can request the next resize.
            self.read_reserve.open();
            if self.write_reserve.open(capacity) {
                return;
            }
            // The ring was dropped meanwhile, and its thread leaves the lane to this one.
            if !self.close_readers() {
                return;
            }
        }
    }

    /// Gives the lane the wanted capacity, if its items fit, and lays down the turns. Returns the
    /// capacity.
    fn replace_buffer(self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let capacity = self.rest.capacity_wanted.load(Ordering::Relaxed);
        self.rest.buffer_track.owner();
        // SAFETY: this thread has claimed both sides, so no other thread uses the buffer.
        let buffer = unsafe { &mut *self.rest.buffer.get() };
        if capacity < (tail - head) as usize {
            buffer.read_turns().rest(head);
            buffer.write_turns().rest(tail);
            return buffer.capacity();
        }
        let new = Buffer::new(capacity, head, tail);
        // SAFETY: this thread owns both buffers. `head..tail` is committed, and no reader holds any of it.
        unsafe { buffer.move_to(&new, head..tail) };
        *buffer = new;
        capacity
    }
}
