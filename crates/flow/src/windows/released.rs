//! The results of windows, and the memory of released ones.

use std::hash::Hash;

use millstream_base::Timestamp;
use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::key::All;
use super::map::Map;

/// The result of a key in one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize + 'static, O: Serialize"))]
pub struct WindowResult<K, O> {
    /// The key. Serialized it is left out where it is [`All`], which carries no information.
    #[serde(skip_serializing_if = "All::is")]
    pub key: K,
    /// First moment of the window.
    pub start: Timestamp,
    /// First moment after it.
    pub end: Timestamp,
    /// The aggregate's result.
    pub value: O,
    /// The number of items.
    pub events: u64,
    /// Their largest event time: the "event-time of a windowed event" (AIR, section 2.4).
    pub time_max: Timestamp,
    /// Whether it replaces the result that was given before: late items have changed the window. With sessions it
    /// replaces all results of the key that lie within it.
    pub is_update: bool,
}

/// A window of a key, with the partial result of its items.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Window<S> {
    pub start: i64,
    pub end: i64,
    pub cell: Cell<S>,
    /// A result was given before, of the window or of a part of it.
    pub is_update: bool,
}

impl<S> Window<S> {
    pub fn result<K, A>(&self, aggregate: &A, key: K) -> WindowResult<K, A::Out>
    where
        A: Combine<State = S>,
    {
        WindowResult {
            key,
            start: Timestamp(self.start),
            end: Timestamp(self.end),
            value: aggregate.result(&self.cell.state, self.cell.events()),
            events: self.cell.events(),
            time_max: Timestamp(self.cell.time_max),
            is_update: self.is_update,
        }
    }
}

/// The last window that was released of each key, for some number of keys: those released last.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Released<K, S> {
    /// The number of keys in each generation.
    generation_keys: usize,
    /// When it is full it becomes the old one, and the old one is forgotten.
    young: Map<K, Window<S>>,
    old: Map<K, Window<S>>,
    /// Results given, updates among them.
    pub windows: u64,
}

impl<K: Hash + Eq + Clone, S> Released<K, S> {
    /// Remembers at least `keys / 2` keys and at most `keys`.
    pub fn new(keys: usize) -> Self {
        Self {
            generation_keys: keys.div_ceil(2),
            young: Map::default(),
            old: Map::default(),
            windows: 0,
        }
    }

    /// Gives the result of a window and remembers it.
    pub fn give<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: K,
        window: Window<S>,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        self.windows = self.windows.saturating_add(1);
        out(window.result(aggregate, key.clone()));
        self.remember(key, window);
    }

    /// Gives the result of a window that may end before others that were given.
    pub fn give_late<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: K,
        window: Window<S>,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        if self.get(&key).is_none_or(|last| last.end <= window.end) {
            return self.give(aggregate, key, window, out);
        }
        self.windows = self.windows.saturating_add(1);
        out(window.result(aggregate, key));
    }

    fn remember(&mut self, key: K, window: Window<S>) {
        if self.generation_keys == 0 {
            return;
        }
        if let Some(last) = self.young.get_mut(&key) {
            *last = window;
            return;
        }
        if self.young.len() >= self.generation_keys {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, window);
    }

    pub fn get(&self, key: &K) -> Option<&Window<S>> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.young.keys().chain(self.old.keys())
    }

    /// Takes out the keys for which `moves` holds. The number of results stays.
    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            generation_keys: self.generation_keys,
            young: self.young.split_off(moves),
            old: self.old.split_off(moves),
            windows: 0,
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.windows = self.windows.saturating_add(other.windows);
        for (key, window) in other.old.into_iter().chain(other.young) {
            self.remember(key, window);
        }
    }
}
