//! A coordinator's store: a stream of the log with one partition, whose records are states by key. A later record
//! replaces an earlier one of its key, and a record without value removes the key.

mod codec;
mod compaction;
mod record;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use millstream_base::{Offset, Timestamp};
use millstream_log::{AtLeast, Log, LogError, StreamPartition};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor};
use parking_lot::Mutex;

pub use self::codec::{Reader, VERSION, Writer};
use self::compaction::Growth;
pub use self::record::{Record, RecordError};

/// The bytes of one read at a start.
const READ_BYTES: usize = 1 << 20;

/// The size at which a chunk is full. One more record may be in it.
const CHUNK_BYTES: usize = 512 << 10;

/// A stream of states.
#[derive(Debug)]
pub struct Ledger {
    log: Log,
    name: String,
    lane: StreamPartition,
    /// Held while something is appended, so that a rewriting knows of every change.
    growth: Mutex<Growth>,
}

/// The states in a part of a ledger.
struct States {
    /// The last state of every key that has one.
    states: BTreeMap<Bytes, Bytes>,
    /// The bytes read for that.
    read_bytes: u64,
}

impl Ledger {
    /// Opens the ledger of this name, or creates it.
    ///
    /// # Errors
    /// When the log cannot create it.
    pub fn open(log: &Log, name: &str) -> Result<Ledger, LogError> {
        let stream = log.internal_stream(name)?;
        Ok(Ledger {
            lane: stream.partition(0)?,
            log: log.clone(),
            name: name.to_owned(),
            growth: Mutex::default(),
        })
    }

    /// The last record of every key that has a state.
    ///
    /// # Errors
    /// When it cannot be read, or some of it is damaged or missing: older states would be taken for the last.
    pub fn read(&self) -> Result<Vec<Record>, LogError> {
        if let Some(damage) = self.lane.damage() {
            return Err(damage.clone());
        }
        let kept = self.read_before(self.lane.durable_offset())?;
        self.growth.lock().was_read(&kept);
        let states = kept.states.into_iter();
        let records = states.map(|(key, value)| Record {
            key,
            value: Some(value),
        });
        Ok(records.collect())
    }

    fn read_before(&self, end: Offset) -> Result<States, LogError> {
        let mut states = BTreeMap::new();
        let mut read_bytes = 0;
        let mut decompressor = Decompressor::default();
        let mut at = self.lane.earliest_offset();
        while at < end {
            let fetched = self.lane.fetch(at, end, READ_BYTES, AtLeast::OneChunk)?;
            for piece in &fetched.pieces {
                for chunk in Chunks::trusted(piece) {
                    for record in chunk?.records(&mut decompressor)? {
                        let record = record?;
                        let key = record.key.unwrap_or_default();
                        match record.value.map(Bytes::copy_from_slice) {
                            Some(value) => states.insert(Bytes::copy_from_slice(key), value),
                            None => states.remove(key),
                        };
                    }
                }
            }
            read_bytes += fetched.bytes as u64;
            if fetched.next <= at {
                // Every durable record can be read, or an error says why not.
                return Err(LogError::Corrupted {
                    path: self.log.dir().to_owned(),
                    position: 0,
                    what: format!("stream {} ends at offset {at} instead of {end}", self.name),
                });
            }
            at = fetched.next;
        }
        Ok(States { states, read_bytes })
    }

    /// Appends records; returns the offset up to which they have to be durable before a client learns of them.
    ///
    /// # Errors
    /// When the log rejects the append: some of the records may be stored nevertheless.
    pub fn append(
        &self,
        records: impl IntoIterator<Item = Record>,
        time: Timestamp,
    ) -> Result<Offset, LogError> {
        let records = Vec::from_iter(records);
        let mut growth = self.growth.lock();
        growth.changing(&records);
        let written = self.write(&mut growth, &records, time);
        if written.is_err() {
            growth.give_up();
        }
        written.map(|()| self.lane.next_offset())
    }

    fn write(
        &self,
        growth: &mut Growth,
        records: &[Record],
        time: Timestamp,
    ) -> Result<(), LogError> {
        let mut builder = ChunkBuilder::new(Compression::None);
        let mut bytes = 0;
        for (number, record) in records.iter().enumerate() {
            builder.push(time, Some(&record.key), record.value.as_deref(), &[])?;
            bytes += record.len();
            if bytes >= CHUNK_BYTES || number + 1 == records.len() {
                let chunk = builder.finish(None)?;
                self.lane.append(chunk)?;
                growth.stored_bytes += chunk.len() as u64;
                builder.clear();
                bytes = 0;
            }
        }
        Ok(())
    }

    /// The partition that holds it.
    pub fn lane(&self) -> &StreamPartition {
        &self.lane
    }
}
