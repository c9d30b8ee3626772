//! The windows with the highest scores, where late items change windows that were given.

use std::time::Duration;

use millstream_base::Timestamp;
use millstream_flow::windows::{All, Count, WindowResult, Windows};
use millstream_flow::{Flow, Running, Watermarks};

use crate::idle::{Event, Given};
use crate::support::{Collect, settings, wait_until};

const WINDOW_MS: i64 = 10;
const LATENESS_MS: i64 = 1_000;

type Top = WindowResult<All, Vec<WindowResult<u32, u64>>>;

/// End, how many windows, whether it is an update, and keys with their counts.
type Seen = (i64, u64, bool, Vec<(u32, u64)>);

struct Scene {
    source: Given,
    results: std::sync::Arc<std::sync::Mutex<Vec<Top>>>,
    running: Running,
}

impl Scene {
    /// The `count` windows with the highest scores.
    fn new(
        windows: Windows,
        count: usize,
        score: impl Fn(u64) -> i64 + Clone + Send + Sync + 'static,
    ) -> Scene {
        let source = Given::default();
        let (sink, results) = Collect::new();
        let flow = Flow::with_settings("top", settings(2, 64));
        let counts = flow.windowed("counts", windows, Count);
        let time = |(_, time): &Event| Timestamp(*time);
        flow.source("events", source.clone())
            .watermarks(time, Watermarks::bounded(Duration::ZERO))
            .key_by(|(key, _)| *key)
            .aggregate("count", &counts, time)
            .top("top", count, move |window| score(window.value))
            .sink("results", sink);
        Scene {
            source,
            results,
            running: flow.run().unwrap(),
        }
    }

    /// Gives some events, and waits until a number of results is there.
    fn give(&self, events: &[Event], results: usize) {
        self.source.give(events.iter().copied());
        self.source.wait_until_asked();
        wait_until("a result is given", || {
            self.source.wait_until_asked();
            self.results.lock().unwrap().len() >= results
        });
    }

    fn seen(&self) -> Vec<Seen> {
        let results = self.results.lock().unwrap();
        let seen = results.iter().map(|result| {
            let keys = result.value.iter().map(|window| (window.key, window.value));
            (
                result.end.0,
                result.events,
                result.is_update,
                keys.collect(),
            )
        });
        seen.collect()
    }

    /// The results until the end; nothing was late.
    fn end(self) -> Vec<Seen> {
        self.source.end();
        self.running.join().unwrap();
        for late in self.running.late_events() {
            assert_eq!(late.late_events, 0, "{late:?}");
        }
        self.seen()
    }
}

#[test]
fn an_updated_window_replaces_its_earlier_result() {
    let windows = Windows::tumbling(WINDOW_MS).allowed_lateness(LATENESS_MS);
    let scene = Scene::new(windows, 5, |count| count as i64);
    scene.give(&[(1, 1), (1, 2), (2, 3), (1, 25)], 1);
    assert_eq!(scene.seen(), [(10, 2, false, vec![(1, 2), (2, 1)])]);
    scene.give(&[(2, 4), (2, 5), (1, 26), (1, 35)], 3);
    let seen = scene.end();
    let of_first: Vec<_> = seen.iter().filter(|(end, ..)| *end == 10).collect();
    let last = of_first.last().unwrap();
    assert_eq!(**last, (10, 2, true, vec![(2, 3), (1, 2)]), "{seen:?}");
}

#[test]
fn a_window_whose_score_falls_leaves_the_top_for_another() {
    let windows = Windows::sliding(WINDOW_MS, WINDOW_MS).allowed_lateness(LATENESS_MS);
    // The fewest first.
    let scene = Scene::new(windows, 1, |count| -(count as i64));
    scene.give(&[(1, 1), (2, 2), (2, 3), (1, 25)], 1);
    assert_eq!(scene.seen(), [(10, 2, false, vec![(1, 1)])]);
    scene.give(&[(1, 4), (1, 5), (1, 35)], 2);
    let seen = scene.end();
    let of_first: Vec<_> = seen.iter().filter(|(end, ..)| *end == 10).collect();
    let last = of_first.last().unwrap();
    assert_eq!(**last, (10, 2, true, vec![(2, 2)]), "{seen:?}");
}

#[test]
fn a_session_emitted_again_with_an_earlier_start_counts_once() {
    let windows = Windows::session(WINDOW_MS).allowed_lateness(LATENESS_MS);
    let scene = Scene::new(windows, 5, |count| count as i64);
    scene.give(&[(1, 8), (2, 8), (1, 25)], 1);
    assert_eq!(scene.seen(), [(18, 2, false, vec![(1, 1), (2, 1)])]);
    scene.give(&[(1, 4), (1, 60)], 2);
    let seen = scene.end();
    let of_first: Vec<_> = seen.iter().filter(|(end, ..)| *end == 18).collect();
    let last = of_first.last().unwrap();
    assert_eq!(**last, (18, 2, true, vec![(1, 2), (2, 1)]), "{seen:?}");
}
