//! The scenes that the ranks play. Every process of a scene gets the same seed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::panic;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::{ChannelId, ExchangeError, Fingerprint, Ranks};

use super::common::alarm::Alarm;
use super::common::traffic::{Plan, run};
use super::{BEGUN, WELL};

const PLAN: Plan = Plan {
    channels: 3,
    messages: 2000,
    bytes_max: 1000,
    bytes_max_rare: 100_000,
    credit: 64 << 10,
    held_max: 20,
    turns_max: u64::MAX,
    seed: 0,
};

const CHANNEL: ChannelId = ChannelId {
    source: 5,
    target: 6,
};

pub fn play(name: &str, seed: u64) -> ExitCode {
    let ranks = Ranks::from_environment().unwrap();
    let mut rng = fastrand::Rng::with_seed(seed);
    let chosen = rng.u32(..ranks.count());
    let turns_max = rng.u64(..2000);
    match name {
        "traffic" => traffic(&ranks, Plan { seed, ..PLAN }),
        "long" => {
            let bytes_max_rare = 8 << 20;
            traffic(
                &ranks,
                Plan {
                    seed,
                    bytes_max: 200_000,
                    bytes_max_rare,
                    messages: 40,
                    ..PLAN
                },
            );
        }
        "differs" => differs(&ranks),
        "fails" => stops(ranks, chosen, turns_max, "the disk is full", |ranks| {
            ranks.fail("the disk is full");
        }),
        "panics" => stops(
            ranks,
            chosen,
            turns_max,
            "it ended without a word",
            |ranks| {
                let unwinding = panic::AssertUnwindSafe(|| {
                    let _ranks = ranks;
                    panic!("this is part of the test");
                });
                panic::catch_unwind(unwinding).unwrap_err();
            },
        ),
        "lies" => lies(ranks, chosen),
        "idles" => idles(&ranks),
        "answers" => answers(&ranks),
        "dies" => stops(ranks, chosen, turns_max, "", |_ranks| process::abort()),
        "ignores" => ignores(&ranks),
        _ => panic!("there is no scene {name}"),
    }
    println!("{WELL}");
    ExitCode::SUCCESS
}

fn agree(ranks: &Ranks) -> Result<(), ExchangeError> {
    ranks
        .agree(Fingerprint::default(), u64::from(ranks.rank()))
        .map(drop)
}

/// Returns when every rank has begun.
fn begin(ranks: &Ranks) -> Result<(), ExchangeError> {
    println!("{BEGUN}");
    agree(ranks)
}

fn traffic(ranks: &Ranks, plan: Plan) {
    run(ranks, plan, &(), || agree(ranks)).unwrap();
    for count in ranks.counters().received {
        assert_eq!(count.messages, plan.messages);
    }
    ranks.leave().unwrap();
}

fn differs(ranks: &Ranks) {
    let description = if ranks.rank() == 1 {
        "source\nsum"
    } else {
        "source\ncount"
    };
    let fingerprint = Fingerprint {
        description: description.to_owned(),
        ..Fingerprint::default()
    };
    assert_failed(
        ranks.agree(fingerprint, 1),
        1,
        "\"sum\" here and \"count\" there",
    );
    assert_failed(ranks.leave(), 1, "\"sum\" here and \"count\" there");
}

/// One rank stops in the middle of endless traffic, by `end`; the others receive its failure.
fn stops(ranks: Ranks, chosen: u32, turns_max: u64, what: &str, end: impl FnOnce(Ranks)) {
    let is_chosen = ranks.rank() == chosen;
    let turns_max = if is_chosen { turns_max } else { u64::MAX };
    let plan = Plan {
        messages: u64::MAX,
        turns_max,
        ..PLAN
    };
    let outcome = run(&ranks, plan, &(), || begin(&ranks));
    if is_chosen {
        outcome.unwrap();
        end(ranks);
    } else {
        assert_failed(outcome, chosen, what);
    }
}

/// One rank sends on a channel that the others do not have.
fn lies(ranks: Ranks, chosen: u32) {
    let alarm = Alarm::new();
    ranks.on_failure(alarm.waker());
    // A rank that agrees late may receive the failure first.
    let outcome = agree(&ranks);
    if ranks.rank() == chosen {
        outcome.unwrap();
        let mut sender = ranks.sender((chosen + 1) % ranks.count(), CHANNEL, 1 << 20);
        sender.send("a lie").unwrap();
    }
    alarm.wait();
    assert_failed(
        ranks.leave(),
        chosen,
        "it used the channel from operator 5 to operator 6",
    );
}

fn idles(ranks: &Ranks) {
    agree(ranks).unwrap();
    let before = processor_time();
    thread::sleep(Duration::from_secs(2));
    let taken = processor_time() - before;
    println!("an idle rank took {taken:?} in two seconds");
    assert!(taken < Duration::from_millis(300));
    ranks.leave().unwrap();
}

/// The time for which a messenger polls after a send before it sleeps.
const POLL_FOR: Duration = Duration::from_micros(200);

const ANSWERS: u32 = 1_000;

/// A thread may sleep for other reasons, such as a lock.
const EARLY_SLEEPS_MAX: u32 = 5;

/// Two ranks that answer each other at once, with nothing else to do. The first one checks that its messenger does not sleep too
/// early after a question. A busy machine makes sleeps later and never earlier.
fn answers(ranks: &Ranks) {
    let (alarm, other) = (Alarm::new(), 1 - ranks.rank());
    let mut sender = ranks.sender(other, CHANNEL, 1 << 20);
    let mut receiver = ranks.receiver(other, CHANNEL, 1 << 20);
    receiver.set_waker(alarm.waker());
    agree(ranks).unwrap();
    let messenger = messenger();
    let mut slept_early = 0;
    for _ in 0..ANSWERS {
        if ranks.rank() == 1 {
            while receiver.take().unwrap().is_none() {
                alarm.wait();
            }
            sender.send("nothing").unwrap();
            continue;
        }
        let asked_at = Instant::now();
        sender.send("what?").unwrap();
        let sleeps = sleeps_of(&messenger);
        let mut sleeps_early = false;
        while receiver.take().unwrap().is_none() {
            let has_slept = sleeps_of(&messenger) > sleeps;
            if asked_at.elapsed() >= POLL_FOR {
                alarm.wait();
            } else {
                sleeps_early |= has_slept;
            }
        }
        slept_early += u32::from(sleeps_early);
    }
    assert!(
        slept_early <= EARLY_SLEEPS_MAX,
        "the messenger slept right after {slept_early} of {ANSWERS} questions"
    );
    ranks.leave().unwrap();
}

/// Opens the kernel's status of the thread of this process that calls MPI.
fn messenger() -> File {
    let threads = fs::read_dir("/proc/self/task").unwrap();
    let mut threads = threads.map(|thread| thread.unwrap().path());
    let is_messenger = |thread: &PathBuf| {
        let name = fs::read_to_string(thread.join("comm"));
        name.is_ok_and(|name| name.trim() == "messenger")
    };
    let thread = threads.find(is_messenger).unwrap();
    File::open(thread.join("status")).unwrap()
}

/// Returns the number of times that a thread has gone to sleep. A thread that yields is not counted.
fn sleeps_of(status: &File) -> u64 {
    let mut buffer = [0; 8 << 10];
    let len = status.read_at(&mut buffer, 0).unwrap();
    let status = str::from_utf8(&buffer[..len]).unwrap();
    let (_, sleeps) = status.rsplit_once("\nvoluntary_ctxt_switches:").unwrap();
    sleeps.lines().next().unwrap().trim().parse().unwrap()
}

/// Returns the processor time of this process so far. The kernel counts in hundredths of a second.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    Duration::from_millis(10) * ticks.map(|ticks| ticks.parse::<u32>().unwrap()).sum()
}

/// One rank fails, and the other one ignores it.
fn ignores(ranks: &Ranks) {
    begin(ranks).unwrap();
    if ranks.rank() == 0 {
        ranks.fail("it is late");
        assert_failed(ranks.leave(), 0, "it is late");
    }
    thread::sleep(Duration::from_secs(3600));
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(outcome: Result<T, ExchangeError>, rank: u32, what: &str) {
    match outcome {
        Err(ExchangeError::Failed {
            rank: failed,
            message,
        }) => {
            assert!(
                failed == rank && message.contains(what),
                "rank {failed}: {message}"
            );
        }
        other => panic!("not a failure of rank {rank}: {other:?}"),
    }
}
