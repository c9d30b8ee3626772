//! Word count and windowed word count: the paper's figure 8.

use anyhow::Result;

use super::broker::{Brokers, STREAM};
use super::data::{Content, Data};
use super::figure::{Figure, Panel};
use super::order::Delivery;
use super::producers::{Load, Producers};
use super::run::{Contender, Turns, alternate, case, with_costs};
use super::work::RecordWork;
use crate::measure::Bench;
use crate::report::Case;

pub const WORDS: &str = "words";

const LANES: u32 = 8;
const PRODUCERS: usize = 4;
const CONSUMERS: [usize; 2] = [1, 4];

const DATA: Data = Data {
    content: Content::Text,
    chunk_bytes: 16 << 10,
};

pub fn words(bench: &Bench) -> Result<Vec<Case>> {
    let mut brokers = Brokers::start(bench, false)?;
    let load = Load {
        data: DATA,
        records: bench.size(24_000, 500),
        producers: PRODUCERS,
        lanes: LANES,
        is_synced: false,
    };
    let mut cases = Vec::new();
    let mut panels = Vec::new();
    let words = Producers::new(STREAM, load)?.found(&RecordWork::Words)?;
    for (name, work) in [
        ("count", RecordWork::Words),
        ("windowed", RecordWork::WindowedWords { words }),
    ] {
        let mut points = Vec::new();
        for consumers in CONSUMERS {
            let contenders = Contender::usual(&work);
            let turns = Turns::WarmedUp;
            let rounds = alternate(bench, &mut brokers, load, consumers, &contenders, turns)?;
            let (ours, pull) = (Delivery::Thread.name(), Delivery::Pull.name());
            let name = format!("{WORDS}/{name}/{consumers}-consumers");
            let case = case(name, &rounds, ours, pull);
            cases.extend(case.map(|case| with_costs(case, &rounds)));
            points.push((format!("consumers: {consumers}"), rounds));
        }
        let title = format!("word count: {name}");
        panels.push(Panel { title, points });
    }
    let figure = Figure {
        name: format!("figure-{WORDS}"),
        title: "Word count, records of 2 KiB".to_owned(),
        panels,
    };
    figure.write(bench.out())?;
    Ok(cases)
}
