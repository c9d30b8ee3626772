//! The measurements between the two ends of a transport.

use std::time::Instant;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// One end of a way in both directions. Both wait.
pub trait Link {
    fn send(&mut self, message: Bytes);
    /// Receives a message; answers its length.
    fn receive(&mut self) -> usize;
}

/// How much is sent.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Plan {
    /// One in this many of the messages.
    pub part: u32,
}

/// The figures for messages of one size.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Figure {
    pub bytes: usize,
    /// Half of the way back and forth.
    pub latency_us: f64,
    /// All in one direction.
    pub mb_per_s: f64,
}

/// Sizes in bytes; how often back and forth; how many in one direction.
const SIZES: [(usize, u32, u32); 2] = [(8, 20_000, 1_000_000), (64 << 10, 5_000, 30_000)];

/// Does the one half of all; the first of both has the figures.
pub fn run(mut link: impl Link, is_first: bool, plan: Plan) -> Option<Vec<Figure>> {
    let figures = SIZES.map(|(bytes, ways, messages)| {
        let message = Bytes::from(vec![7; bytes]);
        // Once to warm up.
        back_and_forth(&mut link, is_first, &message, ways / plan.part / 10);
        Figure {
            bytes,
            latency_us: back_and_forth(&mut link, is_first, &message, ways / plan.part),
            mb_per_s: one_way(&mut link, is_first, &message, messages / plan.part),
        }
    });
    is_first.then(|| figures.to_vec())
}

/// Sends a message back and forth; returns half of the time, in microseconds.
fn back_and_forth(link: &mut impl Link, is_first: bool, message: &Bytes, count: u32) -> f64 {
    let began_at = Instant::now();
    for _ in 0..count {
        if is_first {
            link.send(message.clone());
        }
        assert_eq!(link.receive(), message.len());
        if !is_first {
            link.send(message.clone());
        }
    }
    began_at.elapsed().as_secs_f64() * 1e6 / f64::from(2 * count)
}

/// Sends messages in one direction until the other end has them all; returns megabytes per second.
fn one_way(link: &mut impl Link, is_first: bool, message: &Bytes, count: u32) -> f64 {
    let began_at = Instant::now();
    if is_first {
        (0..count).for_each(|_| link.send(message.clone()));
        link.receive();
    } else {
        (0..count).for_each(|_| assert_eq!(link.receive(), message.len()));
        link.send(Bytes::from_static(b"all"));
    }
    let bytes = f64::from(count) * message.len() as f64;
    bytes / 1e6 / began_at.elapsed().as_secs_f64()
}
