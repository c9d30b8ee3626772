//! The entries of a state element with the greatest numbers.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use millstream_base::{Clock, KeyRange};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::state::ordered::{OrderedState, ReadLevel, StateEntry};
use crate::state::partial::StateReader;

/// The keys of an element without order that a search reads at most: it has their texts in memory together.
const UNORDERED_KEYS_MAX: usize = 1_000_000;

/// Entries of an element with order that a search reads at once.
const PAGE_ENTRIES: usize = 1_000;

/// The attempts of a search for committed values. One fails if the flow completes a checkpoint meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// The time of a search. Other ranks wait a little longer for it.
const TIME_MAX: Duration = Duration::from_secs(4);

/// The fields of a record that an error names.
const FIELDS_MAX: usize = 20;

/// The values that are read at once take about this many bytes in a rank's memory, at most. A single value may take more.
pub const VALUES_BYTES_MAX: usize = 16 << 20;

/// Returns about how many bytes of memory a value takes.
pub fn bytes_of(value: &Value) -> usize {
    let within = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| name.len() + bytes_of(value))
            .sum(),
    };
    size_of::<Value>() + within
}

/// A search for the entries with the greatest numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GreatestQuery {
    /// The most entries.
    pub count: usize,
    /// The place of the number in each value, as a [JSON pointer](https://www.rfc-editor.org/rfc/rfc6901).
    pub pointer: String,
    /// The keys; all of them for an element without order.
    pub range: KeyRange,
    /// The wanted values.
    pub level: ReadLevel,
}

/// The entries of one rank with the greatest numbers.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GreatestEntries {
    /// In the order of [`Greatest`]. Without order of the element's keys, the bytes of a key are its text.
    pub entries: Vec<StateEntry>,
    /// Describes one of the values that have no number there; `None` if all have one.
    pub misfit: Option<String>,
    /// Whether none of the keys that were searched has changed since the last complete checkpoint.
    pub is_committed: bool,
    /// As [`StateValue::checkpoint`](crate::StateValue::checkpoint).
    pub checkpoint: Option<u64>,
}

/// The reason why a search has no answer.
#[derive(Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SearchError {
    /// It takes too long.
    #[error(
        "a search of all its values takes more than {} s: search a range, or keep a top list in the flow", TIME_MAX.as_secs()
    )]
    Slow,
    /// The keys have no order, and are too many.
    #[error(
        "it has more than {UNORDERED_KEYS_MAX} keys, which have no order: keep a top list in the flow"
    )]
    ManyKeys,
    /// Each attempt met another checkpoint.
    #[error(
        "the flow completes checkpoints faster than its values can be searched: leave out committed"
    )]
    Checkpoints,
    /// The entries take too much memory.
    #[error(
        "its entries with the greatest numbers take more than {} MiB: ask for fewer", VALUES_BYTES_MAX >> 20
    )]
    Large,
}

millstream_base::debug_as_display!(SearchError);

/// Collects the entries with the greatest numbers, the greatest first. Of equal numbers those come first whose keys have
/// the lesser bytes. Entries without a number are left out.
pub struct Greatest {
    count: usize,
    pointer: String,
    /// The least one first.
    heap: BinaryHeap<Reverse<Ranked>>,
    /// The bytes of its entries.
    bytes: usize,
    misfit: Option<String>,
}

impl Greatest {
    /// Collects up to `count` entries; `pointer` is the place of the number in a value.
    pub fn new(count: usize, pointer: &str) -> Self {
        Greatest {
            count,
            pointer: pointer.to_owned(),
            heap: BinaryHeap::new(),
            bytes: 0,
            misfit: None,
        }
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: StateEntry) {
        let score = match entry.value.pointer(&self.pointer) {
            Some(Value::Number(number)) => Score::of(number),
            _ => {
                let misfit = || misfit(&entry, &self.pointer);
                self.misfit.get_or_insert_with(misfit);
                return;
            }
        };
        self.bytes += entry_bytes(&entry);
        self.heap.push(Reverse(Ranked { score, entry }));
        if self.heap.len() > self.count
            && let Some(Reverse(least)) = self.heap.pop()
        {
            self.bytes -= entry_bytes(&least.entry);
        }
    }

    fn check_size(&self) -> Result<(), SearchError> {
        match self.bytes > VALUES_BYTES_MAX && self.heap.len() > 1 {
            true => Err(SearchError::Large),
            false => Ok(()),
        }
    }

    /// Returns the entries in their order, and a description of a value without a number, if one was added.
    pub fn finish(self) -> (Vec<StateEntry>, Option<String>) {
        // The order of `Reverse` is descending.
        let ranked = self.heap.into_sorted_vec().into_iter();
        let entries = ranked.map(|Reverse(Ranked { entry, .. })| entry);
        (entries.collect(), self.misfit)
    }
}

fn entry_bytes(entry: &StateEntry) -> usize {
    entry.key.len() + entry.bytes.len() + bytes_of(&entry.value)
}

struct Ranked {
    score: Score,
    entry: StateEntry,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        let keys = || other.entry.bytes.cmp(&self.entry.bytes);
        self.score.cmp(&other.score).then_with(keys)
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

/// A number of JSON, in an exact order of whole and other numbers.
#[derive(Clone, Copy)]
struct Score {
    nearest: f64,
    /// Decides between numbers with the same nearest one, which are whole then or equal.
    whole: i128,
}

impl Score {
    fn of(number: &Number) -> Score {
        // Adding zero makes -0 zero.
        let nearest = number.as_f64().unwrap_or_default() + 0.0;
        let unsigned = number.as_u64().map(i128::from);
        let whole = unsigned.or_else(|| number.as_i64().map(i128::from));
        Score {
            nearest,
            whole: whole.unwrap_or(nearest as i128),
        }
    }

    fn cmp(&self, other: &Score) -> Ordering {
        let nearest = self.nearest.total_cmp(&other.nearest);
        nearest.then(self.whole.cmp(&other.whole))
    }
}

/// Describes the value of an entry that has no number there.
fn misfit(entry: &StateEntry, pointer: &str) -> String {
    let key = &entry.key;
    match entry.value.pointer(pointer) {
        Some(value) if pointer.is_empty() => {
            format!("the value of the key {key:?} is {}", kind(value))
        }
        Some(value) => {
            let place = &pointer[1..];
            format!(
                "{place:?} in the value of the key {key:?} is {}",
                kind(value)
            )
        }
        None => {
            let place = &pointer[1..];
            let has = kind(&entry.value);
            format!("the value of the key {key:?} has no {place:?}: it is {has}")
        }
    }
}

/// Describes the type of a value.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(_) => "a number".to_owned(),
        Value::String(_) => "a text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(fields) => {
            let names: Vec<&str> = fields.keys().map(String::as_str).take(FIELDS_MAX).collect();
            format!("a record with the fields {}", names.join(", "))
        }
    }
}

/// Searches a state element.
///
/// # Errors
/// When it cannot be searched as a whole.
pub fn search(
    state: &dyn StateReader,
    query: &GreatestQuery,
    clock: &dyn Clock,
) -> Result<GreatestEntries, SearchError> {
    let until = clock.monotonic() + TIME_MAX;
    let check_time = || match clock.monotonic() > until {
        true => Err(SearchError::Slow),
        false => Ok(()),
    };
    let Some(ordered) = state.ordered() else {
        return search_keys(state, query, check_time);
    };
    for _ in 0..ATTEMPTS_MAX {
        if let Some(found) = search_range(ordered, query, check_time)? {
            return Ok(found);
        }
    }
    Err(SearchError::Checkpoints)
}

/// Searches an element by the order of its keys; `None` if another checkpoint was completed meanwhile.
fn search_range(
    state: &dyn OrderedState,
    query: &GreatestQuery,
    check_time: impl Fn() -> Result<(), SearchError>,
) -> Result<Option<GreatestEntries>, SearchError> {
    let mut greatest = Greatest::new(query.count, &query.pointer);
    let mut range = query.range.clone();
    let (mut is_committed, mut checkpoint) = (true, None);
    loop {
        check_time()?;
        let page = state.scan(&range, PAGE_ENTRIES, query.level);
        is_committed &= page.is_committed;
        if checkpoint.is_some() && page.checkpoint != checkpoint {
            return Ok(None);
        }
        checkpoint = page.checkpoint;
        let last = page.entries.last().filter(|_| page.has_more);
        let last = last.map(|last| last.bytes.clone());
        page.entries.into_iter().for_each(|it| greatest.add(it));
        greatest.check_size()?;
        let Some(mut next) = last else {
            break;
        };
        // The least bytes behind those of the key.
        next.push(0);
        range.from = next;
    }
    let (entries, misfit) = greatest.finish();
    Ok(Some(GreatestEntries {
        entries,
        misfit,
        is_committed,
        checkpoint,
    }))
}

/// Searches an element whose keys have no order.
fn search_keys(
    state: &dyn StateReader,
    query: &GreatestQuery,
    check_time: impl Fn() -> Result<(), SearchError>,
) -> Result<GreatestEntries, SearchError> {
    let keys = state.keys(UNORDERED_KEYS_MAX + 1);
    if keys.len() > UNORDERED_KEYS_MAX {
        return Err(SearchError::ManyKeys);
    }
    let mut greatest = Greatest::new(query.count, &query.pointer);
    for key in keys {
        check_time()?;
        // The flow may remove a key meanwhile.
        if let Some(value) = state.get(&key) {
            let bytes = key.clone().into_bytes();
            greatest.add(StateEntry { key, bytes, value });
            greatest.check_size()?;
        }
    }
    let (entries, misfit) = greatest.finish();
    Ok(GreatestEntries {
        entries,
        misfit,
        ..GreatestEntries::default()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use millstream_base::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::ranks::owners::KeyOwners;
    use crate::state::memory::StateMemory;
    use crate::state::value_encoding::Encoding;
    use crate::state::values::{Layout, Place, Values};

    const PARTITIONS: usize = 3;

    /// Each look takes some milliseconds.
    struct Ticking {
        look_ms: u64,
        now_ms: AtomicU64,
    }

    impl Clock for Ticking {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }

        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.now_ms.fetch_add(self.look_ms, Relaxed))
        }
    }

    /// An element in which the keys have the values `key * 7919 % count`, which differ if the count is no multiple of 7919.
    fn values(count: u64) -> Values<u64, u64> {
        let place = Place {
            rank: 0,
            ranks: 1,
            partitions: PARTITIONS,
            memory: StateMemory::of_process(),
            lifetime: None,
            encoding: Encoding::Json,
        };
        let values = Values::new(Layout::of_keys("values"), &place);
        let mut owners = KeyOwners::new(1, PARTITIONS);
        for key in 0..count {
            let owner = owners.of(&key).unwrap();
            let mut table = values.tables()[owner.partition].lock();
            let updated = table.update(&key, |value| *value = Some(key * 7919 % count));
            updated.expect("it is in memory");
        }
        values
    }

    fn query(count: usize, range: KeyRange) -> GreatestQuery {
        GreatestQuery {
            count,
            pointer: String::new(),
            range,
            level: ReadLevel::Live,
        }
    }

    #[test]
    fn a_search_reads_all_pages_of_a_range() {
        let clock = Ticking {
            look_ms: 0,
            now_ms: AtomicU64::new(0),
        };
        for count in [0, 1, 999, 1_000, 1_001, 4_500] {
            let values = values(count);
            let found = search(&values, &query(5, KeyRange::all()), &clock).unwrap();
            let found: Vec<_> = found.entries.iter().map(|it| it.value.as_u64()).collect();
            let expected: Vec<_> = (0..count).rev().take(5).map(Some).collect();
            assert_eq!(found, expected, "{count}");
        }
        let values = values(4_500);
        let encode = |key: u64| values.encode(&key.to_string()).unwrap();
        let range = KeyRange::new(encode(700), Some(encode(2_900)));
        let found = search(&values, &query(10_000, range), &clock).unwrap();
        let mut keys: Vec<u64> = found
            .entries
            .iter()
            .map(|it| it.key.parse().unwrap())
            .collect();
        keys.sort_unstable();
        assert!(keys.into_iter().eq(700..2_900));
        let numbers = found.entries.iter().map(|it| it.value.as_u64());
        assert!(numbers.is_sorted_by(|one, other| one > other));
    }

    #[test]
    fn a_search_ends_in_time() {
        let clock = Ticking {
            look_ms: 1_000,
            now_ms: AtomicU64::new(0),
        };
        let found = search(&values(10_000), &query(5, KeyRange::all()), &clock);
        assert_eq!(found, Err(SearchError::Slow));
        let found = search(&values(2_000), &query(5, KeyRange::all()), &clock);
        assert_eq!(found.map(|found| found.entries.len()), Ok(5));
    }

    fn entry(key: usize, value: &Value) -> StateEntry {
        let key = format!("{key:03}");
        StateEntry {
            bytes: key.clone().into_bytes(),
            key,
            value: value.clone(),
        }
    }

    fn greatest(count: usize, pointer: &str, values: &[Value]) -> (Vec<Value>, Option<String>) {
        let mut greatest = Greatest::new(count, pointer);
        for (key, value) in values.iter().enumerate() {
            greatest.add(entry(key, value));
        }
        let (entries, misfit) = greatest.finish();
        (entries.into_iter().map(|it| it.value).collect(), misfit)
    }

    #[test]
    fn whole_and_other_numbers_have_one_exact_order() {
        let ordered = [
            json!(1e300),
            json!(u64::MAX),
            json!(u64::MAX - 1),
            json!(9_007_199_254_740_993_u64),
            json!(9_007_199_254_740_992.0),
            json!(1.5),
            json!(1),
            json!(0.5),
            json!(-0.0),
            json!(-1),
            json!(i64::MIN),
            json!(-1e300),
        ];
        for count in 0..=ordered.len() {
            let mut values = ordered.to_vec();
            fastrand::Rng::with_seed(count as u64).shuffle(&mut values);
            let (found, misfit) = greatest(count, "", &values);
            assert_eq!(found, ordered[..count]);
            assert_eq!(misfit, None);
        }
    }

    /// The process held all of them at once.
    #[test]
    fn entries_that_take_too_much_memory_are_refused() {
        let large = |number: u64| json!({ "text": "x".repeat(1 << 20), "number": number });
        let mut all = Greatest::new(100, "/number");
        for key in 0..15 {
            all.add(entry(key, &large(7)));
            all.check_size().unwrap();
        }
        let mut few = Greatest::new(10, "/number");
        for key in 0..30 {
            all.add(entry(key, &large(7)));
            few.add(entry(key, &large(7)));
        }
        assert_eq!(all.check_size(), Err(SearchError::Large));
        few.check_size().unwrap();
        let mut one = Greatest::new(100, "/0");
        one.add(entry(0, &json!([1, "x".repeat(20 << 20)])));
        one.check_size().unwrap();
    }

    #[test]
    fn of_equal_numbers_the_least_keys_come_first() {
        let mut all = Greatest::new(2, "");
        for key in [3, 1, 2] {
            all.add(entry(key, &json!(7)));
        }
        let keys: Vec<_> = all.finish().0.into_iter().map(|it| it.key).collect();
        assert_eq!(keys, ["001", "002"]);
    }

    #[test]
    fn values_without_a_number_are_left_out_and_described() {
        let values = [
            json!({ "a": { "b": 1 } }),
            json!({ "a": { "b": null }, "c": 2 }),
        ];
        let (found, misfit) = greatest(5, "/a/b", &values);
        assert_eq!(found, values[..1]);
        let expected = r#""a/b" in the value of the key "001" is null"#;
        assert_eq!(misfit.as_deref(), Some(expected));
        let (found, misfit) = greatest(5, "/d", &values[1..]);
        assert!(found.is_empty());
        let misfit = misfit.unwrap();
        assert!(
            misfit.contains(r#"has no "d": it is a record with the fields a, c"#),
            "{misfit}"
        );
        let (_, misfit) = greatest(5, "", &[json!("x")]);
        assert_eq!(
            misfit.as_deref(),
            Some(r#"the value of the key "000" is a text"#)
        );
    }
}
