//! Producers: each sends a request with a chunk for each lane, and waits for the answer before it sends the next.

use std::net::SocketAddr;
use std::thread;

use anyhow::{Result, anyhow};
use bytes::Bytes;

use super::data::{Chunks, Data};
use super::work::RecordWork;
use crate::connection::{Connection, check_produced, produce_frame};

/// The produced data, and the number of producers.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub data: Data,
    /// About how many are sent in all.
    pub records: usize,
    pub producers: usize,
    pub lanes: u32,
    /// Producers wait for the disk.
    pub is_synced: bool,
}

pub struct Producers {
    chunks: Chunks,
    /// One for each chunk.
    frames: Vec<Bytes>,
    producers: usize,
    requests_of_each: usize,
    lanes: u32,
}

impl Producers {
    pub fn new(stream: &str, load: Load) -> Result<Producers> {
        let chunks = load.data.chunks()?;
        let lanes: Vec<i32> = (0..load.lanes as i32).collect();
        let frame = |chunk| produce_frame(stream, &lanes, chunk);
        let sent_at_once = lanes.len() * load.producers;
        Ok(Producers {
            frames: chunks.chunks.iter().map(frame).collect::<Result<_>>()?,
            requests_of_each: chunks.count_of(load.records).div_ceil(sent_at_once),
            producers: load.producers,
            lanes: load.lanes,
            chunks,
        })
    }

    /// Records that are sent in all.
    pub fn records(&self) -> u64 {
        let chunks = self.producers * self.requests_of_each * self.chunks.records_per_chunk;
        chunks as u64 * u64::from(self.lanes)
    }

    /// Returns how much the work finds in each lane.
    pub fn found(&self, work: &RecordWork) -> Result<u64> {
        let of_one = self.chunks.found(work, self.requests_of_each)?;
        Ok(of_one * self.producers as u64)
    }

    /// Sends everything.
    pub fn send(&self, address: SocketAddr) -> Result<()> {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.producers)
                .map(|_| scope.spawn(|| self.send_one(address)))
                .collect();
            threads.into_iter().try_for_each(|thread| {
                let panicked = |_| anyhow!("a producer panicked");
                thread.join().map_err(panicked)?
            })
        })
    }

    fn send_one(&self, address: SocketAddr) -> Result<()> {
        let mut connection = Connection::to(address)?;
        for frame in self.frames.iter().cycle().take(self.requests_of_each) {
            connection.send(frame)?;
            check_produced(connection.receive()?)?;
        }
        Ok(())
    }
}
