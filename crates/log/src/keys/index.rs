//! A table that one thread fills while others look into it.

use millstream_base::Offset;
use millstream_record::{ChunkError, Records};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

use crate::keys::table::{KeyStats, KeyTable};

/// How many records are added before lookups that wait have their turn.
const RECORDS_AT_ONCE: usize = 1_000;

/// The key index of a lane.
#[derive(Debug)]
pub struct KeyIndex {
    /// Changed by the thread that has the lock `updating`. Never locked during I/O.
    table: RwLock<KeyTable>,
    /// Held by the thread that reads on, also during I/O. Locked before `table`.
    updating: Mutex<()>,
}

/// The right to fill the table.
pub struct Update<'a> {
    table: &'a RwLock<KeyTable>,
    _updating: MutexGuard<'a, ()>,
}

impl KeyIndex {
    /// An empty index of one of `partitions` partitions.
    pub fn new(partition: u32, partitions: u32) -> KeyIndex {
        KeyIndex {
            table: RwLock::new(KeyTable::new(partition, partitions)),
            updating: Mutex::new(()),
        }
    }

    /// Lets `look` see the table, if it holds all records before `until`, and keys have their owners among `partitions`.
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
            _updating: updating,
        }
    }

    pub fn stats(&self) -> KeyStats {
        self.table.read().stats()
    }
}

impl Update<'_> {
    /// Empties the table if keys had their owners among another number of partitions.
    pub fn set_partitions(&self, partition: u32, partitions: u32) {
        if self.table.read().partitions() != partitions {
            *self.table.write() = KeyTable::new(partition, partitions);
        }
    }

    /// The offset before which the table holds all records.
    pub fn next(&self) -> Offset {
        self.table.read().next()
    }

    /// Adds the committed records of a chunk from the offset `from` on.
    ///
    /// # Errors
    /// When the records cannot be read. Then the same chunk must be added again before the table [advances](Self::advance).
    pub fn add(&self, records: Records<'_>, from: Offset) -> Result<(), ChunkError> {
        let mut table = self.table.write();
        for (n, record) in records.enumerate() {
            let record = record?;
            if record.offset >= from {
                table.add(&record);
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

    /// Drops keys whose newest versions are before `earliest`.
    pub fn sweep(&self, earliest: Offset) {
        self.table.write().sweep(earliest);
    }
}
