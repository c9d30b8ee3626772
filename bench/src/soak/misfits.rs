//! Clients that do not behave: silent ones, greedy ones, and those that send garbage.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use fastrand::Rng;
use millstream_client::Connection;
use millstream_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::{BrokerId, FetchRequest, TopicName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::cutters::outcome;
use super::run::{BACKOFF, BALLAST, BALLAST_PARTITIONS, Phase, Run, STREAM, count};
use crate::connection::{chunk, frame, produce_frame, produce_request, text};

/// The interval at which silent and greedy clients check their connections.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A greedy client leaves after this time, if the server has not closed it before.
const GREEDY_MAX: Duration = Duration::from_secs(45);

/// The requests that a greedy client begins with, and the largest answer to each.
const GREEDY_REQUESTS: usize = 16;
const GREEDY_BYTES: i32 = 4 << 20;

/// A version of Fetch that names topics.
const FETCH_VERSION: i16 = 11;

/// The server waits less than this for the rest of a request.
const GARBLED_MAX: Duration = Duration::from_secs(90);

/// Between two garbled requests, at most.
const GARBLED_REST_MAX: Duration = Duration::from_secs(2);

/// The announced length of a request that no server may accept.
const ENDLESS_BYTES: i32 = i32::MAX;

/// Random bytes, at most.
const RANDOM_BYTES_MAX: usize = 4_000;

/// Connects and sends nothing.
pub async fn be_silent(run: Arc<Run>) -> Result<()> {
    while !run.is_in(Phase::Leave) {
        let mut stream = connect(&run).await;
        let mut received = [0; 64];
        tokio::select! {
            // It ends when the server ends or closes the connection.
            read = stream.read(&mut received) => ensure!(!matches!(read, Ok(1..)), "the server sends a silent client data"),
            () = run.wait_for(Phase::Leave) => {}
        }
    }
    Ok(())
}

/// Asks for much, and reads nothing.
pub async fn be_greedy(run: Arc<Run>, number: usize) -> Result<()> {
    let partition = (number % BALLAST_PARTITIONS) as i32;
    let request = fetch_frame(partition)?;
    while !run.is_in(Phase::Leave) {
        let mut stream = connect(&run).await;
        let came_at = tokio::time::Instant::now();
        for _ in 0..GREEDY_REQUESTS {
            let _ = stream.write_all(&request).await;
        }
        while came_at.elapsed() < GREEDY_MAX && !run.rest(LOOK_EVERY, Phase::Leave).await {
            if stream.write_all(&request).await.is_err() {
                count(&run.counts.greedy_closed);
                break;
            }
        }
    }
    Ok(())
}

fn fetch_frame(partition: i32) -> Result<Bytes> {
    let asked = FetchPartition::default()
        .with_partition(partition)
        .with_partition_max_bytes(GREEDY_BYTES);
    let topic = FetchTopic::default()
        .with_topic(TopicName(text(BALLAST)))
        .with_partitions(vec![asked]);
    let request = FetchRequest::default()
        .with_replica_id(BrokerId(-1))
        .with_min_bytes(1)
        .with_max_bytes(GREEDY_BYTES)
        .with_topics(vec![topic]);
    frame(FETCH_VERSION, request.into())
}

/// Sends garbage again and again: each time the server must answer, or close the connection.
pub async fn be_garbled(run: Arc<Run>, number: usize) -> Result<()> {
    let mut random = Rng::with_seed(number as u64);
    let whole = produce_frame(STREAM, &[0], &chunk(1)?)?;
    while !run
        .rest(GARBLED_REST_MAX.mul_f64(random.f64()), Phase::Leave)
        .await
    {
        if random.u8(0..5) == 0 {
            send_damaged_chunk(&run, &mut random).await?;
            continue;
        }
        let mut stream = connect(&run).await;
        let sent = garbage(&mut random, &whole);
        // It may be closed meanwhile.
        let _ = stream.write_all(&sent).await;
        let mut answer = [0; 4096];
        tokio::select! {
            answered = timeout(GARBLED_MAX, stream.read(&mut answer)) => {
                let start = &sent[..sent.len().min(32)];
                let left = || format!("neither answered nor closed: {start:02x?} …");
                // Any answer is valid, and so is a closed connection.
                let _ = answered.ok().with_context(left)?;
            }
            () = run.wait_for(Phase::Leave) => {}
        }
        count(&run.counts.garbled);
    }
    Ok(())
}

fn garbage(random: &mut Rng, whole: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; random.usize(8..RANDOM_BYTES_MAX)];
    random.fill(&mut bytes);
    match random.u8(0..4) {
        0 => bytes,
        1 => {
            bytes[..4].copy_from_slice(&ENDLESS_BYTES.to_be_bytes());
            bytes
        }
        2 => {
            // A request that is known, with anything in it.
            let length = bytes.len() as u32 - 4;
            bytes[..4].copy_from_slice(&length.to_be_bytes());
            bytes[4..6].copy_from_slice(&random.i16(0..70).to_be_bytes());
            bytes[6..8].copy_from_slice(&random.i16(0..10).to_be_bytes());
            bytes
        }
        _ => whole[..random.usize(1..whole.len())].to_vec(),
    }
}

/// A chunk whose content contradicts its checksum must be refused.
async fn send_damaged_chunk(run: &Run, random: &mut Rng) -> Result<()> {
    let mut damaged = Vec::from(chunk(1)?);
    let at = random.usize(damaged.len() - 50..damaged.len());
    damaged[at] ^= 1;
    let request = produce_request(STREAM, &[0], &damaged.into());
    let address = run.address.to_string();
    // An outage may be in the way.
    if let Ok(connection) = Connection::open(&address, &run.client_config()).await
        && let Ok(answer) = connection.ask(request).await
    {
        count(&run.counts.garbled);
        if outcome(&answer).is_none() {
            bail!("a damaged chunk was accepted");
        }
    }
    Ok(())
}

/// Tries until the server listens, or all clients leave.
async fn connect(run: &Run) -> TcpStream {
    loop {
        match TcpStream::connect(run.address).await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(BACKOFF).await,
        }
    }
}
