//! A queue of panes that knows the combination of all of them.

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::size::TableSize;

/// The panes of one key that are in windows yet to be released, oldest first.
///
/// Two stacks: each pane is merged at most three times on its way through, and the total is one
/// more merge, however many panes there are (Tangwongsan, Hirzel and Schneider, "Low-latency
/// sliding-window aggregation in worst-case constant time", section 2: the amortized "two-stacks").
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TwoStacks<S> {
    /// The older panes, newest first; each with the combination of itself and all below it in the stack.
    front: Vec<(i64, Cell<S>)>,
    /// The newer panes, oldest first, each by itself.
    back: Vec<(i64, Cell<S>)>,
    /// The combination of all cells of `back`.
    back_total: Option<Cell<S>>,
    /// Windows with a lower number have been released with this key already.
    pub released_to: i64,
}

impl<S> Default for TwoStacks<S> {
    fn default() -> Self {
        Self {
            front: Vec::new(),
            back: Vec::new(),
            back_total: None,
            released_to: i64::MIN,
        }
    }
}

impl<S: Clone> TwoStacks<S> {
    /// Adds items of a pane, which is newer than all others as a rule: any other costs a look at each
    /// pane.
    pub fn insert<A: Combine<State = S>>(&mut self, aggregate: &A, pane: i64, cell: Cell<S>) {
        if self.newest().is_none_or(|newest| newest < pane) {
            return self.push(aggregate, pane, cell);
        }
        if self.front.first().is_none_or(|(newest, _)| *newest < pane) {
            if let Some(total) = &mut self.back_total {
                total.merge(aggregate, &cell);
            }
            let place = self.back.partition_point(|(other, _)| *other < pane);
            match self.back.get_mut(place).filter(|(other, _)| *other == pane) {
                Some((_, there)) => there.merge(aggregate, &cell),
                None => self.back.insert(place, (pane, cell)),
            }
            return;
        }
        let place = self.front.partition_point(|(other, _)| *other > pane);
        if self
            .front
            .get(place)
            .is_none_or(|(other, _)| *other != pane)
        {
            // The combination of the newer ones below it, so far.
            let below = self.front[place - 1].1.clone();
            self.front.insert(place, (pane, below));
        }
        for (_, total) in &mut self.front[place..] {
            total.merge(aggregate, &cell);
        }
    }

    /// Adds a pane that is newer than all others.
    fn push<A: Combine<State = S>>(&mut self, aggregate: &A, pane: i64, cell: Cell<S>) {
        match &mut self.back_total {
            Some(total) => total.merge(aggregate, &cell),
            None => self.back_total = Some(cell.clone()),
        }
        self.back.push((pane, cell));
    }

    /// Forgets the panes before `first_kept`.
    pub fn evict_before<A: Combine<State = S>>(&mut self, aggregate: &A, first_kept: i128) {
        loop {
            while (self.front)
                .pop_if(|(pane, _)| i128::from(*pane) < first_kept)
                .is_some()
            {}
            let back_has_old =
                (self.back.first()).is_some_and(|(pane, _)| i128::from(*pane) < first_kept);
            if !self.front.is_empty() || !back_has_old {
                return;
            }
            self.turn_over(aggregate);
        }
    }

    fn turn_over<A: Combine<State = S>>(&mut self, aggregate: &A) {
        self.back_total = None;
        while let Some((pane, mut cell)) = self.back.pop() {
            if let Some((_, newer)) = self.front.last() {
                cell.merge(aggregate, newer);
            }
            self.front.push((pane, cell));
        }
    }

    /// Returns the combination of all panes, if there are any.
    pub fn total<A: Combine<State = S>>(&self, aggregate: &A) -> Option<Cell<S>> {
        match (self.front.last(), &self.back_total) {
            (Some((_, front)), Some(back)) => {
                let mut total = front.clone();
                total.merge(aggregate, back);
                Some(total)
            }
            (Some((_, only)), None) | (None, Some(only)) => Some(only.clone()),
            (None, None) => None,
        }
    }

    /// Returns the combination of the panes from `first` on, if there are any: for reading.
    pub fn total_since<A: Combine<State = S>>(
        &self,
        aggregate: &A,
        first: i128,
    ) -> Option<Cell<S>> {
        let mut rest = self.clone();
        rest.evict_before(aggregate, first);
        rest.total(aggregate)
    }

    pub fn newest(&self) -> Option<i64> {
        let newest = self.back.last().or(self.front.first());
        newest.map(|(pane, _)| *pane)
    }

    /// Returns the memory of the panes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let places = self.front.capacity() + self.back.capacity();
        TableSize::of_list::<(i64, Cell<S>)>(self.len(), places).bytes
    }

    pub fn is_empty(&self) -> bool {
        self.front.is_empty() && self.back.is_empty()
    }

    pub fn len(&self) -> usize {
        self.front.len() + self.back.len()
    }

    /// Items in all panes.
    pub fn events(&self) -> u64 {
        let front = self.front.last().map_or(0, |(_, cell)| cell.events());
        let back = self.back_total.as_ref().map_or(0, |cell| cell.events());
        front.saturating_add(back)
    }
}
