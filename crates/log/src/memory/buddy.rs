//! A buddy allocator of blocks of an arena.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::memory::pinned::PinnedBlocks;
use crate::memory::pool::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};

pub const ORDERS: usize = (BLOCK_BYTES_MAX / BLOCK_BYTES_MIN).ilog2() as usize + 1;

/// The smallest order whose blocks hold `bytes`.
pub fn order_of(bytes: usize) -> usize {
    let units = bytes.max(1).div_ceil(BLOCK_BYTES_MIN);
    units.next_power_of_two().ilog2() as usize
}

/// A buddy allocator over a range of the file. It hands out blocks whose pages take memory before others. Of the blocks of the
/// smallest order that fits, it takes the one that was freed last. So little memory is in use, and it is likely to be in
/// the processor's caches.
///
/// The owner begins a *turn* from time to time. Blocks that stay free for a whole turn are idle: their pages may go back to
/// the system.
pub struct Buddy {
    /// First byte of the range.
    pub base: usize,
    pub size_bytes: usize,
    pub used_bytes: usize,
    /// Bytes that take memory: those in use, and the free ones that were not given back to the system.
    pub resident_bytes: usize,
    pub order_max: usize,
    /// Free blocks by order, each with the last release of a part of it and its byte position relative to `base`.
    free: [BTreeSet<(Release, usize)>; ORDERS],
    /// The last release of each free unit, or [`CLEAN`] or [`IN_USE`].
    released: Vec<Release>,
    /// The number of releases so far.
    releases: Release,
    /// The number of releases at the beginning of this turn.
    turn: Release,
}

/// A release, by its number; later ones have higher numbers.
type Release = u64;

/// A free unit that takes no memory: it was never in use, or was given back to the system.
const CLEAN: Release = 0;

/// A unit in use.
const IN_USE: Release = Release::MAX;

/// A free block with parts that take memory and were free for a whole turn.
pub struct IdleBlock {
    at: usize,
    order: usize,
    /// The block's key in the list of free blocks.
    released: Release,
    /// Positions of the idle parts relative to the beginning of the file.
    pub ranges: Vec<Range<usize>>,
}

impl Buddy {
    /// An arena of `bytes`, from `base` on, that has room for at least `blocks_min` of its largest
    /// blocks.
    pub fn new(base: usize, bytes: usize, blocks_min: usize) -> Buddy {
        let order_max = order_of(bytes / blocks_min).min(ORDERS - 1);
        let block = BLOCK_BYTES_MIN << order_max;
        let size_bytes = bytes.max(1).next_multiple_of(block);
        let mut free: [BTreeSet<(Release, usize)>; ORDERS] = Default::default();
        free[order_max] = (0..size_bytes)
            .step_by(block)
            .map(|at| (CLEAN, at))
            .collect();
        Buddy {
            base,
            size_bytes,
            used_bytes: 0,
            resident_bytes: 0,
            order_max,
            free,
            released: vec![CLEAN; size_bytes / BLOCK_BYTES_MIN],
            releases: CLEAN,
            turn: CLEAN,
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
        let mut orders = order..=self.order_max;
        let is_resident = |order: &usize| {
            let last = self.free[*order].last();
            last.is_some_and(|(released, _)| *released != CLEAN)
        };
        let (found, (released, mut at)) = match orders.clone().find(is_resident) {
            Some(order) => (order, self.free[order].pop_last()?),
            None => {
                let order = orders.find(|order| !self.free[*order].is_empty())?;
                (order, self.free[order].pop_first()?)
            }
        };
        for half in (order..found).rev() {
            let mut other = at + (BLOCK_BYTES_MIN << half);
            // The half that was freed last.
            if self.last_release(half, at) != released {
                std::mem::swap(&mut at, &mut other);
            }
            self.insert_free(half, other);
        }
        self.used_bytes += BLOCK_BYTES_MIN << order;
        let taken = &mut self.released[units(order, at)];
        let clean = taken.iter().filter(|released| **released == CLEAN).count();
        self.resident_bytes += clean * BLOCK_BYTES_MIN;
        taken.fill(IN_USE);
        Some(self.base + at)
    }

    /// # Panics
    /// When a part of the block is free.
    pub fn release(&mut self, start: usize, order: usize) {
        let at = start - self.base;
        let freed = &mut self.released[units(order, at)];
        let is_in_use = freed.iter().all(|released| *released == IN_USE);
        assert!(is_in_use, "a block was freed twice");
        self.releases += 1;
        freed.fill(self.releases);
        self.used_bytes -= BLOCK_BYTES_MIN << order;
        self.merge(at, order);
    }

    /// Ends a turn and begins the next one. Returns the blocks that have parts which were free for all of the turn that ends.
    pub fn begin_turn(&mut self) -> Vec<IdleBlock> {
        let last = std::mem::replace(&mut self.turn, self.releases);
        let mut idle = Vec::new();
        for (order, blocks) in self.free.iter().enumerate() {
            for &(released, at) in blocks.range((CLEAN + 1, 0)..) {
                let ranges = self.idle_ranges(order, at, last);
                if !ranges.is_empty() {
                    idle.push(IdleBlock {
                        at,
                        order,
                        released,
                        ranges,
                    });
                }
            }
        }
        idle
    }

    /// Returns the parts of a free block that take memory and were released no later than `last`.
    fn idle_ranges(&self, order: usize, at: usize, last: Release) -> Vec<Range<usize>> {
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for unit in units(order, at) {
            let start = self.base + unit * BLOCK_BYTES_MIN;
            let is_idle = self.released[unit] != CLEAN && self.released[unit] <= last;
            match ranges.last_mut() {
                _ if !is_idle => {}
                Some(range) if range.end == start => range.end += BLOCK_BYTES_MIN,
                _ => ranges.push(start..start + BLOCK_BYTES_MIN),
            }
        }
        ranges
    }

    /// Takes an idle block out of the free ones. `false` when a part of it was in use since the turn began.
    pub fn take(&mut self, idle: &IdleBlock) -> bool {
        self.free[idle.order].remove(&(idle.released, idle.at))
    }

    /// Puts a block back that was taken out. With `is_given_back` its idle parts take no memory any more. Some of them may take
    /// none already: another thread found the block idle too, and a part that is not idle keeps the block's key.
    pub fn put_back(&mut self, idle: IdleBlock, is_given_back: bool) {
        if is_given_back {
            for range in &idle.ranges {
                let first = (range.start - self.base) / BLOCK_BYTES_MIN;
                let given = &mut self.released[first..first + range.len() / BLOCK_BYTES_MIN];
                let resident = given.iter().filter(|released| **released != CLEAN).count();
                self.resident_bytes -= resident * BLOCK_BYTES_MIN;
                given.fill(CLEAN);
            }
        }
        self.merge(idle.at, idle.order);
    }

    /// Adds a free block, joined with the free ones beside it.
    fn merge(&mut self, mut at: usize, mut order: usize) {
        while order < self.order_max {
            let buddy = at ^ (BLOCK_BYTES_MIN << order);
            let released = self.last_release(order, buddy);
            if !self.free[order].remove(&(released, buddy)) {
                break;
            }
            at = at.min(buddy);
            order += 1;
        }
        self.insert_free(order, at);
    }

    fn insert_free(&mut self, order: usize, at: usize) {
        let released = self.last_release(order, at);
        self.free[order].insert((released, at));
    }

    /// The last release of a part of a block.
    fn last_release(&self, order: usize, at: usize) -> Release {
        let parts = self.released[units(order, at)].iter();
        parts.copied().max().unwrap_or(CLEAN)
    }
}

/// The numbers of a block's units.
fn units(order: usize, at: usize) -> Range<usize> {
    let first = at / BLOCK_BYTES_MIN;
    first..first + (1 << order)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::pool::BLOCK_BYTES_MAX;

    #[derive(Debug, Clone)]
    enum Step {
        Allocate(usize),
        Release(prop::sample::Index),
        BeginTurn,
        Take,
        PutBack { is_given_back: bool },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1..BLOCK_BYTES_MAX).prop_map(Step::Allocate),
            4 => any::<prop::sample::Index>().prop_map(Step::Release),
            1 => Just(Step::BeginTurn),
            2 => Just(Step::Take),
            2 => any::<bool>().prop_map(|is_given_back| Step::PutBack { is_given_back }),
        ]
    }

    fn check_resident(buddy: &Buddy) {
        let resident = buddy.released.iter().filter(|unit| **unit != CLEAN).count();
        assert_eq!(buddy.resident_bytes, resident * BLOCK_BYTES_MIN);
        let used = buddy
            .released
            .iter()
            .filter(|unit| **unit == IN_USE)
            .count();
        assert_eq!(buddy.used_bytes, used * BLOCK_BYTES_MIN);
    }

    proptest! {
        /// Blocks never overlap one another or memory that goes back to the system, each is as large as asked for, and when all
        /// are back the arena is whole again.
        #[test]
        fn blocks_are_disjoint_and_merge_when_they_are_back(steps in prop::collection::vec(step(), 1..300)) {
            let mut buddy = Buddy::new(4096, 64 << 20, 4);
            let mut live: Vec<(usize, usize)> = Vec::new();
            let mut idle: Vec<IdleBlock> = Vec::new();
            let mut taken: Vec<IdleBlock> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(bytes) => {
                        let order = order_of(bytes);
                        let Some(start) = buddy.allocate(order) else {
                            continue;
                        };
                        let end = start + (BLOCK_BYTES_MIN << order);
                        prop_assert!(end - start >= bytes && start >= 4096 && end <= buddy.end());
                        let others = live.iter().map(|&(at, order)| at..at + (BLOCK_BYTES_MIN << order));
                        let punched = taken.iter().flat_map(|idle| idle.ranges.iter().cloned());
                        for other in others.chain(punched) {
                            prop_assert!(end <= other.start || other.end <= start);
                        }
                        live.push((start, order));
                    }
                    Step::Release(pick) if !live.is_empty() => {
                        let (start, order) = live.swap_remove(pick.index(live.len()));
                        buddy.release(start, order);
                    }
                    Step::Release(_) => {}
                    // Several threads may have found a block idle.
                    Step::BeginTurn => idle.extend(buddy.begin_turn()),
                    Step::Take => {
                        if let Some(block) = idle.pop()
                            && buddy.take(&block)
                        {
                            taken.push(block);
                        }
                    }
                    Step::PutBack { is_given_back } => {
                        if let Some(block) = taken.pop() {
                            buddy.put_back(block, is_given_back);
                        }
                    }
                }
                check_resident(&buddy);
            }
            for block in taken {
                buddy.put_back(block, true);
            }
            for (start, order) in live {
                buddy.release(start, order);
            }
            prop_assert_eq!(buddy.used_bytes, 0);
            prop_assert_eq!(buddy.free[ORDERS - 1].len(), 8);
            // Idle for a turn, all of it goes back to the system.
            buddy.begin_turn();
            give_back(&mut buddy);
            prop_assert_eq!(buddy.resident_bytes, 0);
            prop_assert_eq!(buddy.free[ORDERS - 1].len(), 8);
        }
    }

    /// Ends a turn, and gives the idle memory back. Returns its ranges.
    fn give_back(buddy: &mut Buddy) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        for idle in buddy.begin_turn() {
            assert!(buddy.take(&idle));
            ranges.extend(idle.ranges.iter().cloned());
            buddy.put_back(idle, true);
        }
        check_resident(buddy);
        ranges
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_block_that_is_freed_twice_is_found() {
        let mut buddy = Buddy::new(0, 64 << 20, 4);
        let first = buddy.allocate(0).unwrap();
        let _second = buddy.allocate(0).unwrap();
        buddy.release(first, 0);
        buddy.release(first, 0);
    }

    #[test]
    fn a_block_that_was_in_use_since_the_turn_began_is_not_taken() {
        let mut buddy = Buddy::new(0, 64 << 20, 4);
        let large = buddy.allocate(ORDERS - 1).unwrap();
        buddy.release(large, ORDERS - 1);
        buddy.begin_turn();
        let idle = buddy.begin_turn().pop().unwrap();
        let part = buddy.allocate(0).unwrap();
        assert!(!buddy.take(&idle));
        buddy.release(part, 0);
        assert!(!buddy.take(&idle));
    }

    #[test]
    fn a_part_that_two_threads_find_idle_counts_once() {
        let mut buddy = Buddy::new(0, 64 << 20, 4);
        let [first, second] = [(); 2].map(|()| buddy.allocate(0).unwrap());
        buddy.release(first, 0);
        buddy.begin_turn();
        buddy.release(second, 0);
        // The first thread finds one part of the block idle, and the second thread both.
        let found = [(); 2].map(|()| buddy.begin_turn().pop().unwrap());
        for (idle, resident) in found.into_iter().zip([BLOCK_BYTES_MIN, 0]) {
            assert!(buddy.take(&idle));
            buddy.put_back(idle, true);
            assert_eq!(buddy.resident_bytes, resident);
            check_resident(&buddy);
        }
    }

    #[test]
    fn the_block_that_was_freed_last_is_handed_out_first() {
        let mut buddy = Buddy::new(0, 64 << 20, 4);
        let blocks: Vec<usize> = (0..32).map(|_| buddy.allocate(4).unwrap()).collect();
        // The blocks beside them stay in use, so that they are not joined.
        let freed: Vec<usize> = blocks.iter().copied().step_by(2).collect();
        freed.iter().for_each(|at| buddy.release(*at, 4));
        for expected in freed.iter().rev() {
            assert_eq!(buddy.allocate(4), Some(*expected));
        }
        assert_eq!(buddy.resident_bytes, buddy.used_bytes);
    }

    #[test]
    fn blocks_that_take_memory_come_before_others() {
        let mut buddy = Buddy::new(0, 64 << 20, 4);
        let large = buddy.allocate(ORDERS - 1).unwrap();
        buddy.release(large, ORDERS - 1);
        for round in 1..100 {
            let small = buddy.allocate(0).unwrap();
            let middle = buddy.allocate(3 + round % 3).unwrap();
            assert_eq!(buddy.resident_bytes, BLOCK_BYTES_MAX, "round {round}");
            buddy.release(small, 0);
            buddy.release(middle, 3 + round % 3);
        }
    }

    #[test]
    fn only_blocks_that_stay_free_for_a_turn_are_idle() {
        let mut buddy = Buddy::new(4096, 64 << 20, 4);
        let large = buddy.allocate(ORDERS - 1).unwrap();
        buddy.release(large, ORDERS - 1);
        assert!(buddy.begin_turn().is_empty(), "it was in use in this turn");
        // A part of it is in use again, and another part was for a moment.
        let held = buddy.allocate(0).unwrap();
        let moment = buddy.allocate(0).unwrap();
        buddy.release(moment, 0);
        let given_back = give_back(&mut buddy);
        assert!(given_back.iter().all(|range| !range.contains(&held)));
        let bytes = given_back.iter().map(Range::len).sum::<usize>();
        assert_eq!(bytes, BLOCK_BYTES_MAX - 2 * BLOCK_BYTES_MIN);
        assert_eq!(buddy.resident_bytes, 2 * BLOCK_BYTES_MIN);
        // A block that could not be given back stays as it was.
        buddy.release(held, 0);
        buddy.begin_turn();
        let idle = buddy.begin_turn().pop().unwrap();
        assert!(buddy.take(&idle));
        buddy.put_back(idle, false);
        assert_eq!(buddy.resident_bytes, 2 * BLOCK_BYTES_MIN);
        assert_eq!(buddy.free[ORDERS - 1].len(), 8);
    }
}
