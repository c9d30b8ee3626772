//! Windows as a state element with a changelog.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::key::{decode_key, encode_key};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::ranks::owners::KeyOwners;
use crate::state::change::Change;
use crate::state::logged::{LoggedState, StateHead, WriteChanges};
use crate::state::watched::ShownChange;
use crate::state::windowed::{SharedStore, Windowed};
use crate::windows::{
    Combine, EntryId, Key, ShownEntry, StoreChange, StoreCursor, StoreHead, text_of,
};

/// Entries that are looked at while a partition is locked, beside the stage that changes it.
const ENTRIES_AT_ONCE: usize = 256;

/// The part of windows with a changelog that all their handles share.
#[derive(Default)]
pub struct WindowLog {
    /// The numbers of changes in each partition since the last cut. Written by the stage, read by workers.
    pub changed: Mutex<Vec<Arc<AtomicUsize>>>,
    /// The watermarks of the partitions in the checkpoint that the flow has resumed from. For the restore of entries.
    former: Mutex<Vec<i64>>,
}

/// The part of a checkpoint beside the entries, which are in a changelog. Behind it is the watermark of each partition.
#[derive(Serialize, Deserialize)]
struct Head {
    late_events: u64,
    /// Of all partitions together; `None` if there are none.
    store: Option<StoreHead>,
}

impl<K: Key, A: Combine> Windowed<K, A> {
    fn stores(&self) -> Vec<SharedStore<K, A>> {
        self.partitions.lock().clone()
    }

    /// Returns the partition that has an entry, if this rank owns its key.
    fn store_of(&self, id: &EntryId<K>) -> Result<Option<SharedStore<K, A>>, BoxError> {
        let partitions = self.partitions.lock();
        let owner = KeyOwners::new(self.ranks, partitions.len()).of(id.key())?;
        let store = partitions.get(owner.partition);
        Ok(store.filter(|_| owner.rank == self.rank).map(Arc::clone))
    }

    /// Returns the watermark up to which the windows of a key were released when the flow resumed. The rank owned the key
    /// before, too: a checkpoint is of as many ranks.
    fn released_to(&self, key: &K) -> Result<i64, BoxError> {
        let former = self.log.former.lock();
        let owner = KeyOwners::new(self.ranks, former.len()).of(key)?;
        Ok(former.get(owner.partition).copied().unwrap_or(i64::MIN))
    }

    fn encode(change: &StoreChange<K, A::State>, checkpoint: u64) -> Result<Change, BoxError> {
        let (key, value) = change.encode()?;
        Ok(Change {
            key,
            value,
            checkpoint,
            expires: change.end,
        })
    }
}

impl<K: Key, A: Combine> LoggedState for Windowed<K, A> {
    fn note_changes(&self) {
        for (store, count) in self.stores().iter().zip(&*self.log.changed.lock()) {
            store.lock().note_changes(count);
        }
    }

    fn head(&self, checkpoint: u64) -> Result<Option<StateHead>, BoxError> {
        let stores = self.stores();
        let heads = stores.iter().map(|store| store.lock().head(checkpoint));
        let heads: Vec<StoreHead> = heads.collect();
        // After all writers were idle, partitions that have read the same events may be at different ones (F9).
        let watermarks: Vec<i64> = heads.iter().map(|head| head.watermark).collect();
        let store = heads.into_iter().reduce(|mut sum, head| {
            sum.absorb(head);
            sum
        });
        // Of the slowest partition.
        let passed = store.map(|store| store.watermark);
        let late_events = self.spec.late.events();
        let head = Head { late_events, store };
        Ok(Some(StateHead {
            bytes: postcard::to_stdvec(&(head, watermarks))?,
            passed: passed.filter(|watermark| *watermark != i64::MIN),
        }))
    }

    /// As many partitions as before continue at their watermarks. More or fewer all continue at the greatest: items that are
    /// late by it are late at their sources (F10), so windows that end by then are complete.
    fn restore_head(&self, head: &[u8]) -> Result<(), BoxError> {
        let (Head { late_events, store }, rest) = postcard::take_from_bytes(head)?;
        self.spec.late.restore(late_events);
        let Some(head) = store else {
            return Ok(());
        };
        // A checkpoint of an earlier build has one watermark for all.
        let watermarks: Vec<i64> = match rest.is_empty() {
            true => vec![head.watermark],
            false => postcard::from_bytes(rest)?,
        };
        let greatest = watermarks.iter().copied().fold(head.watermark, i64::max);
        let stores = self.stores();
        for (partition, store) in stores.iter().enumerate() {
            let mut own = head;
            own.watermark = match watermarks.len() == stores.len() {
                true => watermarks[partition],
                false => greatest,
            };
            store.lock().resume(&own);
        }
        if let Some(first) = stores.first() {
            first.lock().add_totals(head);
        }
        self.spec.resume_at(greatest);
        *self.log.former.lock() = watermarks;
        Ok(())
    }

    fn restore_change(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BoxError> {
        let id: EntryId<K> = decode_key(key)?;
        let Some(store) = self.store_of(&id)? else {
            return Ok(());
        };
        let watermark = self.released_to(id.key())?;
        let aggregate = &self.spec.aggregate;
        store.lock().restore(aggregate, id, value, watermark)
    }

    fn restored(&self) {
        for store in self.stores() {
            store.lock().restored(&self.spec.aggregate);
        }
    }

    fn note_changed(&self, key: &[u8]) -> Result<(), BoxError> {
        let id: EntryId<K> = decode_key(key)?;
        if let Some(store) = self.store_of(&id)? {
            store.lock().note_stale(id);
        }
        Ok(())
    }

    /// Checkpoints have the [types](crate::state::partial::StateReader::types).
    fn sample(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    fn check_sample(&self, _: &[u8], _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    fn has(&self, key: &[u8]) -> Result<bool, BoxError> {
        let id = decode_key::<EntryId<K>>(key);
        Ok(id.is_ok_and(|id| {
            let store = self.store_of(&id).ok().flatten();
            store.is_some_and(|store| store.lock().has(&id))
        }))
    }

    /// A key has an entry for each of its panes.
    fn has_plain_keys(&self) -> bool {
        false
    }

    fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        let shown = self.spec.windows.show(&self.spec.aggregate, key, value)?;
        let ShownEntry::<K> { key, entry, value } = shown;
        let mut bytes = Vec::new();
        encode_key(&key, &mut bytes)?;
        Ok(ShownChange {
            key: text_of(&key),
            bytes,
            entry: Some(entry),
            value,
        })
    }

    fn changed_keys(&self) -> usize {
        let counts = self.log.changed.lock();
        counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }

    fn cut(&self, checkpoint: u64) {
        for store in self.stores() {
            store.lock().cut(checkpoint);
        }
    }

    fn write(&self, checkpoint: u64, write: &mut WriteChanges<'_>) -> Result<(), BoxError> {
        let stores = self.stores();
        let slices = stores.iter().flat_map(|store| {
            let mut cursor = StoreCursor::default();
            iter::from_fn(move || {
                let store = store.lock();
                let next = iter::from_fn(|| store.next_change(&mut cursor));
                let changes: Vec<_> = next.take(ENTRIES_AT_ONCE).collect();
                (!changes.is_empty()).then_some(changes)
            })
        });
        let changes = slices.flatten();
        write(&mut changes.map(|change| Self::encode(&change, checkpoint)))
    }

    fn written(&self, _: u64) {
        for store in self.stores() {
            // Dropped when the store is unlocked.
            let _written = { store.lock().written() };
        }
    }

    fn sweep(&self) {}
}

#[cfg(test)]
mod tests;
