//! Iterate and count: the paper's figures 3, 5 and 7, and figure 6 for a broker that has one core.

use anyhow::Result;

use super::grid::Grid;
use super::order::Delivery;
use super::run::{Contender, Turns};
use super::work::RecordWork;
use crate::measure::Bench;
use crate::report::Case;

pub const COUNT: &str = "count";
pub const ONE_CORE: &str = "one-core";

pub fn count(bench: &Bench) -> Result<Vec<Case>> {
    let by_lanes: [(u32, &[usize]); 2] = [(8, &[1, 2, 4, 8]), (4, &[2, 4])];
    let mut cases = Vec::new();
    for (lanes, producers) in by_lanes {
        let grid = Grid {
            name: COUNT,
            title: format!("Iterate and count, {lanes} streamlets"),
            lanes,
            producers: bench.size(producers, &[2]),
            chunk_kib: bench.size(&[1, 4, 16, 64, 128], &[4, 64]),
            has_one_core: false,
            turns: Turns::Warm,
            contenders: &Contender::usual(&RecordWork::Count),
            ours: Delivery::Thread.name(),
            limit: Delivery::Pull.name(),
        };
        cases.extend(grid.run(bench)?);
    }
    Ok(cases)
}

pub fn one_core(bench: &Bench) -> Result<Vec<Case>> {
    let grid = Grid {
        name: ONE_CORE,
        title: "Iterate and count, 8 streamlets, the broker has one core".to_owned(),
        lanes: 8,
        producers: &[4],
        chunk_kib: bench.size(&[4, 16, 64], &[16]),
        has_one_core: true,
        turns: Turns::WarmedUp,
        contenders: &Contender::usual(&RecordWork::Count),
        ours: Delivery::Thread.name(),
        limit: Delivery::Pull.name(),
    };
    grid.run(bench)
}
