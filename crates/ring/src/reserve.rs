//! Reserves positions by moving one word, which also holds whether reservations are allowed.

use std::hint;
use std::ops::Range;

use crate::sync::{AtomicU64, Ordering};
use crate::turns::RANGE_MAX;

/// The side takes no reservations.
const CLOSED: u64 = 1 << 63;
/// The ring has been dropped: the lane never opens again.
const ABANDONED: u64 = 1 << 62;
/// The capacity as a power of two, in the bits from here up to `ABANDONED`.
const CAPACITY_SHIFT: u32 = 57;
const CAPACITY_BITS: u64 = (ABANDONED - 1) >> CAPACITY_SHIFT;
/// The position, without its upper bits.
const POSITION: u64 = (1 << CAPACITY_SHIFT) - 1;

const _: () = assert!(RANGE_MAX.ilog2() as u64 <= CAPACITY_BITS);

/// The end of the writers' reservations (`shadow_tail`), the lane's capacity, and whether the lane is
/// closed.
///
/// A reservation depends on this word and on `head` only, so a writer does not touch the lane's memory
/// before it has moved the word. If another thread replaces the memory between the writer's load and its
/// move, and the word is the same again, then the capacity is the same, too: the move is right, and it
/// acquires the new memory.
///
/// The word holds 57 bits of the position; `head`, which is at most a capacity behind, completes them.
/// To mistake one lap for another, a thread would have to pause between the load and the move while
/// others move 2^57 positions (more than four years at one position a nanosecond), and go on at the
/// moment when the word is the same again.
#[derive(Default)]
pub struct WriteReserve {
    /// Written by writers as they reserve (forward) and give back (backward), and by the threads that close
    /// and open the lane; read by all threads. Every change is an atomic read-modify-write, so a load of
    /// any later value acquires all earlier releases.
    word: AtomicU64,
    /// A `head` that a writer has loaded, so that few writes fetch the readers' cache line. Written and read
    /// by writers; it may move back when two of them write it.
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
        // Acquires earlier reservations, and with them the value of `head` that they loaded. So the load
        // of `head` below is recent enough that at most the capacity is used. The same holds for the
        // other loads of the word.
        let mut now = self.word.load(Ordering::Acquire);
        // Acquires the store of `head_seen` below, and with it the load of `head` before it.
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
                // Acquires the store of `head` in the readers' `Turns::finish`: they are done with the
                // slots.
                seen = head.load(Ordering::Acquire);
                is_fresh = true;
                used = now.wrapping_sub(seen) & POSITION;
                if used > capacity {
                    // `now` is old: other threads have written and read since its load.
                    now = self.word.load(Ordering::Acquire);
                    continue;
                }
            }
            let count = wanted.min(capacity - used);
            if count < (count_min as u64).clamp(1, capacity) {
                return None;
            }
            let start = seen + used;
            // Acquires `give_back`, whose thread is done with these slots, and `open`, whose thread has
            // replaced the lane's memory. Releases to the acquire loads of the word: here, in `position`,
            // and in the exchange of `close`.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let next = at(now, start + count);
            match self.word.compare_exchange(now, next, success, failure) {
                Ok(_) => {
                    if is_fresh {
                        // Releases the load of `head` to the load of `head_seen` above.
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

    /// Gives back the end of a reservation, from `filled` to `end`. `false` when another writer has
    /// reserved behind it, or when the lane is closed. After giving back a whole reservation, the caller
    /// must not touch the lane any more.
    pub fn give_back(&self, filled: u64, end: u64) -> bool {
        // Relaxed: the exchange below checks the value again.
        let now = self.word.load(Ordering::Relaxed);
        if now & CLOSED != 0 || now != at(now, end) {
            return false;
        }
        // Releases to the exchange of `reserve`, and to the exchanges of `close` and `abandon` if the whole
        // reservation is given back.
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        self.word
            .compare_exchange(now, at(now, filled), success, failure)
            .is_ok()
    }

    /// The position; `before` is an earlier one, which supplies the upper bits.
    pub fn position(&self, before: u64) -> u64 {
        // Acquires the exchange of `reserve`, so that `Lane::position` loads in order.
        before + (self.word.load(Ordering::Acquire).wrapping_sub(before) & POSITION)
    }

    pub fn capacity(&self) -> usize {
        // Relaxed: the word holds the capacity itself, and the load publishes no memory.
        capacity(self.word.load(Ordering::Relaxed))
    }

    /// Closes the lane for a resize, if `wanted` makes a new capacity of the present one. Returns that
    /// capacity; `None` when there is none, or when the lane is closed already.
    pub fn close(&self, wanted: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & CLOSED == 0 {
            let capacity_wanted = wanted(capacity(now))?;
            // Acquires `open`, and with it the lane's memory, and the exchanges of `reserve` and
            // `give_back`. Releases to the load of `is_abandoned` and the exchange of `open`.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match (self.word).compare_exchange(now, now | CLOSED, success, failure) {
                Ok(_) => return Some(capacity_wanted),
                Err(changed) => now = changed,
            }
        }
        None
    }

    /// Closes the lane for good. `false` when it was closed already: then the caller must not touch it any
    /// more.
    pub fn abandon(&self) -> bool {
        // Releases all uses of the ring to the load of `is_abandoned`; acquires the exchanges of `reserve`
        // and `give_back`.
        self.word.fetch_or(CLOSED | ABANDONED, Ordering::AcqRel) & CLOSED == 0
    }

    /// Whether the ring has been dropped.
    pub fn is_abandoned(&self) -> bool {
        // Acquires `abandon`, after which the thread that drops the ring does not touch the lane.
        self.word.load(Ordering::Acquire) & ABANDONED != 0
    }

    /// Opens the lane with a capacity, for its exclusive owner; `false` when the ring has been dropped.
    pub fn open(&self, capacity: usize) -> bool {
        let mut now = self.word.load(Ordering::Relaxed);
        while now & ABANDONED == 0 {
            // Only `abandon` changes the word meanwhile. Releases the memory to the exchanges of `reserve`
            // and `close`; on failure acquires `abandon`.
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

/// Pauses after an attempt that another thread has forestalled, so that the other thread gets on before
/// it loses the cache line again. Returns the next pause, which is longer. This does not wait for the
/// other thread: the next attempt follows in any case.
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

/// The end of all readers' reservations (`shadow_head`), and whether the side is closed.
#[derive(Default)]
pub struct ReadReserve {
    /// Written by readers as they reserve, and by the threads that close and open the side, in atomic
    /// read-modify-writes; read by all threads. 63 bits of positions last for centuries.
    word: AtomicU64,
    /// A `tail` that a reader has loaded, so that few reads fetch the writers' cache line. Written and read
    /// by readers; it may move back when two of them write it.
    tail_seen: AtomicU64,
}

impl ReadReserve {
    /// Reserves up to `count` positions; `None` when no position is readable, or when the side is closed.
    #[inline]
    pub fn reserve(&self, tail: &AtomicU64, count: usize) -> Option<Range<u64>> {
        // Acquires earlier reservations, and with them the value of `tail` that they loaded. So the load of
        // `tail` below is not less than `start`.
        let mut start = self.word.load(Ordering::Acquire);
        // Acquires the store of `tail_seen` below, and with it the load of `tail` before it.
        let mut seen = self.tail_seen.load(Ordering::Acquire);
        let mut is_fresh = false;
        let mut pause_log = 0;
        loop {
            if start & CLOSED != 0 {
                return None;
            }
            let mut readable = seen.saturating_sub(start);
            if readable < count as u64 {
                // Acquires the store of `tail` in the writers' `Turns::finish`: the slots are written.
                seen = tail.load(Ordering::Acquire);
                is_fresh = true;
                readable = seen - start;
            }
            let count = (count as u64).min(readable);
            if count == 0 {
                return None;
            }
            let end = start + count;
            // Acquires `open`, and with it the lane's memory. Releases to the acquire loads of the word:
            // here, in `position`, and in `close`. The load of `tail` has acquired the slots.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.word.compare_exchange(start, end, success, failure) {
                Ok(_) => {
                    if is_fresh {
                        // Releases the load of `tail` to the load of `tail_seen` above.
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
        // Acquires the exchange of `reserve`, so that `Lane::position` loads in order.
        self.word.load(Ordering::Acquire) & !CLOSED
    }

    /// Closes the side, for the thread that has claimed the writers' side. Returns the position.
    pub fn close(&self) -> u64 {
        // Acquires the exchanges of `reserve`. Releases to `open`.
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED
    }

    /// Opens the side, for the exclusive owner of the lane.
    pub fn open(&self) {
        // Releases the lane's memory to the exchange of `reserve`.
        self.word.fetch_and(!CLOSED, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CAPACITY: usize = 8;

    /// A reserve and a `head` at `start`.
    fn reserve_at(start: u64) -> (WriteReserve, AtomicU64) {
        let reserve = WriteReserve {
            word: AtomicU64::new(at(capacity_bits(CAPACITY), start)),
            head_seen: AtomicU64::new(start),
        };
        (reserve, AtomicU64::new(start))
    }

    #[test]
    fn reserved_positions_may_exceed_the_bits_kept_in_the_word() {
        let end = 1 << CAPACITY_SHIFT;
        let (reserve, head) = reserve_at(end - 2);
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
    fn a_closed_lane_neither_reserves_room_nor_takes_it_back() {
        let (reserve, head) = reserve_at(3);
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
    fn the_largest_capacity_fits_into_the_word() {
        let bits = capacity_bits(RANGE_MAX);
        assert_eq!(bits & (POSITION | CLOSED | ABANDONED), 0);
        assert_eq!(capacity(bits), RANGE_MAX);
    }
}
