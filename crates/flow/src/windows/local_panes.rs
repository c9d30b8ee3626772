//! Partial results by pane and key, where panes are of equal size.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::mem;

use super::aggregate::Aggregate;
use super::grid::{Lateness, SlidingGrid, clamp};
use super::local::{Arrival, Partial};
use super::pane_table::PaneTable;

/// Empty tables for the next panes: as many as are usually open at a time. So that many have places for small
/// numbers, too.
const SPARE_TABLES: usize = 8;

/// The pane of the last item is found by two comparisons, any other by a search, and so is one for some of
/// whose windows the item is late.
#[derive(Debug)]
pub(super) struct PaneTables<K, S> {
    grid: SlidingGrid,
    lateness: Lateness,
    current: Current,
    /// The table of the current pane. Its place in `tables` holds an empty one meanwhile, so that it is found without
    /// looking there.
    table: PaneTable<K, S>,
    /// Where in `tables` the items of a pane are, by its number and by how many of its windows do not
    /// count them.
    by_pane: BTreeMap<(i64, u64), usize>,
    /// Tables that `by_pane` does not name are empty, and in `spare`.
    tables: Vec<PaneTable<K, S>>,
    spare: Vec<usize>,
    /// Partial results in all tables.
    len: usize,
}

/// The pane that the last item was in. Times from `start` on, for `length`, are in it, and count in all of its windows
/// while the watermark is less than `first_closed`.
#[derive(Debug, Clone, Copy)]
struct Current {
    start: i64,
    length: u64,
    first_closed: i64,
    /// The index of its table, if there is a pane.
    place: Option<usize>,
}

const NO_PANE: Current = Current {
    start: 0,
    length: 0,
    first_closed: i64::MIN,
    place: None,
};

impl<K: Hash + Eq + Clone + 'static, S> PaneTables<K, S> {
    pub fn new(grid: SlidingGrid, lateness: Lateness) -> Self {
        Self {
            grid,
            lateness,
            current: NO_PANE,
            table: PaneTable::new(false),
            by_pane: BTreeMap::new(),
            tables: Vec::new(),
            spare: Vec::new(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Adds an item of `time` to the pane of another time, which is the same as a rule.
    #[inline(always)]
    pub fn add<T, A>(
        &mut self,
        aggregate: &A,
        key: K,
        (time, counts_at): (i64, i64),
        watermark: i64,
        item: &T,
    ) -> Arrival
    where
        T: ?Sized,
        A: Aggregate<T, State = S>,
    {
        let Current {
            start,
            length,
            first_closed,
            ..
        } = self.current;
        // A time before the start is beyond any length.
        if counts_at.wrapping_sub(start) as u64 >= length || watermark >= first_closed {
            let arrival = self.turn_to(counts_at, watermark);
            if arrival == Arrival::Late {
                return arrival;
            }
        }
        self.table.add(aggregate, key, time, item, &mut self.len);
        Arrival::OnTime
    }

    /// Makes the pane of `time` the current one, unless all of its windows are closed.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, time: i64, watermark: i64) -> Arrival {
        let (grid, lateness) = (self.grid, self.lateness);
        let pane = grid.panes.index(time);
        let Some(windows) = grid.windows_after(pane, 0, lateness.closed_by(watermark)) else {
            return Arrival::Late;
        };
        let first = grid.first_window_of(pane);
        let skipped = windows.start().abs_diff(first);
        let place = *self.by_pane.entry((pane, skipped)).or_insert_with(|| {
            self.spare.pop().unwrap_or_else(|| {
                self.tables
                    .push(PaneTable::new(self.tables.len() < SPARE_TABLES));
                self.tables.len() - 1
            })
        });
        self.put_back();
        mem::swap(&mut self.table, &mut self.tables[place]);
        let (start, end) = (grid.panes.start(pane), grid.panes.end(pane));
        self.current = Current {
            start,
            length: end.abs_diff(start),
            first_closed: match skipped {
                0 => lateness.after(clamp(grid.end(first))),
                // The next item may come when it is late for more of them, or for fewer.
                _ => i64::MIN,
            },
            place: Some(place),
        };
        Arrival::OnTime
    }

    /// There is no current pane any more.
    fn put_back(&mut self) {
        if let Some(place) = self.current.place {
            mem::swap(&mut self.table, &mut self.tables[place]);
        }
        self.current = NO_PANE;
    }

    /// Gives up to `max` partial results of panes that end by `watermark`; returns whether that was all.
    pub fn flush(
        &mut self,
        watermark: i64,
        mut max: usize,
        out: &mut impl FnMut(Partial<K, S>),
    ) -> bool {
        let mut panes = self.by_pane.keys();
        if panes
            .next()
            .is_none_or(|(pane, _)| self.grid.panes.end(*pane) > watermark)
        {
            return true;
        }
        self.put_back();
        while let Some(first) = self.by_pane.first_entry() {
            let (pane, skipped) = *first.key();
            if self.grid.panes.end(pane) > watermark {
                return true;
            }
            let start = self.grid.panes.start(pane);
            let place = *first.get();
            let table = &mut self.tables[place];
            let before = table.len();
            table.take_some(max, |key, cell| {
                out(Partial::new(key, start, skipped, cell));
            });
            let given = before - table.len();
            self.len -= given;
            max -= given;
            if table.len() > 0 {
                return false;
            }
            first.remove();
            if self.spare.len() >= SPARE_TABLES {
                *table = PaneTable::new(place < SPARE_TABLES);
            }
            self.spare.push(place);
        }
        true
    }
}
