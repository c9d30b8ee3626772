//! The rows of each key with the highest scores, at each moment.
//!
//! The state of a key is an ordered map. Its fields are places: the rows below the top, then those in the top, each in
//! the order of scores. So the lowest row of the top and the highest row below it are found by one look-up, however many
//! rows there are, and a row that comes or goes moves at most one other row across the line.

use std::cell::OnceCell;
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::score_bytes::ScoreBytes;
use super::{Rank, RowChange, Unmatched};
use crate::stage::chain::Emit;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::row_places::{HasRow, RowBytes};
use crate::state::values::Value;
use crate::windows::Key;

/// A row in the state of a [`top`], by its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RankedRow<T> {
    /// The number of rows in the top, at [`RowPlace::SIZE`]; not there if there are less than two.
    Size(u64),
    /// A row, and the number of times that it is present here.
    Row(T, u64),
}

/// The place of a row: below the top or in it, then bytes that compare as scores do, and among equal scores a hash of the row's
/// serialized bytes, and a number among the rows with this hash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RowPlace(u8, ScoreBytes, u32, u32);

impl RowPlace {
    const SIZE: u8 = 0;
    const BELOW: u8 = 1;
    const TOP: u8 = 2;

    fn size() -> Self {
        RowPlace(Self::SIZE, ScoreBytes::default(), 0, 0)
    }

    /// Returns the place in front of all rows of the top.
    fn line() -> Self {
        RowPlace(Self::TOP, ScoreBytes::default(), 0, 0)
    }
}

impl<T: Serialize> HasRow for RankedRow<T> {
    type Row = T;

    fn row(&self) -> Option<&T> {
        match self {
            RankedRow::Size(_) => None,
            RankedRow::Row(row, _) => Some(row),
        }
    }
}

/// A row with the bytes that its place depends on.
struct Ranked<'a, T> {
    row: &'a T,
    score: ScoreBytes,
    bytes: RowBytes,
}

impl<'a, T: Value> Ranked<'a, T> {
    fn new<S: Rank>(score: &S, row: &'a T) -> Self {
        Ranked {
            row,
            score: ScoreBytes::of(score),
            bytes: RowBytes::of(row),
        }
    }

    /// Returns the places of the row in a zone, by its number among those with the same hash.
    fn places(&self, zone: u8) -> impl Fn(u32) -> RowPlace {
        move |number| RowPlace(zone, self.score.clone(), self.bytes.hash, number)
    }

    /// Returns the place of the row in a zone, or a free one.
    fn place_for<K: Key>(&self, rows: &Rows<'_, K, T>, zone: u8) -> RowPlace {
        self.bytes.place_for(rows, self.places(zone))
    }

    /// Returns a place in a zone at which the row is.
    fn find<K: Key>(&self, rows: &Rows<'_, K, T>, zone: u8) -> Option<RowPlace> {
        self.bytes.find(rows, self.places(zone))
    }
}

/// The rows of one key.
type Rows<'a, K, T> = OrderedMapOf<'a, K, RowPlace, RankedRow<T>>;

/// The function of a [`top`] or [`top_rows`].
pub struct TopStep<T, F> {
    /// The number of rows in the top.
    count: u64,
    score: F,
    /// Whether rows below the top are kept, since rows above may be taken back.
    keeps_below: bool,
    of: PhantomData<fn(T)>,
}

/// Returns the work of [`Keyed::top`](crate::Keyed::top) for each item.
pub fn top<T, F>(count: u64, score: F) -> TopStep<T, F> {
    TopStep {
        count,
        score,
        keeps_below: false,
        of: PhantomData,
    }
}

/// Returns the work of [`KeyedRows::top`](crate::KeyedRows::top) for each change.
pub fn top_rows<T, F>(count: u64, score: F) -> TopStep<T, F> {
    TopStep {
        keeps_below: true,
        ..top(count, score)
    }
}

impl<T, S, F> TopStep<T, F>
where
    T: Value,
    S: Rank,
    F: Fn(&T) -> S,
{
    /// Applies a change to the rows of its key, and emits the changes of the top.
    pub fn apply<K: Key>(
        &self,
        rows: &mut Rows<'_, K, T>,
        change: RowChange<&T>,
        unmatched: Option<&Unmatched>,
        emit: &mut Emit<'_, RowChange<T>>,
    ) {
        let mut top = Top {
            rows,
            lowest: OnceCell::new(),
            size: 0,
            emit,
        };
        top.size = top.kept_size();
        let size_before = top.size;
        top.fit(self);
        let row = *change.row();
        let score = (self.score)(row);
        if score.is_comparable() {
            let ranked = Ranked::new(&score, row);
            if change.adds() {
                top.insert(self, &ranked);
            } else if !top.remove(&ranked) {
                unmatched.into_iter().for_each(Unmatched::add);
            }
            top.fit(self);
        }
        top.keep_size(size_before);
    }
}

/// The rows of one key while a change is applied.
struct Top<'a, 'b, 'c, K, T> {
    rows: &'a mut Rows<'b, K, T>,
    /// The place of the lowest row of the top, once it was looked up; `None` of an empty top.
    lowest: OnceCell<Option<RowPlace>>,
    /// The number of rows in the top. The map gets it at the end.
    size: u64,
    emit: &'a mut Emit<'c, RowChange<T>>,
}

impl<K: Key, T: Value> Top<'_, '_, '_, K, T> {
    /// Returns the number of rows in the top. It is stored from two rows on: most keys of many have one row.
    fn kept_size(&self) -> u64 {
        match self.rows.get(&RowPlace::size()) {
            Some(RankedRow::Size(size)) => *size,
            _ => u64::from(self.lowest().is_some()),
        }
    }

    fn lowest(&self) -> Option<&RowPlace> {
        let look_up = || {
            let mut top = self.rows.range(RowPlace::line()..);
            top.next().map(|(place, _)| place.clone())
        };
        self.lowest.get_or_init(look_up).as_ref()
    }

    /// Adds a row in the top or below it.
    fn insert<F>(&mut self, step: &TopStep<T, F>, ranked: &Ranked<'_, T>) {
        // `fit` has moved rows up as long as the top is not full.
        let is_in_top = self.size < step.count || self.is_above_lowest(ranked);
        if is_in_top {
            if self.size == step.count {
                self.move_down(step.keeps_below);
            }
            self.add(RowPlace::TOP, ranked);
            self.size += 1;
            (self.emit)(&RowChange::Insert(ranked.row.clone()));
        } else if step.keeps_below {
            self.add(RowPlace::BELOW, ranked);
        }
    }

    /// Removes a row, rather from below than from the top. Returns whether it was there.
    fn remove(&mut self, ranked: &Ranked<'_, T>) -> bool {
        if let Some(below) = ranked.find(self.rows, RowPlace::BELOW) {
            self.take(&below);
            return true;
        }
        let Some(place) = ranked.find(self.rows, RowPlace::TOP) else {
            return false;
        };
        let row = self.take(&place);
        self.size -= 1;
        (self.emit)(&RowChange::Delete(row));
        true
    }

    /// Moves rows until the top has as many as it should. After a change it moves at most one; more if the program was
    /// changed.
    fn fit<F>(&mut self, step: &TopStep<T, F>) {
        while self.size > step.count {
            self.move_down(step.keeps_below);
        }
        while step.keeps_below && self.size < step.count && self.move_up() {}
    }

    /// Moves the lowest row of the top below it.
    fn move_down(&mut self, keeps_below: bool) {
        let Some(lowest) = self.lowest().cloned() else {
            return;
        };
        let row = self.take(&lowest);
        self.size -= 1;
        (self.emit)(&RowChange::Delete(row.clone()));
        if keeps_below {
            self.add_in(RowPlace::BELOW, lowest, &row);
        }
    }

    /// Moves the highest row below the top into it. Returns `false` if there is none.
    fn move_up(&mut self) -> bool {
        let below = self.rows.range(..RowPlace::line()).next_back();
        let highest = below.map(|(place, _)| place.clone());
        let Some(highest) = highest.filter(|place| place.0 == RowPlace::BELOW) else {
            return false;
        };
        let row = self.take(&highest);
        self.add_in(RowPlace::TOP, highest, &row);
        self.size += 1;
        (self.emit)(&RowChange::Insert(row));
        true
    }

    /// Whether the lowest row of the top is below this one.
    fn is_above_lowest(&self, ranked: &Ranked<'_, T>) -> bool {
        let above = |place: &RowPlace| (&ranked.score, ranked.bytes.hash) > (&place.1, place.2);
        self.lowest().is_some_and(above)
    }

    /// Adds a row that had a place in the other zone.
    fn add_in(&mut self, zone: u8, RowPlace(_, score, ..): RowPlace, row: &T) {
        let bytes = RowBytes::of(row);
        self.add(zone, &Ranked { row, score, bytes });
    }

    fn add(&mut self, zone: u8, ranked: &Ranked<'_, T>) {
        let place = ranked.place_for(self.rows, zone);
        self.rows.update(&place, |present| match present {
            Some(RankedRow::Row(_, times)) => *times += 1,
            _ => *present = Some(RankedRow::Row(ranked.row.clone(), 1)),
        });
        self.lowest.take();
    }

    /// Takes a row away once that is at this place.
    fn take(&mut self, place: &RowPlace) -> T {
        self.lowest.take();
        let row = self.rows.update(place, |present| match present {
            Some(RankedRow::Row(row, times)) if *times > 1 => {
                *times -= 1;
                Some(row.clone())
            }
            _ => match present.take() {
                Some(RankedRow::Row(row, _)) => Some(row),
                _ => None,
            },
        });
        row.expect("the row is there")
    }

    /// Stores the number of rows in the top.
    fn keep_size(self, before: u64) {
        if self.size != before && self.size.max(before) > 1 {
            let size = RowPlace::size();
            match self.size {
                0 | 1 => drop(self.rows.remove(&size)),
                several => drop(self.rows.insert(&size, RankedRow::Size(several))),
            }
        }
    }
}
