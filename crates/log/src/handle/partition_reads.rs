//! Reads of a partition: fetches by offset, looks into chunks, and searches by time.

use std::time::Duration;

use millstream_base::{Offset, Timestamp};
use millstream_record::{Chunk, Records};

use crate::error::Result;
use crate::handle::partition::StreamPartition;
use crate::lane::recent_reads::ReadSpan;
use crate::read::fetch::{AtLeast, Fetched, fetch, is_in_memory};
use crate::read::timestamps::{newest_record, record_at};

impl StreamPartition {
    /// Chunks from the one on that holds `from`, up to `end` or to the durable offset, whichever comes
    /// first, of at most `bytes_max` bytes together. Bytes in memory are not copied; the caller pins
    /// only the memory of the pieces.
    ///
    /// When `end` lies within a chunk, that chunk is the last one.
    ///
    /// A caller that goes on behind the chunks notes that with [`note_read`](Self::note_read).
    ///
    /// # Errors
    /// When `from` is before the stored chunks or beyond the durable ones
    /// ([`LogError::OffsetOutOfRange`](crate::LogError::OffsetOutOfRange)); when all memory for reading from disk is in use
    /// ([`LogError::ReadBudget`](crate::LogError::ReadBudget)); when the disk does not return the stored bytes. Chunks
    /// before an error are returned, and the next fetch fails.
    pub fn fetch(
        &self,
        from: Offset,
        end: Offset,
        bytes_max: usize,
        at_least: AtLeast,
    ) -> Result<Fetched> {
        fetch(&self.core.reads, &self.lane, from, end, bytes_max, at_least)
    }

    /// Notes that a reader has got the chunks of a fetch, and goes on behind them: the log keeps the next ones in memory for it, as
    /// long as it reads on.
    pub fn note_read(&self, span: ReadSpan) {
        self.lane.note_read(span, self.core.clock.monotonic());
    }

    /// Returns whether the record at `from` is in memory, as far as that is known without a read. A fetch of any other one is a
    /// catch-up read.
    pub fn is_in_memory(&self, from: Offset) -> bool {
        is_in_memory(&self.lane, from)
    }

    /// Gives the records of a fetched chunk to `look`, decompressed within the node's budget.
    ///
    /// # Errors
    /// When other work has the budget for `wait_max` ([`LogError::DecompressionBusy`](crate::LogError::DecompressionBusy)), or
    /// the records cannot be decompressed.
    pub fn with_records<R>(
        &self,
        chunk: &Chunk<'_>,
        wait_max: Duration,
        look: impl FnOnce(Records<'_>) -> R,
    ) -> Result<R> {
        let budget = &self.core.reads.decompression;
        budget.with_records(chunk, wait_max, look)
    }
}

impl StreamPartition {
    /// Offset and timestamp of the first record that may be read at or after `timestamp`: the first chunk that
    /// has one decides, and in it the first record. `None` when all are older.
    ///
    /// # Errors
    /// When the disk does not return the stored bytes.
    pub fn record_at(&self, timestamp: Timestamp) -> Result<Option<(Offset, Timestamp)>> {
        record_at(&self.core.reads, &self.lane, timestamp)
    }

    /// Offset and timestamp of the record with the largest timestamp, of those that may be read and
    /// before `end`; the first one where several have it. `None` when there are none. Records that
    /// were deleted from the first group count until all of the group is removed.
    ///
    /// # Errors
    /// When the disk does not return the stored bytes.
    pub fn newest_record(&self, end: Offset) -> Result<Option<(Offset, Timestamp)>> {
        newest_record(&self.core.reads, &self.lane, end)
    }
}
