use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicI64;

use fastrand::Rng;
use millstream_base::{Clock, KeyRange, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};

use super::*;
use crate::state::change::Change;
use crate::state::changelog_reader::{RestoreChange, ValuePage};
use crate::state::logged::LoggedState;
use crate::state::memory::StateMemory;
use crate::state::ordered::{OrderedState, ReadLevel, WouldWait};
use crate::state::partial::StateReader;
use crate::state::value_encoding::Encoding;
use crate::state::value_table::LifetimeSpec;
use crate::state::values::{Layout, Place, VALUES};

type Logged = BTreeMap<Vec<u8>, Vec<u8>>;

/// A changelog in memory.
struct MemoryReader(Arc<Mutex<Logged>>);

impl ChangelogReader for MemoryReader {
    fn is_large(&self) -> bool {
        false
    }

    fn get(&self, keys: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        let logged = self.0.lock();
        Ok(keys.iter().map(|key| logged.get(key).cloned()).collect())
    }

    fn read_all(&self, _: &AtomicBool, _: &mut RestoreChange<'_>) -> Result<(), BoxError> {
        unreachable!("nothing scans it")
    }

    fn range(&self, range: &KeyRange, _: usize, _: &AtomicBool) -> Result<ValuePage, BoxError> {
        let logged = self.0.lock();
        let values = logged.range::<[u8], _>(range.bounds());
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
    let reader = Arc::new(MemoryReader(Arc::new(Mutex::new(logged))));
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

/// A clock that the test sets, in milliseconds.
struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now().0 as u64)
    }
}

/// An element whose changes are logged, and that reads values back.
struct Element {
    values: Values<u64, String>,
    logged: Arc<Mutex<Logged>>,
    clock: Arc<HandClock>,
    _threads: LoadThreads,
}

impl Element {
    fn new(lifetime: Option<Duration>) -> Element {
        let clock = Arc::new(HandClock(AtomicI64::new(1)));
        let shared: Arc<dyn Clock> = clock.clone();
        let values = Values::new(
            Layout::of_keys(VALUES),
            &Place {
                rank: 0,
                ranks: 1,
                partitions: 2,
                memory: StateMemory::of_process(),
                lifetime: lifetime.map(|length| LifetimeSpec::new(&shared, length)),
                encoding: Encoding::Json,
            },
        );
        values.note_changes();
        let logged = Arc::default();
        let reader = Arc::new(MemoryReader(Arc::clone(&logged)));
        let threads = values.read_lazily(reader, false, Waker::noop().clone());
        Element {
            values,
            logged,
            clock,
            _threads: threads.unwrap(),
        }
    }

    fn table(&self, key: u64) -> &SharedTable<u64, String> {
        let owner = self.values.shared.owner_of(&key).unwrap();
        self.values.shared.table_of(owner).unwrap()
    }

    fn set(&self, key: u64, value: Option<String>) {
        let table = self.values.shared.lock_with(self.table(key), &key);
        let changed = table.unwrap().update(&key, |it| *it = value);
        changed.expect("the key is known");
    }

    fn checkpoint(&self, checkpoint: u64) {
        self.values.cut(checkpoint);
        let log = &mut |changes: &mut dyn Iterator<Item = Result<Change, BoxError>>| {
            for change in changes {
                let change = change?;
                let mut logged = self.logged.lock();
                match change.value {
                    Some(value) => drop(logged.insert(change.key, value)),
                    None => drop(logged.remove(&change.key)),
                }
            }
            Ok(())
        };
        self.values.write(checkpoint, log).unwrap();
        self.values.written(checkpoint);
    }

    /// Tries again while the thread that loads values has locked a table.
    fn until_unlocked<T>(
        &self,
        read: impl Fn(&Values<u64, String>) -> Result<T, WouldWait>,
    ) -> Result<T, WouldWait> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let found = read(&self.values);
            if found.is_ok() || Instant::now() > until {
                return found;
            }
            std::thread::yield_now();
        }
    }

    fn evict(&self, complete: u64, count: usize) {
        let loading = self.values.shared.loading.get().unwrap();
        for table in self.values.tables() {
            evict(table, complete, loading, count);
        }
    }
}

#[test]
fn reads_that_do_not_wait_have_the_answers_of_those_that_do() {
    for lifetime in [None, Some(Duration::from_millis(50))] {
        let element = Element::new(lifetime);
        let mut rng = Rng::with_seed(7);
        let (mut complete, mut waited, mut answered) = (0, 0, 0);
        for checkpoint in 1..150 {
            for _ in 0..15 {
                let value = match rng.u8(..10) {
                    0..3 => None,
                    // More than a reader gets at once.
                    3 => Some("x".repeat(20_000)),
                    _ => Some(rng.u64(..).to_string()),
                };
                element.set(rng.u64(..60), value);
            }
            element.checkpoint(checkpoint);
            if rng.bool() {
                complete = checkpoint;
                element.values.complete(complete);
            }
            element.evict(complete, rng.usize(..20));
            element.clock.0.fetch_add(rng.i64(..20), Ordering::Relaxed);
            let keys = (0..70).map(|key: u64| key.to_string());
            for key in keys.chain(["x".to_owned(), "-1".to_owned()]) {
                for level in [ReadLevel::Live, ReadLevel::Committed] {
                    let tried = element.values.try_read(&key, level);
                    let read = OrderedState::read(&element.values, &key, level);
                    match tried {
                        Ok(found) => assert_eq!(found, read, "{key} {level:?}"),
                        Err(WouldWait) => waited += 1,
                    }
                    // Now it is in memory.
                    let value = read.as_ref().and_then(|read| read.value.as_ref());
                    let is_large = value.is_some_and(|it| it.to_string().len() > 16 << 10);
                    let found = match is_large {
                        true => element.values.try_read(&key, level),
                        false => element.until_unlocked(|values| values.try_read(&key, level)),
                    };
                    let expected = if is_large { Err(WouldWait) } else { Ok(read) };
                    assert_eq!(found, expected, "{key} {level:?}");
                    answered += usize::from(!is_large);
                }
            }
        }
        assert!(waited > 100 && answered > 10_000, "{waited} {answered}");
        // A stage holds the table.
        let locked = element.table(1).lock();
        let tried = element.values.try_read("1", ReadLevel::Live);
        assert_eq!(tried, Err(WouldWait));
        drop(locked);
    }
}
