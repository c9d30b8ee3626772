//! What a coordinator keeps: a stream of the log with one lane, whose records are states by key. A later
//! one takes the place of an earlier one, and one without value removes it.

use bytes::Bytes;
use millstream_base::{Offset, Timestamp};
use millstream_log::{AtLeast, Lane, Log, LogError};
use millstream_record::{ChunkBuilder, Chunks, Compression, Scratch};

/// How much is read at once at a start.
const READ_BYTES: usize = 1 << 20;

/// How large a chunk may become. One record more may be in it.
const CHUNK_BYTES: usize = 512 << 10;

/// A key, and what is so from now on; `None` for nothing.
pub type State = (Bytes, Option<Bytes>);

/// A stream of states.
#[derive(Debug)]
pub struct Ledger {
    lane: Lane,
}

impl Ledger {
    /// The ledger of this name, which is made if there is none.
    ///
    /// # Errors
    /// When the log cannot make it.
    pub fn open(log: &Log, name: &str) -> Result<Ledger, LogError> {
        let stream = log.internal_stream(name)?;
        let lane = stream.partition(0)?;
        Ok(Ledger { lane })
    }

    /// All that was ever appended and is still kept, in its order.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(&self) -> Result<Vec<State>, LogError> {
        let mut states = Vec::new();
        let mut scratch = Scratch::default();
        let (mut at, end) = (self.lane.earliest_offset(), self.lane.durable_offset());
        while at < end {
            let fetched = self.lane.fetch(at, end, READ_BYTES, AtLeast::OneChunk)?;
            for piece in &fetched.pieces {
                for chunk in Chunks::trusted(piece) {
                    for record in chunk?.records(&mut scratch)? {
                        let record = record?;
                        let key = Bytes::copy_from_slice(record.key.unwrap_or_default());
                        states.push((key, record.value.map(Bytes::copy_from_slice)));
                    }
                }
            }
            at = fetched.next;
        }
        Ok(states)
    }

    /// Appends states; returns the offset up to which they have to be durable before anybody is told.
    ///
    /// # Errors
    /// When the log does not take them: some of them may be in it.
    pub fn append(
        &self,
        states: impl IntoIterator<Item = State>,
        time: Timestamp,
    ) -> Result<Offset, LogError> {
        let mut builder = ChunkBuilder::new(Compression::None);
        let mut bytes = 0;
        for (key, value) in states {
            builder.push(time, Some(&key), value.as_deref(), &[])?;
            bytes += key.len() + value.map_or(0, |value| value.len());
            if bytes >= CHUNK_BYTES {
                self.lane.append(builder.finish(None)?)?;
                builder = ChunkBuilder::new(Compression::None);
                bytes = 0;
            }
        }
        if !builder.is_empty() {
            self.lane.append(builder.finish(None)?)?;
        }
        Ok(self.lane.next_offset())
    }

    /// The lane that it is kept in.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }
}
