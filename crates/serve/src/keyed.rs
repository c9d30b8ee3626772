//! Records of keyed streams, by their keys: the interface to a node's content.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use millstream_base::{KeyRange, Offset, Timestamp};

/// The threads for blocking work that look-ups of keys may use at once.
pub const KEY_READERS_MAX: usize = 6;

/// A look-up under way.
pub type LookUp<T> = Pin<Box<dyn Future<Output = Result<T, LookUpError>> + Send>>;

/// The keyed streams of a node.
pub trait KeyedStreams: Send + Sync + 'static {
    /// Looks up the newest version of a key; `None` if the key is absent.
    fn get(&self, stream: &str, key: Vec<u8>) -> LookUp<Option<KeyedValue>>;

    /// Looks up the keys of a range over all partitions, in the order of their bytes: at most `limit`, and fewer if their
    /// values are large.
    fn scan(&self, stream: &str, range: KeyRange, limit: usize) -> LookUp<KeyPage>;

    /// Returns how many records look-ups have passed over, since another partition owns their keys.
    fn misplaced(&self, stream: &str) -> u64;
}

/// The newest version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedValue {
    /// The partition of the key.
    pub partition: u32,
    /// The version: the offset of the record in its partition.
    pub version: Offset,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The value.
    pub value: Bytes,
}

/// Some keys of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys in the order of their bytes, each with its newest version.
    pub entries: Vec<(Vec<u8>, KeyedValue)>,
    /// The first key of the next page; `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// The reason why a look-up failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LookUpError {
    /// There is no stream of this name.
    #[error("unknown stream {0:?}: /api/v1/streams lists those that exist")]
    UnknownStream(String),
    /// The stream is not keyed. The text says so, and what to do.
    #[error("{0}")]
    NotKeyed(String),
    /// There is not enough memory for reads now. The text says so.
    #[error("{0}; try again later")]
    Busy(String),
    /// The records cannot be read. The text says why.
    #[error("{0}")]
    Failed(String),
}
