//! Reads the keys of records, for groups that are ordered by key.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use millstream_base::Offset;
use millstream_log::{AtLeast, LogError, StreamPartition};
use millstream_record::{Chunk, Chunks, Records};

use super::read::{READ_BYTES, READS_MAX};
use crate::shares::{KeyHash, SharePartition};

/// Reads the keys of a partition's records.
pub struct KeyReader<'a> {
    pub lane: &'a StreamPartition,
    pub hasher: &'a RandomState,
}

impl KeyReader<'_> {
    /// Reads the keys of the records in flight that are not known yet: after a start of the broker, or a change of the
    /// group's settings. There may be more than one call reads.
    ///
    /// # Errors
    /// When the log does not return the records.
    pub fn learn(&self, shares: &mut SharePartition) -> Result<(), LogError> {
        for _ in 0..READS_MAX {
            if shares.knows_keys() {
                break;
            }
            let end = self.lane.high_watermark();
            let range = match shares.unknown() {
                Some(range) if range.start < end => range,
                // A log that does not wait for the disk has lost these records.
                _ => {
                    shares.learn(shares.end(), &[]);
                    break;
                }
            };
            let fetched = self
                .lane
                .fetch(range.start, range.end, READ_BYTES, AtLeast::OneChunk)?;
            let next = fetched.next;
            for piece in fetched.into_bytes() {
                for chunk in Chunks::trusted(&piece) {
                    let chunk = chunk?;
                    let keys = self.of(&chunk)?;
                    shares.learn(chunk.header().next_offset(), &keys);
                }
            }
            shares.learn(next, &[]);
        }
        Ok(())
    }

    /// The records of a chunk that have a key.
    ///
    /// # Errors
    /// When the memory for decompression is in use.
    pub fn of(&self, chunk: &Chunk<'_>) -> Result<Vec<(Offset, KeyHash)>, LogError> {
        let keys = self
            .lane
            .with_records(chunk, Duration::ZERO, |records| self.all(records));
        match keys {
            Err(error @ LogError::DecompressionBusy { .. }) => Err(error),
            Err(error) => {
                self.warn(chunk.header().base_offset, &error);
                Ok(Vec::new())
            }
            keys => keys,
        }
    }

    fn all(&self, records: Records<'_>) -> Vec<(Offset, KeyHash)> {
        let mut keys = Vec::new();
        for record in records {
            match record {
                Ok(record) => {
                    let hash = record.key.map(|key| KeyHash(self.hasher.hash_one(key)));
                    keys.extend(hash.map(|hash| (record.offset, hash)));
                }
                Err(error) => self.warn(keys.last().map_or(Offset(0), |(last, _)| *last), &error),
            }
        }
        keys
    }

    fn warn(&self, at: Offset, error: &dyn std::error::Error) {
        let partition = self.lane.index();
        tracing::warn!(
            "share groups get records of partition {partition} from offset {at} on in no order: their keys cannot be read: {error}"
        );
    }
}
