//! Everybody sends to everybody, as fast as receivers allow.

use super::common::{Plan, Tally, run};
use super::{agree, on_each};

const PLAN: Plan = Plan {
    channels: 3,
    messages: 500,
    bytes_max: 300,
    bytes_max_rare: 20_000,
    credit: 4096,
    kept_max: 20,
    seed: 1,
};

fn check(ranks: u32, plan: Plan) {
    let tally = Tally::new(plan, ranks);
    on_each(ranks, |ranks| {
        run(&ranks, plan, Some(&tally), || agree(&ranks).map(drop)).unwrap();
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
fn one_rank_has_traffic_with_itself() {
    check(1, PLAN);
}

#[test]
fn traffic_between_two_ranks_is_whole_and_in_order_within_its_credit() {
    for seed in 0..10 {
        check(2, Plan { seed, ..PLAN });
    }
}

#[test]
fn traffic_between_three_ranks_is_whole_and_in_order_within_its_credit() {
    check(3, Plan { seed: 20, ..PLAN });
    check(
        3,
        Plan {
            seed: 21,
            kept_max: 0,
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
fn traffic_between_eight_ranks_is_whole_and_in_order_within_its_credit() {
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
