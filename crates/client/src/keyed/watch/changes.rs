//! The changes that delivered records are.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, partition_of_key};
use millstream_record::{Chunks, Decompressor, Life, Record};
use millstream_wire::native::{DeliveredChunks, WatchKeysResponse};

use super::{KeyedStream, READ, WatchedChange};
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::push::{DamagedRecords, Piece, give};

/// Changes of a lane.
#[derive(Debug)]
pub struct Received {
    pub lane: usize,
    /// The offset behind them.
    pub next: Offset,
    pub changes: Vec<WatchedChange>,
}

/// Reads changes from records.
pub struct Changes {
    stream: KeyedStream,
    /// The partitions, by the lanes of the subscription.
    lanes: Vec<u32>,
    /// The number of partitions of the stream, which decides which partition owns a key.
    partition_count: usize,
    /// How long values live that name no end.
    ttl: Option<Duration>,
    decompressor: Decompressor,
}

impl Changes {
    pub fn new(stream: &KeyedStream, partition_count: usize, begun: &WatchKeysResponse) -> Changes {
        let ttl = begun.ttl_ms.and_then(|ms| u64::try_from(ms).ok());
        Changes {
            stream: KeyedStream {
                client: stream.client.clone(),
                name: stream.name.clone(),
            },
            lanes: begun.lanes.iter().map(|lane| lane.partition).collect(),
            partition_count,
            ttl: ttl.map(Duration::from_millis),
            decompressor: Decompressor::default(),
        }
    }

    /// Reads the changes that the network delivers.
    pub fn delivered(&mut self, delivered: &DeliveredChunks) -> Result<Received, ClientError> {
        let (lane, from) = (delivered.lane as usize, delivered.from);
        let place = self.place(lane)?;
        let message = delivered.error_message.as_deref();
        self.stream.check(READ, delivered.error_code, message)?;
        let mut changes = Vec::new();
        let (partition_count, ttl) = (self.partition_count, self.ttl);
        let mut take = take(&place, partition_count, ttl, &mut changes);
        for piece in &delivered.chunks.0 {
            let mut next = from;
            for chunk in Chunks::new(piece) {
                let chunk = chunk.map_err(|error| {
                    let offsets = next..delivered.next;
                    DamagedRecords { offsets, error }.in_partition(&place)
                })?;
                next = chunk.header().next_offset();
                if chunk.header().attributes.is_control() {
                    continue;
                }
                let given = give(&chunk, from, &mut self.decompressor, &mut take);
                let _ = given.map_err(|damaged| damaged.in_partition(&place))?;
            }
        }
        drop(take);
        Ok(Received {
            lane,
            next: delivered.next,
            changes,
        })
    }

    /// Copies the changes in shared memory.
    pub fn shared(&mut self, piece: &Piece) -> Result<Received, ClientError> {
        let (lane, offsets) = (piece.place as usize, piece.from..piece.next);
        let place = self.place(lane)?;
        let mut changes = Vec::new();
        if let Some(lease) = &piece.lease {
            let (partition_count, ttl) = (self.partition_count, self.ttl);
            let mut take = take(&place, partition_count, ttl, &mut changes);
            lease.each(offsets, &mut self.decompressor, &mut take, |damaged| {
                Err(damaged.in_partition(&place))
            })?;
        }
        Ok(Received {
            lane,
            next: piece.next,
            changes,
        })
    }

    /// Returns the error with which a lane ends.
    pub fn refused(&self, code: i16) -> ClientError {
        let message = "the server no longer has all changes from the position of the watch on";
        let out_of_range = millstream_wire::ResponseError::OffsetOutOfRange.code();
        let message = (code == out_of_range).then_some(message);
        let refused = self.stream.check(READ, code, message);
        refused.err().unwrap_or(ClientError::Closed)
    }

    fn place(&self, lane: usize) -> Result<TopicPartition, ClientError> {
        let Some(&partition) = self.lanes.get(lane) else {
            return Err(self
                .stream
                .violation(format!("the watch has no lane {lane}")));
        };
        Ok(TopicPartition {
            topic: self.stream.name.clone(),
            partition: i32::try_from(partition).unwrap_or(i32::MAX),
        })
    }
}

/// Returns a function that adds the change that a record is. It leaves out records that look-ups do not find, since another
/// partition owns their keys.
fn take(
    place: &TopicPartition,
    partition_count: usize,
    ttl: Option<Duration>,
    changes: &mut Vec<WatchedChange>,
) -> impl FnMut(&Record<'_>) -> ControlFlow<()> {
    let partition = place.partition as u32;
    move |record| {
        let owned = |key: &&[u8]| partition_of_key(key, partition_count) == partition as usize;
        if let Some(key) = record.key.filter(owned) {
            let end = Life::of(record).end(ttl);
            changes.push(WatchedChange {
                partition,
                version: record.offset,
                timestamp: record.timestamp,
                key: Bytes::copy_from_slice(key),
                value: record.value.map(Bytes::copy_from_slice),
                expires_at: end.filter(|_| record.value.is_some()),
            });
        }
        ControlFlow::Continue(())
    }
}
