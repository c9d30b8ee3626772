//! Runs small cases in all interleavings. Time does not pass in a model, so a lost wake-up shows as a
//! deadlock. Run by `RUSTFLAGS="--cfg loom" cargo test --release -p millstream-share --test loom`.
#![cfg(loom)]

use std::time::Duration;

use loom::model::Builder;
use loom::thread;
use millstream_share::{
    Announced, Descriptor, Kind, Publisher, SourceRing, State, Subscription, Taken,
};

/// Checks all interleavings with at most this number of switches away from a runnable thread: the full search would
/// take hours.
fn model_with_preemptions(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

fn numbered(number: u64) -> Descriptor {
    Descriptor {
        next: number,
        ..Descriptor::new(Kind::Chunks)
    }
}

fn pair(entries: u32) -> (Publisher, Subscription, SourceRing) {
    let publisher = Publisher::create(1, entries, 0).unwrap();
    let announced = Announced {
        identity: 0,
        pool_bytes: 0,
        places: &[1],
    };
    let (subscription, mut rings) = Subscription::in_model(&publisher, announced);
    (publisher, subscription, rings.remove(0))
}

fn send(publisher: &mut Publisher, number: u64) {
    publisher.push(0, &numbered(number)).unwrap();
    let _ = publisher.flush(0);
}

fn until_finished(publisher: &mut Publisher, count: u64) {
    loop {
        let seen = publisher.rings();
        if publisher.want_progress(0, count).unwrap() >= count {
            return;
        }
        publisher.wait(seen, Duration::MAX);
    }
}

fn take_all(mut ring: SourceRing, count: u64) {
    for number in 0..count {
        match ring.take(Duration::MAX) {
            Ok(Taken::Descriptor(descriptor, _hold)) => assert_eq!(descriptor, numbered(number)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_consumer_that_goes_to_sleep_is_woken() {
    model_with_preemptions(4, || {
        let (mut publisher, _subscription, ring) = pair(2);
        let consumer = thread::spawn(move || take_all(ring, 2));
        send(&mut publisher, 0);
        send(&mut publisher, 1);
        consumer.join().unwrap();
        assert_eq!(publisher.progress(0), Ok(2));
    });
}

#[test]
fn a_publisher_that_waits_for_room_is_woken_and_overwrites_no_held_entry() {
    model_with_preemptions(3, || {
        let (mut publisher, _subscription, ring) = pair(1);
        let consumer = thread::spawn(move || take_all(ring, 3));
        for number in 0..3 {
            until_finished(&mut publisher, number);
            send(&mut publisher, number);
        }
        consumer.join().unwrap();
    });
}

#[test]
fn a_ring_of_the_doorbell_by_another_thread_is_not_lost_beside_the_consumers() {
    model_with_preemptions(3, || {
        let (mut publisher, _subscription, ring) = pair(1);
        let doorbell = publisher.doorbell();
        send(&mut publisher, 0);
        let before = publisher.rings();
        assert_eq!(publisher.want_progress(0, 1), Ok(0));
        let consumer = thread::spawn(move || take_all(ring, 1));
        let log = thread::spawn(move || doorbell.ring());
        // Each of the two rings ends one wait, in any order of the threads.
        publisher.wait(before, Duration::MAX);
        let mut seen = publisher.rings();
        while publisher.progress(0) == Ok(0) {
            publisher.wait(seen, Duration::MAX);
            seen = publisher.rings();
        }
        consumer.join().unwrap();
        log.join().unwrap();
    });
}

#[test]
fn progress_passes_two_holds_that_two_threads_finish() {
    model_with_preemptions(3, || {
        let (mut publisher, _subscription, mut ring) = pair(2);
        send(&mut publisher, 0);
        send(&mut publisher, 1);
        let mut hold = || match ring.try_take() {
            Ok(Taken::Descriptor(_, hold)) => hold,
            other => panic!("{other:?}"),
        };
        let (first, second) = (hold(), hold());
        let other = thread::spawn(move || drop(first));
        let another = thread::spawn(move || drop(second));
        until_finished(&mut publisher, 2);
        other.join().unwrap();
        another.join().unwrap();
    });
}

#[test]
fn a_consumer_that_goes_to_sleep_sees_the_ring_close() {
    model_with_preemptions(4, || {
        let (publisher, subscription, mut ring) = pair(1);
        let consumer = thread::spawn(move || ring.take(Duration::MAX).unwrap());
        publisher.end(-5);
        assert!(matches!(consumer.join().unwrap(), Taken::Ended(-5)));
        assert_eq!(subscription.state(), State::Ended(-5));
    });
}
