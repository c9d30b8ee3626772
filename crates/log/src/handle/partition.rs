//! A partition, for the users of the log: appends, waits, cursors.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_base::{Cursor, Offset, Timestamp};
use millstream_record::check;

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::info::{PartitionInfo, partition_info};
use crate::handle::readers::PartitionReader;
use crate::ids::LaneId;
use crate::lane::LaneState;
use crate::lane::append::Appended;
use crate::produce::append::{append_to_lane, check_foreign, is_found_by};
use crate::produce::wait::{poll, wait_durable, wait_for};
use crate::read::seek::{seek_offset, seek_timestamp};
use crate::settings::config::Durability;

/// A partition of a stream: takes appends, and is read by offset, time or cursor.
#[derive(Debug, Clone)]
pub struct StreamPartition {
    pub(crate) core: Arc<Core>,
    pub(crate) lane: Arc<LaneState>,
}

impl StreamPartition {
    /// Returns the stream, the streamlet and the lane in it.
    pub fn id(&self) -> LaneId {
        self.lane.id
    }

    /// Returns its number in the stream, from 0.
    pub fn index(&self) -> u32 {
        self.lane.partition
    }

    /// Appends a chunk. It is durable, and visible to consumers, when the durable offset has reached
    /// [`Appended::next_offset`].
    ///
    /// # Errors
    /// When the chunk is damaged, too large, out of its producer's sequence or of an older epoch; when its header
    /// counts other records than offsets; when a record has no key, and the stream is compacted; when the disk is full or has failed; when no memory comes free in time.
    /// Nothing is stored then.
    pub fn append(&self, chunk: &[u8]) -> Result<Appended> {
        append_to_lane(&self.core, &self.lane, &check(chunk)?, chunk)
    }

    /// Appends a chunk that another program made. Beside the checks of [`append`](Self::append), this walks all records, which
    /// takes some nanoseconds for each; those of compressed chunks only where
    /// [`LogConfig::check_compressed`](crate::LogConfig::check_compressed) is set.
    ///
    /// # Errors
    /// As [`append`](Self::append), and when a record contradicts the header or the format, or the records are too large when
    /// decompressed.
    pub fn append_foreign(&self, chunk: &[u8]) -> Result<Appended> {
        append_to_lane(
            &self.core,
            &self.lane,
            &check_foreign(&self.core, chunk)?,
            chunk,
        )
    }

    /// The offset that the next record gets, durable or not.
    pub fn next_offset(&self) -> Offset {
        self.lane.next_offset()
    }

    /// Returns its damage, as far as the start and reads have found it.
    pub fn damage(&self) -> Option<&LogError> {
        let damages = [self.lane.fault(), self.lane.read_fault()];
        let is_damage = |error: &&LogError| matches!(error, LogError::Corrupted { .. });
        damages.into_iter().flatten().find(is_damage)
    }

    /// The largest chunk that it takes.
    pub fn chunk_bytes_max(&self) -> usize {
        self.lane.stream.limits.chunk_bytes_max()
    }

    /// Checks a record's key before the record is in a chunk.
    ///
    /// # Errors
    /// When there is none, or it is longer than [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX), and the stream is compacted now.
    pub fn check_key(&self, key: Option<&[u8]>) -> Result<()> {
        if is_found_by(key) || !self.lane.stream.limits.needs_keys() {
            return Ok(());
        }
        Err(LogError::NoKey {
            stream: self.lane.stream.name.clone(),
            records: vec![0],
        })
    }

    /// The offset of the first record that is stored.
    pub fn earliest_offset(&self) -> Offset {
        self.lane.earliest_offset()
    }

    /// When a producer is answered.
    pub fn durability(&self) -> Durability {
        self.lane.stream.durability
    }

    /// The offset behind the last durable record.
    pub fn durable_offset(&self) -> Offset {
        self.lane.durable_offset()
    }

    /// Up to where [`StreamPartition::fetch`] reads: the durable offset, or with [`Durability::Async`] the offset
    /// behind the last record, with [`Durability::Written`] that behind the last one in the file. Records that are
    /// read before they are durable may be gone after a crash; of a `written` stream only after one of the machine.
    pub fn high_watermark(&self) -> Offset {
        self.lane.high_watermark()
    }

    /// Returns the leader epoch of the records that are appended now. It rises when records that consumers may have read are lost
    /// by a crash or taken away by a repair.
    pub fn leader_epoch(&self) -> i32 {
        self.lane.epochs.current()
    }

    /// Returns the leader epoch of the record at `offset`.
    pub fn leader_epoch_at(&self, offset: Offset) -> i32 {
        self.lane.epochs.at(offset)
    }

    /// Returns the largest leader epoch up to `epoch`, and the offset behind its last record. `None` if the partition does not
    /// know that epoch. A consumer that has read records of `epoch` beyond that offset has read some that are lost.
    pub fn epoch_end(&self, epoch: i32) -> Option<(i32, Offset)> {
        self.lane.epochs.end_of(epoch, self.lane.high_watermark())
    }

    /// Waits until everything before `offset` is durable.
    ///
    /// # Errors
    /// When it will not be: the partition's disk failed, or the stream was deleted. When the disk is full
    /// the chunk stays and becomes durable as soon as there is room; a producer that sends it
    /// again with the same sequence has it stored once.
    pub fn wait_durable(&self, offset: Offset) -> Result<()> {
        wait_durable(&self.core, &self.lane, offset)
    }

    /// As [`StreamPartition::wait_durable`], for asynchronous callers.
    ///
    /// # Errors
    /// See [`StreamPartition::wait_durable`].
    pub async fn durable(&self, offset: Offset) -> Result<()> {
        self.core.hurry_durable(&self.lane, offset);
        self.reached(LaneState::durable_offset, offset).await
    }

    async fn reached(&self, head: fn(&LaneState) -> Offset, offset: Offset) -> Result<()> {
        loop {
            if let Some(result) = poll(&self.core, &self.lane, head, offset) {
                return result;
            }
            let moved = self.lane.durable_moved.listen();
            if let Some(result) = poll(&self.core, &self.lane, head, offset) {
                return result;
            }
            moved.await;
        }
    }

    /// Waits as long as the disk is full: until then [`append`](Self::append) fails. The next append may find it full again.
    pub async fn disk_room(&self) {
        let appends = &self.core.appends;
        let is_over = || !appends.disk.is_full() || appends.closed.load(Ordering::SeqCst);
        while !is_over() {
            let changed = appends.disk.listen();
            if is_over() {
                return;
            }
            changed.await;
        }
    }

    /// The head that a producer's answer waits for, if it waits for any.
    fn answering_head(&self) -> Option<fn(&LaneState) -> Offset> {
        match self.lane.stream.durability {
            Durability::Sync => Some(LaneState::durable_offset),
            Durability::Written => Some(LaneState::high_watermark),
            Durability::Async | Durability::Memory => None,
        }
    }

    /// Returns whether a producer may be answered at once: [`StreamPartition::acknowledge`] never waits.
    pub fn answers_at_once(&self) -> bool {
        self.answering_head().is_none()
    }

    /// Waits as long as the stream's durability asks for before a producer is answered.
    ///
    /// # Errors
    /// See [`StreamPartition::wait_durable`].
    pub fn acknowledge(&self, appended: &Appended) -> Result<()> {
        match self.answering_head() {
            Some(head) => wait_for(&self.core, &self.lane, head, appended.next_offset),
            None => Ok(()),
        }
    }

    /// As [`StreamPartition::acknowledge`], for asynchronous callers.
    ///
    /// # Errors
    /// See [`StreamPartition::wait_durable`].
    pub async fn acknowledged(&self, appended: &Appended) -> Result<()> {
        self.answered(appended.next_offset).await
    }

    /// Waits until a producer of the records before `offset` would be answered.
    ///
    /// # Errors
    /// See [`StreamPartition::wait_durable`].
    pub async fn answered(&self, offset: Offset) -> Result<()> {
        match self.answering_head() {
            Some(head) => self.reached(head, offset).await,
            None => Ok(()),
        }
    }

    /// Returns the cursor where reading starts.
    pub fn earliest(&self) -> Cursor {
        self.lane.earliest_cursor()
    }

    /// The chunk that holds `offset`.
    ///
    /// # Errors
    /// When the partition does not hold it.
    pub fn seek_offset(&self, offset: Offset) -> Result<Cursor> {
        Ok(seek_offset(&self.core.reads, &self.lane, offset)?.cursor)
    }

    /// The first chunk with a record at or after `timestamp`; `None` when all are older.
    ///
    /// # Errors
    /// When the disk does not return the stored bytes.
    pub fn seek_timestamp(&self, timestamp: Timestamp) -> Result<Option<(Cursor, Offset)>> {
        let found = seek_timestamp(&self.core.reads, &self.lane, timestamp)?;
        Ok(found.map(|found| (found.cursor, found.base_offset)))
    }

    /// Reads the partition from a cursor on.
    pub fn reader(&self, cursor: Cursor) -> PartitionReader {
        PartitionReader::new(Arc::clone(&self.core), Arc::clone(&self.lane), cursor)
    }

    /// Returns its description.
    pub fn info(&self) -> PartitionInfo {
        let LaneId {
            streamlet, lane, ..
        } = self.lane.id;
        partition_info(self.lane.partition, streamlet, lane, Some(&self.lane))
    }
}
