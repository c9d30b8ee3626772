//! Event time where sources are silent, and where clocks jump.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Duration;

use millstream_base::{Clock, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Flow, FlowSettings, Output, Running, Source, SourcePartitions, SourceStatus,
    Watermarks, Windowed,
};

use crate::support::{Collect, Letters, on_ranks, settings, wait_until};

/// A clock that moves only by hand.
#[derive(Default)]
pub struct HandClock(Mutex<(Timestamp, Duration)>);

impl HandClock {
    /// Time advances.
    pub fn advance(&self, by: Duration) {
        let mut state = self.0.lock().unwrap();
        state.0.0 += i64::try_from(by.as_millis()).unwrap();
        state.1 += by;
    }

    /// The wall clock is set.
    pub fn set(&self, now: Timestamp) {
        self.0.lock().unwrap().0 = now;
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        self.0.lock().unwrap().0
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap().1
    }
}

pub type Event = (u32, i64);

/// A source that gives the items it gets by hand, and can be woken.
#[derive(Clone, Default)]
pub struct Given(Arc<Mutex<GivenState>>);

#[derive(Default)]
struct GivenState {
    events: VecDeque<Event>,
    has_ended: bool,
    polls: u64,
    waker: Option<Waker>,
}

impl Given {
    pub fn give(&self, events: impl IntoIterator<Item = Event>) {
        self.0.lock().unwrap().events.extend(events);
        self.wake();
    }

    pub fn end(&self) {
        self.0.lock().unwrap().has_ended = true;
        self.wake();
    }

    fn wake(&self) {
        let waker = self.0.lock().unwrap().waker.clone();
        waker.inspect(Waker::wake_by_ref);
    }

    /// Waits until it was asked twice, so that the results of the first time have been passed on.
    pub fn wait_until_asked(&self) {
        let polls = || self.0.lock().unwrap().polls;
        let before = polls();
        wait_until("a source is asked", || {
            self.wake();
            polls() > before + 1
        });
    }
}

impl Source for Given {
    type Item = Event;

    fn partitions(&self) -> SourcePartitions<'_, Event> {
        SourcePartitions::One
    }

    fn poll(
        &mut self,
        out: &mut Output<Event>,
        _: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        let mut state = self.0.lock().unwrap();
        state.polls += 1;
        state.waker = Some(waker.clone());
        let is_empty = state.events.is_empty();
        out.extend(state.events.drain(..));
        Ok(match (is_empty, state.has_ended) {
            (false, _) => SourceStatus::Ready,
            (true, true) => SourceStatus::End,
            (true, false) => SourceStatus::Idle,
        })
    }
}

const IDLE_AFTER: Duration = Duration::from_secs(30);
const WINDOW_MS: i64 = 10_000;

type Results = Arc<Mutex<Vec<WindowResult<u32, u64>>>>;

struct Scene {
    clock: Arc<HandClock>,
    sources: Vec<Given>,
    state: Windowed<u32, Count>,
    results: Results,
    running: Running,
}

impl Scene {
    /// Counts the items of some sources, which may be out of order by `disorder_max`.
    fn new(sources: usize, disorder_max: Duration) -> Scene {
        Scene::filtered(sources, Watermarks::bounded(disorder_max), |_| true)
    }

    fn filtered(
        sources: usize,
        watermarks: Watermarks,
        filter: impl Fn(&Event) -> bool + Send + Sync + 'static,
    ) -> Scene {
        Scene::with_idleness(sources, watermarks.idle_after(IDLE_AFTER), filter)
    }

    fn with_idleness(
        sources: usize,
        watermarks: Watermarks,
        filter: impl Fn(&Event) -> bool + Send + Sync + 'static,
    ) -> Scene {
        let clock = Arc::new(HandClock::default());
        let sources: Vec<_> = (0..sources).map(|_| Given::default()).collect();
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings(
            "idle",
            FlowSettings {
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
                ..settings(2, 64)
            },
        );
        let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
        flow.sources("events", sources.clone())
            .filter(filter)
            .watermarks(|(_, time)| Timestamp(*time), watermarks)
            .key_by(|(key, _)| *key)
            .aggregate("count", &state, |(_, time)| Timestamp(*time))
            .sink("results", sink);
        let running = flow.run().unwrap();
        Scene {
            clock,
            sources,
            state,
            results,
            running,
        }
    }

    fn settle(&self) {
        self.sources.iter().for_each(Given::wait_until_asked);
    }

    /// Time advances in steps, and in each step every stage is tried.
    fn pass(&self, time: Duration) {
        const STEPS: u32 = 10;
        for _ in 0..STEPS {
            self.clock.advance(time / STEPS);
            self.settle();
        }
    }

    /// Returns the starts of closed windows. Windows of different keys are in no particular order.
    fn starts(&self) -> Vec<i64> {
        let results = self.results.lock().unwrap();
        let mut starts: Vec<_> = results.iter().map(|result| result.start.0).collect();
        starts.sort_unstable();
        starts
    }

    fn wait_for_results(&self, count: usize) {
        wait_until("windows close", || self.starts().len() >= count);
    }

    fn end(self) -> Vec<i64> {
        self.sources.iter().for_each(Given::end);
        self.running.join().unwrap();
        self.starts()
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn by_clock_when_idle_closes_windows_while_all_sources_are_silent() {
    let watermarks = Watermarks::bounded(SECOND).by_clock_when_idle();
    let scene = Scene::filtered(2, watermarks, |_| true);
    scene.sources[0].give([(1, 5_000)]);
    scene.sources[1].give([(1, 3_000)]);
    scene.settle();
    scene.pass(IDLE_AFTER / 2);
    assert_eq!(scene.starts(), [0; 0]);
    scene.pass(IDLE_AFTER);
    scene.wait_for_results(1);
    assert_eq!(scene.results.lock().unwrap()[0].value, 2);
    // Items that the clock has passed are late.
    scene.sources[0].give([(1, 6_000)]);
    wait_until("an item is late", || scene.state.late_events() == 1);
    assert_eq!(scene.end(), [0]);
}

#[test]
fn items_of_a_stalled_sources_backlog_are_not_late() {
    for sources in [1, 2] {
        let scene = Scene::new(sources, SECOND);
        for source in &scene.sources {
            source.give([(1, 5_000)]);
        }
        scene.settle();
        scene.pass(10 * IDLE_AFTER);
        assert_eq!(scene.starts(), [0; 0], "no watermark has advanced");
        for source in &scene.sources {
            source.give((5..300).map(|second| (1, 1_000 * second)));
        }
        scene.settle();
        assert_eq!(scene.state.late_events(), 0);
        assert_eq!(scene.end().len(), 30);
    }
}

#[test]
fn watermarks_from_before_a_silence_of_all_sources_close_windows() {
    let scene = Scene::new(2, SECOND);
    scene.sources[0].give([(1, 5_000), (1, 25_000)]);
    scene.sources[1].give([(1, 6_000)]);
    scene.settle();
    scene.pass(IDLE_AFTER / 2);
    assert_eq!(scene.starts(), [0; 0], "the other may come back");
    scene.pass(IDLE_AFTER);
    scene.wait_for_results(1);
    assert_eq!(scene.starts(), [0]);
    assert_eq!(scene.end(), [0, 20_000]);
}

#[test]
fn metrics_of_open_windows_name_the_source_they_wait_for() {
    let scene = Scene::new(2, SECOND);
    let reasons = || {
        let waits = scene.running.waits().into_iter();
        waits
            .map(|wait| (wait.stage, wait.reason))
            .collect::<Vec<_>>()
    };
    let wait = |reason: &str| vec![("events".to_owned(), reason.to_owned())];
    assert_eq!(reasons(), wait("no item has had an event time yet"));
    assert_eq!(scene.running.metrics()[0].watermark_ms, None);
    scene.sources[0].give([(1, 25_000)]);
    scene.sources[1].give([(1, 5_000)]);
    scene.settle();
    let behind = "its event time is 20.0 s behind another source's";
    assert_eq!(reasons(), wait(behind));
    let [events, count] = &scene.running.metrics()[..2] else {
        panic!("two stages");
    };
    // The clock stands at 0.
    assert_eq!(events.watermark_ms, Some(4_000));
    assert_eq!(events.watermark_lag_seconds, Some(-4.0));
    assert_eq!(count.watermark_ms, Some(4_000));

    scene.pass(IDLE_AFTER * 2 / 5);
    let idle = "source idle for 12 s; windows wait for it for another 18 s";
    assert_eq!(reasons(), wait(idle));
    assert_eq!(scene.running.metrics()[0].silent_seconds, Some(12.0));
    // Then no stage waits for it any more, and its late items are counted. Windows wait for any of them.
    scene.pass(IDLE_AFTER);
    let idle = "sources idle for 42 s; windows wait for event time";
    assert_eq!(reasons(), wait(idle));
    scene.wait_for_results(1);
    scene.sources[1].give([(1, 6_000)]);
    scene.settle();
    wait_until("an event is late", || {
        let late = scene.running.late_events();
        late[0].state == "counts" && late[0].late_events == 1
    });
    scene.sources[1].end();
    scene.sources[0].give([(1, 99_000)]);
    wait_until("the ended source delays no window", || {
        scene.sources[0].wake();
        scene.running.metrics()[0].watermark_ms == Some(98_000)
    });
    scene.end();
}

#[test]
fn windows_do_not_wait_for_one_silent_source_of_several() {
    let scene = Scene::new(2, SECOND);
    scene.sources[1].give([(1, 100)]);
    scene.sources[0].give([(1, 5_000), (1, 25_000)]);
    scene.settle();
    scene.pass(IDLE_AFTER / 2);
    scene.sources[0].give([(1, 35_000)]);
    scene.settle();
    assert_eq!(scene.starts(), [0; 0], "the other may come back");
    scene.pass(IDLE_AFTER * 2 / 3);
    scene.sources[0].give([(1, 36_000)]);
    scene.wait_for_results(2);
    assert_eq!(scene.starts(), [0, 20_000]);
    assert_eq!(scene.end(), [0, 20_000, 30_000]);
}

#[test]
fn windows_do_not_wait_for_a_source_without_items() {
    let scene = Scene::new(2, SECOND);
    scene.sources[0].give([(1, 5_000), (1, 25_000)]);
    scene.settle();
    scene.pass(IDLE_AFTER * 2);
    scene.sources[0].give([(1, 26_000)]);
    scene.wait_for_results(1);
    assert_eq!(scene.starts()[0], 0);
    scene.end();
}

#[test]
fn windows_wait_for_a_source_that_resumes_after_a_silence() {
    let scene = Scene::new(2, SECOND);
    scene.sources[1].give([(1, 100)]);
    scene.sources[0].give([(1, 15_000)]);
    scene.settle();
    scene.pass(IDLE_AFTER * 2 / 3);
    scene.sources[0].give([(1, 16_000)]);
    scene.pass(IDLE_AFTER * 2 / 3);
    scene.sources[0].give([(1, 17_000)]);
    scene.wait_for_results(1);
    // It comes back, and then has nothing for a while.
    scene.sources[1].give([(1, 31_000)]);
    scene.settle();
    scene.sources[0].give([(1, 95_000)]);
    scene.settle();
    scene.sources[1].give([(2, 39_000)]);
    scene.settle();
    assert_eq!(scene.state.late_events(), 0);
    assert_eq!(scene.starts(), [0, 10_000]);
    assert_eq!(scene.end(), [0, 10_000, 30_000, 30_000, 90_000]);
}

#[test]
fn a_silence_makes_no_item_late_within_the_allowed_disorder() {
    let watermarks = Watermarks::bounded(Duration::from_secs(3600)).by_clock_when_idle();
    let scene = Scene::filtered(1, watermarks, |_| true);
    scene.sources[0].give([(1, 3_600_000)]);
    scene.settle();
    scene.pass(2 * IDLE_AFTER);
    // Half an hour behind the latest, of which a minute was silent.
    scene.sources[0].give([(1, 1_800_000)]);
    scene.settle();
    assert_eq!(scene.state.late_events(), 0);
    assert_eq!(scene.end(), [1_800_000, 3_600_000]);
}

#[test]
fn a_source_whose_items_are_all_filtered_out_counts_as_silent() {
    let scene = Scene::filtered(2, Watermarks::bounded(SECOND), |(key, _)| *key == 1);
    scene.sources[0].give([(1, 5_000)]);
    scene.sources[1].give([(2, 5_000)]);
    scene.settle();
    for second in 0..60 {
        scene.clock.advance(SECOND);
        scene.sources[0].give([(1, 6_000 + 1000 * second)]);
        scene.sources[1].give([(2, 6_000 + 1000 * second)]);
        scene.settle();
    }
    scene.wait_for_results(5);
    assert_eq!(scene.starts()[..2], [0, 10_000]);
    scene.end();
}

#[test]
fn windows_do_not_wait_for_a_silent_rank() {
    let clock = Arc::new(HandClock::default());
    let is_over = Arc::new(Mutex::new(false));
    on_ranks(2, |ranks| {
        let source = Given::default();
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings(
            "idle",
            FlowSettings {
                clock: Arc::clone(&clock) as Arc<dyn Clock>,
                ranks: ranks.clone(),
                ..settings(1, 64)
            },
        );
        let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
        flow.source("events", source.clone())
            .watermarks(
                |(_, time)| Timestamp(*time),
                Watermarks::bounded(SECOND).idle_after(IDLE_AFTER),
            )
            .key_by(|(key, _): &Event| *key)
            .aggregate("count", &state, |(_, time)| Timestamp(*time))
            .gather("gathered", 0)
            .sink("results", sink);
        let running = flow.run().unwrap();
        if ranks.rank() == 0 {
            source.give((0..100).map(|key| (key, 5_000)));
            source.give([(0, 25_000)]);
            wait_until("windows close", || {
                clock.advance(SECOND);
                source.give([(0, 26_000)]);
                results.lock().unwrap().len() >= 100
            });
            *is_over.lock().unwrap() = true;
        }
        wait_until("the other rank", || {
            source.wake();
            *is_over.lock().unwrap()
        });
        source.end();
        running.join().unwrap();
    });
}

/// Counts these, where the clock stands at `now`; answers how many were counted, and the dead letters.
fn ahead_of(now: i64, events: Vec<Event>, watermarks: Watermarks) -> (u64, Vec<String>) {
    let clock = Arc::new(HandClock::default());
    clock.set(Timestamp(now));
    let letters = Arc::new(Letters::default());
    let (sink, results) = Collect::<WindowResult<u32, u64>>::new();
    let flow = Flow::with_settings(
        "ahead",
        FlowSettings {
            clock: clock as Arc<dyn Clock>,
            dead_letters: Some(letters.clone()),
            ..settings(2, 64)
        },
    );
    let state = flow.windowed("counts", Windows::tumbling(WINDOW_MS), Count);
    let count = events.len() as u64;
    flow.source(
        "events",
        Generator::new(move |number| events[number as usize]).limit(count),
    )
    .watermarks(|(_, time)| Timestamp(*time), watermarks)
    .key_by(|(key, _)| *key)
    .aggregate("count", &state, |(_, time)| Timestamp(*time))
    .sink("results", sink);
    flow.run().unwrap().join().unwrap();
    assert_eq!(state.late_events(), 0);
    let results = results.lock().unwrap();
    let counted = results.iter().map(|result| result.value);
    let letters = letters.0.lock().unwrap();
    let errors = letters.iter().map(|letter| letter.error.clone());
    (counted.sum(), errors.collect())
}

#[test]
fn items_too_far_ahead_of_the_clock_are_dead_letters_and_make_no_item_late() {
    let watermarks = Watermarks::bounded(SECOND).ahead_max(Some(SECOND));
    let events = vec![(1, 100), (1, 1_100), (1, 1_101), (1, i64::MAX), (1, 200)];
    let (counted, errors) = ahead_of(100, events, watermarks);
    assert_eq!(counted, 3);
    let error = |time: i64| {
        format!(
            "its time, {time} ms since 1970, is more than 1s ahead of the clock; see Watermarks::ahead_max"
        )
    };
    assert_eq!(errors, [error(1_101), error(i64::MAX)]);
}

#[test]
fn a_clock_at_its_extremes_finds_no_item_or_every_item_too_far_ahead() {
    let watermarks = Watermarks::bounded(SECOND);
    let events = || vec![(1, 100), (1, i64::MIN), (1, i64::MAX)];
    let (counted, errors) = ahead_of(i64::MAX, vec![(1, 0), (1, i64::MAX)], watermarks);
    assert_eq!((counted, errors.len()), (2, 0));
    let disorder = Watermarks::bounded(Duration::MAX);
    let (counted, errors) = ahead_of(i64::MIN, events(), disorder);
    assert_eq!((counted, errors.len()), (1, 2));
}

#[test]
fn an_item_with_the_largest_timestamp_does_not_make_itself_late() {
    for disorder_max in [Duration::ZERO, SECOND] {
        let watermarks = Watermarks::bounded(disorder_max).ahead_max(None);
        let events = vec![(1, i64::MAX), (1, i64::MAX), (1, i64::MAX - 1)];
        let (counted, errors) = ahead_of(100, events, watermarks);
        assert_eq!((counted, errors.len()), (3, 0));
    }
}

#[test]
fn a_source_whose_idleness_never_begins_may_be_silent_for_long() {
    let watermarks = Watermarks::bounded(SECOND);
    let scene = Scene::with_idleness(2, watermarks.idle_after(Duration::MAX), |_| true);
    for source in &scene.sources {
        source.give([(1, 1_000)]);
    }
    scene.settle();
    scene.pass(1_000 * IDLE_AFTER);
    scene.sources[0].give([(1, 50_000)]);
    scene.pass(1_000 * IDLE_AFTER);
    // The other source holds the watermark.
    assert_eq!(scene.starts(), [0; 0]);
    assert_eq!(scene.end(), [0, 50_000]);
}

#[test]
fn a_wall_clock_that_jumps_moves_no_event_time() {
    let scene = Scene::new(1, SECOND);
    for (jump, time) in [(0, 1_000), (i64::MAX / 2, 2_000), (0, 3_000)] {
        scene.clock.set(Timestamp(jump));
        scene.sources[0].give([(1, time)]);
        scene.settle();
    }
    assert_eq!(scene.starts(), [0; 0]);
    assert_eq!(scene.end(), [0]);
}
