//! A producer and a consumer like many others, which time every record: the load of all other clients must not delay
//! them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use millstream_client::{
    ConsumerConfig, Decompressor, Producer, ProducerConfig, ProducerRecord, Start, TopicPartition,
};
use parking_lot::Mutex;

use super::readers;
use super::run::{Phase, Run};

pub const STREAM: &str = "soak-probe";

/// Between two records.
const EVERY: Duration = Duration::from_millis(50);

/// Times of records that met no outage, in milliseconds.
#[derive(Default)]
pub struct Times {
    /// The time until the server acknowledged a record.
    pub stored_ms: Mutex<Vec<f64>>,
    /// The time until the consumer had it.
    pub seen_ms: Mutex<Vec<f64>>,
    /// The longest that a record waited that did meet an outage.
    pub outage_ms: Mutex<f64>,
}

impl Times {
    /// Returns the quantile: this part of all times is below it.
    pub fn quantile(times: &Mutex<Vec<f64>>, part: f64) -> f64 {
        let mut sorted = times.lock().clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = (part * sorted.len() as f64) as usize;
        let last = sorted.len().saturating_sub(1);
        sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
    }
}

/// Returns the value of a record: when it was sent, since the start of the run, and the number of outages until then.
fn value(run: &Run) -> [u8; 16] {
    let sent_at = run.started_at.elapsed().as_nanos() as u64;
    let both = u128::from(sent_at) << 64 | u128::from(run.outages());
    both.to_be_bytes()
}

/// When it was sent; nothing if there was an outage since.
fn sent_at(run: &Run, value: &[u8]) -> Option<Instant> {
    let both = u128::from_be_bytes(value.try_into().ok()?);
    let is_undisturbed = both as u64 == run.outages() && run.outages().is_multiple_of(2);
    is_undisturbed.then(|| run.started_at + Duration::from_nanos((both >> 64) as u64))
}

/// Sends records one after the other until all leave.
pub async fn produce(run: Arc<Run>, times: Arc<Times>) -> Result<()> {
    let config = ProducerConfig {
        linger: Duration::ZERO,
        ..ProducerConfig::default()
    };
    let producer = Producer::new(&run.client(), config);
    while !run.rest(EVERY, Phase::Leave).await {
        let value = value(&run);
        let started_at = Instant::now();
        let record = ProducerRecord {
            topic: STREAM,
            partition: Some(0),
            value: Some(&value),
            ..ProducerRecord::default()
        };
        match producer.send(record).await {
            Ok(delivery) => drop(delivery.wait().await.context("it is not stored")?),
            Err(error) if error.is_retriable() => continue,
            Err(error) => return Err(error.into()),
        }
        let took_ms = started_at.elapsed().as_secs_f64() * 1e3;
        match sent_at(&run, &value) {
            Some(_) => times.stored_ms.lock().push(took_ms),
            None => {
                let mut longest = times.outage_ms.lock();
                *longest = longest.max(took_ms);
            }
        }
    }
    Ok(())
}

/// Takes them until all leave.
pub async fn consume(run: Arc<Run>, times: Arc<Times>) -> Result<()> {
    let place = TopicPartition {
        topic: STREAM.into(),
        partition: 0,
    };
    let client = run.client();
    let from = (place, Start::Earliest);
    let mut consumer = readers::begin(&client, ConsumerConfig::default(), from).await?;
    loop {
        let fetched = tokio::select! {
            fetched = consumer.next() => fetched?,
            () = run.wait_for(Phase::Leave) => return Ok(()),
        };
        fetched.each(&mut Decompressor::default(), |record| {
            if let Some(sent_at) = sent_at(&run, record.value.unwrap_or_default()) {
                let took_ms = sent_at.elapsed().as_secs_f64() * 1e3;
                times.seen_ms.lock().push(took_ms);
            }
            ControlFlow::Continue(())
        })?;
    }
}
