//! Timers whose keys are not in memory, in a flow that has resumed.

use std::sync::Arc;

use millstream_exchange::Ranks;
use millstream_flow::{Emit, Flow, Resume, StateReader};

use super::{Command, EVENT, World};
use crate::changelogs::log::{LogStore, Scan};
use crate::changelogs::settings_of;
use crate::support::{Hand, wait_until};

const KEYS: u64 = 3_000;

#[test]
fn a_timer_waits_for_the_content_of_its_key_and_finds_it() {
    let store = Arc::new(LogStore::default());
    let start = |resume| World::start(settings_of(&store, resume, &Ranks::alone())).unwrap();
    let world = start(Resume::Never);
    world.give((0..KEYS).map(|key| (key, Command::Set(EVENT, 10 + (key / 100) as i64, 0))));
    wait_until("all are set", || world.timers.len() as u64 == KEYS);
    world.running.stop();
    world.running.join().unwrap();
    // No value is in memory, and none comes unless it is asked for.
    store.scan(Scan::Held);
    let world = start(Resume::Always);
    assert_eq!(world.timers.len() as u64, KEYS);
    world.give([(KEYS, Command::Tick(20))]);
    wait_until("timers fire", || world.fired().len() == 1_100);
    assert!(!world.counts.is_whole().unwrap());
    assert_eq!(world.counts.get(&7), Some((1, 1)));
    // A timer of a key that has none: it is known then.
    world.give([
        (KEYS + 1, Command::Set(EVENT, 0, 0)),
        (KEYS, Command::Tick(1_000)),
    ]);
    wait_until("all fire", || world.fired().len() as u64 == KEYS + 1);
    for key in 0..KEYS {
        assert_eq!(world.counts.get(&key), Some((1, 1)));
    }
    assert!(world.timers.is_empty());
    world.hand.end();
    let summary = world.running.join().unwrap();
    assert_eq!(summary.lost_wakeups, 0);
}

#[test]
fn a_tuple_waits_for_the_contents_of_all_its_elements() {
    const KEYS: u64 = 500;
    let store = Arc::new(LogStore::default());
    let start = |resume, hand: &Hand| {
        let settings = settings_of(&store, resume, &Ranks::alone());
        let flow = Flow::with_settings("tuples", settings);
        let first = flow.counters::<u64>("first");
        let second = flow.values::<u64, u64>("second");
        let third = flow.maps::<u64, u64, u64>("third");
        let all = (first.clone(), second.clone(), third.clone());
        flow.source("numbers", hand.clone())
            .key_by(|number| number % KEYS)
            .update(
                "count",
                &all,
                |_, (mut first, second, mut third), number, _: &mut Emit<'_, u64>| {
                    first.add(1);
                    // Some keys have no value here.
                    if number % 2 == 0 {
                        *second.get_or_insert_default() += 1;
                    }
                    *third.or_default(&(number % 3)) += 1;
                },
            )
            .fold_local(&flow.partial::<u64>("end"), |_, _| ());
        (flow.run().unwrap(), all)
    };
    let hand = Hand::default();
    let (running, (first, ..)) = start(Resume::Never, &hand);
    hand.give(0..3 * KEYS);
    wait_until("all are counted", || {
        (0..KEYS).all(|key| first.get(&key) == 3)
    });
    running.stop();
    running.join().unwrap();
    store.scan(Scan::Held);
    let hand = Hand::default();
    let (running, (first, second, third)) = start(Resume::Always, &hand);
    // The reader knows some keys of one element alone.
    assert!((0..KEYS / 2).all(|key| first.get(&key) == 3));
    hand.give((0..2 * KEYS).rev());
    hand.end();
    running.join().unwrap();
    assert!(!second.is_whole().unwrap());
    for key in 0..KEYS {
        assert_eq!(first.get(&key), 5);
        // KEYS is even, so a key's numbers are even or odd together.
        let expected = (key % 2 == 0).then_some(5);
        assert_eq!(second.get(&key), expected);
        let sum: u64 = third.entries(&key).iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 5);
    }
}
