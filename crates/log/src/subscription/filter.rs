//! A subscription's filter. It builds new chunks of the matching records in the memory for catch-up reads. A chunk
//! that matches as a whole is handed out where it lies.

use std::sync::Arc;

use event_listener::EventListener;
use millstream_base::Cursor;
use millstream_record::{Chunk, ChunkError, Chunks, Compression, Filter, Selected};

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::memory::buffer::Slice;
use crate::memory::decompression::{Lease, Need, REBUILT_BYTES};
use crate::memory::pool::Arena;
use crate::subscription::handed::Handed;

/// A filter hands out its matches once it has evaluated this many bytes of records: few stored bytes may hold
/// very many records.
const EVALUATED_BYTES: usize = 32 << 20;

/// Smaller chunks are copied, even if they match as a whole, when they lie beside rebuilt ones.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// Filters the chunks that are handed out. It leases its memory for one call of [`apply`](Self::apply).
#[derive(Debug)]
pub struct ChunkFilter {
    filter: Filter,
    core: Arc<Core>,
    /// The memory that the next chunk needs.
    need: Need,
    /// The last call found no memory for it.
    is_refused: bool,
}

/// The matches of one call.
struct Filtering<'a> {
    filter: &'a Filter,
    /// The largest block for matches.
    block_bytes_max: usize,
    lease: Lease,
    /// Bytes of records that were evaluated.
    evaluated_bytes: usize,
    /// The rebuilt matches. Empty while whole chunks are handed out where they lie.
    matches: Vec<u8>,
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

    /// Listens for freed memory, if there was none.
    pub fn listen(&self) -> Option<EventListener> {
        let freed = self.core.reads.decompression.freed(self.need);
        self.is_refused.then(|| freed.listen())
    }

    /// Removes the records that do not match, perhaps all. It may truncate the chunks, and then sets `handed.next`.
    ///
    /// # Errors
    /// When there is no memory to decompress them or for the matches ([`LogError::ReadBudget`]), or the records of
    /// the first chunk cannot be read ([`LogError::NotFiltered`]).
    pub fn apply(&mut self, handed: &mut Handed) -> Result<()> {
        let cursor = handed.chunks.cursor;
        loop {
            let lease = self.core.reads.decompression.try_take(self.need);
            self.is_refused = lease.is_none();
            let mut filtering = Filtering {
                filter: &self.filter,
                block_bytes_max: self.core.pool.block_bytes_max(Arena::Windows),
                lease: lease.ok_or(LogError::ReadBudget)?,
                evaluated_bytes: 0,
                matches: Vec::new(),
            };
            match filtering.apply(handed, self.need, &self.core) {
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

/// The reason why nothing was filtered.
enum NotFiltered {
    /// The first chunk needs more memory.
    Needs(Need),
    /// The records of the first chunk cannot be read.
    Chunk(ChunkError),
    /// There is no memory for the matches.
    ReadBudget,
}

impl Filtering<'_> {
    fn apply(&mut self, handed: &mut Handed, need: Need, core: &Core) -> Result<(), NotFiltered> {
        let mut chunks = Chunks::trusted(&handed.chunks.bytes);
        // The bytes of the evaluated chunks, and whether all of them match as a whole.
        let (mut bytes, mut is_whole, mut next) = (0, true, handed.from);
        while self.matches.len() < REBUILT_BYTES && self.evaluated_bytes < EVALUATED_BYTES {
            let Some(chunk) = chunks.next() else { break };
            let start = self.matches.len();
            let selected = chunk
                .map_err(NotFiltered::Chunk)
                .and_then(|chunk| Ok((self.select(&chunk, need)?, chunk)));
            let (selected, chunk) = match selected {
                Err(error) if bytes == 0 => return Err(error),
                // The next call returns the error, if it persists.
                Err(_) => break,
                Ok(selected) => selected,
            };
            if is_whole && selected != Selected::All {
                if bytes > COPIED_BYTES_MAX {
                    self.matches.truncate(start);
                    break;
                }
                self.matches
                    .splice(0..0, handed.chunks.bytes[..bytes].iter().copied());
                is_whole = false;
            } else if !is_whole && selected == Selected::All {
                if chunk.bytes().len() > COPIED_BYTES_MAX {
                    break;
                }
                self.matches.extend_from_slice(chunk.bytes());
            }
            bytes = chunks.position();
            next = chunk.header().next_offset();
        }
        let wanted = match (is_whole, self.matches.is_empty()) {
            (true, _) => handed.chunks.bytes.slice(0..bytes),
            (false, true) => handed.chunks.bytes.slice(0..0),
            (false, false) => self.rebuilt(core).ok_or(NotFiltered::ReadBudget)?,
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

    /// Evaluates a chunk, and appends its matches unless it matches as a whole.
    fn select(&mut self, chunk: &Chunk<'_>, need: Need) -> Result<Selected, NotFiltered> {
        let start = self.matches.len();
        let selected = self.evaluate(chunk, need)?;
        let (bytes, max) = (self.matches.len(), self.block_bytes_max);
        if start > 0 && bytes + COPIED_BYTES_MAX > max {
            // The next call begins with this chunk.
            self.matches.truncate(start);
        }
        match bytes + COPIED_BYTES_MAX > max {
            true => Err(NotFiltered::Chunk(ChunkError::TooLarge { bytes, max })),
            false => Ok(selected),
        }
    }

    /// Evaluates a chunk, if the lease is enough for it.
    fn evaluate(&mut self, chunk: &Chunk<'_>, need: Need) -> Result<Selected, NotFiltered> {
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
        let selected = self
            .filter
            .select(chunk, self.lease.decompressor(), &mut self.matches);
        self.evaluated_bytes += match (need, is_compressed) {
            (Need::Small, true) => self.lease.decompressor().last_bytes(),
            (Need::Small, false) => chunk.bytes().len(),
            // The lease is only for this chunk: others have their turn.
            (Need::Copy(_) | Need::Large, _) => EVALUATED_BYTES,
        };
        match selected {
            Err(ChunkError::DecompressedSize { .. }) if need == Need::Small => {
                Err(NotFiltered::Needs(Need::Large))
            }
            selected => selected.map_err(NotFiltered::Chunk),
        }
    }

    /// Copies the matches into the memory for catch-up reads; `None` if it is full.
    fn rebuilt(&self, core: &Core) -> Option<Slice> {
        let len = self.matches.len();
        let mut writer = core.reads.catch_up.allocate(len)?;
        writer
            .extend(len, |room| {
                room.copy_from_slice(&self.matches);
                Ok::<_, std::convert::Infallible>(len)
            })
            .unwrap_or_else(|never| match never {});
        Some(writer.buffer().slice(0..len))
    }
}
