//! How long it takes to wake the other side. Prints; run it alone, in release:
//! `cargo test --release -p millstream-share --test suite -- --ignored --nocapture latency`.

use std::thread;
use std::time::{Duration, Instant};

use crate::{numbered, pair, send, taken};
use millstream_share::{Rung, Taken};

const ROUNDS: usize = 5_000;

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| times[(part * (times.len() - 1) as f64) as usize];
    println!(
        "{what}: median {:?}, 99 % {:?}, least {:?}",
        at(0.5),
        at(0.99),
        at(0.0)
    );
}

#[test]
#[ignore = "measures"]
fn from_push_to_take_of_a_consumer_that_sleeps() {
    let (mut publisher, _subscription, mut ring) = pair(16);
    let epoch = Instant::now();
    let consumer = thread::spawn(move || {
        let mut times = Vec::new();
        while let Ok(Taken::Descriptor(descriptor, hold)) = ring.take(Duration::MAX) {
            times.push(epoch.elapsed() - Duration::from_nanos(descriptor.end));
            drop(hold);
        }
        times
    });
    for number in 0..ROUNDS as u64 {
        // Long enough to be asleep again.
        thread::sleep(Duration::from_micros(200));
        let mut descriptor = numbered(number);
        descriptor.end = epoch.elapsed().as_nanos() as u64;
        publisher.push(0, &descriptor).unwrap();
        assert_eq!(publisher.flush(0), Rung::Done);
        publisher.progress(0).unwrap();
    }
    while publisher.progress(0).unwrap() < ROUNDS as u64 {
        thread::yield_now();
    }
    publisher.end(0);
    print("one way", consumer.join().unwrap());
}

#[test]
#[ignore = "measures"]
fn there_and_back() {
    let (mut publisher, _subscription, mut ring) = pair(16);
    let consumer = thread::spawn(
        move || {
            while let Ok(Taken::Descriptor(..)) = ring.take(Duration::MAX) {}
        },
    );
    let mut times = Vec::new();
    for number in 0..ROUNDS as u64 {
        let began = Instant::now();
        send(&mut publisher, number);
        loop {
            let seen = publisher.rings();
            if publisher.want_progress(0, number + 1).unwrap() > number {
                break;
            }
            publisher.wait(seen, Duration::MAX);
        }
        times.push(began.elapsed());
    }
    publisher.end(0);
    consumer.join().unwrap();
    print("there and back", times);
}

#[test]
#[ignore = "measures"]
fn without_sleep() {
    let (mut publisher, _subscription, mut ring) = pair(1024);
    let (rounds, began) = (1_000_000, Instant::now());
    for number in 0..rounds {
        if number % 512 == 0 {
            publisher.progress(0).unwrap();
        }
        send(&mut publisher, number);
        drop(taken(&mut ring));
    }
    let each = began.elapsed() / rounds as u32;
    println!("push, flush, take and finish: {each:?}");
}
