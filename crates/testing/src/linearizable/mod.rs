//! Checks that histories are linearizable: that the operations can be put into one order in which each takes effect between its
//! call and its answer, and gets the answer that a simple model gives in this order.
//!
//! The answer of an operation may be lost. Then the operation may take effect at any time after its call, or never.

mod keys;
mod report;
mod search;
#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

pub use keys::{KeyAnswer, KeyCall, KeyCondition, KeyOperation, check_keys};

use self::report::report;
use self::search::{Outcome, search};

/// How an object behaves if one operation comes after the other.
pub trait Model {
    /// Everything that answers depend on, as far as an observer knows it.
    type State: Clone + PartialEq + Debug;
    /// States are compared only within their group.
    type Group: Eq + Hash;
    /// A call with its arguments.
    type Call: Clone + Debug;
    /// The answer to a call.
    type Answer: Clone + Debug;

    /// Returns the state before the first operation.
    fn initial() -> Self::State;

    /// Returns the state after an operation; `None` if it cannot take effect in this state, or not with this answer.
    fn step(
        state: &Self::State,
        call: &Self::Call,
        answer: Option<&Self::Answer>,
    ) -> Option<Self::State>;

    /// Returns whether an operation changes nothing, so that the others are linearizable without it if they are with it.
    fn is_read(call: &Self::Call, answer: Option<&Self::Answer>) -> bool;

    /// Returns the group of a state.
    fn group(state: &Self::State) -> Self::Group;

    /// Returns whether all that can come after `other`, which is of the same group, can come after `state`.
    fn includes(state: &Self::State, other: &Self::State) -> bool;

    /// Returns the rank of an answer: `step` allows an answer only before answers of higher ranks. The search needs no ranks,
    /// but is faster with them.
    fn rank(answer: &Self::Answer) -> Option<u64>;
}

/// An operation of a client.
#[derive(Debug, Clone)]
pub struct Operation<C, A> {
    /// The client that called.
    pub client: usize,
    /// The time just before the call.
    pub called_at: u64,
    /// The call.
    pub call: C,
    /// The time just after the answer, and the answer; `None` if it was lost.
    pub answer: Option<(u64, A)>,
}

impl<C, A> Operation<C, A> {
    fn answered_at(&self) -> Option<u64> {
        self.answer.as_ref().map(|(at, _)| *at)
    }

    fn answer(&self) -> Option<&A> {
        self.answer.as_ref().map(|(_, answer)| answer)
    }
}

/// An operation on an object that a model describes.
pub type OperationOf<M> = Operation<<M as Model>::Call, <M as Model>::Answer>;

/// The clock of a history. All its times differ.
#[derive(Debug, Default)]
pub struct Clock(AtomicU64);

impl Clock {
    /// Returns the time, which is later than all times that were returned before, on any thread.
    pub fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// The reason why a history does not pass.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No order explains it.
    #[error("the history is not linearizable\n{0}")]
    NotLinearizable(String),
    /// The search was given up.
    #[error("undecided: the search has taken {steps} steps and has not seen all orders")]
    Undecided {
        /// The steps that it has taken.
        steps: u64,
    },
    /// There are more operations without an answer than the search can take up.
    #[error("undecided: {0} writes have no answer; the search takes up {max}", max = search::OPEN_MAX)]
    ManyOpen(usize),
}

/// Checks that a history is linearizable, in at most `steps_max` steps of the model.
///
/// # Errors
/// When it is not, with the part of it that shows why; or when the steps do not suffice.
pub fn check<M: Model>(history: &[OperationOf<M>], steps_max: u64) -> Result<(), Fault> {
    match search::<M>(history, steps_max)? {
        Outcome::Linearizable => Ok(()),
        Outcome::Not(_) => Err(Fault::NotLinearizable(report::<M>(history, steps_max))),
    }
}
