//! Items between a lane and its readers: taken, handed back, finished.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;

use super::{Lane, LaneRef};
use crate::buffer::Note;
use crate::sync::{Ordering, lock};

/// Read slices that were handed back, by their [`order`](Taken::order).
pub type Returned<T> = BTreeMap<(u64, usize), Taken<T>>;

/// Items that a reader holds.
pub struct Taken<T> {
    /// The positions that become free when these items are finished.
    pub positions: Range<u64>,
    pub items: Items<T>,
}

pub enum Items<T> {
    /// This many items, in the first slots of the positions.
    Slots(usize),
    /// Items in a vector, since the range has overflow.
    Gathered(Box<Gathered<T>>),
}

/// The items of a range with overflow, or a run of them.
pub struct Gathered<T> {
    pub items: Vec<T>,
    /// The number of items of the range before these.
    pub before: usize,
    /// The time of the range's last overflow.
    pub stamp: u64,
    /// Finishes the range when all runs of it are finished. Declared after the items, so dropped after
    /// them.
    hold: Arc<Hold<T>>,
}

impl<T> Lane<T> {
    /// Brings the items of a range with notes together: in its first slots, or in a vector when it has
    /// overflow.
    #[cold]
    fn gather(this: LaneRef<T>, positions: Range<u64>) -> Taken<T> {
        let buffer = this.buffer();
        let mut notes = 0;
        let mut gathered: Option<Vec<T>> = None;
        let mut stamp = 0;
        let mut count = 0;
        for position in positions.clone() {
            // SAFETY: this reader's reservation owns the notes of `positions`.
            let note = unsafe { mem::take(&mut *buffer.note(position)) };
            notes += usize::from(!matches!(note, Note::Item));
            if let Note::Hole = note {
                continue;
            }
            let slot = buffer.slot(position);
            match &mut gathered {
                // SAFETY: this reader owns the slot. It is no hole, so it holds an item, and this is
                // the only read of it.
                Some(items) => items.push(unsafe { slot.read() }),
                None => {
                    let target = buffer.slot(positions.start + count as u64);
                    // SAFETY: this reader owns both slots. `target` is `slot` itself or one before it,
                    // whose item has been moved already or which is a hole.
                    unsafe { target.copy_from(slot, 1) };
                }
            }
            count += 1;
            if let Note::Overflow(overflow) = note {
                count += overflow.items.len();
                stamp = overflow.stamp;
                gathered
                    .get_or_insert_with(|| {
                        let before = count - overflow.items.len();
                        let slots = (0..before as u64).map(|n| buffer.slot(positions.start + n));
                        // SAFETY: the first `before` slots hold the items so far, and are not read
                        // again.
                        slots.map(|slot| unsafe { slot.read() }).collect()
                    })
                    .extend(overflow.items);
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

    /// Takes the first of the handed-back items, up to `count`.
    #[cold]
    fn take_returned(&self, count: usize) -> Option<Taken<T>> {
        let mut returned = lock(&self.rest.returned);
        let returned = returned.as_mut()?;
        let (_, mut taken) = returned.pop_first()?;
        if let Some(rest) = taken.split_off(count) {
            returned.insert(rest.order(), rest);
        }
        // Every thread changes it under the lock, so a load and a store lose no change.
        let items = &self.rest.returned_items;
        items.store(
            items.load(Ordering::Relaxed) - taken.len(),
            Ordering::Relaxed,
        );
        Some(taken)
    }
}

impl<T> LaneRef<T> {
    /// Takes items to read. Their slice stays open until a [`Hold`] of their positions is dropped.
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
            // The range has only holes, so it is finished at once.
            drop(Hold {
                lane: self,
                positions: taken.positions,
            });
        }
    }

    /// Hands items back, for the next reader; drops them when the ring is gone.
    #[cold]
    pub fn hand_back(self, taken: Taken<T>) {
        if let Some(taken) = self.try_hand_back(taken) {
            self.finish(taken);
        }
    }

    /// Stores items for the next reader; returns them when the ring is gone.
    fn try_hand_back(self, taken: Taken<T>) -> Option<Taken<T>> {
        let mut returned = lock(&self.rest.returned);
        let Some(returned) = returned.as_mut() else {
            return Some(taken);
        };
        let items = &self.rest.returned_items;
        items.store(
            items.load(Ordering::Relaxed) + taken.len(),
            Ordering::Relaxed,
        );
        returned.insert(taken.order(), taken);
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
                    // SAFETY: `Taken` owns these items, and ends here, so no reader takes them again.
                    unsafe { part.drop_in_place() };
                }
            }
            Items::Gathered(gathered) => drop(gathered),
        }
    }
}

impl<T> Taken<T> {
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Slots(count) => *count,
            Items::Gathered(gathered) => gathered.items.len(),
        }
    }

    /// The order in which readers get the items: by position, then by number in a gathered range.
    fn order(&self) -> (u64, usize) {
        let before = match &self.items {
            Items::Slots(_) => 0,
            Items::Gathered(gathered) => gathered.before,
        };
        (self.positions.start, before)
    }

    /// Splits off the items after the first `count`. A range in slots becomes two ranges, each with a
    /// turn of its own; runs of a gathered range share its turn.
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

/// Positions that a reader holds, finished when this is dropped. After the drop the thread may touch the
/// lane only if it has another open slice.
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
            self.lane.on_all_claimed();
        }
    }
}
