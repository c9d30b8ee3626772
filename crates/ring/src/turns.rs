//! Ranges of positions are finished in the order in which they were reserved.

use std::iter;
use std::ops::Range;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The range that begins here is not finished, nor is one before it.
const EMPTY: u32 = 0;
/// All ranges before this position are finished.
const TURN: u32 = u32::MAX;
/// Nothing more will be reserved from this position on: the thread that finishes the last range
/// before it claims the side.
const CLOSING: u32 = u32::MAX - 1;

/// The longest range: longer ones could not be told from the states above.
pub const RANGE_MAX: usize = 1 << 31;

const _: () = assert!(RANGE_MAX < CLOSING as usize);

/// Passes the *turn* of one side of a lane (its writers or its readers) from range to range.
///
/// There is a cell for each of `2 * capacity` positions. All reserved ranges and the turn lie within
/// `capacity + 1` positions, so no two of their beginnings share a cell. The cell at the beginning of a
/// range changes in one of two ways:
///
/// ```text
/// EMPTY ── the range before is finished ──► TURN ── this range is finished ──► EMPTY
/// EMPTY ── this range is finished ──► its length ── the turn passes over it ──► EMPTY
/// ```
///
/// There is one turn: it lies in one cell, or one thread holds it. The holder of the turn lays it down
/// at the end of its range by a swap; the owner of the range that begins there picks it up when that is
/// finished. An owner that finishes before its turn leaves the length of its range in the
/// cell. Both change the cell in one atomic step, so the second of them finds what the first has left:
/// no range is forgotten, and none is finished twice.
///
/// Only the holder of the turn moves the side's position (`tail` or `head`) and clears cells, and it
/// does both before it lays the turn down. Laying it down and leaving a length are the last things that
/// an owner does with the lane, which another thread may free right afterwards. An owner that finds
/// `CLOSING` keeps the turn: it has claimed the side.
///
/// # Memory order
///
/// Each step on a cell releases what its thread did before, and acquires what was released by the
/// step that it finds. So the holder of the turn has acquired everything that the owners of earlier
/// ranges did, and releases it with the position.
///
/// A cell is used again two laps later. The thread that reserves there has acquired the other side's
/// position. The other side moved it after it had acquired this side's position, and that was
/// moved after the cell was cleared.
///
/// This is a view of the cells, which are nothing but atomics: so it may exist while another thread
/// frees them.
#[derive(Clone, Copy)]
pub struct Turns<'a>(&'a [AtomicU32]);

/// New cells for one side: the turn lies at `at`.
pub fn cells(capacity: usize, at: u64) -> Box<[AtomicU32]> {
    let cells = iter::repeat_with(AtomicU32::default);
    let cells: Box<[AtomicU32]> = cells.take(2 * capacity).collect();
    Turns(&cells).rest(at);
    cells
}

impl<'a> Turns<'a> {
    #[inline]
    pub fn new(cells: &'a [AtomicU32]) -> Self {
        Turns(cells)
    }

    /// Finishes a range that the caller owns, in its turn: `position` has moved over it when all
    /// before it have been finished, too. On `true` the caller has claimed the side. On `false` it
    /// must not touch the lane any more.
    #[inline]
    #[must_use]
    pub fn finish(self, position: &AtomicU64, Range { start, end }: Range<u64>) -> bool {
        let cell = self.at(start);
        // Acquires the swap below.
        if cell.load(Ordering::Acquire) != TURN {
            let length = (end - start) as u32;
            // Releases to the swap below, and acquires it when the turn has come meanwhile.
            let (success, failure) = (Ordering::Release, Ordering::Acquire);
            let left = cell.compare_exchange(EMPTY, length, success, failure);
            if left.is_ok() {
                return false;
            }
        }
        cell.store(EMPTY, Ordering::Relaxed);
        // Releases to `reserve` of the other side, and to the loads of `Lane::position`.
        position.store(end, Ordering::Release);
        match self.at(end).swap(TURN, Ordering::AcqRel) {
            EMPTY => false,
            CLOSING => true,
            length => self.pass_over(position, end, length),
        }
    }

    /// Passes the turn, which the caller holds, over ranges that were finished before: the first
    /// of them begins at `at`.
    #[cold]
    fn pass_over(self, position: &AtomicU64, mut at: u64, mut length: u32) -> bool {
        loop {
            // The owners are done, so only the holder of the turn touches these cells.
            while length != EMPTY && length != CLOSING {
                self.at(at).store(EMPTY, Ordering::Relaxed);
                at += u64::from(length);
                // Acquires the owner's step.
                length = self.at(at).load(Ordering::Acquire);
            }
            // As in `finish`.
            position.store(at, Ordering::Release);
            length = self.at(at).swap(TURN, Ordering::AcqRel);
            match length {
                EMPTY => return false,
                CLOSING => return true,
                _ => {}
            }
        }
    }

    /// Closes a side where nothing is reserved from `at` on, nor will be. On `true` everything before
    /// is finished, and the caller has claimed the side. On `false` the owner of the last range will
    /// claim it, and the caller must not touch the lane's memory any more.
    #[must_use]
    pub fn close(self, at: u64) -> bool {
        self.at(at).swap(CLOSING, Ordering::AcqRel) == TURN
    }

    /// Lays down the turn of a side that the caller has claimed, at the end of all ranges.
    pub fn rest(self, at: u64) {
        self.at(at).store(TURN, Ordering::Relaxed);
    }

    #[inline]
    fn at(self, position: u64) -> &'a AtomicU32 {
        &self.0[position as usize & (self.0.len() - 1)]
    }
}
