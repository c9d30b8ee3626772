//! The contract of slices, one property per test, on one thread.
#![cfg(not(loom))]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{read_all, ring, ring_between, write};
use millstream_ring::{Ring, SAMPLE_EVERY};

/// Counts its drops; with `panics` the drop panics.
struct Counted {
    drops: Arc<AtomicUsize>,
    panics: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        assert!(!self.panics, "a drop panics");
    }
}

#[derive(Default)]
struct Drops(Arc<AtomicUsize>);

impl Drops {
    fn item(&self) -> Counted {
        self.counted(false)
    }

    fn bomb(&self) -> Counted {
        self.counted(true)
    }

    fn counted(&self, panics: bool) -> Counted {
        let drops = Arc::clone(&self.0);
        Counted { drops, panics }
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn commits_take_effect_in_the_order_of_reservation() {
    let ring = ring(16);
    let mut first = ring.try_write(2).unwrap();
    let mut second = ring.try_write(2).unwrap();
    second.push(2);
    second.commit();
    assert_eq!(ring.readable(), 0);
    first.push(1);
    first.commit();
    assert_eq!(read_all(&ring), [1, 2]);
    assert_eq!(ring.room(), 16);
    assert!(ring.is_empty());
}

#[test]
fn room_is_freed_in_the_order_in_which_it_was_read() {
    let ring = ring(4);
    write(&ring, &[1, 2, 3, 4]);
    let first = ring.try_read(2).unwrap();
    ring.try_read(2).unwrap().done();
    assert_eq!(ring.room(), 0);
    first.done();
    assert_eq!(ring.room(), 4);
}

#[test]
fn a_dropped_write_slice_is_empty_and_does_not_block_later_ones() {
    let ring = ring(4);
    let mut first = ring.try_write(2).unwrap();
    first.push(1);
    write(&ring, &[2]);
    drop(first);
    assert_eq!(read_all(&ring), [2]);
    assert_eq!(ring.room(), 4);
    assert!(ring.is_empty());
}

#[test]
fn slices_dropped_unfinished_read_as_empty_and_free_their_room() {
    let ring = ring::<u64>(4);
    let first = ring.try_write(1).unwrap();
    let second = ring.try_write(1).unwrap();
    drop(first);
    drop(second);
    assert!(!ring.is_empty());
    assert!(ring.try_read(4).is_none());
    assert_eq!((ring.readable(), ring.room()), (0, 4));
    assert_eq!((ring.written(), ring.read()), (0, 0));
    assert!(ring.is_empty());
}

#[test]
fn committing_a_write_slice_frees_its_unused_room() {
    let ring = ring(4);
    let mut slice = ring.try_write(4).unwrap();
    slice.push(1);
    slice.commit();
    assert_eq!(ring.room(), 3);
    assert_eq!(ring.try_write(9).unwrap().room(), 3);
    assert_eq!(read_all(&ring), [1]);
    assert!(ring.is_empty());
}

#[test]
fn overflow_items_of_a_slice_are_read_in_order() {
    let ring = ring(4);
    let mut first = ring.try_write(2).unwrap();
    let mut second = ring.try_write(2).unwrap();
    (0..5).for_each(|item| first.push(item));
    assert_eq!((first.len(), first.room()), (5, 0));
    second.push(5);
    first.commit();
    second.commit();
    assert_eq!(ring.written(), 6);
    assert_eq!(ring.readable(), 6);
    let slice = ring.try_read(2).unwrap();
    assert_eq!(slice.parts().concat(), [0, 1, 2, 3, 4]);
    drop(slice);
    let slice = ring.try_read(2).unwrap();
    assert_eq!(slice.parts().concat(), [0, 1]);
    let rest = ring.try_read(9).unwrap();
    assert_eq!(rest.parts().concat(), [2, 3, 4]);
    drop(slice);
    rest.done();
    assert!(!ring.is_empty());
    assert_eq!(read_all(&ring), [0, 1, 5]);
    assert_eq!((ring.written(), ring.read()), (6, 6));
    assert!(ring.is_empty());
}

#[test]
fn a_ring_grows_after_reading_a_slice_with_overflow() {
    let ring = ring_between(4, 8, 1);
    let mut slice = ring.try_write(1).unwrap();
    (0..5).for_each(|item| slice.push(item));
    slice.commit();
    ring.try_read(1).unwrap().done();
    assert!(ring.grow());
    assert_eq!(ring.capacity(), 8);
}

#[test]
fn try_write_at_least_refuses_less_room() {
    let ring: Arc<Ring<u32>> = ring_between(8, 8, 2);
    assert!(ring.try_write_at_least(5, 5).is_some(), "a lane holds 4");
    let slices = [ring.try_write(3), ring.try_write_at_least(4, 4)];
    assert_eq!(
        (ring.room(), ring.slice_room(), ring.lane_capacity()),
        (1, 1, 4)
    );
    assert!(ring.try_write_at_least(2, 4).is_none());
    assert_eq!(ring.try_write_at_least(1, 4).unwrap().room(), 1);
    drop(slices);
    assert_eq!(ring.slice_room(), 4);
}

#[test]
fn the_items_of_a_dropped_read_slice_are_read_again() {
    let ring = ring(4);
    write(&ring, &[1, 2, 3]);
    let first = ring.try_read(2).unwrap();
    let second = ring.try_read(2).unwrap();
    drop(second);
    drop(first);
    assert_eq!(ring.readable(), 3);
    assert!(!ring.is_empty());
    assert_eq!(ring.try_read(1).unwrap().parts(), [[1].as_slice(), &[]]);
    assert_eq!(read_all(&ring), [1, 2, 3]);
    assert!(ring.is_empty());
}

#[test]
fn items_of_an_open_read_slice_occupy_their_room() {
    let ring = ring(2);
    write(&ring, &[1, 2]);
    let slice = ring.try_read(1).unwrap();
    assert!(ring.try_write(1).is_none());
    slice.done();
    assert_eq!(ring.try_write(5).unwrap().room(), 1);
}

#[test]
fn a_slice_that_wraps_around_has_two_parts() {
    let ring = ring(4);
    write(&ring, &[0, 1, 2]);
    assert_eq!(read_all(&ring), [0, 1, 2]);
    write(&ring, &[3, 4, 5]);
    let slice = ring.try_read(9).unwrap();
    assert_eq!(slice.parts(), [[3].as_slice(), &[4, 5]]);
    slice.done();
}

#[test]
fn every_hundredth_position_carries_its_write_time() {
    let ring = ring(512);
    for stamp in 1..=4 {
        let mut slice = ring.try_write(SAMPLE_EVERY as usize / 2).unwrap();
        slice.set_stamp(stamp);
        (0..slice.room() as u64).for_each(|item| slice.push(item));
        slice.commit();
    }
    let first = ring.try_read(101).unwrap();
    assert_eq!(first.stamps().collect::<Vec<_>>(), [1, 3]);
    first.done();
    let second = ring.try_read(99).unwrap();
    assert_eq!(second.stamps().count(), 0);
    second.done();
}

#[test]
fn a_ring_grows_and_shrinks_within_its_bounds() {
    let ring = ring_between(2, 4, 1);
    write(&ring, &[1, 2]);
    assert!(ring.grow());
    assert_eq!((ring.capacity(), ring.room()), (4, 2));
    assert!(!ring.grow());
    ring.grow_past_max();
    assert_eq!(ring.capacity(), 8);
    write(&ring, &[3, 4, 5]);
    ring.shrink();
    assert_eq!(ring.capacity(), 8, "the items would not fit");
    assert_eq!(read_all(&ring), [1, 2, 3, 4, 5]);
    assert!(ring.shrink() && ring.shrink());
    assert!(!ring.shrink());
    assert_eq!(ring.capacity(), 2);
}

#[test]
fn a_ring_is_resized_when_the_last_slice_is_finished() {
    let ring = ring_between(4, 8, 1);
    write(&ring, &[1, 2]);
    let mut writer = ring.try_write(1).unwrap();
    writer.push(3);
    let reader = ring.try_read(1).unwrap();
    assert!(ring.grow());
    assert!(!ring.grow(), "one at a time");
    assert!(ring.try_write(1).is_none());
    ring.try_read(1).unwrap().done();
    writer.commit();
    assert!(ring.try_read(1).is_none());
    drop(reader);
    assert_eq!(ring.capacity(), 4, "the handed-back slice is still open");
    let again = ring.try_read(1).unwrap();
    assert_eq!(again.parts().concat(), [1]);
    again.done();
    assert_eq!(ring.capacity(), 8);
    assert_eq!(read_all(&ring), [3]);
}

#[test]
fn slices_outlive_the_ring() {
    let drops = Drops::default();
    let ring = ring_between(8, 16, 1);
    let mut early = ring.try_write(2).unwrap();
    let mut late = ring.try_write(2).unwrap();
    (0..5).for_each(|_| late.push(drops.item()));
    late.commit();
    early.push(drops.item());
    early.commit();
    let read = ring.try_read(1).unwrap();
    let dropped = ring.try_read(2).unwrap();
    let write = ring.try_write(1).unwrap();
    drop(ring.try_read(1));
    ring.grow();
    drop(ring);
    assert_eq!(drops.count(), 4, "the dropped ring drops handed-back items");
    drop(dropped);
    assert_eq!(drops.count(), 5);
    drop(write);
    read.done();
    assert_eq!(drops.count(), 6);
}

#[test]
fn dropping_a_ring_drops_its_items() {
    let drops = Drops::default();
    let ring = ring_between(4, 4, 1);
    let hole = ring.try_write(1).unwrap();
    let mut slice = ring.try_write(2).unwrap();
    (0..4).for_each(|_| slice.push(drops.item()));
    slice.commit();
    drop(hole);
    assert_eq!(drops.count(), 0);
    drop(ring);
    assert_eq!(drops.count(), 4);
}

#[test]
fn an_item_whose_drop_panics_is_dropped_once_and_does_not_block_the_ring() {
    let drops = Drops::default();
    let ring: Arc<Ring<Counted>> = ring_between(4, 4, 1);
    for is_done in [true, false] {
        let mut slice = ring.try_write(3).unwrap();
        slice.push(drops.item());
        slice.push(drops.bomb());
        slice.push(drops.item());
        catch_unwind(AssertUnwindSafe(|| match is_done {
            true => {
                slice.commit();
                ring.try_read(3).unwrap().done();
            }
            false => drop(slice),
        }))
        .unwrap_err();
        assert_eq!(drops.0.swap(0, Ordering::Relaxed), 3);
        assert!(ring.is_empty());
        assert_eq!(ring.room(), 4);
    }
}

#[test]
fn a_ring_carries_zero_sized_items() {
    let ring = ring_between(4, 4, 1);
    let mut slice = ring.try_write(3).unwrap();
    (0..5).for_each(|_| slice.push(()));
    slice.commit();
    let slice = ring.try_read(9).unwrap();
    assert_eq!(slice.len(), 5);
    slice.done();
    assert!(ring.is_empty());
}

#[test]
fn a_thread_reads_its_own_lane_first_and_then_the_other_lanes() {
    let ring = ring_between(8, 8, 2);
    write(&ring, &[1, 2]);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&ring, &[3, 4]));
    });
    let mut items = read_all(&ring);
    items.sort_unstable();
    assert_eq!(items, [1, 2, 3, 4]);
    assert!(ring.is_empty());
}

#[test]
fn overflow_items_of_a_slice_are_sampled_too() {
    let ring = ring(4);
    let mut slice = ring.try_write(1).unwrap();
    slice.set_stamp(7);
    (0..1_000).for_each(|item| slice.push(item));
    slice.commit();
    let slice = ring.try_read(1_000).unwrap();
    assert_eq!(slice.len(), 1_000);
    assert_eq!(slice.stamps().collect::<Vec<_>>(), [7; 10]);
    slice.done();
}
