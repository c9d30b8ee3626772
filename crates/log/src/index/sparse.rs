//! The index of a group in memory: its points, and its aborted transactions.
//!
//! A group that takes appends, or whose segments are in memory, has its index from the beginning. For any other
//! group, the first reader that needs the index loads it from the file, and a cache keeps it while it is used.

use millstream_base::{Offset, Position, Timestamp};

use crate::error::{LogError, Result};
use crate::index::entry::{EntryKind, IndexEntry};
use crate::index::file::Index;
use crate::producers::transactions::AbortedTransaction;

/// A point of a group: an entry of its index, without the producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPoint {
    pub position: Position,
    /// The offset of the chunk that starts there.
    pub offset: Offset,
    /// The largest timestamp of the chunks before it in the group.
    pub max_timestamp: Timestamp,
    /// All transactions have ended before this offset.
    pub stable: Offset,
}

/// The index of one group in memory.
#[derive(Debug, Clone, Default)]
pub struct SparseIndex {
    /// In the order of their positions.
    points: Vec<IndexPoint>,
    /// Transactions that were aborted in this group, in the order of their markers.
    aborted: Vec<AbortedTransaction>,
    /// The reason why the rest is not known.
    damage: Option<LogError>,
}

impl SparseIndex {
    /// Makes the index in memory of an index file.
    pub fn of(index: &Index) -> SparseIndex {
        let mut sparse = SparseIndex::default();
        for entry in &index.entries {
            sparse.add(entry);
            sparse.aborted.extend(&entry.aborted);
        }
        sparse
    }

    /// Adds the point of an entry behind the others, without the transactions of the entry.
    pub fn add(&mut self, entry: &IndexEntry) {
        if entry.kind == EntryKind::GroupEnd {
            // No chunk starts there.
            return;
        }
        let point = IndexPoint {
            position: entry.position,
            offset: entry.offset,
            max_timestamp: entry.max_timestamp,
            stable: entry.stable,
        };
        match self.points.last_mut() {
            // A segment that was given back before anything came behind it.
            Some(last) if last.position == point.position => *last = point,
            _ => self.points.push(point),
        }
    }

    /// Returns the last point for which `is_before` holds; it holds for a prefix of the points.
    /// `None` is the group's start.
    pub fn last_before(&self, is_before: impl Fn(&IndexPoint) -> bool) -> Option<IndexPoint> {
        let count = self.points.partition_point(is_before);
        count.checked_sub(1).map(|last| self.points[last])
    }

    /// Returns the first point behind a position.
    pub fn first_behind(&self, position: Position) -> Option<IndexPoint> {
        let count = self
            .points
            .partition_point(|point| point.position <= position);
        self.points.get(count).copied()
    }

    /// Adds a transaction whose marker comes behind all others.
    pub fn add_aborted(&mut self, aborted: AbortedTransaction) {
        self.aborted.push(aborted);
    }

    /// Returns the number of transactions that were aborted in this group.
    pub fn aborted_count(&self) -> usize {
        self.aborted.len()
    }

    /// Notes that the points behind the last one are unknown.
    pub fn set_damage(&mut self, damage: LogError) {
        self.damage = Some(damage);
    }

    /// Returns aborted transactions whose markers are at `from` or behind, and that begin before `to`.
    pub fn aborted(&self, from: Offset, to: Offset) -> Result<Vec<AbortedTransaction>> {
        if let Some(damage) = &self.damage {
            return Err(damage.clone());
        }
        let before = |offset: Offset| {
            self.aborted
                .partition_point(|aborted| aborted.last_offset < offset)
        };
        // A transaction that ends behind a point begins behind the last stable offset there.
        let unstable = self.points.partition_point(|point| point.stable < to);
        let end = self.points.get(unstable);
        let end = end.map_or(self.aborted.len(), |point| before(point.offset));
        let candidates = self.aborted.get(before(from)..end).unwrap_or_default();
        let begun = candidates
            .iter()
            .filter(|aborted| aborted.first_offset < to);
        Ok(begun.copied().collect())
    }

    /// Returns the number of its points and transactions.
    pub fn len(&self) -> usize {
        self.points.len() + self.aborted.len()
    }
}
