//! All that waits to be sent. No I/O.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Timestamp;
use millstream_record::ChunkBuilder;
use tokio::time::Instant;

use super::outcome::{Delivery, Outcome};
use super::partition::{Effect, Identity, Next, Open, Partition, Patience};
use super::{ProducerConfig, ProducerRecord};
use crate::error::ClientError;
use crate::partitioner::{Turn, partition_of_key};

/// Builders that are kept for later; each has buffers of its own.
const BUILDERS_KEPT_MAX: usize = 64;

/// One request has no more bytes of chunks, unless a single one does.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// What the fields of a record take at most, beside key, value and headers; and those of a header.
const RECORD_FIELDS_BYTES: usize = 40;
const HEADER_FIELDS_BYTES: usize = 10;

pub(super) struct State {
    config: ProducerConfig,
    patience: Patience,
    topics: HashMap<Arc<str>, TopicPartitions>,
    pub partitions: Vec<Partition>,
    /// Where the next look begins, so that all partitions have their turn.
    first: usize,
    builders: Vec<ChunkBuilder>,
    /// Memory of all chunks that are not decided.
    buffered_bytes: usize,
    /// The first error since it was last taken.
    pub error: Option<ClientError>,
    /// Why nothing more is taken in.
    pub closed: Option<ClientError>,
}

struct TopicPartitions {
    /// Where its partitions are among all.
    places: Vec<usize>,
    turn: Turn,
}

/// Why a record was not taken.
pub(super) enum NotTaken {
    /// Nothing is known of its topic.
    UnknownTopic,
    /// There is no memory for it now.
    NoRoom,
    Failed(ClientError),
}

/// What goes in one request: the place of each partition, and number and bytes of its chunk.
pub(super) type Chunks = Vec<(usize, u64, Bytes)>;

/// What is to be done now.
#[derive(Default)]
pub(super) struct Plan {
    /// Requests by server.
    pub requests: Vec<(i32, Chunks)>,
    /// When to look again.
    pub wake_at: Option<Instant>,
    /// The generation of an identity that is lacking.
    pub identify: Option<u64>,
    /// Places of partitions whose leader is not known.
    pub leaderless: Vec<usize>,
    /// Memory is free again.
    pub has_freed: bool,
}

impl State {
    /// A stream that servers do not know is given up after `unknown_timeout`.
    pub fn new(config: ProducerConfig, unknown_timeout: Duration) -> State {
        State {
            patience: Patience {
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
        }
    }

    /// Learns of a topic, or of its new partitions.
    pub fn learn(&mut self, name: &Arc<str>, partitions: usize) {
        let topic = self.topics.entry(Arc::clone(name));
        let topic = topic.or_insert_with(|| TopicPartitions {
            places: Vec::new(),
            turn: Turn::default(),
        });
        for index in topic.places.len()..partitions {
            topic.places.push(self.partitions.len());
            let index = i32::try_from(index).unwrap_or(i32::MAX);
            self.partitions
                .push(Partition::new(Arc::clone(name), index));
        }
    }

    pub fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Takes notice that servers refuse to tell of a topic. Tells whether memory is free again.
    pub fn refuse(&mut self, topic: &str, error: &ClientError, retry_at: Instant) -> bool {
        let places = self.topics.get(topic).map(|topic| topic.places.clone());
        let mut has_freed = false;
        for place in places.unwrap_or_default() {
            let partition = &mut self.partitions[place];
            if error.is_unknown_stream() {
                partition.unknown(error, retry_at);
            } else if !error.is_retriable() {
                let effect = partition.fail_all(error);
                has_freed |= effect.freed_bytes > 0 && self.take_effect(effect);
            }
        }
        has_freed
    }

    /// Takes a record; tells whether the sender has something to do for it at once.
    pub fn push(
        &mut self,
        record: &ProducerRecord<'_>,
        time: Timestamp,
        now: Instant,
    ) -> Result<(Delivery, bool), NotTaken> {
        if let Some(error) = &self.closed {
            return Err(NotTaken::Failed(error.clone()));
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
            let builder = builder.unwrap_or_else(|| ChunkBuilder::new(self.config.compression));
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

    /// Which partition takes a record.
    fn place(&mut self, record: &ProducerRecord<'_>, bytes: usize) -> Result<usize, NotTaken> {
        let Some(topic) = self.topics.get_mut(record.topic) else {
            return Err(NotTaken::UnknownTopic);
        };
        let count = topic.places.len();
        let index = match (record.partition, record.key) {
            (Some(partition), _) => usize::try_from(partition).unwrap_or(usize::MAX),
            (None, Some(key)) => partition_of_key(key, count),
            (None, None) => topic.turn.next(bytes, self.config.batch_bytes, count),
        };
        topic.places.get(index).copied().ok_or_else(|| {
            NotTaken::Failed(ClientError::NoLeader {
                what: format!("partition {index} of {}, which has {count},", record.topic),
            })
        })
    }

    fn seal(&mut self, place: usize) -> bool {
        let Some((builder, effect)) = self.partitions[place].seal() else {
            return false;
        };
        if self.builders.len() < BUILDERS_KEPT_MAX {
            self.builders.push(builder);
        }
        self.take_effect(effect)
    }

    /// Does not wait for more records before it sends what is there; returns what becomes of that.
    pub fn flush(&mut self) -> Vec<Arc<Outcome>> {
        for partition in &mut self.partitions {
            if let Some(open) = &mut partition.open {
                open.is_due = true;
            }
        }
        let all = self.partitions.iter().flat_map(Partition::outcomes);
        all.cloned().collect()
    }

    /// Tells whether memory is free again.
    pub fn take_effect(&mut self, effect: Effect) -> bool {
        self.buffered_bytes -= effect.freed_bytes;
        if self.error.is_none() {
            self.error = effect.error;
        }
        effect.freed_bytes > 0
    }

    /// Gives up everything, and takes nothing more.
    pub fn close(&mut self, error: ClientError) {
        for place in 0..self.partitions.len() {
            let effect = self.partitions[place].fail_all(&error);
            if effect.freed_bytes > 0 {
                self.take_effect(effect);
            }
        }
        self.closed = Some(error);
    }

    /// What is to be done now. `leader` tells which server has a partition, `has_room` whether that can
    /// take one more request.
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
        // A wait for memory is no time to wait for more records.
        let is_short = self.buffered_bytes * 2 > self.config.buffer_bytes;
        let linger = if is_short {
            Duration::ZERO
        } else {
            self.config.linger
        };
        let timeout = self.config.delivery_timeout;
        for place in (self.first..count).chain(0..self.first) {
            let effect = self.partitions[place].expire(now, self.patience);
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
            let expires_at = partition.expires_at(self.patience);
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

#[derive(Default)]
struct Request {
    bytes: usize,
    chunks: Chunks,
}

/// What a record takes at most, in bytes.
fn size_of(record: &ProducerRecord<'_>) -> usize {
    let headers = record.headers.iter().map(|header| {
        HEADER_FIELDS_BYTES + header.name.len() + header.value.map_or(0, <[u8]>::len)
    });
    RECORD_FIELDS_BYTES
        + record.key.map_or(0, <[u8]>::len)
        + record.value.map_or(0, <[u8]>::len)
        + headers.sum::<usize>()
}
