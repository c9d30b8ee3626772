//! Every rank sends to every rank, as fast as receivers allow.

use std::sync::atomic::{AtomicI64, Ordering};

use millstream_exchange::MESSAGE_OVERHEAD_BYTES;

use super::common::traffic::{Observer, Plan, run};
use super::{agree, on_each};

/// The bytes in flight on all channels between threads, seen from outside.
struct Tally {
    plan: Plan,
    ranks: u32,
    cells: Vec<AtomicI64>,
}

impl Tally {
    fn new(plan: Plan, ranks: u32) -> Tally {
        let cells = (0..ranks * ranks * plan.channels)
            .map(|_| AtomicI64::new(0))
            .collect();
        Tally { plan, ranks, cells }
    }

    fn cell(&self, from: u32, to: u32, index: u32) -> &AtomicI64 {
        &self.cells[((from * self.ranks + to) * self.plan.channels + index) as usize]
    }
}

impl Observer for Tally {
    /// Memory is bounded by the credit, and by single messages that are larger.
    fn sent(&self, from: u32, to: u32, index: u32, bytes: usize) {
        let cost = cost(bytes);
        let before = self.cell(from, to, index).fetch_add(cost, Ordering::AcqRel);
        let credit = self.plan.credit as i64;
        assert!(
            before + cost <= credit || before <= credit / 4,
            "{cost} bytes were sent while {before} of {credit} were under way"
        );
    }

    fn dropped(&self, from: u32, to: u32, index: u32, bytes: usize) {
        let cost = cost(bytes);
        self.cell(from, to, index).fetch_sub(cost, Ordering::AcqRel);
    }
}

/// Returns the credit that a message costs.
fn cost(bytes: usize) -> i64 {
    bytes as i64 + MESSAGE_OVERHEAD_BYTES as i64
}

const PLAN: Plan = Plan {
    channels: 3,
    messages: 500,
    bytes_max: 300,
    bytes_max_rare: 20_000,
    credit: 4096,
    held_max: 20,
    turns_max: u64::MAX,
    seed: 1,
};

fn check(ranks: u32, plan: Plan) {
    let tally = Tally::new(plan, ranks);
    on_each(ranks, |ranks| {
        run(&ranks, plan, &tally, || agree(&ranks).map(drop)).unwrap();
        let counters = ranks.counters();
        assert_eq!(
            counters.sent.len(),
            (ranks.count() * plan.channels) as usize
        );
        for count in counters.sent.iter().chain(&counters.received) {
            assert_eq!(count.messages, plan.messages);
        }
        ranks.leave().unwrap();
    });
}

#[test]
fn one_rank_exchanges_messages_with_itself() {
    check(1, PLAN);
}

#[test]
fn two_ranks_exchange_all_messages_in_order_within_their_credit() {
    for seed in 0..10 {
        check(2, Plan { seed, ..PLAN });
    }
}

#[test]
fn three_ranks_exchange_all_messages_in_order_within_their_credit() {
    check(3, Plan { seed: 20, ..PLAN });
    check(
        3,
        Plan {
            seed: 21,
            held_max: 0,
            ..PLAN
        },
    );
    check(
        3,
        Plan {
            seed: 22,
            credit: 1,
            bytes_max_rare: 300,
            ..PLAN
        },
    );
}

#[test]
fn eight_ranks_exchange_all_messages_in_order_within_their_credit() {
    check(
        8,
        Plan {
            seed: 30,
            messages: 200,
            ..PLAN
        },
    );
}

#[test]
fn there_may_be_more_than_256_ranks() {
    check(
        300,
        Plan {
            seed: 40,
            channels: 1,
            messages: 3,
            ..PLAN
        },
    );
}
