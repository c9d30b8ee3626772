use std::cell::RefCell;
use std::collections::BTreeMap;

use millstream_base::KeyRange;
use serde::{Deserialize, Serialize, Serializer};

use super::*;
use crate::state::changelog_reader::{RestoreChange, ValuePage};
use crate::state::logged::LoggedState;
use crate::state::memory::StateMemory;
use crate::state::partial::StateReader;
use crate::state::value_encoding::Encoding;
use crate::state::values::{Layout, Place, VALUES};

/// A changelog in memory.
struct MemoryReader(BTreeMap<Vec<u8>, Vec<u8>>);

impl ChangelogReader for MemoryReader {
    fn is_large(&self) -> bool {
        false
    }

    fn get(&self, keys: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        Ok(keys.iter().map(|key| self.0.get(key).cloned()).collect())
    }

    fn read_all(&self, _: &AtomicBool, _: &mut RestoreChange<'_>) -> Result<(), BoxError> {
        unreachable!("nothing scans it")
    }

    fn range(&self, range: &KeyRange, _: usize, _: &AtomicBool) -> Result<ValuePage, BoxError> {
        let values = self.0.range::<[u8], _>(range.bounds());
        let values = values.map(|(key, value)| (key.clone(), value.clone()));
        Ok(ValuePage {
            values: values.collect(),
            next: None,
        })
    }

    fn ends(&self, _: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        Ok(vec![0])
    }

    fn is_stable(&self, _: &[u64], _: &AtomicBool) -> Result<bool, BoxError> {
        Ok(true)
    }
}

thread_local! {
    /// Runs when this thread writes a key the next time.
    static AT_NEXT_KEY: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
struct Number(u32);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(code) = AT_NEXT_KEY.take() {
            code();
        }
        self.0.serialize(serializer)
    }
}

#[test]
fn no_key_is_missing_when_the_first_values_leave_memory_while_keys_are_listed() {
    let bytes_of = |number: u32| {
        let mut bytes = Vec::new();
        encode_key(&number, &mut bytes).unwrap();
        bytes
    };
    let logged = (0..100).map(|number| (bytes_of(number), b"7".to_vec()));
    let logged: BTreeMap<_, _> = logged.collect();
    let values = Values::<Number, u64>::new(
        Layout::of_keys(VALUES),
        &Place {
            rank: 0,
            ranks: 1,
            partitions: 2,
            memory: StateMemory::of_process(),
            lifetime: None,
            encoding: Encoding::Json,
        },
    );
    values.note_changes();
    for (key, value) in &logged {
        values.restore_change(key, Some(value)).unwrap();
    }
    let reader = Arc::new(MemoryReader(logged));
    let threads = values.read_lazily(reader, false, Waker::noop().clone());
    let _threads = threads.unwrap();
    // The first table is locked then.
    let evicted = values.clone();
    AT_NEXT_KEY.set(Some(Box::new(move || {
        let loading = evicted.shared.loading.get().unwrap();
        assert!(evict(&evicted.tables()[1], 0, loading, 1));
    })));
    let mut keys = values.keys(usize::MAX);
    assert!(values.shared.is_cold());
    keys.sort_unstable_by_key(|key| key.parse::<u32>().unwrap());
    assert!(
        keys.into_iter()
            .eq((0..100).map(|number| number.to_string()))
    );
}
