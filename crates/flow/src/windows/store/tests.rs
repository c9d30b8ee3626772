//! A store whose changes go to a changelog, beside copies of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_base::key::decode_key;

use super::*;
use crate::windows::{Fold, Trigger, fold};

type Add = Fold<fn() -> u64, fn(&mut u64, &u64), fn(&mut u64, &u64)>;

fn sum() -> Add {
    fold(|| 0, |sum, item| *sum += *item, |sum, other| *sum += *other)
}

type Store = WindowStore<u8, u64>;

const KEYS: u8 = 5;

/// All keys, in both generations.
const REMEMBERED: usize = 2 * KEYS as usize;

/// The content of each name in a checkpoint, and its end.
type Logged = BTreeMap<Vec<u8>, (Option<Vec<u8>>, Option<i64>)>;

/// A name, its content and its end.
type Record = (Vec<u8>, Option<Vec<u8>>, Option<i64>);

/// A checkpoint that is complete.
struct Complete {
    head: StoreHead,
    /// A copy of the store at the cut.
    copy: Store,
}

struct Model {
    windows: Windows,
    rng: Rng,
    store: Store,
    time: i64,
    /// The watermark that the store has yet to reach in full.
    due: Option<i64>,
    checkpoint: u64,
    /// The copy, the place and the changes of the checkpoint that is being written.
    writing: Option<(Complete, StoreCursor, Logged)>,
    /// In the order in which they were written, so that a name may be there several times.
    logged: Vec<Record>,
    complete: Complete,
}

fn noting(mut store: Store) -> Store {
    store.note_changes(&Arc::default());
    store
}

impl Model {
    fn new(windows: Windows, seed: u64) -> Model {
        let store = noting(Store::new(windows, REMEMBERED));
        let complete = Complete {
            head: store.head(0),
            copy: store.clone(),
        };
        Model {
            windows,
            rng: Rng::with_seed(seed),
            store,
            time: 0,
            due: None,
            checkpoint: 0,
            writing: None,
            logged: Vec::new(),
            complete,
        }
    }

    /// Begins with windows that a checkpoint has whole: none of their changes was noted.
    fn resume_whole(&mut self) {
        self.store = Store::new(self.windows, REMEMBERED);
        for _ in 0..40 {
            self.add();
            self.add();
            self.advance();
        }
        self.rest();
        self.store.note_changes(&Arc::default());
        self.cut();
        while self.writing.is_some() {
            self.write();
        }
    }

    fn step(&mut self) {
        match self.rng.u32(..20) {
            0..10 => self.add(),
            10..13 => self.advance(),
            13 => self.cut(),
            14..18 => self.write(),
            18 => self.collect_garbage(),
            _ => self.crash(),
        }
    }

    fn add(&mut self) {
        self.time += self.rng.i64(0..6);
        let time = Timestamp(self.time - self.rng.i64(0..40));
        let key = self.rng.u8(..KEYS);
        let _ = self.store.add(&sum(), &key, time, &self.rng.u64(..9));
    }

    /// Goes on with results that are due, or makes more due.
    fn advance(&mut self) {
        let due = *self.due.get_or_insert(self.time - self.rng.i64(0..30));
        let limit = self.rng.usize(1..6);
        if (self.store).advance_some(&sum(), Timestamp(due), limit, &mut |_| ()) {
            self.due = None;
        }
    }

    fn rest(&mut self) {
        while self.due.is_some() {
            self.advance();
        }
        // Results may be due by their count.
        let watermark = self.store.watermark();
        self.store.advance(&sum(), watermark, &mut |_| ());
    }

    /// A checkpoint that is not written yet is given up.
    fn cut(&mut self) {
        self.rest();
        self.checkpoint += 1;
        let cut = Complete {
            head: self.store.head(self.checkpoint),
            copy: self.store.clone(),
        };
        self.store.cut(self.checkpoint);
        self.writing = Some((cut, StoreCursor::default(), Logged::new()));
    }

    fn write(&mut self) {
        let Some((_, cursor, changes)) = &mut self.writing else {
            return;
        };
        for _ in 0..self.rng.usize(1..4) {
            let Some(change) = self.store.next_change(cursor) else {
                return self.complete();
            };
            let (name, content) = change.encode().unwrap();
            let is_released = matches!(change.id, EntryId::Released { .. });
            let former = changes.insert(name, (content, change.end));
            assert!(former.is_none() || is_released, "{:?} again", change.id);
        }
        if self.rng.u32(..40) == 0 {
            // After an error it is written anew.
            (*cursor, *changes) = (StoreCursor::default(), Logged::new());
        }
    }

    fn complete(&mut self) {
        if let Some((complete, _, changes)) = self.writing.take() {
            let changes = changes.into_iter();
            (self.logged).extend(changes.map(|(name, (content, end))| (name, content, end)));
            drop(self.store.written());
            self.complete = complete;
        }
    }

    /// Compaction drops entries that were replaced or deleted, and those that are over by a complete checkpoint.
    fn collect_garbage(&mut self) {
        let watermark = self.complete.head.watermark;
        let is_over = |end: Option<i64>| end.is_some_and(|end| end <= watermark);
        let logged = self.logged.iter().enumerate();
        let newest: BTreeMap<_, _> = logged.map(|(at, (name, ..))| (name.clone(), at)).collect();
        let mut at = 0..;
        self.logged.retain(|(name, content, end)| {
            at.next() == newest.get(name).copied() && content.is_some() && !is_over(*end)
        });
    }

    /// The store is lost, and restored from the changelog.
    fn crash(&mut self) {
        let mut restored = noting(Store::new(self.windows, REMEMBERED));
        restored.resume(&self.complete.head);
        restored.add_totals(self.complete.head);
        let watermark = self.complete.head.watermark;
        for (name, content, _) in &self.logged {
            let (id, content) = (decode_key(name).unwrap(), content.as_deref());
            restored.restore(&sum(), id, content, watermark).unwrap();
        }
        restored.restored(&sum());
        let future = self.rng.u64(..);
        let mut copy = self.complete.copy.clone();
        assert_same(&restored, &copy);
        assert_released(&restored, &copy);
        assert_same_future(restored.clone(), copy.clone(), future);
        self.checkpoint = self.complete.head.checkpoint;
        (self.due, self.writing) = (None, None);
        std::mem::swap(&mut self.store, &mut restored);
        // Those that were released last are remembered in another order.
        copy = self.store.clone();
        self.complete.copy = copy;
    }
}

#[track_caller]
fn assert_same(store: &Store, other: &Store) {
    assert_eq!(store.watermark(), other.watermark());
    assert_eq!(store.totals(), other.totals());
    for key in 0..KEYS {
        let newest = |store: &Store| {
            let newest = store.open.newest(&sum(), &key);
            newest.map(|window| window.result(&sum(), key))
        };
        assert_eq!(newest(store), newest(other), "key {key}");
    }
}

/// The windows that were released last may be older ones: a run that resumes releases those behind the cut again.
#[track_caller]
fn assert_released(store: &Store, other: &Store) {
    for key in 0..KEYS {
        let end = |store: &Store| store.released.get(&key).map(|window| window.end);
        assert!(end(store) <= end(other), "key {key}");
    }
}

/// Both give the same results of the same items.
#[track_caller]
fn assert_same_future(mut store: Store, mut other: Store, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut watermark = store.watermark().0.max(-100);
    for _ in 0..20 {
        for _ in 0..3 {
            let (key, item) = (rng.u8(..KEYS), rng.u64(..9));
            let time = Timestamp(watermark + rng.i64(-30..40));
            let arrival = store.add(&sum(), &key, time, &item);
            assert_eq!(arrival, other.add(&sum(), &key, time, &item));
        }
        watermark += rng.i64(0..15);
        let results = |store: &mut Store| {
            let mut results = Vec::new();
            store.advance(&sum(), Timestamp(watermark), &mut |result| {
                results.push(result)
            });
            results.sort_by_key(|it| (it.end, it.start, it.key, it.events));
            results
        };
        assert_eq!(results(&mut store), results(&mut other));
    }
    assert_eq!(store.totals(), other.totals());
}

fn check(windows: Windows) {
    for seed in 0..20 {
        let mut model = Model::new(windows, seed);
        if seed % 2 == 1 {
            model.resume_whole();
        }
        for _ in 0..400 {
            model.step();
        }
        model.crash();
    }
}

#[test]
fn tumbling_windows_are_restored_as_they_were_at_the_cut() {
    check(Windows::tumbling(10));
    check(Windows::tumbling(10).allowed_lateness(25));
}

#[test]
fn sliding_windows_are_restored_as_they_were_at_the_cut() {
    check(Windows::sliding(30, 10));
    check(Windows::sliding(25, 10));
    check(Windows::sliding(30, 10).allowed_lateness(25));
}

#[test]
fn sessions_are_restored_as_they_were_at_the_cut() {
    check(Windows::session(8));
    check(Windows::session(8).allowed_lateness(25));
}

#[test]
fn global_windows_are_restored_as_they_were_at_the_cut() {
    for trigger in [Trigger::every_events(4), Trigger::every_ms(10)] {
        check(Windows::global(trigger));
        check(Windows::global(trigger.purging()));
    }
}
