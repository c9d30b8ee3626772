//! The positions of a flow's sources, and how far these are behind the ends of their streams.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::state::ordered::WouldWait;

/// The position of a flow in one partition of a stream that it reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The stream.
    pub stream: String,
    /// The partition's number.
    pub partition: u32,
    /// The first offset that the source has not given.
    pub next: u64,
    /// Behind the last record that could be read; `None` while the source does not know.
    pub end: Option<u64>,
}

impl Position {
    /// Offsets that could be read and were not: those of records, and of markers of transactions.
    pub fn lag_records(&self) -> u64 {
        self.end.map_or(0, |end| end.saturating_sub(self.next))
    }
}

/// The positions of a source, read beside its work by any thread. Sources that share their work share it.
pub trait Positions: Send + Sync + 'static {
    /// The position in every partition. It may lock, and does not wait for anything else.
    fn read(&self) -> Vec<Position>;

    /// The same, unless it would have to wait for a lock; then, and by default, it fails.
    ///
    /// # Errors
    /// When it would have to wait.
    fn try_read(&self) -> Result<Vec<Position>, WouldWait> {
        Err(WouldWait)
    }
}

/// Joins the positions of several sources, so that those that share a partition have one.
pub fn all(read: impl IntoIterator<Item = Position>) -> Vec<Position> {
    let mut positions: BTreeMap<(String, u32), Position> = BTreeMap::new();
    for position in read {
        let place = (position.stream.clone(), position.partition);
        let known = positions.entry(place).or_insert_with(|| position.clone());
        // Two flows of one stream in one graph: the one that is behind counts.
        if position.next < known.next {
            *known = position;
        }
    }
    positions.into_values().collect()
}
