//! The throughput that consumers take from producers.

use anyhow::Result;

use super::broker::Brokers;
use super::figure::{Figure, Panel};
use super::grid;
use super::order::Delivery;
use super::producers::Load;
use super::run::{Contender, Turns, alternate, named, with_costs};
use super::work::RecordWork;
use crate::measure::{Bench, median};
use crate::report::{Better, Case};

pub const PRODUCERS: &str = "producers";

const LANES: u32 = 8;
const CONSUMERS: usize = 4;
const CHUNK_KIB: usize = 16;

/// The part of their rate that producers must keep.
const KEPT: f64 = 0.9;

pub fn producers(bench: &Bench) -> Result<Vec<Case>> {
    const NO_CONSUMERS: &str = "no consumers";
    let mut contenders = Contender::usual(&RecordWork::Count);
    contenders.push(Contender {
        name: NO_CONSUMERS.to_owned(),
        delivery: None,
        work: RecordWork::Count,
        filter: None,
    });
    let mut brokers = Brokers::start(bench, false)?;
    let mut cases = Vec::new();
    let mut points = Vec::new();
    for (producers, is_synced) in [(1, true), (1, false), (4, false)] {
        let load = Load {
            is_synced,
            ..grid::load(bench, LANES, producers, CHUNK_KIB)
        };
        let place = if is_synced { "-on-disk" } else { "" };
        let turns = Turns::WarmedUp;
        let rounds = alternate(bench, &mut brokers, load, CONSUMERS, &contenders, turns)?;
        let produced =
            |name: &str| named(&rounds, name).map(|one| one.each(|ran| ran.produced_million_per_s));
        let (Some(ours), Some(alone)) = (produced(Delivery::Thread.name()), produced(NO_CONSUMERS))
        else {
            continue;
        };
        let name = format!("{PRODUCERS}/{producers}{place}-with-4-push-consumers");
        let mut case = Case::new(name, "M records/s", Better::Higher, ours)
            .by_hand(alone)
            .target(KEPT);
        for delivery in Delivery::USUAL {
            if delivery != Delivery::Thread
                && let Some(rates) = produced(delivery.name())
            {
                case = case.peer(delivery.name(), median(&rates));
            }
        }
        cases.push(with_costs(case, &rounds));
        points.push((format!("producers{place}: {producers}"), rounds));
    }
    let figure = Figure {
        name: format!("figure-{PRODUCERS}"),
        title: "Iterate and count, 8 streamlets, 16 KiB".to_owned(),
        panels: vec![Panel {
            title: "consumers: 4".to_owned(),
            points,
        }],
    };
    figure.write(bench.out())?;
    Ok(cases)
}
