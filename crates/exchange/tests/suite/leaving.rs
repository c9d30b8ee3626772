//! The end.

use std::sync::atomic::{AtomicU32, Ordering};

use super::{CHANNEL, CREDIT, agree, assert_failed, on_each};

#[test]
fn ranks_leave_together() {
    let ready = AtomicU32::new(0);
    let seen = on_each(8, |ranks| {
        agree(&ranks).unwrap();
        for _ in 0..ranks.rank() {
            std::thread::yield_now();
        }
        ready.fetch_add(1, Ordering::AcqRel);
        ranks.leave().unwrap();
        ready.load(Ordering::Acquire)
    });
    assert_eq!(seen, [8; 8]);
}

#[test]
fn messages_sent_before_leaving_arrive() {
    on_each(2, |ranks| {
        let other = 1 - ranks.rank();
        let mut sender = ranks.sender(other, CHANNEL, CREDIT);
        let mut receiver = ranks.receiver(other, CHANNEL, CREDIT);
        agree(&ranks).unwrap();
        sender.send("a last word").unwrap();
        ranks.leave().unwrap();
        assert_eq!(*receiver.take().unwrap().unwrap(), *b"a last word");
        assert!(receiver.take().unwrap().is_none());
    });
}

#[test]
fn a_rank_may_leave_twice() {
    on_each(3, |ranks| {
        ranks.leave().unwrap();
        ranks.leave().unwrap();
        ranks.clone().leave().unwrap();
    });
}

#[test]
fn a_rank_that_leaves_before_it_agrees_fails_the_waiting_ranks() {
    let outcomes = on_each(4, |ranks| {
        let outcome = match ranks.rank() {
            2 => ranks.leave(),
            _ => agree(&ranks).map(drop),
        };
        let _ = ranks.leave();
        outcome
    });
    for outcome in outcomes {
        assert_failed(outcome, 2, "it left before it announced its program");
    }
}

#[test]
fn ranks_leave_at_different_times_after_they_agreed() {
    for _ in 0..100 {
        on_each(3, |ranks| {
            agree(&ranks).unwrap();
            agree(&ranks).unwrap();
            ranks.leave().unwrap();
        });
    }
}

#[test]
fn a_failure_ends_the_wait_of_ranks_that_leave() {
    let outcomes = on_each(4, |ranks| {
        if ranks.rank() == 3 {
            ranks.fail("it did not finish");
        }
        ranks.leave()
    });
    for outcome in outcomes {
        assert_failed(outcome, 3, "it did not finish");
    }
}
