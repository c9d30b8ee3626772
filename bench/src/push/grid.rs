//! Contenders at several sizes of chunks, and with several numbers of clients.

use anyhow::Result;

use super::broker::Brokers;
use super::data::{Content, Data};
use super::figure::{Figure, Panel};
use super::producers::Load;
use super::run::{Contender, Turns, alternate, case, with_costs};
use crate::measure::Bench;
use crate::report::Case;

/// About how much is sent in one run, …
const RUN_BYTES: usize = 160 << 20;
/// … but not more requests than take a moment.
const RUN_CHUNKS_MAX: usize = 100_000;

/// The report has the costs with chunks of this size; the figure's table has all sizes.
const COSTS_AT_KIB: usize = 16;

pub struct Grid<'a> {
    pub name: &'static str,
    pub title: String,
    pub lanes: u32,
    /// For each panel; as many consumers.
    pub producers: &'static [usize],
    pub chunk_kib: &'static [usize],
    pub has_one_core: bool,
    pub turns: Turns,
    pub contenders: &'a [Contender],
    /// The contender whose rate is reported.
    pub ours: &'a str,
    /// The contender that it is compared with.
    pub limit: &'a str,
}

impl Grid<'_> {
    pub fn run(&self, bench: &Bench) -> Result<Vec<Case>> {
        let mut brokers = Brokers::start(bench, self.has_one_core)?;
        let mut panels = Vec::new();
        let mut cases = Vec::new();
        for &clients in self.producers {
            let mut points = Vec::new();
            for &chunk_kib in self.chunk_kib {
                let load = load(bench, self.lanes, clients, chunk_kib);
                let turns = self.turns;
                let rounds = alternate(bench, &mut brokers, load, clients, self.contenders, turns)?;
                let name = format!(
                    "{}/{}-streamlets/{clients}-clients/{chunk_kib}-KiB",
                    self.name, self.lanes
                );
                let case = case(name, &rounds, self.ours, self.limit);
                cases.extend(case.map(|case| match chunk_kib {
                    COSTS_AT_KIB => with_costs(case, &rounds),
                    _ => case,
                }));
                points.push((format!("{chunk_kib} KiB"), rounds));
            }
            let title = format!("producers and consumers: {clients} each");
            panels.push(Panel { title, points });
        }
        let figure = Figure {
            name: format!("figure-{}-{}-streamlets", self.name, self.lanes),
            title: self.title.clone(),
            panels,
        };
        figure.write(bench.out())?;
        Ok(cases)
    }
}

/// Records of 100 bytes, in chunks of about this size.
pub fn load(bench: &Bench, lanes: u32, producers: usize, chunk_kib: usize) -> Load {
    let data = Data {
        content: Content::Small,
        chunk_bytes: chunk_kib << 10,
    };
    let chunks = (RUN_BYTES / data.chunk_bytes).min(RUN_CHUNKS_MAX);
    Load {
        data,
        records: bench.size(chunks * data.chunk_bytes / 100, 20_000),
        producers,
        lanes,
        is_synced: false,
    }
}
