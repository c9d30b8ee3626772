//! The values of an element that has resumed, read from its changelog while the flow runs: those that are asked for, and
//! the others meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::{iter, slice};

use millstream_base::key::{decode_key, encode_key};
use parking_lot::MutexGuard;

use crate::error::BoxError;
use crate::state::changelog_reader::ChangelogReader;
use crate::state::loading::{LoadThreads, Loading};
use crate::state::value_table::ValueTable;
use crate::state::values::{KEYS_AT_ONCE, Shared, SharedTable, Value, Values};
use crate::windows::Key;

impl<K: Key, V: Value> Values<K, V> {
    /// Begins to read the values, which are in the changelog. `waker` wakes the stages.
    pub(super) fn begin_loading(
        &self,
        reader: Arc<dyn ChangelogReader>,
        waker: Waker,
    ) -> Result<LoadThreads, BoxError> {
        let loading = Arc::new(Loading::new(reader, waker));
        self.shared.loading.get_or_init(|| Arc::clone(&loading));
        for table in &self.shared.tables {
            table.lock().begin_cold(&loading);
        }
        let mut threads = LoadThreads::new(loading);
        let shared = Arc::clone(&self.shared);
        threads.spawn("millstream-load", move |loading| {
            shared.load_wanted(loading)
        })?;
        let shared = Arc::clone(&self.shared);
        threads.spawn("millstream-scan", move |loading| {
            shared.load_all(loading, loading.is_stopped())
        })?;
        Ok(threads)
    }
}

impl<K: Key, V: Value> Shared<K, V> {
    /// Locks a table that knows the key. If it has to read the value first, it waits.
    ///
    /// # Errors
    /// When the value cannot be read, which ends the flow.
    pub(super) fn lock_with<'a>(
        &self,
        table: &'a SharedTable<K, V>,
        key: &K,
    ) -> Result<MutexGuard<'a, ValueTable<K, V>>, BoxError> {
        let locked = table.lock();
        if locked.is_known(key) {
            return Ok(locked);
        }
        drop(locked);
        let loading = self.loading.get().expect("the table is cold");
        let value = read(loading, slice::from_ref(key), &AtomicBool::new(false));
        let value = value.inspect_err(|error| loading.fail(error))?;
        let mut locked = table.lock();
        if let Some(value) = value.into_iter().flatten().next() {
            locked.load(key.clone(), value);
        }
        Ok(locked)
    }

    /// Waits until all values are in memory. If the flow was dropped before, this reads them.
    ///
    /// # Errors
    /// When they cannot be read.
    pub(super) fn wait_whole(&self) -> Result<(), BoxError> {
        match self.loading.get() {
            Some(loading) if !loading.wait_whole() => {
                let loaded = self.load_all(loading, &AtomicBool::new(false));
                loaded.inspect_err(|error| loading.fail(error))
            }
            _ => Ok(()),
        }
    }

    /// Whether all values are in memory.
    pub(super) fn is_whole(&self) -> Result<bool, BoxError> {
        let reader = self.loading.get().map(|loading| loading.reader());
        Ok(reader.transpose()?.flatten().is_none())
    }

    /// Loads the keys that stages wait for.
    fn load_wanted(&self, loading: &Loading) -> Result<(), BoxError> {
        while loading.wait_wanted() {
            for table in &self.tables {
                let wanted = table.lock().take_wanted();
                if wanted.is_empty() {
                    continue;
                }
                let is_stopped = loading.is_stopped();
                let values = read(loading, &wanted, is_stopped);
                // The read may have ended early.
                if is_stopped.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let Some(values) = values? else {
                    return Ok(());
                };
                let mut locked = table.lock();
                for (key, value) in iter::zip(wanted, values) {
                    locked.load(key, value);
                }
                drop(locked);
                loading.wake();
            }
        }
        Ok(())
    }

    /// Stages all values.
    fn load_all(&self, loading: &Loading, is_stopped: &AtomicBool) -> Result<(), BoxError> {
        let _scan = loading.begin_scan();
        let Some(reader) = loading.reader()? else {
            return Ok(());
        };
        let mut batches: Vec<Vec<(K, Option<V>)>> = Vec::new();
        batches.resize_with(self.tables.len(), Vec::new);
        reader.read_all(is_stopped, &mut |key, value| {
            let owner = self.owner_of_bytes(key)?;
            if owner.rank == self.rank {
                let batch = &mut batches[owner.partition];
                batch.push((decode_key(key)?, decode(value)?));
                if batch.len() == KEYS_AT_ONCE {
                    stage(&self.tables[owner.partition], batch);
                }
            }
            Ok(())
        })?;
        if is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        for (table, batch) in iter::zip(&self.tables, &mut batches) {
            stage(table, batch);
        }
        for table in &self.tables {
            let forgotten = { table.lock().become_whole() };
            drop(forgotten);
        }
        loading.finish();
        Ok(())
    }
}

fn stage<K: Key, V: Value>(table: &SharedTable<K, V>, batch: &mut Vec<(K, Option<V>)>) {
    let mut table = table.lock();
    for (key, value) in batch.drain(..) {
        table.stage(key, value);
    }
}

/// Reads the values of keys that were not known; `None` once all values are in memory.
fn read<K: Key, V: Value>(
    loading: &Loading,
    keys: &[K],
    is_stopped: &AtomicBool,
) -> Result<Option<Vec<Option<V>>>, BoxError> {
    let Some(reader) = loading.reader()? else {
        return Ok(None);
    };
    let encoded = keys.iter().map(|key| {
        let mut bytes = Vec::new();
        encode_key(key, &mut bytes).map(|()| bytes)
    });
    let encoded: Vec<Vec<u8>> = encoded.collect::<Result<_, _>>()?;
    let values = reader.get(&encoded, is_stopped)?;
    if values.len() != keys.len() {
        return Err(format!(
            "the changelog was asked for {} keys and returned {} values",
            keys.len(),
            values.len()
        )
        .into());
    }
    let values = values.iter().map(|value| decode(value.as_deref()));
    values.collect::<Result<_, _>>().map(Some)
}

fn decode<V: Value>(value: Option<&[u8]>) -> Result<Option<V>, BoxError> {
    Ok(value.map(serde_json::from_slice).transpose()?)
}
