//! State elements that a flow computes, readable while it runs.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use crate::error::BoxError;
use crate::state::late::LateTo;
use crate::state::ordered::OrderedState;
use crate::state::size::StateSize;
use crate::windows::{TableSize, owned_bytes};

/// Reads a state element of any type by the text of its keys.
pub trait StateReader: Send + Sync {
    /// Returns the present value of `key`.
    fn get(&self, key: &str) -> Option<Value>;

    /// Up to `limit` of the keys, in no particular order.
    fn keys(&self, limit: usize) -> Vec<String>;

    /// Items that came too late for their window; `None` where there are no windows.
    fn late_events(&self) -> Option<u64> {
        None
    }

    /// Returns the destination of late items.
    fn late_to(&self) -> LateTo {
        LateTo::Dropped
    }

    /// Returns its kind, and its size in memory by estimate. It costs little: readers ask each second.
    fn size(&self) -> StateSize {
        StateSize::unknown("custom")
    }

    /// Reads the element by the order of its keys; `None` where they have none.
    fn ordered(&self) -> Option<&dyn OrderedState> {
        None
    }

    /// Returns the place of the number by which values are compared for the greatest ones, as a JSON pointer: the value
    /// itself by default.
    fn compared(&self) -> &'static str {
        ""
    }

    /// Whether one rank has each key with its whole value. Otherwise each rank may have a share of it.
    fn has_owners(&self) -> bool {
        self.ordered().is_some()
    }

    /// Whether all values are in memory: in a flow that has resumed, they may still be read. Until then
    /// [`get`](Self::get) may have to read a value, and [`keys`](Self::keys) waits.
    ///
    /// # Errors
    /// When a value could not be read. The flow ends with this error, and values that were read since may be wrong.
    fn is_whole(&self) -> Result<bool, BoxError> {
        Ok(true)
    }

    /// Saves the whole element, for a checkpoint.
    ///
    /// # Errors
    /// When it cannot be kept.
    fn save(&self) -> Result<Vec<u8>, BoxError>;

    /// Describes the types of the [saved](StateReader::save) bytes, and all else that has to be the same for another
    /// program to restore them. A checkpoint keeps this text; a program with another one does not resume.
    fn types(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Restores [saved](StateReader::save) bytes. Called before the flow begins.
    ///
    /// # Errors
    /// When it is none.
    fn restore(&self, saved: &[u8]) -> Result<(), BoxError>;
}

/// The value of a partial state: each instance of a stage changes a share of its own, and a reader merges them.
pub trait PartialState: Default + Send + 'static {
    /// Adds the value of another share.
    fn merge(&mut self, part: &Self);

    /// Returns the value of `key` over all `parts`.
    fn get(parts: &[&Self], key: &str) -> Option<Value>;

    /// Returns up to `limit` of the keys of `parts`, each once.
    fn keys(parts: &[&Self], limit: usize) -> Vec<String>;

    /// Returns the number of its entries, and their memory by estimate; `None` if unknown, as by default.
    fn size(&self) -> Option<TableSize> {
        None
    }

    /// Saves the whole value, for a checkpoint.
    ///
    /// # Errors
    /// When it cannot be kept, as by default.
    fn save(&self) -> Result<Vec<u8>, BoxError> {
        Err("it has no `save`, so it cannot be part of a checkpoint".into())
    }

    /// Restores [saved](PartialState::save) bytes.
    ///
    /// # Errors
    /// When it is none.
    fn restored(_saved: &[u8]) -> Result<Self, BoxError> {
        Err("it has no `restored`, so it cannot resume from a checkpoint".into())
    }
}

/// A partial state element; a clone is another handle of the same element.
pub struct Partial<S> {
    parts: Arc<Mutex<Vec<Arc<Mutex<S>>>>>,
}

impl<S> Clone for Partial<S> {
    fn clone(&self) -> Self {
        Partial {
            parts: Arc::clone(&self.parts),
        }
    }
}

impl<S> Default for Partial<S> {
    fn default() -> Self {
        Partial {
            parts: Arc::default(),
        }
    }
}

impl<S: PartialState> Partial<S> {
    /// Returns the sum of all shares at this moment. Workers wait while their share is read.
    pub fn merged(&self) -> S {
        let mut sum = S::default();
        for part in self.parts.lock().iter() {
            sum.merge(&part.lock());
        }
        sum
    }

    pub(crate) fn add_part(&self) -> Arc<Mutex<S>> {
        let part = Arc::default();
        self.parts.lock().push(Arc::clone(&part));
        part
    }

    fn with_parts<R>(&self, read: impl FnOnce(&[&S]) -> R) -> R {
        let parts = self.parts.lock();
        let guards: Vec<MutexGuard<'_, S>> = parts.iter().map(|part| part.lock()).collect();
        let parts: Vec<&S> = guards.iter().map(|guard| &**guard).collect();
        read(&parts)
    }
}

impl<S: PartialState> StateReader for Partial<S> {
    fn get(&self, key: &str) -> Option<Value> {
        self.with_parts(|parts| S::get(parts, key))
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        self.with_parts(|parts| S::keys(parts, limit))
    }

    fn size(&self) -> StateSize {
        let parts = self.parts.lock();
        let sizes = parts.iter().map(|part| part.lock().size());
        StateSize {
            kind: "partial",
            tables: sizes.sum(),
        }
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        self.merged().save()
    }

    fn types(&self) -> String {
        std::any::type_name::<S>().to_owned()
    }

    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        let restored = S::restored(saved)?;
        match self.parts.lock().first() {
            Some(part) => part.lock().merge(&restored),
            None => return Err("nothing adds to it".into()),
        }
        Ok(())
    }
}

/// A single number, read under the key `count`.
impl PartialState for u64 {
    fn merge(&mut self, part: &Self) {
        *self += part;
    }

    fn get(parts: &[&Self], key: &str) -> Option<Value> {
        (key == "count").then(|| json!(parts.iter().copied().sum::<u64>()))
    }

    fn keys(_: &[&Self], limit: usize) -> Vec<String> {
        std::iter::repeat_n("count".to_owned(), limit.min(1)).collect()
    }

    fn size(&self) -> Option<TableSize> {
        Some(TableSize::of_list::<u64>(1, 1))
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        Ok(postcard::to_stdvec(self)?)
    }

    fn restored(saved: &[u8]) -> Result<Self, BoxError> {
        Ok(postcard::from_bytes(saved)?)
    }
}

/// How often each of many byte strings occurred. Allocates only for keys it has not seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    counts: HashMap<Box<[u8]>, u64>,
}

impl Counts {
    /// Counts `key` another `count` times.
    #[inline]
    pub fn add(&mut self, key: &[u8], count: u64) {
        match self.counts.get_mut(key) {
            Some(sum) => *sum += count,
            None => {
                self.counts.insert(key.into(), count);
            }
        }
    }

    /// How often `key` occurred.
    pub fn get(&self, key: &[u8]) -> u64 {
        self.counts.get(key).copied().unwrap_or(0)
    }

    /// How many different keys occurred.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// All keys with their counts, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.counts.iter().map(|(key, count)| (&**key, *count))
    }

    /// The `limit` most frequent keys; equally frequent ones in the order of their bytes.
    pub fn top(&self, limit: usize) -> Vec<(&[u8], u64)> {
        let mut all: Vec<_> = self.iter().collect();
        let rank = |a: &(&[u8], u64), b: &(&[u8], u64)| b.1.cmp(&a.1).then(a.0.cmp(b.0));
        if limit < all.len() {
            all.select_nth_unstable_by(limit, rank);
            all.truncate(limit);
        }
        all.sort_unstable_by(rank);
        all
    }
}

impl PartialState for Counts {
    fn merge(&mut self, part: &Self) {
        for (key, count) in part.iter() {
            self.add(key, count);
        }
    }

    fn get(parts: &[&Self], key: &str) -> Option<Value> {
        let count: u64 = parts.iter().map(|part| part.get(key.as_bytes())).sum();
        (count > 0).then(|| json!(count))
    }

    fn keys(parts: &[&Self], limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            for (key, _) in part.iter() {
                if keys.len() == limit {
                    return keys;
                }
                if parts[..index].iter().all(|earlier| earlier.get(key) == 0) {
                    keys.push(String::from_utf8_lossy(key).into_owned());
                }
            }
        }
        keys
    }

    fn size(&self) -> Option<TableSize> {
        let mut size = TableSize::of(&self.counts);
        size.add_owned(self.counts.keys().map(owned_bytes));
        Some(size)
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let counts: Vec<(&[u8], u64)> = self.iter().collect();
        Ok(postcard::to_stdvec(&counts)?)
    }

    fn restored(saved: &[u8]) -> Result<Self, BoxError> {
        let saved: Vec<(&[u8], u64)> = postcard::from_bytes(saved)?;
        let mut counts = Counts::default();
        saved
            .iter()
            .for_each(|(key, count)| counts.add(key, *count));
        Ok(counts)
    }
}
