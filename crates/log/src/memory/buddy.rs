//! A buddy allocator of blocks of an arena.

use std::collections::BTreeSet;

use crate::memory::pinned::PinnedBlocks;
use crate::memory::pool::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};

pub const ORDERS: usize = (BLOCK_BYTES_MAX / BLOCK_BYTES_MIN).ilog2() as usize + 1;

/// The smallest order whose blocks hold `bytes`.
pub fn order_of(bytes: usize) -> usize {
    let units = bytes.max(1).div_ceil(BLOCK_BYTES_MIN);
    units.next_power_of_two().ilog2() as usize
}

/// A buddy allocator over a range of the file. Low addresses are handed out first, which keeps the memory in use
/// together and small.
pub struct Buddy {
    /// First byte of the range.
    pub base: usize,
    pub size_bytes: usize,
    pub used_bytes: usize,
    pub order_max: usize,
    /// Free blocks by order, as byte positions relative to `base`.
    pub free: [BTreeSet<usize>; ORDERS],
}

impl Buddy {
    /// An arena of `bytes`, from `base` on, that has room for at least `blocks_min` of its largest
    /// blocks.
    pub fn new(base: usize, bytes: usize, blocks_min: usize) -> Buddy {
        let order_max = order_of(bytes / blocks_min).min(ORDERS - 1);
        let block = BLOCK_BYTES_MIN << order_max;
        let size_bytes = bytes.max(1).next_multiple_of(block);
        let mut free: [BTreeSet<usize>; ORDERS] = Default::default();
        free[order_max] = (0..size_bytes).step_by(block).collect();
        Buddy {
            base,
            size_bytes,
            used_bytes: 0,
            order_max,
            free,
        }
    }

    pub fn end(&self) -> usize {
        self.base + self.size_bytes
    }

    /// Returns the pins of its blocks: one in `share` of the largest may have pinned parts.
    pub fn pinned(&self, share: usize) -> PinnedBlocks {
        let block_bytes = BLOCK_BYTES_MIN << self.order_max;
        PinnedBlocks::new(self.base, self.size_bytes, block_bytes, share)
    }

    pub fn allocate(&mut self, order: usize) -> Option<usize> {
        assert!(order <= self.order_max, "a block of order {order}");
        let found = (order..=self.order_max).find(|&o| !self.free[o].is_empty())?;
        let at = self.free[found].pop_first()?;
        for half in (order..found).rev() {
            self.free[half].insert(at + (BLOCK_BYTES_MIN << half));
        }
        self.used_bytes += BLOCK_BYTES_MIN << order;
        Some(self.base + at)
    }

    pub fn release(&mut self, start: usize, order: usize) {
        self.used_bytes -= BLOCK_BYTES_MIN << order;
        let mut at = start - self.base;
        let mut order = order;
        while order < self.order_max && self.free[order].remove(&(at ^ (BLOCK_BYTES_MIN << order)))
        {
            at &= !(BLOCK_BYTES_MIN << order);
            order += 1;
        }
        let fresh = self.free[order].insert(at);
        assert!(fresh, "a block was freed twice");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::pool::BLOCK_BYTES_MAX;

    proptest! {
        /// Blocks never overlap, each is as large as asked for, and when all are back the arena is
        /// whole again.
        #[test]
        fn allocated_blocks_are_disjoint_and_merge_when_freed(
            steps in prop::collection::vec((any::<bool>(), 1..BLOCK_BYTES_MAX, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut buddy = Buddy::new(4096, 64 << 20, 4);
            let mut live: Vec<(usize, usize)> = Vec::new();
            for (give, bytes, pick) in steps {
                if give || live.is_empty() {
                    let order = order_of(bytes);
                    if let Some(start) = buddy.allocate(order) {
                        let end = start + (BLOCK_BYTES_MIN << order);
                        prop_assert!(end - start >= bytes && start >= 4096 && end <= buddy.end());
                        for &(other, other_order) in &live {
                            let other_end = other + (BLOCK_BYTES_MIN << other_order);
                            prop_assert!(end <= other || other_end <= start);
                        }
                        live.push((start, order));
                    }
                } else {
                    let (start, order) = live.swap_remove(pick.index(live.len()));
                    buddy.release(start, order);
                }
            }
            for (start, order) in live {
                buddy.release(start, order);
            }
            prop_assert_eq!(buddy.used_bytes, 0);
            prop_assert_eq!(buddy.free[ORDERS - 1].len(), 8);
        }
    }
}
