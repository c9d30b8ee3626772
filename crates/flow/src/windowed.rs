//! Windows as a state element: what is known of each key, open or closed.

use std::fmt::Display;
use std::hash::Hash;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::state::StateReader;
use crate::windows::{Combine, WindowResult, WindowStore, WindowTotals, Windows};

/// What windows may be kept by. As text it is the key under which state is read; serialized it goes to
/// other ranks.
pub trait Key:
    Hash + Eq + Clone + Display + FromStr + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> Key for K where
    K: Hash + Eq + Clone + Display + FromStr + Serialize + DeserializeOwned + Send + Sync + 'static
{
}

/// The windows of a keyed state element; a clone is another handle of the same element. On several ranks
/// each has the keys that live there.
pub struct Windowed<K, A: Combine> {
    pub(crate) spec: Arc<WindowSpec<A>>,
    partitions: Arc<Mutex<Vec<SharedStore<K, A>>>>,
}

/// What is computed over which windows.
pub(crate) struct WindowSpec<A> {
    pub windows: Windows,
    pub aggregate: A,
    /// Items that were left out since their time was over.
    pub late: AtomicU64,
}

/// Keys of a partition whose last released window can be read.
const REMEMBERED_KEYS: usize = 64 << 10;

/// Locked by the stage for the time of a slice, and by readers of the state.
pub(crate) type SharedStore<K, A> = Arc<Mutex<WindowStore<K, <A as Combine>::State>>>;

impl<K, A: Combine> Clone for Windowed<K, A> {
    fn clone(&self) -> Self {
        Windowed {
            spec: Arc::clone(&self.spec),
            partitions: Arc::clone(&self.partitions),
        }
    }
}

impl<K: Key, A: Combine> Windowed<K, A> {
    pub(crate) fn new(windows: Windows, aggregate: A) -> Self {
        Windowed {
            spec: Arc::new(WindowSpec {
                windows,
                aggregate,
                late: AtomicU64::new(0),
            }),
            partitions: Arc::default(),
        }
    }

    /// The newest window of a key, open or not.
    pub fn newest(&self, key: &K) -> Option<WindowResult<K, A::Out>> {
        let partitions = self.partitions.lock();
        partitions
            .iter()
            .find_map(|part| part.lock().newest(&self.spec.aggregate, key))
    }

    /// The sums at this moment.
    pub fn totals(&self) -> WindowTotals {
        let mut sum = WindowTotals::default();
        for part in self.partitions.lock().iter() {
            sum += part.lock().totals();
        }
        sum
    }

    /// Items that were left out since their window's time was over.
    pub fn late_events(&self) -> u64 {
        self.spec.late.load(Ordering::Relaxed)
    }

    pub(crate) fn add_partition(&self) -> SharedStore<K, A> {
        let store = Arc::new(Mutex::new(WindowStore::new(
            self.spec.windows,
            REMEMBERED_KEYS,
        )));
        self.partitions.lock().push(Arc::clone(&store));
        store
    }
}

impl<K: Key, A: Combine> StateReader for Windowed<K, A> {
    fn get(&self, key: &str) -> Option<Value> {
        let newest = self.newest(&key.parse().ok()?)?;
        Some(json!({
            "window_start": newest.start,
            "window_end": newest.end,
            "value": newest.value,
            "events": newest.events,
        }))
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for part in self.partitions.lock().iter() {
            let room = limit - keys.len();
            keys.extend(
                part.lock()
                    .keys(room)
                    .into_iter()
                    .map(|key| key.to_string()),
            );
        }
        keys
    }
}
