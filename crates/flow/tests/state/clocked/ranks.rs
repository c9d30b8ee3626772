//! Processing-time windows on several ranks, some of which die.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{Checkpoints, Flow, FlowError, Resume, Running};

use crate::changelogs::log::LogStore;
use crate::changelogs::settings_of;
use crate::changes::Kept;
use crate::ranks::run_or_die;
use crate::support::MemoryStore;

const ITEMS: u64 = 2_000;
const KEYS: u64 = 50;

/// The windows, and the number of them that each item is in.
fn kinds() -> [(&'static str, Windows, u64); 3] {
    [
        ("tumbling", Windows::tumbling(20), 1),
        ("sliding", Windows::sliding(40, 10), 4),
        ("sessions", Windows::session(2), 1),
    ]
}

type Results = [Arc<Mutex<Vec<WindowResult<u64, u64>>>>; 3];

fn start(
    ranks: &Ranks,
    store: &Arc<impl Checkpoints>,
    results: &Results,
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings("windows", settings_of(store, Resume::IfAny, ranks));
    let channels = kinds().map(|(name, ..)| flow.channel(&format!("of {name}")));
    let source = Generator::new(|number| {
        // Slow enough to be interrupted.
        if number % 16 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    });
    flow.source("numbers", source.limit(ITEMS))
        .to_all(&channels);
    for (((name, windows, _), channel), results) in kinds().into_iter().zip(&channels).zip(results)
    {
        flow.stage(&format!("of {name}"), channel)
            .key_by(|number| number % KEYS)
            .clock_windows(name, windows, Count)
            .sink(name, Kept(Arc::clone(results)));
    }
    flow.run()
}

fn check<S: Checkpoints>(store: &Arc<S>, count: u32) {
    let results: Vec<Results> = (0..count).map(|_| Results::default()).collect();
    let start = |ranks: &Ranks| start(ranks, store, &results[ranks.rank() as usize]);
    for (death, after_ms) in [(0, 25), (1, 45), (0, 15)] {
        let until = (death % count, Duration::from_millis(after_ms));
        run_or_die(count, Some(until), start);
    }
    assert!(run_or_die(count, None, start), "not all ranks have ended");
    for (place, (name, _, times)) in kinds().into_iter().enumerate() {
        let mut counts = vec![0; KEYS as usize];
        for results in &results {
            for window in results[place].lock().unwrap().iter() {
                counts[window.key as usize] += window.value;
            }
        }
        let expected = u64::from(count) * ITEMS / KEYS * times;
        assert!(
            counts.iter().all(|count| *count == expected),
            "{name}: {counts:?}, not {expected}"
        );
    }
}

#[test]
fn each_item_is_in_its_windows_once_although_ranks_die() {
    for count in [1, 4] {
        check(&Arc::new(LogStore::default()), count);
    }
    check(&Arc::new(MemoryStore::default()), 2);
}
