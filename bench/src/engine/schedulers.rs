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

/// As in Ordo (section 3.4.2): the same line again and again, so that weights can be right.
pub fn regular(bench: &Bench) -> Result<Vec<Case>> {
    let text = Text::of_one_line(bench, bench.size(1 << 30, 4 << 20))?;
    let run = |settings| ours::run(&text, Staging::Separate, settings);
    let rounds = bench.rounds(|| {
        let priority = run(ours::settings(WORKERS))?;
        let round_robin = WEIGHTS.map(|items| run(round_robin(&items)));
        let round_robin: Result<Vec<Took>> = round_robin.into_iter().collect();
        Ok((priority, round_robin?))
    })?;
    let (priority, round_robin): (Vec<Took>, Vec<Vec<Took>>) = rounds.into_iter().unzip();
    let rates = |took: &[Took]| megabytes_per_second(text.bytes as f64, took);
    let candidates = (0..WEIGHTS.len()).map(|n| {
        let rounds: Vec<Took> = round_robin.iter().map(|round| round[n]).collect();
        rates(&rounds)
    });
    let candidates: Vec<Vec<f64>> = candidates.collect();
    let best = candidates
        .iter()
        .max_by(|one, other| median(one).total_cmp(&median(other)))
        .expect("there are candidates");
    let mut case = Case::new(REGULAR, "MB/s", Better::Higher, rates(&priority))
        .by_hand(best.clone())
        .target(1.0);
    for (weights, rates) in WEIGHTS.iter().zip(&candidates) {
        let weights = weights.map(|items| items.to_string()).join("-");
        case = case.detail(&format!("round_robin_{weights}_mb_per_s"), median(rates));
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
