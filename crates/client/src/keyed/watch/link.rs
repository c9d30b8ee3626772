//! The connection of a watch, and its subscription.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{KeyRange, Offset, WatchPosition, WatchPositions, partition_of_key};
use millstream_record::{Chunks, Decompressor, Life, Record};
use millstream_wire::native::{
    DeliveredChunks, LocalSocketRequest, ReceiveRequest, ReceiveResponse, WatchKeysRequest,
    WatchStart, WatchedPartition,
};
use millstream_wire::{ResponseError, Uuid};
use tokio::time::timeout;

use super::{KeyedStream, READ, WatchedChange};
use crate::client::text;
use crate::connection::Connection;
use crate::error::ClientError;
use crate::offsets::TopicPartition;
use crate::push::{DamagedRecords, give};

/// The requests for changes under way: each is the credit for one answer.
pub const AHEAD_MAX: usize = 2;

/// About the bytes of one answer.
const ANSWER_BYTES: u32 = 1 << 20;

type Answer = Pin<Box<dyn Future<Output = Result<ReceiveResponse, ClientError>> + Send>>;

/// A subscription on a connection of its own, which closes when this is dropped.
pub struct Link {
    /// Carries no requests but those of the watch: they would wait behind those for changes.
    connection: Connection,
    subscription: u32,
    /// The partitions, by the lanes of the subscription.
    lanes: Vec<u32>,
    /// The number of partitions of the stream, which decides who owns a key.
    partition_count: usize,
    /// How long values live that name no end.
    ttl: Option<Duration>,
    /// The answers under way, the first one first.
    answers: VecDeque<Answer>,
    decompressor: Decompressor,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", self.connection.address())
            .finish_non_exhaustive()
    }
}

/// Changes of a lane.
pub struct Received {
    pub lane: usize,
    /// The offset behind them.
    pub next: Offset,
    pub changes: Vec<WatchedChange>,
}

impl Link {
    /// Begins to watch, from known positions on, or else with the next change. Returns the positions that the watch begins at.
    pub async fn begin(
        stream: &KeyedStream,
        range: &KeyRange,
        known: Option<&WatchPositions>,
    ) -> Result<(Link, WatchPositions), ClientError> {
        stream.client.refresh(&[&stream.name]).await?;
        let topic = stream.client.topic(&stream.name).await?;
        if known.is_some_and(|known| known.stream != topic.id.into_bytes()) {
            let stream = stream.name.to_string();
            return Err(ClientError::MadeAgain { stream });
        }
        let partition_count = topic.leaders.len();
        let watched = watched(range, partition_count);
        let partitions = match known {
            Some(known)
                if known
                    .partitions
                    .iter()
                    .map(|it| it.partition)
                    .eq(watched.clone()) =>
            {
                known.partitions.iter().map(asked).collect()
            }
            Some(_) => {
                return Err(ClientError::ChangesLost {
                    why: format!(
                        "the position is of other keys of stream {}, or the stream had another number of partitions: \
                         begin again with a snapshot",
                        stream.name
                    ),
                });
            }
            None => watched.map(from_now).collect(),
        };
        let request = WatchKeysRequest {
            stream: text(&stream.name),
            stream_id: known.map(|known| Uuid::from_bytes(known.stream)),
            from: Bytes::copy_from_slice(&range.from),
            until: range.until.as_deref().map(Bytes::copy_from_slice),
            partitions,
            bytes_max: ANSWER_BYTES,
        };
        let connection = stream.client.own_of_any().await?;
        let answer = connection.ask(request).await?;
        stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let positions = WatchPositions {
            stream: answer.stream_id.into_bytes(),
            partitions: answer.lanes.iter().map(begun).collect(),
        };
        let link = Link {
            connection,
            subscription: answer.subscription,
            lanes: answer.lanes.iter().map(|lane| lane.partition).collect(),
            partition_count,
            ttl: answer
                .ttl_ms
                .and_then(|ms| u64::try_from(ms).ok())
                .map(Duration::from_millis),
            answers: VecDeque::new(),
            decompressor: Decompressor::default(),
        };
        Ok((link, positions))
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the next changes, with so many requests under way. Dropping the future loses nothing.
    pub async fn receive(
        &mut self,
        stream: &KeyedStream,
        ahead: usize,
    ) -> Result<Vec<Received>, ClientError> {
        while self.answers.len() < ahead {
            let request = ReceiveRequest {
                subscription: self.subscription,
                source: 0,
                bytes_max: ANSWER_BYTES,
            };
            let pending = self.connection.send(request).await?;
            self.answers.push_back(Box::pin(pending.wait()));
        }
        let Some(first) = self.answers.front_mut() else {
            return Ok(Vec::new());
        };
        let answer = answer(stream, first).await;
        self.answers.pop_front();
        let answer = answer?;
        if answer.error_code == ResponseError::ResourceNotFound.code() {
            // The subscription ends with its connection.
            let address = self.connection.address().to_string();
            return Err(ClientError::Disconnected { address });
        }
        stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let delivered = answer.delivered.into_iter();
        delivered
            .map(|delivered| self.received(stream, delivered))
            .collect()
    }

    fn received(
        &mut self,
        stream: &KeyedStream,
        delivered: DeliveredChunks,
    ) -> Result<Received, ClientError> {
        let lane = delivered.lane as usize;
        let Some(&partition) = self.lanes.get(lane) else {
            return Err(stream.violation(format!("the watch has no lane {lane}")));
        };
        let message = delivered.error_message.as_deref();
        stream.check(READ, delivered.error_code, message)?;
        let mut changes = Vec::new();
        for piece in &delivered.chunks.0 {
            self.read(stream, partition, &delivered, piece, &mut changes)?;
        }
        Ok(Received {
            lane,
            next: delivered.next,
            changes,
        })
    }

    /// Reads the changes of whole chunks.
    fn read(
        &mut self,
        stream: &KeyedStream,
        partition: u32,
        delivered: &DeliveredChunks,
        chunks: &[u8],
        changes: &mut Vec<WatchedChange>,
    ) -> Result<(), ClientError> {
        let damaged = |damaged: DamagedRecords| {
            damaged.in_partition(&TopicPartition {
                topic: stream.name.clone(),
                partition: i32::try_from(partition).unwrap_or(i32::MAX),
            })
        };
        let (partition_count, ttl) = (self.partition_count, self.ttl);
        let mut take = |record: &Record<'_>| {
            changes.extend(change_of(record, partition, partition_count, ttl));
            ControlFlow::Continue(())
        };
        let mut next = delivered.from;
        for chunk in Chunks::new(chunks) {
            let chunk = chunk.map_err(|error| {
                damaged(DamagedRecords {
                    offsets: next..delivered.next,
                    error,
                })
            })?;
            next = chunk.header().next_offset();
            if chunk.header().attributes.is_control() {
                continue;
            }
            let from = delivered.from;
            let _ = give(&chunk, from, &mut self.decompressor, &mut take).map_err(damaged)?;
        }
        Ok(())
    }
}

/// Returns the change that a record is; `None` if look-ups do not find it, since another partition owns its key.
fn change_of(
    record: &Record<'_>,
    partition: u32,
    partition_count: usize,
    ttl: Option<Duration>,
) -> Option<WatchedChange> {
    let key = record.key?;
    let end = Life::of(record).end(ttl);
    (partition_of_key(key, partition_count) == partition as usize).then(|| WatchedChange {
        partition,
        version: record.offset,
        timestamp: record.timestamp,
        key: Bytes::copy_from_slice(key),
        value: record.value.map(Bytes::copy_from_slice),
        expires_at: end.filter(|_| record.value.is_some()),
    })
}

/// Waits for an answer, as long as the server is reachable. Dropping the future loses nothing.
async fn answer(stream: &KeyedStream, answer: &mut Answer) -> Result<ReceiveResponse, ClientError> {
    loop {
        match timeout(stream.client.config().request_timeout, &mut *answer).await {
            Ok(answer) => return answer,
            // There are no changes, or the server vanished without closing the connection.
            Err(_) => drop(stream.client.ask(LocalSocketRequest {}).await?),
        }
    }
}

fn asked(position: &WatchPosition) -> WatchedPartition {
    WatchedPartition {
        partition: position.partition,
        position: Some(position.next),
        epoch: position.epoch,
    }
}

fn begun(start: &WatchStart) -> WatchPosition {
    WatchPosition {
        partition: start.partition,
        next: start.position,
        epoch: start.epoch,
    }
}

fn from_now(partition: u32) -> WatchedPartition {
    WatchedPartition {
        partition,
        position: None,
        epoch: -1,
    }
}

/// Returns the partitions of a range: one owns a single key.
fn watched(range: &KeyRange, partition_count: usize) -> Range<u32> {
    match range.only_key() {
        Some(key) if partition_count > 0 => {
            let owner = partition_of_key(key, partition_count) as u32;
            owner..owner + 1
        }
        _ => 0..u32::try_from(partition_count).unwrap_or(u32::MAX),
    }
}
