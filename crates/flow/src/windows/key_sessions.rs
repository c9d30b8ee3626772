//! The sessions of one key.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::size::TableSize;

/// A session, or the fragment of one in this store. Its last item is at `cell.time_max`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Session<S> {
    pub first: i64,
    pub cell: Cell<S>,
    /// Whether a result was given of it, or of a session that has been merged into it.
    pub is_given: bool,
    /// Whether there are items that no result has.
    pub has_new: bool,
}

impl<S> Session<S> {
    fn new<A: Combine<State = S>>(aggregate: &A, first: i64) -> Self {
        Self {
            first,
            cell: Cell::empty(aggregate),
            is_given: false,
            has_new: true,
        }
    }

    /// Whether items from `first` to `last` are of the same session.
    fn is_near(&self, gap_ms: i64, first: i64, last: i64) -> bool {
        self.first.saturating_sub(last) < gap_ms
            && first.saturating_sub(self.cell.time_max) < gap_ms
    }

    pub fn end(&self, gap_ms: i64) -> i64 {
        self.cell.time_max.saturating_add(gap_ms)
    }
}

/// The sessions of one key: at least the gap apart from each other, so that they are in the same
/// order by their first items and by their last ones.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeySessions<S> {
    /// The earliest: usually there is no other, and nothing to allocate.
    head: Option<Session<S>>,
    /// The others, by first item.
    rest: BTreeMap<i64, Session<S>>,
}

impl<S> Default for KeySessions<S> {
    fn default() -> Self {
        Self {
            head: None,
            rest: BTreeMap::new(),
        }
    }
}

impl<S> KeySessions<S> {
    pub fn len(&self) -> usize {
        usize::from(self.head.is_some()) + self.rest.len()
    }

    /// Returns the memory of all but the earliest, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let rest = self.rest.len();
        TableSize::of_list::<(i64, Session<S>)>(rest, rest).bytes
    }

    pub fn earliest(&self) -> Option<&Session<S>> {
        self.head.as_ref()
    }

    pub fn latest(&self) -> Option<&Session<S>> {
        self.rest.values().next_back().or(self.head.as_ref())
    }

    pub fn iter(&self) -> impl Iterator<Item = &Session<S>> {
        self.head.iter().chain(self.rest.values())
    }

    pub fn pop_earliest(&mut self) -> Option<Session<S>> {
        let next = self.rest.pop_first().map(|(_, session)| session);
        std::mem::replace(&mut self.head, next)
    }

    /// Retains those for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&mut Session<S>) -> bool) {
        self.head.take_if(|head| !keep(head));
        self.rest.retain(|_, session| keep(session));
        if self.head.is_none() {
            self.pop_earliest();
        }
    }

    /// The session of items from `first` to `last`, which are not in it yet: those that they join
    /// become one.
    #[inline]
    pub fn join<A>(&mut self, aggregate: &A, gap_ms: i64, first: i64, last: i64) -> &mut Session<S>
    where
        A: Combine<State = S>,
    {
        let is_head = self.rest.is_empty()
            && (self.head.as_ref()).is_none_or(|head| head.is_near(gap_ms, first, last));
        if !is_head {
            return self.join_any(aggregate, gap_ms, first, last);
        }
        let head = (self.head).get_or_insert_with(|| Session::new(aggregate, first));
        head.has_new = true;
        head.first = head.first.min(first);
        head.cell.time_max = head.cell.time_max.max(last);
        head
    }

    fn join_any<A>(&mut self, aggregate: &A, gap_ms: i64, first: i64, last: i64) -> &mut Session<S>
    where
        A: Combine<State = S>,
    {
        if let Some(head) = self.head.take() {
            self.rest.insert(head.first, head);
        }
        let mut joined = Session::new(aggregate, first);
        joined.cell.time_max = last;
        // From the latest that may be near back to the first that is not.
        let nearest = last.saturating_add(gap_ms.saturating_sub(1));
        while let Some((&start, session)) = self.rest.range(..=nearest).next_back() {
            if !session.is_near(gap_ms, first, last) {
                break;
            }
            joined.first = joined.first.min(start);
            joined.is_given |= session.is_given;
            joined.cell.merge(aggregate, &session.cell);
            self.rest.remove(&start);
        }
        match self.rest.first_entry() {
            Some(earliest) if *earliest.key() < joined.first => {
                self.head = Some(earliest.remove());
                self.rest.entry(joined.first).or_insert(joined)
            }
            _ => self.head.insert(joined),
        }
    }
}
