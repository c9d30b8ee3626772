//! The records of a key's count windows in the changelog.
//!
//! The map of a key has one head, at the field `None`, and blocks of whole fragments at numbered fields. A step changes the
//! head alone; each [`BLOCK`] fragments one block is written, in the place of one that no window needs any more. So a
//! checkpoint writes the head, with fewer than [`BLOCK`] fragments, and the blocks that are new.

use serde::{Deserialize, Serialize};

use super::sizes::CountSizes;
use crate::windows::Combine;

/// The fragments of a block.
pub(super) const BLOCK: u64 = 16;

/// A record of a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CountRecord<S> {
    /// At the field `None`.
    Head(CountHead<S>),
    /// Whole fragments, the oldest first.
    Block(Vec<S>),
}

/// The windows of a key, without the fragments that are in blocks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CountHead<S> {
    pub(super) sizes: CountSizes,
    /// All items of the key so far.
    pub(super) items: u64,
    /// The items behind the last whole fragment; where windows are apart, those of the window.
    pub(super) open: S,
    /// The whole fragments that are in no block yet, the oldest first.
    pub(super) tail: Vec<S>,
    #[serde(skip, default = "Stacks::unknown")]
    pub(super) stacks: Stacks<S>,
}

/// The combination of the fragments in a window, while the head is in memory: two stacks, as in Tangwongsan, Hirzel and
/// Schneider, "In-order sliding-window aggregation in worst-case constant time" (VLDB Journal 30, 2021), section 4.
///
/// Each fragment is merged three times on its way, and the total is one more merge, however many fragments a window has.
/// No record has the stacks: they are made anew of the fragments when a head was restored.
#[derive(Debug)]
pub struct Stacks<S>(pub(super) Option<Known<S>>);

#[derive(Debug)]
pub(super) struct Known<S> {
    /// The older fragments, the newest first; each with the combination of itself and all in front of it here.
    pub front: Vec<S>,
    /// The number of the first fragment behind them.
    pub back_first: u64,
    /// The combination of the fragments from there on.
    pub back: Option<S>,
}

impl<S> Stacks<S> {
    fn unknown() -> Self {
        Stacks(None)
    }
}

/// The history of a table has clones of records, and needs no stacks.
impl<S> Clone for Stacks<S> {
    fn clone(&self) -> Self {
        Stacks::unknown()
    }
}

impl<S: Clone> Known<S> {
    pub fn new(front: Vec<S>, back_first: u64) -> Self {
        Known {
            front,
            back_first,
            back: None,
        }
    }

    /// Adds a fragment behind all others.
    pub fn push<A: Combine<State = S>>(&mut self, aggregate: &A, fragment: &S) {
        match &mut self.back {
            Some(back) => aggregate.merge(back, fragment),
            None => self.back = Some(fragment.clone()),
        }
    }

    /// Returns the combination of the fragments from `first` on, and forgets those before it; `None` if the stacks have to
    /// be made anew for that.
    pub fn total_from<A: Combine<State = S>>(&mut self, aggregate: &A, first: u64) -> Option<S> {
        let left = self.back_first.checked_sub(first)?;
        self.front
            .truncate(usize::try_from(left).unwrap_or(usize::MAX));
        let mut total = match (self.front.last(), &self.back) {
            (Some(front), _) => front.clone(),
            (None, Some(back)) => return Some(back.clone()),
            (None, None) => return Some(aggregate.empty()),
        };
        if let Some(back) = &self.back {
            aggregate.merge(&mut total, back);
        }
        Some(total)
    }
}

impl<S: Clone> CountHead<S> {
    pub(super) fn new<A: Combine<State = S>>(aggregate: &A, sizes: CountSizes) -> Self {
        CountHead {
            sizes,
            items: 0,
            open: aggregate.empty(),
            tail: Vec::new(),
            stacks: Stacks(Some(Known::new(Vec::new(), 0))),
        }
    }

    /// Returns the number of whole fragments so far.
    pub(super) fn fragments(&self) -> u64 {
        self.sizes.fragments(self.items)
    }

    /// Returns the number of the first fragment that is in no block.
    pub(super) fn tail_first(&self) -> u64 {
        self.fragments() - self.tail.len() as u64
    }
}

impl CountSizes {
    /// Returns the most blocks of a key. A block takes the place of the one that came this many blocks before it, of which
    /// the windows from then on need nothing.
    fn blocks_max(self) -> u64 {
        self.fragments_max() / BLOCK + 1
    }

    /// Returns the field of a block by its number.
    pub(super) fn field_of(self, block: u64) -> Option<u64> {
        Some(block % self.blocks_max())
    }

    /// Returns the fields of the blocks that are there before the block of this number.
    pub(super) fn fields_before(self, block: u64) -> impl Iterator<Item = Option<u64>> {
        (0..self.blocks_max().min(block)).map(Some)
    }
}
