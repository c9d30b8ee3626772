//! The panes that have not ended.

use std::collections::BTreeMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::map::Map;

pub(super) type PendingPane<K, S> = Map<K, Cell<S>>;

/// The partial results of each key in panes of equal size, which are named and ordered by an `I`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Serialize, S: Serialize, I: Serialize",
    deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>, I: Ord + Deserialize<'de>"
))]
pub(super) struct Pending<K, S, I = i64> {
    /// None is empty.
    #[serde(with = "pairs")]
    panes: BTreeMap<I, PendingPane<K, S>>,
    /// An empty map for the next pane: its memory is as large as the last pane was.
    #[serde(skip, default)]
    spare: PendingPane<K, S>,
}

impl<K, S, I> Default for Pending<K, S, I> {
    fn default() -> Self {
        Self {
            panes: BTreeMap::new(),
            spare: Map::default(),
        }
    }
}

impl<K: Hash + Eq + Clone, S, I: Ord + Copy> Pending<K, S, I> {
    /// Returns the partial results of each key in pane `pane`, which the caller must add to.
    pub fn pane(&mut self, pane: I) -> &mut PendingPane<K, S> {
        let spare = &mut self.spare;
        self.panes
            .entry(pane)
            .or_insert_with(|| std::mem::take(spare))
    }

    pub fn first(&self) -> Option<I> {
        self.panes.first_key_value().map(|(pane, _)| *pane)
    }

    /// Takes the partial results of the first panes, up to one that is not due or until there is no more `room`.
    pub fn take_if(
        &mut self,
        is_due: impl Fn(I) -> bool,
        room: &mut usize,
        take: &mut impl FnMut(I, K, Cell<S>),
    ) {
        while *room > 0
            && let Some(mut first) = self.panes.first_entry()
            && is_due(*first.key())
        {
            let pane = *first.key();
            let cells = first.get_mut();
            let before = cells.len();
            cells.take_some(*room, |key, cell| take(pane, key, cell));
            *room -= before - cells.len();
            if cells.is_empty() {
                self.spare = first.remove();
            }
        }
    }

    pub fn holds(&self, pane: I, key: &K) -> bool {
        (self.panes.get(&pane)).is_some_and(|keys| keys.contains_key(key))
    }

    /// The panes that have items of `key`, the newest first.
    pub fn newest_first(&self, key: &K) -> impl Iterator<Item = (I, &Cell<S>)> {
        (self.panes.iter().rev()).filter_map(|(pane, cells)| Some((*pane, cells.get(key)?)))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.panes.values().flat_map(|cells| cells.keys())
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell<S>> {
        self.panes.values().flat_map(|cells| cells.values())
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        let mut taken = BTreeMap::new();
        self.panes.retain(|pane, cells| {
            let part = cells.split_off(moves);
            if !part.is_empty() {
                taken.insert(*pane, part);
            }
            !cells.is_empty()
        });
        Self {
            panes: taken,
            spare: Map::default(),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        for (pane, cells) in other.panes {
            self.panes.entry(pane).or_default().absorb(cells);
        }
    }
}

/// A list of pairs, so that a key can be anything.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<I: Serialize, V: Serialize, Z: Serializer>(
        panes: &BTreeMap<I, V>,
        serializer: Z,
    ) -> Result<Z::Ok, Z::Error> {
        serializer.collect_seq(panes)
    }

    pub fn deserialize<'de, I, V, D>(deserializer: D) -> Result<BTreeMap<I, V>, D::Error>
    where
        I: Ord + Deserialize<'de>,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        let pairs = Vec::<(I, V)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().collect())
    }
}
