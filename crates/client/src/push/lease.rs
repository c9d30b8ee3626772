//! Chunks in place in the server's memory.

use std::ops::{ControlFlow, Range};
use std::sync::{Arc, OnceLock};

use millstream_base::Offset;
use millstream_record::{Chunk, ChunkError, Chunks, Compression, Decompressor, Record};
use millstream_share::{Hold, Slice, State};

use super::session::{Session, has_stalled, reason_of};
use crate::error::ClientError;
use crate::offsets::TopicPartition;

/// Whole chunks, which the server leaves in place while this is held, but not forever.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Dropped first: the server may then reuse the memory.
    hold: Hold,
    slice: Slice,
    session: Arc<Session>,
    /// Set by the reader that finds the chunks gone; read by the consumer that returned them.
    torn: Arc<OnceLock<Torn>>,
}

/// The reason why the records read are void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Torn {
    /// The subscription has ended.
    Ended,
    /// The client held the memory for too long.
    Stalled,
}

impl Lease {
    pub fn new(hold: Hold, slice: Slice, session: Arc<Session>) -> Lease {
        Lease {
            hold,
            slice,
            session,
            torn: Arc::default(),
        }
    }

    /// Returns the bytes. They may change at any moment; the bytes read before are valid only if
    /// [`is_live`](Self::is_live) returns true afterwards.
    pub fn bytes(&self) -> &[u8] {
        &self.slice
    }

    /// Returns whether all bytes read so far were in place.
    pub fn is_live(&self) -> bool {
        self.hold.is_live()
    }

    /// Returns the error with which the subscription has ended, if it has.
    pub fn end_of_subscription(&self) -> Option<ClientError> {
        match self.session.state() {
            State::Live => None,
            State::Ended(code) => Some(self.session.end(code)),
        }
    }

    /// Returns the cell that is set once a read finds the chunks gone.
    pub fn torn(&self) -> &Arc<OnceLock<Torn>> {
        &self.torn
    }

    /// Gives each record of these offsets to `take`, until that breaks. The last chunk ends with them; the first may
    /// begin before them.
    ///
    /// # Errors
    /// When the server has taken the memory back, or `skip` fails at damaged records.
    pub fn each(
        &self,
        offsets: Range<Offset>,
        decompressor: &mut Decompressor,
        take: &mut impl FnMut(&Record<'_>) -> ControlFlow<()>,
        skip: impl Fn(DamagedRecords) -> Result<(), ClientError>,
    ) -> Result<(), ClientError> {
        self.check()?;
        let Range { start: from, end } = offsets;
        let mut next = from;
        let mut copy = Vec::new();
        // The server has verified them, and no network has carried them since.
        for chunk in Chunks::trusted(&self.slice) {
            let chunk = match chunk {
                Ok(chunk) => chunk,
                Err(error) => {
                    self.check()?;
                    // The start of the next chunk is unknown.
                    let offsets = next..end;
                    return skip(DamagedRecords { offsets, error });
                }
            };
            next = chunk.header().next_offset();
            let read = match chunk.header().attributes.compression() {
                _ if chunk.header().attributes.is_control() => Ok(ControlFlow::Continue(())),
                Compression::None => give(&chunk, from, decompressor, take),
                _ => {
                    // Decompressors rely on bytes that do not change.
                    copy.clear();
                    copy.extend_from_slice(chunk.bytes());
                    match Chunk::trusted(&copy) {
                        Ok(chunk) => give(&chunk, from, decompressor, take),
                        Err(error) => Err(DamagedRecords::of(&chunk, from, error)),
                    }
                }
            };
            // The result counts only if the chunk was still in place.
            self.check()?;
            match read {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => break,
                Err(damaged) => skip(damaged)?,
            }
        }
        Ok(())
    }

    /// Returns whether the memory is still there. If it is not, the consumer returns its records again.
    ///
    /// # Errors
    /// When the server has taken the memory back.
    pub fn check(&self) -> Result<(), ClientError> {
        let State::Ended(code) = self.session.state() else {
            return Ok(());
        };
        self.torn.get_or_init(|| match has_stalled(code) {
            true => Torn::Stalled,
            false => Torn::Ended,
        });
        let why = reason_of(code);
        Err(ClientError::TakenBack { why })
    }
}

/// Records of a chunk that cannot be read.
pub(crate) struct DamagedRecords {
    pub offsets: Range<Offset>,
    pub error: ChunkError,
}

impl DamagedRecords {
    /// Returns the error of a reader that does not skip them.
    pub fn in_partition(self, place: &TopicPartition) -> ClientError {
        ClientError::Damaged {
            stream: place.topic.to_string(),
            partition: place.partition,
            offsets: self.offsets,
            error: Box::new(self.error),
        }
    }

    /// The records of a chunk from an offset on.
    fn of(chunk: &Chunk<'_>, from: Offset, error: ChunkError) -> DamagedRecords {
        let header = chunk.header();
        DamagedRecords {
            offsets: from.max(header.base_offset)..header.next_offset(),
            error,
        }
    }
}

/// Gives each record of a chunk from an offset on to `take`, until that breaks.
pub(crate) fn give(
    chunk: &Chunk<'_>,
    from: Offset,
    decompressor: &mut Decompressor,
    take: &mut impl FnMut(&Record<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, DamagedRecords> {
    let mut next = from;
    let damaged = |next, error| DamagedRecords::of(chunk, next, error);
    let records = chunk.records(decompressor);
    for record in records.map_err(|error| damaged(next, error))? {
        let record = record.map_err(|error| damaged(next, error))?;
        next = next.max(record.offset.plus(1));
        if record.offset >= from && take(&record).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
