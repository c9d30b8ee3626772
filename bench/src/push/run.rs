//! Producers and consumers at the same time, and contenders in turn.

use std::time::Instant;

use anyhow::Result;

use super::broker::{Broker, Brokers, Consuming, STREAM};
use super::host::Used;
use super::order::{Consumed, Delivery};
use super::producers::{Load, Producers};
use super::work::RecordWork;
use crate::clock::monotonic_ns;
use crate::measure::{Bench, ROUNDS, median, rounds_of};
use crate::report::{Better, Case};

/// Consumers of one kind.
#[derive(Debug, Clone)]
pub struct Contender {
    pub name: String,
    /// `None` without consumers.
    pub delivery: Option<Delivery>,
    pub work: RecordWork,
    /// A filter that travels with the subscription.
    pub filter: Option<String>,
}

impl Contender {
    pub fn new(delivery: Delivery, work: &RecordWork) -> Contender {
        Contender {
            name: delivery.name().to_owned(),
            delivery: Some(delivery),
            work: work.clone(),
            filter: None,
        }
    }

    /// The usual ways of delivery.
    pub fn usual(work: &RecordWork) -> Vec<Contender> {
        let all = Delivery::USUAL.into_iter();
        all.map(|delivery| Contender::new(delivery, work)).collect()
    }

    /// The work that finds the same without a filter before it.
    fn whole_work(&self) -> RecordWork {
        match &self.filter {
            Some(filter) => RecordWork::Filter(filter.clone()),
            None => self.work.clone(),
        }
    }
}

/// The figures of one run.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    /// The time from the first request of a producer to the last record of a consumer.
    pub million_per_s: f64,
    /// The same for producers alone.
    pub produced_million_per_s: f64,
    millions: f64,
    /// Without consumers in its process.
    broker: Used,
    consumers: Used,
}

/// The figures of a contender in all rounds.
pub struct Rounds {
    pub name: String,
    pub ran: Vec<Ran>,
}

impl Rounds {
    pub fn each(&self, pick: impl Fn(&Ran) -> f64) -> Vec<f64> {
        self.ran.iter().map(pick).collect()
    }

    pub fn rates(&self) -> Vec<f64> {
        self.each(|ran| ran.million_per_s)
    }

    pub fn median(&self, pick: impl Fn(&Ran) -> f64) -> f64 {
        median(&self.each(pick))
    }

    pub fn broker_cpu_s_per_million(&self) -> f64 {
        self.median(|ran| ran.broker.cpu_s / ran.millions)
    }

    pub fn consumer_cpu_s_per_million(&self) -> f64 {
        self.median(|ran| ran.consumers.cpu_s / ran.millions)
    }

    pub fn broker_threads(&self) -> f64 {
        self.median(|ran| ran.broker.threads as f64)
    }

    pub fn consumer_threads(&self) -> f64 {
        self.median(|ran| ran.consumers.threads as f64)
    }
}

/// How often contenders take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// Once to warm up, and then as often as counts.
    WarmedUp,
    /// As often as counts: the broker is warm from other loads.
    Warm,
}

/// Lets contenders take turns with the same load.
pub fn alternate(
    bench: &Bench,
    brokers: &mut Brokers,
    load: Load,
    consumers: usize,
    contenders: &[Contender],
    turns: Turns,
) -> Result<Vec<Rounds>> {
    let producers = Producers::new(STREAM, load)?;
    let found = contenders
        .iter()
        .map(|contender| producers.found(&contender.whole_work()));
    let found = found.collect::<Result<Vec<u64>>>()?;
    let turn = |index: usize| {
        let contender = &contenders[index];
        let broker = brokers.of(contender.delivery);
        run(broker, load, &producers, consumers, contender, found[index])
    };
    let ran = match turns {
        Turns::WarmedUp => bench.turns(contenders.len(), turn)?,
        Turns::Warm => rounds_of(bench.size(ROUNDS, 1), contenders.len(), turn)?,
    };
    let of = |(contender, ran): (&Contender, Vec<Ran>)| Rounds {
        name: contender.name.clone(),
        ran,
    };
    Ok(contenders.iter().zip(ran).map(of).collect())
}

/// Lets producers and consumers work on a new stream.
fn run(
    broker: &mut Broker,
    load: Load,
    producers: &Producers,
    consumers: usize,
    contender: &Contender,
    found: u64,
) -> Result<Ran> {
    broker.create(load.lanes, load.is_synced)?;
    let mut order = Broker::order(load.lanes, found, consumers, &contender.work);
    order.filter = contender.filter.clone();
    let all_found = order.found_by_all();
    let mut consuming = contender
        .delivery
        .map(|delivery| broker.consume(delivery, order))
        .transpose()?;
    broker.begin()?;
    let (started_at, started_ns) = (Instant::now(), monotonic_ns());
    producers.send(broker.address())?;
    let produced_s = started_at.elapsed().as_secs_f64();
    let mut seconds = produced_s;
    let mut consumed = Consumed::default();
    if let Some(consuming) = &mut consuming {
        consumed = broker.consumed(consuming)?;
        consumed.check(all_found)?;
        seconds = (consumed.finished_ns - started_ns) as f64 / 1e9;
    }
    let used = broker.end(consuming.as_ref(), &consumed)?;
    let threads = match consuming {
        Some(Consuming::InBroker) => consumers,
        _ => consumed.threads,
    };
    drop(consuming);
    broker.delete()?;
    let millions = producers.records() as f64 / 1e6;
    Ok(Ran {
        million_per_s: millions / seconds,
        produced_million_per_s: millions / produced_s,
        millions,
        broker: used,
        consumers: Used {
            cpu_s: consumed.cpu_s,
            threads,
        },
    })
}

/// The contender of this name.
pub fn named<'r>(rounds: &'r [Rounds], name: &str) -> Option<&'r Rounds> {
    rounds.iter().find(|rounds| rounds.name == name)
}

/// A case of the rate of `ours`, beside `limit` and all others.
pub fn case(name: String, rounds: &[Rounds], ours: &str, limit: &str) -> Option<Case> {
    let (ours, limit) = (named(rounds, ours)?, named(rounds, limit)?);
    let mut case =
        Case::new(name, "M records/s", Better::Higher, ours.rates()).by_hand(limit.rates());
    for other in rounds {
        if other.name != ours.name && other.name != limit.name {
            case = case.peer(&other.name, median(&other.rates()));
        }
    }
    Some(case)
}

/// The same with the cost of both sides of each.
pub fn with_costs(mut case: Case, rounds: &[Rounds]) -> Case {
    for one in rounds {
        let name = one.name.replace(' ', "_");
        let cpu_s = one.broker_cpu_s_per_million() + one.consumer_cpu_s_per_million();
        let threads = one.broker_threads() + one.consumer_threads();
        case = case
            .detail(&format!("{name}_cpu_s_per_million_records"), cpu_s)
            .detail(&format!("{name}_threads"), threads);
    }
    case
}
