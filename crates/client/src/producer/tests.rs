//! Tests a partition's chunks against a broker that refuses, fails to answer and disconnects, at
//! random.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor};
use millstream_wire::ResponseError;
use tokio::time::Instant;

use super::outcome::Outcome;
use super::partition::{Identity, Next, Open, Partition, Timeouts};
use crate::error::ClientError;

const LINGER: Duration = Duration::from_millis(1);
const BACKOFF: Duration = Duration::from_millis(50);

/// The number of a producer's chunks that the broker remembers.
const REMEMBERED: usize = 5;

type Answer = Result<Option<Offset>, ClientError>;

/// A broker's handling of numbered chunks.
#[derive(Default)]
struct Broker {
    /// The values, in the order in which they were stored.
    stored: Vec<u32>,
    /// The last chunks of each producer: sequence, records and offset.
    producers: HashMap<i64, VecDeque<(Sequence, u32, u64)>>,
}

impl Broker {
    fn append(&mut self, chunk: &[u8], is_refused: impl Fn(u32) -> bool) -> Answer {
        let chunk = Chunk::parse(chunk).expect("the client makes whole chunks");
        let header = *chunk.header();
        let mut decompressor = Decompressor::default();
        let records = chunk
            .records(&mut decompressor)
            .expect("it is not compressed");
        let value = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        let values = records.map(|record| value(record.expect("whole").value.expect("a value")));
        let values: Vec<u32> = values.collect();
        if values.iter().any(|value| is_refused(*value)) {
            return Err(refused(ResponseError::MessageTooLarge));
        }
        let known = self.producers.entry(header.producer_id.0).or_default();
        if let Some((.., offset)) = known
            .iter()
            .find(|(first, ..)| *first == header.base_sequence)
        {
            return Ok(Some(Offset(*offset)));
        }
        // As in Kafka's brokers: a broker accepts any number of an unknown producer.
        if let Some((last, count, _)) = known.back()
            && last.plus(*count) != header.base_sequence
        {
            return Err(refused(ResponseError::OutOfOrderSequenceNumber));
        }
        let offset = self.stored.len() as u64;
        known.push_back((header.base_sequence, header.record_count, offset));
        if known.len() > REMEMBERED {
            known.pop_front();
        }
        self.stored.extend(values);
        Ok(Some(Offset(offset)))
    }
}

fn refused(error: ResponseError) -> ClientError {
    ClientError::of_code(error.code(), None, "a test").expect("it is an error")
}

/// A partition, a connection and a broker.
struct World {
    random: fastrand::Rng,
    now: Instant,
    timeout: Duration,
    partition: Partition,
    generations: u64,
    next_value: u32,
    /// The outcome of each chunk, with its first value and their count.
    sent: Vec<(Arc<Outcome>, u32, u32)>,
    /// The requests to the broker, and the answers on the way back.
    requests: VecDeque<(u64, Bytes)>,
    answers: VecDeque<(u64, Answer)>,
    broker: Broker,
}

/// The broker refuses one chunk in fifty, at every attempt.
fn is_poison(value: u32) -> bool {
    value % 97 == 13
}

impl World {
    fn new(seed: u64, timeout: Duration) -> World {
        World {
            random: fastrand::Rng::with_seed(seed),
            now: Instant::now(),
            timeout,
            partition: Partition::new("t".into(), 0, false),
            generations: 0,
            next_value: 0,
            sent: Vec::new(),
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            broker: Broker::default(),
        }
    }

    fn push(&mut self) {
        let mut builder = ChunkBuilder::new(Compression::None);
        let count = self.random.u32(1..4);
        for value in self.next_value..self.next_value + count {
            let pushed = builder.push(Timestamp(0), None, Some(&value.to_be_bytes()), &[]);
            pushed.expect("it fits");
        }
        let outcome = Arc::new(Outcome::default());
        self.sent
            .push((Arc::clone(&outcome), self.next_value, count));
        self.next_value += count;
        self.partition.open = Some(Open {
            builder,
            outcome,
            opened_at: self.now,
            is_due: true,
        });
        self.partition.seal();
    }

    fn send(&mut self) {
        let timeout = self.timeout;
        let timeouts = Timeouts {
            delivery: timeout,
            unknown: timeout,
        };
        self.partition.expire(self.now, timeouts);
        let mut next = self.partition.next(self.now, LINGER, timeout);
        if let Next::Identify(generation) = next {
            self.generations = self.generations.max(generation);
            self.partition.identify(Identity {
                id: ProducerId(self.generations as i64),
                epoch: ProducerEpoch(0),
                generation: self.generations,
            });
            next = Next::Send;
        }
        if next == Next::Send {
            let sent = self.partition.send().expect("there is a chunk");
            self.requests.push_back(sent);
        }
    }

    fn work(&mut self, fails: bool) {
        let Some((number, chunk)) = self.requests.pop_front() else {
            return;
        };
        // The broker has appended the chunk or not when it finds that its disk is full, or that it has to close.
        let fault = match self.random.u8(..) {
            0..10 if fails => Some(ResponseError::NotLeaderOrFollower),
            10..20 if fails => Some(ResponseError::KafkaStorageError),
            _ => None,
        };
        let answer = match fault {
            None => self.broker.append(&chunk, is_poison),
            Some(fault) => {
                if self.random.bool() {
                    let _ = self.broker.append(&chunk, is_poison);
                }
                Err(refused(fault))
            }
        };
        self.answers.push_back((number, answer));
    }

    fn answer(&mut self) {
        let Some((number, answer)) = self.answers.pop_front() else {
            return;
        };
        match answer {
            Ok(offset) => self.partition.stored(number, offset),
            Err(error) => self.partition.failed(number, error, self.now + BACKOFF),
        };
    }

    /// Cuts the connection: the broker has executed some requests, but the answers are lost.
    fn cut(&mut self) {
        for _ in 0..self.random.usize(..=self.requests.len()) {
            self.work(true);
        }
        let lost = self.answers.drain(..).map(|(number, _)| number);
        let lost: Vec<u64> = lost
            .chain(self.requests.drain(..).map(|(number, _)| number))
            .collect();
        for number in lost {
            let error = ClientError::Disconnected {
                address: "a test".to_owned(),
            };
            self.partition.failed(number, error, self.now + BACKOFF);
        }
    }

    fn step(&mut self) {
        match self.random.u8(..100) {
            0..25 => self.push(),
            25..55 => self.send(),
            55..75 => self.work(true),
            75..90 => self.answer(),
            90..93 => self.cut(),
            _ => self.now += Duration::from_millis(self.random.u64(..40)),
        }
    }

    /// Runs without faults until every chunk is decided.
    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.partition.outcomes().next().is_none() {
                return;
            }
            self.send();
            self.work(false);
            self.answer();
            self.now += Duration::from_millis(1);
        }
        panic!("chunks are left");
    }

    /// Checks all outcomes; returns the number of chunks that are reported as stored.
    async fn check(&self) -> usize {
        let stored = &self.broker.stored;
        assert!(
            stored.windows(2).all(|pair| pair[0] < pair[1]),
            "something is out of order or there twice: {stored:?}"
        );
        let mut count = 0;
        for (outcome, first, records) in &self.sent {
            let values: Vec<u32> = (*first..first + records).collect();
            match outcome.wait().await {
                Ok(Some(Offset(offset))) => {
                    let at = offset as usize;
                    assert_eq!(stored[at..at + values.len()], values);
                    count += 1;
                }
                Ok(None) => panic!("the broker always returns the offset"),
                Err(ClientError::Refused { .. }) => {
                    assert!(values.iter().any(|value| is_poison(*value)), "{values:?}");
                }
                Err(ClientError::Timeout { .. } | ClientError::Behind(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        count
    }
}

#[tokio::test]
async fn chunks_are_stored_once_and_in_order_despite_faults() {
    for seed in 0..300 {
        let mut world = World::new(seed, Duration::from_secs(1_000_000));
        (0..2000).for_each(|_| world.step());
        world.finish();
        let acknowledged = world.check().await;
        assert!(acknowledged > 300, "seed {seed}: {acknowledged}");
    }
}

#[tokio::test]
async fn expired_records_cause_no_reordering() {
    for seed in 0..300 {
        let mut world = World::new(seed, Duration::from_millis(300));
        (0..2000).for_each(|_| world.step());
        world.finish();
        world.check().await;
    }
}
