//! A subscription's filter: what it keeps is put together anew, in the memory for catch-up reads, unless it
//! can be handed out where it lies.

use std::sync::Arc;

use millstream_base::Cursor;
use millstream_record::{Chunk, ChunkError, Chunks, Compression, Filter, Kept, Scratch};

use super::Handed;
use crate::error::{LogError, Result};
use crate::pool::{Arena, Pool, Slice};

/// The most that the records of one chunk may take when they are decompressed: what they do take is known up
/// to the least of these that is enough. The last one is the most at all.
const SCRATCH_BYTES_MAX: [usize; 3] = [64 << 10, 1 << 20, 32 << 20];

/// When so many bytes of records were looked through, what is kept until then is handed out: few bytes
/// that are stored may be very many records.
const LOOKED_BYTES: usize = 32 << 20;

/// Chunks that are kept whole are handed out where they lie, unless they are smaller and come between others.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// When so much is kept it is handed out.
const KEPT_BYTES: usize = 1 << 20;

/// Filters what is handed out.
#[derive(Debug)]
pub struct Sieve {
    filter: Filter,
    pool: Arc<Pool>,
    /// For each of [`SCRATCH_BYTES_MAX`].
    scratches: [Scratch; 3],
    /// Bytes of records that were looked through this time, as far as is known: at most so many.
    looked_bytes: usize,
    /// What is kept, if it is not handed out where it lies.
    kept: Vec<u8>,
}

impl Sieve {
    pub fn new(filter: Filter, pool: &Arc<Pool>) -> Sieve {
        Sieve {
            filter,
            pool: Arc::clone(pool),
            scratches: SCRATCH_BYTES_MAX.map(Scratch::with_bytes_max),
            looked_bytes: 0,
            kept: Vec::new(),
        }
    }

    /// Leaves of the chunks what is wanted; none, perhaps. It may come to an end before they do.
    ///
    /// # Errors
    /// When there is no memory for what is kept ([`LogError::ReadBudget`]), or the records of the first chunk
    /// cannot be looked through ([`LogError::NotFiltered`]).
    pub fn sift(&mut self, handed: &mut Handed) -> Result<()> {
        self.kept.clear();
        self.kept.shrink_to(2 * KEPT_BYTES);
        let cursor = handed.chunks.cursor;
        let not_filtered = |error| LogError::NotFiltered { cursor, error };
        let mut chunks = Chunks::trusted(&handed.chunks.bytes);
        // How much is looked through, and whether all of it is kept.
        let (mut bytes, mut is_whole, mut next) = (0, true, handed.from);
        self.looked_bytes = 0;
        while self.kept.len() < KEPT_BYTES && self.looked_bytes < LOOKED_BYTES {
            let Some(chunk) = chunks.next() else { break };
            let start = self.kept.len();
            let kept = chunk.and_then(|chunk| Ok((self.keep(&chunk)?, chunk)));
            let (kept, chunk) = match kept {
                Err(error) if bytes == 0 => return Err(not_filtered(error)),
                // The next look tells.
                Err(_) => break,
                Ok(kept) => kept,
            };
            if is_whole && kept != Kept::All {
                if bytes > COPIED_BYTES_MAX {
                    self.kept.truncate(start);
                    break;
                }
                self.kept
                    .splice(0..0, handed.chunks.bytes[..bytes].iter().copied());
                is_whole = false;
            } else if !is_whole && kept == Kept::All {
                if chunk.bytes().len() > COPIED_BYTES_MAX {
                    break;
                }
                self.kept.extend_from_slice(chunk.bytes());
            }
            bytes = chunks.position();
            next = chunk.header().next_offset();
        }
        let wanted = match (is_whole, self.kept.is_empty()) {
            (true, _) => handed.chunks.bytes.slice(0..bytes),
            (false, true) => handed.chunks.bytes.slice(0..0),
            (false, false) => self.kept()?,
        };
        if bytes < handed.chunks.bytes.len() {
            handed.chunks.next = Cursor {
                position: cursor.position.plus(bytes as u64),
                ..cursor
            };
            handed.next = next;
        }
        handed.chunks.bytes = wanted;
        Ok(())
    }

    fn keep(&mut self, chunk: &Chunk<'_>) -> Result<Kept, ChunkError> {
        let start = self.kept.len();
        let kept = self.look_through(chunk)?;
        let (bytes, max) = (self.kept.len(), self.pool.block_bytes_max(Arena::Windows));
        if start > 0 && bytes + COPIED_BYTES_MAX > max {
            // It comes first next time.
            self.kept.truncate(start);
        }
        match bytes + COPIED_BYTES_MAX > max {
            true => Err(ChunkError::TooLarge { bytes, max }),
            false => Ok(kept),
        }
    }

    fn look_through(&mut self, chunk: &Chunk<'_>) -> Result<Kept, ChunkError> {
        let is_compressed = chunk.header().attributes.compression() != Compression::None;
        let mut kept = Ok(Kept::None);
        for (scratch, bytes_max) in self.scratches.iter_mut().zip(SCRATCH_BYTES_MAX) {
            self.looked_bytes += match is_compressed {
                true => bytes_max,
                false => chunk.bytes().len(),
            };
            kept = self.filter.keep(chunk, scratch, &mut self.kept);
            if !matches!(kept, Err(ChunkError::DecompressedSize { .. })) {
                break;
            }
        }
        kept
    }

    fn kept(&self) -> Result<Slice> {
        let len = self.kept.len();
        let writer = self.pool.allocate(Arena::Windows, len);
        let mut writer = writer.ok_or(LogError::ReadBudget)?;
        writer.extend(len, |room| {
            room.copy_from_slice(&self.kept);
            Ok::<_, LogError>(len)
        })?;
        Ok(writer.buffer().slice(0..len))
    }
}
