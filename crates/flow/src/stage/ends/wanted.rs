//! Keys that an operator needs and whose content is not in memory.

use std::mem;

use crate::stage::attempt::Attempt;
use crate::stage::user_code::Label;
use crate::state::element::Element;
use crate::state::lockable::{Lockable, Locked};
use crate::windows::Key;

/// The most keys that are wanted at once: the first missing one, and some of those behind it.
pub const WANTED_MAX: usize = 1024;

/// Whether the content of the key at which an operator has stopped is in memory.
pub fn is_at_hand<K: Key, E: Element<K>>(missing: Option<&K>, tables: &E::Partition) -> bool {
    let Some(key) = missing else {
        return true;
    };
    let mut tables = tables.lock_all();
    let is_known = E::is_known(&tables, key);
    if !is_known {
        // It may have been loaded, and evicted again.
        E::want(&mut tables, vec![key.clone()]);
    }
    is_known
}

/// The keys that a slice wants, since it has stopped.
pub struct Wanted<'a, K> {
    /// The first one that is not in memory.
    missing: &'a mut Option<K>,
    /// Those that the loader has to read.
    keys: Vec<K>,
}

impl<'a, K: Key> Wanted<'a, K> {
    /// Begins a slice.
    pub fn begin(missing: &'a mut Option<K>) -> Self {
        *missing = None;
        Wanted {
            missing,
            keys: Vec::new(),
        }
    }

    /// Notes that a key has to be read, if its content is not in memory.
    #[cold]
    pub fn add<E: Element<K>>(
        &mut self,
        attempt: &impl Attempt,
        label: &Label,
        tables: &Locked<'_, E::Partition>,
        key: &K,
    ) {
        // A panic of the key's code must not look like one of an item.
        attempt.change(label, || {
            if self.keys.len() < WANTED_MAX && !E::is_known(tables, key) {
                self.missing.get_or_insert_with(|| key.clone());
                self.keys.push(key.clone());
            }
        });
    }

    /// Lets the loader read the keys.
    pub fn load<E: Element<K>>(&mut self, tables: &mut Locked<'_, E::Partition>) {
        if !self.keys.is_empty() {
            E::want(tables, mem::take(&mut self.keys));
        }
    }
}
