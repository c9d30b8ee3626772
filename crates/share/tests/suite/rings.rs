//! Tests both sides of a subscription in one process.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use crate::{
    ANNOUNCED, CONSUMERS_BELL, IDENTITY, STEP_MAX, numbered, pair, peek, send, taken,
    until_it_sleeps,
};
use millstream_share::{
    BadProgress, Broken, Descriptor, Full, Kind, Publisher, Rung, State, Subscription, Taken,
    WAIT_MAX,
};

/// Positions in a file with one source.
const PROGRESS: u64 = 384 + 128;
const TAIL: u64 = 384;
const FIRST_SLOT: u64 = 384 + 256;

fn poke(publisher: &Publisher, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(publisher.path());
    file.unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn a_consumer_gets_descriptors_in_order_once_they_are_flushed() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    publisher.push(0, &numbered(0)).unwrap();
    publisher.push(0, &numbered(1)).unwrap();
    assert!(matches!(ring.try_take(), Ok(Taken::TimedOut)));
    assert_eq!(publisher.flush(0), Rung::Done);
    assert_eq!(taken(&mut ring).0, numbered(0));
    assert_eq!(taken(&mut ring).0, numbered(1));
    assert!(matches!(ring.take(Duration::ZERO), Ok(Taken::TimedOut)));
}

#[test]
fn a_full_ring_has_room_again_after_progress() {
    let (mut publisher, _subscription, mut ring) = pair(2);
    send(&mut publisher, 0);
    send(&mut publisher, 1);
    assert_eq!(publisher.push(0, &numbered(2)), Err(Full));
    drop(taken(&mut ring));
    assert_eq!(publisher.push(0, &numbered(2)), Err(Full));
    assert_eq!(publisher.progress(0), Ok(1));
    send(&mut publisher, 2);
    assert_eq!(publisher.push(0, &numbered(3)), Err(Full));
    assert_eq!(taken(&mut ring).0, numbered(1));
    assert_eq!(taken(&mut ring).0, numbered(2));
}

#[test]
fn progress_waits_for_the_first_held_descriptor() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    (0..3).for_each(|number| send(&mut publisher, number));
    let [first, second, third] = std::array::from_fn(|_| taken(&mut ring).1);
    assert_eq!(third.sequence(), 2);
    drop(third);
    drop(second);
    assert_eq!(publisher.progress(0), Ok(0));
    drop(first);
    assert_eq!(publisher.progress(0), Ok(3));
}

#[test]
fn a_publisher_refuses_progress_that_no_consumer_can_have_made() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    send(&mut publisher, 0);
    send(&mut publisher, 1);
    publisher.push(0, &numbered(2)).unwrap();
    drop(taken(&mut ring));
    assert_eq!(publisher.progress(0), Ok(1));
    for claimed in [0u64, 3, u64::MAX] {
        poke(&publisher, PROGRESS, &claimed.to_le_bytes());
        let error = BadProgress {
            index: 0,
            claimed,
            seen: 1,
            published: 2,
        };
        assert_eq!(publisher.progress(0), Err(error));
        assert_eq!(publisher.want_progress(0, 2), Err(error));
    }
    assert_eq!(publisher.push(0, &numbered(3)), Ok(()));
}

#[test]
fn a_damaged_tail_or_descriptor_is_reported() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    poke(&publisher, TAIL, &5u64.to_le_bytes());
    let broken = Broken::Tail {
        tail: 5,
        taken: 0,
        entries: 4,
    };
    assert_eq!(ring.try_take().unwrap_err(), broken);
    for (at, value, reason) in [
        (0, 9u64, "its kind is 9"),
        (0, 1 << 32 | 1, "partition 1 of a list of 1"),
        (8, u64::MAX, "are not in a pool"),
    ] {
        let (mut publisher, _subscription, mut ring) = pair(4);
        send(&mut publisher, 0);
        poke(&publisher, FIRST_SLOT + at, &value.to_le_bytes());
        poke(&publisher, FIRST_SLOT + 16, &1u64.to_le_bytes());
        let error = ring.take(STEP_MAX).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    send(&mut publisher, 0);
    assert_eq!(taken(&mut ring).0, numbered(0));
}

#[test]
fn closing_a_ring_wakes_waiting_threads_and_ends_holds() {
    let (mut publisher, subscription, mut ring) = pair(4);
    send(&mut publisher, 0);
    send(&mut publisher, 1);
    let (_, hold) = taken(&mut ring);
    assert!(hold.is_live());
    let (_, second) = taken(&mut ring);
    let waiting = thread::spawn(move || ring.take(STEP_MAX));
    until_it_sleeps(&publisher);
    publisher.end(-7);
    assert!(matches!(waiting.join().unwrap(), Ok(Taken::Ended(-7))));
    assert!(!hold.is_live());
    drop(second);
    drop(publisher);
    assert_eq!(subscription.state(), State::Ended(-7));
}

#[test]
fn a_closed_ring_hands_out_no_more_descriptors() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    send(&mut publisher, 0);
    drop(publisher);
    assert!(matches!(ring.take(STEP_MAX), Ok(Taken::Ended(0))));
}

#[test]
fn holds_stay_live_when_the_consumer_closes_its_side() {
    let (mut publisher, subscription, mut ring) = pair(4);
    send(&mut publisher, 0);
    let (_, hold) = taken(&mut ring);
    let waiting = thread::spawn(move || ring.take(STEP_MAX));
    until_it_sleeps(&publisher);
    subscription.close(3);
    assert!(matches!(waiting.join().unwrap(), Ok(Taken::Ended(3))));
    assert!(hold.is_live());
    assert_eq!(subscription.state(), State::Live);
    assert_eq!(publisher.progress(0), Ok(0));
    drop(hold);
    assert_eq!(publisher.progress(0), Ok(1));
}

#[test]
fn only_progress_that_the_publisher_awaits_rings_the_doorbell() {
    let (mut publisher, _subscription, mut ring) = pair(4);
    (0..4).for_each(|number| send(&mut publisher, number));
    let mut rings = Vec::new();
    let mut note = |publisher: &Publisher| rings.push(publisher.rings());
    note(&publisher);
    drop(taken(&mut ring));
    note(&publisher);
    assert_eq!(publisher.want_progress(0, 3), Ok(1));
    drop(taken(&mut ring));
    note(&publisher);
    drop(taken(&mut ring));
    note(&publisher);
    drop(taken(&mut ring));
    note(&publisher);
    assert_eq!(rings[0], rings[1]);
    assert_eq!(rings[1], rings[2]);
    assert_ne!(rings[2], rings[3]);
    assert_eq!(rings[3], rings[4]);
    assert!(publisher.wait(rings[2], STEP_MAX));
    assert_eq!(publisher.want_progress(0, 3), Ok(4));
}

#[test]
fn other_threads_wake_the_publisher_through_the_doorbells_waker() {
    let (publisher, ..) = pair(4);
    let seen = publisher.rings();
    let waker = Waker::from(publisher.doorbell());
    let other = thread::spawn(move || waker.wake_by_ref());
    let began = Instant::now();
    while !publisher.wait(seen, STEP_MAX) {
        assert!(began.elapsed() < STEP_MAX);
    }
    other.join().unwrap();
}

#[test]
fn a_wait_for_the_doorbell_is_bounded() {
    let (publisher, ..) = pair(4);
    let began = Instant::now();
    assert!(!publisher.wait(publisher.rings(), Duration::MAX));
    assert!(began.elapsed() >= WAIT_MAX);
}

#[test]
fn flush_reports_a_consumer_that_waits_for_a_byte_on_the_socket() {
    let (mut publisher, ..) = pair(4);
    poke(&publisher, CONSUMERS_BELL, &[2]);
    publisher.push(0, &numbered(0)).unwrap();
    assert_eq!(publisher.flush(0), Rung::WaitsForByte);
    assert_eq!(publisher.flush(0), Rung::Done, "there is nothing new");
    assert_eq!(peek(&publisher, CONSUMERS_BELL), [4 + 2, 0, 0, 0]);
}

#[test]
fn sources_are_independent() {
    let mut publisher = Publisher::create(2, 4, IDENTITY).unwrap();
    let places = &[1, 2];
    let announced = millstream_share::Announced {
        places,
        ..ANNOUNCED
    };
    let (_subscription, mut rings) = Subscription::open(&publisher.path(), announced).unwrap();
    let descriptor = Descriptor {
        place: 1,
        ..numbered(5)
    };
    publisher.push(1, &descriptor).unwrap();
    assert_eq!(publisher.flush(1), Rung::Done);
    assert!(matches!(rings[0].try_take(), Ok(Taken::TimedOut)));
    let (found, hold) = taken(&mut rings[1]);
    assert_eq!(found, descriptor);
    drop(hold);
    assert_eq!(publisher.progress(1), Ok(1));
    assert_eq!(publisher.progress(0), Ok(0));
}

#[test]
fn several_threads_finish_descriptors_of_one_ring() {
    let (mut publisher, _subscription, mut ring) = pair(64);
    for round in 0..50 {
        (0..64).for_each(|number| send(&mut publisher, round * 64 + number));
        let mut holds: Vec<_> = (0..64).map(|_| taken(&mut ring).1).collect();
        thread::scope(|scope| {
            while let Some(hold) = holds.pop() {
                let batch = [Some(hold), holds.pop(), holds.pop(), holds.pop()];
                scope.spawn(move || drop(batch));
            }
        });
        assert_eq!(publisher.progress(0), Ok((round + 1) * 64));
    }
}

#[test]
fn golden_bytes_of_a_file() {
    let (mut publisher, _subscription, mut ring) = pair(2);
    send(&mut publisher, 0);
    drop(taken(&mut ring));
    publisher.want_progress(0, 0x1234).unwrap();
    let refused = Descriptor {
        code: -1,
        ..Descriptor::new(Kind::Refused)
    };
    publisher.push(0, &refused).unwrap();
    assert_eq!(publisher.flush(0), Rung::Done);
    publisher.doorbell().ring();
    let mut golden = vec![0; 384 + 256 + 2 * 128];
    let mut put = |at: usize, bytes: &[u8]| golden[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"MILLRING");
    put(8, &[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
    put(24, &[0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
    put(256, &[4, 0, 0, 0]);
    put(384, &[2, 0, 0, 0, 0, 0, 0, 0, 0x34, 0x12]);
    put(384 + 16, &[8, 0, 0, 0]);
    put(512, &[1]);
    put(640, &[1]);
    put(640 + 32, &[1]);
    put(768, &[2]);
    put(768 + 48, &[0xff; 4]);
    assert_eq!(std::fs::read(publisher.path()).unwrap(), golden);
    publisher.end(-2);
    let state = [1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff];
    assert_eq!(peek(&publisher, 128), state);
}
