//! Entries that end: one that was not changed for the lifetime of its table is absent.

use std::cell::Cell;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use millstream_base::Clock;

use super::ValueTable;
use crate::state::key_ref::KeyRef;

/// How long the entries of an element live, and the clock that says so.
#[derive(Clone)]
pub struct LifetimeSpec {
    pub clock: Arc<dyn Clock>,
    /// In milliseconds; at least 1.
    length: i64,
}

impl LifetimeSpec {
    /// A lifetime that is not zero. One of a part of a millisecond is a millisecond, and one that no clock reaches is for ever.
    pub fn new(clock: &Arc<dyn Clock>, length: Duration) -> LifetimeSpec {
        LifetimeSpec {
            clock: Arc::clone(clock),
            length: i64::try_from(length.as_millis()).unwrap_or(i64::MAX).max(1),
        }
    }

    /// Returns the lifetime, in milliseconds.
    pub fn length(&self) -> i64 {
        self.length
    }

    /// Returns when an entry ends that was changed at a time, both in milliseconds since 1970; `None` for never.
    pub fn end_of(&self, changed_at: i64) -> Option<i64> {
        changed_at.checked_add(self.length)
    }
}

/// A value as changelogs and shards have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dated<V> {
    pub value: V,
    /// The time of the last change, in milliseconds since 1970, in an element with a lifetime.
    pub changed_at: Option<i64>,
}

impl<V> From<V> for Dated<V> {
    fn from(value: V) -> Self {
        Dated {
            value,
            changed_at: None,
        }
    }
}

/// The times of a table's values.
pub(super) struct Lifetime<K> {
    spec: LifetimeSpec,
    /// The present time in milliseconds since 1970. It moves from call to call of a function, and from reader to reader, so
    /// that nothing ends in the middle of a call; and never back, also if the clock does.
    now: Cell<i64>,
    /// Entries that were changed last by then had ended in a former run, whatever its lifetime was.
    ended: i64,
    /// When each value was changed last: of all slots that have a value.
    changed_at: IndexMap<K, i64, RandomState>,
    /// The place behind the entry that is looked at next.
    hand: usize,
}

impl<K: Hash + Eq + Clone> Lifetime<K> {
    fn new(spec: LifetimeSpec) -> Self {
        Lifetime {
            now: Cell::new(spec.clock.now().0),
            spec,
            ended: i64::MIN,
            changed_at: IndexMap::default(),
            hand: 0,
        }
    }

    fn is_past(&self, changed_at: i64) -> bool {
        let end = self.spec.end_of(changed_at);
        changed_at <= self.ended || end.is_some_and(|end| end <= self.now.get())
    }

    pub fn time_of(&self, key: &impl KeyRef<K>) -> Option<i64> {
        self.changed_at.get(key).copied()
    }

    /// A key has been changed now, and has a value or not.
    pub fn note(&mut self, key: &impl KeyRef<K>, has_value: bool) {
        match self.changed_at.get_mut(key) {
            Some(changed_at) if has_value => *changed_at = self.now.get(),
            Some(_) => self.forget(key),
            None if has_value => drop(self.changed_at.insert(key.to_key(), self.now.get())),
            None => {}
        }
    }

    /// Time has been at `time`, in an earlier run or in this one.
    pub fn advance(&self, time: i64) {
        self.now.set(self.now.get().max(time));
    }

    pub fn restore(&mut self, key: K, changed_at: i64) {
        self.advance(changed_at);
        self.changed_at.insert(key, changed_at);
    }

    /// Returns the memory of an entry, by estimate, without what its key owns.
    pub fn entry_bytes(&self) -> u64 {
        size_of::<(u64, K, i64)>() as u64 * 3 / 2 + size_of::<usize>() as u64 * 2
    }

    pub fn forget(&mut self, key: &impl KeyRef<K>) {
        self.changed_at.swap_remove(key);
    }

    /// Lets the hand pass some entries, and returns the keys of those that have ended.
    fn pass(&mut self, entries: usize) -> Vec<K> {
        let mut ended = Vec::new();
        for _ in 0..entries.min(self.changed_at.len()) {
            // Downwards: the last entry takes the place of one that is removed.
            self.hand = match self.hand.min(self.changed_at.len()) {
                0 => self.changed_at.len() - 1,
                hand => hand - 1,
            };
            let entry = self.changed_at.get_index(self.hand);
            ended.extend(
                entry
                    .filter(|it| self.is_past(*it.1))
                    .map(|it| it.0.clone()),
            );
        }
        ended
    }
}

/// Entries that each call of a function looks at, so that those which nothing touches leave memory also where there are no
/// checkpoints.
const LOOKED_AT_BY_CALL: usize = 2;

impl<K: Hash + Eq + Clone + serde::Serialize, V: Clone> ValueTable<K, V> {
    /// A function is about to be called: time moves.
    #[inline]
    pub fn begin_call(&mut self) {
        if self.lifetime.is_some() {
            self.move_time();
            self.remove_ended(LOOKED_AT_BY_CALL);
        }
    }

    /// Looks at some entries, and removes those that have ended, as a function does.
    pub fn remove_ended(&mut self, entries: usize) {
        let lifetime = self.lifetime.as_mut();
        for key in lifetime.map_or_else(Vec::new, |it| it.pass(entries)) {
            self.remove_if_ended(&key);
        }
    }

    /// Removes the value of a key as a function does, if it has ended.
    pub(super) fn remove_if_ended(&mut self, key: &impl KeyRef<K>) {
        if self.has_ended(key) && self.is_known(key) {
            self.change_value(key, |value| *value = None);
        }
    }
}

impl<K: Hash + Eq + Clone, V> ValueTable<K, V> {
    /// Lets entries end from now on. The table is empty.
    pub fn set_lifetime(&mut self, spec: &LifetimeSpec) {
        self.lifetime = Some(Box::new(Lifetime::new(spec.clone())));
    }

    /// Time is now what the clock says, to the readers that come.
    pub fn move_time(&self) {
        if let Some(lifetime) = &self.lifetime {
            lifetime.advance(lifetime.spec.clock.now().0);
        }
    }

    /// Time has been at `time` in an earlier run.
    pub fn advance_time(&self, time: i64) {
        if let Some(lifetime) = &self.lifetime {
            lifetime.advance(time);
        }
    }

    /// Entries that were changed last by `ended` had ended in a former run.
    pub fn end_former(&mut self, ended: i64) {
        if let Some(lifetime) = &mut self.lifetime {
            lifetime.ended = ended;
        }
    }

    /// Returns the number of values that may end.
    pub fn may_end(&self) -> usize {
        self.lifetime.as_ref().map_or(0, |it| it.changed_at.len())
    }

    /// Returns the present time; `None` without a lifetime.
    pub fn time(&self) -> Option<i64> {
        self.lifetime.as_ref().map(|it| it.now.get())
    }

    /// Whether a value has ended that was changed last at this time.
    pub fn is_past(&self, changed_at: Option<i64>) -> bool {
        let lifetime = self.lifetime.as_ref().zip(changed_at);
        lifetime.is_some_and(|(lifetime, changed_at)| lifetime.is_past(changed_at))
    }

    /// Whether the value of a key has ended.
    #[inline]
    pub(super) fn has_ended(&self, key: &impl KeyRef<K>) -> bool {
        match &self.lifetime {
            Some(lifetime) => self.is_past(lifetime.time_of(key)),
            None => false,
        }
    }
}
