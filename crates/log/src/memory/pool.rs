//! The pool: all memory that holds stream data, in one shared-memory file.
//!
//! The file is divided into two arenas: one for the segments that lanes append to, and a small one for
//! data that catch-up readers bring back from disk, so that reading old data never takes memory from
//! ingestion. In each arena a buddy allocator hands out blocks of 64 KiB to 8 MiB.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use event_listener::Event;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

use crate::memory::buddy::{Buddy, order_of};
use crate::memory::buffer::BufferWriter;
use crate::memory::pinned::{PinnedBlocks, SEGMENTS_SHARE, WINDOWS_SHARE};

/// The smallest block, and the unit in which arenas count.
pub const BLOCK_BYTES_MIN: usize = 64 << 10;

/// The largest block: the capacity of the segments of a busy lane.
pub const BLOCK_BYTES_MAX: usize = 8 << 20;

/// A new segment takes at most this part of the pool's free memory, so that many lanes that become
/// busy together share it.
const SEGMENT_SHARE: usize = 16;

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
    segments: Mutex<Buddy>,
    windows: Mutex<Buddy>,
    pinned_segments: PinnedBlocks,
    pinned_windows: PinnedBlocks,
    /// Notified whenever a block comes back.
    freed: Event,
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
        let file = rustix::fs::memfd_create(
            "millstream-pool",
            rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&file, windows.end() as u64)?;
        // A peer that maps the file must never see it shrink under its feet.
        rustix::fs::fcntl_add_seals(
            &file,
            rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW,
        )?;
        let map = MmapOptions::new().len(windows.end()).map_raw(&file)?;
        // From now on no other process can map it to write into it.
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::FUTURE_WRITE)?;
        Ok(Arc::new(Pool {
            file,
            map,
            pinned_segments: segments.pinned(SEGMENTS_SHARE),
            pinned_windows: windows.pinned(WINDOWS_SHARE),
            segments: Mutex::new(segments),
            windows: Mutex::new(windows),
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
        let start = self.arena(arena).lock().allocate(order)?;
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
        BLOCK_BYTES_MIN << self.arena(arena).lock().order_max
    }

    /// Bytes of an arena that are handed out.
    pub fn used_bytes(&self, arena: Arena) -> usize {
        self.arena(arena).lock().used_bytes
    }

    /// The size of an arena in bytes.
    pub fn size_bytes(&self, arena: Arena) -> usize {
        self.arena(arena).lock().size_bytes
    }

    /// Notified whenever a block comes back.
    pub fn freed(&self) -> &Event {
        &self.freed
    }

    /// The pinned blocks of an arena.
    pub(crate) fn pinned(&self, arena: Arena) -> &PinnedBlocks {
        match arena {
            Arena::Segments => &self.pinned_segments,
            Arena::Windows => &self.pinned_windows,
        }
    }

    /// Takes a block back.
    pub(super) fn release(&self, arena: Arena, start: usize, order: usize) {
        self.arena(arena).lock().release(start, order);
        self.freed.notify(usize::MAX);
    }

    /// Returns the address of the file's first byte.
    pub(super) fn address(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn arena(&self, arena: Arena) -> &Mutex<Buddy> {
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
