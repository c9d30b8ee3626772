//! Partial results by pane and key, where panes are of equal size.

use std::collections::BTreeMap;
use std::hash::Hash;

use super::aggregate::Aggregate;
use super::local::{Arrival, Partial};
use super::pane_table::PaneTable;
use super::spec::Grid;

/// Empty tables that are kept for the next panes: as many as are usually open at a time.
/// So many have places for small numbers, too.
const SPARE_TABLES: usize = 8;

/// The pane of the last item is found by two comparisons, any other by a search.
#[derive(Debug)]
pub(super) struct PaneTables<K, S> {
    grid: Grid,
    current: Current,
    /// Where in `tables` the pane of a number is.
    by_pane: BTreeMap<i64, usize>,
    /// Those that `by_pane` does not name are empty, and in `spare`.
    tables: Vec<PaneTable<K, S>>,
    spare: Vec<usize>,
    /// Partial results in all tables.
    len: usize,
}

/// The pane that the last item was in. Times from `start` to before `end` are in it.
#[derive(Debug, Clone, Copy)]
struct Current {
    start: i64,
    end: i64,
    table: usize,
}

const NO_PANE: Current = Current {
    start: i64::MAX,
    end: i64::MIN,
    table: 0,
};

impl<K: Hash + Eq + Clone + 'static, S> PaneTables<K, S> {
    pub fn new(grid: Grid) -> Self {
        Self {
            grid,
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
        let is_current = self.current.start <= counts_at && counts_at < self.current.end;
        if !is_current && self.turn_to(counts_at, watermark) == Arrival::Late {
            return Arrival::Late;
        }
        if self.current.end <= watermark {
            return Arrival::Late;
        }
        let len = &mut self.len;
        self.tables[self.current.table].add(aggregate, key, time, item, len);
        Arrival::OnTime
    }

    /// Makes the pane of `time` the current one, unless it has ended.
    #[cold]
    #[inline(never)]
    fn turn_to(&mut self, time: i64, watermark: i64) -> Arrival {
        let pane = self.grid.index(time);
        let end = self.grid.end(pane);
        if end <= watermark {
            return Arrival::Late;
        }
        let table = *self.by_pane.entry(pane).or_insert_with(|| {
            self.spare.pop().unwrap_or_else(|| {
                self.tables
                    .push(PaneTable::new(self.tables.len() < SPARE_TABLES));
                self.tables.len() - 1
            })
        });
        self.current = Current {
            start: self.grid.start(pane),
            end,
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
            let pane = *first.key();
            if self.grid.end(pane) > watermark {
                return true;
            }
            let start = self.grid.start(pane);
            let place = *first.get();
            let table = &mut self.tables[place];
            let before = table.len();
            table.take_some(max, |key, cell| out(Partial::new(key, start, cell)));
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
