//! Values of a table outside of the flow, such as a keyed stream, which operators look up by key.
//!
//! An operator finds a value in memory or stops there, and a thread beside the workers looks it up, together with those that the
//! next items need. Memory keeps the values that were used lately, in two *generations*: where the newer one is full, the older one
//! goes, and the newer one takes its place.

mod table;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::Duration;
use std::{io, iter};

use millstream_base::Clock;
use millstream_base::key::encode_key;
use parking_lot::Mutex;

use crate::error::{BoxError, Failure};
use crate::state::element::Element;
use crate::state::loading::{LoadThreads, Loading};
use crate::state::lockable::Locked;
use crate::state::value_encoding::of_key;
use crate::windows::Key;

use table::{Found, GENERATION_BYTES, LookupTable};

/// The most keys that are looked up at once: so large values take bounded memory.
const KEYS_AT_ONCE: usize = 128;

/// Looks up the values of a table outside of the flow, beside the workers. It may wait.
pub trait KeyLookup: Send + Sync + 'static {
    /// Names the table in errors, such as `stream rates`.
    fn name(&self) -> String;

    /// Returns the newest value of each key; `None` for a key that has none. A key is in its canonical encoding. Returns any result
    /// early when `is_stopped` is set, if it may have to wait for long.
    ///
    /// # Errors
    /// When they cannot be read, which ends the flow. The error names the table.
    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError>;
}

/// Values of a table outside of the flow, by key: [`Flow::lookups`](crate::Flow::lookups). [`Keyed::update`](crate::Keyed::update)
/// gives its function the value of an item's key, which is `None` if the table has none; the function cannot change it. A clone is
/// another handle of the same element.
pub struct Lookups<K, V> {
    shared: Arc<Shared<K, V>>,
}

/// Decodes a value.
type Decode<V> = Box<dyn Fn(&[u8]) -> Result<V, BoxError> + Send + Sync>;

struct Shared<K, V> {
    /// By partition.
    tables: Vec<Arc<Mutex<LookupTable<K, V>>>>,
    lookup: Arc<dyn KeyLookup>,
    decode: Decode<V>,
    clock: Arc<dyn Clock>,
}

impl<K, V> Clone for Lookups<K, V> {
    fn clone(&self) -> Self {
        Lookups {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<K: Key, V: Send + 'static> Lookups<K, V> {
    pub(crate) fn new(
        lookup: Arc<dyn KeyLookup>,
        max_age: Duration,
        decode: Decode<V>,
        clock: &Arc<dyn Clock>,
        partitions: usize,
    ) -> Self {
        let table = || LookupTable::new(Arc::clone(clock), max_age);
        let tables = iter::repeat_with(|| Arc::new(Mutex::new(table())));
        Lookups {
            shared: Arc::new(Shared {
                tables: tables.take(partitions).collect(),
                lookup,
                decode,
                clock: Arc::clone(clock),
            }),
        }
    }
}

impl<K: Key, V: Send + 'static> Element<K> for Lookups<K, V> {
    type Content<'a> = Option<&'a V>;
    type Partition = Arc<Mutex<LookupTable<K, V>>>;

    fn partitions(&self) -> Option<usize> {
        Some(self.shared.tables.len())
    }

    fn partition(&self, index: usize) -> Self::Partition {
        Arc::clone(&self.shared.tables[index])
    }

    fn is_known(table: &Locked<'_, Self::Partition>, key: &K) -> bool {
        table.is_known(key)
    }

    fn want(table: &mut Locked<'_, Self::Partition>, keys: Vec<K>) {
        table.want(keys);
    }

    fn change<R>(
        &self,
        table: &mut Locked<'_, Self::Partition>,
        key: &K,
        change: impl FnOnce(Option<&V>) -> R,
    ) -> Option<R> {
        table.find(key).map(change)
    }

    fn shorten<'short, 'long: 'short>(content: Option<&'long V>) -> Option<&'short V> {
        content
    }
}

/// An element whose values a thread looks up.
trait LookedUp: Send + Sync {
    fn begin(&self, waker: &Waker) -> io::Result<LoadThreads<dyn KeyLookup>>;
}

impl<K: Key, V: Send + 'static> LookedUp for Lookups<K, V> {
    fn begin(&self, waker: &Waker) -> io::Result<LoadThreads<dyn KeyLookup>> {
        let loading = Loading::new(Arc::clone(&self.shared.lookup), waker.clone());
        let loading = Arc::new(loading);
        for table in &self.shared.tables {
            table.lock().begin(&loading);
        }
        let mut threads = LoadThreads::new(loading);
        let shared = Arc::clone(&self.shared);
        threads.spawn("millstream-find", move |loading| {
            shared.look_up_wanted(loading)
        })?;
        Ok(threads)
    }
}

impl<K: Key, V: Send + 'static> Shared<K, V> {
    /// Looks up the keys that stages wait for.
    fn look_up_wanted(&self, loading: &Loading<dyn KeyLookup>) -> Result<(), BoxError> {
        while loading.wait(None) {
            let mut wanted = Vec::new();
            for table in &self.tables {
                let of_table = { table.lock().take_wanted() }.into_iter();
                wanted.extend(of_table.enumerate().map(|(place, key)| (place, table, key)));
            }
            // The first key of each table is the one for which a stage waits.
            wanted.sort_by_key(|(place, ..)| *place);
            // Behind these, values that were found first could leave unused. Keys that are left out are wanted again.
            let mut bytes_left = GENERATION_BYTES;
            for wanted in wanted.chunks(KEYS_AT_ONCE) {
                let at = self.clock.monotonic();
                let keys: Vec<&K> = wanted.iter().map(|(.., key)| key).collect();
                let values = self.read(loading, &keys)?;
                if loading.has_stopped() {
                    return Ok(());
                }
                for ((_, table, key), (value, bytes)) in iter::zip(wanted, values) {
                    if bytes_left == 0 {
                        break;
                    }
                    bytes_left = bytes_left.saturating_sub(bytes);
                    table.lock().load(key.clone(), Found::new(value, bytes, at));
                }
                loading.wake();
                if bytes_left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Reads the values of keys, each with the bytes that it takes with its key: none if the flow is over.
    fn read(
        &self,
        loading: &Loading<dyn KeyLookup>,
        keys: &[&K],
    ) -> Result<Vec<(Option<V>, usize)>, BoxError> {
        let encoded = keys.iter().map(|key| {
            let mut bytes = Vec::new();
            encode_key(*key, &mut bytes).map(|()| bytes)
        });
        let encoded: Vec<Vec<u8>> = encoded.collect::<Result<_, _>>()?;
        let lookup = loading.reader();
        let values = match lookup.get(&encoded, loading.is_stopped()) {
            _ if loading.has_stopped() => return Ok(Vec::new()),
            values => values?,
        };
        if values.len() != keys.len() {
            return Err(format!(
                "{} was asked for {} keys and returned {} values",
                lookup.name(),
                keys.len(),
                values.len()
            )
            .into());
        }
        let values = iter::zip(iter::zip(keys, encoded), values);
        let decoded = values.map(|((key, encoded), value)| {
            let bytes = encoded.len() + value.as_ref().map_or(0, Vec::len);
            let value = value.map(|value| (self.decode)(&value)).transpose();
            let value = value.map_err(|error| {
                BoxError::from(format!("{}: {}", lookup.name(), of_key(*key, &error)))
            })?;
            Ok((value, bytes))
        });
        decoded.collect()
    }
}

/// An element of look-ups in the graph of a flow.
pub struct LookupElement {
    name: Arc<str>,
    element: Box<dyn LookedUp>,
    /// Set before the flow runs.
    threads: OnceLock<LoadThreads<dyn KeyLookup>>,
}

impl LookupElement {
    pub fn new<K: Key, V: Send + 'static>(name: &str, element: &Lookups<K, V>) -> Self {
        LookupElement {
            name: name.into(),
            element: Box::new(element.clone()),
            threads: OnceLock::new(),
        }
    }

    /// Begins to look up keys; `waker` wakes the stages that wait for them.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn begin(&self, waker: &Waker) -> io::Result<()> {
        let threads = self.element.begin(waker)?;
        self.threads.get_or_init(|| threads);
        Ok(())
    }

    /// Returns the failure of a look-up.
    pub fn failure(&self) -> Option<Failure> {
        let error = self.threads.get()?.failure()?;
        Some(Failure::Error {
            operator: Arc::clone(&self.name),
            error,
        })
    }
}
