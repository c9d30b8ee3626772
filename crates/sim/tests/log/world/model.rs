//! The model: the expected content of a log that never crashed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millstream_base::{Cursor, GroupId, StreamId};
use millstream_log::StreamConfig;
use millstream_record::{EndMarker, TransactionEnd};

/// A chunk as the model keeps it.
#[derive(Debug, Clone)]
pub struct ModelChunk {
    pub base: u64,
    pub count: u64,
    /// The bytes as they were sent, with base offset 0.
    pub bytes: Arc<Vec<u8>>,
    pub timestamp: i64,
    pub producer: Option<(i64, i16, i32)>,
    pub is_transactional: bool,
    /// Of a chunk that ends a transaction; it counts as one without a producer otherwise.
    pub marker: Option<EndMarker>,
}

impl ModelChunk {
    pub fn end(&self) -> u64 {
        self.base + self.count
    }
}

#[derive(Debug, Clone, Default)]
pub struct ModelLane {
    /// All that was appended, also what retention has removed since.
    pub chunks: Vec<ModelChunk>,
    /// What was acknowledged or seen ends here.
    pub acknowledged: u64,
    /// What producers of a `written` stream were answered, or consumers have seen of it: a kill of the
    /// process leaves it, a crash of the machine need not.
    pub written: u64,
    /// The first offset that is stored …
    pub earliest: u64,
    /// … and below which nothing comes back in a crash.
    pub removed: u64,
    /// A start has forgotten what is not stored.
    pub restarted: bool,
    /// Something was deleted from its beginning, perhaps within a group.
    pub is_cut: bool,
    /// A deletion up to here failed: it may hold from the next start on.
    pub maybe_cut: u64,
}

/// What the rules of duplicate detection say of a chunk.
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

    /// What is right for a chunk of `producer` with `count` records. After a start, the lane may
    /// know nothing of chunks that retention had removed: then `from` is the first offset it knows.
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

/// What the lane's chunks say of transactions.
#[derive(Debug, Default)]
pub struct Transactions {
    /// Producer, and the first offset of what has not ended.
    pub open: BTreeMap<i64, u64>,
    /// Producer, first offset, offset of the marker.
    pub aborted: Vec<(i64, u64, u64)>,
}

impl ModelLane {
    /// Of chunks before `end`.
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

    /// Epoch and next sequence of a producer of transactions.
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
    /// Shapes that a failed growth may have left: they count from the next start on.
    pub maybe_shapes: Vec<(u32, u32)>,
    /// Changes of the settings that failed: one of them may hold from the next start on.
    pub maybe_altered: Vec<StreamConfig>,
    /// A deletion failed: the stream is gone for now, and may be back after the next start.
    pub maybe_deleted: bool,
    /// A deletion failed on a full disk, and may have removed groups.
    pub maybe_emptied: bool,
    pub consumed: Consumed,
}

/// What the application of a stream has done.
#[derive(Debug, Clone, Default)]
pub struct Consumed {
    /// Committed chunks: streamlet, lane, base offset.
    pub done: BTreeSet<(u32, u32, u64)>,
    /// Chunks whose commit failed, which may have had effect.
    pub maybe: BTreeSet<(u32, u32, u64)>,
    /// Who has which group, and where it stands.
    pub given: BTreeMap<(u32, GroupId), (String, Cursor)>,
}

#[derive(Debug, Clone)]
pub enum ModelObject {
    Stored(Arc<Vec<u8>>),
    /// A put or a deletion failed: it is there with one of these contents, or not at all.
    Maybe(Vec<Arc<Vec<u8>>>),
    /// A deletion failed on a full disk: as before, or with a part of the content only.
    MaybeEmptied(Vec<Arc<Vec<u8>>>),
}

#[derive(Debug, Clone, Default)]
pub struct Model {
    pub streams: BTreeMap<String, ModelStream>,
    /// Creations that failed: the stream may exist after the next start.
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
