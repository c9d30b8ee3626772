//! State that the lanes of a stream share, and those of a streamlet.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use event_listener::Event;
use millstream_base::StreamId;
use parking_lot::RwLock;
use uuid::Uuid;

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
    /// As in `config`, where it never changes: every append asks.
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
