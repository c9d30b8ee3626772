use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::task::Waker;

use super::*;
use crate::error::BoxError;
use crate::state::changelog_reader::{ChangelogReader, RestoreChange};
use crate::state::value_history::ChangeCursor;

const KEYS: u32 = 16;

type Map = BTreeMap<u32, u64>;

/// The table reads nothing by itself.
struct NoReader;

impl ChangelogReader for NoReader {
    fn get(&self, _: &[Vec<u8>], _: &AtomicBool) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        unreachable!()
    }

    fn read_all(&self, _: &AtomicBool, _: &mut RestoreChange<'_>) -> Result<(), BoxError> {
        unreachable!()
    }
}

fn apply(map: &mut Map, key: u32, value: Option<u64>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// A table that has resumed, beside plain maps. Look-ups and the scan only find what earlier runs have left, as they do at
/// the latest moment that invariants allow.
struct Model {
    table: ValueTable<u32, u64>,
    /// The changelog at the start, in its order, and the values in it.
    log: VecDeque<(u32, Option<u64>)>,
    resumed: Map,
    now: Map,
    /// The values at the beginning and at each checkpoint.
    cuts: Vec<Map>,
    /// The changelog now.
    logged: Map,
    cursor: ChangeCursor,
    written: u64,
    complete: u64,
    /// Keys that the loader has taken, with the values that it has read.
    loads: Vec<(u32, Option<u64>)>,
}

impl Model {
    fn new(rng: &mut fastrand::Rng) -> Model {
        let change = |_| (rng.u32(..KEYS), (rng.u32(..4) > 0).then(|| rng.u64(..100)));
        let log: VecDeque<_> = (0..60).map(change).collect();
        let mut resumed = Map::new();
        for (key, value) in &log {
            apply(&mut resumed, *key, *value);
        }
        let mut table = ValueTable::default();
        table.note_changes();
        let loading = Loading::new(Arc::new(NoReader), Waker::noop().clone());
        table.begin_cold(&Arc::new(loading));
        Model {
            table,
            log,
            now: resumed.clone(),
            cuts: vec![resumed.clone()],
            logged: resumed.clone(),
            resumed,
            cursor: ChangeCursor::default(),
            written: 0,
            complete: 0,
            loads: Vec::new(),
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

    fn take_wanted(&mut self) {
        let wanted = self.table.take_wanted().into_iter();
        self.loads
            .extend(wanted.map(|key| (key, self.resumed.get(&key).copied())));
    }

    fn load(&mut self, rng: &mut fastrand::Rng) {
        if !self.loads.is_empty() {
            let (key, value) = self.loads.swap_remove(rng.usize(..self.loads.len()));
            self.table.load(key, value);
            assert!(self.table.is_known(&key));
        }
    }

    fn scan(&mut self) {
        match self.log.pop_front() {
            Some((key, value)) => self.table.stage(key, value),
            None => drop(self.table.become_whole()),
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
                apply(&mut self.logged, key, value);
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
                // Reads of it find the same in the changelog.
                assert_eq!(self.resumed.get(&key), self.now.get(&key), "key {key}");
                assert_eq!(self.resumed.get(&key), complete.get(&key), "key {key}");
            }
        }
        if let Some((key, value)) = self.table.sample() {
            assert_eq!(self.now.get(key), Some(value));
        }
    }
}

#[test]
fn values_are_right_while_they_are_loaded_staged_changed_and_removed() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut model = Model::new(&mut rng);
        // Some runs never read all.
        let scans = seed % 3 > 0;
        for _ in 0..600 {
            match rng.u32(..16) {
                0 => model.cut(),
                1 | 2 => model.write(),
                3 => model.complete(),
                4 => drop(model.table.sweep(rng.usize(1..3))),
                5 => model.take_wanted(),
                6 | 7 => model.load(&mut rng),
                8 if scans => model.scan(),
                9 => model.update(rng.u32(..KEYS), None),
                _ => {
                    let value = rng.u64(..100);
                    model.update(rng.u32(..KEYS), Some(value));
                }
            }
            model.check();
        }
        if scans {
            while model.table.cold.is_some() {
                model.scan();
            }
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
}

#[test]
fn keys_that_are_known_are_not_wanted() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut model = Model::new(&mut rng);
    model.table.want(vec![1, 2, 1]);
    model.table.load(2, None);
    assert_eq!(model.table.take_wanted(), [1]);
    assert!(model.table.take_wanted().is_empty());
    model.table.want(vec![3]);
    drop(model.table.become_whole());
    assert!(model.table.take_wanted().is_empty());
}
