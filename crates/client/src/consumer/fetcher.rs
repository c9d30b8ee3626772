//! Fetches from one server, ahead of the records that the consumer returns.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};
use millstream_base::Offset;
use millstream_record::Filter;
use millstream_wire::messages::fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::{BrokerId, FetchRequest};
use millstream_wire::{FetchResponse, FetchedPartition, ResponseError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::ConsumerConfig;
use super::fetched::{Fetched, Records, end_of};
use crate::client::{Client, topic_name};
use crate::error::ClientError;
use crate::offsets::{Isolation, TopicPartition};

/// The unit in which memory is counted, in bytes.
pub(super) const ROOM_UNIT: usize = 1 << 10;

/// An event from a fetcher to the consumer.
pub(super) enum Event {
    Fetched(Fetched),
    /// The offset does not exist, or no longer does; with the earliest offset, if the server
    /// returned it.
    OutOfRange(TopicPartition, Option<Offset>),
    /// The fetcher has ended, for example since another server leads the partitions or the server
    /// cannot be reached.
    Lost(ClientError),
}

/// Fetches partitions that one server leads.
pub(super) struct Fetcher {
    pub client: Client,
    pub server: i32,
    pub config: ConsumerConfig,
    pub filter: Option<Arc<Filter>>,
    /// Partitions, and the next offset of each.
    pub positions: HashMap<TopicPartition, Offset>,
    /// The leader epoch of each partition; the server refuses the fetch when it has another one.
    pub epochs: HashMap<TopicPartition, i32>,
    /// The partitions in the order of the request, which rotates.
    pub order: Vec<TopicPartition>,
    /// Partitions that the fetcher leaves out for now.
    pub paused: watch::Receiver<BTreeSet<TopicPartition>>,
    pub room: Arc<Semaphore>,
    pub events: mpsc::Sender<Event>,
    /// Set with every answer.
    pub is_alive: Arc<AtomicBool>,
}

impl Fetcher {
    /// Fetches until an error occurs, or the consumer is gone.
    pub async fn run(mut self) {
        let events = self.events.clone();
        if let Err(error) = self.fetch_all().await {
            // An error here means that the consumer has gone, or has ended this fetcher.
            let _ = events.send(Event::Lost(error)).await;
        }
    }

    async fn fetch_all(&mut self) -> Result<(), ClientError> {
        let connection = self.client.server(self.server).await?;
        let after = self.client.config().request_timeout + self.config.wait_max;
        while !self.order.is_empty() {
            // Ask for the next answer as soon as there is some room, and wait for the rest of the
            // room once its size is known.
            let room = self.room.acquire().await;
            drop(room.map_err(|_| ClientError::Closed)?);
            let request = self.request();
            if request.topics.is_empty() {
                let changed = self.paused.changed().await;
                changed.map_err(|_| ClientError::Closed)?;
                continue;
            }
            let answer = connection.ask_within(request, after).await?;
            self.is_alive.store(true, Ordering::Relaxed);
            self.order.rotate_left(1);
            self.take(answer).await?;
        }
        Ok(())
    }

    /// Builds the request for all partitions that are not paused.
    fn request(&mut self) -> FetchRequest {
        let mut topics: Vec<FetchTopic> = Vec::new();
        let paused = self.paused.borrow_and_update();
        for place in self.order.iter().filter(|place| !paused.contains(place)) {
            let Some(Offset(next)) = self.positions.get(place) else {
                continue;
            };
            let epoch = self.epochs.get(place).copied();
            let partition = FetchPartition::default()
                .with_partition(place.partition)
                .with_current_leader_epoch(epoch.unwrap_or(-1))
                .with_fetch_offset(i64::try_from(*next).unwrap_or(i64::MAX))
                .with_partition_max_bytes(size(self.config.partition_bytes_max));
            match topics.last_mut() {
                Some(topic) if topic.topic.as_str() == &*place.topic => {
                    topic.partitions.push(partition);
                }
                _ => topics.push(
                    FetchTopic::default()
                        .with_topic(topic_name(&place.topic))
                        .with_partitions(vec![partition]),
                ),
            }
        }
        FetchRequest::default()
            .with_replica_id(BrokerId(-1))
            .with_max_wait_ms(i32::try_from(self.config.wait_max.as_millis()).unwrap_or(i32::MAX))
            .with_min_bytes(1)
            .with_max_bytes(size(self.config.answer_bytes_max))
            .with_isolation_level(self.config.isolation.level())
            .with_topics(topics)
    }

    async fn take(&mut self, answer: FetchResponse) -> Result<(), ClientError> {
        ClientError::check(answer.error_code, None, "fetching")?;
        for topic in answer.topics {
            let name: Arc<str> = topic.name.as_str().into();
            for partition in topic.partitions {
                let place = TopicPartition {
                    topic: Arc::clone(&name),
                    partition: partition.partition,
                };
                self.take_partition(place, partition).await?;
            }
        }
        Ok(())
    }

    async fn take_partition(
        &mut self,
        place: TopicPartition,
        partition: FetchedPartition,
    ) -> Result<(), ClientError> {
        let Some(from) = self.positions.get(&place).copied() else {
            return Ok(());
        };
        if partition.error_code == ResponseError::OffsetOutOfRange.code() {
            self.positions.remove(&place);
            self.order.retain(|other| *other != place);
            let earliest = u64::try_from(partition.log_start_offset).ok().map(Offset);
            return self.emit(Event::OutOfRange(place, earliest)).await;
        }
        let what = format!("partition {} of {}", place.partition, place.topic);
        ClientError::check(partition.error_code, None, what)
            .map_err(|error| error.needing("Read"))?;
        let records = joined(partition.records);
        let Some(next) = end_of(&records) else {
            return Ok(());
        };
        let end = match self.config.isolation {
            Isolation::Committed => partition.last_stable_offset,
            Isolation::Uncommitted => partition.high_watermark,
        };
        let room = self.room_for(records.len()).await?;
        self.positions.insert(place.clone(), next);
        let aborted = partition.aborted_transactions.unwrap_or_default();
        self.emit(Event::Fetched(Fetched {
            epoch: self.epoch(&place),
            place,
            from,
            next,
            end: Offset(u64::try_from(end).unwrap_or(0)),
            records: Records::Pulled(records, aborted),
            filter: self.filter.clone(),
            on_damage: self.config.on_damage.clone(),
            _room: Some(room),
        }))
        .await
    }

    /// Returns the leader epoch of a partition; -1 if it is not known.
    pub fn epoch(&self, place: &TopicPartition) -> i32 {
        self.epochs.get(place).copied().unwrap_or(-1)
    }

    /// Waits for room.
    pub async fn room_for(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ClientError> {
        // An answer larger than all the room waits until it is alone.
        let units = bytes.div_ceil(ROOM_UNIT);
        let all = self.config.prefetch_bytes.div_ceil(ROOM_UNIT).max(1);
        let units = u32::try_from(units.clamp(1, all)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).acquire_many_owned(units).await;
        room.map_err(|_| ClientError::Closed)
    }

    pub async fn emit(&self, event: Event) -> Result<(), ClientError> {
        let sent = self.events.send(event).await;
        sent.map_err(|_| ClientError::Closed)
    }
}

/// Joins pieces into one buffer, without a copy if there is only one.
pub(super) fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 | 1 => pieces.pop().unwrap_or_default(),
        _ => {
            let mut all = BytesMut::new();
            pieces.iter().for_each(|piece| all.extend_from_slice(piece));
            all.freeze()
        }
    }
}

fn size(bytes: usize) -> i32 {
    i32::try_from(bytes).unwrap_or(i32::MAX)
}
