//! Priority beside round-robin, on regular input.

use std::sync::Arc;

use anyhow::Result;
use millstream_flow::{FlowSettings, RoundRobin};
use millstream_logparser::Staging;

use super::ours::{self, WORKERS};
use super::seda::seda;
use crate::measure::{Bench, Took, median, megabytes_per_second, rounds_of};
use crate::report::{Better, Case};
use crate::text::Text;

pub const REGULAR: &str = "priority-regular";

/// Items per activation of the stages `read`, `split`, `filter` and `count`, tuned by hand: a block of this text has
/// about 27 runs of words. The last is the untuned round-robin.
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
    let bytes = bench.size(1 << 30, 4 << 20);
    let text = Text::of_one_line(bench.folder("one-line", bytes)?, bytes)?;
    bench.settle_disk();
    let run = |settings| ours::run(&text, Staging::Separate, settings);
    let rates = |took: &[Took]| megabytes_per_second(text.bytes as f64, took);
    let rounds = bench.turns(WEIGHTS.len(), |n| run(round_robin(&WEIGHTS[n])))?;
    let tuned: Vec<f64> = rounds.iter().map(|rounds| median(&rates(rounds))).collect();
    let (best, _) = WEIGHTS
        .iter()
        .zip(&tuned)
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
        .expect("there are candidates");

    // Runs of half a second on a machine that is not alone: many, to separate the medians.
    let contend = |contender| match contender {
        0 => run(ours::settings(WORKERS)),
        1 => run(round_robin(best)),
        _ => run(seda()),
    };
    (0..3).try_for_each(|contender| contend(contender).map(drop))?;
    let rounds = rounds_of(bench.size(20, 2), 3, contend)?;
    let mut case = Case::new(REGULAR, "MB/s", Better::Higher, rates(&rounds[0]))
        .by_hand(rates(&rounds[1]))
        .target(1.0);
    for (weights, rate) in WEIGHTS.iter().zip(&tuned) {
        let weights = weights.map(|items| items.to_string()).join("-");
        case = case.detail(&format!("tuning_round_robin_{weights}_mb_per_s"), *rate);
    }
    let name = format!("{REGULAR}/beside-seda");
    let beside_seda = Case::new(name, "MB/s", Better::Higher, rates(&rounds[0]));
    Ok(vec![case, beside_seda.by_hand(rates(&rounds[2]))])
}

/// Returns the settings for round-robin with these items per activation.
pub fn round_robin(items: &[usize]) -> FlowSettings {
    FlowSettings {
        scheduler: Arc::new(RoundRobin {
            items: items.to_vec(),
        }),
        ..ours::settings(WORKERS)
    }
}
