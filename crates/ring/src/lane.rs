//! One lane of a ring: the four positions and how they move.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::mem;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{Beyond, Buffer, Note, sampled};
use crate::reserve::{ReadReserve, WriteReserve};
use crate::sync::{AtomicI64, AtomicU64, AtomicUsize, Mutex, Ordering, Padded, Track, lock};

/// # Positions
///
/// Positions count slots from the beginning of the lane and never wrap; a slot is the position
/// modulo the capacity. At all times
///
/// ```text
/// head ≤ shadow_head ≤ tail ≤ shadow_tail ≤ head + capacity
///   └ being read ┘ └ readable ┘ └ being written ┘
/// ```
///
/// and every position in `head..shadow_head` and `tail..shadow_tail` belongs to one slice, except
/// those that were finished before their turn. All but `shadow_tail` only ever grow.
///
/// - A writer reserves `start..end` by moving `shadow_tail` from `start` to `end`. It has seen a
///   `head` with `end ≤ head + capacity`, and `head` only grows: so the slots of `start..end` were
///   finished by the readers of the lap before. Should `shadow_tail` have gone forth and back
///   between the look and the move, that is still so.
/// - A writer that needs less than it has reserved moves `shadow_tail` back from `end`, if it still
///   stands there: then no other slice holds anything behind `end`, and the writer gives up its own
///   positions. Otherwise the rest of its range becomes holes, which readers skip.
/// - A reader reserves `start..end` by moving `shadow_head`, and has seen `end ≤ tail`.
/// - `tail` and `head` move over finished ranges in order: see [`Turns`](crate::turns::Turns).
///
/// # Open slices
///
/// A slice is open from the atomic step that reserves its range to the step that finishes it or gives
/// back all of it. Only in between does its thread touch the lane's memory. A range that is not
/// finished holds up the turn of its side. So when nothing more can be reserved and the turn arrives at
/// the end of all reservations, no slice of that side is open, and the thread that learns this
/// *claims* the side.
///
/// # Resizing and freeing
///
/// 1. A thread closes `shadow_tail`. From then on `shadow_tail` stays where it is: writers reserve
///    nothing and give nothing back.
/// 2. The same thread marks the turn's cell at `shadow_tail`. Either the turn lies there, and
///    this thread claims the writers' side. Or the writer that would lay the turn down there finds the
///    mark, and claims the side. Both change the cell in one atomic step, so exactly one of them
///    comes second and claims.
/// 3. The claimer closes `shadow_head`, and marks the cell there. One thread claims the readers' side
///    in the same way. Now everything is committed, everything that was taken is finished, and that
///    thread has the lane alone.
/// 4. It replaces the memory, lays down the turns, and opens the readers' side, then the writers'.
///
/// Dropping the ring closes the lane for good by the same steps, and the thread that has the lane alone
/// frees it. If a resize is under way by then, its claimer finds the lane abandoned in the step that
/// would open it.
///
/// A slice that was handed back stays open until a reader takes it again and finishes it. Taking it
/// needs no reservation, so a closed side cannot keep it there. Readers without slices never wait for
/// writers: the readers' side closes only when no write slice is open.
pub struct Lane<T> {
    /// `shadow_tail`. Written and read by writers.
    write_reserve: Padded<WriteReserve>,
    /// Moved by the writer that holds the turn; read by readers.
    tail: Padded<AtomicU64>,
    /// `shadow_head`. Written and read by readers.
    read_reserve: Padded<ReadReserve>,
    /// Moved by the reader that holds the turn; read by writers.
    head: Padded<AtomicU64>,
    rest: Padded<Rest<T>>,
}

/// What is read often and written seldom.
struct Rest<T> {
    /// Read by the owners of open slices, replaced by the thread that has the lane alone.
    buffer: UnsafeCell<Buffer<T>>,
    buffer_track: Track,
    /// The capacity that a resize asks for. Written by the thread that has closed `shadow_tail` for it,
    /// before that marks the turn's cell, and read by the thread that has the lane alone.
    capacity_wanted: AtomicUsize,
    /// Notes other than `Item` in slots that are committed or about to be, and that no reader has
    /// cleared yet. Added to by writers before they commit, so a reader that has acquired `tail`
    /// finds it above 0 if there is a note in its range.
    notes: AtomicUsize,
    /// How many more items than positions were written: those beyond count up, holes down. Added to
    /// by writers just before they commit; read by anyone.
    surplus_written: AtomicI64,
    /// The part of `surplus_written` that readers have come across.
    surplus_read: AtomicI64,
    /// Items in `returned`. Written under its lock, read by readers to leave it alone.
    returned_items: AtomicUsize,
    /// Read slices that were dropped unfinished. `None` once the ring is dropped.
    returned: Mutex<Option<Returned<T>>>,
}

/// By [`Taken::place`].
type Returned<T> = BTreeMap<(u64, usize), Taken<T>>;

/// Items that a reader holds.
pub struct Taken<T> {
    /// The positions that are finished with these items.
    pub positions: Range<u64>,
    pub items: Items<T>,
}

pub enum Items<T> {
    /// So many items, in the first slots of the positions.
    Slots(usize),
    Gathered(Box<Gathered<T>>),
}

/// Items of a range that had some beyond its positions, or a part of them.
pub struct Gathered<T> {
    pub items: Vec<T>,
    /// How many items of the range came before these.
    pub before: usize,
    /// When the last of those beyond the range's positions were written.
    pub stamp: u64,
    /// Finishes the range when all parts of it are. Dropped after the items.
    hold: Arc<Hold<T>>,
}

/// Where a lane's positions stand.
#[derive(Clone, Copy)]
pub struct Position {
    pub head: u64,
    pub shadow_head: u64,
    pub tail: u64,
    pub shadow_tail: u64,
}

impl<T> Lane<T> {
    pub fn new(capacity: usize) -> Self {
        Lane {
            rest: Padded(Rest {
                buffer: Buffer::new(capacity, 0, 0).into(),
                buffer_track: Track::default(),
                capacity_wanted: AtomicUsize::new(capacity),
                notes: AtomicUsize::new(0),
                surplus_written: AtomicI64::new(0),
                surplus_read: AtomicI64::new(0),
                returned_items: AtomicUsize::new(0),
                returned: Mutex::new(Some(BTreeMap::new())),
            }),
            write_reserve: Padded(WriteReserve::new(capacity)),
            tail: Padded::default(),
            read_reserve: Padded::default(),
            head: Padded::default(),
        }
    }

    /// The lane's memory. The caller has an open slice, has closed a side that is not claimed yet, or
    /// has the lane alone.
    #[inline]
    pub fn buffer(&self) -> &Buffer<T> {
        self.rest.buffer_track.reader();
        // SAFETY: it is replaced only by the thread that has claimed both sides: until then the
        // caller's slice or mark keeps the side from being claimed.
        unsafe { &*self.rest.buffer.get() }
    }

    /// Brings the items of a range that has notes in it together: in its first slots, or in a
    /// vector when there were some beyond.
    #[cold]
    fn gather(this: LaneRef<T>, positions: Range<u64>) -> Taken<T> {
        let buffer = this.buffer();
        let mut notes = 0;
        let mut gathered: Option<Vec<T>> = None;
        let mut stamp = 0;
        let mut count = 0;
        for position in positions.clone() {
            // SAFETY: this reader owns slot and note. Each slot that is no hole is written, and is
            // read once: `count` never passes `position`.
            let note = unsafe { mem::take(&mut *buffer.note(position)) };
            notes += usize::from(!matches!(note, Note::Item));
            if let Note::Hole = note {
                continue;
            }
            let slot = buffer.slot(position);
            match &mut gathered {
                // SAFETY: as above.
                Some(items) => items.push(unsafe { slot.read() }),
                None => {
                    let target = buffer.slot(positions.start + count as u64);
                    // SAFETY: as above.
                    unsafe { target.copy_from(slot, 1) };
                }
            }
            count += 1;
            if let Note::Beyond(beyond) = note {
                count += beyond.items.len();
                stamp = beyond.stamp;
                gathered
                    .get_or_insert_with(|| {
                        let before = count - beyond.items.len();
                        let slots = (0..before as u64).map(|n| buffer.slot(positions.start + n));
                        // SAFETY: as above.
                        slots.map(|slot| unsafe { slot.read() }).collect()
                    })
                    .extend(beyond.items);
            }
        }
        if notes > 0 {
            let surplus = count as i64 - (positions.end - positions.start) as i64;
            this.rest.notes.fetch_sub(notes, Ordering::Relaxed);
            this.rest.surplus_read.fetch_add(surplus, Ordering::Relaxed);
        }
        let items = match gathered {
            None => Items::Slots(count),
            Some(items) => Items::Gathered(Box::new(Gathered {
                items,
                before: 0,
                stamp,
                hold: Arc::new(Hold {
                    lane: this,
                    positions: positions.clone(),
                }),
            })),
        };
        Taken { positions, items }
    }

    /// The part of handed-back items that comes first, up to `count` items.
    #[cold]
    fn take_returned(&self, count: usize) -> Option<Taken<T>> {
        let mut returned = lock(&self.rest.returned);
        let returned = returned.as_mut()?;
        let (_, mut taken) = returned.pop_first()?;
        if let Some(rest) = taken.split_off(count) {
            returned.insert(rest.place(), rest);
        }
        // All changes are made under the lock, so none is lost.
        let items = &self.rest.returned_items;
        items.store(
            items.load(Ordering::Relaxed) - taken.len(),
            Ordering::Relaxed,
        );
        Some(taken)
    }

    pub fn capacity(&self) -> usize {
        self.write_reserve.capacity()
    }

    pub fn position(&self) -> Position {
        // In this order: `head` is not greater than what is loaded after it, and so on.
        // Acquire keeps the order.
        let head = self.head.load(Ordering::Acquire);
        let shadow_head = self.read_reserve.position();
        let tail = self.tail.load(Ordering::Acquire);
        Position {
            head,
            shadow_head,
            tail,
            shadow_tail: self.write_reserve.position(tail),
        }
    }

    pub fn readable(&self) -> usize {
        let Position {
            shadow_head, tail, ..
        } = self.position();
        let surplus = self.rest.surplus_written.load(Ordering::Relaxed)
            - self.rest.surplus_read.load(Ordering::Relaxed);
        let items = match tail - shadow_head {
            0 => 0,
            // Of those that are readable and those that are about to be, so never 0 for the former.
            positions => (positions as i64 + surplus).max(1) as usize,
        };
        items + self.rest.returned_items.load(Ordering::Relaxed)
    }

    pub fn room(&self) -> usize {
        let Position {
            head, shadow_tail, ..
        } = self.position();
        self.capacity()
            .saturating_sub((shadow_tail - head) as usize)
    }

    /// Items ever committed.
    pub fn written(&self) -> u64 {
        let surplus = self.rest.surplus_written.load(Ordering::Relaxed);
        self.position().tail.saturating_add_signed(surplus)
    }

    /// Items ever finished.
    pub fn read(&self) -> u64 {
        let surplus = self.rest.surplus_read.load(Ordering::Relaxed);
        self.position().head.saturating_add_signed(surplus)
    }
}

impl<T> Taken<T> {
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Slots(count) => *count,
            Items::Gathered(gathered) => gathered.items.len(),
        }
    }

    /// Where the items stand: by position, and by their number in a range that was gathered.
    fn place(&self) -> (u64, usize) {
        let before = match &self.items {
            Items::Slots(_) => 0,
            Items::Gathered(gathered) => gathered.before,
        };
        (self.positions.start, before)
    }

    /// Splits off what comes after the first `count` items. Ranges of positions are two then, each of
    /// them with a turn of its own.
    fn split_off(&mut self, count: usize) -> Option<Self> {
        if self.len() <= count {
            return None;
        }
        match &mut self.items {
            Items::Slots(items) => {
                let rest = Items::Slots(*items - count);
                *items = count;
                let middle = self.positions.start + count as u64;
                let positions = middle..self.positions.end;
                self.positions.end = middle;
                Some(Taken {
                    positions,
                    items: rest,
                })
            }
            Items::Gathered(gathered) => Some(Taken {
                positions: self.positions.clone(),
                items: Items::Gathered(Box::new(Gathered {
                    items: gathered.items.split_off(count),
                    before: gathered.before + count,
                    stamp: gathered.stamp,
                    hold: Arc::clone(&gathered.hold),
                })),
            }),
        }
    }
}

/// Positions that a reader holds, finished when this is dropped. The lane must not be touched
/// afterwards but by who has another hold of it.
pub struct Hold<T> {
    pub lane: LaneRef<T>,
    pub positions: Range<u64>,
}

impl<T> Drop for Hold<T> {
    #[inline]
    fn drop(&mut self) {
        let buffer = self.lane.buffer();
        let positions = self.positions.clone();
        buffer.own(positions.clone());
        if buffer.read_turns().finish(&self.lane.head, positions) {
            self.lane.alone();
        }
    }
}

/// A lane that the ring and open slices share; freed by the last of them.
pub struct LaneRef<T>(NonNull<Lane<T>>);

impl<T> Clone for LaneRef<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for LaneRef<T> {}

impl<T> Deref for LaneRef<T> {
    type Target = Lane<T>;

    #[inline(always)]
    fn deref(&self) -> &Lane<T> {
        // SAFETY: the ring has not abandoned the lane, or the caller has an open slice or has
        // claimed a side; until then no thread frees it.
        unsafe { self.0.as_ref() }
    }
}

// Methods that may free the lane: they take no reference to it.
impl<T> LaneRef<T> {
    pub fn new(capacity: usize) -> Self {
        LaneRef(NonNull::from(Box::leak(Box::new(Lane::new(capacity)))))
    }

    /// Reserves up to `count` positions to write; `None` when there is no room for `count_min`. Their
    /// slice is open until they are [committed](LaneRef::commit).
    #[inline]
    pub fn try_write(self, count_min: usize, count: usize) -> Option<Range<u64>> {
        let reserved = self.write_reserve.reserve(&self.head, count_min, count)?;
        self.buffer().own(reserved.clone());
        Some(reserved)
    }

    /// Prepares the commit of a slice that was filled in part or beyond its room: gives back the
    /// unused positions, or leaves notes for readers. Returns the range to commit; `None` when all of
    /// it was given back, so the slice is not open any more.
    #[cold]
    #[inline(never)]
    pub fn settle(
        self,
        reserved: Range<u64>,
        filled: u64,
        beyond: Option<Box<Beyond<T>>>,
        stamp: u64,
    ) -> Option<Range<u64>> {
        let Range { start, mut end } = reserved;
        let buffer = self.buffer();
        buffer.own(start..end);
        if filled < end && self.write_reserve.give_back(filled, end) {
            if filled == start {
                return None;
            }
            end = filled;
        }
        let items_beyond = beyond.as_ref().map_or(0, |beyond| beyond.items.len());
        let surplus = items_beyond as i64 - (end - filled) as i64;
        if surplus != 0 {
            for hole in filled..end {
                // SAFETY: this writer owns the position.
                unsafe { *buffer.note(hole) = Note::Hole };
            }
            let mut notes = (end - filled) as usize;
            if let Some(mut beyond) = beyond {
                beyond.stamp = stamp;
                // SAFETY: as above. Only what is full has items beyond, so `filled` is `end`.
                unsafe { *buffer.note(filled - 1) = Note::Beyond(beyond) };
                notes += 1;
            }
            // Both are released by `Turns::finish`.
            self.rest.notes.fetch_add(notes, Ordering::Relaxed);
            self.rest
                .surplus_written
                .fetch_add(surplus, Ordering::Relaxed);
        }
        Some(start..end)
    }

    /// Makes written positions readable.
    #[inline]
    pub fn commit(self, written: Range<u64>, stamp: u64) {
        let buffer = self.buffer();
        buffer.own(written.clone());
        for position in sampled(written.clone()) {
            // SAFETY: this writer owns the position.
            unsafe { *buffer.stamp(position) = stamp };
        }
        if buffer.write_turns().finish(&self.tail, written) {
            self.without_writers();
        }
    }

    /// Takes items to read. Their slice is open until a [`Hold`] of them is dropped.
    #[inline]
    pub fn try_read(self, count: usize) -> Option<Taken<T>> {
        if self.rest.returned_items.load(Ordering::Relaxed) > 0
            && let Some(taken) = self.take_returned(count)
        {
            return Some(taken);
        }
        loop {
            let positions = self.read_reserve.reserve(&self.tail, count)?;
            self.buffer().own(positions.clone());
            if self.rest.notes.load(Ordering::Relaxed) == 0 {
                let items = Items::Slots((positions.end - positions.start) as usize);
                return Some(Taken { positions, items });
            }
            let taken = Lane::gather(self, positions);
            if taken.len() > 0 {
                return Some(taken);
            }
            // Nothing but holes: finished at once.
            drop(Hold {
                lane: self,
                positions: taken.positions,
            });
        }
    }

    /// Hands items out again, or drops them when the ring is gone.
    #[cold]
    pub fn put_back(self, taken: Taken<T>) {
        if let Some(taken) = self.hand_back(taken) {
            self.finish(taken);
        }
    }

    /// Keeps items for the next reader; gives them back when there will be none.
    fn hand_back(self, taken: Taken<T>) -> Option<Taken<T>> {
        let mut returned = lock(&self.rest.returned);
        let Some(returned) = returned.as_mut() else {
            return Some(taken);
        };
        let items = &self.rest.returned_items;
        items.store(
            items.load(Ordering::Relaxed) + taken.len(),
            Ordering::Relaxed,
        );
        returned.insert(taken.place(), taken);
        None
    }

    /// Drops items and finishes their positions, even if a drop panics.
    #[inline]
    pub fn finish(self, Taken { positions, items }: Taken<T>) {
        match items {
            Items::Slots(count) => {
                let hold = Hold {
                    lane: self,
                    positions,
                };
                let parts = self.parts(hold.positions.start, count);
                for part in parts {
                    // SAFETY: the caller owns these items, and nobody reads them again.
                    unsafe { part.drop_in_place() };
                }
            }
            Items::Gathered(gathered) => drop(gathered),
        }
    }

    /// The slots of `count` positions from `start`.
    #[inline]
    pub fn parts(self, start: u64, count: usize) -> [*mut [T]; 2] {
        let buffer = self.buffer();
        buffer.indices(start, count).map(|indices| {
            // SAFETY: the indices are within the buffer.
            let first = unsafe { buffer.slots().add(indices.start) };
            std::ptr::slice_from_raw_parts_mut(first, indices.len())
        })
    }

    /// Asks for a capacity, if no resize is under way and `wanted` makes one of today's.
    pub fn resize(self, wanted: impl Fn(usize) -> Option<usize>) -> bool {
        let Some(capacity) = self.write_reserve.close(wanted) else {
            return false;
        };
        // Released by `close_writers`, acquired by the claim.
        self.rest.capacity_wanted.store(capacity, Ordering::Relaxed);
        self.close_writers();
        true
    }

    /// Called once, by the ring when it is dropped: nothing is reserved any more.
    pub fn abandon(self) {
        let returned = lock(&self.rest.returned).take();
        for taken in returned.into_iter().flat_map(BTreeMap::into_values) {
            self.finish(taken);
        }
        if self.write_reserve.abandon() {
            self.close_writers();
        }
    }

    /// Marks the turn's cell, for the thread that has closed `shadow_tail`.
    fn close_writers(self) {
        // Any earlier position will do.
        let shadow_tail = self
            .write_reserve
            .position(self.tail.load(Ordering::Relaxed));
        if self.buffer().write_turns().close(shadow_tail) {
            self.without_writers();
        }
    }

    /// The caller has claimed the writers' side.
    #[cold]
    fn without_writers(self) {
        if self.close_readers() {
            self.alone();
        }
    }

    /// On `true` the caller, which has claimed the writers' side, has claimed the readers' side, too.
    fn close_readers(self) -> bool {
        let shadow_head = self.read_reserve.close();
        self.buffer().read_turns().close(shadow_head)
    }

    /// The caller has claimed both sides.
    #[cold]
    fn alone(self) {
        loop {
            if self.write_reserve.is_abandoned() {
                // SAFETY: it was leaked by `new`. No slice is open, and the ring is gone.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
                return;
            }
            let capacity = self.replace_buffer();
            // Readers first: while the writers' side is closed, no thread can ask for the next resize.
            self.read_reserve.open();
            if self.write_reserve.open(capacity) {
                return;
            }
            // Abandoned meanwhile.
            if !self.close_readers() {
                return;
            }
        }
    }

    /// Gives the lane the wanted capacity, if its items find room there, and lays down the turns.
    /// Returns the capacity.
    fn replace_buffer(self) -> usize {
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let capacity = self.rest.capacity_wanted.load(Ordering::Relaxed);
        self.rest.buffer_track.owner();
        // SAFETY: both sides are claimed, so no other thread uses the buffer.
        let buffer = unsafe { &mut *self.rest.buffer.get() };
        if capacity < (tail - head) as usize {
            buffer.read_turns().rest(head);
            buffer.write_turns().rest(tail);
            return buffer.capacity();
        }
        let new = Buffer::new(capacity, head, tail);
        // SAFETY: as above, and all of `head..tail` is committed and untouched.
        unsafe { buffer.move_to(&new, head..tail) };
        *buffer = new;
        capacity
    }
}

impl<T> Drop for Lane<T> {
    fn drop(&mut self) {
        // All that was reserved is committed, all that was taken is finished.
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let buffer = self.buffer();
        buffer.own(head..tail);
        for position in head..tail {
            // SAFETY: the lane is the caller's alone. Every slot without a hole holds an item.
            unsafe {
                if !matches!(*buffer.note(position), Note::Hole) {
                    buffer.slot(position).drop_in_place();
                }
            }
        }
    }
}
