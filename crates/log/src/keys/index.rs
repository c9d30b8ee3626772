//! A table that one thread fills while others look into it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::{ChunkError, Record, Records};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use crate::keys::file::KeyCounts;
use crate::keys::kind::KeyKind;
use crate::keys::table::{KeyStats, KeyTable};
use crate::keys::tail::KeyTail;

/// The number of records that are added before waiting lookups have their turn.
const RECORDS_AT_ONCE: usize = 1_000;

/// A key index of a lane: of its keys, or of secondary keys.
#[derive(Debug)]
pub struct KeyIndex {
    kind: KeyKind,
    /// Changed by the thread that has the lock `updating`. Never locked during I/O.
    table: RwLock<KeyTable>,
    /// Held by the thread that reads on, also during I/O. Locked before `table`.
    updating: Mutex<()>,
    /// Held by the thread that makes a key file. Locked behind `updating` or without it, and before `table`.
    building: Mutex<()>,
    /// The keys behind those that look-ups see. Held by a conditional change from its decision to its append: locked
    /// before the lock of the lane's head, and without the others of the index.
    tail: Mutex<KeyTail>,
    /// The last failure to make a key file. Written by the thread that made it; read by that thread and by statistics.
    failure: Mutex<Option<Failure>>,
    counters: Counters,
    /// Counts how often the table has passed over records without [adding](Update::add) them, or keys have got other owners:
    /// copies of records from before may be old. Changed under the write lock of `table`.
    epoch: AtomicU64,
}

#[derive(Debug, Clone, Copy)]
struct Failure {
    at: Timestamp,
    /// No key file is made before this monotonic time.
    retry_at: Duration,
}

#[derive(Debug, Default)]
struct Counters {
    /// The key files that were made since the start.
    built: AtomicU64,
    /// The key files made since the start in place of damaged or lost ones.
    rebuilt: AtomicU64,
    /// The key files made since a start last found an existing one. If it finds another, these were lost: key files are made
    /// in the order of the groups.
    built_since_found: AtomicU64,
}

/// The right to fill the table.
pub struct Update<'a> {
    table: &'a RwLock<KeyTable>,
    epoch: &'a AtomicU64,
    _updating: MutexGuard<'a, ()>,
}

impl KeyIndex {
    /// An empty index of one of `partitions` partitions, for which there may be key files.
    pub fn new(kind: KeyKind, partition: u32, partitions: u32, has_files: bool) -> KeyIndex {
        let table = KeyTable::new(kind.clone(), partition, partitions, has_files);
        KeyIndex {
            kind,
            table: RwLock::new(table),
            updating: Mutex::new(()),
            building: Mutex::new(()),
            tail: Mutex::default(),
            failure: Mutex::default(),
            counters: Counters::default(),
            epoch: AtomicU64::new(0),
        }
    }

    /// Returns the kind of its keys.
    pub fn kind(&self) -> &KeyKind {
        &self.kind
    }

    /// Calls `look` with the table, if it holds all records before `until`, and keys have their owners among `partitions`.
    pub fn look<R>(
        &self,
        until: Offset,
        partitions: u32,
        look: impl FnOnce(&KeyTable) -> R,
    ) -> Option<R> {
        let table = self.table.read();
        let is_current = table.next() >= until && table.partitions() == partitions;
        is_current.then(|| look(&table))
    }

    /// Waits for the right to fill the table.
    pub fn update(&self) -> Update<'_> {
        let updating = self.updating.lock();
        Update {
            table: &self.table,
            epoch: &self.epoch,
            _updating: updating,
        }
    }

    /// Returns a number that changes when the table passes over records without adding them, or keys get other owners.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Waits for the right to make a key file.
    pub fn build(&self) -> MutexGuard<'_, ()> {
        self.building.lock()
    }

    /// Waits for the keys behind those that look-ups see.
    pub fn tail(&self) -> MutexGuard<'_, KeyTail> {
        self.tail.lock()
    }

    /// The offset before which key files have all records.
    pub fn covered(&self) -> Offset {
        self.table.read().covered()
    }

    /// The offset before which it has all records.
    pub fn next(&self) -> Offset {
        self.table.read().next()
    }

    /// Whether key files may be made at this monotonic time.
    pub fn may_build(&self, now: Duration) -> bool {
        self.failure
            .lock()
            .is_none_or(|failure| failure.retry_at <= now)
    }

    /// Takes note that a key file could not be made, and lets none be made before a monotonic time.
    pub fn note_failure(&self, at: Timestamp, retry_at: Duration) {
        *self.failure.lock() = Some(Failure { at, retry_at });
    }

    /// Counts a key file that was made, perhaps in place of a damaged or lost one.
    pub fn count_built(&self, is_rebuilt: bool) {
        let counter = match is_rebuilt {
            true => &self.counters.rebuilt,
            false => &self.counters.built_since_found,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.counters.built.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note that a key file was found on disk. Returns how many before it were made just now, and so were lost.
    pub fn count_found(&self) -> u64 {
        let lost = self.counters.built_since_found.swap(0, Ordering::Relaxed);
        self.counters.rebuilt.fetch_add(lost, Ordering::Relaxed);
        lost
    }

    /// Returns the size of the table, without the key files in use.
    pub fn stats(&self) -> KeyStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KeyStats {
            files_built: count(&self.counters.built),
            files_rebuilt: count(&self.counters.rebuilt),
            files_failed_at: self.failure.lock().map(|failure| failure.at),
            ..self.table.read().stats()
        }
    }
}

impl Update<'_> {
    /// Empties the table if keys had their owners among another number of partitions.
    pub fn set_partitions(&self, partitions: u32) {
        if self.table.read().partitions() != partitions {
            let mut table = self.table.write();
            *table = table.emptied(partitions);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// The offset before which the table holds all records, or key files do.
    pub fn next(&self) -> Offset {
        self.table.read().next()
    }

    /// The offset before which key files have all records.
    pub fn covered(&self) -> Offset {
        self.table.read().covered()
    }

    /// As [`KeyIndex::epoch`].
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Adds the committed records of a chunk from the offset `from` on, and shows those with keys of the partition to
    /// `see`.
    ///
    /// # Errors
    /// When the records cannot be read. Then the same chunk must be added again before the table [advances](Self::advance).
    pub fn add(
        &self,
        records: Records<'_>,
        from: Offset,
        see: impl Fn(&Record<'_>),
    ) -> Result<(), ChunkError> {
        let mut table = self.table.write();
        for (n, record) in records.enumerate() {
            let record = record?;
            if record.offset >= from && table.add(&record) {
                see(&record);
            }
            if n % RECORDS_AT_ONCE == RECORDS_AT_ONCE - 1 {
                RwLockWriteGuard::bump(&mut table);
            }
        }
        Ok(())
    }

    /// Takes note that the table holds all records before `next`.
    pub fn advance(&self, next: Offset) {
        self.table.write().advance(next);
    }

    /// Records that key files have all records before `end`. `counts` belongs to the key file that ends there.
    pub fn cover(&self, end: Offset, counts: &KeyCounts) {
        let mut table = self.table.write();
        if table.next() < end {
            self.epoch.fetch_add(1, Ordering::Release);
        }
        table.cover(end, counts);
    }

    /// Takes note that the key file that begins at `from` is lost.
    pub fn uncover(&self, from: Offset) {
        self.table.write().uncover(from);
    }

    /// Drops keys whose newest versions are before `earliest` or in key files.
    pub fn sweep(&self, earliest: Offset) {
        self.table.write().sweep(earliest);
    }

    /// Gives back the memory of the table.
    pub fn forget(&self) {
        let mut table = self.table.write();
        *table = table.emptied(table.partitions());
    }
}
