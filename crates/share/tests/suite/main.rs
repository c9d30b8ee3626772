//! Shared memory with the machine's own files and futexes, and the helpers of its tests.
#![cfg(not(loom))]

mod files;
mod processes;
mod rings;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use millstream_share::{
    Announced, Descriptor, Hold, Kind, Publisher, SourceRing, Subscription, Taken,
};

const IDENTITY: u64 = 0x0123_4567_89ab_cdef;
const POOL_BYTES: u64 = 1 << 20;

/// A bound beyond the duration of any step; a thread that waits longer has lost a wake-up.
const STEP_MAX: Duration = Duration::from_secs(20);

const ANNOUNCED: Announced<'static> = Announced {
    identity: IDENTITY,
    pool_bytes: POOL_BYTES,
    places: &[1],
};

/// The position of the consumer's bell in a file with one source.
const CONSUMERS_BELL: u64 = 384 + 16;

/// Both sides of a subscription with one source.
fn pair(entries: u32) -> (Publisher, Subscription, SourceRing) {
    let publisher = Publisher::create(1, entries, IDENTITY).unwrap();
    let (subscription, mut rings) = Subscription::open(&publisher.path(), ANNOUNCED).unwrap();
    (publisher, subscription, rings.remove(0))
}

/// The descriptor with the number `number`.
fn numbered(number: u64) -> Descriptor {
    Descriptor {
        position: number % POOL_BYTES,
        from: number,
        next: number + 1,
        ..Descriptor::new(Kind::Chunks)
    }
}

/// Pushes and publishes a descriptor, for which the ring must have room.
fn send(publisher: &mut Publisher, number: u64) {
    publisher.push(0, &numbered(number)).unwrap();
    let _ = publisher.flush(0);
}

/// Takes the next descriptor, which must exist.
fn taken(ring: &mut SourceRing) -> (Descriptor, Hold) {
    match ring.take(STEP_MAX).unwrap() {
        Taken::Descriptor(descriptor, hold) => (descriptor, hold),
        other => panic!("{other:?}"),
    }
}

/// Returns bytes of the file.
fn peek<const LEN: usize>(publisher: &Publisher, at: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let file = File::open(publisher.path()).unwrap();
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes
}

/// Waits until the consumer has set the flag with which it goes to sleep.
fn until_it_sleeps(publisher: &Publisher) {
    let began = Instant::now();
    while peek::<1>(publisher, CONSUMERS_BELL)[0] & 1 == 0 {
        assert!(began.elapsed() < STEP_MAX);
        thread::yield_now();
    }
}
