//! One lane of a ring: the four positions and how they move.

use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::mem;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{Beyond, Buffer, Marks, Note, sampled};
use crate::gate::Gate;
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
///   stands there: then nobody holds anything behind `end`, and the writer gives up what is its own.
///   Else the rest of its range becomes holes, which readers skip.
/// - A reader reserves `start..end` by moving `shadow_head`, and has seen `end ≤ tail`.
///
/// # Finishing in order
///
/// `tail` and `head` are each moved by [`publish`]. A range that starts where the position stands is
/// finished by moving the position to its end. Any other leaves a mark at its start, the range's
/// end, and whoever moves the position to that start moves it on to the end. No range is forgotten:
/// all changes of a position are read-modify-writes, so they are in one order, and each sees
/// all that was done before the earlier ones. After leaving its mark a slice *changes* the position
/// by nothing. Whoever moves the position to the mark's place does that either before, then the slice
/// sees it there and goes on itself; or after, then the mover sees the mark.
///
/// A mark of an earlier lap needs no clearing: it is at most the position that looks at it. A range is
/// marked only when its end is final, so no mark is ever taken back.
///
/// # The gate
///
/// Whoever holds a slice is inside of one of two gates, and touches the lane only there. To resize
/// the lane, the writers' gate is closed; the last writer to leave closes the readers' gate; and the
/// last reader to leave has the lane alone. (With all writers gone, everything is committed, and
/// with all readers gone, everything that was taken is finished.) Dropping the ring closes the gates
/// in the same way, and the last to leave frees the lane.
///
/// A slice that was handed back is inside until it is taken again and finished; taking it needs no
/// gate, so a closed one cannot keep it there. Writers are never waited for by readers that hold
/// nothing: the readers' gate closes only when no write slice is open.
pub struct Lane<T> {
    /// Written and read by writers.
    write_gate: Padded<Gate>,
    /// Moved by writers as they reserve (forth) and give back (back).
    shadow_tail: Padded<AtomicU64>,
    /// Moved by writers as they commit; read by readers.
    tail: Padded<AtomicU64>,
    /// Written and read by readers.
    read_gate: Padded<Gate>,
    /// Moved by readers as they reserve.
    shadow_head: Padded<AtomicU64>,
    /// Moved by readers as they finish; read by writers.
    head: Padded<AtomicU64>,
    rest: Padded<Rest<T>>,
}

/// What is read often and written seldom.
struct Rest<T> {
    /// Read inside of a gate, replaced by who has claimed both.
    buffer: UnsafeCell<Buffer<T>>,
    buffer_track: Track,
    /// Of `buffer`; written by who replaces it, read by anyone.
    capacity: AtomicUsize,
    /// What a resize is to make of `capacity`. Written by who closes the writers' gate from inside,
    /// read by who claims it.
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
    Gathered(Gathered<T>),
}

/// Items of a range that had some beyond its positions, or a part of them.
pub struct Gathered<T> {
    pub items: Vec<T>,
    /// How many items of the range came before these.
    pub before: usize,
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
                buffer: Buffer::new(capacity).into(),
                buffer_track: Track::default(),
                capacity: AtomicUsize::new(capacity),
                capacity_wanted: AtomicUsize::new(capacity),
                notes: AtomicUsize::new(0),
                surplus_written: AtomicI64::new(0),
                surplus_read: AtomicI64::new(0),
                returned_items: AtomicUsize::new(0),
                returned: Mutex::new(Some(BTreeMap::new())),
            }),
            write_gate: Padded::default(),
            shadow_tail: Padded::default(),
            tail: Padded::default(),
            read_gate: Padded::default(),
            shadow_head: Padded::default(),
            head: Padded::default(),
        }
    }
}

impl<T> Lane<T> {
    /// The lane's memory. The caller is inside of a gate, or has claimed both.
    #[inline]
    pub fn buffer(&self) -> &Buffer<T> {
        self.rest.buffer_track.reader();
        // SAFETY: it is replaced only by who has claimed both gates, when nobody is inside.
        unsafe { &*self.rest.buffer.get() }
    }

    /// Reserves up to `count` positions to write, for a writer that is inside; `None` when there is
    /// no room for `count_min`.
    #[inline]
    fn reserve_write(&self, count_min: usize, count: usize) -> Option<Range<u64>> {
        let capacity = self.buffer().capacity() as u64;
        let count_min = (count_min as u64).clamp(1, capacity);
        loop {
            // Acquires earlier reservations, and with them what they saw of `head`: so `used` is at
            // most the capacity.
            let start = self.shadow_tail.load(Ordering::Acquire);
            // Acquires the readers' `publish`: they are done with the slots.
            let head = self.head.load(Ordering::Acquire);
            let Some(used) = start.checked_sub(head) else {
                // `start` is old by now: others have written and read in between.
                continue;
            };
            let count = (count as u64).min(capacity - used);
            if count < count_min {
                return None;
            }
            let end = start + count;
            // Acquires `give_back`: former owners of these slots are done with them. Releases to the
            // load above.
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let moved = self
                .shadow_tail
                .compare_exchange(start, end, success, failure);
            if moved.is_ok() {
                self.buffer().own(start..end);
                return Some(start..end);
            }
        }
    }

    /// Gives up the end of a reservation: from `filled` to `end`. `false` when others have reserved
    /// behind it.
    fn give_back(&self, filled: u64, end: u64) -> bool {
        let (success, failure) = (Ordering::Release, Ordering::Relaxed);
        self.shadow_tail
            .compare_exchange(end, filled, success, failure)
            .is_ok()
    }

    /// Makes a reservation readable of which the slots up to `filled` are written.
    pub fn commit(&self, reserved: Range<u64>, filled: u64, beyond: Vec<T>, stamp: u64) {
        let Range { start, mut end } = reserved;
        let buffer = self.buffer();
        buffer.own(start..end);
        if filled < end && self.give_back(filled, end) {
            end = filled;
        }
        if start == end {
            return;
        }
        for position in sampled(start..end) {
            // SAFETY: this writer owns the position.
            unsafe { *buffer.stamp(position) = stamp };
        }
        let surplus = beyond.len() as i64 - (end - filled) as i64;
        if surplus != 0 {
            for hole in filled..end {
                // SAFETY: as above.
                unsafe { *buffer.note(hole) = Note::Hole };
            }
            let mut notes = (end - filled) as usize;
            if !beyond.is_empty() {
                // SAFETY: as above. Only what is full has items beyond, so `filled` is `end`.
                unsafe { *buffer.note(filled - 1) = Note::Beyond(Box::new(Beyond(beyond))) };
                notes += 1;
            }
            // Both are released by `publish`.
            self.rest.notes.fetch_add(notes, Ordering::Relaxed);
            self.rest
                .surplus_written
                .fetch_add(surplus, Ordering::Relaxed);
        }
        publish(&self.tail, &buffer.write_marks, start..end);
    }

    /// Reserves up to `count` positions to read, for a reader that is inside; `None` when there is
    /// nothing readable.
    #[inline]
    fn reserve_read(&self, count: usize) -> Option<Range<u64>> {
        loop {
            // Acquires earlier reservations, and with them what they saw of `tail`: so `tail` is not
            // less.
            let start = self.shadow_head.load(Ordering::Acquire);
            // Acquires the writers' `publish`: the slots are written.
            let tail = self.tail.load(Ordering::Acquire);
            let count = (count as u64).min(tail - start);
            if count == 0 {
                return None;
            }
            let end = start + count;
            // Releases to the load above. What earlier owners of the slots did came with `tail`.
            let (success, failure) = (Ordering::Release, Ordering::Relaxed);
            let moved = self
                .shadow_head
                .compare_exchange(start, end, success, failure);
            if moved.is_ok() {
                self.buffer().own(start..end);
                return Some(start..end);
            }
        }
    }

    /// Brings the items of a range that has notes in it together: in its first slots, or in a
    /// vector when there were some beyond.
    #[cold]
    fn gather(this: LaneRef<T>, positions: Range<u64>) -> Taken<T> {
        let buffer = this.buffer();
        let mut notes = 0;
        let mut gathered: Option<Vec<T>> = None;
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
                count += beyond.0.len();
                gathered
                    .get_or_insert_with(|| {
                        let before = count - beyond.0.len();
                        let slots = (0..before as u64).map(|n| buffer.slot(positions.start + n));
                        // SAFETY: as above.
                        slots.map(|slot| unsafe { slot.read() }).collect()
                    })
                    .extend(beyond.0);
            }
        }
        if notes > 0 {
            let surplus = count as i64 - (positions.end - positions.start) as i64;
            this.rest.notes.fetch_sub(notes, Ordering::Relaxed);
            this.rest.surplus_read.fetch_add(surplus, Ordering::Relaxed);
        }
        let items = match gathered {
            None => Items::Slots(count),
            Some(items) => Items::Gathered(Gathered {
                items,
                before: 0,
                hold: Arc::new(Hold {
                    lane: this,
                    positions: positions.clone(),
                }),
            }),
        };
        Taken { positions, items }
    }

    /// The part of handed-back items that comes first, up to `count` items.
    #[cold]
    fn take_returned(&self, count: usize) -> Option<Taken<T>> {
        let mut returned = lock(&self.rest.returned);
        let returned = returned.as_mut()?;
        let (_, mut taken) = returned.pop_first()?;
        if let Some(rest) = taken.split_off(count, &self.read_gate) {
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

    /// Keeps items for the next reader; gives them back when there will be none.
    fn hand_back(&self, taken: Taken<T>) -> Option<Taken<T>> {
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

    pub fn capacity(&self) -> usize {
        self.rest.capacity.load(Ordering::Relaxed)
    }

    pub fn position(&self) -> Position {
        // In this order: `head` is not greater than what is loaded after it, and so on.
        // Acquire keeps the order.
        Position {
            head: self.head.load(Ordering::Acquire),
            shadow_head: self.shadow_head.load(Ordering::Acquire),
            tail: self.tail.load(Ordering::Acquire),
            shadow_tail: self.shadow_tail.load(Ordering::Acquire),
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

/// Finishes `positions` in their turn; see [`Lane`].
#[inline]
fn publish(position: &AtomicU64, marks: &Marks, Range { start, end }: Range<u64>) {
    // Every change acquires what was done before earlier ones and releases what was done before
    // this one: to each other, to `reserve_read` (`tail`) and to `reserve_write` (`head`).
    let move_on = |from, to| {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        position
            .compare_exchange(from, to, success, failure)
            .is_ok()
    };
    if !move_on(start, end) {
        // Releases to whoever acts on the mark below.
        marks.at(start).store(end, Ordering::Release);
        let is_turn = position.fetch_add(0, Ordering::AcqRel) == start;
        if !is_turn || !move_on(start, end) {
            return;
        }
    }
    let mut at = end;
    loop {
        // Acquires the mark's slice.
        let next = marks.at(at).load(Ordering::Acquire);
        if next <= at || !move_on(at, next) {
            return;
        }
        at = next;
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

    /// Splits off what comes after the first `count` items. Positions that are finished apart are
    /// inside of the gate apart.
    fn split_off(&mut self, count: usize, gate: &Gate) -> Option<Self> {
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
                // Even a closed gate lets in who is inside.
                let _ = gate.enter();
                Some(Taken {
                    positions,
                    items: rest,
                })
            }
            Items::Gathered(gathered) => Some(Taken {
                positions: self.positions.clone(),
                items: Items::Gathered(Gathered {
                    items: gathered.items.split_off(count),
                    before: gathered.before + count,
                    hold: Arc::clone(&gathered.hold),
                }),
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
    fn drop(&mut self) {
        let buffer = self.lane.buffer();
        buffer.own(self.positions.clone());
        publish(&self.lane.head, &buffer.read_marks, self.positions.clone());
        self.lane.leave_reader();
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
        // SAFETY: the ring has not abandoned the lane, or the caller is inside of a gate or has
        // claimed one; until then nobody frees it.
        unsafe { self.0.as_ref() }
    }
}

// Methods that may free the lane: they take no reference to it.
impl<T> LaneRef<T> {
    pub fn new(capacity: usize) -> Self {
        LaneRef(NonNull::from(Box::leak(Box::new(Lane::new(capacity)))))
    }

    /// Reserves positions to write. Who has them is inside of the writers' gate and has to
    /// [leave](LaneRef::leave_writer).
    #[inline]
    pub fn try_write(self, count_min: usize, count: usize) -> Option<Range<u64>> {
        if self.write_gate.enter()
            && let Some(reserved) = self.reserve_write(count_min, count)
        {
            return Some(reserved);
        }
        self.leave_writer();
        None
    }

    /// Takes items to read. Who has them is inside of the readers' gate, which dropping a [`Hold`]
    /// leaves.
    #[inline]
    pub fn try_read(self, count: usize) -> Option<Taken<T>> {
        if self.rest.returned_items.load(Ordering::Relaxed) > 0
            && let Some(taken) = self.take_returned(count)
        {
            return Some(taken);
        }
        loop {
            if !self.read_gate.enter() {
                break;
            }
            let Some(positions) = self.reserve_read(count) else {
                break;
            };
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
        self.leave_reader();
        None
    }

    /// Hands items out again, or drops them when the ring is gone.
    #[cold]
    pub fn put_back(self, taken: Taken<T>) {
        if let Some(taken) = self.hand_back(taken) {
            self.finish(taken);
        }
    }

    /// Drops items and finishes their positions, even if a drop panics.
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
    pub fn parts(self, start: u64, count: usize) -> [*mut [T]; 2] {
        let buffer = self.buffer();
        buffer.indices(start, count).map(|indices| {
            // SAFETY: the indices are within the buffer.
            let first = unsafe { buffer.slots().add(indices.start) };
            std::ptr::slice_from_raw_parts_mut(first, indices.len())
        })
    }

    #[inline]
    pub fn leave_writer(self) {
        if self.write_gate.leave() {
            self.without_writers();
        }
    }

    #[inline]
    fn leave_reader(self) {
        if self.read_gate.leave() {
            self.alone();
        }
    }

    /// Asks for a capacity, if no resize is under way and `wanted` makes one of today's.
    pub fn resize(self, wanted: impl FnOnce(usize) -> Option<usize>) -> bool {
        let asked = self.write_gate.enter()
            && wanted(self.capacity()).is_some_and(|capacity| {
                let closed = self.write_gate.close_from_inside();
                if closed {
                    // Released by leaving the gate, acquired by who claims it.
                    self.rest.capacity_wanted.store(capacity, Ordering::Relaxed);
                }
                closed
            });
        self.leave_writer();
        asked
    }

    /// Called once, by the ring when it is dropped: nothing is reserved any more.
    pub fn abandon(self) {
        let returned = lock(&self.rest.returned).take();
        for taken in returned.into_iter().flat_map(BTreeMap::into_values) {
            self.finish(taken);
        }
        if self.write_gate.abandon() {
            self.without_writers();
        }
    }

    /// The caller has claimed the writers' gate.
    #[cold]
    fn without_writers(self) {
        if self.read_gate.close() {
            self.alone();
        }
    }

    /// The caller has claimed both gates.
    #[cold]
    fn alone(self) {
        loop {
            if self.write_gate.is_abandoned() {
                // SAFETY: it was leaked by `new`. No slice is open, and the ring is gone.
                drop(unsafe { Box::from_raw(self.0.as_ptr()) });
                return;
            }
            self.replace_buffer();
            // Readers first: while the writers' gate is claimed, nobody can ask for the next resize.
            // It is not abandoned: that is said by the other gate.
            let _ = self.read_gate.open();
            if self.write_gate.open() {
                return;
            }
            // Abandoned meanwhile.
            if !self.read_gate.close() {
                return;
            }
        }
    }

    fn replace_buffer(self) {
        let head = self.head.load(Ordering::Relaxed);
        let tail = self.tail.load(Ordering::Relaxed);
        let capacity = self.rest.capacity_wanted.load(Ordering::Relaxed);
        if capacity < (tail - head) as usize {
            return;
        }
        self.rest.buffer_track.owner();
        let new = Buffer::new(capacity);
        // SAFETY: both gates are claimed, so nobody else uses the buffer, and all of `head..tail` is
        // committed and untouched.
        unsafe {
            let buffer = &mut *self.rest.buffer.get();
            buffer.move_to(&new, head..tail);
            *buffer = new;
        }
        self.rest.capacity.store(capacity, Ordering::Relaxed);
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
