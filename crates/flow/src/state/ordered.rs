//! State elements whose keys have an order, and whose values of the last checkpoint can be read.

use millstream_base::KeyRange;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::state::json_text;

/// The values that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ReadLevel {
    /// The present values. A flow that ends early and resumes may have others.
    #[default]
    Live,
    /// The values at the last complete checkpoint, which no later run reverts.
    Committed,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateValue {
    /// The value; `None` if the key has none.
    #[serde(with = "json_text::optional")]
    pub value: Option<Value>,
    /// Whether the key has the same value, or none, at the last complete checkpoint.
    pub is_committed: bool,
    /// The checkpoint of committed values; 0 for the beginning of the run. `None` for live values, and if the flow takes no
    /// checkpoints: then no value is committed.
    pub checkpoint: Option<u64>,
}

/// The reason why a read that does not wait has no answer: it would have to wait for a lock or for the changelog, or it would
/// take long.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the read would have to wait")]
pub struct WouldWait;

millstream_base::debug_as_display!(WouldWait);

/// Some keys of a range.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct StatePage {
    /// In the order of the canonical bytes of their keys.
    pub entries: Vec<StateEntry>,
    /// Whether the range has more entries.
    pub has_more: bool,
    /// Whether no key of the page, and none that is missing in it, has changed since the last complete checkpoint.
    pub is_committed: bool,
    /// As [`StateValue::checkpoint`].
    pub checkpoint: Option<u64>,
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StateEntry {
    /// The key's text.
    pub key: String,
    /// The key's [canonical bytes](millstream_base::key).
    pub bytes: Vec<u8>,
    /// The value.
    #[serde(with = "json_text")]
    pub value: Value,
}

/// Reads a state element by the order of its keys, or with the values of the last complete checkpoint.
pub trait OrderedState: Send + Sync {
    /// Returns the canonical bytes of the key with this text; `None` if there is no such key of the element's type.
    fn encode(&self, key: &str) -> Option<Vec<u8>>;

    /// Reads one key; `None` if another rank owns it, or it is no key of the element's type.
    fn read(&self, key: &str, level: ReadLevel) -> Option<StateValue>;

    /// Reads one key as [`read`](Self::read) does, without waiting.
    ///
    /// # Errors
    /// When it would have to wait: the key's table is locked, its value is not in memory, large or cannot be read.
    fn try_read(&self, key: &str, level: ReadLevel) -> Result<Option<StateValue>, WouldWait>;

    /// Reads up to `limit` keys of a range, and fewer if their values are large: at least two, if the range has them. Keys
    /// without a text are left out. Committed values are all of one checkpoint.
    fn scan(&self, range: &KeyRange, limit: usize, level: ReadLevel) -> StatePage;
}
