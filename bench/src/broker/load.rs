//! Producers that do as little as can be: frames that were made before are sent again and again.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bytes::Bytes;

use crate::connection::Connection;

/// The requests of one producer.
pub struct Producer {
    /// In turn.
    pub frames: Vec<Bytes>,
    pub in_flight: usize,
}

/// The answered requests, and the time until the last answer.
pub struct Sent {
    frames: u64,
    seconds: f64,
}

impl Sent {
    /// Returns how many frames were answered.
    pub fn frames(&self) -> f64 {
        self.frames as f64
    }

    pub fn frames_per_second(&self) -> f64 {
        self.frames() / self.seconds
    }
}

/// Lets all producers send for the given time, each on a connection of its own.
pub fn run(
    address: SocketAddr,
    producers: &[Producer],
    lasts: Duration,
    check: fn(Bytes) -> Result<()>,
) -> Result<Sent> {
    let started_at = Instant::now();
    let counts = thread::scope(|scope| {
        let threads: Vec<_> = producers
            .iter()
            .map(|producer| scope.spawn(|| send(address, producer, started_at + lasts, check)))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            let panicked = |_| anyhow!("a producer panicked");
            thread.join().map_err(panicked)?
        });
        joined.collect::<Result<Vec<u64>>>()
    })?;
    Ok(Sent {
        frames: counts.iter().sum(),
        seconds: started_at.elapsed().as_secs_f64(),
    })
}

fn send(
    address: SocketAddr,
    producer: &Producer,
    until: Instant,
    check: fn(Bytes) -> Result<()>,
) -> Result<u64> {
    let mut connection = Connection::to(address)?;
    let mut frames = producer.frames.iter().cycle();
    let (mut sent, mut answered) = (0, 0);
    loop {
        let is_over = Instant::now() >= until;
        if is_over && sent == answered {
            return Ok(answered);
        }
        if !is_over && sent - answered < producer.in_flight as u64 {
            if let Some(frame) = frames.next() {
                connection.send(frame)?;
                sent += 1;
            }
            continue;
        }
        check(connection.receive()?)?;
        answered += 1;
    }
}
