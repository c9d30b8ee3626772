//! The connection of a watch, and its subscription.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::{ByteSize, KeyRange, WatchPosition, WatchPositions, partition_of_key};
use millstream_wire::native::{
    LocalSocketRequest, ReceiveRequest, ReceiveResponse, WatchKeysRequest, WatchKeysResponse,
    WatchStart, WatchedPartition,
};
use millstream_wire::{ResponseError, Uuid};
use tokio::time::timeout;

use super::changes::{Changes, Received};
use super::shared::{self, SharedFeed};
use super::{KeyedStream, READ};
use crate::client::text;
use crate::connection::Connection;
use crate::error::ClientError;

/// The requests for changes under way: each is the credit for one answer.
pub const AHEAD_MAX: usize = 2;

/// About the bytes of one answer.
const ANSWER_BYTES: u32 = 1 << 20;

type Answer = Pin<Box<dyn Future<Output = Result<ReceiveResponse, ClientError>> + Send>>;

/// A subscription, which ends when this is dropped.
pub struct Link {
    /// Carries no requests but those of the watch: they would wait behind those for changes.
    connection: Arc<Connection>,
    feed: Feed,
}

/// The way of the changes.
enum Feed {
    /// Over the connection.
    Network(NetworkFeed),
    /// Through the server's memory.
    Shared(SharedFeed),
}

/// Changes that the server sends on request.
struct NetworkFeed {
    subscription: u32,
    /// The answers under way, the first one first.
    answers: VecDeque<Answer>,
    changes: Changes,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", self.connection.address())
            .field("is_shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Begins to watch, from known positions on, or else with the next change; in shared memory where that may be
    /// and the server does it. Returns the positions that the watch begins at.
    pub async fn begin(
        stream: &KeyedStream,
        range: &KeyRange,
        known: Option<&WatchPositions>,
        may_share: bool,
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
            ahead_bytes: ByteSize(0),
            layout: 0,
        };
        let connection = Arc::new(stream.client.own_of_any().await?);
        if may_share {
            match shared::begin(stream, &connection, request.clone()).await {
                Ok((source, answer)) => {
                    let changes = Changes::new(stream, partition_count, &answer);
                    let feed = Feed::Shared(SharedFeed::new(source, changes)?);
                    return Ok((Link { connection, feed }, begun_at(&answer)));
                }
                Err(why) => {
                    tracing::debug!(address = %connection.address(), "no memory is shared: {why}");
                }
            }
        }
        let answer = connection.ask(request).await?;
        stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let feed = Feed::Network(NetworkFeed {
            subscription: answer.subscription,
            answers: VecDeque::new(),
            changes: Changes::new(stream, partition_count, &answer),
        });
        Ok((Link { connection, feed }, begun_at(&answer)))
    }

    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Whether changes come through the server's memory.
    pub fn is_shared(&self) -> bool {
        matches!(self.feed, Feed::Shared(_))
    }

    /// Waits for the next changes, with this number of requests in flight. Dropping the future loses nothing.
    pub async fn receive(
        &mut self,
        stream: &KeyedStream,
        ahead: usize,
    ) -> Result<Vec<Received>, ClientError> {
        match &mut self.feed {
            Feed::Network(feed) => feed.receive(&self.connection, stream, ahead).await,
            Feed::Shared(feed) => Ok(vec![feed.next().await?]),
        }
    }
}

impl NetworkFeed {
    async fn receive(
        &mut self,
        connection: &Connection,
        stream: &KeyedStream,
        ahead: usize,
    ) -> Result<Vec<Received>, ClientError> {
        while self.answers.len() < ahead {
            let request = ReceiveRequest {
                subscription: self.subscription,
                source: 0,
                bytes_max: ANSWER_BYTES,
            };
            let pending = connection.send(request).await?;
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
            let address = connection.address().to_string();
            return Err(ClientError::Disconnected { address });
        }
        stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let delivered = answer.delivered.iter();
        delivered.map(|it| self.changes.delivered(it)).collect()
    }
}

/// Returns the positions that a watch begins at.
fn begun_at(answer: &WatchKeysResponse) -> WatchPositions {
    WatchPositions {
        stream: answer.stream_id.into_bytes(),
        partitions: answer.lanes.iter().map(begun).collect(),
    }
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
