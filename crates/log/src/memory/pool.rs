//! The pool: all memory that holds stream data, in one shared-memory file.
//!
//! The file is divided into two arenas: one for the segments that lanes append to, and a small one for
//! data that catch-up readers bring back from disk, so that reading old data never takes memory from
//! ingestion. In each arena a buddy allocator hands out blocks of 64 KiB to 8 MiB. Blocks that stay free give their memory
//! back to the system.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, io};

use event_listener::Event;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, SealFlags};

use crate::memory::buddy::{Buddy, order_of};
use crate::memory::buffer::BufferWriter;
use crate::memory::pinned::{PinnedBlocks, SEGMENTS_SHARE, WINDOWS_SHARE};

/// The smallest block, and the unit in which arenas count.
pub const BLOCK_BYTES_MIN: usize = 64 << 10;

/// The largest block.
pub const BLOCK_BYTES_MAX: usize = 8 << 20;

/// A new segment takes at most this part of the pool's free memory, so that many lanes that become
/// busy together share it.
const SEGMENT_SHARE: usize = 16;

/// Segments may take this part of the pool for longer than they must …
const GOAL_SHARE: usize = 4;

/// … but no more than this: a reader that begins to read so far behind the head reads from memory. New pages for more would
/// cost more time than the reads of files that they save.
const GOAL_BYTES_MAX: usize = 64 << 20;

/// The heads of all lanes together take about this part of the goal: where they fill at the same time, as many full segments
/// are beside them.
const HEADS_SHARE: usize = 2;

/// The largest segment of a lane that is written to disk. Larger ones would save little time, and the heads of few lanes would
/// take all of the goal.
const HEAD_BYTES_MAX: usize = 2 << 20;

/// A segment of a busy lane has room for about this many chunks, so that little of it stays empty.
const CHUNKS_MIN: usize = 4;

/// The purpose of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arena {
    /// Segments that lanes append to.
    Segments,
    /// Windows of group files for catch-up readers.
    Windows,
}

/// The memory of a node's log.
pub struct Pool {
    /// Other processes map it to read.
    file: OwnedFd,
    map: MmapRaw,
    segments: ArenaState,
    windows: ArenaState,
    /// The segments that have a writer. Changed by writers as they begin and end, loaded by appends that open a segment.
    heads: AtomicUsize,
    /// Notified whenever a block comes back.
    freed: Event,
}

/// An arena.
struct ArenaState {
    blocks: Mutex<Buddy>,
    /// Held while a free block is out of the arena, so that the system can free its pages. Locked before `blocks`.
    giving_back: Mutex<()>,
    pinned: PinnedBlocks,
    size_bytes: usize,
    block_bytes_max: usize,
    /// The bytes that are handed out. Stored under the lock of `blocks`, loaded by appends and eviction.
    used_bytes: AtomicUsize,
}

impl ArenaState {
    fn new(blocks: Buddy, pinned_share: usize) -> ArenaState {
        ArenaState {
            pinned: blocks.pinned(pinned_share),
            size_bytes: blocks.size_bytes,
            block_bytes_max: BLOCK_BYTES_MIN << blocks.order_max,
            used_bytes: AtomicUsize::new(0),
            giving_back: Mutex::default(),
            blocks: Mutex::new(blocks),
        }
    }

    fn allocate(&self, order: usize) -> Option<usize> {
        self.try_allocate(order).or_else(|| {
            // The free block may be out of the arena for a moment.
            let _none_is_out = self.giving_back.lock();
            self.try_allocate(order)
        })
    }

    fn try_allocate(&self, order: usize) -> Option<usize> {
        let mut blocks = self.blocks.lock();
        let start = blocks.allocate(order);
        self.used_bytes.store(blocks.used_bytes, Ordering::Relaxed);
        start
    }

    fn release(&self, start: usize, order: usize) {
        let mut blocks = self.blocks.lock();
        blocks.release(start, order);
        self.used_bytes.store(blocks.used_bytes, Ordering::Relaxed);
    }
}

impl Pool {
    /// A pool with room for `segments_bytes` of segments and `windows_bytes` of windows, each
    /// rounded up to whole blocks of the largest size they may use.
    ///
    /// # Errors
    /// When the operating system has no shared memory of this size to offer.
    pub fn new(segments_bytes: usize, windows_bytes: usize) -> io::Result<Arc<Pool>> {
        let segments = Buddy::new(0, segments_bytes, 4);
        let windows = Buddy::new(segments.end(), windows_bytes, 2);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("millstream-pool", flags)?;
        rustix::fs::ftruncate(&file, windows.end() as u64)?;
        // A peer that maps the file must never see it shrink under its feet.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        let map = MmapOptions::new().len(windows.end()).map_raw(&file)?;
        // Other processes of the user open it to read only. The seal against writes would also refuse to give memory back.
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        Ok(Arc::new(Pool {
            file,
            map,
            segments: ArenaState::new(segments, SEGMENTS_SHARE),
            windows: ArenaState::new(windows, WINDOWS_SHARE),
            heads: AtomicUsize::new(0),
            freed: Event::new(),
        }))
    }

    /// By which other processes of the same user open the file, and how many bytes it has.
    pub fn shared(&self) -> (PathBuf, usize) {
        let (process, file) = (std::process::id(), self.file.as_raw_fd());
        let path = format!("/proc/{process}/fd/{file}");
        (path.into(), self.map.len())
    }

    /// A block of at least `bytes`, or `None` when the arena has none free.
    ///
    /// # Panics
    /// When `bytes` is more than [`Pool::block_bytes_max`] of the arena.
    pub fn allocate(self: &Arc<Self>, arena: Arena, bytes: usize) -> Option<BufferWriter> {
        let order = order_of(bytes);
        let start = self.arena(arena).allocate(order)?;
        Some(BufferWriter::new(Arc::clone(self), arena, start, order))
    }

    /// A block for a segment with room for `bytes` at least: of `wanted` bytes, unless that is more than
    /// a share of the free memory. `None` when none is.
    pub fn allocate_segment(self: &Arc<Self>, wanted: usize, bytes: usize) -> Option<BufferWriter> {
        let free = self.size_bytes(Arena::Segments) - self.used_bytes(Arena::Segments);
        let block_bytes_max = self.block_bytes_max(Arena::Segments);
        let wanted = wanted.min(free / SEGMENT_SHARE).min(block_bytes_max);
        let wanted = wanted.max(bytes);
        self.allocate(Arena::Segments, wanted)
            .or_else(|| self.allocate(Arena::Segments, bytes))
    }

    /// The largest block that an arena can hand out.
    pub fn block_bytes_max(&self, arena: Arena) -> usize {
        self.arena(arena).block_bytes_max
    }

    /// Bytes of an arena that are handed out.
    pub fn used_bytes(&self, arena: Arena) -> usize {
        self.arena(arena).used_bytes.load(Ordering::Relaxed)
    }

    /// The size of an arena in bytes.
    pub fn size_bytes(&self, arena: Arena) -> usize {
        self.arena(arena).size_bytes
    }

    /// The bytes of an arena that take memory: those in use, and free ones that were in use before and were not given back.
    pub fn resident_bytes(&self, arena: Arena) -> usize {
        self.arena(arena).blocks.lock().resident_bytes
    }

    /// Returns the bytes of segments that may be in use for longer than they must.
    pub fn goal_bytes(&self) -> usize {
        (self.size_bytes(Arena::Segments) / GOAL_SHARE).min(GOAL_BYTES_MAX)
    }

    /// Returns the size of the next segment of a busy lane that is written to disk, behind one of `last_bytes`, for a chunk of
    /// `bytes`: twice as large, while the heads of all lanes take a part of the goal only.
    pub fn next_segment_bytes(&self, last_bytes: usize, bytes: usize) -> usize {
        (2 * last_bytes).min(self.head_bytes_max().max(CHUNKS_MIN * bytes))
    }

    fn head_bytes_max(&self) -> usize {
        let heads = self.heads.load(Ordering::Relaxed).max(1);
        (self.goal_bytes() / HEADS_SHARE / heads).clamp(BLOCK_BYTES_MIN, HEAD_BYTES_MAX)
    }

    /// Gives the memory of blocks back to the system that were free at the call before and ever since.
    pub fn give_back_idle(&self) {
        for arena in [&self.segments, &self.windows] {
            let idle = arena.blocks.lock().begin_turn();
            for idle in idle {
                let one = arena.giving_back.lock();
                if !arena.blocks.lock().take(&idle) {
                    continue;
                }
                // Other blocks are handed out while the system frees the pages of this one.
                let given_back = idle.ranges.iter().try_for_each(|range| self.discard(range));
                arena.blocks.lock().put_back(idle, given_back.is_ok());
                // An append that waits for the block gets it now.
                MutexGuard::unlock_fair(one);
                if let Err(error) = given_back {
                    tracing::debug!(%error, "idle memory of the pool stays with the process");
                    return;
                }
            }
        }
    }

    /// Frees the pages of a range that holds nothing: it reads as zeros then.
    fn discard(&self, range: &Range<usize>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, range.start as u64, range.len() as u64)?;
        Ok(())
    }

    /// Notified whenever a block comes back.
    pub fn freed(&self) -> &Event {
        &self.freed
    }

    /// The pinned blocks of an arena.
    pub(crate) fn pinned(&self, arena: Arena) -> &PinnedBlocks {
        &self.arena(arena).pinned
    }

    /// The number of segments that have a writer.
    pub(super) fn heads(&self) -> &AtomicUsize {
        &self.heads
    }

    /// Takes a block back.
    pub(super) fn release(&self, arena: Arena, start: usize, order: usize) {
        self.arena(arena).release(start, order);
        self.freed.notify(usize::MAX);
    }

    /// Returns the address of the file's first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn arena(&self, arena: Arena) -> &ArenaState {
        match arena {
            Arena::Segments => &self.segments,
            Arena::Windows => &self.windows,
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn fill(writer: &mut BufferWriter, byte: u8) {
        let room = writer.room();
        let filled = writer.extend::<()>(room, |free| {
            free.fill(byte);
            Ok(room)
        });
        filled.unwrap();
    }

    /// The memory that the pool's file takes.
    fn file_bytes(pool: &Pool) -> u64 {
        let (path, _) = pool.shared();
        std::fs::metadata(path).unwrap().blocks() * 512
    }

    #[test]
    fn memory_that_stays_free_goes_back_to_the_system() {
        let pool = Pool::new(64 << 20, 16 << 20).unwrap();
        let mut held = pool.allocate(Arena::Segments, 1 << 20).unwrap();
        let mut freed = pool.allocate(Arena::Segments, 8 << 20).unwrap();
        let mut window = pool.allocate(Arena::Windows, 4 << 20).unwrap();
        for writer in [&mut held, &mut freed, &mut window] {
            fill(writer, 7);
        }
        assert_eq!(file_bytes(&pool), 13 << 20);
        drop((freed, window));
        pool.give_back_idle();
        assert_eq!(pool.resident_bytes(Arena::Segments), 9 << 20);
        pool.give_back_idle();
        assert_eq!(pool.resident_bytes(Arena::Segments), 1 << 20);
        assert_eq!(pool.resident_bytes(Arena::Windows), 0);
        assert_eq!(file_bytes(&pool), 1 << 20);
        assert!(
            held.buffer()
                .slice(0..1 << 20)
                .iter()
                .all(|byte| *byte == 7)
        );
        // It is handed out again, as zeros.
        let mut again = pool.allocate(Arena::Segments, 8 << 20).unwrap();
        again.skip(8 << 20);
        assert!(
            again
                .buffer()
                .slice(0..8 << 20)
                .iter()
                .all(|byte| *byte == 0)
        );
    }

    #[test]
    fn heads_are_counted_while_they_are_written() {
        let pool = Pool::new(64 << 20, 16 << 20).unwrap();
        let first = pool.allocate_segment(1 << 20, 1).unwrap();
        let second = pool.allocate_segment(1 << 20, 1).unwrap();
        let _window = pool.allocate(Arena::Windows, 1).unwrap();
        let heads = || pool.heads().load(Ordering::Relaxed);
        assert_eq!(heads(), 2);
        let slice = first.buffer().slice(0..0);
        drop((first, second));
        assert_eq!(heads(), 0);
        drop(slice);
    }

    #[test]
    fn the_heads_of_many_lanes_are_small() {
        let pool = Pool::new(256 << 20, 16 << 20).unwrap();
        assert_eq!(pool.goal_bytes(), 64 << 20);
        assert_eq!(pool.head_bytes_max(), 2 << 20);
        let segment = || pool.allocate_segment(BLOCK_BYTES_MIN, 1).unwrap();
        let mut heads: Vec<BufferWriter> = (0..128).map(|_| segment()).collect();
        assert_eq!(pool.head_bytes_max(), 256 << 10);
        heads.extend((128..2048).map(|_| segment()));
        assert_eq!(pool.head_bytes_max(), BLOCK_BYTES_MIN);
    }
}
