//! Requests that readers of state make to a rank of a flow, and their answers. Both may go to another process.

use millstream_base::{KeyRange, Timestamp};
use serde::{Deserialize, Serialize};

use crate::sources::positions::Position;
use crate::state::greatest::{GreatestEntries, GreatestQuery, SearchError};
use crate::state::ordered::{ReadLevel, StatePage, StateValue};

/// A reader's request to one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateRequest {
    /// The values of some keys of a state element.
    Values {
        /// The element.
        element: String,
        /// The texts of the keys.
        keys: Vec<String>,
        /// The requested level of the values; elements without order always answer with live values.
        level: ReadLevel,
    },
    /// Some keys of a range, of an element whose keys have an order.
    Range {
        /// The element.
        element: String,
        /// The range.
        range: KeyRange,
        /// The most keys.
        limit: usize,
        /// The wanted values.
        level: ReadLevel,
    },
    /// Some keys, of an element whose keys have no order.
    Keys {
        /// The element.
        element: String,
        /// The most keys.
        limit: usize,
    },
    /// The entries of a state element with the greatest numbers.
    Greatest {
        /// The element.
        element: String,
        /// The search.
        query: GreatestQuery,
    },
    /// The progress of the rank now, or at one of the last checkpoints.
    Progress {
        /// The checkpoint's number; `None` for now.
        checkpoint: Option<u64>,
    },
}

/// A rank's answer to a [`StateRequest`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum StateAnswer {
    /// For each key its value. `None` if another rank owns the key, or if it is no key of the element's type.
    Values(Vec<Option<StateValue>>),
    /// Keys of the range.
    Range(StatePage),
    /// The texts of the keys.
    Keys(Vec<String>),
    /// The entries with the greatest numbers.
    Greatest(Result<GreatestEntries, SearchError>),
    /// The progress.
    Progress(Progress),
    /// The values of the keys take too much memory together: see [`VALUES_BYTES_MAX`](crate::VALUES_BYTES_MAX).
    Large,
}

/// The progress of a rank of a flow, now or at a checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Progress {
    /// The positions of the rank's sources, as far as they know.
    pub positions: Vec<Position>,
    /// The least watermark of the rank's stages; `None` without event time, and before the first one.
    pub watermark: Option<Timestamp>,
    /// How long ago the checkpoint, or for now the last complete one, was taken, in seconds; `None` if that was not in
    /// this run, or is forgotten.
    pub checkpoint_age_seconds: Option<f64>,
    /// How long ago the rank stored its last shard, in seconds; `None` before the first one of this run.
    pub shard_age_seconds: Option<f64>,
    /// The last snapshot for a checkpoint that the rank has taken, complete or not: all items before its positions were in
    /// the state then, if all ranks have taken it. 0 before the first one of this run.
    pub snapshot: u64,
}
