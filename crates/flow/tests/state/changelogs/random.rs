//! Ranks that die at random moments, with changelogs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{Emit, Flow, FlowError, FlowSettings, Resume, Running, StateMemory, Values};
use proptest::prelude::*;

use super::log::{LogStore, Scan, Trouble};
use super::settings_of;
use crate::values::{check, read};

const ITEMS: u64 = 20_000;
const SOURCES: u64 = 2;

/// Each stretch of the numbers has keys of its own.
const STRETCH: u64 = 128;
const STRETCH_KEYS: u64 = 16;

/// Each snapshot that no worker was woken for would take seconds.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The key and change of a number: every eighth change removes the value, others add.
fn change(seed: u64, number: u64) -> (u64, Option<u64>) {
    let dice = (number ^ seed)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
        .wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let amount = dice >> 40 & 7;
    // A change that is lost is seldom made good by a later one of the key.
    let stretch = match dice >> 12 & 7 {
        0 => (dice >> 16) % (number / STRETCH + 1),
        _ => number / STRETCH,
    };
    let key = stretch * STRETCH_KEYS + (dice >> 8) % STRETCH_KEYS;
    (key, (amount > 0).then_some(amount))
}

fn apply(value: &mut Option<u64>, amount: Option<u64>) {
    match amount {
        Some(amount) => *value.get_or_insert_default() += amount,
        None => *value = None,
    }
}

/// The flow on one rank. Each source has keys of its own, so that the order of their items does not count.
fn start(
    seed: u64,
    ranks: &Ranks,
    store: &Arc<LogStore>,
) -> Result<(Running, Values<u64, u64>), FlowError> {
    // Most values do not fit into the memory of some flows.
    let is_scarce = seed.is_multiple_of(2);
    let bytes = if is_scarce { 64 << 10 } else { 64 << 20 };
    let settings = FlowSettings {
        state_memory: Arc::new(StateMemory::new(bytes)),
        ..settings_of(store, Resume::IfAny, ranks)
    };
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<u64, u64>("values");
    let nothing = flow.partial::<u64>("nothing");
    let first = u64::from(ranks.rank()) * SOURCES;
    let source = |source: u64| {
        let source = first + source;
        Generator::new(move |number| {
            // Slow enough to be interrupted.
            if number % 512 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            let (key, amount) = change(seed ^ source, number);
            (source * ITEMS + key, amount)
        })
        .limit(ITEMS)
    };
    flow.sources("numbers", (0..SOURCES).map(source))
        .key_by(|(key, _)| *key)
        .update(
            "change",
            &values,
            |_, value, (_, amount), _: &mut Emit<'_, u64>| {
                apply(value, *amount);
            },
        )
        .fold_local(&nothing, |_, _| ());
    Ok((flow.run()?, values))
}

/// Runs on several ranks until the end, or until one of them dies after `until`. Returns the values of all ranks if
/// all have ended.
fn run(
    seed: u64,
    count: u32,
    store: &Arc<LogStore>,
    until: Option<(u32, Duration)>,
) -> Option<BTreeMap<String, u64>> {
    let rank = |ranks: Ranks| {
        // Another may have died before this one began.
        let (running, values) = start(seed, &ranks, store).ok()?;
        match until {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                None
            }
            _ => {
                running.join().ok()?;
                ranks.leave().ok()?;
                Some(read(&values))
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

/// The next call of this name fails, on any rank; no call fails if no call has this name.
fn trouble(fails: usize) -> Trouble {
    Trouble {
        fails: ["push", "flush", "prepare"].get(fails).copied(),
        ..Trouble::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn values_equal_a_plain_map_although_ranks_die_and_changelogs_fail(
        seed in any::<u64>(),
        count in 1u32..4,
        deaths in prop::collection::vec((0u32..4, 0u64..30, 0usize..6), 0..5),
        fails in 0usize..6,
        is_lazy in any::<bool>(),
    ) {
        let began = Instant::now();
        let store = Arc::new(LogStore::default());
        store.scan(if is_lazy { Scan::Slow } else { Scan::AtOnce });
        for (rank, after_ms, fails) in deaths {
            store.trouble(trouble(fails));
            run(seed, count, &store, Some((rank % count, Duration::from_millis(after_ms))));
        }
        store.trouble(trouble(fails));
        // The first or last checkpoint may have failed.
        let found = run(seed, count, &store, None).or_else(|| {
            store.trouble(Trouble::default());
            run(seed, count, &store, None)
        });
        let found = found.expect("all ranks end");
        let mut expected = BTreeMap::new();
        for source in 0..u64::from(count) * SOURCES {
            for number in 0..ITEMS {
                let (key, amount) = change(seed ^ source, number);
                apply(expected.entry(source * ITEMS + key).or_default(), amount);
            }
        }
        let expected = expected.into_iter().filter_map(|(key, value)| Some((key.to_string(), value?)));
        let expected = expected.collect();
        check(&found, &expected);
        check(&store.table("values"), &expected);
        prop_assert!(began.elapsed() < TIME_MAX, "{:?}: a worker was not woken", began.elapsed());
    }
}
