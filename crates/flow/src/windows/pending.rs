//! The panes that have not ended.

use std::collections::BTreeMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Mark};
use super::journal::Journal;
use super::map::Map;
use super::size::TableSize;

pub(super) type PendingPane<K, S> = Map<K, PaneCell<S>>;

/// The partial result of a key in a pane. Serialized, it is the [`Cell`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct PaneCell<S> {
    pub cell: Cell<S>,
    /// Of its last change.
    #[serde(skip)]
    pub mark: Mark,
    /// Where panes have fragments: see [`EntryId`](super::entry::EntryId).
    #[serde(skip)]
    pub fragment: u32,
}

/// A pane that items are added to.
pub(super) struct OpenPane<'a, K, S> {
    pane: i64,
    /// The first window that counts it.
    first: i64,
    has_fragments: bool,
    cells: &'a mut PendingPane<K, S>,
}

impl<'a, K: Hash + Eq + Clone, S: Clone> OpenPane<'a, K, S> {
    /// One that is a window.
    pub fn whole(pane: i64, cells: &'a mut PendingPane<K, S>) -> Self {
        Self {
            pane,
            first: pane,
            has_fragments: false,
            cells,
        }
    }

    /// One that windows from `first` on count.
    pub fn fragment(pane: i64, first: i64, cells: &'a mut PendingPane<K, S>) -> Self {
        Self {
            pane,
            first,
            has_fragments: true,
            cells,
        }
    }

    /// Returns the partial result of a key, for a change.
    #[inline]
    pub fn cell<A: Combine<State = S>>(
        self,
        aggregate: &A,
        key: &K,
        journal: &mut Journal<K, S>,
    ) -> &'a mut Cell<S> {
        let Self { pane, first, .. } = self;
        let fragment = match self.has_fragments {
            true => journal.fragment(),
            false => 0,
        };
        let mut is_new = false;
        let there = self.cells.get_or_make(key, || {
            is_new = true;
            PaneCell::new(Cell::empty(aggregate), fragment)
        });
        let PaneCell {
            cell,
            mark,
            fragment,
        } = there;
        journal.changes(
            mark,
            || EntryId::Pane {
                pane,
                first,
                fragment: *fragment,
                key: key.clone(),
            },
            || (!is_new).then(|| Entry::Cell(cell.clone())),
        );
        cell
    }
}

impl<S> PaneCell<S> {
    pub fn new(cell: Cell<S>, fragment: u32) -> Self {
        Self {
            cell,
            mark: 0,
            fragment,
        }
    }
}

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
        take: &mut impl FnMut(I, K, PaneCell<S>),
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

    pub fn get(&self, pane: I, key: &K) -> Option<&PaneCell<S>> {
        self.panes.get(&pane)?.get(key)
    }

    pub fn holds(&self, pane: I, key: &K) -> bool {
        self.get(pane, key).is_some()
    }

    /// Returns all panes with their keys.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (I, &K, &mut PaneCell<S>)> {
        let panes = self.panes.iter_mut();
        panes.flat_map(|(pane, cells)| {
            let cells = cells.iter_mut();
            cells.map(|(key, cell)| (*pane, key, cell))
        })
    }

    /// The panes that have items of `key`, the newest first.
    pub fn newest_first(&self, key: &K) -> impl Iterator<Item = (I, &Cell<S>)> {
        let panes = self.panes.iter().rev();
        panes.filter_map(|(pane, cells)| Some((*pane, &cells.get(key)?.cell)))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.panes.values().flat_map(|cells| cells.keys())
    }

    pub fn memory(&self) -> TableSize {
        self.panes.values().map(|cells| TableSize::of(cells)).sum()
    }

    pub fn cells(&self) -> impl Iterator<Item = &Cell<S>> {
        let cells = self.panes.values().flat_map(|cells| cells.values());
        cells.map(|cell| &cell.cell)
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

    pub fn remove(&mut self, pane: I, key: &K) {
        if let Some(cells) = self.panes.get_mut(&pane) {
            cells.remove(key);
            if cells.is_empty() {
                self.panes.remove(&pane);
            }
        }
    }

    pub fn absorb(&mut self, other: Self) {
        for (pane, cells) in other.panes {
            self.panes.entry(pane).or_default().absorb(cells);
        }
    }
}

impl<K: Hash + Eq + Clone, S: Clone> Pending<K, S> {
    /// Restores the partial result of a key in a pane, or that it has none. Returns `false` if that is no such entry.
    pub fn restore(&mut self, pane: i64, key: K, entry: Option<Entry<S>>) -> bool {
        match entry {
            Some(Entry::Cell(cell)) => {
                self.pane(pane).insert(key, PaneCell::new(cell, 0));
                true
            }
            Some(_) => false,
            None => {
                self.remove(pane, &key);
                true
            }
        }
    }

    /// Notes that all panes, which are windows, have changed.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        for (pane, key, there) in self.iter_mut() {
            let PaneCell { cell, mark, .. } = there;
            let former = || Some(Entry::Cell(cell.clone()));
            journal.changes(mark, || EntryId::whole_pane(pane, key.clone()), former);
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
