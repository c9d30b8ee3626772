//! Reads while the stream is deleted, the log closed, the file damaged or more appended.

use millstream_base::Offset;
use millstream_log::{Arena, AtLeast, Log, LogError, ReadStart};

use crate::watched_disk::Watched;
use crate::{append, chunk, config, numbers, old_lane, read_all};

/// The head of a group's file.
const HEAD_BYTES: usize = 4096;

#[test]
fn deleting_a_stream_during_a_read_fails_the_reader() {
    let old = old_lane(600);
    old.watch.set(|watched| watched.closed_from = Some(2 << 20));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reader = old.stream.reader(ReadStart::Earliest);
            loop {
                match reader.read(1 << 20) {
                    Ok(Some(read)) => assert!(!numbers(&read.bytes).is_empty()),
                    ended => return ended,
                }
            }
        });
        old.watch.wait_until(|watched| watched.in_flight >= 2);
        old.log.delete_stream("old").unwrap();
        old.watch.set(|watched| watched.closed_from = None);
        let ended = reader.join().unwrap();
        assert!(
            matches!(ended, Err(LogError::UnknownStream { .. })),
            "{ended:?}"
        );
    });
    old.log.close().unwrap();
}

#[test]
fn a_log_closes_while_requests_of_a_dropped_reader_are_in_flight() {
    let old = old_lane(600);
    old.watch.set(|watched| watched.closed_from = Some(3 << 20));
    let mut reader = old.stream.reader(ReadStart::Earliest);
    // Then two windows are read ahead of it, of which the second waits.
    for _ in 0..3 {
        assert!(reader.read(1 << 20).unwrap().is_some());
    }
    drop(reader);
    let in_flight = |watched: &Watched| {
        let mut requests = watched.requests.iter();
        watched.in_flight == 1 && requests.any(|request| request.offset >= 3 << 20)
    };
    old.watch.wait_until(in_flight);
    let closed = std::thread::spawn(|| old.log.close());
    old.watch.set(|watched| watched.closed_from = None);
    closed.join().unwrap().unwrap();
    assert_eq!(old.watch.state.lock().in_flight, 0);
    let log = Log::open(config(old.dir.path())).unwrap();
    assert!(
        read_all(&log.stream("old").unwrap(), 1 << 20)
            .into_iter()
            .eq(0..600)
    );
}

#[test]
fn a_reader_reports_damage_when_it_reaches_it() {
    let old = old_lane(600);
    let path = {
        let lane = old.stream.partition(0).unwrap();
        lane.fetch(Offset(0), Offset(1), 1, AtLeast::OneChunk)
            .unwrap();
        old.watch.requests()[0].path.clone()
    };
    // In the third window of the first group.
    let damaged = 130;
    let at = damaged * chunk(0).len() + 500;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[HEAD_BYTES + at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let mut seen = Vec::new();
    let error = loop {
        match reader.read(1 << 20) {
            Ok(read) => seen.extend(numbers(&read.unwrap().bytes)),
            Err(error) => break error,
        }
    };
    assert!(seen.into_iter().eq(0..damaged));
    let expected = (damaged * chunk(0).len()) as u64;
    assert!(
        matches!(error, LogError::Corrupted { position, .. } if position == expected),
        "{error}"
    );
    // It stays so, and nothing waits for it.
    assert!(reader.read(1 << 20).is_err());
    assert_eq!(old.log.find_damage().len(), 1);
}

#[test]
fn a_reader_finds_damage_that_happens_after_read_ahead() {
    let old = old_lane(400);
    assert_eq!(read_all(&old.stream, 1 << 20).len(), 400);
    let path = old.watch.requests().last().unwrap().path.clone();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(old.log.find_damage().len(), 1);
}

#[test]
fn a_reader_moves_from_disk_to_memory_during_appends() {
    let old = old_lane(600);
    let mut reader = old.stream.reader(ReadStart::Earliest);
    let mut arenas = Vec::new();
    let mut seen = Vec::new();
    let mut appended = 600;
    while let Some(read) = reader.read(1 << 20).unwrap() {
        arenas.push(read.bytes.arena());
        seen.extend(numbers(&read.bytes));
        if appended < 1_000 {
            append(&old.stream, appended..appended + 40);
            appended += 40;
        }
    }
    assert!(seen.into_iter().eq(0..1_000));
    assert_eq!(arenas.first(), Some(&Arena::Windows));
    assert_eq!(arenas.last(), Some(&Arena::Segments));
    // The newest part, which memory has, was not read from the disk.
    let read = old.watch.bytes();
    let all = 1_000 * chunk(0).len() as u64;
    assert!(read < all, "{read} of {all}");
}
