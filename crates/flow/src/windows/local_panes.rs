//! Partial results by pane and key, where panes are of equal size.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::aggregate::Aggregate;
use super::grid::{Lateness, SlidingGrid, clamp};
use super::local::{Arrival, Partial};
use super::pane_table::PaneTable;

/// Empty tables that are kept for the next panes: as many as are usually open at a time.
/// So many have places for small numbers, too.
const SPARE_TABLES: usize = 8;

/// The pane of the last item is found by two comparisons, any other by a search, and so is one for some of
/// whose windows the item is late.
#[derive(Debug)]
pub(super) struct PaneTables<K, S> {
    grid: SlidingGrid,
    lateness: Lateness,
    current: Current,
    /// Where in `tables` the items of a pane are, by its number and by how many of its windows do not
    /// count them.
    by_pane: BTreeMap<(i64, u64), usize>,
    /// Those that `by_pane` does not name are empty, and in `spare`.
    tables: Vec<PaneTable<K, S>>,
    spare: Vec<usize>,
    /// Partial results in all tables.
    len: usize,
}

/// The pane that the last item was in. Times from `start` to before `end` are in it, and count in all of its
/// windows while the watermark is less than `first_closed`.
#[derive(Debug, Clone, Copy)]
struct Current {
    start: i64,
    end: i64,
    first_closed: i64,
    table: usize,
}

const NO_PANE: Current = Current {
    start: i64::MAX,
    end: i64::MIN,
    first_closed: i64::MIN,
    table: 0,
};

impl<K: Hash + Eq + Clone + 'static, S> PaneTables<K, S> {
    pub fn new(grid: SlidingGrid, lateness: Lateness) -> Self {
        Self {
            grid,
            lateness,
            current: NO_PANE,
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
        key: &K,
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
            end,
            first_closed,
            ..
        } = self.current;
        let is_current = start <= counts_at && counts_at < end && watermark < first_closed;
        if !is_current && self.turn_to(counts_at, watermark) == Arrival::Late {
            return Arrival::Late;
        }
        let len = &mut self.len;
        self.tables[self.current.table].add(aggregate, key, time, item, len);
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
        let table = *self.by_pane.entry((pane, skipped)).or_insert_with(|| {
            self.spare.pop().unwrap_or_else(|| {
                self.tables
                    .push(PaneTable::new(self.tables.len() < SPARE_TABLES));
                self.tables.len() - 1
            })
        });
        self.current = Current {
            start: grid.panes.start(pane),
            end: grid.panes.end(pane),
            first_closed: match skipped {
                0 => lateness.after(clamp(grid.end(first))),
                // The next item may come when it is late for more of them, or for fewer.
                _ => i64::MIN,
            },
            table,
        };
        Arrival::OnTime
    }

    /// Gives up to `max` partial results of panes that end by `watermark`; returns whether that was all.
    pub fn flush(
        &mut self,
        watermark: i64,
        mut max: usize,
        out: &mut impl FnMut(Partial<K, S>),
    ) -> bool {
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
            self.current = NO_PANE;
        }
        true
    }
}
