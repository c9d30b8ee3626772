//! Runs eight threads for a second: no item is lost, doubled, reordered or leaked.
#![cfg(not(loom))]

mod common;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::ring_between;
use millstream_ring::Ring;

/// Readers have read all items by then.
const READ_MAX: Duration = Duration::from_secs(120);

const FOR: Duration = Duration::from_millis(if cfg!(miri) { 50 } else { 1000 });

struct Item {
    writer: usize,
    sequence: u64,
    drops: Arc<AtomicU64>,
}

impl Drop for Item {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

/// xorshift
struct Random(u64);

impl Random {
    fn next(&mut self, range: RangeInclusive<u64>) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        range.start() + self.0 % (range.end() - range.start() + 1)
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.next(1..=times) == 1
    }
}

#[derive(Clone, Copy)]
struct Case {
    writers: usize,
    readers: usize,
    lanes: usize,
    /// No write slice overflows and no read slice is dropped unfinished. Then no item is handed out late,
    /// and each of several readers sees the order of each writer.
    is_smooth: bool,
}

fn resize_sometimes(ring: &Ring<Item>, random: &mut Random) {
    if random.one_in(256) {
        match random.one_in(2) {
            true => ring.grow(),
            false => ring.shrink(),
        };
    }
}

/// Writes numbered items until the time is over. Returns the number of committed and of dropped items.
fn write(
    ring: &Ring<Item>,
    case: Case,
    writer: usize,
    drops: &Arc<AtomicU64>,
    end: Instant,
) -> (u64, u64) {
    let mut random = Random(writer as u64 + 1);
    let (mut committed, mut dropped) = (0, 0);
    while Instant::now() < end {
        resize_sometimes(ring, &mut random);
        let Some(mut slice) = ring.try_write(random.next(1..=32) as usize) else {
            thread::yield_now();
            continue;
        };
        let room = slice.room() as u64;
        let count = match !case.is_smooth && random.one_in(16) {
            true => room + random.next(1..=40),
            false => random.next(0..=room),
        };
        for sequence in committed..committed + count {
            slice.push(Item {
                writer,
                sequence,
                drops: Arc::clone(drops),
            });
        }
        if random.one_in(32) {
            dropped += count;
        } else {
            slice.commit();
            committed += count;
        }
    }
    (committed, dropped)
}

/// Reads until the writers are done and the ring is empty; returns the number of items and the sum of
/// their sequence numbers.
fn read(ring: &Ring<Item>, case: Case, seed: u64, writers_done: &AtomicBool) -> (u64, u64) {
    let mut random = Random(seed);
    let is_in_order = case.lanes == 1 && (case.readers == 1 || case.is_smooth);
    let mut next = vec![0; case.writers];
    let (mut count, mut sum) = (0, 0);
    let started_at = Instant::now();
    loop {
        resize_sometimes(ring, &mut random);
        let was_done = writers_done.load(Ordering::Acquire);
        let Some(slice) = ring.try_read(random.next(1..=64) as usize) else {
            if was_done && ring.is_empty() {
                return (count, sum);
            }
            assert!(started_at.elapsed() < READ_MAX, "items are left");
            thread::yield_now();
            continue;
        };
        if !case.is_smooth && random.one_in(32) {
            continue;
        }
        for item in slice.parts().into_iter().flatten() {
            let next = &mut next[item.writer];
            assert!(!is_in_order || item.sequence >= *next);
            assert!(!is_in_order || case.readers > 1 || item.sequence == *next);
            *next = item.sequence + 1;
            sum += item.sequence;
        }
        count += slice.len() as u64;
        slice.done();
    }
}

fn stress(case: Case) {
    let ring: Arc<Ring<Item>> = ring_between(64, 1024, case.lanes);
    let drops = Arc::default();
    let writers_done = AtomicBool::new(false);
    let end = Instant::now() + FOR;
    thread::scope(|scope| {
        let (ring, drops, writers_done) = (&ring, &drops, &writers_done);
        let writers = (0..case.writers)
            .map(|writer| scope.spawn(move || write(ring, case, writer, drops, end)))
            .collect::<Vec<_>>();
        let readers = (0..case.readers)
            .map(|reader| scope.spawn(move || read(ring, case, reader as u64 + 100, writers_done)))
            .collect::<Vec<_>>();
        let written = writers.into_iter().map(|writer| writer.join().unwrap());
        let written: Vec<(u64, u64)> = written.collect();
        writers_done.store(true, Ordering::Release);
        let read = readers.into_iter().map(|reader| reader.join().unwrap());
        let read = read.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let committed: u64 = written.iter().map(|(committed, _)| committed).sum();
        let dropped: u64 = written.iter().map(|(_, dropped)| dropped).sum();
        let sums = written
            .iter()
            .map(|(committed, _)| (0..*committed).sum::<u64>());
        assert_eq!(read, (committed, sums.sum()));
        assert_eq!(drops.load(Ordering::Relaxed), committed + dropped);
        assert_eq!((ring.written(), ring.read()), (committed, committed));
    });
    assert_eq!(ring.readable(), 0);
    ring.grow();
    assert_eq!(ring.room(), ring.capacity());
}

#[test]
fn many_writers_and_many_readers() {
    stress(Case {
        writers: 4,
        readers: 4,
        lanes: 1,
        is_smooth: true,
    });
}

#[test]
fn one_reader_sees_the_order_of_each_writer() {
    stress(Case {
        writers: 7,
        readers: 1,
        lanes: 1,
        is_smooth: false,
    });
}

#[test]
fn readers_of_several_lanes_hand_slices_back() {
    stress(Case {
        writers: 4,
        readers: 4,
        lanes: 3,
        is_smooth: false,
    });
}
