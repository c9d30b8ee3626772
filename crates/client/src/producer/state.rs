//! The state of all records that wait to be sent. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Timestamp, partition_of_key};
use millstream_record::ChunkBuilder;
use millstream_wire::{ResponseError, Uuid};
use tokio::time::Instant;

use super::outcome::{Delivery, Outcome};
use super::partition::{Effect, Identity, Next, Open, Partition, Timeouts};
use super::{ProducerConfig, ProducerRecord};
use crate::client::Topic;
use crate::error::ClientError;
use crate::partitioner::Turn;

/// The most builders that wait for reuse; each has buffers of its own.
const SPARE_BUILDERS_MAX: usize = 64;

/// The most bytes of chunks in one request, unless a single chunk is larger.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// The largest size of a record's fields, beside key, value and headers; and of a header's fields.
const RECORD_FIELDS_BYTES: usize = 40;
const HEADER_FIELDS_BYTES: usize = 10;

pub(super) struct State {
    config: ProducerConfig,
    timeouts: Timeouts,
    topics: HashMap<Arc<str>, TopicPartitions>,
    pub partitions: Vec<Partition>,
    /// The partition with which the next plan begins, so that all partitions take turns.
    first: usize,
    builders: Vec<ChunkBuilder>,
    /// The memory of all undecided chunks.
    buffered_bytes: usize,
    /// The first error since the last call that took it.
    pub error: Option<ClientError>,
    /// The error that refuses all further records.
    pub closed: Option<ClientError>,
    /// The transaction of a transactional producer.
    pub transaction: Option<Transaction>,
}

/// The transaction of a transactional producer.
#[derive(Debug)]
pub(super) struct Transaction {
    /// The identity that chunks of the transaction carry; each transaction has its own.
    pub identity: Identity,
    /// Whether it accepts records.
    pub is_open: bool,
    /// Whether it has accepted a record or offsets, so that the server may know of it.
    pub has_records: bool,
    /// The error that leaves only the abort.
    pub failed: Option<ClientError>,
    /// Whether the first attempt to end it was to commit it; `None` before. The server may still have the transaction.
    pub ending: Option<bool>,
    /// Whether the producer must add partitions to a transaction before it writes to them.
    pub adds_partitions: bool,
}

struct TopicPartitions {
    /// The topic's id, which a new topic of the same name does not share.
    id: Uuid,
    /// The number of its partitions.
    count: usize,
    /// The indices of its partitions among all; more than `count` after it was made again with fewer partitions.
    places: Vec<usize>,
    turn: Turn,
    /// An unknown partition, beyond these, that a record was offered to.
    wanted: Option<usize>,
}

/// The reason why a record was not accepted.
pub(super) enum NotTaken {
    /// Its topic is not known.
    UnknownTopic,
    /// There is no memory for it now.
    NoRoom,
    /// Its partition is not known.
    UnknownPartition(usize),
    Failed(ClientError),
}

/// The content of one request: the place of each partition, with number and bytes of its chunk.
pub(super) type Chunks = Vec<(usize, u64, Bytes)>;

/// The next actions.
#[derive(Default)]
pub(super) struct Plan {
    /// Requests by server.
    pub requests: Vec<(i32, Chunks)>,
    /// The time of the next plan.
    pub wake_at: Option<Instant>,
    /// The generation of the identity that is missing.
    pub identify: Option<u64>,
    /// Places of partitions with an unknown leader.
    pub leaderless: Vec<usize>,
    /// Places of partitions that are to be added to the transaction of this generation.
    pub join: Vec<usize>,
    /// Whether memory is free again.
    pub has_freed: bool,
}

impl State {
    /// Returns an empty state, which gives up a stream that servers do not know after
    /// `unknown_timeout`.
    pub fn new(
        config: ProducerConfig,
        unknown_timeout: Duration,
        transaction: Option<Transaction>,
    ) -> State {
        State {
            timeouts: Timeouts {
                delivery: config.delivery_timeout,
                unknown: unknown_timeout,
            },
            config,
            topics: HashMap::new(),
            partitions: Vec::new(),
            first: 0,
            builders: Vec::new(),
            buffered_bytes: 0,
            error: None,
            closed: None,
            transaction,
        }
    }

    /// Adds a topic, or its new partitions. When the topic was made again with another number of partitions, keys belong to
    /// other partitions: gives up all chunks of the topic. Returns whether memory is free again.
    pub fn learn(&mut self, learned: &Topic) -> bool {
        let topic = self.topics.entry(Arc::clone(&learned.name));
        let topic = topic.or_insert_with(|| TopicPartitions {
            id: learned.id,
            count: 0,
            places: Vec::new(),
            turn: Turn::default(),
            wanted: None,
        });
        let (count, count_before) = (learned.leaders.len(), topic.count);
        let is_made_again = std::mem::replace(&mut topic.id, learned.id) != learned.id;
        topic.count = match is_made_again {
            true => count,
            // Fewer partitions are of a server that has not learned of new ones yet.
            false => count.max(count_before),
        };
        for index in topic.places.len()..topic.count {
            topic.places.push(self.partitions.len());
            let index = i32::try_from(index).unwrap_or(i32::MAX);
            self.partitions.push(Partition::new(
                Arc::clone(&learned.name),
                index,
                self.transaction.is_some(),
            ));
        }
        if !is_made_again || count == count_before {
            return false;
        }
        let error = ClientError::Refused {
            what: format!("topic {}", learned.name),
            error: ResponseError::UnknownTopicOrPartition,
            message: Some(format!(
                "it was deleted and made again with {count} partitions in place of {count_before}: send the records again"
            )),
        };
        let places = topic.places.clone();
        self.give_up_all(&places, &error)
    }

    /// Returns the id of a topic.
    pub fn topic_id(&self, name: &str) -> Uuid {
        self.topics.get(name).map_or(Uuid::nil(), |topic| topic.id)
    }

    /// Gives up all chunks of partitions. Returns whether memory is free again.
    fn give_up_all(&mut self, places: &[usize], error: &ClientError) -> bool {
        let mut has_freed = false;
        for place in places {
            let effect = self.partitions[*place].fail_all(error);
            has_freed |= effect.freed_bytes > 0 && self.take_effect(effect);
        }
        has_freed
    }

    /// Notes that a record wants an unknown partition.
    pub fn want(&mut self, topic: &str, partition: usize) {
        if let Some(topic) = self.topics.get_mut(topic) {
            topic.wanted = topic.wanted.max(Some(partition));
        }
    }

    /// Returns the last unknown partition that records wanted since the last call.
    pub fn take_wanted(&mut self, topic: &str) -> Option<usize> {
        self.topics.get_mut(topic)?.wanted.take()
    }

    /// Returns whether memory is short, and will be free again once chunks are stored.
    pub fn is_short(&self) -> bool {
        self.buffered_bytes * 2 > self.config.buffer_bytes
    }

    pub fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Notes that servers refuse to describe a topic. Returns whether memory is free again.
    pub fn refuse(&mut self, topic: &str, error: &ClientError, retry_at: Instant) -> bool {
        let places = self.topics.get(topic).map(|topic| topic.places.clone());
        let places = places.unwrap_or_default();
        if !error.is_unknown_stream() {
            return !error.is_retriable() && self.give_up_all(&places, error);
        }
        for place in places {
            self.partitions[place].unknown(error, retry_at);
        }
        false
    }

    /// Queues a record; returns whether the sender has something to do for it at once.
    pub fn push(
        &mut self,
        record: &ProducerRecord<'_>,
        time: Timestamp,
        now: Instant,
    ) -> Result<(Delivery, bool), NotTaken> {
        if let Some(error) = &self.closed {
            return Err(NotTaken::Failed(error.clone()));
        }
        if let Some(transaction) = &self.transaction {
            transaction.check().map_err(NotTaken::Failed)?;
        }
        let record_bytes = size_of(record);
        if record_bytes > self.config.buffer_bytes {
            return Err(NotTaken::Failed(ClientError::RecordTooLarge {
                bytes: record_bytes,
                bytes_max: self.config.buffer_bytes,
            }));
        }
        if self.buffered_bytes + record_bytes > self.config.buffer_bytes {
            return Err(NotTaken::NoRoom);
        }
        let place = self.place(record, record_bytes)?;
        let batch_bytes = self.config.batch_bytes;
        let is_full = |open: &Open| open.builder.len() + record_bytes > batch_bytes;
        let mut wakes = false;
        if self.partitions[place].open.as_ref().is_some_and(is_full) {
            self.seal(place);
            wakes = true;
        }
        if self.partitions[place].open.is_none() {
            let builder = self.builders.pop();
            let builder = builder.unwrap_or_else(|| {
                let mut builder = ChunkBuilder::new(self.config.compression);
                builder.set_transactional(self.transaction.is_some());
                builder
            });
            self.buffered_bytes += builder.len();
            self.partitions[place].open = Some(Open {
                builder,
                outcome: Arc::new(Outcome::default()),
                opened_at: now,
                is_due: false,
            });
            wakes = true;
        }
        let partition = &mut self.partitions[place];
        let Some(open) = &mut partition.open else {
            return Err(NotTaken::Failed(ClientError::Closed));
        };
        let before = open.builder.len();
        let pushed = open
            .builder
            .push(time, record.key, record.value, record.headers);
        pushed.map_err(|error| NotTaken::Failed(error.into()))?;
        self.buffered_bytes += open.builder.len() - before;
        if let Some(transaction) = &mut self.transaction {
            transaction.has_records = true;
        }
        if open.builder.len() >= batch_bytes && !open.is_due {
            open.is_due = true;
            wakes = true;
        }
        let delivery = Delivery {
            outcome: Arc::clone(&open.outcome),
            partition: partition.index,
            index: open.builder.record_count() - 1,
        };
        Ok((delivery, wakes))
    }

    /// Chooses the partition of a record.
    fn place(&mut self, record: &ProducerRecord<'_>, bytes: usize) -> Result<usize, NotTaken> {
        let Some(topic) = self.topics.get_mut(record.topic) else {
            return Err(NotTaken::UnknownTopic);
        };
        let count = topic.count;
        let index = match (record.partition, record.key) {
            (Some(partition), _) => usize::try_from(partition).unwrap_or(usize::MAX),
            (None, Some(key)) => partition_of_key(key, count),
            (None, None) => topic.turn.next(bytes, self.config.batch_bytes, count),
        };
        let place = topic.places[..count].get(index).copied();
        place.ok_or(NotTaken::UnknownPartition(index))
    }

    fn seal(&mut self, place: usize) -> bool {
        let Some((builder, effect)) = self.partitions[place].seal() else {
            return false;
        };
        if self.builders.len() < SPARE_BUILDERS_MAX {
            self.builders.push(builder);
        }
        self.take_effect(effect)
    }

    /// Makes all queued records due at once; returns their outcomes.
    pub fn flush(&mut self) -> Vec<Arc<Outcome>> {
        for partition in &mut self.partitions {
            if let Some(open) = &mut partition.open {
                open.is_due = true;
            }
        }
        let all = self.partitions.iter().flat_map(Partition::outcomes);
        all.cloned().collect()
    }

    /// Applies an effect; returns whether memory is free again.
    pub fn take_effect(&mut self, effect: Effect) -> bool {
        self.buffered_bytes -= effect.freed_bytes;
        let is_failed = match (&mut self.transaction, &effect.error) {
            (Some(transaction), Some(error)) if transaction.failed.is_none() => {
                transaction.failed = Some(error.clone());
                true
            }
            _ => false,
        };
        if self.error.is_none() {
            self.error = effect.error.clone();
        }
        if let (true, Some(error)) = (is_failed, effect.error) {
            // A transaction is all or nothing: without this chunk, the rest of it need not be sent.
            self.give_up(&ClientError::Behind(Arc::new(error)));
        }
        effect.freed_bytes > 0 || is_failed
    }

    /// Gives up all undecided chunks.
    fn give_up(&mut self, error: &ClientError) {
        for place in 0..self.partitions.len() {
            let effect = self.partitions[place].fail_all(error);
            self.buffered_bytes -= effect.freed_bytes;
        }
    }

    /// Ends the transaction; the next one has another identity.
    pub fn next_transaction(&mut self, identity: Identity) {
        self.give_up(&ClientError::Closed);
        for partition in &mut self.partitions {
            partition.end_transaction(identity.generation);
        }
        self.error = None;
        if let Some(transaction) = &mut self.transaction {
            transaction.identity = identity;
            transaction.is_open = false;
            transaction.has_records = false;
            transaction.failed = None;
            transaction.ending = None;
        }
    }

    /// Gives up all undecided chunks, and accepts no more records into the transaction.
    pub fn cancel_transaction(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_open = false;
        }
        self.give_up(&ClientError::Closed);
    }

    /// Returns whether some requests have no answer yet.
    pub fn is_in_flight(&self) -> bool {
        self.partitions.iter().any(Partition::is_in_flight)
    }

    /// Gives up all chunks, and accepts no more records.
    pub fn close(&mut self, error: ClientError) {
        self.give_up(&error);
        self.closed = Some(error);
    }

    /// Returns the next actions. `leader` returns the server of a partition, `has_room` whether
    /// that server can take one more request.
    pub fn plan(
        &mut self,
        now: Instant,
        identity: Option<Identity>,
        leader: impl Fn(&Partition) -> Option<i32>,
        has_room: impl Fn(i32) -> bool,
    ) -> Plan {
        let mut plan = Plan::default();
        let mut requests: HashMap<i32, Request> = HashMap::new();
        let count = self.partitions.len();
        // While memory is short, waiting for more records would be in vain.
        let linger = if self.is_short() {
            Duration::ZERO
        } else {
            self.config.linger
        };
        let timeout = self.config.delivery_timeout;
        for place in (self.first..count).chain(0..self.first) {
            let effect = self.partitions[place].expire(now, self.timeouts);
            plan.has_freed |= self.take_effect(effect);
            if self.partitions[place].wants_seal(now, linger) {
                plan.has_freed |= self.seal(place);
            }
            let partition = &mut self.partitions[place];
            let mut next = partition.next(now, linger, timeout);
            if let (Next::Identify(generation), Some(identity)) = (&next, identity)
                && identity.generation >= *generation
            {
                partition.identify(identity);
                next = Next::Send;
            }
            let expires_at = partition.expires_at(self.timeouts);
            plan.wake_at = plan.wake_at.into_iter().chain(expires_at).min();
            match next {
                Next::Nothing => {}
                Next::At(at) => plan.wake_at = plan.wake_at.into_iter().chain([at]).min(),
                Next::Identify(generation) => {
                    plan.identify = plan.identify.max(Some(generation));
                }
                Next::Send => {
                    let Some(server) = leader(partition) else {
                        plan.leaderless.push(place);
                        continue;
                    };
                    if !has_room(server) {
                        continue;
                    }
                    let adds_partitions = self
                        .transaction
                        .as_ref()
                        .is_some_and(|it| it.adds_partitions);
                    if adds_partitions && partition.has_to_join() {
                        plan.join.push(place);
                        continue;
                    }
                    let request = requests.entry(server).or_default();
                    let bytes = partition.next_bytes();
                    if request.bytes > 0 && request.bytes + bytes > REQUEST_BYTES_MAX {
                        continue;
                    }
                    if let Some((number, chunk)) = partition.send() {
                        request.bytes += bytes;
                        request.chunks.push((place, number, chunk));
                    }
                }
            }
        }
        self.first = (self.first + 1) % count.max(1);
        plan.requests = requests
            .into_iter()
            .filter(|(_, request)| !request.chunks.is_empty())
            .map(|(server, request)| (server, request.chunks))
            .collect();
        plan
    }
}

impl Transaction {
    /// Fails unless it accepts records.
    pub fn check(&self) -> Result<(), ClientError> {
        match &self.failed {
            Some(error) => Err(ClientError::AbortNeeded(Arc::new(error.clone()))),
            None if self.is_open => Ok(()),
            None => Err(ClientError::NoTransaction),
        }
    }
}

#[derive(Default)]
struct Request {
    bytes: usize,
    chunks: Chunks,
}

/// Returns the largest size of a record, in bytes.
fn size_of(record: &ProducerRecord<'_>) -> usize {
    let headers = record.headers.iter().map(|header| {
        HEADER_FIELDS_BYTES + header.name.len() + header.value.map_or(0, <[u8]>::len)
    });
    RECORD_FIELDS_BYTES
        + record.key.map_or(0, <[u8]>::len)
        + record.value.map_or(0, <[u8]>::len)
        + headers.sum::<usize>()
}
