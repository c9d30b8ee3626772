//! Positions are reserved by moving one word, which also says whether that is allowed.

use std::hint;
use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};
use crate::turns::RANGE_MAX;

/// Nothing is reserved any more.
const CLOSED: u64 = 1 << 63;
/// The ring is gone: the lane never opens again.
const ABANDONED: u64 = 1 << 62;
/// The capacity as a power of two, in the bits from here up to `ABANDONED`.
const CAPACITY_SHIFT: u32 = 57;
const CAPACITY_BITS: u64 = (ABANDONED - 1) >> CAPACITY_SHIFT;
/// The position, without its upper bits.
const POSITION: u64 = (1 << CAPACITY_SHIFT) - 1;

const _: () = assert!(RANGE_MAX.ilog2() as u64 <= CAPACITY_BITS);

/// The end of what writers have reserved (`shadow_tail`), the lane's capacity, and whether the lane is
/// closed.
///
/// A reservation depends on this word and on `head` alone, so a writer does not look at the lane's
/// memory before it has moved the word. If the memory was replaced between look and move and the word
/// is the same again, then the capacity is, too: the move is right, and it acquires the new memory.
///
/// The word holds 57 bits of the position; `head`, which is at most a capacity behind, completes them.
/// To mistake one lap for another, a thread would have to pause between look and move while
/// others move 2^57 positions (more than four years at one position a nanosecond), and go on at the
/// moment when the word is the same again.
#[derive(Default)]
pub struct WriteReserve {
    /// Written by writers as they reserve (forth) and give back (back), and by the threads that close
    /// and open the lane; read by all. Every change is an atomic read-modify-write, so what one of
    /// them releases is acquired with any later value.
    word: AtomicU64,
    /// A `head` that a writer has seen, so that not every write has to fetch the readers' cache line.
    /// Written and read by writers; it may go back when two of them write it.
    head_seen: AtomicU64,
}

impl WriteReserve {
    pub fn new(capacity: usize) -> Self {
        WriteReserve {
            word: AtomicU64::new(capacity_bits(capacity)),
            head_seen: AtomicU64::new(0),
        }
    }

    /// Reserves up to `count` positions; `None` when there is no room for `count_min` (or for the
    /// capacity, if that is less), or when the lane is closed.
    #[inline]
    pub fn reserve(&self, head: &AtomicU64, count_min: usize, count: usize) -> Option<Range<u64>> {
        // Acquires earlier reservations, and with them what they saw of `head`: so when `head` is
        // loaded afterwards, no more than the capacity is used. The same holds for the other loads.
        let mut now = self.word.load(Ordering::Acquire);
        // Acquires the store below, and with it the load of `head` before that.
        let mut seen = self.head_seen.load(Ordering::Acquire);
        let mut is_fresh = false;
        let mut pause_log = 0;
        loop {
            if now & CLOSED != 0 {
                return None;
            }
            let capacity = capacity(now) as u64;
            let wanted = (count as u64).min(capacity);
            let mut used = now.wrapping_sub(seen) & POSITION;
            if used + wanted > capacity {
                // Acquires the readers' `Turns::finish`: they are done with the slots.
                seen = head.load(Ordering::Acquire);
                is_fresh = true;
                used = now.wrapping_sub(seen) & POSITION;
                if used > capacity {
                    // `now` is old: others have written and read in between.
                    now = self.word.load(Ordering::Acquire);
                    continue;
                }
            }
            let count = wanted.min(capacity - used);
            if count < (count_min as u64).clamp(1, capacity) {
                return None;
            }
            let start = seen + used;
            // Acquires `give_back`: former owners of these slots are done with them. Acquires `open`:
            // the lane's memory. Releases to the loads of the word.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let next = at(now, start + count);
            match self.word.compare_exchange(now, next, success, failure) {
                Ok(_) => {
                    if is_fresh {
                        // Releases to the load above.
                        self.head_seen.store(seen, Ordering::Release);
                    }
                    return Some(start..start + count);
                }
                Err(_) => {
                    pause_log = pause(pause_log);
                    now = self.word.load(Ordering::Acquire);
                }
            }
        }
    }

    /// Gives up the end of a reservation: from `filled` to `end`. `false` when others have reserved
    /// behind it, or when the lane is closed. If nothing is left of the reservation, the
    /// caller must not touch the lane any more.
    pub fn give_back(&self, filled: u64, end: u64) -> bool {
        let now = self.word.load(Ordering::Relaxed);
        if now & CLOSED != 0 || now != at(now, end) {
            return false;
        }
        // Releases to `reserve`, and to `close` when nothing is left to finish.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        self.word
            .compare_exchange(now, at(now, filled), success, failure)
            .is_ok()
    }

    /// The position, where `before` is an earlier one.
    pub fn position(&self, before: u64) -> u64 {
        // Acquires `reserve`.
        before + (self.word.load(Ordering::Acquire).wrapping_sub(before) & POSITION)
    }

    pub fn capacity(&self) -> usize {
        capacity(self.word.load(Ordering::Relaxed))
    }

    /// Closes the lane, if `wanted` makes another capacity of the present one. Returns that capacity;
    /// `None` when there is none, or when the lane was closed before.
    pub fn close(&self, wanted: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & CLOSED == 0 {
            let capacity_wanted = wanted(capacity(now))?;
            // Acquires `open`, the lane's memory, and reservations.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match (self.word).compare_exchange(now, now | CLOSED, success, failure) {
                Ok(_) => return Some(capacity_wanted),
                Err(changed) => now = changed,
            }
        }
        None
    }

    /// Closes the lane for good; `false` when it was closed before: then the caller must not touch
    /// it any more.
    pub fn abandon(&self) -> bool {
        // Releases all that was done with the ring to `is_abandoned`; acquires reservations.
        self.word.fetch_or(CLOSED | ABANDONED, Ordering::AcqRel) & CLOSED == 0
    }

    /// Whether the ring is gone.
    pub fn is_abandoned(&self) -> bool {
        // Acquires `abandon`: the thread that drops the ring does not touch the lane afterwards.
        self.word.load(Ordering::Acquire) & ABANDONED != 0
    }

    /// Opens the lane with a capacity, for the thread that has it alone; `false` when it was abandoned.
    pub fn open(&self, capacity: usize) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & ABANDONED == 0 {
            // Only `abandon` changes it meanwhile. Releases the memory to `reserve` and `close`.
            let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
            let next = capacity_bits(capacity) | now & POSITION;
            match self.word.compare_exchange(now, next, success, failure) {
                Ok(_) => return true,
                Err(changed) => now = changed,
            }
        }
        false
    }
}

/// The longest pause, as a power of two of instructions.
const PAUSE_LOG_MAX: u32 = 5;

/// Pauses after an attempt that another thread has come before, so that the other one can go on
/// before it loses the cache line again. Returns the length of the next pause, which is longer. This is no
/// wait for the other thread: the next attempt follows whatever the other one does.
#[cold]
#[inline(never)]
fn pause(log: u32) -> u32 {
    (0..1 << log).for_each(|_| hint::spin_loop());
    (log + 1).min(PAUSE_LOG_MAX)
}

/// The same word at another position.
#[inline]
fn at(word: u64, position: u64) -> u64 {
    word & !POSITION | position & POSITION
}

#[inline]
fn capacity(word: u64) -> usize {
    1 << (word >> CAPACITY_SHIFT & CAPACITY_BITS)
}

fn capacity_bits(capacity: usize) -> u64 {
    u64::from(capacity.ilog2()) << CAPACITY_SHIFT
}

/// The end of what readers have reserved (`shadow_head`), and whether the side is closed.
#[derive(Default)]
pub struct ReadReserve {
    /// Written by readers as they reserve, and by the threads that close and open the side, in atomic
    /// read-modify-writes; read by all. 63 bits of positions last for centuries.
    word: AtomicU64,
    /// A `tail` that a reader has seen, so that not every read has to fetch the writers' cache line.
    /// Written and read by readers; it may go back when two of them write it.
    tail_seen: AtomicU64,
}

impl ReadReserve {
    /// Reserves up to `count` positions; `None` when there is nothing readable, or when the side is
    /// closed.
    #[inline]
    pub fn reserve(&self, tail: &AtomicU64, count: usize) -> Option<Range<u64>> {
        // Acquires earlier reservations, and with them what they saw of `tail`: so when `tail` is
        // loaded afterwards, it is not less.
        let mut start = self.word.load(Ordering::Acquire);
        // Acquires the store below, and with it the load of `tail` before that.
        let mut seen = self.tail_seen.load(Ordering::Acquire);
        let mut is_fresh = false;
        let mut pause_log = 0;
        loop {
            if start & CLOSED != 0 {
                return None;
            }
            let mut readable = seen.saturating_sub(start);
            if readable < count as u64 {
                // Acquires the writers' `Turns::finish`: the slots are written.
                seen = tail.load(Ordering::Acquire);
                is_fresh = true;
                readable = seen - start;
            }
            let count = (count as u64).min(readable);
            if count == 0 {
                return None;
            }
            let end = start + count;
            // Acquires `open`: the lane's memory. Releases to the load above. What earlier owners of
            // the slots did came with `tail`.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.word.compare_exchange(start, end, success, failure) {
                Ok(_) => {
                    if is_fresh {
                        // Releases to the load above.
                        self.tail_seen.store(seen, Ordering::Release);
                    }
                    return Some(start..end);
                }
                Err(_) => {
                    pause_log = pause(pause_log);
                    start = self.word.load(Ordering::Acquire);
                }
            }
        }
    }

    pub fn position(&self) -> u64 {
        // Acquires `reserve`.
        self.word.load(Ordering::Acquire) & !CLOSED
    }

    /// Closes the side, for the thread that has claimed the writers' side. Returns the position.
    pub fn close(&self) -> u64 {
        // Acquires reservations.
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED
    }

    /// Opens the side, for the thread that has the lane alone.
    pub fn open(&self) {
        // Releases the lane's memory to `reserve`.
        self.word.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: usize = 8;

    /// Everything before `start` is written and read.
    fn from(start: u64) -> (WriteReserve, AtomicU64) {
        let reserve = WriteReserve {
            word: AtomicU64::new(at(capacity_bits(CAPACITY), start)),
            head_seen: AtomicU64::new(start),
        };
        (reserve, AtomicU64::new(start))
    }

    #[test]
    fn positions_go_on_where_the_word_has_no_more_bits() {
        let end = 1 << CAPACITY_SHIFT;
        let (reserve, head) = from(end - 2);
        assert_eq!(reserve.reserve(&head, 1, 1), Some(end - 2..end - 1));
        assert_eq!(reserve.reserve(&head, 1, 4), Some(end - 1..end + 3));
        assert!(reserve.give_back(end - 1, end + 3));
        assert_eq!(reserve.reserve(&head, 1, 9), Some(end - 1..end + 6));
        assert_eq!(reserve.reserve(&head, 1, 1), None);
        assert_eq!(reserve.position(end - 2), end + 6);
        head.store(end + 5, Ordering::Relaxed);
        assert_eq!(reserve.reserve(&head, 1, 4), Some(end + 6..end + 10));
        assert_eq!(reserve.position(end + 5), end + 10);
        assert_eq!(reserve.capacity(), CAPACITY);
    }

    #[test]
    fn nothing_is_reserved_or_given_back_while_the_lane_is_closed() {
        let (reserve, head) = from(3);
        assert_eq!(reserve.reserve(&head, 1, 2), Some(3..5));
        assert_eq!(reserve.close(|capacity| Some(2 * capacity)), Some(16));
        assert_eq!(reserve.close(|capacity| Some(2 * capacity)), None);
        assert_eq!(reserve.reserve(&head, 1, 1), None);
        assert!(!reserve.give_back(4, 5));
        assert!(reserve.open(2 * CAPACITY));
        assert!(reserve.give_back(4, 5));
        assert_eq!((reserve.capacity(), reserve.position(3)), (16, 4));
        assert!(reserve.abandon() && !reserve.open(CAPACITY));
        assert!(!reserve.abandon());
    }

    #[test]
    fn the_largest_capacity_has_a_place_in_the_word() {
        let bits = capacity_bits(RANGE_MAX);
        assert_eq!(bits & (POSITION | CLOSED | ABANDONED), 0);
        assert_eq!(capacity(bits), RANGE_MAX);
    }
}
