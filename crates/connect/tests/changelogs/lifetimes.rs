//! State elements with a lifetime: their values end in memory, for readers and in the changelog, also while the flow is stopped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::key::encode_key;
use millstream_base::{Clock, KeyRange, SystemClock, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::{
    BoxError, Checkpointing, Flow, FlowSettings, OrderedState, Output, ReadLevel, Resume, Running,
    Source, SourcePartitions, SourceStatus, StateReader, Values,
};

use crate::clocks::{AT_ONCE, CLOCK_MIN, stored, wait_until, wait_until_compacted};
use crate::support::{World, for_both};

/// A wall clock that is moved by hand; all else goes on by itself.
#[derive(Default)]
struct WallClock(AtomicI64, SystemClock);

impl WallClock {
    fn set(&self, seconds: i64) {
        self.0.store(seconds * 1_000, Ordering::Relaxed);
    }
}

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::Relaxed))
    }

    fn monotonic(&self) -> Duration {
        self.1.monotonic()
    }
}

/// A source of numbers that the test gives.
#[derive(Clone, Default)]
struct Hand(Arc<Mutex<(VecDeque<u64>, Option<Waker>)>>);

impl Hand {
    fn give(&self, numbers: impl IntoIterator<Item = u64>) {
        let mut state = self.0.lock().unwrap();
        state.0.extend(numbers);
        state.1.take().inspect(Waker::wake_by_ref);
    }
}

impl Source for Hand {
    type Item = u64;

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut state = self.0.lock().unwrap();
        if state.0.is_empty() {
            state.1 = Some(waker.clone());
            return Ok(SourceStatus::Idle);
        }
        let count = state.0.len().min(budget);
        out.extend(state.0.drain(..count));
        Ok(SourceStatus::Ready)
    }

    /// Numbers that were taken do not come again.
    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A run of a flow that counts numbers, each for a lifetime.
struct Counting {
    running: Running,
    counts: Values<u64, u64>,
    hand: Hand,
}

impl Counting {
    /// Begins or resumes, with a lifetime in seconds.
    fn start(world: &World, clock: &Arc<WallClock>, lifetime: u64) -> Counting {
        Counting::start_on(Ranks::alone(), world, clock, lifetime)
    }

    /// The same on several ranks, each with a clock of its own.
    fn start_all(world: &World, clocks: &[Arc<WallClock>], lifetime: u64) -> Vec<Counting> {
        let ranks = Ranks::threads(clocks.len() as u32);
        thread::scope(|scope| {
            let threads = ranks.into_iter().zip(clocks).map(|(ranks, clock)| {
                scope.spawn(move || Counting::start_on(ranks, world, clock, lifetime))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        })
    }

    fn start_on(ranks: Ranks, world: &World, clock: &Arc<WallClock>, lifetime: u64) -> Counting {
        let settings = FlowSettings {
            ranks,
            clock: Arc::clone(clock) as _,
            checkpoints: Some(Checkpointing {
                store: Arc::clone(&world.store),
                interval: Some(Duration::from_millis(5)),
                resume: Resume::IfAny,
            }),
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("shop", settings);
        let counts = flow.lifetime(Duration::from_secs(lifetime));
        let counts = counts.values::<u64, u64>("users");
        let hand = Hand::default();
        flow.source("numbers", hand.clone())
            .key_by(|number| *number)
            .count("count", &counts);
        Counting {
            running: flow.run().unwrap(),
            counts,
            hand,
        }
    }

    fn all(&self, level: ReadLevel) -> BTreeMap<u64, u64> {
        let page = self.counts.scan(&KeyRange::all(), 1_000, level);
        let entries = page.entries.into_iter();
        entries
            .map(|entry| (entry.key.parse().unwrap(), entry.value.as_u64().unwrap()))
            .collect()
    }

    /// Waits until all readers find these counts.
    #[track_caller]
    fn check(&self, expected: &[(u64, u64)]) {
        let expected: BTreeMap<_, _> = expected.iter().copied().collect();
        wait_until("the counts are committed", || {
            self.all(ReadLevel::Committed) == expected
        });
        assert_eq!(self.all(ReadLevel::Live), expected);
        for key in 0..10 {
            let found = expected.get(&key).copied();
            assert_eq!(self.counts.get(&key), found);
            let text = StateReader::get(&self.counts, &key.to_string());
            assert_eq!(text, found.map(Into::into));
        }
    }

    /// Counts a number until `checkpoints` further checkpoints are stored. Returns its count.
    fn count_for(&self, number: u64, checkpoints: u64) -> u64 {
        let kept = || self.running.checkpoints().unwrap().kept;
        let first = kept();
        let mut given = 0;
        while kept() < first + checkpoints {
            self.hand.give([number]);
            given += 1;
            thread::sleep(Duration::from_millis(5));
            assert!(given < 12_000, "no checkpoint is stored");
        }
        given
    }
}

/// The keys of the records in the changelog.
fn keys(world: &World) -> BTreeSet<u64> {
    let stored: BTreeSet<Vec<u8>> = stored(world).into_iter().collect();
    let is_stored = |key: &u64| {
        let mut bytes = Vec::new();
        encode_key(key, &mut bytes).unwrap();
        stored.contains(&bytes)
    };
    (0..10).filter(is_stored).collect()
}

#[test]
fn values_end_for_readers_in_the_changelog_and_while_the_flow_is_stopped() {
    for_both(|world| {
        let clock = Arc::new(WallClock::default());
        clock.set(1_000);
        let run = Counting::start(world, &clock, 100);
        world.set(&AT_ONCE);
        run.hand.give([1, 2]);
        run.check(&[(1, 1), (2, 1)]);
        clock.set(1_060);
        run.hand.give([2, 3]);
        run.check(&[(1, 1), (2, 2), (3, 1)]);
        clock.set(1_110);
        run.check(&[(2, 2), (3, 1)]);
        // The records of the first go when checkpoints have passed its end.
        wait_until("the record that has ended goes", || {
            run.hand.give([4]);
            !keys(world).contains(&1)
        });
        assert!(keys(world).is_superset(&[2, 3, 4].into()));
        drop(run);
        // Two others end while the flow is stopped.
        clock.set(1_170);
        let run = Counting::start(world, &clock, 100);
        let found = run.all(ReadLevel::Live);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&4]);
        run.hand.give([2]);
        run.check(&[(2, 1), (4, found[&4])]);
        wait_until("the records that have ended go", || {
            run.hand.give([2]);
            !keys(world).contains(&3)
        });
        drop(run);
        let run = Counting::start(world, &clock, 100);
        let found = run.all(ReadLevel::Live);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&2, &4]);
    });
}

#[test]
fn a_longer_lifetime_keeps_all_values_that_have_not_ended() {
    for_both(|world| {
        let clock = Arc::new(WallClock::default());
        clock.set(1_000);
        let run = Counting::start(world, &clock, 100);
        run.hand.give([1]);
        run.check(&[(1, 1)]);
        clock.set(1_060);
        run.hand.give([2]);
        run.check(&[(1, 1), (2, 1)]);
        clock.set(1_105);
        run.hand.give([3]);
        run.check(&[(2, 1), (3, 1)]);
        drop(run);
        // The first one had ended.
        let run = Counting::start(world, &clock, 1_000);
        run.check(&[(2, 1), (3, 1)]);
        world.set(&AT_ONCE);
        // By the shorter lifetime the others would have ended, too.
        clock.set(1_900);
        let count = run.count_for(4, 5);
        run.check(&[(2, 1), (3, 1), (4, count)]);
        wait_until_compacted(world);
        assert!(keys(world).is_superset(&[2, 3, 4].into()));
        drop(run);
        // The changelog has them.
        let run = Counting::start(world, &clock, 1_000);
        run.check(&[(2, 1), (3, 1), (4, count)]);
        clock.set(2_070);
        run.check(&[(3, 1), (4, count)]);
        wait_until("the record that has ended goes", || {
            run.hand.give([5]);
            !keys(world).contains(&2)
        });
        drop(run);
        // A shorter one counts from the last changes, too.
        let run = Counting::start(world, &clock, 100);
        let found = run.all(ReadLevel::Live);
        assert_eq!(found.keys().collect::<Vec<_>>(), [&5]);
    });
}

/// The counts of all ranks.
fn counts(runs: &[Counting]) -> BTreeMap<u64, u64> {
    runs.iter().flat_map(|it| it.all(ReadLevel::Live)).collect()
}

/// The ranks share the changelog, so it keeps the changes that the rank with the slowest clock needs.
#[test]
fn ranks_with_different_clocks_resume_with_all_values() {
    for_both(|world| {
        let clocks = [1_000, 2_000].map(|seconds| {
            let clock = Arc::new(WallClock::default());
            clock.set(seconds);
            clock
        });
        // In the second run the clock has the time of the slower rank from the beginning, so this rank does not set it.
        for _ in 0..2 {
            let runs = Counting::start_all(world, &clocks, 100);
            world.set(&AT_ONCE);
            runs[0].hand.give(0..10);
            wait_until("the numbers are counted", || counts(&runs).len() == 10);
            let owned = runs.iter().map(|run| run.all(ReadLevel::Live).len());
            assert!(owned.min() > Some(0), "each rank has keys");
            wait_until("the clock is raised", || {
                runs[0].hand.give([0]);
                world.clock().as_deref() != Some(CLOCK_MIN)
            });
            // Each rank has raised it by then, and compaction has dropped the ended changes.
            for run in &runs {
                let kept = || run.running.checkpoints().unwrap().kept;
                let before = kept();
                wait_until("further checkpoints are stored", || {
                    runs[0].hand.give([0]);
                    kept() > before + 5
                });
            }
            wait_until_compacted(world);
            drop(runs);
        }
        let runs = Counting::start_all(world, &clocks, 100);
        assert!(counts(&runs).into_keys().eq(0..10));
        assert_eq!(world.clock().as_deref(), Some("1000000"));
    });
}
