//! Sessions, where all items of a key come together.

use std::collections::BTreeMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use super::aggregate::Combine;
use super::cell::Cell;
use super::entry::{Entry, EntryId, Mark, Window};
use super::grid::Lateness;
use super::journal::Journal;
use super::key_sessions::{KeySessions, Session};
use super::map::Map;
use super::released::{Released, WindowResult};
use super::size::TableSize;

/// The sessions of all keys. A session is retained after its end for as long as an item may come that joins it: an
/// item is in time if the session that it would be alone is not closed, so it lies at most a gap, and the allowed
/// lateness, before the watermark.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "K: Hash + Eq + Deserialize<'de>, S: Deserialize<'de>"))]
pub(super) struct Sessions<K, S> {
    gap_ms: i64,
    lateness: Lateness,
    by_key: Map<K, Watched<S>>,
    /// The keys to check, by time. A key may also have entries at times that are no longer its alarm.
    alarms: BTreeMap<i64, Map<K, ()>>,
}

/// The sessions of a key, of which there is at least one.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Watched<S> {
    sessions: KeySessions<S>,
    /// The time of its next check: at or before the first moment at which one of its sessions must be released or
    /// forgotten, which may have moved on since. So an item costs nothing here unless its session is the earliest and new.
    alarm: i64,
    /// Of the last change.
    #[serde(skip)]
    mark: Mark,
}

impl<S: Clone> Watched<S> {
    fn changes<K: Hash + Eq + Clone>(&mut self, key: &K, journal: &mut Journal<K, S>) {
        let Self { sessions, mark, .. } = self;
        let former = || (sessions.len() > 0).then(|| Entry::Sessions(sessions.clone()));
        journal.changes(mark, || EntryId::Key { key: key.clone() }, former);
    }
}

impl<K: Hash + Eq + Clone, S: Clone> Sessions<K, S> {
    pub fn new(gap_ms: i64, lateness: Lateness) -> Self {
        Self {
            gap_ms,
            lateness,
            by_key: Map::default(),
            alarms: BTreeMap::new(),
        }
    }

    /// Returns the partial result of the session of items from `first` to `last`, which are not in it yet.
    pub fn cell<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        key: &K,
        (first, last): (i64, i64),
        journal: &mut Journal<K, S>,
    ) -> &mut Cell<S> {
        let gap_ms = self.gap_ms;
        let watched = self.by_key.get_or_make(key, || Watched {
            sessions: KeySessions::default(),
            alarm: i64::MAX,
            mark: 0,
        });
        watched.changes(key, journal);
        let is_new = watched.sessions.len() == 0;
        let session = watched.sessions.join(aggregate, gap_ms, first, last);
        let end = session.end(gap_ms);
        if is_new || end < watched.alarm {
            watched.alarm = end;
            (self.alarms.entry(end).or_default()).insert(key.clone(), ());
        }
        &mut session.cell
    }

    /// Releases the sessions that end by `watermark`.
    pub fn advance<A: Combine<State = S>>(
        &mut self,
        aggregate: &A,
        watermark: i64,
        journal: &mut Journal<K, S>,
        released: &mut Released<K, S>,
        room: &mut usize,
        out: &mut impl FnMut(WindowResult<K, A::Out>),
    ) {
        while *room > 0
            && let Some(mut first) = self.alarms.first_entry()
            && *first.key() <= watermark
        {
            let time = *first.key();
            let keys = match first.get().len() <= *room {
                true => first.remove(),
                false => first
                    .get_mut()
                    .extract_if(|_, ()| true)
                    .take(*room)
                    .collect(),
            };
            *room -= keys.len();
            for (key, ()) in keys {
                self.look_at(&key, time, journal, &mut |window| {
                    released.give_late(aggregate, key.clone(), window, out);
                });
            }
        }
        self.by_key.trim();
    }

    /// Gives the sessions of `key` that end by `time`, and forgets those that are closed, if that is when
    /// to look at it.
    fn look_at(
        &mut self,
        key: &K,
        time: i64,
        journal: &mut Journal<K, S>,
        give: &mut impl FnMut(Window<S>),
    ) {
        let (gap_ms, lateness) = (self.gap_ms, self.lateness);
        let Some(watched) = self.by_key.get_mut(key) else {
            return;
        };
        if watched.alarm != time {
            return;
        }
        watched.changes(key, journal);
        watched.alarm = i64::MAX;
        watched.sessions.retain(|session| {
            let end = session.end(gap_ms);
            if session.has_new && end <= time {
                give(window(session, gap_ms));
                (session.is_given, session.has_new) = (true, false);
            }
            let next = next_look(session, gap_ms, lateness);
            watched.alarm = watched.alarm.min(next);
            next > time
        });
        if watched.sessions.len() == 0 {
            self.by_key.remove(key);
        } else {
            (self.alarms.entry(watched.alarm).or_default()).insert(key.clone(), ());
        }
    }

    pub fn get(&self, key: &K) -> Option<&KeySessions<S>> {
        self.by_key.get(key).map(|watched| &watched.sessions)
    }

    /// Returns the time by which no run needs these sessions.
    pub fn end(&self, sessions: &KeySessions<S>) -> i64 {
        let ends = sessions.iter().map(|session| {
            let end = session.end(self.gap_ms);
            self.lateness.after(end.saturating_add(self.gap_ms))
        });
        ends.max().unwrap_or(i64::MIN)
    }

    /// Restores the sessions of a key, or that it has none.
    pub fn restore(&mut self, key: K, sessions: Option<KeySessions<S>>) {
        let nexts = sessions.iter().flat_map(|sessions| sessions.iter());
        let alarm = nexts.map(|session| next_look(session, self.gap_ms, self.lateness));
        let Some((alarm, sessions)) = alarm.min().zip(sessions) else {
            self.by_key.remove(&key);
            return;
        };
        (self.alarms.entry(alarm).or_default()).insert(key.clone(), ());
        let watched = Watched {
            sessions,
            alarm,
            mark: 0,
        };
        self.by_key.insert(key, watched);
    }

    /// Notes that everything has changed.
    pub fn note_all(&mut self, journal: &mut Journal<K, S>) {
        for (key, watched) in self.by_key.iter_mut() {
            watched.changes(key, journal);
        }
    }

    pub fn newest(&self, key: &K) -> Option<Window<S>> {
        let latest = self.by_key.get(key)?.sessions.latest()?;
        Some(window(latest, self.gap_ms))
    }

    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.by_key.keys()
    }

    fn all(&self) -> impl Iterator<Item = &Session<S>> {
        self.by_key.values().flat_map(|key| key.sessions.iter())
    }

    /// Returns the entries and their memory, without that which keys and states own elsewhere.
    pub fn memory(&self) -> TableSize {
        let mut size = TableSize::of(&*self.by_key);
        let watched = self.by_key.values();
        size.add_owned(watched.map(|watched| watched.sessions.memory_bytes()));
        size
    }

    /// Returns how many sessions were released and are retained for late items.
    pub fn kept(&self) -> usize {
        self.all().filter(|session| !session.has_new).count()
    }

    /// Returns the number of sessions that are yet to be released, and of items in them.
    pub fn size(&self) -> (usize, u64) {
        let open = self.all().filter(|session| session.has_new);
        open.fold((0, 0_u64), |(sessions, events), session| {
            (sessions + 1, events.saturating_add(session.cell.events()))
        })
    }

    pub fn split_off(&mut self, moves: &mut impl FnMut(&K) -> bool) -> Self {
        let mut alarms = BTreeMap::new();
        self.alarms.retain(|time, keys| {
            let part = keys.split_off(moves);
            if !part.is_empty() {
                alarms.insert(*time, part);
            }
            !keys.is_empty()
        });
        Self {
            gap_ms: self.gap_ms,
            lateness: self.lateness,
            by_key: self.by_key.split_off(moves),
            alarms,
        }
    }

    pub fn absorb(&mut self, other: Self) {
        self.by_key.absorb(other.by_key);
        for (time, keys) in other.alarms {
            self.alarms.entry(time).or_default().extend(keys);
        }
    }
}

/// Returns when to look at a session: at its end if items have come since the last result, else when it is forgotten.
fn next_look<S>(session: &Session<S>, gap_ms: i64, lateness: Lateness) -> i64 {
    let end = session.end(gap_ms);
    match session.has_new {
        true => end,
        false => lateness.after(end.saturating_add(gap_ms)),
    }
}

pub(super) fn window<S: Clone>(session: &Session<S>, gap_ms: i64) -> Window<S> {
    Window {
        start: session.first,
        end: session.end(gap_ms),
        cell: session.cell.clone(),
        is_update: session.is_given,
        mark: 0,
    }
}
