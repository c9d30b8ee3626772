//! Timers on several ranks, some of which die.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::{KeyRange, Timestamp};
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    Counters, Emit, Flow, FlowError, FlowSettings, Maps, OrderedState, ReadLevel, Resume, Running,
    StateMemory, Timers, Watermarks,
};

use crate::changelogs::log::{LogStore, Scan};
use crate::changelogs::settings_of;
use crate::support::{Collect, Hand, on_ranks, wait_until};

const ITEMS: u64 = 10_000;
const KEYS: u64 = 200;

/// The time of a timer behind its item.
fn delay(number: u64) -> i64 {
    (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as i64
}

type State = (Counters<u64>, Maps<u64, i64, u64>);

/// The flow on one rank. Each item sets a timer, and every third of them cancels the timer of an earlier item, if that has not
/// fired. Timers count in a map by their times, and items that cancel one in a counter.
fn start(
    ranks: &Ranks,
    store: &Arc<LogStore>,
    memory: u64,
) -> Result<(Running, State, Timers<u64, u64>), FlowError> {
    let settings = FlowSettings {
        state_memory: Arc::new(StateMemory::new(memory)),
        ..settings_of(store, Resume::IfAny, ranks)
    };
    let flow = Flow::with_settings("timers", settings);
    let state: State = (flow.counters("cancelled"), flow.maps("fired"));
    let timers = flow.timers::<u64, u64>("timers");
    let rank = u64::from(ranks.rank());
    let source = Generator::new(move |number| {
        // Slow enough to be interrupted.
        if number % 256 == 0 {
            thread::sleep(Duration::from_micros(300));
        }
        (rank, number)
    });
    flow.source("numbers", source.limit(ITEMS))
        .watermarks(
            |(_, number)| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|(rank, number)| rank * KEYS + number % KEYS)
        .process(
            "set",
            &state,
            &timers,
            |_, (mut cancelled, _), timers, (_, number), _: &mut Emit<'_, u64>| {
                timers.set_event(Timestamp(*number as i64 + delay(*number)), number);
                if number % 3 == 0
                    && let Some(earlier) = number.checked_sub(KEYS)
                {
                    let time = earlier as i64 + delay(earlier);
                    cancelled.add(i64::from(timers.cancel_event(Timestamp(time), &earlier)));
                }
            },
            |_, (_, mut fired), timers, timer, _| {
                assert!(timer.time <= timers.watermark());
                *fired.or_default(&timer.time.0) += 1;
            },
        )
        .fold_local(&flow.partial::<u64>("nothing"), |_, _| ());
    Ok((flow.run()?, state, timers))
}

/// The counts of cancelled and of fired timers by key.
type Found = BTreeMap<u64, (u64, u64)>;

/// Runs on several ranks until the end, or until one of them dies after `until`.
fn run(
    count: u32,
    store: &Arc<LogStore>,
    memory: u64,
    until: Option<(u32, Duration)>,
) -> Option<Found> {
    let rank = |ranks: Ranks| {
        // Another may have died before this one began.
        let (running, (cancelled, fired), timers) = start(&ranks, store, memory).ok()?;
        match until {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                None
            }
            _ => {
                running.join().ok()?;
                ranks.leave().ok()?;
                assert!(timers.is_empty());
                let mut found = Found::new();
                for key in 0..u64::from(count) * KEYS {
                    let entries = fired.entries(&key).into_iter();
                    let fired = entries.map(|(_, count)| count).sum();
                    if fired > 0 {
                        found.insert(key, (cancelled.get(&key) as u64, fired));
                    }
                }
                Some(found)
            }
        }
    };
    let rank = &rank;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || rank(ranks)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        let ends: Option<Vec<_>> = ends.collect::<Vec<_>>().into_iter().collect();
        Some(ends?.into_iter().flatten().collect())
    })
}

#[test]
fn each_timer_fires_once_or_is_cancelled_although_ranks_die() {
    for (count, deaths, scan, memory) in [
        (1, vec![5, 20], Scan::Slow, 64 << 20),
        (2, vec![3, 10, 25], Scan::Held, 64 << 20),
        (3, vec![15, 30], Scan::AtOnce, 32 << 10),
        (4, vec![20], Scan::Slow, 64 << 20),
    ] {
        let store = Arc::new(LogStore::default());
        store.scan(scan);
        for (index, after_ms) in deaths.into_iter().enumerate() {
            let until = (index as u32 % count, Duration::from_millis(after_ms));
            run(count, &store, memory, Some(until));
        }
        let found = run(count, &store, memory, None).expect("all ranks end");
        assert_eq!(found.len() as u64, u64::from(count) * KEYS);
        for (key, (cancelled, fired)) in found {
            assert_eq!(cancelled + fired, ITEMS / KEYS, "key {key}");
        }
    }
}

#[test]
fn clock_timers_of_a_rank_without_sources_fire_while_the_others_are_silent() {
    const STEPS: u64 = 20;
    let store = Arc::new(LogStore::default());
    on_ranks(2, |ranks| {
        let flow = Flow::with_settings("timers", settings_of(&store, Resume::Never, ranks));
        let counts = flow.values::<u64, u64>("counts");
        let timers = flow.timers::<u64, u64>("timers");
        let (sink, fired) = Collect::new();
        let has_source = ranks.rank() == 0;
        let hand = Hand::default();
        flow.sources("numbers", has_source.then(|| hand.clone()))
            .key_by(|number| *number)
            .process(
                "wait",
                &counts,
                &timers,
                // Timers of rank 0 would make its checkpoints due.
                move |_, _, timers, _, _: &mut Emit<'_, u64>| {
                    if !has_source {
                        timers.set_clock(timers.now(), &1);
                    }
                },
                |_, count, timers, timer, emit| {
                    *count = Some(timer.tag);
                    emit(&timer.tag);
                    if timer.tag < STEPS {
                        let next = Timestamp(timers.now().0 + 10);
                        timers.set_clock(next, &(timer.tag + 1));
                    }
                },
            )
            .sink("fired", sink);
        let running = flow.run().unwrap();
        if has_source {
            hand.give(0..16);
        } else {
            wait_until("timers fire", || fired.lock().unwrap().contains(&STEPS));
            let last = || {
                let page = counts.scan(&KeyRange::all(), 16, ReadLevel::Committed);
                let mut counts = page.entries.into_iter().map(|entry| entry.value);
                counts.any(|count| count == STEPS)
            };
            wait_until("the last firing is committed", last);
        }
        ranks.agree(Default::default(), 0).unwrap();
        hand.end();
        running.join().unwrap();
    });
}
