//! Finishes ranges of positions in the order in which they were reserved.

use std::iter;
use std::ops::Range;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// No range that begins here is finished, and some range before it is not finished either.
const EMPTY: u32 = 0;
/// All ranges before this position are finished.
const TURN: u32 = u32::MAX;
/// The side is closed, and no reservation begins here. The thread that finishes the last range before
/// it claims the side.
const CLOSING: u32 = u32::MAX - 1;

/// The longest range. The length of a longer one could equal one of the states above.
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
/// at the end of its range by a swap. The owner of the range that begins there picks the turn up when it
/// finishes that range. An owner that finishes before its turn leaves the length of its range in the
/// cell, as a pending commit. Both change the cell in one atomic step, so the second finds the value of the
/// first: every range is finished exactly once.
///
/// Only the holder of the turn moves the side's position (`tail` or `head`) and clears cells, and it
/// does both before it lays the turn down. Laying it down and leaving a length are an owner's last accesses
/// to the lane, which another thread may free right afterwards. An owner that finds `CLOSING` keeps
/// the turn: it has claimed the side.
///
/// # Memory order
///
/// Owners of ranges and the thread that closes the side write the cells, and the same threads read them.
/// Each step on a cell releases the earlier work of its thread, and acquires the work that the found
/// value released. So the holder of the turn has acquired the work of all owners of earlier ranges, and
/// releases it with the position.
///
/// A cell is used again two laps later. The thread that reserves there has acquired the other side's
/// position. The other side moved that position after it had acquired this side's position, and the holder
/// of the turn moved this side's position after it had cleared the cell.
///
/// This is a view of the cells. It has only atomics behind its reference, so it may exist while another
/// thread frees them.
#[derive(Clone, Copy)]
pub struct Turns<'a>(&'a [AtomicU32]);

/// Creates the cells of one side, with the turn at `at`.
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

    /// Finishes a range that the caller owns. `position` moves over it once all ranges before it are
    /// finished, too. On `true` the caller has claimed the side. On `false` it must not touch the lane any
    /// more.
    #[inline]
    #[must_use]
    pub fn finish(self, position: &AtomicU64, Range { start, end }: Range<u64>) -> bool {
        let cell = self.at(start);
        // Acquires the swap by which the previous owner laid the turn down.
        if cell.load(Ordering::Acquire) != TURN {
            let length = (end - start) as u32;
            // On success releases the range to the swap or load of the turn's holder, here or in
            // `pass_over`. On failure the turn has arrived: acquires the swap that laid it down.
            let (success, failure) = (Ordering::Release, Ordering::Acquire);
            let left = cell.compare_exchange(EMPTY, length, success, failure);
            if left.is_ok() {
                return false;
            }
        }
        // Relaxed: the store of `position` below releases it to the next user of the cell.
        cell.store(EMPTY, Ordering::Relaxed);
        // Releases to the load of the position in the other side's `reserve`, and in `Lane::position`.
        position.store(end, Ordering::Release);
        // Releases to the next owner's load or failed exchange above, and to `close`. Acquires the length
        // that the next owner has left, or `CLOSING`.
        match self.at(end).swap(TURN, Ordering::AcqRel) {
            EMPTY => false,
            CLOSING => true,
            length => self.pass_over(position, end, length),
        }
    }

    /// Passes the turn, which the caller holds, over ranges with pending commits. The first of them begins
    /// at `at`.
    #[cold]
    fn pass_over(self, position: &AtomicU64, mut at: u64, mut length: u32) -> bool {
        loop {
            // Their owners are done, so only the holder of the turn touches these cells.
            while length != EMPTY && length != CLOSING {
                self.at(at).store(EMPTY, Ordering::Relaxed);
                at += u64::from(length);
                // Acquires the exchange by which the owner left the length.
                length = self.at(at).load(Ordering::Acquire);
            }
            // Both pair with the same loads as in `finish`.
            position.store(at, Ordering::Release);
            length = self.at(at).swap(TURN, Ordering::AcqRel);
            match length {
                EMPTY => return false,
                CLOSING => return true,
                _ => {}
            }
        }
    }

    /// Closes a side whose reservations end at `at`, and which takes no more of them. On `true` all ranges
    /// are finished, and the caller has claimed the side. On `false` the owner of the last range will
    /// claim it, and the caller must not touch the lane's memory any more.
    #[must_use]
    pub fn close(self, at: u64) -> bool {
        // Releases to the swap of the last range's owner. Acquires the swap that laid the turn down.
        self.at(at).swap(CLOSING, Ordering::AcqRel) == TURN
    }

    /// Lays down the turn of a side that the caller has claimed, at the end of all ranges.
    pub fn rest(self, at: u64) {
        // Relaxed: `open` of the side's reserve releases it to the next reservation.
        self.at(at).store(TURN, Ordering::Relaxed);
    }

    #[inline]
    fn at(self, position: u64) -> &'a AtomicU32 {
        &self.0[position as usize & (self.0.len() - 1)]
    }
}
