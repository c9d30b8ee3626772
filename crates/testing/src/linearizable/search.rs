//! The search for an order, after Wing and Gong, with the memory of Lowe.
//!
//! The search appends one operation after the other to an order. The next one is any operation that was called before the first
//! answer of all remaining operations. If none fits, the search removes the last one. It never examines the same rest twice: the
//! same operations in the same state.
//!
//! *Answered* operations must all be in the order, *open* ones may be. So a rest that has no order has none either with fewer open
//! operations left. The search tries open operations last, hence first the rests with most of them. A state may also say less than
//! another one, for example not which version a value has, and then allows all orders that the other one allows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Fault, Model, OperationOf};

/// The most open operations that change something.
pub const OPEN_MAX: usize = 128;

/// The outcome of a search.
pub enum Outcome<S> {
    /// There is an order.
    Linearizable,
    /// There is none.
    Not(Furthest<S>),
}

/// The longest beginning of an order.
pub struct Furthest<S> {
    /// Its answered operations.
    pub answered: usize,
    /// The state after it.
    pub state: S,
    /// The places of the answered operations that could have been next, in the history.
    pub refused: Vec<usize>,
}

/// An operation that may be the next one, by its place among its kind.
#[derive(Clone, Copy)]
enum Next {
    Answered(usize),
    Open(usize),
}

/// The answered operations that are still to come, and the group of the state.
#[derive(PartialEq, Eq, Hash)]
struct Rest<G> {
    /// All answered operations before this one are in the order, in the order of their calls.
    first: usize,
    /// The operations behind it that are in the order.
    more: Box<[usize]>,
    group: G,
}

/// The open operations taken before a rest, and the state after them.
struct Seen<S> {
    open: u128,
    state: S,
}

/// The end of a beginning of an order.
struct Level<S> {
    state: S,
    /// The operation that comes last.
    last: Option<Next>,
    /// The operations that may come next, the first one at the end.
    next: Vec<Next>,
}

struct Search<'a, M: Model> {
    /// In the order of their calls, each with its place in the history.
    answered: Vec<(usize, &'a OperationOf<M>)>,
    open: Vec<&'a OperationOf<M>>,
    /// For each answered operation, whether it is in the order.
    is_taken: Vec<bool>,
    first: usize,
    taken: usize,
    /// A bit for each open operation in the order.
    open_taken: u128,
    /// The answered operations that have ranks, by these.
    ranked: Vec<usize>,
    /// The operations before this one are in the order.
    ranked_first: usize,
    /// The rests that were examined.
    seen: HashMap<Rest<M::Group>, Vec<Seen<M::State>>>,
    steps: u64,
}

/// Searches an order of a history.
///
/// # Errors
/// When the search takes more steps.
pub fn search<M: Model>(
    history: &[OperationOf<M>],
    steps_max: u64,
) -> Result<Outcome<M::State>, Fault> {
    let mut answered: Vec<_> = history.iter().enumerate().collect();
    answered.retain(|(_, operation)| operation.answer.is_some());
    answered.sort_by_key(|(_, operation)| operation.called_at);
    let open = history.iter().filter(|it| it.answer.is_none());
    let open = open.filter(|it| !M::is_read(&it.call, None));
    let open: Vec<&OperationOf<M>> = open.collect();
    if open.len() > OPEN_MAX {
        return Err(Fault::ManyOpen(open.len()));
    }
    let rank = |place: &usize| answered[*place].1.answer().and_then(M::rank);
    let mut ranked: Vec<usize> = (0..answered.len())
        .filter(|it| rank(it).is_some())
        .collect();
    ranked.sort_by_key(rank);
    let search = Search::<M> {
        ranked,
        ranked_first: 0,
        is_taken: vec![false; answered.len()],
        answered,
        open,
        first: 0,
        taken: 0,
        open_taken: 0,
        seen: HashMap::new(),
        steps: 0,
    };
    search.run(steps_max)
}

impl<M: Model> Search<'_, M> {
    fn run(mut self, steps_max: u64) -> Result<Outcome<M::State>, Fault> {
        let mut furthest = Furthest {
            answered: 0,
            state: M::initial(),
            refused: self.refused(),
        };
        let mut levels = vec![Level {
            next: self.next(&furthest.state),
            state: M::initial(),
            last: None,
        }];
        while let Some(level) = levels.last_mut() {
            if self.taken == self.answered.len() {
                return Ok(Outcome::Linearizable);
            }
            let Some(next) = level.next.pop() else {
                if let Some(last) = level.last {
                    self.take_back(last);
                }
                levels.pop();
                continue;
            };
            if self.steps == steps_max {
                return Err(Fault::Undecided { steps: self.steps });
            }
            let Some(state) = self.step(&level.state, next) else {
                continue;
            };
            self.take(next);
            if !self.is_new(&state) {
                self.take_back(next);
                continue;
            }
            if self.taken > furthest.answered {
                furthest = Furthest {
                    answered: self.taken,
                    state: state.clone(),
                    refused: self.refused(),
                };
            }
            let next_ones = self.next(&state);
            levels.push(Level {
                state,
                last: Some(next),
                next: next_ones,
            });
        }
        Ok(Outcome::Not(furthest))
    }

    fn step(&mut self, state: &M::State, next: Next) -> Option<M::State> {
        self.steps += 1;
        let operation = match next {
            Next::Answered(place) => self.answered[place].1,
            Next::Open(place) => self.open[place],
        };
        M::step(state, &operation.call, operation.answer())
    }

    /// Returns whether an operation of a lower rank is still to come.
    fn is_overtaking(&self, place: usize) -> bool {
        let rank = |place: usize| self.answered[place].1.answer().and_then(M::rank);
        let lowest = self.ranked.get(self.ranked_first);
        let lowest = lowest.and_then(|place| rank(*place));
        rank(place).is_some_and(|rank| lowest.is_some_and(|lowest| lowest < rank))
    }

    /// Returns the answered operations that may come next, and the time of the first answer.
    fn candidates(&self) -> (Vec<usize>, u64) {
        let mut first_answer = u64::MAX;
        let mut candidates = Vec::new();
        for place in self.first..self.answered.len() {
            let operation = self.answered[place].1;
            if operation.called_at > first_answer {
                break;
            }
            if !self.is_taken[place] {
                candidates.push(place);
                let answered_at = operation.answered_at().unwrap_or(u64::MAX);
                first_answer = first_answer.min(answered_at);
            }
        }
        (candidates, first_answer)
    }

    fn refused(&self) -> Vec<usize> {
        let (candidates, _) = self.candidates();
        let places = candidates.into_iter();
        places.map(|place| self.answered[place].0).collect()
    }

    /// Returns the operations that may come next, the first one to try at the end.
    fn next(&mut self, state: &M::State) -> Vec<Next> {
        let (mut candidates, first_answer) = self.candidates();
        // A read that fits, and adds no knowledge of the state, comes at once: all orders with it later are orders with it here.
        let is_free = |place: &&usize| {
            let operation = self.answered[**place].1;
            M::is_read(&operation.call, operation.answer())
                && M::step(state, &operation.call, operation.answer()).as_ref() == Some(state)
        };
        if let Some(free) = candidates.iter().find(is_free) {
            return vec![Next::Answered(*free)];
        }
        candidates.retain(|place| !self.is_overtaking(*place));
        candidates.sort_by_key(|place| self.answered[*place].1.answered_at());
        let may_be_next = |place: &usize| {
            self.open_taken & 1 << place == 0 && self.open[*place].called_at < first_answer
        };
        let open = (0..self.open.len()).filter(may_be_next);
        let answered = candidates.into_iter().rev();
        open.map(Next::Open)
            .chain(answered.map(Next::Answered))
            .collect()
    }

    fn take(&mut self, next: Next) {
        match next {
            Next::Open(place) => self.open_taken |= 1 << place,
            Next::Answered(place) => {
                self.is_taken[place] = true;
                self.taken += 1;
                while self.is_taken.get(self.first) == Some(&true) {
                    self.first += 1;
                }
                while let Some(lowest) = self.ranked.get(self.ranked_first)
                    && self.is_taken[*lowest]
                {
                    self.ranked_first += 1;
                }
            }
        }
    }

    fn take_back(&mut self, last: Next) {
        match last {
            Next::Open(place) => self.open_taken &= !(1 << place),
            Next::Answered(place) => {
                self.is_taken[place] = false;
                self.taken -= 1;
                self.first = self.first.min(place);
                // An operation with a rank was taken as the one with the lowest.
                while self.ranked_first > 0 && !self.is_taken[self.ranked[self.ranked_first - 1]] {
                    self.ranked_first -= 1;
                }
            }
        }
    }

    /// Takes note of the rest; returns whether it may have an order, as far as is known.
    fn is_new(&mut self, state: &M::State) -> bool {
        let first_answer = self.answered.get(self.first);
        let first_answer = first_answer.and_then(|(_, operation)| operation.answered_at());
        // Operations before the first one were called before its answer.
        let behind = (self.first..self.answered.len()).take_while(|place| {
            first_answer.is_some_and(|answer| self.answered[*place].1.called_at < answer)
        });
        let rest = Rest {
            first: self.first,
            more: behind.filter(|place| self.is_taken[*place]).collect(),
            group: M::group(state),
        };
        let new = Seen {
            open: self.open_taken,
            state: state.clone(),
        };
        match self.seen.entry(rest) {
            Entry::Vacant(free) => {
                free.insert(vec![new]);
                true
            }
            Entry::Occupied(seen) => {
                let seen = seen.into_mut();
                let includes = |wide: &Seen<M::State>, narrow: &Seen<M::State>| {
                    wide.open & !narrow.open == 0 && M::includes(&wide.state, &narrow.state)
                };
                if seen.iter().any(|seen| includes(seen, &new)) {
                    return false;
                }
                seen.retain(|seen| !includes(&new, seen));
                seen.push(new);
                true
            }
        }
    }
}
