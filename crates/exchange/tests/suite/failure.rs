//! The failure of one rank ends all.

use std::sync::atomic::{AtomicU32, Ordering};

use millstream_exchange::{ExchangeError, Ranks, SendError};

use super::common::alarm::Alarm;
use super::{CHANNEL, CREDIT, agree, assert_failed, on_each};

/// The way in which a rank ends early.
#[derive(Debug, Clone, Copy)]
enum End {
    Fails,
    /// The rank drops its handles, as a panic does.
    DropsItsRanks,
}

/// Sends around a ring of ranks for ever, or `steps` times; returns the outcome.
fn circulate(ranks: &Ranks, steps: u64) -> Result<(), ExchangeError> {
    let alarm = Alarm::new();
    let (rank, count) = (ranks.rank(), ranks.count());
    let mut sender = ranks.sender((rank + 1) % count, CHANNEL, CREDIT);
    let mut receiver = ranks.receiver((rank + count - 1) % count, CHANNEL, CREDIT);
    sender.set_waker(alarm.waker());
    receiver.set_waker(alarm.waker());
    agree(ranks)?;
    for _ in 0..steps {
        let is_sent = match sender.send(vec![0; 100]) {
            Ok(()) => true,
            Err(SendError::Ended(error)) => return Err(error),
            Err(_) => false,
        };
        if receiver.take()?.is_none() && !is_sent {
            alarm.wait();
        }
    }
    Ok(())
}

#[track_caller]
fn check(count: u32, end: End, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let failing = rng.u32(..count);
    let steps = rng.u64(..2000);
    let outcomes = on_each(count, |ranks| {
        if ranks.rank() != failing {
            return circulate(&ranks, u64::MAX);
        }
        circulate(&ranks, steps)?;
        if let End::Fails = end {
            ranks.fail("the disk is full");
            assert_failed(ranks.leave(), failing, "the disk is full");
        }
        Ok(())
    });
    let what = match end {
        End::Fails => "the disk is full",
        End::DropsItsRanks => "it ended without a word",
    };
    for (rank, outcome) in (0..).zip(outcomes) {
        if rank == failing {
            assert_eq!(outcome, Ok(()));
        } else {
            assert_failed(outcome, failing, what);
        }
    }
}

#[test]
fn a_rank_that_fails_at_any_moment_ends_all_ranks() {
    for seed in 0..100 {
        check(2 + seed as u32 % 5, End::Fails, seed);
    }
}

#[test]
fn a_rank_that_dies_at_any_moment_ends_all_ranks() {
    for seed in 100..200 {
        check(2 + seed as u32 % 5, End::DropsItsRanks, seed);
    }
}

#[test]
fn a_panic_of_one_rank_ends_all_ranks() {
    let outcomes = on_each(3, |ranks| {
        if ranks.rank() == 0 {
            let panic = std::panic::AssertUnwindSafe(|| {
                let _ranks = ranks;
                panic!("this is part of the test");
            });
            return std::panic::catch_unwind(panic).map_err(|_| ExchangeError::Left);
        }
        agree(&ranks).and_then(|_| ranks.leave())
    });
    assert_eq!(outcomes[0], Err(ExchangeError::Left));
    assert_failed(outcomes[1].clone(), 0, "ended without a word");
    assert_failed(outcomes[2].clone(), 0, "ended without a word");
}

#[test]
fn dropping_a_clone_of_a_rank_ends_no_rank() {
    let ranks = Ranks::threads(2);
    drop(ranks[0].clone());
    assert_eq!(ranks[1].failure(), None);
}

#[test]
fn each_rank_reports_one_of_many_failures() {
    let failed = AtomicU32::new(0);
    let outcomes = on_each(8, |ranks| {
        ranks.fail("too many cooks");
        failed.fetch_add(1, Ordering::Relaxed);
        agree(&ranks)
    });
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.ends_with(": too many cooks"), "{error}");
    }
}

#[test]
fn a_failure_wakes_all_wakers() {
    let ranks = Ranks::threads(3);
    let alarms = [(); 4].map(|()| Alarm::new());
    let mut sender = ranks[1].sender(0, CHANNEL, CREDIT);
    sender.set_waker(alarms[0].waker());
    let mut receiver = ranks[1].receiver(2, CHANNEL, CREDIT);
    receiver.set_waker(alarms[1].waker());
    ranks[2].on_failure(alarms[2].waker());
    ranks[0].fail("it is dark");
    for alarm in &alarms[..3] {
        alarm.wait();
    }
    // Also those that come too late.
    ranks[2].on_failure(alarms[3].waker());
    alarms[3].wait();
    sender.set_waker(alarms[0].waker());
    alarms[0].wait();
    receiver.set_waker(alarms[1].waker());
    alarms[1].wait();
    assert_eq!(ranks[1].failure(), Some((0, "it is dark".into())));
}

#[test]
fn a_long_failure_message_is_truncated() {
    let ranks = Ranks::threads(2);
    ranks[0].fail(&"é".repeat(100_000));
    let (_, message) = ranks[1].failure().unwrap();
    assert_eq!(message.len(), 4096);
}
