//! Changelogs that fail, are full, or are slow.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_flow::Resume;

use super::log::{LogStore, Trouble};
use super::{count, counts_of, wait_until_committed};
use crate::support::{Hand, wait_until};

#[test]
fn changes_of_a_failed_checkpoint_are_stored_with_the_next() {
    for fails in ["push", "flush", "prepare"] {
        let store = Arc::new(LogStore::default());
        let hand = Hand::default();
        let (running, _) = count(&store, Resume::Never, &hand).unwrap();
        hand.give(0..200);
        let counts: Vec<_> = (0..200).map(|key| (key, 1)).collect();
        wait_until_committed(&store, &counts);
        store.trouble(Trouble {
            fails: Some(fails),
            ..Trouble::default()
        });
        // The last is removed.
        hand.give((0..150).chain([1000 + 149]));
        wait_until("it has failed", || !store.is_to_fail());
        // Only one key changes again.
        hand.give([7, 300]);
        let mut counts: Vec<_> = (0..149).map(|key| (key, 2)).collect();
        counts[7].1 = 3;
        counts.extend((150..200).chain([300]).map(|key| (key, 1)));
        wait_until_committed(&store, &counts);
        let failed = running.checkpoints().unwrap();
        assert_eq!(failed.failed, 1);
        let error = format!("the changelog of state \"counts\": {fails} is in trouble");
        assert_eq!(failed.error, Some(error));
        hand.end();
        running.join().unwrap();
    }
}

#[test]
fn a_flow_continues_while_its_changelog_is_slow_or_full() {
    for (is_slow, is_full) in [(true, false), (false, true)] {
        let store = Arc::new(LogStore::default());
        let hand = Hand::default();
        let (running, values) = count(&store, Resume::Never, &hand).unwrap();
        hand.give([1]);
        wait_until_committed(&store, &[(1, 1)]);
        store.trouble(Trouble {
            is_slow,
            is_full,
            ..Trouble::default()
        });
        hand.give([2]);
        wait_until("it is counted", || values.get(&2) == Some(1));
        thread::sleep(Duration::from_millis(20));
        for count in 1..20 {
            hand.give([3]);
            wait_until("it is counted", || values.get(&3) == Some(count));
        }
        assert_eq!(store.table("counts"), counts_of(&[(1, 1)]));
        let kept = running.checkpoints().unwrap();
        store.trouble(Trouble::default());
        wait_until_committed(&store, &[(1, 1), (2, 1), (3, 19)]);
        assert_eq!(kept.failed, 0);
        hand.end();
        running.join().unwrap();
    }
}

#[test]
fn a_full_changelog_is_retried_only_when_it_wakes_the_writer() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Never, &hand).unwrap();
    store.trouble(Trouble {
        is_full: true,
        ..Trouble::default()
    });
    hand.give([1]);
    wait_until("it is counted", || values.get(&1) == Some(1));
    wait_until("the writer waits", || store.waiting() == 1);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(store.waiting(), 1, "each attempt leaves a waker");
    store.trouble(Trouble::default());
    wait_until_committed(&store, &[(1, 1)]);
    hand.end();
    running.join().unwrap();
}

#[test]
fn an_ending_flow_waits_for_its_changelog() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    store.trouble(Trouble {
        is_full: true,
        ..Trouble::default()
    });
    hand.give([1, 2]);
    hand.end();
    wait_until("the writer waits", || store.waiting() == 1);
    thread::sleep(Duration::from_millis(20));
    assert!(!running.is_finished());
    store.trouble(Trouble::default());
    running.join().unwrap();
    assert_eq!(store.table("counts"), counts_of(&[(1, 1), (2, 1)]));
}

#[test]
fn a_dropped_flow_ends_while_its_changelog_is_full() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1]);
    wait_until_committed(&store, &[(1, 1)]);
    store.trouble(Trouble {
        is_full: true,
        ..Trouble::default()
    });
    hand.give([1, 2]);
    wait_until("the writer waits", || store.waiting() == 1);
    drop(running);
    store.trouble(Trouble::default());
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    assert_eq!((values.get(&1), values.get(&2)), (Some(1), None));
    hand.end();
    running.join().unwrap();
}
