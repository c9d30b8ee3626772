//! The panes that have not ended.

use std::collections::BTreeMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::map::Map;

pub(super) type PendingPane<K, S> = Map<K, Cell<S>>;

/// What is known of each key in panes of equal size.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Pending<K, S> {
    /// By the number of the pane; none is empty.
    panes: BTreeMap<i64, PendingPane<K, S>>,
}

impl<K, S> Default for Pending<K, S> {
    fn default() -> Self {
        Self {
            panes: BTreeMap::new(),
        }
    }
}

impl<K: Hash + Eq + Clone, S> Pending<K, S> {
    /// What is known of each key in pane `pane`: something must be added to it.
    pub fn pane(&mut self, pane: i64) -> &mut PendingPane<K, S> {
        self.panes.entry(pane).or_default()
    }

    pub fn first(&self) -> Option<i64> {
        self.panes.first_key_value().map(|(pane, _)| *pane)
    }

    /// Takes what the first panes know of keys, up to one that is not due or until there is no more `room`.
    pub fn take_if(
        &mut self,
        is_due: impl Fn(i64) -> bool,
        room: &mut usize,
        take: &mut impl FnMut(i64, K, Cell<S>),
    ) {
        while *room > 0
            && let Some(mut first) = self.panes.first_entry()
            && is_due(*first.key())
        {
            let pane = *first.key();
            if first.get().len() <= *room {
                let cells = first.remove();
                *room -= cells.len();
                (cells.into_iter()).for_each(|(key, cell)| take(pane, key, cell));
            } else {
                let cells = first.get_mut().extract_if(|_, _| true);
                (cells.take(*room)).for_each(|(key, cell)| take(pane, key, cell));
                *room = 0;
            }
        }
    }

    /// The panes that have items of `key`, the newest first.
    pub fn newest_first(&self, key: &K) -> impl Iterator<Item = (i64, &Cell<S>)> {
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
        Self { panes: taken }
    }

    pub fn absorb(&mut self, other: Self) {
        for (pane, cells) in other.panes {
            self.panes.entry(pane).or_default().absorb(cells);
        }
    }
}
