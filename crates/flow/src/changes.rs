//! Change streams: streams whose items insert, update and delete rows of a result.
//!
//! An operator such as [`Keyed::running`](crate::Keyed::running) emits the changes of its result as [`RowChange`]. The
//! changes of a result, applied in their order, give the result at each moment: [`RowSet`] and [`RowTable`] apply them.
//! [`Operators::key_rows`](crate::Operators::key_rows) leads a change stream to operators that follow its changes.
//!
//! Changes of one row keep their order as long as they are routed by the same key. If an update moves a row to another key,
//! then the change at the former key and the change at the new key may arrive in any order.

mod deduplicate;
mod distinct;
mod fold;
mod last;
mod rank;
mod running;
mod score_bytes;
mod top;
mod unmatched;

use serde::{Deserialize, Serialize, Serializer};

pub use deduplicate::{Within, deduplicate};
pub use distinct::{distinct, distinct_rows};
pub use fold::{RowSet, RowTable};
pub use last::last;
pub use rank::Rank;
pub use running::{RunningAggregate, running, running_rows};
pub use top::{RankedRow, RowPlace, TopStep, top, top_rows};
pub use unmatched::Unmatched;

/// A change of a row. In Flink it is a row with its `RowKind`.
///
/// An update is a pair: first [`UpdateBefore`](Self::UpdateBefore) with the former row, then
/// [`UpdateAfter`](Self::UpdateAfter) with the new one. For consumers that know rows by a key and need no former rows,
/// [`Operators::upserts`](crate::Operators::upserts) makes [`Upsert`] of them.
///
/// As JSON it has the kind, as Flink writes it, and the row:
///
/// ```
/// use millstream_flow::changes::RowChange;
///
/// let change = RowChange::UpdateAfter(("ann", 3));
/// let text = r#"{"op":"+U","row":["ann",3]}"#;
/// assert_eq!(serde_json::to_string(&change)?, text);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "TaggedRow<T>")]
pub enum RowChange<T> {
    /// A new row.
    Insert(T),
    /// The former row of an update; its [`UpdateAfter`](Self::UpdateAfter) is the next change of the row.
    UpdateBefore(T),
    /// The new row of an update.
    UpdateAfter(T),
    /// A row that is no more.
    Delete(T),
}

/// A change as it is serialized.
#[derive(Serialize, Deserialize)]
struct TaggedRow<T> {
    op: Op,
    row: T,
}

/// A kind of change.
#[derive(Serialize, Deserialize)]
enum Op {
    #[serde(rename = "+I")]
    Insert,
    #[serde(rename = "-U")]
    UpdateBefore,
    #[serde(rename = "+U")]
    UpdateAfter,
    #[serde(rename = "-D")]
    Delete,
}

impl<T> From<TaggedRow<T>> for RowChange<T> {
    fn from(TaggedRow { op, row }: TaggedRow<T>) -> Self {
        match op {
            Op::Insert => RowChange::Insert(row),
            Op::UpdateBefore => RowChange::UpdateBefore(row),
            Op::UpdateAfter => RowChange::UpdateAfter(row),
            Op::Delete => RowChange::Delete(row),
        }
    }
}

impl<T: Serialize> Serialize for RowChange<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let op = match self {
            RowChange::Insert(_) => Op::Insert,
            RowChange::UpdateBefore(_) => Op::UpdateBefore,
            RowChange::UpdateAfter(_) => Op::UpdateAfter,
            RowChange::Delete(_) => Op::Delete,
        };
        let row = self.row();
        TaggedRow { op, row }.serialize(serializer)
    }
}

impl<T> RowChange<T> {
    /// Returns the row.
    pub fn row(&self) -> &T {
        match self {
            RowChange::Insert(row)
            | RowChange::UpdateBefore(row)
            | RowChange::UpdateAfter(row)
            | RowChange::Delete(row) => row,
        }
    }

    /// Returns 1 if it adds the row, and -1 if it takes the row back. The weights of all changes of a row add up to the number
    /// of times that the row is present.
    pub fn weight(&self) -> i64 {
        match self.adds() {
            true => 1,
            false => -1,
        }
    }

    /// Whether it adds the row.
    pub(crate) fn adds(&self) -> bool {
        matches!(self, RowChange::Insert(_) | RowChange::UpdateAfter(_))
    }

    /// Returns the same change of the row that `function` returns.
    pub fn map<U>(self, function: impl FnOnce(T) -> U) -> RowChange<U> {
        match self {
            RowChange::Insert(row) => RowChange::Insert(function(row)),
            RowChange::UpdateBefore(row) => RowChange::UpdateBefore(function(row)),
            RowChange::UpdateAfter(row) => RowChange::UpdateAfter(function(row)),
            RowChange::Delete(row) => RowChange::Delete(function(row)),
        }
    }

    /// Returns the same change of a reference to the row.
    pub fn as_ref(&self) -> RowChange<&T> {
        match self {
            RowChange::Insert(row) => RowChange::Insert(row),
            RowChange::UpdateBefore(row) => RowChange::UpdateBefore(row),
            RowChange::UpdateAfter(row) => RowChange::UpdateAfter(row),
            RowChange::Delete(row) => RowChange::Delete(row),
        }
    }

    /// Returns the upsert of the change; `None` of the former row of an update.
    pub fn into_upsert(self) -> Option<Upsert<T>> {
        match self {
            RowChange::Insert(row) | RowChange::UpdateAfter(row) => Some(Upsert::Put(row)),
            RowChange::UpdateBefore(_) => None,
            RowChange::Delete(row) => Some(Upsert::Delete(row)),
        }
    }
}

/// A change of a row that is known by a key: the consumer replaces the row of this key, or deletes it. Operators that count
/// rows need [`RowChange`], with the former rows, and do not compile with this:
///
/// ```compile_fail
/// # use millstream_flow::{Flow, RowChange, sources::Generator, windows::Count};
/// # let flow = Flow::new("numbers");
/// let changes = flow.source("changes", Generator::new(RowChange::Insert).limit(10));
/// let upserts = changes.upserts();
/// upserts.key_rows(|number| number % 2).running("counts", Count);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Upsert<T> {
    /// The row of its key from now on.
    Put(T),
    /// The last row of its key, which has none from now on.
    Delete(T),
}

impl<T> Upsert<T> {
    /// Returns the row.
    pub fn row(&self) -> &T {
        match self {
            Upsert::Put(row) | Upsert::Delete(row) => row,
        }
    }

    /// Returns the same change of the row that `function` returns.
    pub fn map<U>(self, function: impl FnOnce(T) -> U) -> Upsert<U> {
        match self {
            Upsert::Put(row) => Upsert::Put(function(row)),
            Upsert::Delete(row) => Upsert::Delete(function(row)),
        }
    }
}

#[cfg(test)]
mod tests;
