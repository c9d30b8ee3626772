//! Records of keyed streams, by their keys: the interface to a node's content.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{ByteSize, KeyRange, Offset, Timestamp, WatchPositions};
pub use millstream_base::{KeyEvent, KeyedVersion, WatchFrom};

/// The threads for blocking work that look-ups of keys may use at once.
pub const KEY_READERS_MAX: usize = 7;

/// The threads for blocking work that writes of keys may use at once. Writes wait for memory on them, so they have their own.
pub const KEY_WRITERS_MAX: usize = 2;

/// The threads for blocking work that watches of keys may use at once.
pub const KEY_WATCHERS_MAX: usize = 2;

/// A request of keys under way.
pub type KeyedFuture<T> = Pin<Box<dyn Future<Output = Result<T, KeyedError>> + Send>>;

/// The keyed streams of a node.
pub trait KeyedStreams: Send + Sync + 'static {
    /// Looks up the newest version of a key; `None` if the key is absent.
    fn get(&self, stream: &str, key: Vec<u8>) -> KeyedFuture<Option<KeyedValue>>;

    /// Looks up the version that a key had at a version: the newest one that is not behind it; `None` if the key was absent there.
    fn get_at(&self, stream: &str, key: Vec<u8>, at: Offset) -> KeyedFuture<Option<KeyedValue>>;

    /// Looks up the version that a key had when a hold was made; `None` if the key was absent.
    fn get_at_hold(
        &self,
        stream: &str,
        key: Vec<u8>,
        hold: String,
    ) -> KeyedFuture<Option<KeyedValue>>;

    /// Looks up the stored versions of a key before a version, newest first: at most `limit`, and fewer if their values
    /// are large or the look-up reads many records.
    fn history(
        &self,
        stream: &str,
        key: Vec<u8>,
        before: Offset,
        limit: usize,
    ) -> KeyedFuture<KeyedHistory>;

    /// Looks up the keys of a range over all partitions, in the order of their bytes: at most `limit`, and fewer if their
    /// values are large.
    fn scan(&self, stream: &str, range: KeyRange, limit: usize) -> KeyedFuture<KeyPage>;

    /// Finds keys by their secondary keys in ranges that follow each other, over all partitions, in the order of the secondary keys,
    /// then of the keys: at most `limit`, and fewer if their values are large or few candidates are right. `from` is where an
    /// earlier page says that the search goes on.
    fn find(
        &self,
        stream: &str,
        index: String,
        ranges: Vec<KeyRange>,
        from: Option<FoundPlace>,
        limit: usize,
    ) -> KeyedFuture<FoundPage>;

    /// Returns the most bytes that a value may have, before it is read from a client.
    ///
    /// # Errors
    /// When no key of this stream can be written.
    fn value_bytes_max(&self, stream: &str) -> Result<usize, KeyedError>;

    /// Changes a key if a condition holds. Ends when that is as durable as the stream's setting requires, or when the
    /// version is for which the condition does not hold.
    fn change(&self, stream: &str, key: Vec<u8>, write: KeyWrite) -> KeyedFuture<KeyChanged>;

    /// Makes all changes, which are of different keys, or none. Ends when they are durable and look-ups see them.
    fn change_together(
        &self,
        stream: &str,
        changes: Vec<(Vec<u8>, KeyWrite)>,
    ) -> KeyedFuture<Vec<KeyChanged>>;

    /// Begins to watch a range of keys. From then on the watch misses no change.
    fn watch(
        &self,
        stream: &str,
        range: KeyRange,
        from: WatchFrom,
    ) -> KeyedFuture<Box<dyn KeyWatch>>;

    /// Returns how many records look-ups have passed over, since another partition owns their keys.
    fn misplaced(&self, stream: &str) -> u64;
}

/// A watch of keys. Where it would miss a change, it says so and makes a snapshot.
pub trait KeyWatch: Send {
    /// Waits for the next event. If the future is dropped, no event is lost.
    ///
    /// # Errors
    /// When the stream was deleted, or its records cannot be read: the watch has ended.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<KeyEvent, KeyedError>> + Send + '_>>;

    /// Returns the position behind the last event; of no use within a snapshot.
    fn positions(&self) -> WatchPositions;

    /// Returns whether a snapshot has begun and not ended.
    fn is_in_snapshot(&self) -> bool;
}

/// The newest version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedValue {
    /// Its version.
    pub version: KeyedVersion,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The value.
    pub value: Bytes,
    /// When the value ends; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
}

/// Secondary keys, each with the name of its index.
pub type SecondaryKeys = Vec<(String, Vec<u8>)>;

/// A change of a key, if a condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyWrite {
    /// The condition.
    pub condition: KeyCondition,
    /// The change.
    pub change: KeyChange,
    /// How long the new value lives; `None` for as long as the stream's setting says. The value that a number is added to keeps its end.
    pub ttl: Option<Duration>,
    /// The secondary keys of the new version, each with its name.
    pub secondary: SecondaryKeys,
}

/// The condition on a key for a change of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyCondition {
    /// Nothing.
    Any,
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The newest version of the key is this one, and has a value.
    Version(Offset),
}

/// A change of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyChange {
    /// Stores a value.
    Put(Bytes),
    /// Removes the value, if there is one.
    Delete,
    /// Adds to the value, which is a whole number as decimal text; an absent key counts as 0.
    Add(i64),
}

/// A key that was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyChanged {
    /// The new version.
    pub version: KeyedVersion,
    /// The new value of a [`KeyChange::Add`].
    pub sum: Option<i64>,
}

/// Some keys of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys in the order of their bytes, each with its newest version.
    pub entries: Vec<(Vec<u8>, KeyedValue)>,
    /// The first key of the next page; `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// A place in the order of secondary keys and keys.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundPlace {
    /// The secondary key.
    pub secondary: Vec<u8>,
    /// The key.
    pub key: Vec<u8>,
}

/// Some keys that were found by their secondary keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPage {
    /// The keys in the order of their places, each with its newest version.
    pub entries: Vec<(FoundPlace, KeyedValue)>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<FoundPlace>,
}

/// Some versions of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedHistory {
    /// The versions, newest first. Those without a value are deletions.
    pub versions: Vec<PastVersion>,
    /// The next page has the versions before this one; `None` at the end.
    pub next: Option<Offset>,
    /// Whether there may have been further versions that are not stored any more. Only known at the end.
    pub lacks_older: bool,
}

/// A version of a key, which may be a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastVersion {
    /// The version.
    pub version: KeyedVersion,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The value; `None` if the version deletes the key.
    pub value: Option<Bytes>,
    /// When the value ends or has ended; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
}

/// The reason why a request of keys failed.
#[derive(Clone, thiserror::Error)]
pub enum KeyedError {
    /// There is no stream of this name.
    #[error("unknown stream {0:?}: /api/v1/streams lists those that exist")]
    UnknownStream(String),
    /// The stream is not keyed. The text names the remedy.
    #[error("{0}")]
    NotKeyed(String),
    /// The secondary keys of a write are wrong. The text says why.
    #[error("{0}")]
    Secondary(String),
    /// The stream was deleted and made again since a position.
    #[error(
        "the stream {0:?} was deleted and made again since this position: begin again without one"
    )]
    MadeAgain(String),
    /// The hold does not exist. The text names it.
    #[error("{0}")]
    UnknownHold(String),
    /// A version is no longer stored. The text says so.
    #[error("{0}")]
    NotKept(String),
    /// There is not enough memory now. The text says so.
    #[error("{0}; try again later")]
    Busy(String),
    /// The value is too large.
    #[error(
        "the record is too large: key and value may have about {} together, by the stream's setting max.message.bytes and the \
         memory of the server", ByteSize(*.bytes_max as u64)
    )]
    TooLarge {
        /// The most bytes.
        bytes_max: usize,
    },
    /// The key is too long.
    #[error("the key has {bytes} bytes, and may have at most {bytes_max}")]
    LongKey {
        /// Its size.
        bytes: usize,
        /// The bound.
        bytes_max: usize,
    },
    /// The condition of a change does not hold.
    #[error("the key has another version than expected: it has {}; read it, and try again with its version", .newest.map_or_else(|| "no value".to_owned(), |newest| format!("version {}", newest.version)))]
    OtherVersion {
        /// The newest version of the key; `None` if it has no value.
        newest: Option<KeyedVersion>,
    },
    /// The present value of the key forbids the change. The text says why.
    #[error("{0}")]
    NotChangeable(String),
    /// A change is refused, and so are those that were to be made together with it.
    #[error("nothing was changed, since change {number} is refused: {why}")]
    NotTogether {
        /// The number of the change, from 0 on.
        number: usize,
        /// The reason.
        why: Box<KeyedError>,
    },
    /// The disk is full. The text says so.
    #[error("{0}")]
    DiskFull(String),
    /// The records cannot be read or written. The text says why.
    #[error("{0}")]
    Failed(String),
}

millstream_base::debug_as_display!(KeyedError);
