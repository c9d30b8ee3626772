//! Compaction of a ledger. When most of a ledger is outdated, a compaction appends its current states again and
//! deletes the records before them.
//!
//! The compaction reads all records before some offset. Piece by piece, it appends the states that have not changed
//! since. When all of them are durable, the ledger begins at that offset. A crash at any moment leaves the same states
//! in the ledger, because an appended copy repeats the state before it.

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, IntoIter};
use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::LogError;
use parking_lot::MutexGuard;

use super::{Ledger, Record, States};

/// A ledger of fewer bytes is not compacted.
const COMPACT_BYTES_MIN: u64 = 4 << 20;

/// A ledger is compacted only when it takes this many times the bytes of its states.
const COMPACT_FACTOR: u64 = 4;

/// The bytes that a compaction appends while it holds the ledger's lock; other appends wait that long.
const PIECE_BYTES: usize = 64 << 10;

/// A ledger's size, and the compaction under way.
#[derive(Debug, Default)]
pub struct Growth {
    /// Bytes of its chunks.
    pub stored_bytes: u64,
    /// The size from which on a compaction is due.
    due_at_bytes: u64,
    rewriting: Option<Rewriting>,
}

/// A compaction that is under way.
#[derive(Debug, Default)]
struct Rewriting {
    /// Keys whose state has changed since it began.
    changed: HashSet<Bytes>,
    /// The size of the ledger when the compaction began.
    stored_bytes: u64,
    /// The ledger has failed to append a change, so it is unknown which of its records are stored.
    is_given_up: bool,
}

impl Growth {
    /// Records the size of the ledger after a read of all of it.
    pub fn was_read(&mut self, kept: &States) {
        if self.rewriting.is_none() {
            self.stored_bytes = kept.read_bytes;
            self.due_at_bytes = due_at_bytes(&kept.states);
        }
    }

    /// Notes the keys of records that are about to be appended.
    pub fn changing(&mut self, records: &[Record]) {
        if let Some(rewriting) = &mut self.rewriting {
            let keys = records.iter().map(|record| record.key.clone());
            rewriting.changed.extend(keys);
        }
    }

    /// Stops the compaction from deleting anything: an append has failed and may be stored in part, so the old records
    /// have to stay.
    pub fn give_up(&mut self) {
        if let Some(rewriting) = &mut self.rewriting {
            rewriting.is_given_up = true;
        }
    }
}

fn due_at_bytes(states: &BTreeMap<Bytes, Bytes>) -> u64 {
    let bytes = states
        .iter()
        .map(|(key, value)| (key.len() + value.len()) as u64);
    COMPACT_BYTES_MIN.max(bytes.sum::<u64>() * COMPACT_FACTOR)
}

/// The states that a compaction has yet to append again.
pub struct Rewrite {
    states: Peekable<IntoIter<Bytes, Bytes>>,
    /// The size from which on the compacted ledger is due again.
    due_at_bytes: u64,
}

impl Ledger {
    /// Compacts the ledger in the background if it is worth it.
    pub fn compact_if_due(self: &Arc<Self>) {
        if let Some(begin) = self.begin_if_due() {
            let ledger = Arc::clone(self);
            tokio::task::spawn_blocking(move || ledger.compact(begin));
        }
    }

    /// Begins a compaction if one is due; returns the end of the records that it is to read.
    pub fn begin_if_due(&self) -> Option<Offset> {
        let mut growth = self.growth.lock();
        if growth.rewriting.is_some()
            || growth.stored_bytes < COMPACT_BYTES_MIN.max(growth.due_at_bytes)
        {
            return None;
        }
        growth.rewriting = Some(Rewriting {
            stored_bytes: growth.stored_bytes,
            ..Rewriting::default()
        });
        Some(self.lane.next_offset())
    }

    /// Carries out a compaction that has begun. Waits for the disk.
    pub fn compact(&self, begin: Offset) {
        let compacted = self.begin_rewrite(begin).and_then(|mut rewrite| {
            while self.rewrite_piece(&mut rewrite)? {}
            self.delete_before(begin)?;
            Ok(rewrite)
        });
        if let Err(error) = &compacted {
            tracing::warn!(%error, "cannot compact a ledger; it is tried again when the ledger has grown");
        }
        self.end(compacted.ok());
    }

    /// Reads the states to append again.
    pub fn begin_rewrite(&self, begin: Offset) -> Result<Rewrite, LogError> {
        self.lane.wait_durable(begin)?;
        let kept = self.read_before(begin)?;
        Ok(Rewrite {
            due_at_bytes: due_at_bytes(&kept.states),
            states: kept.states.into_iter().peekable(),
        })
    }

    /// Appends some of the states; returns `false` when there are none left.
    pub fn rewrite_piece(&self, rewrite: &mut Rewrite) -> Result<bool, LogError> {
        let mut growth = self.growth.lock();
        let Some(rewriting) = &growth.rewriting else {
            return Ok(false);
        };
        if rewriting.is_given_up {
            return Ok(false);
        }
        let mut piece = Vec::new();
        let mut bytes = 0;
        while bytes < PIECE_BYTES
            && let Some((key, value)) = rewrite.states.next()
        {
            if !rewriting.changed.contains(&key) {
                let value = Some(value);
                let record = Record { key, value };
                bytes += record.len();
                piece.push(record);
            }
        }
        self.write(&mut growth, &piece, self.log.clock().now())?;
        // Waiting appends go first.
        MutexGuard::unlock_fair(growth);
        Ok(rewrite.states.peek().is_some())
    }

    /// Deletes the records before `begin`, once all states that were appended again are durable.
    pub fn delete_before(&self, begin: Offset) -> Result<(), LogError> {
        self.lane.wait_durable(self.lane.next_offset())?;
        let growth = self.growth.lock();
        let rewriting = growth.rewriting.as_ref();
        if rewriting.is_none_or(|rewriting| rewriting.is_given_up) {
            return Ok(());
        }
        drop(growth);
        let before = [(self.lane.clone(), begin)];
        let mut deleted = self.log.delete_before(&before).into_iter();
        deleted.try_for_each(|result| result.map(drop))
    }

    /// Ends a compaction, so that the next one may begin; `done` is `None` if it failed.
    pub fn end(&self, done: Option<Rewrite>) {
        let mut growth = self.growth.lock();
        let Some(rewriting) = growth.rewriting.take() else {
            return;
        };
        match done.filter(|_| !rewriting.is_given_up) {
            Some(rewrite) => {
                growth.stored_bytes -= rewriting.stored_bytes;
                growth.due_at_bytes = rewrite.due_at_bytes;
            }
            None => growth.due_at_bytes = growth.stored_bytes + COMPACT_BYTES_MIN,
        }
    }
}
