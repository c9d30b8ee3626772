//! Helpers of the ring's tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::num::NonZeroUsize;
use std::sync::Arc;

use millstream_ring::{Ring, RingConfig};

pub fn ring_between<T>(capacity_min: usize, capacity_max: usize, lanes: usize) -> Arc<Ring<T>> {
    let [capacity_min, capacity_max, lanes] =
        [capacity_min, capacity_max, lanes].map(|number| NonZeroUsize::new(number).unwrap());
    Ring::new(RingConfig {
        capacity_min,
        capacity_max,
        lanes,
    })
}

pub fn ring<T>(capacity: usize) -> Arc<Ring<T>> {
    ring_between(capacity, capacity, 1)
}

pub fn write<T: Copy>(ring: &Ring<T>, items: &[T]) {
    let mut slice = ring.try_write(items.len()).expect("room");
    items.iter().for_each(|item| slice.push(*item));
    slice.commit();
}

pub fn read_all<T: Copy>(ring: &Ring<T>) -> Vec<T> {
    let mut items = Vec::new();
    while let Some(slice) = ring.try_read(3) {
        items.extend(slice.parts().concat());
        slice.done();
    }
    items
}
