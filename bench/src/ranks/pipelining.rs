//! The cost of handing events on: "AIR" (section 3.4) puts the results of an operator directly into the next operator's
//! queue (pipelining), or routes them over all ranks.

use std::num::NonZeroUsize;
use std::thread;

use anyhow::{Result, ensure};
use millstream_ads::workload::{CAMPAIGNS, Facts, Kind, campaign_of_ads};
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, FlowSettings, PartialState, Plain};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::measure::{Bench, ended, time};
use crate::report::{Better, Case};

pub const PIPELINING: &str = "pipelining";

const RANKS: u32 = 2;

/// How events come from the generator to the operators behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// In one loop: they are not handed on.
    Fused,
    /// As items of rings, within the rank.
    Rings,
    /// As messages, to all ranks in turn: half of them stay.
    Messages,
    /// As messages that are the events' bytes.
    Plain,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Fused => "fused",
            Way::Rings => "rings",
            Way::Messages => "messages",
            Way::Plain => "plain-messages",
        }
    }

    /// Enough for about a second.
    fn events(self, bench: &Bench) -> u64 {
        let events = match self {
            Way::Fused => 80_000_000,
            Way::Rings => 20_000_000,
            Way::Messages => 5_000_000,
            Way::Plain => 10_000_000,
        };
        bench.size(events, events / 1000)
    }
}

/// As long as those of the benchmark YSB are on average.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
struct Event {
    time_ms: i64,
    ad: u32,
    kind: u32,
    /// User, page, address, and the program's name.
    others: [[u8; 24]; 5],
}

const _: () = assert!(size_of::<Event>() == 136);

impl Event {
    fn new(instance: u32, number: u64) -> Event {
        let facts = Facts::new(instance, number);
        Event {
            time_ms: number as i64 / 1000,
            ad: facts.ad(),
            kind: facts.kind() as u32,
            others: [[facts.ad() as u8; 24]; 5],
        }
    }

    fn is_view(&self) -> bool {
        self.kind == Kind::View as u32
    }
}

/// Views by campaign.
struct Views(Box<[u64]>);

impl Default for Views {
    fn default() -> Self {
        Views(vec![0; CAMPAIGNS as usize].into())
    }
}

impl Views {
    fn add(&mut self, campaign: &u32) {
        self.0[*campaign as usize] += 1;
    }

    fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl PartialState for Views {
    fn merge(&mut self, part: &Self) {
        for (sum, views) in self.0.iter_mut().zip(&part.0) {
            *sum += views;
        }
    }

    fn get(parts: &[&Self], campaign: &str) -> Option<Value> {
        let campaign: usize = campaign.parse().ok()?;
        let views = parts.iter().map(|part| part.0.get(campaign).copied());
        views.sum::<Option<u64>>().map(|views| json!(views))
    }

    fn keys(_: &[&Self], limit: usize) -> Vec<String> {
        (0..CAMPAIGNS)
            .take(limit)
            .map(|campaign| campaign.to_string())
            .collect()
    }
}

/// YSB's operators up to the count by campaign, on two ranks with one worker each. The limit is one loop.
pub fn pipelining(bench: &Bench) -> Result<Vec<Case>> {
    let ways = [Way::Fused, Way::Rings, Way::Messages, Way::Plain];
    let rates = bench.turns(ways.len(), |place| {
        run(ways[place], ways[place].events(bench))
    })?;
    let cases = ways.iter().enumerate().map(|(place, way)| {
        let name = format!("{PIPELINING}/{}", way.name());
        let case = Case::new(name, "M events/s", Better::Higher, rates[place].clone());
        match way {
            Way::Fused => case,
            Way::Rings | Way::Messages | Way::Plain => case.by_hand(rates[0].clone()),
        }
    });
    Ok(cases.collect())
}

/// Sends `events` events through on each rank; returns how many millions were counted in a second.
fn run(way: Way, events: u64) -> Result<f64> {
    let mut views = 0;
    let took = time(|| {
        let run = |ranks| thread::spawn(move || run_rank(way, ranks, events));
        let threads: Vec<_> = Ranks::threads(RANKS).into_iter().map(run).collect();
        for thread in threads {
            let counted = thread.join();
            views += counted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(())
    })?;
    let all = events * u64::from(RANKS);
    // A third of them are views, which ones is decided by a hash.
    let part = views as f64 / all as f64;
    ensure!(
        (part - 1.0 / 3.0).abs() < 0.02,
        "{part} of the events were counted"
    );
    Ok(all as f64 / 1e6 / took.seconds)
}

/// Returns how many views were counted on this rank.
fn run_rank(way: Way, ranks: Ranks, events: u64) -> Result<u64> {
    let instance = ranks.rank();
    let settings = FlowSettings {
        workers: NonZeroUsize::MIN,
        ranks: ranks.clone(),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings(PIPELINING, settings);
    let views = flow.partial::<Views>("views");
    let source = |first: u64, step: u64| {
        let event = move |number| Event::new(instance, first + number * step);
        Generator::new(event).limit(events / step)
    };
    let campaigns = campaign_of_ads();
    let campaign = move |event: &Event| campaigns[event.ad as usize];
    // A part of the events for each rank.
    let parts = (0..RANKS).map(|to| (to, source(to.into(), RANKS.into())));
    match way {
        Way::Fused => {
            flow.source("events", source(0, 1))
                .filter(Event::is_view)
                .map(campaign)
                .fold_local(&views, Views::add);
        }
        Way::Rings => {
            flow.source("events", source(0, 1))
                .boundary("count")
                .filter(Event::is_view)
                .map(campaign)
                .fold_local(&views, Views::add);
        }
        Way::Messages => parts.for_each(|(to, part)| {
            flow.source(&format!("events for {to}"), part)
                .gather(&format!("count at {to}"), to)
                .filter(Event::is_view)
                .map(campaign)
                .fold_local(&views, Views::add);
        }),
        Way::Plain => parts.for_each(|(to, part)| {
            flow.source(&format!("events for {to}"), part)
                .map(|event| Plain(*event))
                .gather(&format!("count at {to}"), to)
                .filter(|event| event.is_view())
                .map(move |event| campaign(event))
                .fold_local(&views, Views::add);
        }),
    }
    ended(&flow.run()?)?;
    ranks.leave()?;
    Ok(views.merged().sum())
}
