//! Items that consist of parts.

use std::fmt::{self, Debug};

use crate::error::BoxError;
use crate::sinks::dead_letter::Origin;

/// An item that consists of parts which [`Operators::each`](crate::Operators::each) processes one
/// by one: a block of lines, some stored records.
pub trait Parts: 'static {
    /// A part; it lies in the item as a rule.
    type Part<'a>: Debug + ?Sized;

    /// Calls `visit` with each part in turn. An item whose parts cannot be decoded stops there, and lets its source
    /// know, which fails the flow.
    fn for_each_part(&self, visit: impl FnMut(&Self::Part<'_>));

    /// Returns the record of a stream that a part is, so that a dead letter can give it back; `None` if it is none.
    /// Called only for parts that become dead letters, or of which something does.
    fn origin(&self, _part: &Self::Part<'_>) -> Option<Origin> {
        None
    }

    /// Writes a part as its dead letter and its error show it: as `Debug` does, unless there is a better text.
    fn show(part: &Self::Part<'_>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        part.fmt(f)
    }

    /// Returns the error of an item whose parts cannot be decoded, if the item has found it.
    fn fault(&self) -> Option<BoxError> {
        None
    }
}

/// A part that is printed by [`Parts::show`].
pub(crate) struct Shown<'s, 'p, T: Parts + ?Sized>(pub &'s T::Part<'p>);

impl<T: Parts + ?Sized> Debug for Shown<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::show(self.0, f)
    }
}

/// An item that holds others, which [`Operators::flatten`](crate::Operators::flatten) gives.
pub trait Flatten {
    /// A part of the item; it may be a slice of the whole.
    type Item: ?Sized + 'static;

    /// Calls `visit` with each of them, in order.
    fn for_each_item<'a>(&'a self, visit: impl FnMut(&'a Self::Item));
}
