//! Results of one item that go out in several slices.

use crate::stage::ends::outbox::Outbox;

/// The most results of a slice, of functions that stop within an item.
const RESULTS_MAX: usize = 1024;

/// The place at which the function of an item has stopped, since it has more results than there is room for. So results that wait
/// for later stages take bounded memory. The item stays in hand, and comes again in the next slice.
pub struct Steps<P> {
    /// The place from which the function goes on; `None` if it has finished the item. Set and taken by the function.
    pub rest: Option<P>,
    /// The number of results that it may still emit in this slice.
    pub room: usize,
}

impl<P> Default for Steps<P> {
    fn default() -> Self {
        Steps {
            rest: None,
            room: 0,
        }
    }
}

impl<P> Steps<P> {
    /// Reserves room for a slice: for these results, or for as many as the rest of an item may take.
    pub fn reserve<O>(&mut self, outbox: &mut Outbox<O>, results: usize) -> Option<usize> {
        let wanted = match self.rest {
            Some(_) => RESULTS_MAX,
            None => results,
        };
        let room = outbox.reserve(wanted)?;
        self.room = room.clamp(1, RESULTS_MAX);
        Some(room)
    }
}
