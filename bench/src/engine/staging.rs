//! The log parser beside the loop by hand, from the page cache.

use anyhow::Result;
use millstream_logparser::Staging;

use super::{by_hand, ours};
use crate::measure::{Bench, Took, cpu_median, energy_median, energy_suffix, megabytes_per_second};
use crate::report::{Better, Case};

pub const FUSED: &str = "fused";
pub const SEPARATE: &str = "separate";

/// All operators in one loop.
pub fn fused(bench: &Bench) -> Result<Vec<Case>> {
    beside_by_hand(bench, FUSED, Staging::Fused, 0.9)
}

/// Four stages, joined by rings.
pub fn separate(bench: &Bench) -> Result<Vec<Case>> {
    beside_by_hand(bench, SEPARATE, Staging::Separate, 0.6)
}

fn beside_by_hand(bench: &Bench, name: &str, staging: Staging, target: f64) -> Result<Vec<Case>> {
    let text = bench.text()?;
    let mut cases = Vec::new();
    for workers in [1, 2] {
        let rounds = bench.turns(2, |contender| match contender {
            0 => ours::run(text, staging, ours::settings(workers)),
            _ => by_hand::run(text, workers),
        })?;
        let (ours, by_hand) = (&rounds[0], &rounds[1]);
        let rates = |took: &[Took]| megabytes_per_second(text.bytes as f64, took);
        cases.push(
            Case::new(
                format!("{name}/{workers}-workers"),
                "MB/s",
                Better::Higher,
                rates(ours),
            )
            .by_hand(rates(by_hand))
            .target(target)
            .detail("cpu_s", cpu_median(ours))
            .detail("by_hand_cpu_s", cpu_median(by_hand))
            .detail(&format!("energy_{}", energy_suffix()), energy_median(ours))
            .detail(
                &format!("energy_by_hand_{}", energy_suffix()),
                energy_median(by_hand),
            )
            .detail("text_mb", text.bytes as f64 / 1e6),
        );
    }
    Ok(cases)
}
