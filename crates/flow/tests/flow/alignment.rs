//! Sources that are ahead of others in event time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Flow, FlowSettings, Output, Running, Source, SourcePartitions, SourceStatus,
    Watermarks, Windowed,
};

use crate::idle::{Event, Given, HandClock};
use crate::support::{Collect, on_ranks, settings, wait_until};

const SECOND_MS: u64 = 1_000;
const SKEW_MAX_S: u64 = 100;
const IDLE_AFTER: Duration = Duration::from_secs(30);
const FAST_ITEMS: u64 = 5_000;

/// A source that always has an item: of the next second each time that it is asked.
#[derive(Clone, Default)]
struct Fast(Arc<AtomicU64>);

impl Fast {
    fn seconds(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn wait_until(&self, seconds: u64) {
        wait_until("the fast source is asked", || self.seconds() >= seconds);
    }
}

impl Source for Fast {
    type Item = Event;

    fn partitions(&self) -> SourcePartitions<'_, Event> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Event>,
        _: usize,
        _: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let second = self.seconds();
        if second == FAST_ITEMS {
            return Ok(SourceStatus::End);
        }
        out.push((0, (second * SECOND_MS) as i64));
        self.0.store(second + 1, Ordering::SeqCst);
        Ok(SourceStatus::Ready)
    }
}

/// Counts the items of sources by second.
fn start(
    sources: Vec<Box<dyn Source<Item = Event>>>,
    clock: &Arc<HandClock>,
    ranks: &Ranks,
    skew_max: Option<Duration>,
) -> (Running, Windowed<u32, Count>) {
    let flow = Flow::with_settings(
        "aligned",
        FlowSettings {
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            ranks: ranks.clone(),
            ..settings(2, 64)
        },
    );
    let state = flow.windowed("counts", Windows::tumbling(SECOND_MS as i64), Count);
    let watermarks = Watermarks::bounded(Duration::ZERO).ahead_max(None);
    flow.sources("events", sources)
        .watermarks(
            |(_, time)| Timestamp(*time),
            watermarks.idle_after(IDLE_AFTER).skew_max(skew_max),
        )
        .key_by(|(key, _)| *key)
        .aggregate("count", &state, |(_, time)| Timestamp(*time))
        .sink("results", Collect::new().0);
    (flow.run().unwrap(), state)
}

/// A fast source and one that gives the items it gets by hand, on one rank.
struct Scene {
    clock: Arc<HandClock>,
    fast: Fast,
    slow: Given,
    running: Running,
    state: Windowed<u32, Count>,
}

impl Scene {
    fn new(skew_max: Option<Duration>) -> Scene {
        let clock = Arc::new(HandClock::default());
        let (fast, slow) = (Fast::default(), Given::default());
        let sources: Vec<Box<dyn Source<Item = Event>>> =
            vec![Box::new(fast.clone()), Box::new(slow.clone())];
        let (running, state) = start(sources, &clock, &Ranks::alone(), skew_max);
        Scene {
            clock,
            fast,
            slow,
            running,
            state,
        }
    }

    fn aligned() -> Scene {
        Scene::new(Some(Duration::from_secs(SKEW_MAX_S)))
    }

    /// The fast source comes so far ahead of the other, which is at this second, and no further.
    fn check_held_behind(&self, second: u64) {
        let held_at = second + SKEW_MAX_S;
        self.fast.wait_until(held_at + 2);
        for _ in 0..20 {
            self.slow.wait_until_asked();
        }
        assert_eq!(self.fast.seconds(), held_at + 2, "it is not asked any more");
    }
}

#[test]
fn a_source_far_ahead_is_held_back_until_the_other_catches_up() {
    let scene = Scene::aligned();
    scene.slow.give([(1, 0)]);
    scene.check_held_behind(0);
    assert!(scene.state.totals().open_windows <= SKEW_MAX_S + 3);
    scene.slow.give([(1, 50_000)]);
    scene.check_held_behind(50);
    scene.slow.give([(1, 60_000)]);
    scene.check_held_behind(60);
    // It has ended: no source waits for it.
    scene.slow.end();
    scene.running.join().unwrap();
    assert_eq!(scene.fast.seconds(), FAST_ITEMS);
    assert_eq!(scene.state.late_events(), 0);
}

#[test]
fn a_source_is_held_back_for_a_silent_one_until_that_one_is_idle() {
    let scene = Scene::aligned();
    scene.check_held_behind(0);
    for _ in 0..4 {
        scene.clock.advance(IDLE_AFTER / 3);
        scene.slow.wait_until_asked();
    }
    scene.fast.wait_until(FAST_ITEMS);
    scene.slow.end();
    scene.running.join().unwrap();
}

#[test]
fn a_flow_stops_while_a_source_is_held_back() {
    let scene = Scene::aligned();
    scene.slow.give([(1, 0)]);
    scene.check_held_behind(0);
    scene.running.stop();
    scene.running.join().unwrap();
    assert_eq!(scene.fast.seconds(), SKEW_MAX_S + 2);
}

#[test]
fn a_source_without_a_skew_limit_runs_ahead() {
    let scene = Scene::new(None);
    scene.slow.give([(1, 0)]);
    scene.fast.wait_until(FAST_ITEMS);
    scene.slow.end();
    scene.running.join().unwrap();
}

#[test]
fn a_source_far_ahead_is_held_back_for_a_source_on_another_rank() {
    let clock = Arc::new(HandClock::default());
    let (fast, slow) = (Fast::default(), Given::default());
    on_ranks(2, |ranks| {
        let source: Box<dyn Source<Item = Event>> = match ranks.rank() {
            0 => Box::new(fast.clone()),
            _ => Box::new(slow.clone()),
        };
        let skew_max = Some(Duration::from_secs(SKEW_MAX_S));
        let (running, state) = start(vec![source], &clock, ranks, skew_max);
        if ranks.rank() == 0 {
            for second in [0, 50, 300] {
                slow.give([(1, second * SECOND_MS as i64)]);
                let second = second as u64;
                fast.wait_until(second + SKEW_MAX_S);
                for _ in 0..20 {
                    slow.wait_until_asked();
                }
                assert!(fast.seconds() <= second + SKEW_MAX_S + 2);
            }
            slow.end();
        }
        running.join().unwrap();
        assert_eq!(state.late_events(), 0);
    });
    assert_eq!(fast.seconds(), FAST_ITEMS);
}
