//! Flows on several ranks: how they begin, end and fail together.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, WindowResult, Windows};
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowError, FlowSettings, Resume, Running, ShardKey,
    Sink, Watermarks, Windowed,
};

use crate::support::{Collect, Hand, on_ranks, settings, wait_until};

const WINDOW_MS: i64 = 1000;
const KEYS: u64 = 7;

type Results = Arc<Mutex<Vec<WindowResult<u64, u64>>>>;

fn settings_of(ranks: &Ranks) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        ..settings(2, 64)
    }
}

struct Counting {
    running: Running,
    state: Windowed<u64, Count>,
    results: Results,
}

/// Counts numbers, which are times, by key; `look` is shown each of them.
fn count(
    settings: FlowSettings,
    windows: Windows,
    sources: usize,
    limit: u64,
    look: impl Fn(u64) + Send + Sync + 'static,
) -> Result<Counting, FlowError> {
    let (sink, results) = Collect::new();
    let flow = Flow::with_settings("numbers", settings);
    let state = flow.windowed("counts", windows, Count);
    flow.sources(
        "numbers",
        (0..sources).map(|_| Generator::new(|number| number).limit(limit)),
    )
    .watermarks(
        |number| Timestamp(*number as i64),
        Watermarks::bounded(Duration::ZERO),
    )
    .map(move |number| {
        look(*number);
        *number
    })
    .key_by(|number| number % KEYS)
    .aggregate("count", &state, |number| Timestamp(*number as i64))
    .sink("results", sink);
    Ok(Counting {
        running: flow.run()?,
        state,
        results,
    })
}

fn windows() -> Windows {
    Windows::tumbling(WINDOW_MS)
}

/// All windows of all ranks, each of which has a number of sources of equally many numbers.
fn check(results: impl IntoIterator<Item = Results>, sources: u64, limit: u64) {
    let mut found = BTreeMap::new();
    for results in results {
        for result in &*results.lock().unwrap() {
            let former = found.insert((result.key, result.start.0), result.value);
            assert_eq!(former, None, "a window gives one result");
        }
    }
    let mut expected = BTreeMap::new();
    for number in 0..limit {
        let start = number as i64 / WINDOW_MS * WINDOW_MS;
        *expected.entry((number % KEYS, start)).or_default() += sources;
    }
    assert_eq!(found, expected);
}

#[test]
fn a_rank_without_sources_ends_with_the_others() {
    let results = on_ranks(3, |ranks| {
        let sources = usize::from(ranks.rank() == 1);
        let counting = count(settings_of(ranks), windows(), sources, 5000, |_| ()).unwrap();
        counting.running.join().unwrap();
        counting.results
    });
    check(results, 1, 5000);
}

#[test]
fn a_rank_that_stops_stops_all_ranks_and_leaves_windows_open() {
    let open = on_ranks(3, |ranks| {
        let counting = count(settings_of(ranks), windows(), 1, u64::MAX, |_| ()).unwrap();
        if ranks.rank() == 1 {
            // This rank may own no key.
            let read = || counting.running.metrics()[0].items_in;
            wait_until("numbers are read", || read() > 10 * WINDOW_MS as u64);
            counting.running.stop();
        }
        let summary = counting.running.join().unwrap();
        assert!(summary.is_stopped);
        let totals = counting.state.totals();
        let closed = counting.results.lock().unwrap().len() as u64;
        assert_eq!(totals.closed_windows, closed);
        let given = summary.stages[0].items_in;
        (given, totals.open_events, totals.closed_events)
    });
    let (mut given_sum, mut kept_sum) = (0, 0);
    for (given, open, closed) in &open {
        given_sum += given;
        kept_sum += open + closed;
    }
    assert_eq!(given_sum, kept_sum, "nothing is lost");
    assert!(open.iter().any(|(_, open, _)| *open > 0));
}

#[test]
fn a_panic_on_one_rank_ends_all_ranks_with_its_message() {
    let messages = on_ranks(3, |ranks| {
        let rank = ranks.rank();
        let look = move |number| assert!(rank != 1 || number < 5000, "enough of {number}");
        let counting = count(settings_of(ranks), windows(), 1, u64::MAX, look);
        // The others may learn of it as they begin.
        let ended = counting.and_then(|counting| counting.running.join());
        ended.unwrap_err().to_string()
    });
    // Two workers may be at it.
    let what = "flow \"numbers\": \"numbers/2.map\" panicked: enough of 500";
    assert!(messages[1].starts_with(what), "{messages:?}");
    for rank in [0, 2] {
        let expected = format!("flow \"numbers\": rank 1: {}", messages[1]);
        assert_eq!(messages[rank], expected);
    }
}

/// Takes nothing, and fails on command.
struct Broken(Arc<AtomicU64>);

impl<T: 'static> Sink<T> for Broken {
    fn push(&mut self, _: &[T], waker: &Waker) -> Result<usize, BoxError> {
        let (told, waker) = (Arc::clone(&self.0), waker.clone());
        if told.load(Ordering::SeqCst) > 0 {
            return Err("the printer is on fire".into());
        }
        thread::spawn(move || {
            wait_until("the rank gets the message", || {
                told.load(Ordering::SeqCst) > 0
            });
            waker.wake();
        });
        Ok(0)
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

#[test]
fn an_error_on_one_rank_ends_sleeping_ranks() {
    let told = Arc::new(AtomicU64::new(0));
    let messages = on_ranks(2, |ranks| {
        let hand = Hand::default();
        if ranks.rank() == 0 {
            hand.give(0..5);
        }
        let flow = Flow::with_settings("sleepers", settings_of(ranks));
        flow.source("numbers", hand)
            .gather("gathered", 0)
            .sink("broken", Broken(Arc::clone(&told)));
        let running = flow.run().unwrap();
        if ranks.rank() == 1 {
            let has_looked = || running.metrics().iter().all(|stage| stage.idle > 0);
            wait_until("no worker has anything to do", has_looked);
            told.fetch_add(1, Ordering::SeqCst);
        }
        running.join().unwrap_err().to_string()
    });
    assert_eq!(
        messages[0],
        "flow \"sleepers\": \"broken\" failed: the printer is on fire"
    );
    let expected = format!("flow \"sleepers\": rank 0: {}", messages[0]);
    assert_eq!(messages[1], expected);
}

#[test]
fn dropping_a_flow_on_one_rank_ends_all_ranks() {
    let messages = on_ranks(2, |ranks| {
        let counting = count(settings_of(ranks), windows(), 1, u64::MAX, |_| ());
        match ranks.rank() {
            0 => {
                let ended = counting.and_then(|counting| counting.running.join());
                ended.unwrap_err().to_string()
            }
            _ => {
                drop(counting.unwrap());
                // The handle of the ranks is still there.
                ranks.leave().unwrap_err().to_string()
            }
        }
    });
    let what = "rank 1: flow \"numbers\" was dropped before its end";
    assert_eq!(
        messages,
        [format!("flow \"numbers\": {what}"), what.to_owned()]
    );
}

#[test]
fn a_rank_with_an_incomplete_graph_ends_all_ranks() {
    let messages = on_ranks(2, |ranks| {
        let flow = Flow::with_settings("numbers", settings_of(ranks));
        if ranks.rank() == 0 {
            flow.source("numbers", Generator::new(|number| number).limit(10))
                .gather("gathered", 0)
                .sink("results", Collect::new().0);
        }
        flow.run().err().unwrap().to_string()
    });
    let what = "flow \"numbers\" has no operators; give it a source and an end";
    let expected = [format!("flow \"numbers\": rank 1: {what}"), what.to_owned()];
    assert_eq!(messages, expected);
}

/// The errors of ranks that run the flows of `build`.
fn refused(build: impl Fn(&Ranks, FlowSettings) -> Result<Counting, FlowError> + Sync) {
    let messages = on_ranks(3, |ranks| {
        let counting = build(ranks, settings_of(ranks));
        counting.err().map(|error| error.to_string())
    });
    for message in messages {
        let message = message.expect("all ranks refuse");
        assert!(message.contains("rank 2"), "{message}");
    }
}

#[test]
fn all_ranks_refuse_different_windows_on_one_rank() {
    refused(|ranks, settings| {
        let size_ms = if ranks.rank() == 2 { 500 } else { WINDOW_MS };
        count(settings, Windows::tumbling(size_ms), 1, 10, |_| ())
    });
}

#[test]
fn all_ranks_refuse_different_operators_on_one_rank() {
    let messages = on_ranks(3, |ranks| {
        let flow = Flow::with_settings("numbers", settings_of(ranks));
        let numbers = flow.source("numbers", Generator::new(|number| number).limit(10));
        let sink = Collect::new().0;
        match ranks.rank() {
            2 => numbers
                .filter(|_| true)
                .gather("gathered", 0)
                .sink("results", sink),
            _ => numbers.gather("gathered", 0).sink("results", sink),
        };
        flow.run().err().unwrap().to_string()
    });
    for message in messages {
        assert!(message.contains("rank 2"), "{message}");
    }
}

#[test]
fn all_ranks_refuse_checkpoints_on_only_one_rank() {
    struct Nowhere;
    impl Checkpoints for Nowhere {
        fn put(&self, _: ShardKey, _: &[u8]) -> Result<(), BoxError> {
            Ok(())
        }
        fn get(&self, _: ShardKey) -> Result<Vec<u8>, BoxError> {
            Err("there is nothing".into())
        }
        fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
            Ok(Vec::new())
        }
        fn remove(&self, _: ShardKey) -> Result<(), BoxError> {
            Ok(())
        }
    }
    refused(|ranks, settings| {
        let checkpoints = (ranks.rank() == 2).then(|| Checkpointing {
            store: Arc::new(Nowhere),
            interval: Some(Duration::from_millis(1)),
            resume: Resume::Never,
        });
        let settings = FlowSettings {
            checkpoints,
            ..settings
        };
        count(settings, windows(), 1, 10, |_| ())
    });
}

#[test]
fn all_ranks_refuse_different_ranks_to_gather_on() {
    let messages = on_ranks(2, |ranks| {
        let flow = Flow::with_settings("numbers", settings_of(ranks));
        flow.source("numbers", Generator::new(|number| number).limit(10))
            .gather("gathered", ranks.rank())
            .sink("results", Collect::new().0);
        flow.run().err().unwrap().to_string()
    });
    assert!(messages[0].contains("rank 1"), "{messages:?}");
}

#[test]
fn an_exchange_between_ranks_in_a_cycle_is_refused() {
    let messages = on_ranks(2, |ranks| {
        let flow = Flow::with_settings("circle", settings_of(ranks));
        let (round, out) = (flow.channel::<u64>("round"), flow.channel::<u64>("out"));
        flow.source("numbers", Generator::new(|number| number).limit(10))
            .to(&round);
        flow.stage("work", &round)
            .gather("gathered", 0)
            .split(&[round.clone(), out.clone()], |number| {
                usize::from(*number < 5)
            });
        flow.stage("out", &out).sink("results", Collect::new().0);
        flow.run().err().map(|error| error.to_string())
    });
    let told = |message: &Option<String>| {
        let message = message.as_deref().unwrap_or_default();
        message.contains("\"work\" leads to other ranks and is part of a cycle")
    };
    assert!(messages.iter().all(told), "{messages:?}");
}

#[test]
fn workers_that_die_on_all_ranks_lose_no_item() {
    const LIMIT: u64 = 60_000;
    let results = on_ranks(2, |ranks| {
        let counting = count(settings_of(ranks), windows(), 2, LIMIT, |_| ()).unwrap();
        while !counting.running.is_finished() {
            counting.running.kill_workers(2);
            thread::sleep(Duration::from_micros(200));
        }
        let summary = counting.running.join().unwrap();
        assert!(summary.workers_replaced > 0);
        counting.results
    });
    check(results, 4, LIMIT);
}

#[test]
fn there_may_be_more_than_256_ranks() {
    const RANKS: u32 = 300;
    let results = on_ranks(RANKS, |ranks| {
        let settings = FlowSettings {
            workers: NonZeroUsize::MIN,
            ..settings_of(ranks)
        };
        let counting = count(settings, windows(), 1, 20, |_| ()).unwrap();
        counting.running.join().unwrap();
        counting.results
    });
    check(results, u64::from(RANKS), 20);
}

#[test]
fn a_rank_that_receives_nothing_blocks_its_senders_after_bounded_bytes() {
    // Numbers that one rank has given, and may be in rings, messages and credits.
    const UNDER_WAY_MAX: u64 = 200_000;
    const ITEMS: u64 = 4 * UNDER_WAY_MAX;
    let taken = Arc::new(AtomicU64::new(0));
    struct Valve {
        taken: Arc<AtomicU64>,
        is_open: bool,
    }
    impl Sink<u64> for Valve {
        fn push(&mut self, items: &[u64], waker: &Waker) -> Result<usize, BoxError> {
            if !self.is_open {
                // Asked again when it is full everywhere.
                self.is_open = true;
                let waker = waker.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(300));
                    waker.wake();
                });
                return Ok(0);
            }
            self.taken.fetch_add(items.len() as u64, Ordering::SeqCst);
            Ok(items.len())
        }

        fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
            Ok(true)
        }
    }
    on_ranks(2, |ranks| {
        let flow = Flow::with_settings("slow", settings_of(ranks));
        let sink = Valve {
            taken: Arc::clone(&taken),
            is_open: false,
        };
        let (given, seen) = (AtomicU64::new(0), Arc::clone(&taken));
        let items = ITEMS * u64::from(ranks.rank());
        flow.source("numbers", Generator::new(|number| number).limit(items))
            .map(move |number| {
                let given = given.fetch_add(1, Ordering::SeqCst);
                let under_way = given.saturating_sub(seen.load(Ordering::SeqCst));
                assert!(under_way < UNDER_WAY_MAX, "{under_way} are under way");
                // The largest numbers.
                u64::MAX - *number
            })
            .gather("gathered", 0)
            .sink("results", sink);
        flow.run().unwrap().join().unwrap();
    });
    assert_eq!(taken.load(Ordering::SeqCst), ITEMS);
}

#[test]
fn stopping_while_one_source_is_behind_closes_no_window_on_any_rank() {
    const AHEAD: u64 = 10 * WINDOW_MS as u64;
    // The order in which the sources end differs.
    for _ in 0..20 {
        let totals = on_ranks(2, |ranks| {
            let flow = Flow::with_settings("numbers", settings_of(ranks));
            let state = flow.windowed("counts", windows(), Count);
            let first_of = |first: u64| {
                Generator::new(move |number: u64| first + number.min(WINDOW_MS as u64 - 1))
            };
            let firsts: &[u64] = match ranks.rank() {
                0 => &[],
                _ => &[0, AHEAD],
            };
            flow.sources("numbers", firsts.iter().map(|first| first_of(*first)))
                .watermarks(
                    |number| Timestamp(*number as i64),
                    Watermarks::bounded(Duration::ZERO),
                )
                .key_by(|number| number % KEYS)
                .aggregate("count", &state, |number| Timestamp(*number as i64))
                .sink("results", Collect::new().0);
            let running = flow.run().unwrap();
            if ranks.rank() == 1 {
                let read = || running.metrics()[0].items_in;
                wait_until("numbers are read", || read() > 2 * AHEAD);
                running.stop();
            }
            assert!(running.join().unwrap().is_stopped);
            state.totals()
        });
        let closed: u64 = totals.iter().map(|totals| totals.closed_windows).sum();
        let open: u64 = totals.iter().map(|totals| totals.open_events).sum();
        assert_eq!(closed, 0);
        assert!(open > 0);
    }
}
