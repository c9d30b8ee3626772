//! The values of an element that are in its changelog and not in memory. After a restore they are read while the flow
//! runs: those that are asked for, and the others meanwhile. Where memory is short, clean ones leave it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};
use std::{iter, slice};

use millstream_base::key::{decode_key, encode_key};
use parking_lot::MutexGuard;

use crate::error::BoxError;
use crate::state::changelog_reader::ChangelogReader;
use crate::state::loading::{LoadThreads, Loading};
use crate::state::value_table::{Dated, ValueTable};
use crate::state::values::{KEYS_AT_ONCE, Shared, SharedTable, Value, Values, lock_to_read};
use crate::windows::Key;

/// Slots of a table that the hand passes while the table is locked.
const SLOTS_AT_ONCE: usize = 1024;

/// The pause before the next try to let values leave memory, while too few can.
const RELIEF_PAUSE: Duration = Duration::from_millis(50);

/// Checkpoints that are noted until look-ups find their changes; beyond it, the last one takes the place of others.
const WRITTEN_MAX: usize = 16;

/// The checkpoints that look-ups find.
#[derive(Default)]
pub(super) struct Visible {
    /// Checkpoints that the changelog has, the oldest first, with its ends then: look-ups find the changes of a complete
    /// checkpoint once the changelog is stable up to these ends.
    written: VecDeque<(u64, Vec<u64>)>,
    /// The last checkpoint whose changes all look-ups find; 0 for those of earlier runs.
    checkpoint: u64,
    /// The last checkpoint and time at which too few values could leave.
    exhausted: Option<(u64, Instant)>,
}

impl<K: Key, V: Value> Values<K, V> {
    /// Reads values from the changelog as they are asked for, and with a `scan` the others meanwhile. `waker` wakes the
    /// stages.
    pub(super) fn begin_loading(
        &self,
        reader: Arc<dyn ChangelogReader>,
        scan: bool,
        waker: Waker,
    ) -> Result<LoadThreads, BoxError> {
        let waker = self.shared.watchers.beside(waker);
        let loading = Arc::new(Loading::new(reader, waker));
        self.shared.loading.get_or_init(|| Arc::clone(&loading));
        let mut threads = LoadThreads::new(Arc::clone(&loading));
        let shared = Arc::clone(&self.shared);
        threads.spawn("millstream-load", move |loading| {
            shared.load_wanted(loading)
        })?;
        if scan {
            for table in &self.shared.tables {
                table.lock().begin_cold(&loading);
            }
            let shared = Arc::clone(&self.shared);
            threads.spawn("millstream-scan", move |loading| shared.load_all(loading))?;
        }
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
        loop {
            let mut locked = lock_to_read(table);
            if locked.is_known(key) {
                return Ok(locked);
            }
            let Some(lookup) = locked.begin_lookup() else {
                return Ok(locked);
            };
            drop(locked);
            let loading = self.loading.get().expect("the table is cold");
            let value = self.read(loading, slice::from_ref(key), &AtomicBool::new(false));
            let value = value.inspect_err(|error| loading.fail(error))?;
            // Before the table is locked: evictions wait for it.
            self.relieve();
            let mut locked = table.lock();
            locked.load(lookup, iter::zip([key.clone()], value));
            // A stage may wait for the key, too.
            loading.wake();
            if locked.is_known(key) {
                return Ok(locked);
            }
        }
    }

    /// Returns the value of a key in a locked table. If it has to read the value first, it unlocks the table meanwhile, since others
    /// need it, too, such as the end of a flow.
    ///
    /// # Errors
    /// When the value cannot be read.
    pub(super) fn get_in<'a>(
        &self,
        table: &'a mut MutexGuard<'_, ValueTable<K, V>>,
        key: &K,
    ) -> Result<Option<&'a V>, BoxError> {
        table.move_time();
        if !table.is_known(key)
            && let Some(lookup) = table.begin_lookup()
        {
            let loading = self.loading.get().expect("the table is cold");
            let read = MutexGuard::unlocked(table, || {
                self.read(loading, slice::from_ref(key), &AtomicBool::new(false))
            });
            match read {
                Ok(value) => table.load(lookup, iter::zip([key.clone()], value)),
                Err(error) => {
                    table.end_lookup(lookup);
                    return Err(error);
                }
            }
        }
        Ok(table.get(key))
    }

    /// Whether all values are in memory.
    ///
    /// # Errors
    /// When a value could not be read.
    pub(super) fn is_whole(&self) -> Result<bool, BoxError> {
        match self.failure() {
            Some(error) => Err(error),
            None => Ok(!self.is_cold()),
        }
    }

    pub(super) fn failure(&self) -> Option<BoxError> {
        self.loading.get()?.failure()
    }

    /// Whether a value could not be read.
    pub(super) fn has_failed(&self) -> bool {
        self.loading
            .get()
            .is_some_and(|loading| loading.has_failed())
    }

    /// Whether values may be in the changelog alone.
    pub(super) fn is_cold(&self) -> bool {
        self.loading.get().is_some() && self.tables.iter().any(|table| table.lock().is_cold())
    }

    /// Loads the keys that stages wait for, and lets values leave memory.
    fn load_wanted(&self, loading: &Loading) -> Result<(), BoxError> {
        let mut pause = None;
        while loading.wait(pause) {
            self.relieve();
            for table in &self.tables {
                let taken = { table.lock().take_wanted() };
                let Some((wanted, lookup)) = taken else {
                    continue;
                };
                let values = self.read(loading, &wanted, loading.is_stopped());
                // The read may have ended early.
                if loading.has_stopped() {
                    return Ok(());
                }
                let values = values?;
                // Nothing leaves before the stages are woken, so that they find the values.
                table.lock().load(lookup, iter::zip(wanted, values));
                loading.wake();
            }
            // Look-ups find the changes of a complete checkpoint soon, and the flow may be silent from now on.
            pause = self.memory.is_exceeded().then_some(RELIEF_PAUSE);
        }
        Ok(())
    }

    /// Stages all values, unless memory has no room for them.
    fn load_all(&self, loading: &Loading) -> Result<(), BoxError> {
        let mut batches: Vec<Batch<K, V>> = Vec::new();
        batches.resize_with(self.tables.len(), Vec::new);
        let has_to_end = loading.scan_has_to_end();
        let mut staged = 0;
        loading.reader().read_all(has_to_end, &mut |key, value| {
            let owner = self.owner_of_bytes(key)?;
            if owner.rank == self.rank {
                let batch = &mut batches[owner.partition];
                let value = value.map(|value| self.decode(value)).transpose()?;
                batch.push((decode_key(key)?, value));
                if batch.len() == KEYS_AT_ONCE {
                    stage(&self.tables[owner.partition], batch);
                    staged += 1;
                    if staged % self.tables.len() == 0 {
                        self.relieve();
                    }
                }
            }
            Ok(())
        })?;
        if loading.has_stopped() {
            return Ok(());
        }
        if has_to_end.load(Ordering::Relaxed) {
            for table in &self.tables {
                table.lock().give_up_staging();
            }
            self.relieve();
            return Ok(());
        }
        for (table, batch) in iter::zip(&self.tables, &mut batches) {
            stage(table, batch);
        }
        for table in &self.tables {
            let forgotten = { table.lock().become_whole() };
            drop(forgotten);
        }
        loading.wake();
        Ok(())
    }

    /// The changelog has the changes before a checkpoint.
    pub(super) fn note_written(&self, checkpoint: u64) {
        let Some(loading) = self.loading.get().filter(|_| self.memory.is_scarce()) else {
            return;
        };
        match loading.reader().ends(loading.is_stopped()) {
            Ok(ends) => {
                let written = &mut self.visible.lock().written;
                written.truncate(WRITTEN_MAX);
                written.push_back((checkpoint, ends));
            }
            Err(_) if loading.has_stopped() => {}
            Err(error) => loading.fail(&error),
        }
    }

    /// Evicts values if the state takes too much memory, as far as look-ups find them. A scan under way has to end first.
    pub(super) fn relieve(&self) {
        let Some(loading) = self.loading.get() else {
            return;
        };
        // Another thread evicts already.
        let Some(mut visible) = self.visible.try_lock() else {
            return;
        };
        let sizes: Vec<(u64, u64)> = self
            .tables
            .iter()
            .map(|table| size(&table.lock()))
            .collect();
        let used: u64 = sizes.iter().map(|(entries, bytes)| entries * bytes).sum();
        let excess = self.memory.note(used);
        if excess == 0 {
            return;
        }
        loading.give_up_scan();
        if self.tables.iter().any(|table| table.lock().is_staging()) {
            return;
        }
        let complete = self.complete.load(Ordering::Relaxed);
        match visible.advance(complete, loading) {
            // The end of the flow has ended the read.
            Err(_) if loading.has_stopped() => {}
            Err(error) => return loading.fail(&error),
            Ok(()) => {}
        }
        if visible.is_exhausted() {
            return;
        }
        for (table, (entries, bytes)) in iter::zip(&self.tables, sizes) {
            let share = u128::from(entries * bytes) * u128::from(excess) / u128::from(used);
            let wanted = (share as u64).div_ceil(bytes) as usize;
            if !evict(table, visible.checkpoint, loading, wanted) {
                visible.exhausted = Some((visible.checkpoint, Instant::now()));
            }
        }
        let sizes = self.tables.iter().map(|table| size(&table.lock()));
        self.memory
            .note(sizes.map(|(entries, bytes)| entries * bytes).sum());
    }
}

/// Evicts entries. Returns whether there were enough: a value that was used leaves in the second round of the hand.
fn evict<K: Key, V: Value>(
    table: &SharedTable<K, V>,
    visible: u64,
    loading: &Arc<Loading>,
    mut wanted: usize,
) -> bool {
    let slices = (2 * table.lock().len()).div_ceil(SLOTS_AT_ONCE);
    for _ in 0..slices {
        if wanted == 0 {
            break;
        }
        // Dropped when the table is unlocked.
        let evicted = { table.lock().evict(visible, loading, SLOTS_AT_ONCE, wanted) };
        wanted -= evicted.len();
    }
    wanted == 0
}

impl Visible {
    /// Whether too few values could leave just now.
    fn is_exhausted(&self) -> bool {
        self.exhausted.is_some_and(|(checkpoint, at)| {
            checkpoint == self.checkpoint && at.elapsed() < RELIEF_PAUSE / 2
        })
    }

    /// Finds the last checkpoint up to `complete` whose changes look-ups find.
    fn advance(&mut self, complete: u64, loading: &Loading) -> Result<(), BoxError> {
        while let Some((checkpoint, ends)) = self.written.front()
            && *checkpoint <= complete
            && loading.reader().is_stable(ends, loading.is_stopped())?
            && !loading.has_stopped()
        {
            self.checkpoint = *checkpoint;
            self.written.pop_front();
        }
        Ok(())
    }
}

/// Returns the number of entries, and the memory of each.
fn size<K: Key, V: Value>(table: &ValueTable<K, V>) -> (u64, u64) {
    (table.len() as u64, table.entry_bytes())
}

/// Changes of a changelog.
type Batch<K, V> = Vec<(K, Option<Dated<V>>)>;

fn stage<K: Key, V: Value>(table: &SharedTable<K, V>, batch: &mut Batch<K, V>) {
    let mut table = table.lock();
    for (key, value) in batch.drain(..) {
        table.stage(key, value);
    }
}

impl<K: Key, V: Value> Shared<K, V> {
    /// Reads the values of keys that were not known: any, when `is_stopped` is set.
    fn read(
        &self,
        loading: &Loading,
        keys: &[K],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Dated<V>>>, BoxError> {
        let encoded = keys.iter().map(|key| {
            let mut bytes = Vec::new();
            encode_key(key, &mut bytes).map(|()| bytes)
        });
        let encoded: Vec<Vec<u8>> = encoded.collect::<Result<_, _>>()?;
        let values = loading.reader().get(&encoded, is_stopped)?;
        if values.len() != keys.len() {
            return Err(format!(
                "the changelog was asked for {} keys and returned {} values",
                keys.len(),
                values.len()
            )
            .into());
        }
        let values = values.iter();
        let decoded = values.map(|value| value.as_deref().map(|it| self.decode(it)).transpose());
        decoded.collect()
    }
}

#[cfg(test)]
mod tests;
