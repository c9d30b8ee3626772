//! Flows that begin in a store which an earlier program has used.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Changelog, Checkpointing, Checkpoints, Flow, FlowError, FlowSettings, Key, Resume,
    Running, ShardKey,
};

use crate::flows::{check_counts, start, start_in, wait_for_checkpoints};
use crate::support::{Table, World, for_both};

/// The store as programs used it that stored no records: their shards have names without a run.
struct Former(Arc<dyn Checkpoints>);

impl Checkpoints for Former {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        self.0.put(key, shard)
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.0.get(key)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        self.0.list()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.0.remove(key)
    }

    fn changelog(&self, flow: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        self.0.changelog(flow, element)
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn last_record(world: &World) -> Option<Vec<u8>> {
    world.store.records().unwrap().last().unwrap()
}

#[test]
fn a_flow_resumes_from_the_shards_of_a_program_without_records() {
    for_both(|world| {
        let former: Arc<dyn Checkpoints> = Arc::new(Former(Arc::clone(&world.store)));
        let (running, _) = start_in(&former, Resume::Never).unwrap();
        wait_for_checkpoints(&running, 3);
        drop(running);
        let runs = || -> BTreeSet<u64> {
            let shards = world.store.list().unwrap().into_iter();
            shards.map(|key| key.run).collect()
        };
        assert_eq!((runs(), last_record(world)), ([0].into(), None));

        let refused = start(world, Resume::Never).map(drop).unwrap_err();
        assert!(
            refused.to_string().contains("of an earlier run"),
            "{refused}"
        );
        let (running, _) = start(world, Resume::Always).unwrap();
        wait_until("a record is stored", || last_record(world).is_some());
        wait_until("the former shards are gone", || !runs().contains(&0));
        drop(running);
        let (running, counts) = start(world, Resume::Always).unwrap();
        running.join().unwrap();
        check_counts(&counts);
    });
}

/// Counts a few numbers by keys of another type.
fn count_by<K: Key>(world: &World, key: fn(u64) -> K) -> Result<Running, FlowError> {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(&world.store),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::Never,
        }),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.values::<K, u64>("users");
    flow.source("numbers", Generator::new(|number| number).limit(10))
        .key_by(move |number| key(*number))
        .count("count", &counts);
    flow.run()
}

fn forget_checkpoints(world: &World) {
    world.log.delete_stream("shop.checkpoints").unwrap();
    for key in world.store.list().unwrap() {
        world.store.remove(key).unwrap();
    }
}

#[test]
fn a_flow_that_starts_over_with_another_key_type_is_refused_with_advice() {
    for_both(|world| {
        let state = || -> Table { world.open().unwrap().restore().unwrap() };
        count_by(world, |number| u64::MAX - number)
            .unwrap()
            .join()
            .unwrap();
        let before = state();
        assert_eq!(before.len(), 10);
        forget_checkpoints(world);
        let refused = count_by(world, |number| format!("{number}")).map(drop);
        let error = refused.unwrap_err().to_string();
        assert!(
            error.contains("stream shop.state.users, partition "),
            "{error}"
        );
        assert!(
            error.contains("an earlier run has left a key of another type"),
            "{error}"
        );
        assert!(error.contains("Delete this stream"), "{error}");
        assert_eq!(state(), before, "nothing was touched");

        world.log.delete_stream("shop.state.users").unwrap();
        let running = count_by(world, |number| format!("{number}")).unwrap();
        running.join().unwrap();
        assert_eq!(state().len(), 10);
    });
}

/// Else the flow would go on with other counts, and nothing would say so.
#[test]
fn a_flow_whose_state_was_deleted_does_not_resume() {
    for_both(|world| {
        let (running, _) = start(world, Resume::Never).unwrap();
        running.join().unwrap();
        world.log.delete_stream("shop.state.users").unwrap();
        for _ in 0..2 {
            let refused = start(world, Resume::Always).map(drop).unwrap_err();
            let refused = refused.to_string();
            let expected =
                "the changelog of state \"users\": it lacks a key that the checkpoint has";
            assert!(refused.contains(expected), "{refused}");
        }
        forget_checkpoints(world);
        let (running, counts) = start(world, Resume::Never).unwrap();
        running.join().unwrap();
        check_counts(&counts);
    });
}
