//! Windows as a state element: the open and the last closed windows of each key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use millstream_base::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use crate::error::BoxError;
use crate::ranks::owners::KeyOwners;
use crate::state::late::{LateTally, LateTo};
use crate::state::logged_windows::WindowLog;
use crate::state::partial::StateReader;
use crate::state::size::StateSize;
use crate::windows::{self, Combine, Key, WindowResult, WindowStore, WindowTotals, Windows};

/// The windows of a keyed state element; a clone is another handle of the same element. On several ranks each has the
/// keys that it owns.
pub struct Windowed<K, A: Combine> {
    pub(crate) spec: Arc<WindowSpec<A>>,
    pub(super) partitions: Arc<Mutex<Vec<SharedStore<K, A>>>>,
    pub(super) log: Arc<WindowLog>,
    remembered_keys: usize,
    pub(super) rank: u32,
    pub(super) ranks: u32,
}

/// Windows, and the aggregate over their items.
pub struct WindowSpec<A> {
    pub windows: Windows,
    pub aggregate: A,
    /// Items that are in none of the windows since their time was over.
    pub late: Arc<LateTally>,
    /// The greatest watermark of the windows when the flow resumed, `i64::MIN` otherwise. Written before the flow begins,
    /// read by the instances that add up items.
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

    /// The flow resumes where the greatest watermark was this.
    pub fn resume_at(&self, watermark: i64) {
        self.resumed_at.store(watermark, Ordering::Relaxed);
    }

    /// Returns the greatest watermark of the windows when the flow resumed.
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
            log: Arc::clone(&self.log),
            remembered_keys: self.remembered_keys,
            rank: self.rank,
            ranks: self.ranks,
        }
    }
}

impl<K: Key, A: Combine> Windowed<K, A> {
    /// The last released window of up to `remembered_keys` keys of each partition can be read.
    pub(crate) fn new(
        windows: Windows,
        aggregate: A,
        remembered_keys: usize,
        (rank, ranks): (u32, u32),
    ) -> Self {
        Windowed {
            spec: Arc::new(WindowSpec {
                windows,
                aggregate,
                late: Arc::default(),
                resumed_at: Arc::new(AtomicI64::new(i64::MIN)),
                is_used: AtomicBool::new(false),
            }),
            partitions: Arc::default(),
            log: Arc::default(),
            remembered_keys,
            rank,
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
        let (mut sum, mut taken_events) = (WindowTotals::default(), 0_u64);
        for part in self.partitions.lock().iter() {
            let part = part.lock();
            sum += part.totals();
            taken_events = taken_events.saturating_add(part.taken_events());
        }
        // After a resume the first partition has taken the items of all.
        sum.closed_events = taken_events.saturating_sub(sum.open_events);
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
        self.log.changed.lock().push(Arc::default());
        store
    }
}

impl<K: Key, A: Combine> StateReader for Windowed<K, A> {
    fn get(&self, key: &str) -> Option<Value> {
        windows::shown(&self.find(key)?).ok()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        let mut keys = Vec::new();
        for part in self.partitions.lock().iter() {
            let room = limit - keys.len();
            keys.extend(part.lock().keys(room).iter().filter_map(windows::text_of));
        }
        keys
    }

    fn compared(&self) -> &'static str {
        "/value"
    }

    fn has_owners(&self) -> bool {
        true
    }

    fn late_events(&self) -> Option<u64> {
        Some(self.late_events())
    }

    fn late_to(&self) -> LateTo {
        self.spec.late.to()
    }

    fn size(&self) -> StateSize {
        let partitions = self.partitions.lock();
        let sizes = partitions.iter();
        let sizes = sizes.map(|part| part.lock().memory(&self.spec.aggregate));
        StateSize {
            kind: "windows",
            tables: Some(sizes.sum()),
        }
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
        let Some(greatest) = stores.iter().map(WindowStore::watermark).max() else {
            return Ok(());
        };
        let mut stores = stores.into_iter();
        let Some(mut all) = stores.next() else {
            return Ok(());
        };
        stores.for_each(|store| all.absorb(store));
        // Items that are late by the greatest watermark are late at their sources (F10), so windows that end by then are
        // complete.
        all.raise(greatest);
        self.spec.resume_at(greatest.0);
        let (partitions, changed) = (self.partitions.lock(), self.log.changed.lock());
        let mut owners = KeyOwners::new(self.ranks, partitions.len());
        for (index, partition) in partitions.iter().enumerate().skip(1) {
            let mut error = None;
            let part = all.split_off(|key: &K| match owners.of(key) {
                Ok(owner) => owner.partition == index,
                Err(unknown) => {
                    error = Some(unknown);
                    false
                }
            });
            if let Some(error) = error {
                return Err(error.into());
            }
            partition.lock().replace(part, &changed[index]);
        }
        if let Some(first) = partitions.first() {
            first.lock().replace(all, &changed[0]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::state::logged::{Changes, LoggedState};
    use serde_json::json;

    use crate::windows::{Arrival, Count, Trigger, fold};

    fn of_two_partitions() -> Windowed<u64, Count> {
        let windows = Windowed::new(Windows::tumbling(10), Count, 8, (0, 1));
        for _ in 0..2 {
            windows.add_partition();
        }
        windows.note_changes();
        windows
    }

    #[test]
    fn a_result_that_json_cannot_hold_is_left_out_for_readers() {
        type Pairs = BTreeMap<(u8, u8), u64>;
        let pairs = fold(
            Pairs::new,
            |pairs: &mut Pairs, item: &(u8, u8)| *pairs.entry(*item).or_default() += 1,
            |pairs: &mut Pairs, other: &Pairs| pairs.extend(other.clone()),
        );
        let windows = Windowed::new(Windows::tumbling(10), pairs, 8, (0, 1));
        let store = windows.add_partition();
        let at = Timestamp(5);
        let arrival = store
            .lock()
            .add(&windows.spec.aggregate, &1_u64, at, &(2, 3));
        assert_eq!(arrival, Arrival::OnTime);
        assert_eq!(windows.keys(10), ["1"]);
        assert_eq!(windows.get("1"), None);
    }

    #[test]
    fn totals_of_several_partitions_are_the_same_after_a_restore_from_a_changelog() {
        let before = of_two_partitions();
        let mut owners = KeyOwners::new(1, 2);
        for key in 0..100 {
            let owner = owners.of(&key).unwrap();
            let store = Arc::clone(&before.partitions.lock()[owner.partition]);
            let arrival = store.lock().add(&Count, &key, Timestamp(5), &());
            assert_eq!(arrival, Arrival::OnTime);
        }
        assert_eq!(before.totals().open_events, 100);
        let head = before.head(1).unwrap().unwrap().bytes;
        before.cut(1);
        let mut changes = Vec::new();
        let mut take = |all: Changes<'_>| {
            for change in all {
                changes.push(change?);
            }
            Ok(())
        };
        before.write(1, &mut take).unwrap();

        let after = of_two_partitions();
        after.restore_head(&head).unwrap();
        for change in changes {
            let value = change.value.as_deref();
            after.restore_change(&change.key, value).unwrap();
        }
        assert_eq!(after.totals(), before.totals());
    }

    #[track_caller]
    fn check_shown(windows: Windows, entry: &Value, value: &Value) {
        let state = Windowed::new(windows, Count, 8, (0, 1));
        let store = state.add_partition();
        state.note_changes();
        for time in [25, 26] {
            let arrival = store.lock().add(&Count, &7_u64, Timestamp(time), &());
            assert_eq!(arrival, Arrival::OnTime);
        }
        state.head(1).unwrap();
        state.cut(1);
        let mut shown = Vec::new();
        let mut take = |all: Changes<'_>| {
            for change in all {
                let change = change?;
                shown.push(state.show(&change.key, change.value.as_deref())?);
                let deleted = state.show(&change.key, None)?;
                assert_eq!(deleted.value, None);
            }
            Ok(())
        };
        state.write(1, &mut take).unwrap();
        let [change] = &shown[..] else {
            panic!("{shown:?}");
        };
        assert_eq!(change.key.as_deref(), Some("7"));
        assert_eq!(
            (change.entry.as_ref(), change.value.as_ref()),
            (Some(entry), Some(value))
        );
    }

    #[test]
    fn readers_see_the_entries_of_all_kinds_of_windows() {
        let window = |start: i64, end: i64| json!({ "window_start": start, "window_end": end, "value": 2, "events": 2 });
        check_shown(
            Windows::tumbling(10),
            &json!({ "kind": "open", "start": 20, "end": 30 }),
            &window(20, 30),
        );
        check_shown(
            Windows::sliding(20, 10),
            &json!({ "kind": "pane", "start": 20, "end": 30, "first_window": 1, "fragment": 0 }),
            &window(20, 30),
        );
        check_shown(
            Windows::session(10),
            &json!({ "kind": "sessions" }),
            &json!([window(25, 36)]),
        );
        check_shown(
            Windows::global(Trigger::every_events(100)),
            &json!({ "kind": "all" }),
            &window(i64::MIN, i64::MAX),
        );
    }
}
