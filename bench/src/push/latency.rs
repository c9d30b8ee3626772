//! From the moment when a record is durable until a consumer's callback has it.

use std::time::Duration;

use anyhow::Result;

use super::broker::{Broker, Brokers};
use super::order::Delivery;
use super::work::Work;
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const LATENCY: &str = "latency";

/// The broker appends a record that often.
const EVERY: Duration = Duration::from_millis(1);

/// The first so many are not counted.
const WARM_UP: usize = 100;

/// Of push across processes, in microseconds.
const P50_US_MAX: f64 = 20.0;
const P99_US_MAX: f64 = 200.0;

/// In microseconds.
struct Latency {
    p50: f64,
    p99: f64,
}

type Pick = fn(&Latency) -> f64;

pub fn latency(bench: &Bench) -> Result<Vec<Case>> {
    let count = bench.size(3000, 300);
    let mut brokers = Brokers::start(bench, false)?;
    let rounds = bench.rounds(|| {
        let each = Delivery::ALL.into_iter();
        each.map(|delivery| measure(brokers.of(Some(delivery)), delivery, count))
            .collect::<Result<Vec<_>>>()
    })?;
    let mut cases = Vec::new();
    for (index, delivery) in Delivery::ALL.into_iter().enumerate() {
        let parts: [(&str, Pick, f64); 2] = [
            ("p50", |latency| latency.p50, P50_US_MAX),
            ("p99", |latency| latency.p99, P99_US_MAX),
        ];
        for (part, pick, most) in parts {
            let name = format!("{LATENCY}/{}/{part}", delivery.name().replace(' ', "-"));
            let us = rounds.iter().map(|round| pick(&round[index])).collect();
            let case = Case::new(name, "us", Better::Lower, us);
            cases.push(match delivery {
                Delivery::Thread => case.bound(most),
                _ => case,
            });
        }
    }
    Ok(cases)
}

fn measure(broker: &mut Broker, delivery: Delivery, count: usize) -> Result<Latency> {
    broker.create(1, false)?;
    let order = Broker::order(1, count as u64, 1, &Work::Latency);
    let mut consuming = broker.consume(delivery, order)?;
    broker.stamp(EVERY, count)?;
    let consumed = broker.consumed(&mut consuming)?;
    consumed.check(count as u64)?;
    drop(consuming);
    broker.delete()?;
    let mut all = consumed.latencies;
    all.drain(..WARM_UP.min(all.len() / 2));
    all.sort_unstable();
    let at = |part: f64| all[(all.len() as f64 * part) as usize] as f64 / 1e3;
    Ok(Latency {
        p50: at(0.5),
        p99: at(0.99),
    })
}
