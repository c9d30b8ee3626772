//! Pairs of rows that change.
//!
//! The state of a key has an entry for each different row of both sides. All rows of one side are partners of all rows of the
//! other one. A row of an outer side that has no partner is emitted alone; its entry counts these results, so that exactly they
//! are taken back when the first partner comes, also if former partners have ended by their lifetime.

use std::ops::Bound;

use serde::{Deserialize, Serialize};

use crate::changes::{RowChange, Unmatched};
use crate::stage::ends::steps::Steps;
use crate::state::ordered_maps::OrderedMapOf;
use crate::state::row_places::{HasRow, RowBytes};
use crate::state::values::Value;
use crate::windows::Key;

/// The place of a row among those of its side and key: a hash of its serialized bytes, and a number among the rows with this
/// hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowId(u32, u32);

/// A row of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptRow<T> {
    row: T,
    /// The number of times that it is present.
    times: u64,
    /// The number of results with this row alone, at most `times`.
    alone: u64,
}

impl<T: Serialize> HasRow for KeptRow<T> {
    type Row = T;

    fn row(&self) -> Option<&T> {
        Some(&self.row)
    }
}

/// The rows of one side of a key.
pub type Rows<'a, K, T> = OrderedMapOf<'a, K, RowId, KeptRow<T>>;

/// Gets the changes of the results.
pub type EmitChange<'a, O> = dyn FnMut(RowChange<O>) + 'a;

/// The place at which the results of a change go on: with the partners from here, of which the first has had this many of its
/// changes emitted.
pub struct Rest {
    from: Bound<RowId>,
    emitted: u64,
    /// Whether the side of the change has no more rows.
    is_empty: bool,
}

/// The most partners whose entries are changed together.
const PARTNERS_AT_ONCE: usize = 256;

/// A join, seen from the side of a change.
pub struct Joining<'a, F> {
    /// Makes a result of a row of this side and one of the other; `None` if the join has none where one of them is absent.
    pub pair: F,
    /// Whether rows of this side without a partner are results.
    pub is_outer: bool,
    /// Whether rows of the other side without a partner are results.
    pub is_other_outer: bool,
    pub unmatched: &'a Unmatched,
}

impl<F> Joining<'_, F> {
    /// Applies a change of the rows of this side, and emits the changes of the results, as far as there is room. If there are
    /// more, the next call goes on with them.
    pub fn apply<K, A, B, O>(
        &self,
        change: RowChange<&A>,
        rows: &mut Rows<'_, K, A>,
        partners: &mut Rows<'_, K, B>,
        steps: &mut Steps<Rest>,
        emit: &mut EmitChange<'_, O>,
    ) where
        K: Key,
        A: Value,
        B: Value,
        F: Fn(Option<&A>, Option<&B>) -> Option<O>,
    {
        let begun = steps.rest.take().or_else(|| match change.adds() {
            true => Some(self.add(change.row(), rows, partners, emit)),
            false => self.remove(change.row(), rows, emit),
        });
        match begun {
            Some(rest) => steps.rest = self.pairs(change, rest, partners, &mut steps.room, emit),
            None => self.unmatched.add(),
        }
    }

    fn add<K, A, B, O>(
        &self,
        row: &A,
        rows: &mut Rows<'_, K, A>,
        partners: &Rows<'_, K, B>,
        emit: &mut EmitChange<'_, O>,
    ) -> Rest
    where
        K: Key,
        A: Value,
        B: Value,
        F: Fn(Option<&A>, Option<&B>) -> Option<O>,
    {
        let is_alone = self.is_outer && partners.first().is_none();
        let bytes = RowBytes::of(row);
        let id = bytes.place_for(rows, |number| RowId(bytes.hash, number));
        rows.update(&id, |present| {
            let kept = present.get_or_insert_with(|| KeptRow {
                row: row.clone(),
                times: 0,
                alone: 0,
            });
            kept.times += 1;
            kept.alone += u64::from(is_alone);
        });
        if is_alone && let Some(result) = (self.pair)(Some(row), None) {
            emit(RowChange::Insert(result));
        }
        Rest::begin(false)
    }

    /// Returns `None` if the row is not there.
    fn remove<K, A, B, O>(
        &self,
        row: &A,
        rows: &mut Rows<'_, K, A>,
        emit: &mut EmitChange<'_, O>,
    ) -> Option<Rest>
    where
        K: Key,
        A: Value,
        F: Fn(Option<&A>, Option<&B>) -> Option<O>,
    {
        let bytes = RowBytes::of(row);
        let id = bytes.find(rows, |number| RowId(bytes.hash, number))?;
        let was_alone = rows.update(&id, |present| {
            let kept = present.as_mut()?;
            let was_alone = kept.alone > 0;
            kept.times -= 1;
            kept.alone -= u64::from(was_alone);
            if kept.times == 0 {
                *present = None;
            }
            Some(was_alone)
        })?;
        if was_alone && let Some(result) = (self.pair)(Some(row), None) {
            emit(RowChange::Delete(result));
        }
        Some(Rest::begin(rows.first().is_none()))
    }

    /// Emits changes of the results with the partners of a changed row. Returns the place of those that have no room.
    fn pairs<K, A, B, O>(
        &self,
        change: RowChange<&A>,
        mut rest: Rest,
        partners: &mut Rows<'_, K, B>,
        room: &mut usize,
        emit: &mut EmitChange<'_, O>,
    ) -> Option<Rest>
    where
        K: Key,
        B: Value,
        F: Fn(Option<&A>, Option<&B>) -> Option<O>,
    {
        let adds = change.adds();
        loop {
            let mut changed = Vec::new();
            let mut count = 0;
            let mut has_room = true;
            let of_batch = partners.range((rest.from, Bound::Unbounded));
            for (id, partner) in of_batch.take(PARTNERS_AT_ONCE) {
                count += 1;
                if rest.from != Bound::Included(*id) {
                    rest.emitted = 0;
                }
                // A partner's result alone goes before its first pair comes, and comes when its last pair has gone.
                let alone = match adds {
                    true => partner.alone,
                    false if rest.is_empty && self.is_other_outer => partner.times - partner.alone,
                    false => 0,
                };
                let all = alone + partner.times;
                let end = all.min(rest.emitted.saturating_add(*room as u64));
                for number in rest.emitted..end {
                    let is_alone = match adds {
                        true => number < alone,
                        false => number >= partner.times,
                    };
                    let row = (!is_alone).then_some(*change.row());
                    if let Some(result) = (self.pair)(row, Some(&partner.row)) {
                        emit(match adds != is_alone {
                            true => RowChange::Insert(result),
                            false => RowChange::Delete(result),
                        });
                    }
                }
                *room -= (end - rest.emitted) as usize;
                if end < all {
                    rest.from = Bound::Included(*id);
                    rest.emitted = end;
                    has_room = false;
                    break;
                }
                rest.from = Bound::Excluded(*id);
                if alone > 0 {
                    changed.push(*id);
                }
            }
            for id in changed {
                partners.update(&id, |present| {
                    if let Some(partner) = present {
                        partner.alone = if adds { 0 } else { partner.times };
                    }
                });
            }
            if !has_room {
                return Some(rest);
            }
            // The partner of `rest` and all behind it may have ended by their lifetime.
            if count < PARTNERS_AT_ONCE {
                return None;
            }
        }
    }
}

impl Rest {
    fn begin(is_empty: bool) -> Rest {
        Rest {
            from: Bound::Unbounded,
            emitted: 0,
            is_empty,
        }
    }
}
