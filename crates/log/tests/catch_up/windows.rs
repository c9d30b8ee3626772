//! How many reads the windows take, of how many bytes, and in how much memory.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use millstream_base::Offset;
use millstream_log::{
    AtLeast, Durability, LogError, PartitionReader, ReadChunks, ReadStart, StreamReader,
};

use crate::watched_disk::ReadKind;
use crate::{CATCH_UP_BYTES, Old, TIMEOUT, chunk, numbers, old, old_lane, old_of, read_all};

/// Most bytes are read by one of the disk's methods, and the first windows in pieces.
#[track_caller]
fn check_read_by(old: &Old, kind: ReadKind) {
    let requests = old.watch.requests();
    let reads = requests.iter().filter(|request| request.kind == kind);
    let bytes: u64 = reads.map(|request| request.bytes).sum();
    assert!(bytes > old.bytes * 9 / 10, "{bytes} of {}", old.bytes);
}

/// A read past the cache had the disk write the bytes first that a producer had just sent.
#[test]
fn old_data_of_a_written_stream_is_read_through_the_cache() {
    let old = old_of(Durability::Written, 1_500);
    assert!(read_all(&old.stream, 1 << 20).into_iter().eq(0..1_500));
    check_read_by(&old, ReadKind::Once);
}

#[test]
fn old_data_is_read_with_several_direct_reads_in_flight() {
    let old = old_lane(1_500);
    old.watch.set(|watched| watched.together = 3);
    assert!(read_all(&old.stream, 1 << 20).into_iter().eq(0..1_500));
    check_read_by(&old, ReadKind::PastCache);
    // Each byte once, but for the pages at the windows' ends.
    let read = old.watch.bytes();
    assert!(read < old.bytes * 21 / 20, "{read} of {}", old.bytes);
    // Eight threads of the node, and the reader itself.
    let peak = old.watch.state.lock().in_flight_peak;
    assert!((3..=9).contains(&peak), "{peak}");
}

fn readers(old: &Old) -> Vec<PartitionReader> {
    let cursors = old.stream.reader(ReadStart::Earliest).cursors();
    let readers = cursors
        .into_iter()
        .zip(0..)
        .map(|(cursor, number)| old.stream.partition(number).unwrap().reader(cursor));
    readers.collect()
}

/// The first partitions that were read took all of the memory for read-ahead.
#[test]
fn each_of_several_partitions_is_read_ahead() {
    let old = old(3_200, 8, 4 << 20, tempfile::tempdir().unwrap());
    let mut readers = readers(&old);
    old.watch.set(|watched| watched.are_threads_held = true);
    for _ in 0..3 {
        for reader in &mut readers {
            assert!(reader.read(1 << 20).unwrap().is_some());
        }
    }
    old.watch.set(|watched| watched.are_threads_held = false);
    old.watch.wait_until(|watched| {
        let ahead = watched.requests.iter().filter(|request| request.is_ahead);
        let groups: HashSet<&Path> = ahead.map(|request| request.path.as_path()).collect();
        groups.len() == readers.len()
    });
}

/// The threads have a low priority, and readers waited for all of their queue up to the window that they came to.
#[test]
fn a_reader_loads_a_window_itself_that_no_thread_has_begun() {
    let old = old(1_500, 5, 64 << 20, tempfile::tempdir().unwrap());
    let mut readers = readers(&old);
    old.watch.set(|watched| watched.are_threads_held = true);
    // Then two windows are read ahead of each, and those of the first four have all threads.
    for reader in &mut readers {
        for _ in 0..3 {
            assert!(reader.read(1 << 20).unwrap().is_some());
        }
    }
    old.watch.wait_until(|watched| watched.in_flight == 8);
    let mut last = readers.pop().unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(move || last.read(1 << 20).unwrap().unwrap());
        let until = Instant::now() + Duration::from_secs(10);
        while !read.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let is_finished = read.is_finished();
        old.watch.set(|watched| watched.are_threads_held = false);
        assert!(is_finished, "the reader waits for a thread");
        assert!(!numbers(&read.join().unwrap().bytes).is_empty());
    });
}

#[test]
fn read_ahead_takes_at_most_half_of_the_memory() {
    for catch_up in [CATCH_UP_BYTES, 4 << 20, 1 << 20] {
        let old = old(1_500, 1, catch_up, tempfile::tempdir().unwrap());
        let mut reader = old.stream.reader(ReadStart::Earliest);
        let mut given = 0;
        let mut seen = Vec::new();
        for _ in 0..12 {
            let read = reader.read(1 << 20).unwrap().unwrap();
            given += read.bytes.len() as u64;
            seen.extend(numbers(&read.bytes));
        }
        assert!(seen.iter().copied().eq(0..seen.len()));
        // All that was planned is read by then, or never.
        old.log.close().unwrap();
        let (read, bound) = (old.watch.bytes(), given * 21 / 20 + catch_up / 2);
        assert!(read <= bound, "{read} bytes for {given}, of {catch_up}");
    }
}

#[test]
fn random_reads_read_no_more_than_they_need() {
    let old = old_lane(600);
    let lane = old.stream.partition(0).unwrap();
    // None behind one that was read before.
    for number in (0..50).map(|n| n * 274 % 598) {
        let from = Offset(number as u64);
        let fetched = lane.fetch(from, Offset(from.0 + 1), 1, AtLeast::OneChunk);
        assert_eq!(numbers(&fetched.unwrap().pieces[0]), [number]);
    }
    let requests = old.watch.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.kind == ReadKind::Plain)
    );
    // A look for the chunk goes from one entry of the index, of 64 KiB each, to the next but one.
    let most = 50 * ((128 << 10) + chunk(0).len() as u64 + 1000);
    assert!(old.watch.bytes() < most, "{} of {most}", old.watch.bytes());
}

#[test]
fn readers_at_nearly_the_same_offset_read_the_disk_once() {
    let old = old_lane(1_000);
    let mut readers: Vec<_> = (0..3)
        .map(|_| old.stream.reader(ReadStart::Earliest))
        .collect();
    let mut seen = vec![Vec::new(); readers.len()];
    let mut is_over = false;
    while !is_over {
        for (reader, seen) in readers.iter_mut().zip(&mut seen) {
            match reader.read(1 << 20).unwrap() {
                Some(read) => seen.extend(numbers(&read.bytes)),
                None => is_over = true,
            }
        }
    }
    assert!(seen.iter().all(|seen| seen.iter().copied().eq(0..1_000)));
    // They begin at the same place, before any of them is known to go on.
    let read = old.watch.bytes();
    assert!(
        read < old.bytes * 23 / 20 + (2 << 20),
        "{read} of {}",
        old.bytes
    );
}

#[test]
fn small_reads_of_many_partitions_share_the_memory() {
    let old = old(1_600, 8, 4 << 20, tempfile::tempdir().unwrap());
    let mut all = read_all(&old.stream, 50_000);
    all.sort_unstable();
    assert!(all.into_iter().eq(0..1_600));
    let read = old.watch.bytes();
    assert!(read < old.bytes * 3 / 2, "{read} of {}", old.bytes);
}

/// Reads until readers hold all memory. Returns what holds it.
fn take_all_memory(reader: &mut StreamReader) -> Vec<ReadChunks> {
    let mut held = Vec::new();
    loop {
        match reader.read(1 << 20) {
            Ok(read) => held.push(read.unwrap()),
            Err(LogError::ReadBudget) => return held,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Readers of little at a time seldom plan to read ahead, and only that ended a shortage.
#[test]
fn small_reads_share_a_window_after_a_shortage() {
    let old = old(600, 1, 4 << 20, tempfile::tempdir().unwrap());
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let held = take_all_memory(&mut reader);
    old.watch.wait_until(|watched| watched.in_flight == 0);
    drop(held);
    let mut reader = old.stream.reader(ReadStart::Earliest);
    // The second read loads a window.
    for _ in 0..2 {
        assert!(reader.read(50_000).unwrap().is_some());
    }
    old.watch.set(|watched| watched.requests.clear());
    assert!(reader.read(50_000).unwrap().is_some());
    let requests = old.watch.requests();
    assert!(requests.is_empty(), "{requests:?}");
}

/// The file system in memory that most machines have: it has no disk to go to.
#[test]
fn catch_up_reads_work_on_a_memory_file_system() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let old = old(600, 1, CATCH_UP_BYTES, dir);
    assert!(read_all(&old.stream, 1 << 20).into_iter().eq(0..600));
}

/// Cached windows stayed while a subscriber waited for memory, so nothing came free when their readers dropped them.
#[test]
fn read_ahead_memory_is_freed_when_the_last_reader_drops_it() {
    let old = old(600, 1, 4 << 20, tempfile::tempdir().unwrap());
    let mut reader = old.stream.reader(ReadStart::Earliest);
    // The first read is none of a window.
    reader.read(1 << 20).unwrap();
    let mut held = take_all_memory(&mut reader);
    let listener = old.log.pool().freed().listen();
    held.clear();
    assert!(event_listener::Listener::wait_timeout(listener, TIMEOUT).is_some());
    assert!(reader.read(1 << 20).unwrap().is_some());
}
