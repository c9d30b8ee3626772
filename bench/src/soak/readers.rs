//! Readers of one partition each: they must see every record once, in its place.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use millstream_base::Offset;
use millstream_client::{
    Client, Consumer, ConsumerConfig, Decompressor, Fetched, Record, Start, TopicPartition,
};
use tokio::time::{sleep, timeout};

use super::run::{BACKOFF, Phase, Run};

/// A reader goes on with new connections after this time, at most.
const STAYS_MAX: Duration = Duration::from_secs(60);

/// The longest wait of the audit.
const AUDIT_WAIT_MAX: Duration = Duration::from_secs(60);

/// Reads a partition from its beginning until all leave.
pub async fn read(run: Arc<Run>, partition: usize, reader: usize) -> Result<()> {
    let mut random = Rng::with_seed((partition * run.plan.readers_per_partition + reader) as u64);
    let client = run.client();
    let mut follower = Follower::new(&run, partition, Offset(0));
    while !run.is_in(Phase::Leave) {
        let mut consumer = consumer(&client, &run, partition, Start::At(follower.next)).await?;
        let stays = run.rest(STAYS_MAX.mul_f64(random.f64()), Phase::Leave);
        let mut stays = std::pin::pin!(stays);
        loop {
            tokio::select! {
                fetched = consumer.next() => follower.take(&fetched?)?,
                _ = &mut stays => break,
            }
            run.books.read_to(partition, reader, follower.next);
        }
    }
    Ok(())
}

/// Reads all records of a partition once more, after the last write to it.
///
/// # Errors
/// When the records differ from the sent ones.
pub async fn audit(run: &Run, partition: usize) -> Result<u64> {
    let client = run.client();
    let place = (run.place(partition), Start::Earliest);
    let isolation = config().isolation;
    let start = client.offsets(&[place], isolation).await?;
    let start = *start.values().next().context("it has no beginning")?;
    let mut follower = Follower::new(run, partition, start);
    let mut consumer = consumer(&client, run, partition, Start::At(start)).await?;
    while follower.next.0 < run.books.sent_to(partition) {
        let fetched = timeout(AUDIT_WAIT_MAX, consumer.next()).await;
        let late = || format!("no record comes at offset {}", follower.next.0);
        let fetched = fetched.ok().with_context(late)??;
        follower.take(&fetched)?;
    }
    for (writer, seen) in &follower.sequences {
        let sent = run.books.sent_by(*writer);
        ensure!(
            *seen == sent,
            "{seen} of the {sent} records of writer {writer} are there"
        );
    }
    Ok(follower.next.0 - start.0)
}

fn config() -> ConsumerConfig {
    ConsumerConfig {
        // Records that are removed before they were read are a fault.
        reset: None,
        prefetch_bytes: 2 << 20,
        answer_bytes_max: 1 << 20,
        ..ConsumerConfig::default()
    }
}

async fn consumer(client: &Client, run: &Run, partition: usize, start: Start) -> Result<Consumer> {
    begin(client, config(), (run.place(partition), start)).await
}

/// Begins a consumer of one partition; a request before its first record may meet an outage.
pub async fn begin(
    client: &Client,
    config: ConsumerConfig,
    place: (TopicPartition, Start),
) -> Result<Consumer> {
    loop {
        match Consumer::assigned(client, config.clone(), std::slice::from_ref(&place)).await {
            Ok(consumer) => return Ok(consumer),
            Err(error) if error.is_retriable() => sleep(BACKOFF).await,
            Err(error) => return Err(error).context("a reader cannot begin"),
        }
    }
}

/// The position of a reader, and the record that must come next.
struct Follower<'a> {
    run: &'a Run,
    partition: usize,
    start: Offset,
    next: Offset,
    /// The next record of each writer that was seen.
    sequences: HashMap<usize, u64>,
    room: Vec<u8>,
}

impl<'a> Follower<'a> {
    fn new(run: &'a Run, partition: usize, start: Offset) -> Follower<'a> {
        Follower {
            run,
            partition,
            start,
            next: start,
            sequences: HashMap::new(),
            room: Vec::new(),
        }
    }

    fn take(&mut self, fetched: &Fetched) -> Result<()> {
        let mut result = Ok(());
        fetched.each(&mut Decompressor::default(), |record| {
            let taken = self.take_one(record);
            result = taken.with_context(|| format!("the record at offset {}", record.offset.0));
            match result {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        result
    }

    fn take_one(&mut self, record: &Record<'_>) -> Result<()> {
        let due = self.next;
        ensure!(record.offset == due, "offset {} is due", due.0);
        self.next = due.plus(1);
        let books = &self.run.books;
        let stamp = books.check(self.partition, record, &mut self.room)?;
        // A reader that begins in the middle takes a writer's first record as it comes.
        let first = if self.start == Offset(0) {
            0
        } else {
            stamp.sequence
        };
        let due = self.sequences.entry(stamp.writer).or_insert(first);
        ensure!(
            stamp.sequence == *due,
            "{stamp:?}, and {due} is due of this writer"
        );
        *due += 1;
        Ok(())
    }
}
