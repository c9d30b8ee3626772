//! Producers whose connections are cut in the middle of a request, or before the answer. They come back
//! and send the same again, with the same numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use fastrand::Rng;
use millstream_base::{Clock as _, ProducerEpoch, ProducerId, Sequence, SystemClock};
use millstream_client::{ClientConfig, ClientError, Compression, Connection, ResponseError};
use millstream_record::{ChunkBuilder, Producer};
use millstream_wire::messages::{InitProducerIdRequest, ProduceResponse};
use millstream_wire::{Question, Uuid};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::run::{BACKOFF, Run, STREAM, count};
use super::writers::rest;
use crate::connection::{produce_frame, produce_request};

const CHUNK_RECORDS_MAX: usize = 5;

/// One in this many chunks is the last before the connection is closed in good order.
const CHUNKS_PER_CONNECTION: u32 = 20;

/// Writes until the phase in which readers drain the records. All sent records are stored when it returns.
pub async fn write(run: Arc<Run>, writer: usize) -> Result<()> {
    let mut random = Rng::with_seed(writer as u64);
    let mut line = Line::to(&run);
    let partition = run.books.partition_of(writer) as i32;
    let topic = run.client().topic(STREAM).await?.id;
    let mut producer = new_producer(&mut line).await?;
    while !rest(&run, &mut random, writer).await {
        let records = random.usize(1..=CHUNK_RECORDS_MAX);
        let chunk = chunk(&run, writer, records, producer)?;
        if random.bool() {
            cut(&run, &mut random, partition, &chunk).await?;
        }
        store(&mut line, topic, partition, &chunk).await?;
        producer.sequence = producer.sequence.plus(records as u32);
        if random.u32(0..CHUNKS_PER_CONNECTION) == 0 {
            line.connection = None;
        }
    }
    Ok(())
}

async fn new_producer(line: &mut Line) -> Result<Producer> {
    loop {
        let request = InitProducerIdRequest::default()
            .with_transactional_id(None)
            .with_transaction_timeout_ms(i32::MAX);
        let answer = line.ask(request).await?;
        match ResponseError::try_from_code(answer.error_code) {
            None => {
                return Ok(Producer {
                    id: ProducerId(answer.producer_id.0),
                    epoch: ProducerEpoch(answer.producer_epoch),
                    sequence: Sequence(0),
                });
            }
            Some(error) if error.is_retriable() => sleep(BACKOFF).await,
            Some(error) => bail!("no producer id: {error}"),
        }
    }
}

fn chunk(run: &Run, writer: usize, records: usize, producer: Producer) -> Result<Bytes> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut value = Vec::new();
    for _ in 0..records {
        run.books.stamp(writer).write(&mut value);
        run.counts
            .bytes
            .fetch_add(value.len() as u64, Ordering::Relaxed);
        builder.push(SystemClock::default().now(), None, Some(&value), &[])?;
    }
    Ok(Bytes::copy_from_slice(builder.finish(Some(producer))?))
}

/// Sends a part of the request, or all of it, and breaks the connection off.
async fn cut(run: &Run, random: &mut Rng, partition: i32, chunk: &Bytes) -> Result<()> {
    let frame = produce_frame(STREAM, &[partition], chunk)?;
    let sent = random.usize(1..=frame.len());
    // During an outage there is no connection to cut.
    if let Ok(mut stream) = TcpStream::connect(run.address).await
        && stream.write_all(&frame[..sent]).await.is_ok()
    {
        count(&run.counts.cuts);
    }
    Ok(())
}

/// Sends the chunk until the server has it.
async fn store(line: &mut Line, topic: Uuid, partition: i32, chunk: &Bytes) -> Result<()> {
    let mut request = produce_request(STREAM, &[partition], chunk);
    // Newer versions have it in place of the name.
    request.topic_data[0].topic_id = topic;
    loop {
        let answer = line.ask(request.clone()).await?;
        match outcome(&answer) {
            None | Some(ResponseError::DuplicateSequenceNumber) => return Ok(()),
            Some(error) if error.is_retriable() => sleep(BACKOFF).await,
            Some(error) => bail!("a chunk is refused: {error}"),
        }
    }
}

/// Returns the server's error for the only chunk of a request.
pub fn outcome(answer: &ProduceResponse) -> Option<ResponseError> {
    let topics = answer.responses.iter();
    let mut partitions = topics.flat_map(|topic| &topic.partition_responses);
    ResponseError::try_from_code(partitions.next()?.error_code)
}

/// A connection that is opened again whenever it is lost.
struct Line {
    address: String,
    config: ClientConfig,
    connection: Option<Connection>,
}

impl Line {
    fn to(run: &Run) -> Line {
        Line {
            address: run.address.to_string(),
            config: run.client_config(),
            connection: None,
        }
    }

    async fn ask<Q: Question + Clone>(&mut self, question: Q) -> Result<Q::Answer> {
        loop {
            match self.try_to_ask(question.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_retriable() => {
                    self.connection = None;
                    sleep(BACKOFF).await;
                }
                Err(error) => return Err(error).context("a request is not answered"),
            }
        }
    }

    async fn try_to_ask<Q: Question>(&mut self, question: Q) -> Result<Q::Answer, ClientError> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.address, &self.config).await?,
        };
        self.connection.insert(connection).ask(question).await
    }
}
