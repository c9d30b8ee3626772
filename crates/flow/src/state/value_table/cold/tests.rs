use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::task::Waker;

use millstream_base::KeyRange;

use super::*;
use crate::error::BoxError;
use crate::state::changelog_reader::{ChangelogReader, RestoreChange, ValuePage};
use crate::state::value_history::ChangeCursor;

const KEYS: u32 = 16;

type Map = BTreeMap<u32, u64>;

/// Keys with the values that a look-up has found.
type Found = Vec<(u32, Option<u64>)>;

/// The table reads nothing by itself.
struct NoReader;

fn no_loading() -> Arc<Loading> {
    let reader: Arc<dyn ChangelogReader> = Arc::new(NoReader);
    Arc::new(Loading::new(reader, Waker::noop().clone()))
}

impl ChangelogReader for NoReader {
    fn is_large(&self) -> bool {
        true
    }

    fn get(&self, _: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        unreachable!()
    }

    fn read_all(&self, _: &AtomicBool, _: &mut RestoreChange<'_>) -> Result<(), BoxError> {
        unreachable!()
    }

    fn range(&self, _: &KeyRange, _: usize, _: &AtomicBool) -> Result<ValuePage, BoxError> {
        unreachable!()
    }

    fn ends(&self, _: &AtomicBool) -> Result<Vec<u64>, BoxError> {
        unreachable!()
    }

    fn is_stable(&self, _: &[u64], _: &AtomicBool) -> Result<bool, BoxError> {
        unreachable!()
    }
}

fn apply(map: &mut Map, key: u32, value: Option<u64>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// A table that has resumed, beside plain maps. The scan only finds what earlier runs have left, and look-ups find that and the
/// changes up to a complete checkpoint, as they do at the latest moment that invariants allow.
struct Model {
    table: ValueTable<u32, u64>,
    loading: Arc<Loading>,
    /// The changelog at the start, in its order.
    log: VecDeque<(u32, Option<u64>)>,
    now: Map,
    /// The values at the beginning and at each checkpoint.
    cuts: Vec<Map>,
    /// The changelog now.
    logged: Map,
    cursor: ChangeCursor,
    written: u64,
    complete: u64,
    /// The checkpoint whose changes look-ups find that begin now.
    visible: u64,
    /// Look-ups under way, with the values that they have found.
    lookups: Vec<(Lookup, Found)>,
    evicted: usize,
}

impl Model {
    fn new(rng: &mut fastrand::Rng) -> Model {
        let changes = [60, 6][rng.usize(..2)];
        let change = |_| (rng.u32(..KEYS), (rng.u32(..4) > 0).then(|| rng.u64(..100)));
        let log: VecDeque<_> = (0..changes).map(change).collect();
        let mut resumed = Map::new();
        for (key, value) in &log {
            apply(&mut resumed, *key, *value);
        }
        let mut table = ValueTable::default();
        table.note_changes();
        let loading = no_loading();
        table.begin_cold(&loading);
        Model {
            table,
            loading,
            log,
            now: resumed.clone(),
            cuts: vec![resumed.clone()],
            logged: resumed,
            cursor: ChangeCursor::default(),
            written: 0,
            complete: 0,
            visible: 0,
            lookups: Vec::new(),
            evicted: 0,
        }
    }

    fn update(&mut self, key: u32, value: Option<u64>) {
        let is_known = self.table.is_known(&key);
        let before = self.now.get(&key).copied();
        let updated = self.table.update(&key, |present| {
            assert_eq!(*present, before);
            *present = value;
        });
        assert_eq!(updated.is_some(), is_known);
        match updated {
            Some(()) => apply(&mut self.now, key, value),
            None => self.table.want(vec![key, key]),
        }
    }

    fn look_up(&mut self, lookup: Lookup, keys: Vec<u32>) {
        let shown = &self.cuts[self.visible as usize];
        let found = keys.iter().map(|key| (*key, shown.get(key).copied()));
        self.lookups.push((lookup, found.collect()));
    }

    fn take_wanted(&mut self) {
        if let Some((keys, lookup)) = self.table.take_wanted() {
            self.look_up(lookup, keys);
        }
    }

    /// As a reader of the state does.
    fn read(&mut self, key: u32) {
        if !self.table.is_known(&key)
            && let Some(lookup) = self.table.begin_lookup()
        {
            self.look_up(lookup, vec![key]);
        }
    }

    fn load(&mut self, rng: &mut fastrand::Rng) {
        if !self.lookups.is_empty() {
            let (lookup, found) = self.lookups.swap_remove(rng.usize(..self.lookups.len()));
            let values = found
                .iter()
                .map(|(key, value)| (*key, value.map(Dated::from)));
            self.table.load(lookup, values);
            assert!(found.iter().all(|(key, _)| self.table.is_known(key)));
        }
    }

    fn scan(&mut self) {
        if !self.table.is_staging() {
            return;
        }
        match self.log.pop_front() {
            Some((key, value)) => self.table.stage(key, value.map(Dated::from)),
            None => drop(self.table.become_whole()),
        }
    }

    /// The changes up to a complete checkpoint become visible.
    fn show(&mut self) {
        self.visible = self.complete.min(self.visible + 1);
    }

    fn evict(&mut self, slots: usize, limit: usize) {
        if !self.table.is_staging() {
            let evicted = self.table.evict(self.visible, &self.loading, slots, limit);
            assert!(evicted.len() <= limit);
            self.evicted += evicted.len();
        }
    }

    fn cut(&mut self) {
        self.table.cut(self.cuts.len() as u64);
        self.cuts.push(self.now.clone());
        self.cursor = ChangeCursor::default();
    }

    /// Writes the changes of the last cut.
    fn write(&mut self) {
        let checkpoint = self.cuts.len() as u64 - 1;
        if checkpoint == self.written {
            return;
        }
        loop {
            let changes = self.table.changes(checkpoint, &mut self.cursor, 3);
            if changes.is_empty() {
                break;
            }
            for (key, value) in changes {
                apply(&mut self.logged, key, value.map(|it| it.value));
            }
        }
        self.table.written(checkpoint);
        self.written = checkpoint;
        assert_eq!(Some(&self.logged), self.cuts.last());
    }

    fn complete(&mut self) {
        if self.complete < self.written {
            self.complete = self.written;
            self.table.complete(self.complete);
        }
    }

    fn check(&self) {
        let checkpoint = self.table.checkpoint().unwrap();
        let complete = &self.cuts[checkpoint as usize];
        for key in 0..KEYS {
            if self.table.is_known(&key) {
                assert_eq!(self.table.get(&key), self.now.get(&key), "key {key}");
                let committed = self.table.committed(&key).value;
                assert_eq!(committed, complete.get(&key), "key {key}");
            } else {
                // Look-ups that begin find the same.
                let shown = &self.cuts[self.visible as usize];
                assert_eq!(shown.get(&key), self.now.get(&key), "key {key}");
                assert_eq!(shown.get(&key), complete.get(&key), "key {key}");
            }
        }
        if let Some((key, value)) = self.table.sample() {
            assert_eq!(self.now.get(key), Some(value));
        }
    }
}

#[test]
fn values_are_right_while_they_are_loaded_staged_changed_removed_and_evicted() {
    let (mut evicted, mut whole) = (0, 0);
    for seed in 0..400 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = Model::new(&mut rng);
        // Some runs never read all, and some give up.
        let scans = seed % 3 > 0;
        // The first read of a range builds the index.
        let ranges_from = [0, 300, 600][seed as usize / 3 % 3];
        for step in 0..600 {
            match rng.u32(..24) {
                0 => model.cut(),
                1 | 2 => model.write(),
                3 => model.complete(),
                4 => drop(model.table.sweep(rng.usize(1..3))),
                5 => model.take_wanted(),
                6 | 7 => model.load(&mut rng),
                8 if scans => model.scan(),
                9 => model.update(rng.u32(..KEYS), None),
                10 | 11 => model.show(),
                12 | 13 => model.evict(rng.usize(1..20), rng.usize(1..5)),
                14 => model.read(rng.u32(..KEYS)),
                15 if model.table.is_staging() && rng.u32(..20) == 0 => {
                    model.table.give_up_staging();
                }
                _ => {
                    let value = rng.u64(..100);
                    model.update(rng.u32(..KEYS), Some(value));
                }
            }
            model.check();
            if step >= ranges_from {
                model.table.assert_indexed();
            }
        }
        evicted += model.evicted;
        while model.table.is_staging() && scans {
            model.scan();
        }
        if !model.table.is_cold() {
            whole += 1;
            let all: Map = model
                .table
                .iter()
                .map(|(key, value)| (*key, *value))
                .collect();
            assert_eq!(all, model.now);
        }
        model.cut();
        model.write();
    }
    assert!(evicted > 1_000 && whole > 10, "{evicted} {whole}");
}

#[test]
fn keys_that_are_known_are_not_wanted() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut model = Model::new(&mut rng);
    model.table.want(vec![1, 2, 1]);
    let lookup = model.table.begin_lookup().unwrap();
    model.table.load(lookup, [(2, None)]);
    let (wanted, _) = model.table.take_wanted().unwrap();
    assert_eq!(wanted, [1]);
    assert!(model.table.take_wanted().is_none());
    model.table.want(vec![3]);
    drop(model.table.become_whole());
    assert!(model.table.take_wanted().is_none());
}

#[test]
fn values_that_are_used_stay_longer() {
    let loading = no_loading();
    let mut table = ValueTable::<u32, u64>::default();
    table.note_changes();
    for key in 0..100 {
        table.update(&key, |value| *value = Some(7)).unwrap();
    }
    for checkpoint in 1..4 {
        table.cut(checkpoint);
        table.written(checkpoint);
        table.complete(checkpoint);
        for key in 0..10 {
            table.update(&key, |value| *value = Some(8)).unwrap();
        }
        let slots = table.len();
        table.evict(checkpoint, &loading, slots, 100);
    }
    assert_eq!(table.len(), 10);
    assert!((0..10).all(|key| table.get(&key) == Some(&8)));
    assert!(!table.is_known(&11));
}

/// No value left while the flow was silent, if its first checkpoints were written when memory was not scarce.
#[test]
fn values_of_earlier_runs_leave_when_the_history_has_forgotten_the_beginning() {
    let loading = no_loading();
    let mut table = ValueTable::<u32, u64>::default();
    table.note_changes();
    table.begin_cold(&loading);
    let lookup = table.begin_lookup().unwrap();
    table.load(
        lookup,
        [(1, Some(Dated::from(10))), (2, Some(Dated::from(20)))],
    );
    table.give_up_staging();
    table.update(&2, |value| *value = Some(21)).unwrap();
    for checkpoint in 1..3 {
        table.cut(checkpoint);
        table.written(checkpoint);
        table.complete(checkpoint);
    }
    let slots = table.len();
    let evicted = (0..2).map(|_| table.evict(0, &loading, slots, 10).len());
    assert_eq!(evicted.sum::<usize>(), 1);
    assert!(!table.is_known(&1));
    assert_eq!(table.get(&2), Some(&21));
}

#[test]
fn a_look_up_from_before_the_end_of_the_scan_brings_no_removed_value_back() {
    let loading = no_loading();
    let mut table = ValueTable::<u32, u64>::default();
    table.note_changes();
    table.begin_cold(&loading);
    let lookup = table.begin_lookup().unwrap();
    table.stage(1, Some(Dated::from(10)));
    table.stage(2, Some(Dated::from(20)));
    drop(table.become_whole());
    table.update(&1, |value| *value = None).unwrap();
    table.cut(1);
    table.written(1);
    table.complete(1);
    while table.sweep(10).is_some() {}
    assert_eq!(table.len(), 1, "the removed key is forgotten");
    let evict = |table: &mut ValueTable<u32, u64>| {
        let slots = table.len();
        table.evict(1, &loading, slots, 10).len()
    };
    assert_eq!(evict(&mut table), 0);
    table.load(lookup, [(1, Some(Dated::from(10)))]);
    assert_eq!(table.get(&1), None);
    assert_eq!(evict(&mut table), 1);
    assert!(!table.is_known(&1) && !table.is_known(&2));
}
