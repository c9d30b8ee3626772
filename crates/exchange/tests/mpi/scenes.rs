//! What the ranks do. Every process of a scene gets the same seed.

use std::fs;
use std::panic;
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
    kept_max: 20,
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

/// Returns when every rank has said that it has begun.
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

/// One rank stops in the middle of endless traffic, by `end`; the others are told of it.
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
    // Who agrees late may hear of the lie first.
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

/// Two ranks that answer each other at once, with nothing else to do.
fn answers(ranks: &Ranks) {
    let (alarm, other) = (Alarm::new(), 1 - ranks.rank());
    let mut sender = ranks.sender(other, CHANNEL, 1 << 20);
    let mut receiver = ranks.receiver(other, CHANNEL, 1 << 20);
    receiver.set_waker(alarm.waker());
    agree(ranks).unwrap();
    let mut answer = |is_asked: bool| {
        if !is_asked {
            sender.send("what?").unwrap();
        }
        while receiver.take().unwrap().is_none() {
            alarm.wait();
        }
        if is_asked {
            sender.send("nothing").unwrap();
        }
    };
    // The machine may be busy with something else for most of the time.
    let took = (0..200).map(|_| {
        let began_at = Instant::now();
        (0..10).for_each(|_| answer(ranks.rank() == 1));
        began_at.elapsed() / 10
    });
    let least = took.min().unwrap_or_default();
    let at_most = Duration::from_micros(400);
    assert!(least < at_most, "an answer takes {least:?} at least");
    ranks.leave().unwrap();
}

/// What this process has taken so far. The kernel counts in hundredths of a second.
fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    Duration::from_millis(10) * ticks.map(|ticks| ticks.parse::<u32>().unwrap()).sum()
}

/// One rank fails, and the other one does not care.
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
