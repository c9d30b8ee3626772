//! Pinned slices: long-held data of the log stays in place while it is little, and is copied beyond that.
//!
//! A slice keeps its whole block from being handed out again, and a small block keeps the largest one
//! that it is part of. So pins are counted in largest blocks: a share of these may have pinned parts,
//! and the others are there for appends and reads. Beyond the share, a slice is copied
//! once into memory beside the pool.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::memory::buffer::Slice;
use crate::memory::pool::{Arena, Pool};

/// One in this many of the largest blocks of the segments' arena may have pinned parts. The arena has
/// four of them at least.
pub const SEGMENTS_SHARE: usize = 4;

/// The same of the arena for catch-up readers, which has two at least.
pub const WINDOWS_SHARE: usize = 2;

/// Bytes of the log that their owner may hold without limit of time.
pub struct PinnedSlice(Storage);

enum Storage {
    /// Dropped in this order: the block is not free before its slice is gone.
    InPlace {
        slice: Slice,
        _pin: Pin,
    },
    Copied(Box<[u8]>),
}

impl PinnedSlice {
    /// Whether the bytes are the log's own, and no copy.
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Storage::InPlace { .. })
    }
}

impl Slice {
    /// Pins the slice for longer than a moment: in place if that leaves enough of the pool to others,
    /// and else as a copy.
    pub fn pin(self) -> PinnedSlice {
        PinnedSlice(match Pin::of(&self) {
            Some(pin) => Storage::InPlace {
                slice: self,
                _pin: pin,
            },
            None => Storage::Copied(Box::from(&*self)),
        })
    }
}

impl Deref for PinnedSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::InPlace { slice, .. } => slice,
            Storage::Copied(bytes) => bytes,
        }
    }
}

impl fmt::Debug for PinnedSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedSlice")
            .field("bytes", &self.len())
            .field("is_in_place", &self.is_in_place())
            .finish()
    }
}

/// The largest blocks of an arena that have pinned parts.
pub struct PinnedBlocks {
    /// First byte of the arena.
    base: usize,
    block_bytes: usize,
    /// The most pinned blocks.
    blocks_max: usize,
    /// The number of pinned slices of each; always above 0.
    slices: Mutex<BTreeMap<usize, usize>>,
}

impl PinnedBlocks {
    /// Returns a limit of one in `share` of an arena's largest blocks.
    pub fn new(base: usize, arena_bytes: usize, block_bytes: usize, share: usize) -> PinnedBlocks {
        PinnedBlocks {
            base,
            block_bytes,
            blocks_max: arena_bytes / block_bytes / share,
            slices: Mutex::default(),
        }
    }

    /// The largest block that a byte of the pool's file is part of.
    fn block_of(&self, position: usize) -> usize {
        (position - self.base) / self.block_bytes
    }

    fn pin(&self, block: usize) -> bool {
        let mut slices = self.slices.lock();
        let is_full = slices.len() >= self.blocks_max;
        match slices.get_mut(&block) {
            Some(count) => *count += 1,
            None if is_full => return false,
            None => {
                slices.insert(block, 1);
            }
        }
        true
    }

    fn unpin(&self, block: usize) {
        let mut slices = self.slices.lock();
        if let Some(count) = slices.get_mut(&block) {
            *count -= 1;
            if *count == 0 {
                slices.remove(&block);
            }
        }
    }
}

/// A pin on the block of a slice.
struct Pin {
    pool: Arc<Pool>,
    arena: Arena,
    block: usize,
}

impl Pin {
    fn of(slice: &Slice) -> Option<Pin> {
        let (pool, arena) = (Arc::clone(slice.pool()), slice.arena());
        let pinned = pool.pinned(arena);
        let block = pinned.block_of(slice.position());
        pinned.pin(block).then(|| Pin { pool, arena, block })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.pool.pinned(self.arena).unpin(self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::pool::BLOCK_BYTES_MIN;

    fn slice(pool: &Arc<Pool>, arena: Arena, bytes: usize) -> Slice {
        let mut writer = pool.allocate(arena, bytes).unwrap();
        let filled = writer.extend::<()>(bytes, |free| {
            free.fill(7);
            Ok(bytes)
        });
        filled.unwrap();
        writer.buffer().slice(0..bytes)
    }

    /// A pool of eight largest blocks beside two for catch-up readers, and the bytes of each.
    fn pool() -> (Arc<Pool>, usize) {
        let pool = Pool::new(64 << 20, 16 << 20).unwrap();
        let block = pool.block_bytes_max(Arena::Segments);
        assert_eq!(block, pool.block_bytes_max(Arena::Windows));
        assert_eq!(8 * block, pool.size_bytes(Arena::Segments));
        (pool, block)
    }

    #[test]
    fn pins_cover_at_most_a_quarter_of_the_largest_blocks() {
        let (pool, block) = pool();
        let small = 2 * block / BLOCK_BYTES_MIN;
        // Small blocks of two large ones, then of a third one.
        let pinned: Vec<_> = (0..small + 3)
            .map(|_| slice(&pool, Arena::Segments, BLOCK_BYTES_MIN).pin())
            .collect();
        assert!(pinned[..small].iter().all(PinnedSlice::is_in_place));
        assert!(!pinned[small..].iter().any(PinnedSlice::is_in_place));
        assert!(pinned.iter().all(|pinned| **pinned == [7; BLOCK_BYTES_MIN]));
        let free: Vec<_> = std::iter::from_fn(|| pool.allocate(Arena::Segments, block)).collect();
        assert_eq!(free.len(), 6);
    }

    #[test]
    fn dropped_pins_make_room_for_others() {
        let (pool, block) = pool();
        for arena in [Arena::Segments, Arena::Windows] {
            let blocks = pool.size_bytes(arena) / block;
            let pin = || slice(&pool, arena, block).pin();
            let mut pinned: Vec<_> = (0..blocks - 1).map(|_| pin()).collect();
            let in_place = pinned.iter().filter(|pinned| pinned.is_in_place()).count();
            let expected = match arena {
                Arena::Segments => blocks / SEGMENTS_SHARE,
                Arena::Windows => blocks / WINDOWS_SHARE,
            };
            assert_eq!(in_place, expected);
            assert!(!pin().is_in_place());
            assert!(pinned.remove(0).is_in_place());
            assert!(pin().is_in_place());
            drop(pinned);
            assert_eq!(pool.used_bytes(arena), 0);
        }
    }
}
