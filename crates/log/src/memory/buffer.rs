//! Blocks of the pool: one writer fills a block, and readers hold slices of it.
//!
//! # Why sharing a block without a lock is right
//!
//! A block has one [`BufferWriter`] and any number of readers. The writer only writes at and
//! behind `filled`; readers only read before it. `filled` only grows, and the writer's `Release`
//! store of a new value happens after the bytes before it are written; the `Acquire` load in
//! [`Buffer::slice`] therefore sees them. A block returns to the allocator when its last `Arc`
//! goes, so no slice of its former life exists when it is handed out again.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Result;
use crate::memory::pool::{Arena, BLOCK_BYTES_MIN, Pool};

/// A block of the pool, for its readers.
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

    /// Bytes that may be read.
    pub fn filled(&self) -> usize {
        self.filled.load(Ordering::Acquire)
    }

    /// Returns a range of the filled bytes.
    ///
    /// # Panics
    /// When `range` reaches beyond it.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Slice {
        let filled = self.filled();
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
        unsafe { self.pool.address().add(self.start) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.release(self.arena, self.start, self.order);
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

/// The one writer of a block.
#[derive(Debug)]
pub struct BufferWriter {
    buffer: Arc<Buffer>,
}

impl BufferWriter {
    /// Returns the writer of a block that the pool has just handed out.
    pub(super) fn new(pool: Arc<Pool>, arena: Arena, start: usize, order: usize) -> BufferWriter {
        if arena == Arena::Segments {
            pool.heads().fetch_add(1, Ordering::Relaxed);
        }
        BufferWriter {
            buffer: Arc::new(Buffer {
                pool,
                arena,
                start,
                order,
                filled: AtomicUsize::new(0),
            }),
        }
    }

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

    /// Lets `fill` write into the next `len` bytes; `fill` returns how many it has filled, and readers see these.
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
        // writer, borrowed mutably, may go; the memory of the file is initialized (zeros at first, and after the system got
        // it back).
        let free =
            unsafe { std::slice::from_raw_parts_mut(self.buffer.pointer().add(filled), len) };
        let count = fill(free)?;
        assert!(count <= len, "filled {count} of {len} bytes");
        self.buffer.filled.store(filled + count, Ordering::Release);
        Ok(())
    }
}

impl Drop for BufferWriter {
    fn drop(&mut self) {
        if self.buffer.arena == Arena::Segments {
            self.buffer.pool.heads().fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A range of a block, which the slice keeps in place. Cloning copies no data.
#[derive(Clone)]
pub struct Slice {
    buffer: Arc<Buffer>,
    start: usize,
    len: usize,
}

impl Slice {
    /// Extends the slice by `range` of `buffer`, if that range follows it. Costs less than a
    /// slice of its own.
    ///
    /// # Panics
    /// When `range` reaches beyond the filled bytes.
    pub(crate) fn extend_in(&mut self, buffer: &Arc<Buffer>, range: Range<usize>) -> bool {
        let follows = Arc::ptr_eq(&self.buffer, buffer) && self.start + self.len == range.start;
        if follows {
            let filled = buffer.filled();
            assert!(range.end <= filled, "{range:?} of {filled} filled bytes");
            self.len += range.len();
        }
        follows
    }

    /// Returns where it begins in the pool's [shared](Pool::shared) file.
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

    /// Returns where its block begins in the shared file, and the block's size.
    pub fn block(&self) -> (usize, usize) {
        (self.buffer.start, self.buffer.capacity())
    }

    /// Returns whether no other slice, reader or writer holds its block.
    pub(crate) fn is_only_one(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1
    }

    /// Returns a range of this slice.
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
    fn slices_outlive_the_writer_and_free_the_block() {
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
    fn slicing_beyond_the_filled_bytes_panics() {
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
