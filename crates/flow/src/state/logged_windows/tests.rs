//! Windows in partitions at different watermarks that resume in as many partitions or others, beside windows that never
//! stop.

use fastrand::Rng;
use millstream_base::Timestamp;

use super::*;
use crate::state::logged::Changes;
use crate::state::partial::StateReader;
use crate::windows::{
    Arrival, Fold, LocalPanes, Trigger, WindowResult, WindowStore, Windows, fold,
};

type Sum = Fold<fn() -> u64, fn(&mut u64, &u64), fn(&mut u64, &u64)>;

fn sum() -> Sum {
    fold(|| 0, |sum, item| *sum += *item, |sum, other| *sum += other)
}

const KEYS: u8 = 8;

const PARTITIONS_MAX: usize = 3;

type State = Windowed<u8, Sum>;

type Results = Vec<WindowResult<u8, u64>>;

/// How a checkpoint has the windows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Saved {
    InChangelog,
    Whole,
}

struct Model {
    windows: Windows,
    saved: Saved,
    rng: Rng,
    state: State,
    given: Results,
    /// The windows of each key in a store of its own, and their results.
    alone: Vec<WindowStore<u8, u64>>,
    expected: Results,
    checkpoint: u64,
    /// In the order in which the changes were written.
    changelog: Vec<Change>,
}

fn state(windows: Windows, partitions: usize) -> State {
    let state = Windowed::new(windows, sum(), 8, (0, 1));
    for _ in 0..partitions {
        state.add_partition();
    }
    state.note_changes();
    state
}

impl Model {
    fn new(windows: Windows, saved: Saved, seed: u64) -> Model {
        let alone = (0..KEYS).map(|_| WindowStore::new(windows, 8));
        Model {
            windows,
            saved,
            rng: Rng::with_seed(seed),
            state: state(windows, 2),
            given: Vec::new(),
            alone: alone.collect(),
            expected: Vec::new(),
            checkpoint: 0,
            changelog: Vec::new(),
        }
    }

    fn watermarks(&self) -> Vec<Timestamp> {
        let stores = self.state.stores();
        let watermarks = stores.iter().map(|store| store.lock().watermark());
        watermarks.collect()
    }

    fn greatest(&self) -> Timestamp {
        self.watermarks().into_iter().max().unwrap()
    }

    fn partition_of(&self, key: u8) -> usize {
        let partitions = self.state.stores().len();
        KeyOwners::new(1, partitions).of(&key).unwrap().partition
    }

    fn step(&mut self) {
        match self.rng.u32(..40) {
            0..25 => self.add(),
            25..38 => {
                let partition = self.rng.usize(..self.watermarks().len());
                let from = self.watermarks()[partition].0.max(0);
                let to = Timestamp(from + self.rng.i64(0..15));
                self.advance(partition, to);
            }
            _ => self.restart(),
        }
    }

    /// Adds an item of a source for which the watermark is the greatest that a partition has observed.
    fn add(&mut self) {
        let watermark = self.greatest();
        let time = Timestamp(watermark.0.max(0) + self.rng.i64(-40..40));
        let key = self.rng.u8(..KEYS);
        let mut local = LocalPanes::new(self.windows);
        let _ = local.add(&sum(), key, time, watermark, &self.rng.u64(..9));
        let store = Arc::clone(&self.state.stores()[self.partition_of(key)]);
        let alone = &mut self.alone[usize::from(key)];
        local.flush_all(&mut |partial| {
            assert_eq!(alone.merge(&sum(), partial.clone()), Arrival::OnTime);
            assert_eq!(store.lock().merge(&sum(), partial), Arrival::OnTime);
        });
    }

    fn advance(&mut self, partition: usize, watermark: Timestamp) {
        let store = Arc::clone(&self.state.stores()[partition]);
        let given = &mut self.given;
        (store.lock()).advance(&sum(), watermark, &mut |result| given.push(result));
        for key in 0..KEYS {
            if self.partition_of(key) == partition {
                let expected = &mut self.expected;
                let alone = &mut self.alone[usize::from(key)];
                alone.advance(&sum(), watermark, &mut |result| expected.push(result));
            }
        }
    }

    /// Releases the windows that are due, as a partition does before a checkpoint, and when it has resumed.
    fn release(&mut self) {
        for (partition, watermark) in self.watermarks().into_iter().enumerate() {
            self.advance(partition, watermark);
        }
    }

    fn restart(&mut self) {
        self.release();
        let (before, greatest) = (self.watermarks(), self.greatest());
        let next = state(self.windows, self.rng.usize(1..=PARTITIONS_MAX));
        match self.saved {
            Saved::InChangelog => self.resume(&next),
            Saved::Whole => next.restore(&self.state.save().unwrap()).unwrap(),
        }
        assert_eq!(next.totals(), self.state.totals());
        assert_eq!(next.spec.resumed_at(), greatest);
        self.state = next;
        let after = self.watermarks();
        match self.saved == Saved::InChangelog && after.len() == before.len() {
            true => assert_eq!(after, before),
            false => assert!(after.iter().all(|it| *it == greatest)),
        }
        self.release();
        self.check();
    }

    /// Takes a checkpoint, and restores it elsewhere.
    fn resume(&mut self, next: &State) {
        self.checkpoint += 1;
        let head = self.state.head(self.checkpoint).unwrap().unwrap();
        self.state.cut(self.checkpoint);
        let changelog = &mut self.changelog;
        let mut take = |changes: Changes<'_>| {
            for change in changes {
                changelog.push(change?);
            }
            Ok(())
        };
        self.state.write(self.checkpoint, &mut take).unwrap();
        if self.rng.bool() {
            self.compact(head.passed);
        }
        next.restore_head(&head.bytes).unwrap();
        for change in &self.changelog {
            let value = change.value.as_deref();
            next.restore_change(&change.key, value).unwrap();
        }
        next.restored();
    }

    /// Drops changes that were replaced or deleted, and those that no run needs.
    fn compact(&mut self, passed: Option<i64>) {
        let mut newest = std::collections::HashSet::new();
        self.changelog.reverse();
        self.changelog.retain(|change| {
            let is_over = change.expires.is_some_and(|end| Some(end) <= passed);
            newest.insert(change.key.clone()) && change.value.is_some() && !is_over
        });
        self.changelog.reverse();
    }

    /// Each result was given once, by whichever run.
    fn check(&mut self) {
        for results in [&mut self.given, &mut self.expected] {
            results.sort_by_key(|it| (it.key, it.end, it.start, it.is_update, it.events));
        }
        assert_eq!(self.given, self.expected);
    }

    fn finish(mut self) {
        self.state.stores().iter().for_each(|it| it.lock().close());
        self.alone.iter_mut().for_each(WindowStore::close);
        for partition in 0..self.watermarks().len() {
            self.advance(partition, Timestamp(i64::MAX));
        }
        self.check();
    }
}

fn check(windows: Windows) {
    for (saved, seed) in (0..60).flat_map(|seed| [(Saved::InChangelog, seed), (Saved::Whole, seed)])
    {
        let mut model = Model::new(windows, saved, seed);
        for _ in 0..300 {
            model.step();
        }
        model.finish();
    }
}

#[test]
fn partitions_at_different_watermarks_resume_with_tumbling_windows() {
    check(Windows::tumbling(10));
    check(Windows::tumbling(10).allowed_lateness(25));
}

#[test]
fn partitions_at_different_watermarks_resume_with_sliding_windows() {
    check(Windows::sliding(30, 10));
    check(Windows::sliding(25, 10));
    check(Windows::sliding(30, 10).allowed_lateness(25));
}

#[test]
fn partitions_at_different_watermarks_resume_with_sessions() {
    check(Windows::session(8));
    check(Windows::session(8).allowed_lateness(25));
}

#[test]
fn partitions_at_different_watermarks_resume_with_global_windows() {
    for trigger in [Trigger::every_events(4), Trigger::every_ms(10)] {
        check(Windows::global(trigger));
        check(Windows::global(trigger.purging()));
    }
}

#[test]
fn a_checkpoint_of_an_earlier_build_has_one_watermark_for_all_partitions() {
    let before = state(Windows::tumbling(10), 1);
    let store = Arc::clone(&before.stores()[0]);
    store.lock().advance(&sum(), Timestamp(20), &mut |_| ());
    let head = Head {
        late_events: 3,
        store: Some(store.lock().head(1)),
    };
    let after = state(Windows::tumbling(10), 2);
    let head = postcard::to_stdvec(&head).unwrap();
    after.restore_head(&head).unwrap();
    let watermarks = after.stores();
    let watermarks = watermarks.iter().map(|store| store.lock().watermark());
    assert!(watermarks.eq([Timestamp(20); 2]));
    assert_eq!(after.late_events(), 3);
}
