//! Windows that were released, and are retained for late items.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, KeptCell, Window};
use super::journal::Journal;
use super::map::Map;
use super::size::TableSize;

/// Empty unless lateness is allowed.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Kept<K, S> {
    /// By the number of the window; none is empty.
    windows: BTreeMap<i64, Map<K, KeptCell<S>>>,
    /// The windows in `windows` whose results have changed since they were emitted.
    changed: BTreeMap<i64, Map<K, ()>>,
}

impl<S: Clone> KeptCell<S> {
    fn changes<K: Hash + Eq + Clone>(&mut self, window: i64, key: &K, journal: &mut Journal<K, S>) {
        let Self {
            cell,
            is_given,
            mark,
        } = self;
        let former = || {
            Some(Entry::Kept(KeptCell {
                cell: cell.clone(),
                is_given: *is_given,
                mark: 0,
            }))
        };
        journal.changes(mark, || kept_id(window, key), former);
    }
}

fn kept_id<K: Clone>(window: i64, key: &K) -> EntryId<K> {
    EntryId::Kept {
        window,
        key: key.clone(),
    }
}

impl<K, S> Default for Kept<K, S> {
    fn default() -> Self {
        Self {
            windows: BTreeMap::new(),
            changed: BTreeMap::new(),
        }
    }
}

impl<K: Hash + Eq + Clone, S: Clone> Kept<K, S> {
    pub fn holds_any(&self, window: i64) -> bool {
        self.windows.contains_key(&window)
    }

    pub fn holds(&self, window: i64, key: &K) -> bool {
        (self.windows.get(&window)).is_some_and(|keys| keys.contains_key(key))
    }

    /// Returns the windows in `windows` that `key` has.
    pub fn windows_of(&self, key: &K, windows: RangeInclusive<i64>) -> Vec<i64> {
        if windows.is_empty() {
            return Vec::new();
        }
        let held = self.windows.range(windows);
        held.filter(|(_, keys)| keys.contains_key(key))
            .map(|(window, _)| *window)
            .collect()
    }

    /// Keeps a window whose result is given now.
    pub fn keep(&mut self, window: i64, key: &K, cell: Cell<S>, journal: &mut Journal<K, S>) {
        let mut kept = KeptCell {
            cell,
            is_given: true,
            mark: 0,
        };
        journal.changes(&mut kept.mark, || kept_id(window, key), || None);
        (self.windows.entry(window).or_default()).insert(key.clone(), kept);
    }

    /// Returns the partial result of `key` in a window that was released, for a change.
    pub fn change<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        window: i64,
        key: &K,
        journal: &mut Journal<K, S>,
    ) -> &mut Cell<S> {
        (self.changed.entry(window).or_default()).get_or_make(key, || ());
        let keys = self.windows.entry(window).or_default();
        let kept = keys.get_or_make(key, || {
            let mut made = KeptCell {
                cell: Cell::empty(aggregate),
                is_given: false,
                mark: 0,
            };
            journal.changes(&mut made.mark, || kept_id(window, key), || None);
            made
        });
        kept.changes(window, key, journal);
        &mut kept.cell
    }

    /// Gives the first windows that have changed, as long as they are `due` and there is `room`, which every result takes
    /// from; `window` gives their times.
    pub fn give_changed(
        &mut self,
        due: impl Fn(i64) -> bool,
        window: impl Fn(i64, Cell<S>) -> Window<S>,
        journal: &mut Journal<K, S>,
        room: &mut usize,
        mut give: impl FnMut(K, Window<S>),
    ) {
        while *room > 0
            && let Some(mut first) = self.changed.first_entry()
            && due(*first.key())
        {
            let number = *first.key();
            let keys = match first.get().len() <= *room {
                true => first.remove(),
                false => {
                    let keys = first.get_mut().extract_if(|_, ()| true);
                    keys.take(*room).collect()
                }
            };
            *room -= keys.len();
            let Some(kept) = self.windows.get_mut(&number) else {
                continue;
            };
            for (key, ()) in keys {
                let Some(kept) = kept.get_mut(&key) else {
                    continue;
                };
                let changed = Window {
                    is_update: kept.is_given,
                    ..window(number, kept.cell.clone())
                };
                kept.changes(number, &key, journal);
                kept.is_given = true;
                give(key, changed);
            }
        }
    }

    /// Forgets the first windows as long as they are `closed`.
    pub fn forget(&mut self, closed: impl Fn(i64) -> bool, journal: &mut Journal<K, S>) {
        while let Some(first) = self.windows.first_entry()
            && closed(*first.key())
        {
            let window = *first.key();
            let kept = first.remove();
            if journal.is_on() {
                for (key, kept) in kept {
                    let mark = kept.mark;
                    journal.ends(mark, || kept_id(window, &key), || Entry::Kept(kept));
                }
            }
        }
    }

    pub fn get(&self, window: i64, key: &K) -> Option<&KeptCell<S>> {
        self.windows.get(&window)?.get(key)
    }

    /// Restores a window, which has no results to give.
    pub fn restore(&mut self, window: i64, key: K, kept: KeptCell<S>) {
        (self.windows.entry(window).or_default()).insert(key, kept);
    }

    pub fn remove(&mut self, window: i64, key: &K) {
        if let Some(keys) = self.windows.get_mut(&window) {
            keys.remove(key);
            if keys.is_empty() {
                self.windows.remove(&window);
            }
        }
    }

    /// Notes that all windows have changed.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        for (window, keys) in &mut self.windows {
            for (key, kept) in keys.iter_mut() {
                kept.changes(*window, key, journal);
            }
        }
    }

    /// The newest window that `key` has.
    pub fn newest(&self, key: &K) -> Option<(i64, &Cell<S>)> {
        let windows = self.windows.iter().rev();
        let mut held = windows.filter_map(|(window, keys)| Some((*window, keys.get(key)?)));
        held.next().map(|(window, kept)| (window, &kept.cell))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.windows.values().flat_map(|keys| keys.keys())
    }

    pub fn memory(&self) -> TableSize {
        self.windows.values().map(|keys| TableSize::of(keys)).sum()
    }

    /// Returns their number, once for each key.
    pub fn len(&self) -> usize {
        self.windows.values().map(|keys| keys.len()).sum()
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        Self {
            windows: split_off(&mut self.windows, moves),
            changed: split_off(&mut self.changed, moves),
        }
    }

    pub fn absorb(&mut self, other: Self) {
        for (window, keys) in other.windows {
            self.windows.entry(window).or_default().absorb(keys);
        }
        for (window, keys) in other.changed {
            self.changed.entry(window).or_default().absorb(keys);
        }
    }
}

fn split_off<K: Hash + Eq + Clone, V>(
    windows: &mut BTreeMap<i64, Map<K, V>>,
    moves: &mut impl FnMut(&K) -> bool,
) -> BTreeMap<i64, Map<K, V>> {
    let mut taken = BTreeMap::new();
    windows.retain(|window, keys| {
        let part = keys.split_off(moves);
        if !part.is_empty() {
            taken.insert(*window, part);
        }
        !keys.is_empty()
    });
    taken
}
