//! Reading chunks in the broker's memory, beside the same chunks in a plain array.

use anyhow::{Result, ensure};

use super::broker::{Broker, Brokers};
use super::data::{Content, Data};
use super::host::Used;
use super::order::Delivery;
use super::work::{InPlace, RecordWork, Worker};
use crate::measure::{Bench, median, time};
use crate::report::{Better, Case};

pub const LIMIT: &str = "limit";

const LANES: u32 = 8;

/// As a producer sends them that has enough to send.
const DATA: Data = Data {
    content: Content::Small,
    chunk_bytes: 16 << 10,
};

/// Targets for push across processes: its rate divided by the array's, and divided by that of pull.
const OF_ARRAY: f64 = 0.5;
const OF_PULL: f64 = 2.0;

struct Took {
    million_per_s: f64,
    broker: Used,
    consumer: Used,
}

impl Took {
    /// Millions of records for each second of a processor, on both sides.
    fn million_per_cpu_s(&self, millions: f64) -> f64 {
        millions / (self.broker.cpu_s + self.consumer.cpu_s)
    }
}

struct Round {
    array_million_per_s: f64,
    /// As in [`Delivery::ALL`].
    took: Vec<Took>,
}

pub fn limit(bench: &Bench) -> Result<Vec<Case>> {
    let bytes = bench.size(512 << 20, 8 << 20);
    let chunks = DATA.chunks()?;
    let chunks_per_lane = bytes / DATA.chunk_bytes / LANES as usize;
    let mut array = Vec::with_capacity(bytes + bytes / 4);
    for chunk in chunks.cycle().take(chunks_per_lane * LANES as usize) {
        array.extend_from_slice(chunk);
    }
    let mut brokers = Brokers::start(bench, false)?;
    let mut end = 0;
    for broker in [&mut brokers.near, &mut brokers.remote] {
        broker.create(LANES, false)?;
        end = broker.fill(DATA, chunks_per_lane)?;
    }
    let records = end * u64::from(LANES);
    let millions = records as f64 / 1e6;
    let rounds = bench.rounds(|| {
        let array_million_per_s = millions / read_array(&array, records)?;
        let read = |delivery| read(brokers.of(Some(delivery)), delivery, end);
        Ok(Round {
            array_million_per_s,
            took: Delivery::ALL.into_iter().map(read).collect::<Result<_>>()?,
        })
    })?;

    let of = |index: usize, pick: &dyn Fn(&Took) -> f64| -> Vec<f64> {
        rounds
            .iter()
            .map(|round| pick(&round.took[index]))
            .collect()
    };
    let array: Vec<f64> = rounds
        .iter()
        .map(|round| round.array_million_per_s)
        .collect();
    let index = |delivery| Delivery::ALL.iter().position(|one| *one == delivery);
    let (Some(pull), Some(shared)) = (index(Delivery::Pull), index(Delivery::Thread)) else {
        return Ok(Vec::new());
    };
    let rate = |took: &Took| took.million_per_s;
    let per_cpu = |took: &Took| took.million_per_cpu_s(millions);
    let case =
        |name: &str, unit, ours| Case::new(format!("{LIMIT}/{name}"), unit, Better::Higher, ours);
    let mut beside_array = case("push-beside-array", "M records/s", of(shared, &rate))
        .by_hand(array)
        .target(OF_ARRAY);
    let mut beside_pull = case("push-beside-pull", "M records/s", of(shared, &rate))
        .by_hand(of(pull, &rate))
        .target(OF_PULL);
    let same_cpu = case(
        "push-beside-pull-with-same-cpu",
        "M records/CPU-s",
        of(shared, &per_cpu),
    )
    .by_hand(of(pull, &per_cpu))
    .target(OF_PULL);
    for (index, delivery) in Delivery::ALL.into_iter().enumerate() {
        if delivery != Delivery::Thread {
            beside_array = beside_array.peer(delivery.name(), median(&of(index, &rate)));
        }
        let name = delivery.name().replace(' ', "_");
        let ms = |pick: fn(&Took) -> Used| median(&of(index, &|took| pick(took).cpu_s * 1e3));
        beside_pull = beside_pull
            .detail(&format!("{name}_broker_cpu_ms"), ms(|took| took.broker))
            .detail(&format!("{name}_consumer_cpu_ms"), ms(|took| took.consumer));
    }
    Ok(vec![beside_array, beside_pull, same_cpu])
}

/// Reads all that lies there, by one consumer.
fn read(broker: &mut Broker, delivery: Delivery, end: u64) -> Result<Took> {
    broker.begin()?;
    let order = Broker::order(LANES, end, 1, &RecordWork::Count);
    let mut consuming = broker.consume(delivery, order)?;
    let consumed = broker.consumed(&mut consuming)?;
    consumed.check(end * u64::from(LANES))?;
    let used = broker.end(Some(&consuming), &consumed)?;
    let seconds = (consumed.finished_ns - consumed.started_ns) as f64 / 1e9;
    Ok(Took {
        million_per_s: consumed.records as f64 / 1e6 / seconds,
        broker: used,
        consumer: Used {
            cpu_s: consumed.cpu_s,
            threads: consumed.threads,
        },
    })
}

/// Returns how long it takes, in seconds.
fn read_array(array: &[u8], records: u64) -> Result<f64> {
    let mut worker = Worker::new(&RecordWork::Count)?;
    let took = time(|| {
        worker.take(&InPlace {
            bytes: array,
            from: 0,
            partition: 0,
        })
    })?;
    ensure!(worker.found() == records, "the array has other records");
    Ok(took.seconds)
}
