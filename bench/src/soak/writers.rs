//! Producers: they send, wait until all is stored, rest, and sometimes return under another producer id.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use millstream_client::{Compression, Delivery, Producer, ProducerConfig, ProducerRecord};

use super::run::{BACKOFF, Phase, Run, STREAM};

/// Between two bursts of a writer, at most; and records of one.
const REST_MAX: Duration = Duration::from_secs(1);
const BURST_RECORDS_MAX: usize = 8;

/// One in this many bursts is the last one of a producer.
const BURSTS_PER_PRODUCER: u32 = 50;

/// How many records a reader may be behind before the writers wait: records must not be removed before they are read.
const BEHIND_MAX: u64 = 5_000;

/// Longer than any outage: a request that times out is a fault.
const DELIVERY_MAX: Duration = Duration::from_secs(600);

/// Writes until the phase in which readers drain the records. All sent records are stored when it returns.
pub async fn write(run: Arc<Run>, writer: usize) -> Result<()> {
    let mut random = Rng::with_seed(writer as u64);
    let client = run.client();
    let config = ProducerConfig {
        compression: Compression::ALL[writer % Compression::ALL.len()],
        delivery_timeout: DELIVERY_MAX,
        ..ProducerConfig::default()
    };
    let mut stored_to = 0;
    let mut producer = Producer::new(&client, config.clone());
    while !rest(&run, &mut random, writer).await {
        let deliveries = burst(&run, &producer, &mut random, writer).await?;
        for delivery in deliveries {
            let stored = delivery.wait().await.context("a record is given up")?;
            // Without an offset it was stored before an outage.
            if let Some(offset) = stored.offset {
                let order = format!("stored at {} after a record at {stored_to}", offset.0);
                ensure!(offset.0 + 1 > stored_to, order);
                stored_to = offset.0 + 1;
            }
        }
        if random.u32(0..BURSTS_PER_PRODUCER) == 0 {
            producer = Producer::new(&client, config.clone());
        }
    }
    Ok(())
}

/// Waits for the next burst; returns whether there is none.
pub async fn rest(run: &Run, random: &mut Rng, writer: usize) -> bool {
    let partition = run.books.partition_of(writer);
    loop {
        if run.rest(REST_MAX.mul_f64(random.f64()), Phase::Drain).await {
            return true;
        }
        if run.books.behind(partition) < BEHIND_MAX {
            return false;
        }
    }
}

async fn burst(
    run: &Run,
    producer: &Producer,
    random: &mut Rng,
    writer: usize,
) -> Result<Vec<Delivery>> {
    let mut deliveries = Vec::new();
    let mut value = Vec::new();
    for _ in 0..random.usize(1..=BURST_RECORDS_MAX) {
        run.books.stamp(writer).write(&mut value);
        run.counts
            .bytes
            .fetch_add(value.len() as u64, Ordering::Relaxed);
        let record = ProducerRecord {
            topic: STREAM,
            partition: Some(run.books.partition_of(writer) as i32),
            value: Some(&value),
            ..ProducerRecord::default()
        };
        deliveries.push(loop {
            // A request before the first record may meet an outage.
            match producer.send(record).await {
                Ok(delivery) => break delivery,
                Err(error) if error.is_retriable() => tokio::time::sleep(BACKOFF).await,
                Err(error) => return Err(error).context("a record is not taken"),
            }
        });
    }
    Ok(deliveries)
}
