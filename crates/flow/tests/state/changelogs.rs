//! State elements whose changes go to changelogs: only changes that checkpoints have committed outlast a crash.

mod changed;
mod evicted;
mod lazy;
pub mod lifetimes;
pub mod log;
mod random;
mod read;
mod trouble;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::KeyRange;
use millstream_exchange::Ranks;
use millstream_flow::{
    Checkpointing, Checkpoints, ElementStorage, Emit, Flow, FlowError, FlowSettings, OrderedState,
    ReadLevel, Resume, Running, Values,
};

use self::log::LogStore;
use crate::support::{Hand, settings, wait_until};
use crate::values::{check, read};

/// A flow that counts numbers by key, in a store with changelogs unless that is switched off.
fn count(
    store: &Arc<impl Checkpoints>,
    resume: Resume,
    numbers: &Hand,
) -> Result<(Running, Values<u64, u64>), FlowError> {
    let flow = Flow::with_settings("numbers", settings_of(store, resume, &Ranks::alone()));
    let values = flow.values::<u64, u64>("counts");
    let nothing = flow.partial::<u64>("nothing");
    // Number 1000 + k removes key k.
    flow.source("numbers", numbers.clone())
        .key_by(|number| number % 1000)
        .update(
            "count",
            &values,
            |_, count, number, _: &mut Emit<'_, u64>| match *number < 1000 {
                true => *count.get_or_insert_default() += 1,
                false => *count = None,
            },
        )
        .fold_local(&nothing, |_, _| ());
    Ok((flow.run()?, values))
}

pub fn settings_of(store: &Arc<impl Checkpoints>, resume: Resume, ranks: &Ranks) -> FlowSettings {
    FlowSettings {
        ranks: ranks.clone(),
        checkpoints: Some(Checkpointing {
            store: Arc::clone(store) as _,
            interval: Some(Duration::from_millis(1)),
            resume,
        }),
        ..settings(2, 64)
    }
}

fn counts_of(counts: &[(u64, u64)]) -> BTreeMap<String, u64> {
    let text = counts.iter().map(|(key, count)| (key.to_string(), *count));
    text.collect()
}

/// Waits until all that was given so far is in a checkpoint, and committed.
fn wait_until_committed(store: &LogStore, counts: &[(u64, u64)]) {
    wait_until("changes are committed", || {
        store.table("counts") == counts_of(counts)
    });
}

/// Waits until one of these changes is prepared, and the shard that names it is refused. The shard is put again for ever, and
/// later changes wait for it.
fn wait_until_refused(running: &Running, store: &LogStore, changes: &[&str]) {
    let is_pushed = || {
        let calls = store.all_calls();
        calls.iter().any(|call| changes.contains(&call.as_str()))
    };
    wait_until("a change is pushed", is_pushed);
    let failed = || running.checkpoints().map_or(0, |counts| counts.failed);
    let before = failed();
    wait_until("its shard is refused", || failed() > before);
}

#[test]
fn a_changelog_is_called_in_order_and_gets_only_changed_keys() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2, 1]);
    wait_until_committed(&store, &[(1, 2), (2, 1)]);
    store.take_calls();
    hand.give([2]);
    wait_until_committed(&store, &[(1, 2), (2, 2)]);
    let last = running.checkpoints().unwrap().last.unwrap();
    // A key of 8 bytes, at least, and a digit.
    assert_eq!(last.changes, Some(1));
    assert!(last.change_bytes >= Some(2), "{last:?}");
    assert!(last.pause_seconds.is_some_and(|pause| pause < 10.0));
    let elements = running.elements();
    let stored: Vec<_> = elements
        .iter()
        .map(|it| (it.name.as_str(), it.stored))
        .collect();
    let expected = [
        ("counts", ElementStorage::Changelog),
        ("nothing", ElementStorage::Whole),
    ];
    assert_eq!(stored, expected);
    hand.give([1001]);
    wait_until_committed(&store, &[(2, 2)]);
    let calls = store.take_calls();
    let changes: Vec<&String> = calls.iter().filter(|it| it.starts_with("push")).collect();
    assert_eq!(changes, ["push 2 = 2", "push 1 removed"]);
    hand.end();
    running.join().unwrap();
    // The order is checked by the changelog.
    let calls = store.all_calls();
    assert_eq!(calls[..3], ["recover", "restore", "prepare"]);
    assert_eq!(calls[calls.len() - 1], "commit");
}

#[test]
fn a_flow_resumes_from_its_changelog_and_not_from_changes_behind_the_checkpoint() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2, 3, 1002]);
    wait_until_committed(&store, &[(1, 1), (3, 1)]);
    // From now on no shard is stored: prepared changes wait for ever.
    store.shards.refuse();
    store.take_calls();
    hand.give([1, 1, 4]);
    wait_until_refused(
        &running,
        &store,
        &["push 1 = 2", "push 1 = 3", "push 4 = 1"],
    );
    drop(running);
    store.shards.accept();
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    check(&read(&values), &counts_of(&[(1, 1), (3, 1)]));
    hand.give([1, 3, 2]);
    hand.end();
    running.join().unwrap();
    assert_eq!(store.table("counts"), counts_of(&[(1, 2), (2, 1), (3, 2)]));
}

#[test]
fn changes_of_checkpoints_without_a_shard_are_committed_with_the_next_shard() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    store.shards.refuse();
    hand.give([1]);
    let failed = || running.checkpoints().unwrap().failed;
    wait_until("a shard is refused", || failed() > 0);
    assert_eq!(store.table("counts"), counts_of(&[]));
    store.shards.accept();
    hand.give([2]);
    wait_until_committed(&store, &[(1, 1), (2, 1)]);
    hand.end();
    running.join().unwrap();
}

#[test]
fn values_from_a_whole_snapshot_replace_all_keys_of_the_changelog() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2, 5]);
    wait_until_committed(&store, &[(1, 1), (2, 1), (5, 1)]);
    drop(running);
    // Shards are lost, and the flow runs without a changelog for a time.
    let whole = Arc::clone(&store.shards);
    whole.parts.lock().unwrap().clear();
    let hand = Hand::default();
    let (running, _) = count(&whole, Resume::Never, &hand).unwrap();
    hand.give([7, 2, 2]);
    hand.end();
    running.join().unwrap();
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    check(&read(&values), &counts_of(&[(2, 2), (7, 1)]));
    hand.end();
    running.join().unwrap();
    assert_eq!(store.table("counts"), counts_of(&[(2, 2), (7, 1)]));
}

#[test]
fn a_flow_that_starts_over_clears_the_changelog_of_an_earlier_one() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2]);
    wait_until_committed(&store, &[(1, 1), (2, 1)]);
    drop(running);
    store.shards.parts.lock().unwrap().clear();
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Never, &hand).unwrap();
    assert!(read(&values).is_empty());
    hand.give([2, 2, 2]);
    hand.end();
    running.join().unwrap();
    assert_eq!(store.table("counts"), counts_of(&[(2, 3)]));
}

#[test]
fn a_flow_without_its_changelog_does_not_resume() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.end();
    running.join().unwrap();
    let error = count(&store.shards, Resume::Always, &Hand::default());
    let error = error.map(drop).unwrap_err().to_string();
    let expected = "flow \"numbers\": the checkpoint has state \"counts\" in a changelog";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn committed_values_equal_the_changelogs() {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Never, &hand).unwrap();
    let committed = |values: &Values<u64, u64>| {
        let page = values.scan(&KeyRange::all(), 100, ReadLevel::Committed);
        let entries = page.entries.into_iter();
        entries
            .map(|entry| (entry.key, entry.value.as_u64().unwrap()))
            .collect::<BTreeMap<_, _>>()
    };
    hand.give([1, 2, 2, 3]);
    wait_until_committed(&store, &[(1, 1), (2, 2), (3, 1)]);
    // Changes of checkpoints without a shard are prepared, and not committed.
    store.shards.refuse();
    hand.give([1, 1002, 4]);
    wait_until_refused(
        &running,
        &store,
        &["push 1 = 2", "push 2 removed", "push 4 = 1"],
    );
    assert_eq!(committed(&values), store.table("counts"));
    drop(running);
    store.shards.accept();
    let hand = Hand::default();
    let (running, values) = count(&store, Resume::Always, &hand).unwrap();
    let restored = counts_of(&[(1, 1), (2, 2), (3, 1)]);
    assert_eq!(committed(&values), restored);
    hand.give([1, 4]);
    hand.end();
    running.join().unwrap();
    assert_eq!(
        committed(&values),
        counts_of(&[(1, 2), (2, 2), (3, 1), (4, 1)])
    );
}
