//! Filter and count: the paper's figures 4 and 5, and a filter that travels with the subscription beside one in
//! the consumer.

use anyhow::Result;

use super::data;
use super::grid::Grid;
use super::order::Delivery;
use super::run::{Contender, Turns};
use super::work::RecordWork;
use crate::measure::Bench;
use crate::report::Case;

pub const FILTER: &str = "filter";

pub fn filter(bench: &Bench) -> Result<Vec<Case>> {
    let mut contenders = Contender::usual(&RecordWork::Filter(data::filter()));
    let pushed = Delivery::USUAL.into_iter();
    let pushed = pushed.filter(|delivery| *delivery != Delivery::Pull);
    contenders.extend(pushed.map(travelling));
    let grid = Grid {
        name: FILTER,
        title: "Filter and count, 8 streamlets".to_owned(),
        lanes: 8,
        producers: &[4],
        chunk_kib: bench.size(&[4, 16, 64], &[16]),
        has_one_core: false,
        turns: Turns::WarmedUp,
        contenders: &contenders,
        ours: &travelling(Delivery::Thread).name,
        limit: Delivery::Pull.name(),
    };
    grid.run(bench)
}

/// The broker filters, and the consumer only counts the records.
fn travelling(delivery: Delivery) -> Contender {
    Contender {
        name: format!("filtered {}", delivery.name()),
        filter: Some(data::filter()),
        ..Contender::new(delivery, &RecordWork::Count)
    }
}
