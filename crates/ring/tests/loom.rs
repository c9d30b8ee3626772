//! Runs small cases in all interleavings, by
//! `RUSTFLAGS="--cfg loom" cargo test --release -p millstream-ring --test loom`.
#![cfg(loom)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{ring, ring_between};
use loom::thread;
use millstream_ring::{Ring, WriteSlice, set_thread_number};

/// Runs `test` in all interleavings.
fn model(test: impl Fn() + Send + Sync + 'static) {
    loom::model(test);
}

/// An item, on the heap, so that a doubled or lost one shows.
type Item = Box<u32>;

fn write(ring: &Ring<Item>, items: &[u32]) {
    let mut slice = ring.try_write(items.len()).expect("room");
    items.iter().for_each(|item| slice.push(Box::new(*item)));
    slice.commit();
}

fn read(ring: &Ring<Item>, count: usize) -> Vec<u32> {
    let Some(slice) = ring.try_read(count) else {
        return Vec::new();
    };
    let items = slice.parts().into_iter().flatten();
    let items = items.map(|item| **item).collect();
    slice.done();
    items
}

fn read_all(ring: &Ring<Item>) -> Vec<u32> {
    let mut all = Vec::new();
    loop {
        let items = read(ring, 8);
        if items.is_empty() {
            return all;
        }
        all.extend(items);
    }
}

fn spawn<R: 'static>(
    ring: &Arc<Ring<Item>>,
    run: impl FnOnce(&Arc<Ring<Item>>) -> R + 'static,
) -> thread::JoinHandle<R> {
    let ring = Arc::clone(ring);
    thread::spawn(move || run(&ring))
}

fn sorted(mut items: Vec<u32>) -> Vec<u32> {
    items.sort_unstable();
    items
}

#[test]
fn two_writers() {
    model(|| {
        let ring = ring(4);
        let other = spawn(&ring, |ring| write(ring, &[1, 2]));
        write(&ring, &[3]);
        other.join().unwrap();
        let items = read_all(&ring);
        assert!(items == [1, 2, 3] || items == [3, 1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_writer_and_a_reader() {
    model(|| {
        let ring = ring(2);
        let writer = spawn(&ring, |ring| {
            write(ring, &[1]);
            let Some(mut slice) = ring.try_write(2) else {
                return;
            };
            slice.push(Box::new(2));
            slice.commit();
        });
        let mut items = read(&ring, 1);
        items.extend(read(&ring, 2));
        writer.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_slot_is_written_again_only_after_it_was_read() {
    model(|| {
        let ring = ring(1);
        write(&ring, &[1]);
        let writer = spawn(&ring, |ring| match ring.try_write(1) {
            Some(mut slice) => {
                slice.push(Box::new(2));
                slice.commit();
                true
            }
            None => false,
        });
        let mut items = read(&ring, 1);
        let was_written = writer.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2][..1 + usize::from(was_written)]);
    });
}

#[test]
fn two_readers() {
    model(|| {
        let ring = ring(4);
        write(&ring, &[1, 2, 3]);
        let other = spawn(&ring, |ring| read(ring, 2));
        let mut items = read(&ring, 2);
        items.extend(other.join().unwrap());
        items.extend(read_all(&ring));
        assert_eq!(sorted(items), [1, 2, 3]);
        assert!(ring.is_empty());
        assert_eq!(ring.room(), 4);
    });
}

/// Three threads commit three slices in any order, and all items are readable at the end, in the order of
/// the reservations.
#[test]
fn three_slices_commit_in_any_order() {
    model(|| {
        let ring = ring(4);
        let slices = [1, 2, 3].map(|item| {
            let mut slice = ring.try_write(1).unwrap();
            slice.push(Box::new(item));
            slice
        });
        let threads = slices.map(|slice| thread::spawn(move || slice.commit()));
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(read_all(&ring), [1, 2, 3]);
        assert!(ring.is_empty());
    });
}

#[test]
fn two_slices_commit_in_any_order_while_a_reader_reads() {
    model(|| {
        let ring = ring(4);
        let slices = [1, 2].map(|item| {
            let mut slice = ring.try_write(1).unwrap();
            slice.push(Box::new(item));
            slice
        });
        let threads = slices.map(|slice| thread::spawn(move || slice.commit()));
        let mut items = read(&ring, 1);
        for thread in threads {
            thread.join().unwrap();
        }
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2]);
    });
}

#[test]
fn a_writer_drops_a_slice_while_another_reserves_one() {
    model(|| {
        let ring = ring(4);
        let mut dropped = ring.try_write(2).unwrap();
        dropped.push(Box::new(9));
        let other = spawn(&ring, |ring| {
            write(ring, &[1]);
            read(ring, 2)
        });
        drop(dropped);
        let mut items = other.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(items, [1]);
        assert!(ring.is_empty());
        assert_eq!(ring.room(), 4);
    });
}

#[test]
fn readers_find_overflow_items_of_a_slice() {
    model(|| {
        let ring = ring(2);
        let mut first = ring.try_write(1).unwrap();
        let mut second = ring.try_write(1).unwrap();
        let writer = thread::spawn(move || {
            first.push(Box::new(1));
            first.push(Box::new(2));
            first.commit();
        });
        second.push(Box::new(3));
        second.commit();
        let mut items = read(&ring, 2);
        items.extend(read(&ring, 2));
        writer.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2, 3]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_ring_is_resized_while_other_threads_write() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        write(&ring, &[1]);
        let writer = spawn(&ring, |ring| match ring.try_write(1) {
            Some(mut slice) => {
                slice.push(Box::new(2));
                slice.commit();
                true
            }
            None => false,
        });
        assert!(ring.grow());
        let was_written = writer.join().unwrap();
        assert_eq!(ring.capacity(), 4);
        assert_eq!(read_all(&ring), [1, 2][..1 + usize::from(was_written)]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_ring_is_resized_while_other_threads_read() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        write(&ring, &[1, 2]);
        let reader = spawn(&ring, |ring| read(ring, 1));
        assert!(ring.grow());
        let mut items = reader.join().unwrap();
        assert_eq!(ring.capacity(), 4);
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_ring_is_resized_while_other_threads_write_and_read() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        write(&ring, &[1]);
        let mut slice = ring.try_write(1).unwrap();
        let writer = thread::spawn(move || {
            slice.push(Box::new(2));
            slice.commit();
        });
        let reader = spawn(&ring, |ring| read(ring, 1));
        assert!(ring.grow());
        writer.join().unwrap();
        let mut items = reader.join().unwrap();
        assert_eq!(ring.capacity(), 4);
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2]);
    });
}

#[test]
fn a_reader_hands_a_slice_back_while_others_read() {
    model(|| {
        let ring = ring(2);
        write(&ring, &[1, 2]);
        let slice = ring.try_read(1).unwrap();
        let reader = spawn(&ring, |ring| {
            let mut items = read(ring, 1);
            items.extend(read(ring, 1));
            items
        });
        drop(slice);
        let mut items = reader.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(sorted(items), [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_ring_is_dropped_while_slices_are_open() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        write(&ring, &[1]);
        let mut writing = ring.try_write(1).unwrap();
        let reading = ring.try_read(1).unwrap();
        let writer = thread::spawn(move || {
            writing.push(Box::new(2));
            writing.commit();
        });
        let reader = thread::spawn(move || drop(reading));
        ring.grow();
        drop(ring);
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn a_ring_shrinks_while_other_threads_write_and_read() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        assert!(ring.grow());
        write(&ring, &[1]);
        let writer = spawn(&ring, |ring| match ring.try_write(1) {
            Some(mut slice) => {
                slice.push(Box::new(2));
                slice.commit();
                true
            }
            None => false,
        });
        let reader = spawn(&ring, |ring| read(ring, 1));
        assert!(ring.shrink());
        let was_written = writer.join().unwrap();
        let mut items = reader.join().unwrap();
        items.extend(read_all(&ring));
        assert_eq!(items, [1, 2][..1 + usize::from(was_written)]);
        assert_eq!(ring.capacity(), 2);
        assert!(ring.is_empty());
    });
}

#[test]
fn two_readers_skip_a_hole() {
    model(|| {
        let ring = ring(4);
        let mut first = ring.try_write(2).unwrap();
        let mut second = ring.try_write(1).unwrap();
        // The unused room becomes a hole: it cannot be given back, since `second` lies behind it.
        first.push(Box::new(1));
        first.commit();
        second.push(Box::new(2));
        second.commit();
        let reader = spawn(&ring, |ring| read(ring, 2));
        let mut items = read(&ring, 2);
        items.extend(reader.join().unwrap());
        items.extend(read_all(&ring));
        assert_eq!(sorted(items), [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn two_readers_split_a_handed_back_slice() {
    model(|| {
        let ring = ring(2);
        write(&ring, &[1, 2]);
        drop(ring.try_read(2));
        let reader = spawn(&ring, |ring| read(ring, 1));
        let mut items = read(&ring, 1);
        items.extend(reader.join().unwrap());
        assert_eq!(sorted(items), [1, 2]);
        assert!(ring.is_empty());
        assert_eq!(ring.room(), 2);
    });
}

#[test]
fn two_writers_and_a_reader_in_two_lanes() {
    model(|| {
        let ring = ring_between(2, 2, 2);
        set_thread_number(0);
        let put = |item| {
            move |ring: &Arc<Ring<Item>>| {
                set_thread_number(item as usize);
                write(ring, &[item]);
            }
        };
        let writers = [spawn(&ring, put(1)), spawn(&ring, put(2))];
        let mut items = read(&ring, 1);
        for writer in writers {
            writer.join().unwrap();
        }
        items.extend(read_all(&ring));
        assert_eq!(sorted(items), [1, 2]);
        assert!(ring.is_empty());
    });
}

/// Reserves room for a slice of one item.
fn open(ring: &Ring<Item>, item: u32) -> WriteSlice<Item> {
    let mut slice = ring.try_write(1).expect("room");
    slice.push(Box::new(item));
    slice
}

/// A single one of three threads claims the lane, in any order in which they commit two slices and close it.
#[test]
fn a_ring_is_resized_while_slices_commit_out_of_order() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        let slices = [1, 2].map(|item| open(&ring, item));
        let threads = slices.map(|slice| thread::spawn(move || slice.commit()));
        assert!(ring.grow());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(ring.capacity(), 4);
        assert_eq!(read_all(&ring), [1, 2]);
        assert!(ring.is_empty());
    });
}

#[test]
fn a_ring_is_resized_while_slices_are_read_out_of_order() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        write(&ring, &[1, 2]);
        let slices = [1, 2].map(|_| ring.try_read(1).unwrap());
        let threads = slices.map(|slice| thread::spawn(move || slice.done()));
        assert!(ring.grow());
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!((ring.capacity(), ring.room()), (4, 4));
    });
}

/// Room that is given back before the lane is closed leaves no trace; later it leaves holes. The lane is
/// resized in both cases.
#[test]
fn a_ring_is_resized_while_a_writer_gives_room_back() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        let mut slice = ring.try_write(2).unwrap();
        slice.push(Box::new(1));
        let writer = thread::spawn(move || slice.commit());
        assert!(ring.grow());
        writer.join().unwrap();
        assert_eq!(ring.capacity(), 4);
        assert_eq!(read_all(&ring), [1]);
        assert!(ring.is_empty());
        assert_eq!(ring.room(), 4);
    });
}

#[test]
fn a_ring_is_resized_while_one_writer_gives_all_room_back_and_another_writes() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        let dropped = ring.try_write(1).unwrap();
        let dropper = thread::spawn(move || drop(dropped));
        let writer = spawn(&ring, |ring| match ring.try_write(1) {
            Some(mut slice) => {
                slice.push(Box::new(1));
                slice.commit();
                1
            }
            None => 0,
        });
        assert!(ring.grow());
        dropper.join().unwrap();
        let written = writer.join().unwrap();
        assert_eq!(ring.capacity(), 4);
        assert_eq!(read_all(&ring), [1][..written]);
        assert!(ring.is_empty());
    });
}

/// A writer that loads the word before two resizes reserves in the memory of the second.
#[test]
fn a_ring_grows_and_shrinks_while_another_reserves() {
    model(|| {
        let ring = ring_between(2, 4, 1);
        assert!(ring.grow());
        let writer = spawn(&ring, |ring| {
            let Some(mut slice) = ring.try_write(4) else {
                return 0;
            };
            let room = slice.room();
            (1..=room as u32).for_each(|item| slice.push(Box::new(item)));
            slice.commit();
            room
        });
        let resized = [ring.shrink(), ring.grow()];
        let written = writer.join().unwrap();
        assert!(resized[0] && ring.capacity() >= written);
        assert_eq!(read_all(&ring), [1, 2, 3, 4][..written]);
        assert!(ring.is_empty());
    });
}

/// Slices outlive their ring and finish in any order. The last of them frees the lane with its items.
#[test]
fn a_ring_is_dropped_while_slices_finish_out_of_order() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    model(|| {
        let ring: Arc<Ring<Counted>> = ring_between(4, 4, 1);
        let drops = Arc::<AtomicUsize>::default();
        let slices = [1, 2].map(|count| {
            let mut slice = ring.try_write(count).unwrap();
            slice.push(Counted(Arc::clone(&drops)));
            slice
        });
        let threads = slices.map(|slice| thread::spawn(move || slice.commit()));
        drop(ring);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        assert_eq!(Arc::strong_count(&drops), 1);
    });
}

#[test]
fn a_ring_is_dropped_while_a_writer_gives_all_room_back() {
    model(|| {
        let ring: Arc<Ring<Item>> = ring_between(2, 4, 1);
        let slice = ring.try_write(1).unwrap();
        let writer = thread::spawn(move || drop(slice));
        ring.grow();
        drop(ring);
        writer.join().unwrap();
    });
}

/// With one slot, each cell is used again after two items.
#[test]
fn a_ring_of_one_slot_uses_each_cell_again() {
    model(|| {
        let ring = ring(1);
        let writer = spawn(&ring, |ring| {
            let mut written = 0;
            for item in 1..=3 {
                let Some(mut slice) = ring.try_write(1) else {
                    continue;
                };
                slice.push(Box::new(item));
                slice.commit();
                written += 1;
            }
            written
        });
        let mut count = 0;
        for _ in 0..3 {
            count += read(&ring, 1).len();
        }
        let written = writer.join().unwrap();
        count += read_all(&ring).len();
        assert_eq!(count, written);
        assert!(ring.is_empty());
        write(&ring, &[4]);
        assert_eq!(read_all(&ring), [4]);
    });
}
