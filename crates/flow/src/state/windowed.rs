//! Windows as a state element: the open and the last closed windows of each key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use millstream_base::Timestamp;
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::BoxError;
use crate::ranks::owners::KeyOwners;
use crate::state::late::{LateTally, LateTo};
use crate::state::partial::StateReader;
use crate::windows::{self, Combine, Key, WindowResult, WindowStore, WindowTotals, Windows};

/// The windows of a keyed state element; a clone is another handle of the same element. On several ranks each has the
/// keys that it owns.
pub struct Windowed<K, A: Combine> {
    pub(crate) spec: Arc<WindowSpec<A>>,
    partitions: Arc<Mutex<Vec<SharedStore<K, A>>>>,
    remembered_keys: usize,
    ranks: u32,
}

/// Windows, and the aggregate over their items.
pub struct WindowSpec<A> {
    pub windows: Windows,
    pub aggregate: A,
    /// Items that are in none of the windows since their time was over.
    pub late: Arc<LateTally>,
    /// The watermark of the windows when the flow resumed, `i64::MIN` otherwise. Written before the flow begins, read by
    /// the instances that add up items.
    resumed_at: Arc<AtomicI64>,
    /// Items of one operator come in.
    pub is_used: AtomicBool,
}

impl<A> WindowSpec<A> {
    /// Reserves the state for one operator; `false` if another operator has it already.
    pub fn reserve(&self) -> bool {
        !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// The same windows, into which `aggregate` adds the items of one of several streams.
    pub fn with<B>(&self, aggregate: B) -> Arc<WindowSpec<B>> {
        Arc::new(WindowSpec {
            windows: self.windows,
            aggregate,
            late: Arc::clone(&self.late),
            resumed_at: Arc::clone(&self.resumed_at),
            is_used: AtomicBool::new(true),
        })
    }

    /// Returns the watermark of the windows when the flow resumed.
    pub fn resumed_at(&self) -> Timestamp {
        Timestamp(self.resumed_at.load(Ordering::Relaxed))
    }
}

/// Keys of a partition whose last released window can be read, as a rule.
pub const REMEMBERED_KEYS: usize = 64 << 10;

/// Locked by the stage for the time of a slice, and by readers of the state.
pub(crate) type SharedStore<K, A> = Arc<Mutex<WindowStore<K, <A as Combine>::State>>>;

impl<K, A: Combine> Clone for Windowed<K, A> {
    fn clone(&self) -> Self {
        Windowed {
            spec: Arc::clone(&self.spec),
            partitions: Arc::clone(&self.partitions),
            remembered_keys: self.remembered_keys,
            ranks: self.ranks,
        }
    }
}

impl<K: Key, A: Combine> Windowed<K, A> {
    /// The last released window of up to `remembered_keys` keys of each partition can be read.
    pub(crate) fn new(windows: Windows, aggregate: A, remembered_keys: usize, ranks: u32) -> Self {
        Windowed {
            spec: Arc::new(WindowSpec {
                windows,
                aggregate,
                late: Arc::default(),
                resumed_at: Arc::new(AtomicI64::new(i64::MIN)),
                is_used: AtomicBool::new(false),
            }),
            partitions: Arc::default(),
            remembered_keys,
            ranks,
        }
    }

    /// The newest window of a key, open or not.
    pub fn newest(&self, key: &K) -> Option<WindowResult<K, A::Out>> {
        let partitions = self.partitions.lock();
        partitions
            .iter()
            .find_map(|part| part.lock().newest(&self.spec.aggregate, key))
    }

    /// The newest window of the key that has this text.
    pub(crate) fn find(&self, key: &str) -> Option<WindowResult<K, A::Out>> {
        windows::of_text(key).find_map(|key: K| self.newest(&key))
    }

    /// The sums at this moment.
    pub fn totals(&self) -> WindowTotals {
        let mut sum = WindowTotals::default();
        for part in self.partitions.lock().iter() {
            sum += part.lock().totals();
        }
        sum
    }

    /// Items that are in none of the windows since their time was over.
    pub fn late_events(&self) -> u64 {
        self.spec.late.events()
    }

    pub(crate) fn add_partition(&self) -> SharedStore<K, A> {
        let store = Arc::new(Mutex::new(WindowStore::new(
            self.spec.windows,
            self.remembered_keys,
        )));
        self.partitions.lock().push(Arc::clone(&store));
        store
    }
}

/// The text that readers get of a window.
pub fn entry<K, O: Serialize>(window: &WindowResult<K, O>) -> Value {
    json!({
        "window_start": window.start,
        "window_end": window.end,
        "value": window.value,
        "events": window.events,
    })
}

impl<K: Key, A: Combine> StateReader for Windowed<K, A> {
    fn get(&self, key: &str) -> Option<Value> {
        self.find(key).map(|newest| entry(&newest))
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for part in self.partitions.lock().iter() {
            let room = limit - keys.len();
            keys.extend(part.lock().keys(room).iter().filter_map(windows::text_of));
        }
        keys
    }

    fn late_events(&self) -> Option<u64> {
        Some(self.late_events())
    }

    fn late_to(&self) -> LateTo {
        self.spec.late.to()
    }

    fn save(&self) -> Result<Vec<u8>, BoxError> {
        let partitions = self.partitions.lock();
        let stores: Vec<_> = partitions.iter().map(|part| part.lock().clone()).collect();
        let late = self.spec.late.events();
        Ok(postcard::to_stdvec(&(late, stores))?)
    }

    /// Without the aggregate: its name has closures in it, whose names change with every edit.
    fn types(&self) -> String {
        let state = std::any::type_name::<(K, A::State)>();
        format!("{state} in {}", self.spec.windows)
    }

    /// There may be more or fewer partitions than there were.
    fn restore(&self, saved: &[u8]) -> Result<(), BoxError> {
        let (late, stores): (u64, Vec<WindowStore<K, A::State>>) = postcard::from_bytes(saved)?;
        if stores
            .iter()
            .any(|store| store.windows() != self.spec.windows)
        {
            return Err("it was saved of other windows".into());
        }
        self.spec.late.restore(late);
        let mut stores = stores.into_iter();
        let Some(mut all) = stores.next() else {
            return Ok(());
        };
        stores.for_each(|store| all.absorb(store));
        (self.spec.resumed_at).store(all.watermark().0, Ordering::Relaxed);
        let partitions = self.partitions.lock();
        let mut owners = KeyOwners::new(self.ranks, partitions.len());
        for (index, partition) in partitions.iter().enumerate().skip(1) {
            let mut error = None;
            *partition.lock() = all.split_off(|key: &K| match owners.of(key) {
                Ok(owner) => owner.partition == index,
                Err(unknown) => {
                    error = Some(unknown);
                    false
                }
            });
            if let Some(error) = error {
                return Err(error.into());
            }
        }
        if let Some(first) = partitions.first() {
            *first.lock() = all;
        }
        Ok(())
    }
}
