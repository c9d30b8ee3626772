//! Priority beside round-robin, on regular input.

use std::sync::Arc;

use anyhow::Result;
use millstream_flow::{FlowSettings, RoundRobin};
use millstream_logparser::Staging;

use super::text::Text;
use super::{WORKERS, ours};
use crate::measure::{Bench, Took, median, megabytes_per_second};
use crate::report::{Better, Case};

pub const REGULAR: &str = "priority-regular";

/// Items per activation of the stages `read`, `split`, `filter` and `count`, tuned by hand: a block
/// of this text has about 27 runs of words. The last is what round-robin does untuned.
const WEIGHTS: [[usize; 4]; 5] = [
    [1, 1, 27, 27],
    [1, 2, 54, 54],
    [1, 4, 108, 108],
    [1, 8, 216, 216],
    [256; 4],
];

/// As in Ordo (section 3.4.2): the same line again and again, so that weights can be right. They are
/// tuned in rounds of their own: the best of several in the rounds that count would be the luckiest.
pub fn regular(bench: &Bench) -> Result<Vec<Case>> {
    let text = Text::of_one_line(bench, bench.size(1 << 30, 4 << 20))?;
    let run = |settings| ours::run(&text, Staging::Separate, settings);
    let rates = |took: &[Took]| megabytes_per_second(text.bytes as f64, took);
    let rounds = bench.rounds(|| {
        let took = WEIGHTS.map(|items| run(round_robin(&items)));
        took.into_iter().collect::<Result<Vec<Took>>>()
    })?;
    let tuned = (0..WEIGHTS.len()).map(|n| {
        let rounds: Vec<Took> = rounds.iter().map(|round| round[n]).collect();
        median(&rates(&rounds))
    });
    let tuned: Vec<f64> = tuned.collect();
    let (best, _) = WEIGHTS
        .iter()
        .zip(&tuned)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .expect("there are candidates");

    // Runs of half a second on a machine that is not alone: many, so that the medians can be told apart.
    let mut took = Vec::new();
    for _ in 0..bench.size(4, 1) {
        took.extend(bench.rounds(|| Ok((run(ours::settings(WORKERS))?, run(round_robin(best))?)))?);
    }
    let (priority, round_robin): (Vec<Took>, Vec<Took>) = took.into_iter().unzip();
    let mut case = Case::new(REGULAR, "MB/s", Better::Higher, rates(&priority))
        .by_hand(rates(&round_robin))
        .target(1.0);
    for (weights, rate) in WEIGHTS.iter().zip(&tuned) {
        let weights = weights.map(|items| items.to_string()).join("-");
        case = case.detail(&format!("tuning_round_robin_{weights}_mb_per_s"), *rate);
    }
    Ok(vec![case])
}

/// Round-robin with so many items per activation.
pub fn round_robin(items: &[usize]) -> FlowSettings {
    FlowSettings {
        scheduler: Arc::new(RoundRobin {
            items: items.to_vec(),
        }),
        ..ours::settings(WORKERS)
    }
}
