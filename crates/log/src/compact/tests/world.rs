//! A lane of a keyed stream, and a model of its records.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use millstream_base::{
    ByteSize, LaneIndex, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp,
};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Producer, TransactionEnd};
use millstream_sim::{SimClock, SimDisk, SimRandom};

use crate::group::Group;
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::log::Log;
use crate::producers::transactions::AbortedTransaction;
use crate::settings::config::{Background, Durability, LogConfig, StreamConfig};
use crate::settings::defaults::{CLEANUP_POLICY, COMPACT};

const STEPS: usize = 400;
const PRODUCERS: i64 = 3;

/// A record of the model. Its key is `None` if it was stored before keys were demanded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRecord {
    pub offset: u64,
    pub timestamp: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    /// The producer, if the record is part of a transaction.
    pub producer: Option<i64>,
    pub is_aborted: bool,
}

impl ModelRecord {
    pub fn bytes(&self) -> u64 {
        let len = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        (len(&self.key) + len(&self.value)) as u64
    }
}

pub struct World {
    pub rng: Rng,
    pub disk: SimDisk,
    pub log: Log,
    pub lane: Arc<LaneState>,
    next: u64,
    pub records: Vec<ModelRecord>,
    /// Offsets and producers of the markers.
    pub markers: Vec<(u64, i64)>,
    pub aborted: Vec<AbortedTransaction>,
    /// The first offset of each producer's open transaction.
    open: BTreeMap<i64, u64>,
    sequences: BTreeMap<i64, i32>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let disk = SimDisk::new(seed);
        let config = LogConfig {
            journal: ByteSize(4 << 20),
            journal_file: ByteSize(1 << 20),
            background: Background::Manual,
            ..LogConfig::with_pool("/data", ByteSize(4 << 20))
        };
        let clock = SimClock::new(Timestamp(0));
        let random = SimRandom::new(seed);
        let log = Log::open_on(
            config,
            Arc::new(disk.clone()),
            Arc::new(clock),
            Arc::new(random),
        );
        let log = log.unwrap();
        let config = StreamConfig {
            durability: Durability::Async,
            segment: ByteSize(64 << 10),
            group_segments: 1,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let id = LaneId {
            stream: stream.id(),
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        World {
            rng: Rng::with_seed(seed),
            lane: log.inner.core.lane(id).unwrap(),
            disk,
            log,
            next: 0,
            records: Vec::new(),
            markers: Vec::new(),
            aborted: Vec::new(),
            open: BTreeMap::new(),
            sequences: BTreeMap::new(),
        }
    }

    fn append(&mut self) {
        let id = self.rng.i64(0..=PRODUCERS);
        let producer = (id > 0).then_some(id);
        let compression = [
            Compression::None,
            Compression::None,
            Compression::Zstd,
            Compression::Lz4,
        ][self.rng.usize(..4)];
        let mut builder = ChunkBuilder::new(compression);
        builder.set_transactional(producer.is_some());
        let count = self.rng.usize(1..15);
        for n in 0..count as u64 {
            let key = match self.rng.u8(..10) {
                0 => None,
                1..=6 => Some(vec![b'k', self.rng.u8(..30)]),
                _ => Some(format!("only {}", self.next + n).into_bytes()),
            };
            let mut value = vec![0; self.rng.usize(..900)];
            self.rng.fill(&mut value);
            let record = ModelRecord {
                offset: self.next + n,
                timestamp: self.rng.i64(..1_000),
                value: (key.is_none() || self.rng.u8(..4) > 0).then_some(value),
                key,
                producer,
                is_aborted: false,
            };
            let (key, value) = (record.key.as_deref(), record.value.as_deref());
            let timestamp = Timestamp(record.timestamp);
            builder.push(timestamp, key, value, &[]).unwrap();
            self.records.push(record);
        }
        let producer = producer.map(|id| {
            self.open.entry(id).or_insert(self.next);
            let sequence = self.sequences.entry(id).or_default();
            let first = Sequence(*sequence);
            *sequence += count as i32;
            Producer {
                id: ProducerId(id),
                epoch: ProducerEpoch(0),
                sequence: first,
            }
        });
        let chunk = builder.finish(producer).unwrap();
        let partition = self.log.stream("s").unwrap().partition(0).unwrap();
        let appended = partition.append(chunk).unwrap();
        assert_eq!(appended.base_offset.0, self.next);
        self.next = appended.next_offset.0;
    }

    fn end_transaction(&mut self, id: i64) {
        let is_aborted = self.rng.bool();
        let marker = EndMarker {
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(0),
            end: match is_aborted {
                true => TransactionEnd::Abort,
                false => TransactionEnd::Commit,
            },
            coordinator_epoch: 0,
        };
        let partition = self.log.stream("s").unwrap().partition(0).unwrap();
        partition.append_marker(&marker).unwrap();
        let offset = self.next;
        self.markers.push((offset, id));
        self.next += 1;
        let Some(first) = self.open.remove(&id).filter(|_| is_aborted) else {
            return;
        };
        for record in &mut self.records {
            record.is_aborted |= record.producer == Some(id) && record.offset >= first;
        }
        self.aborted.push(AbortedTransaction {
            producer: ProducerId(id),
            first_offset: Offset(first),
            last_offset: Offset(offset),
        });
    }

    /// Fills the lane, and returns its closed groups, which have key files.
    pub fn fill(&mut self) -> Vec<Arc<Group>> {
        for _ in 0..STEPS {
            match self.rng.u8(..10) {
                0..=7 => self.append(),
                _ => {
                    let id = self.rng.i64(1..=PRODUCERS);
                    self.end_transaction(id);
                }
            }
            while self.log.step() {}
        }
        // Some transactions stay open.
        if self.rng.u8(..3) > 0 {
            (1..=PRODUCERS).for_each(|id| self.end_transaction(id));
        }
        let keyed = |config: &mut StreamConfig| {
            let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
            config.settings.extend([policy]);
        };
        self.log.alter_stream("s", keyed).unwrap();
        while self.log.step() {}
        if self.rng.u8(..3) == 0 {
            let to = Offset(self.rng.u64(..self.next / 3));
            let partition = self.log.stream("s").unwrap().partition(0).unwrap();
            let deleted = self.log.delete_before(&[(partition, to)]);
            assert_eq!(deleted[0].clone().unwrap(), to);
        }
        self.log.persist();
        while self.log.step() {}
        if self.rng.bool() {
            self.log.evict();
        }
        let groups = self.lane.groups().into_iter();
        groups
            .take_while(|group| group.key_counts().is_some())
            .collect()
    }

    /// The committed records of a range of offsets.
    pub fn committed(&self, from: u64, to: u64) -> impl Iterator<Item = &ModelRecord> {
        let is_in =
            move |record: &&ModelRecord| (from..to).contains(&record.offset) && !record.is_aborted;
        self.records.iter().filter(is_in)
    }

    /// The newest record of each key in a range of offsets, by offset.
    pub fn live(&self, from: u64, to: u64) -> BTreeMap<u64, ModelRecord> {
        let mut newest: BTreeMap<&[u8], &ModelRecord> = BTreeMap::new();
        for record in self.committed(from, to) {
            if let Some(key) = &record.key {
                newest.insert(key, record);
            }
        }
        let by_offset = newest
            .into_values()
            .map(|record| (record.offset, record.clone()));
        by_offset.collect()
    }
}
