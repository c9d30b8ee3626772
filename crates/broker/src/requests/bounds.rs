//! The bound of each answer: the memory that it takes from the budget before it is built.
//!
//! A bound covers the answer as a structure, the encoded answer, and the growth of the buffer that
//! it is encoded into. Records and contents of objects are not in it: they are sent from where they
//! lie.

use crate::broker::Broker;
use crate::client::Client;

/// The bound of an answer's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// At most this many bytes. They are taken before the request begins.
    Bytes(usize),
    /// The answer describes parts of the broker's state whose size is not known before. It is built
    /// while no other one of these is, encoded at once, and then waits for memory of its size.
    State,
    /// The request may wait for long, so it takes memory when the wait is over: for reads, before
    /// records are read; for groups, before the answer is encoded. Until then the answer of a group
    /// consists of references to the group's state.
    Late,
}

/// An answer without lists: an error and its message, numbers, a few names.
pub const PLAIN_BYTES: usize = 2 << 10;

/// An element of a list: its numbers, and references to names.
pub const ELEMENT_BYTES: usize = 320;

/// An element that may come with a message.
const TOLD_BYTES: usize = ELEMENT_BYTES + (2 << 10);

/// A topic's own part of a description, with its name.
pub const TOPIC_BYTES: usize = 1 << 10;

/// The most elements of a page of native lists.
pub const PAGE_MAX: usize = 1000;

/// How often a name of the request may be in the answer: in a message, and in a buffer that grows.
pub const ECHOES: usize = 4;

/// The inputs of the bound of an answer, beside the body of the request.
pub struct BoundContext<'a> {
    pub broker: &'a Broker,
    pub client: &'a mut Client,
    pub version: i16,
    /// The size of the request's frame. Names that the answer repeats are in these bytes.
    pub request_bytes: usize,
}

impl BoundContext<'_> {
    /// Returns the bound of an answer with a list.
    pub fn list(&self, count: usize, element_bytes: usize) -> Bound {
        let elements = count.saturating_mul(element_bytes);
        let echoed = self.request_bytes.saturating_mul(ECHOES);
        Bound::Bytes(PLAIN_BYTES.saturating_add(elements).saturating_add(echoed))
    }

    /// Returns the bound of an answer without lists.
    pub fn plain(&self) -> Bound {
        self.elements(0)
    }

    /// Returns the bound of an answer with a list whose elements have no messages.
    pub fn elements(&self, count: usize) -> Bound {
        self.list(count, ELEMENT_BYTES)
    }

    /// Returns the bound of an answer with a list whose elements may have messages.
    pub fn told(&self, count: usize) -> Bound {
        self.list(count, TOLD_BYTES)
    }
}

impl Bound {
    /// Returns the bound of an answer with both of these parts.
    pub fn and(self, other: Bound) -> Bound {
        match (self, other) {
            (Bound::Bytes(one), Bound::Bytes(other)) => Bound::Bytes(one.saturating_add(other)),
            (bound, Bound::Bytes(_)) => bound,
            (_, bound) => bound,
        }
    }
}

/// Counts elements, and those of the lists in them.
pub fn nested<T>(elements: &[T], of_element: impl Fn(&T) -> usize) -> usize {
    elements.iter().map(|element| 1 + of_element(element)).sum()
}
