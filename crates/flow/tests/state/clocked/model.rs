//! Random items, moves of the clock, and stops beside a plain model.

use std::collections::BTreeMap;

use fastrand::Rng;
use millstream_flow::windows::Windows;

use super::{Found, KEYS, World};
use crate::support::wait_until;

const SIZE: i64 = 100;
const SLIDE: i64 = 20;
const GAP: i64 = 30;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Tumbling,
    Sliding,
    Session,
}

impl Kind {
    fn windows(self) -> Windows {
        match self {
            Kind::Tumbling => Windows::tumbling(SIZE),
            Kind::Sliding => Windows::sliding(SIZE, SLIDE),
            Kind::Session => Windows::session(GAP),
        }
    }
}

/// All items that are in windows, with the times at which they came.
struct Model {
    kind: Kind,
    items: BTreeMap<u64, Vec<(i64, u64)>>,
    now: i64,
    found: BTreeMap<u64, Vec<Found>>,
}

fn result(key: u64, start: i64, end: i64, items: &[(i64, u64)]) -> Found {
    let sum = items.iter().map(|(_, number)| number).sum();
    (key, start, end, items.len() as u64, sum)
}

impl Model {
    fn add(&mut self, number: u64) {
        let items = self.items.entry(number % KEYS).or_default();
        items.push((self.now, number));
    }

    /// Emits the windows that end up to `now`.
    fn move_to(&mut self, now: i64) {
        for (key, items) in &mut self.items {
            let found = self.found.entry(*key).or_default();
            match self.kind {
                Kind::Tumbling => {
                    let start_of = |time: i64| time.div_euclid(SIZE) * SIZE;
                    let mut starts: Vec<i64> =
                        items.iter().map(|(time, _)| start_of(*time)).collect();
                    starts.sort_unstable();
                    starts.dedup();
                    for start in starts.into_iter().filter(|start| start + SIZE <= now) {
                        let of_window = |(time, _): &mut (i64, u64)| start_of(*time) == start;
                        let window: Vec<_> = items.extract_if(.., of_window).collect();
                        found.push(result(*key, start, start + SIZE, &window));
                    }
                }
                Kind::Sliding => {
                    let first = self.now.div_euclid(SLIDE) + 1;
                    // Behind the last item there are no windows.
                    let newest = items.last().map_or(i64::MIN, |(time, _)| *time);
                    let last = now.min(newest + SIZE).div_euclid(SLIDE);
                    for end in (first..=last).map(|end| end * SLIDE) {
                        let is_in = |time: i64| end - SIZE <= time && time < end;
                        let window: Vec<_> = items
                            .iter()
                            .copied()
                            .filter(|(time, _)| is_in(*time))
                            .collect();
                        if !window.is_empty() {
                            found.push(result(*key, end - SIZE, end, &window));
                        }
                    }
                }
                Kind::Session => {
                    let times = || items.iter().map(|(time, _)| *time);
                    let end = times().max().map(|last| last + GAP);
                    if let Some(end) = end.filter(|end| *end <= now) {
                        let start = times().next().expect("there are items");
                        found.push(result(*key, start, end, items));
                        items.clear();
                    }
                }
            }
        }
        self.now = now;
    }

    fn count(&self) -> usize {
        self.found.values().map(Vec::len).sum()
    }

    #[track_caller]
    fn check(&self, world: &World) {
        wait_until("windows come", || world.found().len() >= self.count());
        for window in world.results.lock().unwrap().iter() {
            assert!((window.start..window.end).contains(&window.time_max));
        }
        let mut found: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
        for window in world.found() {
            found.entry(window.0).or_default().push(window);
        }
        let expected = self.found.iter().filter(|(_, found)| !found.is_empty());
        let expected: BTreeMap<_, _> = expected.map(|(key, found)| (*key, found.clone())).collect();
        assert_eq!(found, expected, "{:?}", self.kind);
    }
}

fn run(seed: u64, workers: usize, kind: Kind) {
    let mut rng = Rng::with_seed(seed);
    let mut world = World::new(workers);
    let mut model = Model {
        kind,
        items: BTreeMap::new(),
        now: -200,
        found: BTreeMap::new(),
    };
    world.clock.set(model.now);
    world.start(kind.windows());
    for round in 0..80 {
        let by = match (rng.u32(..10), kind) {
            (0, _) => rng.i64(0..1_000),
            // Windows of the past are open again: sliding ones with some of their items.
            (1, Kind::Tumbling | Kind::Session) => rng.i64(-250..0),
            _ => rng.i64(0..40),
        };
        let is_stopped = round % 7 == 6;
        if is_stopped {
            world.stop();
        }
        model.move_to(model.now + by);
        world.clock.set(model.now);
        if is_stopped {
            world.start(kind.windows());
            model.check(&world);
        }
        // Each partition has an item, and looks at the clock.
        let mut numbers: Vec<u64> = (0..KEYS)
            .flat_map(|key| (0..rng.u64(1..4)).map(move |_| key))
            .collect();
        for number in &mut numbers {
            *number += KEYS * rng.u64(..100);
            model.add(*number);
        }
        world.give(&numbers);
        model.check(&world);
    }
    world.end();
    model.move_to(1 << 40);
    model.check(&world);
}

#[test]
fn windows_end_as_in_a_plain_model_through_jumps_and_stops() {
    for (seed, workers) in [(1, 1), (2, 2), (3, 4)] {
        for kind in [Kind::Tumbling, Kind::Sliding, Kind::Session] {
            run(seed, workers, kind);
        }
    }
}
