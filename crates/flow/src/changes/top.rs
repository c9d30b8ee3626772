//! The rows of each key with the highest scores, at each moment.
//!
//! The state of a key is an ordered map. Its fields are places: the rows below the top, then those in the top, each in
//! the order of scores. So the lowest row of the top and the highest row below it are found by one look-up, however many
//! rows there are, and a row that comes or goes moves at most one other row across the line.

use std::marker::PhantomData;

use serde::{Deserialize, Serialize};

use super::{Rank, RowChange, Unmatched};
use crate::stage::chain::Emit;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::values::Value;
use crate::windows::Key;

/// A row in the state of a [`top`], by its place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum RankedRow<T> {
    /// The number of rows in the top, at [`RowPlace::SIZE`].
    Size(u64),
    /// A row, and the number of times that it is present here.
    Row(T, u64),
}

/// The place of a row: below the top or in it, then bytes that compare as scores do, and among equal scores in the reverse
/// order of the rows' serialized bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowPlace(u8, Vec<u8>);

impl RowPlace {
    const SIZE: u8 = 0;
    const BELOW: u8 = 1;
    const TOP: u8 = 2;

    fn size() -> Self {
        RowPlace(Self::SIZE, Vec::new())
    }

    /// Returns the place in front of all rows of the top.
    fn line() -> Self {
        RowPlace(Self::TOP, Vec::new())
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
            size: size_of_top(rows),
            rows,
            emit,
        };
        let size_before = top.size;
        top.fit(self);
        let row = *change.row();
        let score = (self.score)(row);
        if score.is_comparable() {
            let rank = rank_of(&score, row);
            if change.adds() {
                top.insert(self, rank, row);
            } else if !top.remove(rank) {
                unmatched.into_iter().for_each(Unmatched::add);
            }
            top.fit(self);
        }
        top.keep_size(size_before);
    }
}

/// Returns bytes that compare as the score does, then in the reverse order of the row's bytes.
fn rank_of<S: Rank, T: Serialize>(score: &S, row: &T) -> Vec<u8> {
    let mut rank = Vec::new();
    score.encode(&mut rank);
    // A row that cannot be serialized could not have come here.
    let row = postcard::to_stdvec(row).expect("the row was serialized before");
    rank.extend(row.iter().map(|byte| !byte));
    rank
}

fn size_of_top<K: Key, T: Value>(rows: &Rows<'_, K, T>) -> u64 {
    match rows.get(&RowPlace::size()) {
        Some(RankedRow::Size(size)) => *size,
        _ => 0,
    }
}

/// The rows of one key while a change is applied.
struct Top<'a, 'b, 'c, K, T> {
    rows: &'a mut Rows<'b, K, T>,
    /// The number of rows in the top. The map gets it at the end.
    size: u64,
    emit: &'a mut Emit<'c, RowChange<T>>,
}

impl<K: Key, T: Value> Top<'_, '_, '_, K, T> {
    /// Adds a row in the top or below it.
    fn insert<F>(&mut self, step: &TopStep<T, F>, rank: Vec<u8>, row: &T) {
        let place = RowPlace(RowPlace::TOP, rank);
        // `fit` has moved rows up as long as the top is not full.
        let is_in_top = self.size < step.count || self.is_above_lowest(&place);
        if is_in_top {
            if self.size == step.count {
                self.move_down(step.keeps_below);
            }
            self.add(&place, row);
            self.size += 1;
            (self.emit)(&RowChange::Insert(row.clone()));
        } else if step.keeps_below {
            self.add(&RowPlace(RowPlace::BELOW, place.1), row);
        }
    }

    /// Removes a row, rather from below than from the top. Returns whether it was there.
    fn remove(&mut self, rank: Vec<u8>) -> bool {
        let below = RowPlace(RowPlace::BELOW, rank);
        if self.take(&below).is_some() {
            return true;
        }
        let taken = self.take(&RowPlace(RowPlace::TOP, below.1));
        if let Some(row) = &taken {
            self.size -= 1;
            (self.emit)(&RowChange::Delete(row.clone()));
        }
        taken.is_some()
    }

    /// Moves rows until the top has as many as it should. After a change it moves at most one; more if the program was
    /// changed.
    fn fit<F>(&mut self, step: &TopStep<T, F>) {
        while self.size > step.count {
            self.move_down(step.keeps_below);
        }
        while self.size < step.count && self.move_up() {}
    }

    /// Moves the lowest row of the top below it.
    fn move_down(&mut self, keeps_below: bool) {
        let lowest = self.rows.range(RowPlace::line()..).next();
        let Some(lowest) = lowest.map(|(place, _)| place.clone()) else {
            return;
        };
        let row = self.take(&lowest).expect("the row is there");
        self.size -= 1;
        (self.emit)(&RowChange::Delete(row.clone()));
        if keeps_below {
            self.add(&RowPlace(RowPlace::BELOW, lowest.1), &row);
        }
    }

    /// Moves the highest row below the top into it. Returns `false` if there is none.
    fn move_up(&mut self) -> bool {
        let below = self.rows.range(..RowPlace::line()).next_back();
        let highest = below.map(|(place, _)| place.clone());
        let Some(highest) = highest.filter(|place| place.0 == RowPlace::BELOW) else {
            return false;
        };
        let row = self.take(&highest).expect("the row is there");
        self.add(&RowPlace(RowPlace::TOP, highest.1), &row);
        self.size += 1;
        (self.emit)(&RowChange::Insert(row));
        true
    }

    /// Whether the lowest row of the top is below this place.
    fn is_above_lowest(&self, place: &RowPlace) -> bool {
        let mut lower = self.rows.range(RowPlace::line()..place.clone());
        lower.next().is_some()
    }

    fn add(&mut self, place: &RowPlace, row: &T) {
        self.rows.update(place, |present| match present {
            Some(RankedRow::Row(_, times)) => *times += 1,
            _ => *present = Some(RankedRow::Row(row.clone(), 1)),
        });
    }

    /// Takes a row away once. Returns `None` if it is not there.
    fn take(&mut self, place: &RowPlace) -> Option<T> {
        if !self.rows.contains(place) {
            return None;
        }
        self.rows.update(place, |present| match present {
            Some(RankedRow::Row(row, times)) if *times > 1 => {
                *times -= 1;
                Some(row.clone())
            }
            _ => match present.take() {
                Some(RankedRow::Row(row, _)) => Some(row),
                _ => None,
            },
        })
    }

    /// Stores the number of rows in the top.
    fn keep_size(self, before: u64) {
        let size = RowPlace::size();
        match self.size {
            same if same == before => {}
            0 => drop(self.rows.remove(&size)),
            changed => drop(self.rows.insert(&size, RankedRow::Size(changed))),
        }
    }
}
