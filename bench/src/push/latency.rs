//! The latency from the moment when a record is durable until a consumer's callback has it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::broker::{Broker, Brokers};
use super::order::Delivery;
use super::work::RecordWork;
use crate::measure::Bench;
use crate::report::{Better, Case};

pub const LATENCY: &str = "latency";

/// The broker appends a record that often.
const EVERY: Duration = Duration::from_millis(1);

/// The number of records at the start that are not counted.
const WARM_UP: usize = 100;

/// Of push across processes, in microseconds.
const P50_US_MAX: f64 = 20.0;
const P99_US_MAX: f64 = 200.0;

/// The bound where a thread stands between both ends.
const TWO_WAKE_UPS: &str = "two bare wake-ups";

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
        let measured = each.map(|delivery| measure(brokers.of(Some(delivery)), delivery, count));
        let mut measured = measured.collect::<Result<Vec<_>>>()?;
        measured.push(two_wake_ups(count)?);
        Ok(measured)
    })?;
    let mut cases = Vec::new();
    let measured = Delivery::ALL.into_iter().map(Some).chain([None]);
    for (index, delivery) in measured.enumerate() {
        let parts: [(&str, Pick, f64); 2] = [
            ("p50", |latency| latency.p50, P50_US_MAX),
            ("p99", |latency| latency.p99, P99_US_MAX),
        ];
        let of = delivery.map_or(TWO_WAKE_UPS, Delivery::name);
        for (part, pick, most) in parts {
            let name = format!("{LATENCY}/{}/{part}", of.replace(' ', "-"));
            let us = rounds.iter().map(|round| pick(&round[index])).collect();
            let case = Case::new(name, "us", Better::Lower, us);
            cases.push(match delivery {
                Some(Delivery::Thread) => case.bound(most),
                _ => case,
            });
        }
    }
    Ok(cases)
}

/// Measures two threads that wake each other and do nothing else: in the same way an append wakes the thread that
/// pushes, and that thread the consumer.
fn two_wake_ups(count: usize) -> Result<Latency> {
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    // A time for each number: a consumer that is late finds the next number sent already.
    let sent_at: Vec<_> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let (relayed, arrived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let wait_for = |count: &AtomicUsize, least: usize| {
        while count.load(Ordering::Acquire) < least {
            thread::park();
        }
    };
    let latencies = thread::scope(|scope| {
        let consumer = scope.spawn(|| {
            let arrive = |number| {
                wait_for(&arrived, number);
                now() - sent_at[number - 1].load(Ordering::Relaxed)
            };
            (1..=count).map(arrive).collect::<Vec<u64>>()
        });
        let wakes = consumer.thread().clone();
        let (relayed, arrived) = (&relayed, &arrived);
        let relay = scope.spawn(move || {
            for number in 1..=count {
                wait_for(relayed, number);
                arrived.store(number, Ordering::Release);
                wakes.unpark();
            }
        });
        for number in 1..=count {
            thread::sleep(EVERY);
            sent_at[number - 1].store(now(), Ordering::Relaxed);
            relayed.store(number, Ordering::Release);
            relay.thread().unpark();
        }
        consumer.join()
    });
    let latencies = latencies.map_err(|_| anyhow!("the thread that was woken has failed"))?;
    Ok(Latency::of(latencies))
}

impl Latency {
    /// Of latencies in nanoseconds, without the first ones.
    fn of(mut all: Vec<u64>) -> Latency {
        all.drain(..WARM_UP.min(all.len() / 2));
        all.sort_unstable();
        let at = |part: f64| all[(all.len() as f64 * part) as usize] as f64 / 1e3;
        Latency {
            p50: at(0.5),
            p99: at(0.99),
        }
    }
}

fn measure(broker: &mut Broker, delivery: Delivery, count: usize) -> Result<Latency> {
    broker.create(1, false)?;
    let order = Broker::order(1, count as u64, 1, &RecordWork::Latency);
    let mut consuming = broker.consume(delivery, order)?;
    broker.stamp(EVERY, count)?;
    let consumed = broker.consumed(&mut consuming)?;
    consumed.check(count as u64)?;
    drop(consuming);
    broker.delete()?;
    Ok(Latency::of(consumed.latencies))
}
