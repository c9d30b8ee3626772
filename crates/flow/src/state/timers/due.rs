//! The order in which the timers of a partition fire.

use std::collections::BTreeSet;

use millstream_base::Timestamp;
use millstream_base::key::{decode_key, encode_key};

use super::{TimeDomain, TimerTable};
use crate::windows::Key;

/// The timers of one partition that are set, by domain in the order of their times and then of the canonical bytes of their
/// keys and tags. It has the same timers as the table: each change goes to both. A checkpoint has the table alone.
#[derive(Default)]
pub struct Due {
    event: BTreeSet<Entry>,
    clock: BTreeSet<Entry>,
    /// Timers of event time that do not fire in this run, none of which is in `event`.
    left: BTreeSet<Entry>,
    leaves_up_to: Option<Timestamp>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    time: Timestamp,
    /// The canonical bytes of the key and the tag: less memory than both of them have.
    bytes: Box<[u8]>,
}

impl Entry {
    fn new<K: Key, T: Key>(time: Timestamp, key: &K, tag: &T) -> Entry {
        let mut bytes = Vec::new();
        let encoded = encode_key(&(key, tag), &mut bytes);
        // The key has an owner, so it has canonical bytes.
        encoded.expect("the tag of a timer has canonical bytes");
        Entry {
            time,
            bytes: bytes.into(),
        }
    }

    fn decode<K: Key, T: Key>(&self) -> (K, T) {
        decode_key(&self.bytes).expect("the bytes of a key are read as they are written")
    }
}

impl Due {
    /// Returns the timers of a table. It looks at each.
    pub fn of<K: Key, T: Key>(table: &TimerTable<K, T>) -> Due {
        let mut due = Due::default();
        for ((domain, time, key, tag), _) in table.iter() {
            due.insert(*domain, Timestamp(*time), key, tag);
        }
        due
    }

    pub fn insert<K: Key, T: Key>(
        &mut self,
        domain: TimeDomain,
        time: Timestamp,
        key: &K,
        tag: &T,
    ) {
        let entry = Entry::new(time, key, tag);
        match domain {
            TimeDomain::Clock => {
                self.clock.insert(entry);
            }
            TimeDomain::Event if self.event.contains(&entry) => {}
            TimeDomain::Event if self.leaves_up_to >= Some(time) => {
                self.left.insert(entry);
            }
            TimeDomain::Event => {
                self.left.remove(&entry);
                self.event.insert(entry);
            }
        }
    }

    pub fn remove<K: Key, T: Key>(
        &mut self,
        domain: TimeDomain,
        time: Timestamp,
        key: &K,
        tag: &T,
    ) {
        let entry = Entry::new(time, key, tag);
        match domain {
            TimeDomain::Clock => {
                self.clock.remove(&entry);
            }
            TimeDomain::Event => {
                self.event.remove(&entry);
                self.left.remove(&entry);
            }
        }
    }

    /// Has timers wait for the next run that are set from here on for this event time or before; `None` ends this.
    pub fn leave_new(&mut self, up_to: Option<Timestamp>) {
        self.leaves_up_to = up_to;
    }

    /// Returns whether timers that are due at an event time wait for the next run.
    pub fn has_left(&self, now: Timestamp) -> bool {
        self.left.first().is_some_and(|left| left.time <= now)
    }

    /// Returns the time of the next timer of a domain that fires in this run.
    pub fn next_time(&self, domain: TimeDomain) -> Option<Timestamp> {
        Some(self.firing(domain).first()?.time)
    }

    /// Returns the timers of a domain that are due at `now` and fire in this run, with their times, keys and tags.
    pub fn due<K: Key, T: Key>(
        &self,
        domain: TimeDomain,
        now: Timestamp,
    ) -> impl Iterator<Item = (Timestamp, K, T)> {
        let entries = self.firing(domain).iter();
        entries
            .take_while(move |entry| entry.time <= now)
            .map(|entry| {
                let (key, tag) = entry.decode();
                (entry.time, key, tag)
            })
    }

    fn firing(&self, domain: TimeDomain) -> &BTreeSet<Entry> {
        match domain {
            TimeDomain::Event => &self.event,
            TimeDomain::Clock => &self.clock,
        }
    }
}
