//! Programs that were changed, and stores that were damaged: a run that cannot resume says so, and touches nothing.

use std::sync::Arc;

use millstream_exchange::Ranks;
use millstream_flow::{Checkpoints, Emit, Flow, FlowError, Key, Resume, Running, ShardKey, Value};

use super::log::LogStore;
use super::{count, settings_of, wait_until_committed};
use crate::support::{Collect, Hand, MemoryStore};

/// Returns a store with counts by key, and the calls so far.
fn counted() -> (Arc<LogStore>, Vec<String>) {
    let store = Arc::new(LogStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2, 1]);
    wait_until_committed(&store, &[(1, 2), (2, 1)]);
    hand.end();
    running.join().unwrap();
    let calls = store.all_calls();
    (store, calls)
}

/// Resumes with other types.
fn resume<K: Key + From<u16>, V: Value + Default>(
    store: &Arc<impl Checkpoints>,
) -> Result<Running, FlowError> {
    let settings = settings_of(store, Resume::Always, &Ranks::alone());
    let flow = Flow::with_settings("numbers", settings);
    let values = flow.values::<K, V>("counts");
    let nothing = flow.partial::<u64>("nothing");
    flow.source("numbers", Hand::default())
        .key_by(|number| K::from(*number as u16))
        .update("count", &values, |_, value, _, _: &mut Emit<'_, u64>| {
            *value = Some(V::default())
        })
        .fold_local(&nothing, |_, _| ());
    flow.run()
}

#[test]
fn the_error_names_a_state_of_changed_type_before_a_transaction_is_decided() {
    let (store, calls) = counted();
    for resumed in [resume::<u64, String>(&store), resume::<u32, u64>(&store)] {
        let error = resumed.err().unwrap().to_string();
        let expected = "flow \"numbers\": the checkpoint does not fit this program: state \"counts\": its keys or values have another type than in the checkpoint: ";
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(store.all_calls(), calls);
    }
    // A value that became optional is read.
    drop(resume::<u64, Option<u64>>(&store).unwrap());
}

#[test]
fn the_error_names_a_whole_saved_state_of_changed_type() {
    let store = Arc::new(MemoryStore::default());
    let hand = Hand::default();
    let (running, _) = count(&store, Resume::Never, &hand).unwrap();
    hand.give([1, 2, 1]);
    hand.end();
    running.join().unwrap();
    for (resumed, types) in [
        (
            resume::<u64, String>(&store),
            "(u64, alloc::string::String)",
        ),
        (resume::<u32, u64>(&store), "(u32, u64)"),
        // Its bytes would be read as another number.
        (resume::<u64, i64>(&store), "(u64, i64)"),
    ] {
        let error = resumed.err().unwrap().to_string();
        let expected = format!(
            "state \"counts\" has the types (u64, u64) in the checkpoint, and {types} in the program"
        );
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_sink_with_the_name_of_a_changelog_is_refused() {
    let store = Arc::new(LogStore::default());
    let settings = settings_of(&store, Resume::Never, &Ranks::alone());
    let flow = Flow::with_settings("numbers", settings);
    let counts = flow.values::<u64, u64>("counts");
    let numbers = Hand::default();
    flow.source("numbers", numbers.clone())
        .key_by(|number| *number)
        .count("count", &counts);
    flow.source("others", numbers)
        .sink("state.counts", Collect::new().0);
    let error = flow.run().err().unwrap().to_string();
    let expected =
        "sink \"state.counts\" has the name that the transactions of state \"counts\" have";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn the_error_advises_no_checkpoint_older_than_the_changelog() {
    let (store, _) = counted();
    let mut parts = store.shards.parts.lock().unwrap();
    let newest = parts.last_key_value();
    let (newest, mut part) = newest.map(|(key, part)| (*key, part.clone())).unwrap();
    let damaged = ShardKey {
        checkpoint: newest.checkpoint + 1,
        ..newest
    };
    part.pop();
    parts.insert(damaged, part);
    drop(parts);
    let error = count(&store, Resume::Always, &Hand::default());
    let error = error.map(drop).unwrap_err().to_string();
    let expected = format!(
        "the older checkpoint {} does not fit the changelog of state \"counts\", which has later changes: bring back",
        newest.checkpoint
    );
    assert!(error.contains(&expected), "{error}");
    assert!(!error.contains("remove that shard"), "{error}");
}
