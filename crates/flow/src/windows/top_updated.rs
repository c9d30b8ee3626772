//! The windows with the highest scores, of which some come again, updated.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Key;
use super::aggregate::{Aggregate, Combine};
use super::released::WindowResult;
use super::top::{Top, top};
use crate::ranks::message::Message;

/// The windows with the highest scores among all windows that end at one moment, and the number of all these windows. The
/// last result of each window counts.
pub struct TopWindows<K, O, S, F> {
    highest: Top<WindowResult<K, O>, S, F>,
    score: F,
    /// Results come again. Then all windows are retained: an update may have a lower score, and make room for another
    /// one.
    are_updated: bool,
}

/// Windows with their scores.
type Scored<K, O, S> = Vec<(S, WindowResult<K, O>)>;

/// The windows that end at one moment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Key, O: Message + Clone, S: Message + Clone",
    deserialize = "K: Key, O: Message + Clone, S: Message + Clone"
))]
pub struct Ranking<K, O, S> {
    /// Windows that are not in `all`.
    windows: u64,
    /// The highest of them first.
    highest: Scored<K, O, S>,
    /// The last result of each window that may be updated. A key has one window that ends at a moment, but for global
    /// windows that count their items, which are never updated.
    all: HashMap<K, Scored<K, O, S>>,
}

/// The result of a [`TopWindows`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Key, O: Message + Clone",
    deserialize = "K: Key, O: Message + Clone"
))]
pub struct Ranked<K, O> {
    /// The highest first.
    pub highest: Vec<WindowResult<K, O>>,
    /// The number of windows, each counted once.
    pub windows: u64,
}

impl<K, O, S, F> TopWindows<K, O, S, F>
where
    S: PartialOrd,
    F: Fn(&WindowResult<K, O>) -> S + Clone,
{
    pub fn new(count: usize, score: F, are_updated: bool) -> Self {
        TopWindows {
            highest: top(count, score.clone()),
            score,
            are_updated,
        }
    }
}

/// Adds the result of a window, unless a later one is there, in place of those that it updates.
fn update<K: Clone, O: Clone, S: Clone>(
    results: &mut Scored<K, O, S>,
    (score, result): (&S, &WindowResult<K, O>),
) {
    // An update has all items of the result that it replaces, and more.
    let replaces = |newer: &WindowResult<K, O>, older: &WindowResult<K, O>| {
        newer.is_update && newer.start <= older.start && newer.events >= older.events
    };
    if results.iter().any(|(_, known)| replaces(known, result)) {
        return;
    }
    results.retain(|(_, known)| !replaces(result, known));
    results.push((score.clone(), result.clone()));
}

impl<K, O, S, F> Combine for TopWindows<K, O, S, F>
where
    K: Key,
    O: Message + Clone,
    S: Clone + PartialOrd + Message,
    F: Send + Sync + 'static,
{
    type State = Ranking<K, O, S>;
    type Out = Ranked<K, O>;

    fn empty(&self) -> Self::State {
        Ranking {
            windows: 0,
            highest: Vec::new(),
            all: HashMap::new(),
        }
    }

    fn merge(&self, state: &mut Self::State, other: &Self::State) {
        state.windows += other.windows;
        self.highest.merge(&mut state.highest, &other.highest);
        for (key, results) in &other.all {
            let known = state.all.entry(key.clone()).or_default();
            for (score, result) in results {
                update(known, (score, result));
            }
        }
    }

    fn result(&self, state: &Self::State, events: u64) -> Ranked<K, O> {
        let mut highest = state.highest.clone();
        let mut windows = state.windows;
        for (score, result) in state.all.values().flatten() {
            windows += 1;
            // A score that cannot be compared is none.
            if score.partial_cmp(score).is_some() {
                self.highest.put(&mut highest, score, result);
            }
        }
        Ranked {
            highest: self.highest.result(&highest, events),
            windows,
        }
    }
}

impl<K, O, S, F> Aggregate<WindowResult<K, O>> for TopWindows<K, O, S, F>
where
    K: Key,
    O: Message + Clone,
    S: Clone + PartialOrd + Message,
    F: Fn(&WindowResult<K, O>) -> S + Send + Sync + 'static,
{
    #[inline]
    fn add(&self, state: &mut Self::State, result: &WindowResult<K, O>) {
        if !self.are_updated {
            state.windows += 1;
            return self.highest.add(&mut state.highest, result);
        }
        let score = (self.score)(result);
        let known = state.all.entry(result.key.clone()).or_default();
        update(known, (&score, result));
    }
}
