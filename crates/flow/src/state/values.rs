//! A value for each key as a state element.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use millstream_base::key::{decode_key, encode_key};
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::checkpoint::changelog::Change;
use crate::error::BoxError;
use crate::ranks::owners::{KeyOwners, Owner};
use crate::state::logged::{LoggedState, WriteChanges};
use crate::state::ordered::OrderedState;
use crate::state::partial::StateReader;
use crate::state::value_table::ValueTable;
use crate::windows::{Key, of_text, text_of};

/// A value of a state element. Readers and changelogs get it as JSON, so a value must be the same after the way through
/// JSON: a map has keys that JSON takes, and floating-point numbers are finite. A checkpoint with another number fails;
/// within an `Option`, the number becomes `None`. A shard of a checkpoint has the value in postcard's format.
pub trait Value: Serialize + DeserializeOwned + Clone + Send + 'static {}

impl<V: Serialize + DeserializeOwned + Clone + Send + 'static> Value for V {}

/// A state element with a value for each key; a clone is another handle of the same element. On several ranks each has
/// the keys that it owns. Operators change it: [`Keyed::update`](crate::Keyed::update),
/// [`fold`](crate::Keyed::fold) and [`count`](crate::Keyed::count).
pub struct Values<K, V> {
    pub(super) shared: Arc<Shared<K, V>>,
}

pub(super) struct Shared<K, V> {
    /// By partition.
    pub(super) tables: Vec<SharedTable<K, V>>,
    rank: u32,
    pub(super) owners: KeyOwners,
    /// The last checkpoint that is complete on all ranks. The tables forget what was before it when they are cut or read.
    complete: AtomicU64,
    /// Changes that a changelog is to get, of different keys.
    aside: Mutex<Vec<(K, Option<V>)>>,
}

/// Locked by a stage for the time of a slice, and by readers of the state.
pub type SharedTable<K, V> = Arc<Mutex<ValueTable<K, V>>>;

impl<K, V> Clone for Values<K, V> {
    fn clone(&self) -> Self {
        Values {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Key, V: Value> Values<K, V> {
    /// An element of `partitions` partitions on each of `ranks` ranks, as `rank` has it.
    pub(crate) fn new(rank: u32, ranks: u32, partitions: usize) -> Self {
        let shared = Shared {
            tables: (0..partitions).map(|_| SharedTable::default()).collect(),
            rank,
            owners: KeyOwners::new(ranks, partitions),
            complete: AtomicU64::new(0),
            aside: Mutex::default(),
        };
        Values {
            shared: Arc::new(shared),
        }
    }

    /// Returns the present value of a key; `None` if it has none, or another rank owns it.
    pub fn get(&self, key: &K) -> Option<V> {
        let owner = self.shared.owners.clone().of(key).ok()?;
        let table = self.shared.table_of(owner)?.lock();
        table.get(key).cloned()
    }

    /// The tables by partition.
    pub(crate) fn tables(&self) -> &[SharedTable<K, V>] {
        &self.shared.tables
    }
}

impl<K: Key, V> Shared<K, V> {
    /// Locks a table, which then is as of the last complete checkpoint.
    pub(super) fn lock<'a>(
        &self,
        table: &'a SharedTable<K, V>,
    ) -> MutexGuard<'a, ValueTable<K, V>> {
        let mut table = table.lock();
        table.complete(self.complete.load(Ordering::Relaxed));
        table
    }

    /// Makes all tables be as of one complete checkpoint.
    pub(super) fn settle(&self, tables: &mut [MutexGuard<'_, ValueTable<K, V>>]) {
        let complete = self.complete.load(Ordering::Relaxed);
        tables.iter_mut().for_each(|table| table.complete(complete));
    }
}

impl<K, V> Shared<K, V> {
    /// Returns the table of an owner's keys, if that is on this rank.
    pub(super) fn table_of(&self, owner: Owner) -> Option<&SharedTable<K, V>> {
        match owner.rank == self.rank {
            true => self.tables.get(owner.partition),
            false => None,
        }
    }
}

impl<K: Key, V: Value> StateReader for Values<K, V> {
    fn get(&self, key: &str) -> Option<Json> {
        let value = of_text(key).find_map(|key: K| self.get(&key))?;
        serde_json::to_value(value).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for table in &self.shared.tables {
            let table = table.lock();
            let texts = table.iter().filter_map(|(key, _)| text_of(key));
            keys.extend(texts.take(limit - keys.len()));
        }
        keys
    }

    fn ordered(&self) -> Option<&dyn OrderedState> {
        Some(self)
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let tables: Vec<_> = self.shared.tables.iter().map(|it| it.lock()).collect();
        let entries: Vec<(&K, &V)> = tables.iter().flat_map(|it| it.iter()).collect();
        Ok(postcard::to_stdvec(&entries)?)
    }

    /// There may be more or fewer partitions than there were.
    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        let entries: Vec<(K, V)> = postcard::from_bytes(saved)?;
        let mut owners = self.shared.owners.clone();
        for (key, value) in entries {
            let owner = owners.of(&key)?;
            let table = self.shared.table_of(owner);
            let mut table = table.ok_or("it has keys of another rank")?.lock();
            match table.notes_changes() {
                true => {
                    table.restore(key.clone(), Some(value));
                    table.note_changed(key);
                }
                false => table.restore(key, Some(value)),
            }
        }
        Ok(())
    }
}

impl<K: Key, V: Value> LoggedState for Values<K, V> {
    fn note_changes(&self) {
        for table in &self.shared.tables {
            table.lock().note_changes();
        }
    }

    fn restore_change(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BoxError> {
        if let Some(table) = self.shared.table_of(self.shared.owners.of_bytes(key)) {
            let key = decode_key(key)?;
            let value = value.map(serde_json::from_slice).transpose()?;
            table.lock().restore(key, value);
        }
        Ok(())
    }

    fn note_changed(&self, key: &[u8]) -> Result<(), BoxError> {
        if let Some(table) = self.shared.table_of(self.shared.owners.of_bytes(key)) {
            table.lock().note_changed(decode_key(key)?);
        }
        Ok(())
    }

    fn cut(&self, checkpoint: u64) {
        for table in &self.shared.tables {
            self.shared.lock(table).cut(checkpoint);
        }
    }

    fn set_aside(&self, checkpoint: u64) {
        let tables = self.shared.tables.iter();
        let changes = tables.flat_map(|table| self.shared.lock(table).take_changes(checkpoint));
        let changes = changes.collect();
        self.shared.put_aside(|former| (former, changes));
    }

    fn complete(&self, checkpoint: u64) {
        self.shared
            .complete
            .fetch_max(checkpoint, Ordering::Relaxed);
    }

    fn write(&self, write: &mut WriteChanges<'_>) -> Result<(), BoxError> {
        let written = InWriting {
            shared: &self.shared,
            changes: std::mem::take(&mut *self.shared.aside.lock()),
        };
        write(&mut written.changes.iter().map(encode))
    }

    fn forget_aside(&self) {
        self.shared.aside.lock().clear();
    }
}

/// Changes that are being written. Dropped, they are put aside again.
struct InWriting<'a, K: Key, V> {
    shared: &'a Shared<K, V>,
    changes: Vec<(K, Option<V>)>,
}

impl<K: Key, V> Drop for InWriting<'_, K, V> {
    fn drop(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        self.shared.put_aside(|newer| (changes, newer));
    }
}

impl<K: Key, V> Shared<K, V> {
    /// Puts changes aside: `order` gets those that are there, and returns older and newer ones.
    fn put_aside(
        &self,
        order: impl FnOnce(Vec<(K, Option<V>)>) -> (Vec<(K, Option<V>)>, Vec<(K, Option<V>)>),
    ) {
        let mut aside = self.aside.lock();
        let (older, newer) = order(std::mem::take(&mut aside));
        *aside = match (older.is_empty(), newer.is_empty()) {
            (true, _) => newer,
            (false, true) => older,
            // A checkpoint has failed.
            (false, false) => {
                let all = older.into_iter().chain(newer);
                let newest: HashMap<K, Option<V>> = all.collect();
                newest.into_iter().collect()
            }
        };
    }
}

/// The JSON text of a floating-point number that is not finite; it cannot be told from that of an absent value.
const NULL: &[u8] = b"null";

fn encode<K: Key, V: Value>((key, value): &(K, Option<V>)) -> Result<Change, BoxError> {
    let named = |error: BoxError| -> BoxError {
        let text = text_of(key).unwrap_or_else(|| "without a text".to_owned());
        format!("key \"{text}\": {error}").into()
    };
    let mut bytes = Vec::new();
    encode_key(key, &mut bytes).map_err(|error| named(error.into()))?;
    let value = value.as_ref().map(|value| {
        let json = serde_json::to_vec(value)?;
        if memchr::memmem::find(&json, NULL).is_some() {
            serde_json::from_slice::<V>(&json)
                .map_err(|error| format!("its value changes on the way through JSON: {error}"))?;
        }
        Ok::<_, BoxError>(json)
    });
    Ok(Change {
        key: bytes,
        value: value.transpose().map_err(named)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<V: Value>(value: V, expected: Result<&str, &str>) {
        let encoded = encode(&("tea".to_owned(), Some(value)));
        let encoded = encoded.map(|change| String::from_utf8(change.value.unwrap()).unwrap());
        match (encoded, expected) {
            (Ok(json), Ok(expected)) => assert_eq!(json, expected),
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.starts_with(expected), "{error}");
            }
            (encoded, _) => panic!("{encoded:?}, not {expected:?}"),
        }
    }

    #[test]
    fn values_are_json_and_those_that_would_change_are_refused() {
        check(7_u64, Ok("7"));
        check((1, None::<u64>), Ok("[1,null]"));
        check("null".to_owned(), Ok("\"null\""));
        check(0.1 + 0.2, Ok("0.30000000000000004"));
        check(
            f64::NAN,
            Err("key \"tea\": its value changes on the way through JSON: "),
        );
        check(
            std::collections::BTreeMap::from([((1, 2), 3)]),
            Err("key \"tea\": "),
        );
    }

    #[test]
    fn a_number_is_the_same_after_the_way_through_json() {
        let values = Values::<u64, f64>::new(0, 1, 1);
        for (key, bits) in (0..1000_u64).map(|n| (n, n.wrapping_mul(0x9E37_79B9_7F4A_7C15))) {
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let change = encode(&(key, Some(value))).unwrap();
                values
                    .restore_change(&change.key, change.value.as_deref())
                    .unwrap();
                assert_eq!(values.get(&key).map(f64::to_bits), Some(bits));
            }
        }
    }
}
