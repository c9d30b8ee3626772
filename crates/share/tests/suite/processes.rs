//! Tests two processes: the test runs itself once more as the consumer.

use std::env;
use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use crate::{ANNOUNCED, IDENTITY, STEP_MAX, numbered, pair, taken, until_it_sleeps};
use millstream_share::{Hold, Publisher, Rung, SourceRing, Subscription, Taken};
use rustix::time::{ClockId, clock_gettime};

const PATH: &str = "MILLSTREAM_TEST_SHARED_FILE";
const COUNT: u64 = 1_000_000;
const ENTRIES: u32 = 16;

/// The other process is killed after this time.
const PROCESS_MAX: Duration = Duration::from_secs(120);

/// The length of occasional pauses, in which the other side waits.
const REST: Duration = Duration::from_millis(50);

#[test]
fn a_million_descriptors_pass_between_processes_through_a_small_ring() {
    let mut publisher = Publisher::create(1, ENTRIES, IDENTITY).unwrap();
    let mut consumer = run_again("processes::consumer", &publisher);
    for number in 0..COUNT {
        if number % (COUNT / 4) == COUNT / 8 {
            until_finished(&mut publisher, number);
            thread::sleep(REST);
        }
        if publisher.push(0, &numbered(number)).is_err() {
            let _ = publisher.flush(0);
            let room = number - u64::from(ENTRIES / 2);
            until_finished(&mut publisher, room);
            publisher.push(0, &numbered(number)).unwrap();
        }
        // Publishes some descriptors alone, others together.
        if number % 7 < 3 {
            assert_eq!(publisher.flush(0), Rung::Done);
        }
    }
    let _ = publisher.flush(0);
    until_finished(&mut publisher, COUNT);
    publisher.end(17);
    assert!(consumer.wait().unwrap().success());
}

/// Waits like the broker's push thread.
fn until_finished(publisher: &mut Publisher, count: u64) {
    let began = Instant::now();
    let _ = publisher.flush(0);
    loop {
        let seen = publisher.rings();
        if publisher.want_progress(0, count).unwrap() >= count {
            return;
        }
        let waited = Instant::now();
        let is_rung = publisher.wait(seen, STEP_MAX);
        assert!(is_rung || waited.elapsed() < STEP_MAX);
        assert!(began.elapsed() < STEP_MAX, "a wake-up was lost");
    }
}

#[test]
#[ignore = "the other process of the test above"]
fn consumer() {
    let mut ring = open_again();
    let mut held: Vec<Hold> = Vec::new();
    for number in 0..COUNT {
        if number % (COUNT / 4) == 0 {
            // The broker would wait for these descriptors while the consumer holds them.
            held.clear();
            thread::sleep(REST);
        }
        let (descriptor, hold) = taken(&mut ring);
        assert_eq!(descriptor, numbered(number));
        assert!(hold.is_live());
        held.push(hold);
        // Finishes descriptors out of order, but holds the oldest one only for a few steps.
        if held.len() > 4 {
            held.swap_remove((number % 3) as usize);
            held.remove(0);
        }
        if (number + 1) % (COUNT / 8) == 0 || number + 1 == COUNT {
            held.clear();
        }
    }
    assert!(matches!(ring.take(STEP_MAX), Ok(Taken::Ended(17))));
}

#[test]
fn closing_a_ring_ends_the_wait_of_another_process() {
    let publisher = Publisher::create(1, ENTRIES, IDENTITY).unwrap();
    let mut consumer = run_again("processes::consumer_that_gets_no_descriptor", &publisher);
    until_it_sleeps(&publisher);
    publisher.end(17);
    assert!(consumer.wait().unwrap().success());
}

#[test]
#[ignore = "the other process of the test above"]
fn consumer_that_gets_no_descriptor() {
    assert!(matches!(open_again().take(STEP_MAX), Ok(Taken::Ended(17))));
}

fn run_again(test: &str, publisher: &Publisher) -> Child {
    let mut command = millstream_testing::command(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PATH, publisher.path());
    millstream_testing::start(&mut command, PROCESS_MAX).unwrap()
}

fn open_again() -> SourceRing {
    let path = PathBuf::from(env::var_os(PATH).expect("started by another test"));
    let (_, mut rings) = Subscription::open(&path, ANNOUNCED).unwrap();
    rings.remove(0)
}

#[test]
fn waiting_takes_no_processor_time() {
    let (publisher, _subscription, mut ring) = pair(ENTRIES);
    let idle = Duration::from_millis(300);
    let consumer = thread::spawn(move || {
        processor_time(|| assert!(matches!(ring.take(idle), Ok(Taken::TimedOut))))
    });
    let broker = processor_time(|| assert!(!publisher.wait(publisher.rings(), idle)));
    for used in [broker, consumer.join().unwrap()] {
        assert!(used < Duration::from_millis(3), "{used:?} of {idle:?}");
    }
}

/// Returns the processor time that this thread spends on `run`.
fn processor_time(run: impl FnOnce()) -> Duration {
    let now = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap();
    let before = now();
    run();
    now() - before
}
