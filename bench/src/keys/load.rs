//! Clients that do as little as they can: they send requests that were made before, wait for all answers, and send the
//! next ones.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;

/// Answers are waited for at most this long.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// No answer is larger.
const ANSWERS_BYTES_MAX: usize = 256 << 10;

/// Checks the first answer among received bytes, and returns its length; `None` if it is not whole.
pub type Answer<'a> = &'a (dyn Fn(&[u8]) -> Result<Option<usize>> + Sync);

/// The requests of one connection: each batch is sent at once.
pub struct Requests {
    /// In turn.
    pub batches: Vec<Bytes>,
    /// How many answers a batch has.
    pub answers: usize,
}

/// The figures of some connections together.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    pub requests_per_second: f64,
    /// From the beginning of a batch to its last answer.
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Sends the requests of each connection, again and again, for the given time.
pub fn run(
    address: SocketAddr,
    connections: &[Requests],
    answer: Answer<'_>,
    lasts: Duration,
) -> Result<Answered> {
    let streams = connections.iter().map(|_| connect(address));
    let streams: Vec<TcpStream> = streams.collect::<Result<_>>()?;
    let started_at = Instant::now();
    let until = started_at + lasts;
    let took = std::thread::scope(|scope| {
        let pairs = connections.iter().zip(streams);
        let threads: Vec<_> = pairs
            .map(|(requests, stream)| scope.spawn(move || send(stream, requests, answer, until)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let panicked = |_| anyhow!("a client panicked");
            thread.join().map_err(panicked)?
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let seconds = started_at.elapsed().as_secs_f64();
    let answers = took.iter().zip(connections);
    let answers: usize = answers.map(|(took, it)| took.len() * it.answers).sum();
    let mut took: Vec<Duration> = took.into_iter().flatten().collect();
    took.sort_unstable();
    ensure!(!took.is_empty(), "no batch was answered");
    let at = |part: f64| took[(took.len() as f64 * part) as usize].as_secs_f64() * 1e6;
    Ok(Answered {
        requests_per_second: answers as f64 / seconds,
        p50_us: at(0.5),
        p99_us: at(0.99),
    })
}

/// Sends each batch once.
pub fn run_once(address: SocketAddr, requests: &Requests, answer: Answer<'_>) -> Result<()> {
    let mut stream = connect(address)?;
    let mut buffer = buffer();
    let mut batches = requests.batches.iter();
    batches.try_for_each(|batch| {
        stream.write_all(batch)?;
        receive(&mut stream, &mut buffer, requests.answers, answer)
    })
}

/// Returns the time of each batch. At least one is sent.
fn send(
    mut stream: TcpStream,
    requests: &Requests,
    answer: Answer<'_>,
    until: Instant,
) -> Result<Vec<Duration>> {
    let mut buffer = buffer();
    let mut took = Vec::new();
    for batch in requests.batches.iter().cycle() {
        let sent_at = Instant::now();
        if sent_at >= until && !took.is_empty() {
            break;
        }
        stream.write_all(batch)?;
        receive(&mut stream, &mut buffer, requests.answers, answer)?;
        took.push(sent_at.elapsed());
    }
    Ok(took)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    Ok(stream)
}

fn buffer() -> Vec<u8> {
    vec![0; ANSWERS_BYTES_MAX]
}

/// Waits for a number of answers.
fn receive(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    answers: usize,
    answer: Answer<'_>,
) -> Result<()> {
    let (mut start, mut end) = (0, 0);
    for _ in 0..answers {
        loop {
            if let Some(length) = answer(&buffer[start..end])? {
                start += length;
                break;
            }
            buffer.copy_within(start..end, 0);
            (start, end) = (0, end - start);
            ensure!(end < buffer.len(), "an answer is too large");
            let read = stream.read(&mut buffer[end..])?;
            ensure!(read > 0, "the server has ended the connection");
            end += read;
        }
    }
    ensure!(start == end, "there are more answers than requests");
    Ok(())
}
