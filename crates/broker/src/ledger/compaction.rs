//! A ledger is compacted when most of it is outdated: what is still so is appended again, and what is before
//! is deleted.
//!
//! All that was appended before some offset is read, piece by piece what has not changed since is appended
//! behind it, and when all of that is durable the ledger begins at that offset. So at every moment what it
//! holds is the same, wherever a crash cuts it off: what is appended again says what was said before.

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, IntoIter};
use std::iter::Peekable;
use std::sync::Arc;

use bytes::Bytes;
use millstream_base::Offset;
use millstream_log::LogError;
use parking_lot::MutexGuard;

use super::{Kept, Ledger, Record};

/// A ledger is not compacted before it has so many bytes …
const COMPACT_BYTES_MIN: u64 = 4 << 20;

/// … and so many times what its states take.
const COMPACT_FACTOR: u64 = 4;

/// So much is appended again while others wait for the ledger.
const PIECE_BYTES: usize = 64 << 10;

/// How large a ledger is, and what is done about it.
#[derive(Debug, Default)]
pub struct Growth {
    /// Bytes of its chunks.
    pub stored_bytes: u64,
    /// From so many bytes on it is compacted.
    due_at_bytes: u64,
    rewriting: Option<Rewriting>,
}

/// A compaction that is under way.
#[derive(Debug, Default)]
struct Rewriting {
    /// Keys that got another state since it began.
    changed: HashSet<Bytes>,
    /// What was in the ledger when it began.
    stored_bytes: u64,
    /// The ledger has not taken a change, so nobody knows what of it is there.
    is_given_up: bool,
}

impl Growth {
    /// All of the ledger was read.
    pub fn was_read(&mut self, kept: &Kept) {
        if self.rewriting.is_none() {
            self.stored_bytes = kept.read_bytes;
            self.due_at_bytes = due_at_bytes(&kept.states);
        }
    }

    /// These are about to be appended.
    pub fn changing(&mut self, records: &[Record]) {
        if let Some(rewriting) = &mut self.rewriting {
            let keys = records.iter().map(|record| record.key.clone());
            rewriting.changed.extend(keys);
        }
    }

    /// What is appended may be there in part: what was before has to stay.
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

/// What remains to be appended again.
pub struct Rewrite {
    states: Peekable<IntoIter<Bytes, Bytes>>,
    /// When the ledger that comes of it is to be compacted.
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

    /// The end of what a compaction is to read, which is under way from now on.
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

    /// Does a compaction that has begun. Waits for the disk.
    pub fn compact(&self, begin: Offset) {
        let compacted = self.begin_rewrite(begin).and_then(|mut rewrite| {
            while self.rewrite_piece(&mut rewrite)? {}
            self.delete_before(begin)?;
            Ok(rewrite)
        });
        if let Err(error) = &compacted {
            tracing::warn!(%error, "a ledger is not compacted, and will be when it has grown");
        }
        self.end(compacted.ok());
    }

    /// Reads what there is to append again.
    pub fn begin_rewrite(&self, begin: Offset) -> Result<Rewrite, LogError> {
        self.lane.wait_durable(begin)?;
        let kept = self.read_before(begin)?;
        Ok(Rewrite {
            due_at_bytes: due_at_bytes(&kept.states),
            states: kept.states.into_iter().peekable(),
        })
    }

    /// Appends some of it; `false` when there is nothing left.
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
        // Those who wait come first.
        MutexGuard::unlock_fair(growth);
        Ok(rewrite.states.peek().is_some())
    }

    /// What is before goes when everything that was appended again is durable.
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

    /// The next compaction may begin; `done` unless this one has failed.
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
