//! A subscription's filter: matching records are put together anew, in the memory for catch-up reads, unless it
//! can be handed out where it lies.

use std::sync::Arc;

use event_listener::EventListener;
use millstream_base::Cursor;
use millstream_record::{Chunk, ChunkError, Chunks, Compression, Filter, Selected};

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::memory::decompression::{Lease, Need, REBUILT_BYTES};
use crate::memory::pool::{Arena, Slice};
use crate::subscription::handed::Handed;

/// When this many bytes of records were looked through, the matches until then are handed out: few bytes
/// that are stored may be very many records.
const LOOKED_BYTES: usize = 32 << 20;

/// Chunks that match as a whole are handed out where they lie, unless they are smaller and come between others.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// Filters the chunks that are handed out. All memory that it takes is leased for one call of [`apply`](Self::apply).
#[derive(Debug)]
pub struct ChunkFilter {
    filter: Filter,
    core: Arc<Core>,
    /// The memory that the next chunk needs.
    need: Need,
    /// There was no memory for that when it was last looked.
    is_refused: bool,
}

/// The matches of one call.
struct Filtering<'a> {
    filter: &'a Filter,
    /// The largest chunk to be put together.
    block_bytes_max: usize,
    lease: Lease,
    /// Bytes of records that were looked through.
    looked_bytes: usize,
    /// The matches, if they are not handed out where they lie.
    kept: Vec<u8>,
}

impl ChunkFilter {
    pub fn new(filter: Filter, core: &Arc<Core>) -> ChunkFilter {
        ChunkFilter {
            filter,
            core: Arc::clone(core),
            need: Need::Small,
            is_refused: false,
        }
    }

    /// Hears when there may be memory to go on with, if there was none.
    pub fn listen(&self) -> Option<EventListener> {
        let freed = self.core.reads.decompression.freed(self.need);
        self.is_refused.then(|| freed.listen())
    }

    /// Leaves the matching ones of the chunks; none, perhaps. It may come to an end before they do.
    ///
    /// # Errors
    /// When there is no memory to look through them or for the matches ([`LogError::ReadBudget`]), or the records of
    /// the first chunk cannot be looked through ([`LogError::NotFiltered`]).
    pub fn apply(&mut self, handed: &mut Handed) -> Result<()> {
        let cursor = handed.chunks.cursor;
        loop {
            let lease = self.core.reads.decompression.try_take(self.need);
            self.is_refused = lease.is_none();
            let mut sifting = Filtering {
                filter: &self.filter,
                block_bytes_max: self.core.pool.block_bytes_max(Arena::Windows),
                lease: lease.ok_or(LogError::ReadBudget)?,
                looked_bytes: 0,
                kept: Vec::new(),
            };
            match sifting.apply(handed, self.need, &self.core) {
                Ok(()) => {
                    self.need = Need::Small;
                    return Ok(());
                }
                Err(NotFiltered::Needs(need)) => self.need = need,
                Err(NotFiltered::Chunk(error)) => {
                    self.need = Need::Small;
                    return Err(LogError::NotFiltered { cursor, error });
                }
                Err(NotFiltered::ReadBudget) => return Err(LogError::ReadBudget),
            }
        }
    }
}

/// Why nothing was sifted.
enum NotFiltered {
    /// The first chunk needs more memory.
    Needs(Need),
    /// The first chunk cannot be looked through.
    Chunk(ChunkError),
    /// There is no memory for the matches.
    ReadBudget,
}

impl Filtering<'_> {
    fn apply(&mut self, handed: &mut Handed, need: Need, core: &Core) -> Result<(), NotFiltered> {
        let mut chunks = Chunks::trusted(&handed.chunks.bytes);
        // How much is looked through, and whether all of it matches.
        let (mut bytes, mut is_whole, mut next) = (0, true, handed.from);
        while self.kept.len() < REBUILT_BYTES && self.looked_bytes < LOOKED_BYTES {
            let Some(chunk) = chunks.next() else { break };
            let start = self.kept.len();
            let kept = chunk
                .map_err(NotFiltered::Chunk)
                .and_then(|chunk| Ok((self.keep(&chunk, need)?, chunk)));
            let (kept, chunk) = match kept {
                Err(error) if bytes == 0 => return Err(error),
                // The next look finds out.
                Err(_) => break,
                Ok(kept) => kept,
            };
            if is_whole && kept != Selected::All {
                if bytes > COPIED_BYTES_MAX {
                    self.kept.truncate(start);
                    break;
                }
                self.kept
                    .splice(0..0, handed.chunks.bytes[..bytes].iter().copied());
                is_whole = false;
            } else if !is_whole && kept == Selected::All {
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
            (false, false) => self.kept(core).ok_or(NotFiltered::ReadBudget)?,
        };
        if bytes < handed.chunks.bytes.len() {
            let cursor = handed.chunks.cursor;
            handed.chunks.next = Cursor {
                position: cursor.position.plus(bytes as u64),
                ..cursor
            };
            handed.next = next;
        }
        handed.chunks.bytes = wanted;
        Ok(())
    }

    fn keep(&mut self, chunk: &Chunk<'_>, need: Need) -> Result<Selected, NotFiltered> {
        let start = self.kept.len();
        let kept = self.look_through(chunk, need)?;
        let (bytes, max) = (self.kept.len(), self.block_bytes_max);
        if start > 0 && bytes + COPIED_BYTES_MAX > max {
            // It comes first next time.
            self.kept.truncate(start);
        }
        match bytes + COPIED_BYTES_MAX > max {
            true => Err(NotFiltered::Chunk(ChunkError::TooLarge { bytes, max })),
            false => Ok(kept),
        }
    }

    /// Looks through a chunk, if the lease is enough for it.
    fn look_through(&mut self, chunk: &Chunk<'_>, need: Need) -> Result<Selected, NotFiltered> {
        let is_compressed = chunk.header().attributes.compression() != Compression::None;
        match Need::of(chunk) {
            Need::Copy(bytes) if need != Need::Copy(bytes) => {
                return Err(NotFiltered::Needs(Need::Copy(bytes)));
            }
            _ if matches!(need, Need::Copy(_)) && is_compressed => {
                return Err(NotFiltered::Needs(Need::Small));
            }
            _ => {}
        }
        let kept = self
            .filter
            .select(chunk, self.lease.decompressor(), &mut self.kept);
        self.looked_bytes += match (need, is_compressed) {
            (Need::Small, true) => self.lease.decompressor().last_bytes(),
            (Need::Small, false) => chunk.bytes().len(),
            // The lease is for this chunk alone: others have their turn.
            (Need::Copy(_) | Need::Large, _) => LOOKED_BYTES,
        };
        match kept {
            Err(ChunkError::DecompressedSize { .. }) if need == Need::Small => {
                Err(NotFiltered::Needs(Need::Large))
            }
            kept => kept.map_err(NotFiltered::Chunk),
        }
    }

    fn kept(&self, core: &Core) -> Option<Slice> {
        let len = self.kept.len();
        let mut writer = core.reads.catch_up.allocate(len)?;
        writer
            .extend(len, |room| {
                room.copy_from_slice(&self.kept);
                Ok::<_, std::convert::Infallible>(len)
            })
            .unwrap_or_else(|never| match never {});
        Some(writer.buffer().slice(0..len))
    }
}
