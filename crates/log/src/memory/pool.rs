//! The pool: all memory that holds stream data, in one shared-memory file.
//!
//! The file is divided into two arenas: one for the segments that lanes append to, and a small one for
//! data that catch-up readers bring back from disk, so that reading old data never takes memory from
//! ingestion. In each arena a buddy allocator hands out blocks of 64 KiB to 8 MiB.
//!
//! # Why sharing a block without a lock is right
//!
//! A block has one [`BufferWriter`] and any number of readers. The writer only writes at and
//! behind `filled`; readers only read before it. `filled` only grows, and the writer's `Release`
//! store of a new value happens after the bytes before it are written; the `Acquire` load in
//! [`Buffer::slice`] therefore sees them. A block returns to the allocator when its last `Arc`
//! goes, so no slice of its former life exists when it is handed out again.

#![allow(unsafe_code)]

use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fmt, io};

use event_listener::Event;
use memmap2::{MmapOptions, MmapRaw};
use parking_lot::Mutex;

use crate::error::Result;
use crate::memory::buddy::{Buddy, order_of};
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
        Some(BufferWriter {
            buffer: Arc::new(Buffer {
                pool: Arc::clone(self),
                arena,
                start,
                order,
                filled: AtomicUsize::new(0),
            }),
        })
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

/// A block of the pool, as its readers see it.
pub struct Buffer {
    pool: Arc<Pool>,
    arena: Arena,
    /// First byte in the map.
    start: usize,
    order: usize,
    /// Bytes that may be read. Stored by the one writer (`Release`, in [`BufferWriter`]), loaded by
    /// readers (`Acquire`, in [`Buffer::slice`]); only grows.
    filled: AtomicUsize,
}

impl Buffer {
    /// Bytes that the block has room for.
    pub fn capacity(&self) -> usize {
        BLOCK_BYTES_MIN << self.order
    }

    /// Returns a part of the filled bytes.
    ///
    /// # Panics
    /// When `range` reaches beyond it.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Slice {
        let filled = self.filled.load(Ordering::Acquire);
        assert!(
            range.start <= range.end && range.end <= filled,
            "slice {range:?} of a buffer filled up to {filled}"
        );
        Slice {
            buffer: Arc::clone(self),
            start: range.start,
            len: range.end - range.start,
        }
    }

    fn pointer(&self) -> *mut u8 {
        // SAFETY: `start` lies in the map: the allocator hands out only blocks within it.
        unsafe { self.pool.map.as_mut_ptr().add(self.start) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool
            .arena(self.arena)
            .lock()
            .release(self.start, self.order);
        self.pool.freed.notify(usize::MAX);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("start", &self.start)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The one that may fill a block.
#[derive(Debug)]
pub struct BufferWriter {
    buffer: Arc<Buffer>,
}

impl BufferWriter {
    /// Returns the block, to read the filled bytes.
    pub fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Bytes filled so far.
    pub fn filled(&self) -> usize {
        // Only this writer stores it.
        self.buffer.filled.load(Ordering::Relaxed)
    }

    /// Bytes that are still free.
    pub fn room(&self) -> usize {
        self.buffer.capacity() - self.filled()
    }

    /// Leaves the next `len` bytes as they are: no reader may read them.
    ///
    /// # Panics
    /// When there is no room for them.
    pub fn skip(&mut self, len: usize) {
        assert!(len <= self.room(), "{len} bytes of {}", self.room());
        self.buffer.filled.fetch_add(len, Ordering::Release);
    }

    /// Lets `fill` write into the next `len` bytes; readers see the part it says it has filled.
    ///
    /// # Errors
    /// The error of `fill`; then nothing is added.
    ///
    /// # Panics
    /// When there is no room for `len` bytes, or `fill` claims more than it got.
    pub fn extend<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        assert!(len <= self.room(), "{len} bytes into {}", self.room());
        let filled = self.filled();
        // SAFETY: the range lies in the block (checked above) and behind `filled`, where only this
        // writer, borrowed mutably, may go; the memory of the file is initialized (zeros at first).
        let free =
            unsafe { std::slice::from_raw_parts_mut(self.buffer.pointer().add(filled), len) };
        let count = fill(free)?;
        assert!(count <= len, "filled {count} of {len} bytes");
        self.buffer.filled.store(filled + count, Ordering::Release);
        Ok(())
    }
}

/// A part of a block, which stays where it is as long as this lives. Cloning copies no data.
#[derive(Clone)]
pub struct Slice {
    buffer: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Slice {
    /// Extends the slice by `range` of `buffer`, if that is what follows it. Costs less than a
    /// slice of its own.
    ///
    /// # Panics
    /// When `range` reaches beyond the filled bytes.
    pub(crate) fn extend_in(&mut self, buffer: &Arc<Buffer>, range: Range<usize>) -> bool {
        let follows = Arc::ptr_eq(&self.buffer, buffer) && self.start + self.len == range.start;
        if follows {
            let filled = buffer.filled.load(Ordering::Acquire);
            assert!(range.end <= filled, "{range:?} of {filled} filled bytes");
            self.len += range.len();
        }
        follows
    }

    /// Where it begins in the pool's [shared](Pool::shared) file.
    pub fn position(&self) -> usize {
        self.buffer.start + self.start
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.buffer.pool
    }

    /// The arena of its block.
    pub fn arena(&self) -> Arena {
        self.buffer.arena
    }

    /// The block that it holds: where that begins in the shared file, and its size.
    pub fn block(&self) -> (usize, usize) {
        (self.buffer.start, self.buffer.capacity())
    }

    /// Whether it is the only one that holds its block.
    pub(crate) fn is_only_one(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    /// A part of this slice.
    ///
    /// # Panics
    /// When `range` reaches beyond it.
    pub fn slice(&self, range: Range<usize>) -> Slice {
        assert!(range.start <= range.end && range.end <= self.len);
        Slice {
            buffer: Arc::clone(&self.buffer),
            start: self.start + range.start,
            len: range.end - range.start,
        }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range was below `filled` when the slice was made (`Buffer::slice`), so it is
        // written and never written again; the `Arc` keeps the block from being handed out anew.
        unsafe { std::slice::from_raw_parts(self.buffer.pointer().add(self.start), self.len) }
    }
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(writer: &mut BufferWriter, bytes: &[u8]) {
        writer
            .extend::<()>(bytes.len(), |free| {
                free.copy_from_slice(bytes);
                Ok(bytes.len())
            })
            .unwrap();
    }

    #[test]
    fn slices_outlive_the_writer_and_give_the_block_back() {
        let pool = Pool::new(1 << 20, 1 << 20).unwrap();
        let mut writer = pool.allocate(Arena::Segments, 100).unwrap();
        fill(&mut writer, b"hello ");
        let first = writer.buffer().slice(0..6);
        fill(&mut writer, b"world");
        let all = writer.buffer().slice(0..11);
        assert_eq!(pool.used_bytes(Arena::Segments), BLOCK_BYTES_MIN);
        drop(writer);
        assert_eq!((&*first, &*all), (&b"hello "[..], &b"hello world"[..]));
        drop((first, all));
        assert_eq!(pool.used_bytes(Arena::Segments), 0);
    }

    #[test]
    #[should_panic(expected = "filled up to 2")]
    fn nothing_is_read_that_was_not_filled() {
        let pool = Pool::new(1 << 20, 1 << 20).unwrap();
        let mut writer = pool.allocate(Arena::Segments, 100).unwrap();
        fill(&mut writer, b"ab");
        writer.buffer().slice(0..3);
    }

    #[test]
    fn a_failed_fill_adds_nothing() {
        let pool = Pool::new(1 << 20, 1 << 20).unwrap();
        let mut writer = pool.allocate(Arena::Windows, 100).unwrap();
        assert_eq!(writer.extend(10, |_| Err("no")), Err("no"));
        assert_eq!(writer.filled(), 0);
    }
}
