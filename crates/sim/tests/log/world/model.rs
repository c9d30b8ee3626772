//! The model: the expected content of a log that never crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_base::{Cursor, GroupId, StreamId};
use millstream_log::StreamConfig;
use millstream_record::{EndMarker, TransactionEnd};

/// A chunk of the model.
#[derive(Debug, Clone)]
pub struct ModelChunk {
    pub base: u64,
    pub count: u64,
    /// The bytes as sent, with base offset 0.
    pub bytes: Arc<Vec<u8>>,
    pub timestamp: i64,
    pub producer: Option<(i64, i16, i32)>,
    pub is_transactional: bool,
    /// The marker, in a chunk that ends a transaction. For duplicate detection the chunk has no producer.
    pub marker: Option<EndMarker>,
    /// The leader epoch of its lane when it was appended.
    pub leader_epoch: i32,
}

impl ModelChunk {
    pub fn end(&self) -> u64 {
        self.base + self.count
    }
}

#[derive(Debug, Clone, Default)]
pub struct ModelLane {
    /// All appended chunks, including those that retention has removed.
    pub chunks: Vec<ModelChunk>,
    /// The end of the acknowledged or seen records.
    pub acknowledged: u64,
    /// The end of the records of a `written` stream that were acknowledged or seen. They survive a kill of
    /// the process, but perhaps not a crash of the machine.
    pub written: u64,
    /// The first stored offset.
    pub earliest: u64,
    /// The offset below which no crash brings records back.
    pub removed: u64,
    /// Whether a start has forgotten the chunks that are not stored.
    pub restarted: bool,
    /// Whether records were deleted from its beginning, perhaps within a group.
    pub is_trimmed: bool,
    /// The end of a failed deletion, which may take effect at the next start.
    pub maybe_trimmed: u64,
}

/// The outcome of duplicate detection for a chunk.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    Append,
    Duplicate(u64),
    Fenced,
    OutOfOrder,
}

impl ModelLane {
    pub fn next(&self) -> u64 {
        self.chunks.last().map_or(0, ModelChunk::end)
    }

    pub fn of_producer(&self, id: i64) -> impl DoubleEndedIterator<Item = &ModelChunk> {
        let mine = move |chunk: &&ModelChunk| chunk.producer.is_some_and(|(other, ..)| other == id);
        self.chunks.iter().filter(mine)
    }

    /// The right outcome for a chunk of `producer` with `count` records. `from` is the first offset that the
    /// lane knows: after a start it may have forgotten chunks that retention had removed.
    pub fn verdict(&self, producer: (i64, i16, i32), count: u64, from: u64) -> Verdict {
        let (id, epoch, sequence) = producer;
        let known: Vec<&ModelChunk> = self
            .of_producer(id)
            .filter(|chunk| chunk.base >= from)
            .collect();
        let Some((_, current, last_sequence)) = known.last().and_then(|chunk| chunk.producer)
        else {
            return Verdict::Append;
        };
        if epoch < current {
            return Verdict::Fenced;
        }
        let last_count = known.last().expect("just seen").count;
        let expected = match epoch == current {
            true => last_sequence + last_count as i32,
            false => 0,
        };
        let repeated = known
            .iter()
            .rev()
            .take_while(|chunk| chunk.producer.is_some_and(|(_, other, _)| other == epoch))
            .take(5)
            .find(|chunk| chunk.producer == Some(producer) && chunk.count == count);
        match repeated {
            Some(chunk) => Verdict::Duplicate(chunk.base),
            None if sequence == expected => Verdict::Append,
            None => Verdict::OutOfOrder,
        }
    }
}

/// The transactions of a lane.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Producer, and the first offset of its open transaction.
    pub open: BTreeMap<i64, u64>,
    /// Producer, first offset, offset of the marker.
    pub aborted: Vec<(i64, u64, u64)>,
}

impl ModelLane {
    /// The transactions of the chunks before `end`.
    pub fn transactions(&self, end: u64) -> Transactions {
        let mut transactions = Transactions::default();
        for chunk in self.chunks.iter().take_while(|chunk| chunk.base < end) {
            if let Some((id, ..)) = chunk.producer.filter(|_| chunk.is_transactional) {
                transactions.open.entry(id).or_insert(chunk.base);
            }
            let Some(marker) = chunk.marker else {
                continue;
            };
            let id = marker.producer_id.0;
            if let Some(first) = transactions.open.remove(&id)
                && marker.end == TransactionEnd::Abort
            {
                transactions.aborted.push((id, first, chunk.base));
            }
        }
        transactions
    }

    /// The epoch and next sequence of a transactional producer.
    pub fn next_of(&self, id: i64) -> (i16, i32) {
        let mut next = (0, 0);
        for chunk in &self.chunks {
            if let Some((other, epoch, sequence)) = chunk.producer
                && other == id
            {
                next = (epoch, sequence + chunk.count as i32);
            }
            if let Some(marker) = chunk.marker
                && marker.producer_id.0 == id
                && marker.producer_epoch.0 != next.0
            {
                next = (marker.producer_epoch.0, 0);
            }
        }
        next
    }
}

#[derive(Debug, Clone)]
pub struct ModelStream {
    pub id: StreamId,
    pub uuid: u128,
    pub config: StreamConfig,
    pub lanes: BTreeMap<(u32, u32), ModelLane>,
    /// Shapes after failed growths, any of which may take effect at the next start.
    pub maybe_shapes: Vec<(u32, u32)>,
    /// Settings after failed changes, any of which may take effect at the next start.
    pub maybe_altered: Vec<StreamConfig>,
    /// Whether a deletion failed. The stream is gone for now, and may be back after the next start.
    pub maybe_deleted: bool,
    /// Whether a deletion failed on a full disk, and may have removed groups.
    pub maybe_emptied: bool,
    pub consumed: Consumed,
}

/// The progress of a stream's shared group.
#[derive(Debug, Clone, Default)]
pub struct Consumed {
    /// Committed chunks: streamlet, lane, base offset.
    pub done: BTreeSet<(u32, u32, u64)>,
    /// Chunks whose commit failed, but may have taken effect.
    pub maybe: BTreeSet<(u32, u32, u64)>,
    /// The consumer of each group, and its cursor.
    pub given: BTreeMap<(u32, GroupId), (String, Cursor)>,
}

#[derive(Debug, Clone)]
pub enum ModelObject {
    Stored(Arc<Vec<u8>>),
    /// A put or a deletion failed: the object has one of these contents, or does not exist.
    Maybe(Vec<Arc<Vec<u8>>>),
    /// A deletion failed on a full disk: likewise, or the object has lost a part of its content.
    MaybeEmptied(Vec<Arc<Vec<u8>>>),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub streams: BTreeMap<String, ModelStream>,
    /// Failed creations: the stream may exist after the next start.
    pub maybe_streams: BTreeMap<String, Vec<StreamConfig>>,
    pub objects: BTreeMap<String, ModelObject>,
}

impl ModelStream {
    pub fn new(id: StreamId, uuid: u128, config: StreamConfig) -> ModelStream {
        let mut stream = ModelStream {
            id,
            uuid,
            config,
            lanes: BTreeMap::new(),
            maybe_shapes: Vec::new(),
            maybe_altered: Vec::new(),
            maybe_deleted: false,
            maybe_emptied: false,
            consumed: Consumed::default(),
        };
        stream.add_lanes();
        stream
    }

    pub(super) fn add_lanes(&mut self) {
        for streamlet in 0..self.config.streamlets {
            for lane in 0..self.config.lanes {
                self.lanes.entry((streamlet, lane)).or_default();
            }
        }
    }
}
