//! The results of windows, and the memory of released ones.

use std::hash::Hash;

use millstream_base::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::aggregate::Combine;
use super::entry::{Mark, Window};
use super::key::All;
use super::size::TableSize;

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
    young: Generation<K, S>,
    old: Generation<K, S>,
    /// Results given, updates among them.
    pub windows: u64,
    /// The present segment of the [journal](super::journal::Journal), if changes are noted; else 0.
    #[serde(skip)]
    segment: Mark,
    /// Keys that were forgotten in the present segment, and that the changelog may have. They may be there again.
    #[serde(skip, default = "Vec::new")]
    forgotten: Vec<K>,
    /// The same before the last cut, until the changelog knows.
    #[serde(skip, default = "Vec::new")]
    forgotten_before: Vec<K>,
}

/// Windows in the order in which their keys came. Serialized as a list of pairs, so that a key can be anything.
#[derive(Debug, Clone)]
struct Generation<K, S> {
    number: u64,
    windows: IndexMap<K, Window<S>, RandomState>,
}

impl<K, S> Default for Generation<K, S> {
    fn default() -> Self {
        Self {
            number: 0,
            windows: IndexMap::default(),
        }
    }
}

/// The place of a writer in the windows that were released before a cut.
#[derive(Debug, Default)]
pub(super) struct ReleasedCursor {
    /// The generations that are left. They may age or be forgotten meanwhile.
    generations: Option<Vec<u64>>,
    /// The number of windows of the last of them, or then of forgotten keys, that were looked at.
    looked_at: usize,
}

impl<K: Hash + Eq + Clone, S: Clone> Released<K, S> {
    /// Notes changes from now on.
    pub fn begin(&mut self, segment: Mark) {
        self.segment = segment;
        // Those that were restored have no numbers yet.
        (self.old.number, self.young.number) = (0, 1);
    }

    /// The same from a cut on.
    pub fn cut(&mut self, segment: Mark) {
        self.segment = segment;
        self.forgotten_before.append(&mut self.forgotten);
    }

    /// The changelog has the changes before the last cut.
    pub fn written(&mut self) -> impl Sized + use<K, S> {
        std::mem::take(&mut self.forgotten_before)
    }

    /// Returns the next key that has changed before the last cut, with its window, or `None` if it was forgotten. Windows
    /// that were released since are left out: a run that resumes from the cut releases them again. `is_unwritten` tells
    /// which marks the changelog does not have.
    pub fn next_change(
        &self,
        cursor: &mut ReleasedCursor,
        is_unwritten: impl Fn(Mark) -> bool,
    ) -> Option<(&K, Option<&Window<S>>)> {
        let all = || vec![self.young.number, self.old.number];
        let generations = cursor.generations.get_or_insert_with(all);
        while let Some(number) = generations.last() {
            let mut present = [&self.young, &self.old].into_iter();
            let present = present.find(|generation| generation.number == *number);
            while let Some((key, window)) =
                present.and_then(|it| it.windows.get_index(cursor.looked_at))
            {
                cursor.looked_at += 1;
                let young = self.young.windows.get(key);
                let is_older = *number != self.young.number
                    && young.is_some_and(|young| young.mark != self.segment);
                if is_unwritten(window.mark) && !is_older {
                    return Some((key, Some(window)));
                }
            }
            generations.pop();
            cursor.looked_at = 0;
        }
        while let Some(key) = self.forgotten_before.get(cursor.looked_at) {
            cursor.looked_at += 1;
            if self
                .get(key)
                .is_none_or(|window| window.mark == self.segment)
            {
                return Some((key, None));
            }
        }
        None
    }

    /// Restores the window of a key, or that it has none.
    pub fn restore(&mut self, key: K, window: Option<Window<S>>) {
        match window {
            Some(window) => self.remember(key, window),
            None => {
                self.young.windows.swap_remove(&key);
                self.old.windows.swap_remove(&key);
            }
        }
    }

    /// Notes that the changelog may have a window of this key.
    pub fn note_stale(&mut self, key: K) {
        self.forgotten.push(key);
    }

    /// Notes that all windows have changed.
    pub fn note_all(&mut self) {
        for generation in [&mut self.young, &mut self.old] {
            for window in generation.windows.values_mut() {
                window.mark = self.segment;
            }
        }
    }
}

impl<K: Hash + Eq + Clone, S> Released<K, S> {
    /// Remembers at least `keys / 2` keys and at most `keys`.
    pub fn new(keys: usize) -> Self {
        Self {
            generation_keys: keys.div_ceil(2),
            young: Generation {
                number: 1,
                ..Generation::default()
            },
            old: Generation::default(),
            windows: 0,
            segment: 0,
            forgotten: Vec::new(),
            forgotten_before: Vec::new(),
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
        let window = Window {
            mark: self.segment,
            ..window
        };
        if let Some(last) = self.young.windows.get_mut(&key) {
            *last = window;
            return;
        }
        if self.young.windows.len() >= self.generation_keys {
            self.age();
        }
        self.young.windows.insert(key, window);
    }

    /// Forgets the old generation, and begins a young one.
    fn age(&mut self) {
        std::mem::swap(&mut self.young, &mut self.old);
        let segment = self.segment;
        let forgotten = self.young.windows.drain(..);
        let logged = forgotten.filter(|(_, window)| window.mark < segment);
        self.forgotten.extend(logged.map(|(key, _)| key));
        self.young.number = self.old.number + 1;
    }

    pub fn get(&self, key: &K) -> Option<&Window<S>> {
        let young = self.young.windows.get(key);
        young.or_else(|| self.old.windows.get(key))
    }

    pub fn memory(&self) -> TableSize {
        let generations = [&self.young, &self.old].into_iter();
        let size = generations.map(|generation| {
            let windows = &generation.windows;
            // Beside an entry the table has its hash and its place.
            TableSize::of_list::<(K, Window<S>, u64, usize)>(windows.len(), windows.capacity())
        });
        size.sum()
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.young.windows.keys().chain(self.old.windows.keys())
    }

    /// Takes out the keys for which `moves` holds. The number of results stays.
    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        let mut moved = Self::new(2 * self.generation_keys);
        for (from, to) in [
            (&mut self.young, &mut moved.young),
            (&mut self.old, &mut moved.old),
        ] {
            let windows = from.windows.extract_if(.., |key, _| moves(key));
            to.windows = windows.collect();
        }
        moved
    }

    pub fn absorb(&mut self, other: Self) {
        self.windows = self.windows.saturating_add(other.windows);
        for (key, window) in other.old.windows.into_iter().chain(other.young.windows) {
            self.remember(key, window);
        }
    }
}

impl<K: Serialize, S: Serialize> Serialize for Generation<K, S> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        serializer.collect_seq(self.windows.iter())
    }
}

impl<'de, K, S> Deserialize<'de> for Generation<K, S>
where
    K: Hash + Eq + Deserialize<'de>,
    S: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let windows = Vec::<(K, Window<S>)>::deserialize(deserializer)?;
        Ok(Self {
            number: 0,
            windows: windows.into_iter().collect(),
        })
    }
}
