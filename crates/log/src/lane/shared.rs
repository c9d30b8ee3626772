//! State that the lanes of a stream share, and state that the lanes of a streamlet share.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use event_listener::Event;
use millstream_base::StreamId;
use millstream_record::SECONDARY_KEYS_MAX;
use parking_lot::RwLock;
use uuid::Uuid;

use crate::hold::StreamHolds;
use crate::keys::secondary::SECONDARY_KEY_BYTES_MAX;
use crate::settings::config::{Durability, StreamConfig};
use crate::settings::limits::LiveLimits;

/// State that the lanes of a stream share.
#[derive(Debug)]
pub struct StreamShared {
    pub id: StreamId,
    /// As [`StreamInfo::uuid`](crate::StreamInfo::uuid).
    pub uuid: Uuid,
    pub name: String,
    pub config: RwLock<StreamConfig>,
    /// A copy of the durability in `config`, which never changes: every append reads it.
    pub durability: Durability,
    /// The bounds of its chunks and groups.
    pub limits: LiveLimits,
    /// Notified when the durable offset of any lane moves.
    pub durable_moved: Event,
    /// Notified when lanes are added.
    pub grown: Event,
    pub removed: AtomicBool,
    /// How many partitions it has. Stored when it grows; loaded by lookups of keys.
    pub partitions: AtomicU32,
    pub keyed: KeyedState,
    /// Its holds. Each is in force in its lanes as long as it is here.
    pub holds: StreamHolds,
    /// Whether shared groups read it, whose positions name its groups. Set before they look at the groups; loaded by
    /// compaction.
    pub has_shared_groups: AtomicBool,
}

/// The state of a stream's key indexes.
#[derive(Debug, Default)]
pub struct KeyedState {
    /// Whether lanes may have key indexes. Stored before one is used, taken before they are emptied.
    has_indexes: AtomicBool,
    /// Whether a warning has named records in partitions that do not own their keys.
    has_warned: AtomicBool,
    /// Whether a warning has named records with more secondary keys than indexes have.
    has_warned_of_left_out: AtomicBool,
}

impl KeyedState {
    /// Takes note that a lane's key index is about to be used.
    pub fn note_index(&self) {
        if !self.has_indexes.load(Ordering::Relaxed) {
            self.has_indexes.store(true, Ordering::Relaxed);
        }
    }

    /// Warns of records in a partition that does not own their keys, once for the stream: a key index has found them.
    pub fn note_misplaced(&self, stream: &str, partition: u32, records: u64) {
        if records > 0 && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                stream,
                partition,
                records,
                "another partition owns the keys of these records, so lookups by key do not find them; let producers that use \
                 librdkafka set partitioner=murmur2_random, and write the records again"
            );
        }
    }

    /// Warns of records with secondary keys that an index leaves out, once for the stream: the index has found them.
    pub fn note_left_out(&self, stream: &str, partition: u32, records: u64) {
        if records > 0 && !self.has_warned_of_left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                stream,
                partition,
                records,
                "these records have more than {SECONDARY_KEYS_MAX} secondary keys (headers k.<name>), or one of more than \
                 {SECONDARY_KEY_BYTES_MAX} bytes; lookups by those do not find them, so write the records again with fewer"
            );
        }
    }

    /// Whether key indexes may have been used since the last call.
    pub fn take_indexes(&self) -> bool {
        self.has_indexes.load(Ordering::Relaxed) && self.has_indexes.swap(false, Ordering::Relaxed)
    }
}

impl StreamShared {
    /// How many partitions it has.
    pub fn partition_count(&self) -> u32 {
        self.partitions.load(Ordering::Acquire)
    }
}

/// Shared by the lanes of one streamlet.
#[derive(Debug)]
pub struct StreamletShared {
    pub next_group: AtomicU64,
}
