//! The keys of a stream, each of which is an object by itself.

use std::collections::BTreeMap;

use super::{Fault, Model, Operation, check};

/// A call for one key, whose values are whole numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyCall {
    /// Returns the value.
    Get,
    /// Stores a value.
    Put(i64, KeyCondition),
    /// Adds to the value; an absent key counts as 0.
    Add(i64),
    /// Removes the value.
    Delete(KeyCondition),
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyCondition {
    /// None.
    Any,
    /// The key has no value.
    Absent,
    /// The key has a value.
    Present,
    /// The newest version is this one, and has a value.
    Version(u64),
}

/// The answer to a call for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAnswer {
    /// The value, and its version.
    Found(Option<(i64, u64)>),
    /// The write was made.
    Changed {
        /// The new version, if the answer names it.
        version: Option<u64>,
        /// The new value, if a number was added.
        sum: Option<i64>,
    },
    /// The condition does not hold: this is the newest version; `None` if the key has no value.
    OtherVersion(Option<u64>),
}

/// An operation with one key.
pub type KeyOperation = Operation<KeyCall, KeyAnswer>;

/// Checks a history of operations with keys, each key by itself: since operations with different keys never touch the same object,
/// the whole is linearizable if each key is (Herlihy and Wing).
///
/// # Errors
/// When a key is not linearizable, or `steps_max` steps do not suffice for it.
pub fn check_keys(
    history: impl IntoIterator<Item = (String, KeyOperation)>,
    steps_max: u64,
) -> Result<(), String> {
    let mut keys: BTreeMap<String, Vec<KeyOperation>> = BTreeMap::new();
    for (key, operation) in history {
        keys.entry(key).or_default().push(operation);
    }
    for (key, history) in keys {
        let count = history.len();
        let checked = check::<Key>(&history, steps_max);
        checked.map_err(|fault: Fault| format!("key {key:?}, {count} operations: {fault}"))?;
    }
    Ok(())
}

/// A key. Its versions grow with each write.
pub struct Key;

/// The state of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    value: Option<i64>,
    /// The version of the value, as far as an answer has named it.
    version: Option<u64>,
    /// The lowest version that the next write can have.
    next: u64,
}

impl Model for Key {
    type State = State;
    type Group = (Option<i64>, Option<u64>);
    type Call = KeyCall;
    type Answer = KeyAnswer;

    fn initial() -> State {
        State {
            value: None,
            version: None,
            next: 0,
        }
    }

    fn step(state: &State, call: &KeyCall, answer: Option<&KeyAnswer>) -> Option<State> {
        match (*call, answer) {
            (KeyCall::Get, Some(KeyAnswer::Found(found))) => {
                let same = state.value == found.map(|(value, _)| value);
                same.then(|| state.with_newest(found.map(|(_, version)| version)))?
            }
            (KeyCall::Get, _) | (_, Some(KeyAnswer::Found(_))) => None,
            (
                KeyCall::Put(_, condition) | KeyCall::Delete(condition),
                Some(KeyAnswer::OtherVersion(newest)),
            ) => {
                let fits = match condition {
                    KeyCondition::Any => true,
                    KeyCondition::Absent => newest.is_none(),
                    KeyCondition::Present => newest.is_some(),
                    KeyCondition::Version(version) => *newest == Some(version),
                };
                (!fits).then(|| state.with_newest(*newest))?
            }
            (KeyCall::Add(_), Some(KeyAnswer::OtherVersion(_))) => None,
            (KeyCall::Put(value, condition), answer) => state
                .under(condition)?
                .written(Some(value), version_of(answer)),
            (KeyCall::Delete(condition), answer) => {
                state.under(condition)?.written(None, version_of(answer))
            }
            (KeyCall::Add(number), answer) => {
                let sum = state.value.unwrap_or(0).checked_add(number)?;
                let is_told = match answer {
                    Some(KeyAnswer::Changed { sum: told, .. }) => *told == Some(sum),
                    _ => true,
                };
                is_told.then(|| state.written(Some(sum), version_of(answer)))?
            }
        }
    }

    fn is_read(call: &KeyCall, answer: Option<&KeyAnswer>) -> bool {
        *call == KeyCall::Get || matches!(answer, Some(KeyAnswer::OtherVersion(_)))
    }

    fn group(state: &State) -> (Option<i64>, Option<u64>) {
        (state.value, state.version)
    }

    fn includes(state: &State, other: &State) -> bool {
        state.next <= other.next
    }

    fn rank(answer: &KeyAnswer) -> Option<u64> {
        version_of(Some(answer))
    }
}

fn version_of(answer: Option<&KeyAnswer>) -> Option<u64> {
    match answer {
        Some(KeyAnswer::Changed { version, .. }) => *version,
        _ => None,
    }
}

impl State {
    /// Returns the state with the knowledge that the value has this version.
    fn with_newest(self, version: Option<u64>) -> Option<State> {
        let Some(version) = version else {
            return self.value.is_none().then_some(self);
        };
        let can_be = match self.version {
            Some(known) => known == version,
            None => version + 1 >= self.next,
        };
        let known = State {
            value: self.value,
            version: Some(version),
            next: version + 1,
        };
        (can_be && self.value.is_some()).then_some(known)
    }

    /// Returns the state with the knowledge that a condition holds.
    fn under(self, condition: KeyCondition) -> Option<State> {
        match condition {
            KeyCondition::Any => Some(self),
            KeyCondition::Absent => self.value.is_none().then_some(self),
            KeyCondition::Present => self.value.is_some().then_some(self),
            KeyCondition::Version(version) => self.with_newest(Some(version)),
        }
    }

    fn written(self, value: Option<i64>, version: Option<u64>) -> Option<State> {
        let can_be = version.is_none_or(|version| version >= self.next);
        let next = version.unwrap_or(self.next) + 1;
        can_be.then_some(State {
            value,
            // No answer names the version of a deletion.
            version: version.filter(|_| value.is_some()),
            next,
        })
    }
}
