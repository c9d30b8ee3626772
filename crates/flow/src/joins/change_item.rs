//! Items that have a change of a row.

use std::fmt::Debug;

use crate::changes::RowChange;
use crate::ranks::message::Message;
use crate::windows::Key;

/// An item of a change stream: a [`RowChange`], or one with more around it, which results of joins have, too.
pub trait ChangeItem: Message + Clone + Debug {
    /// The row.
    type Row: Message + Clone + Debug;
    /// All but the change.
    type Around: Around;

    /// Returns the change.
    fn change(&self) -> RowChange<&Self::Row>;

    /// Returns all but the change, for results of a key.
    fn around<K: Key>(&self, key: &K) -> Self::Around;
}

/// All of an item but its change.
pub trait Around: 'static {
    /// An item with a change of the type `T`.
    type Of<T: Clone + Send + 'static>: Clone + Send + 'static;

    /// Returns an item with a change.
    fn of<T: Clone + Send + 'static>(&self, change: T) -> Self::Of<T>;
}

/// Nothing: the item is a change alone.
pub struct Nothing;

impl Around for Nothing {
    type Of<T: Clone + Send + 'static> = T;

    fn of<T: Clone + Send + 'static>(&self, change: T) -> T {
        change
    }
}

impl<R: Message + Clone + Debug> ChangeItem for RowChange<R> {
    type Row = R;
    type Around = Nothing;

    fn change(&self) -> RowChange<&R> {
        self.as_ref()
    }

    fn around<K: Key>(&self, _: &K) -> Nothing {
        Nothing
    }
}
