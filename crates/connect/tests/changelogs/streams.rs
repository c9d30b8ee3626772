//! The streams of changelogs: their creation, their settings, and records of other programs in them.

use millstream_connect::LogCheckpoints;
use millstream_flow::Checkpoints;
use millstream_log::{CLEANUP_POLICY, StreamConfig};

use crate::support::{World, for_both, foreign_producer, table};

#[test]
fn a_missing_stream_is_created_as_a_keyed_one() {
    for_both(|world| {
        drop(world.open().unwrap());
        let stream = world.log.stream("shop.state.users").unwrap();
        assert_eq!(stream.partition_count(), 4);
        let mut config = stream.config();
        let policy = config.settings.remove(CLEANUP_POLICY);
        assert_eq!(policy.as_deref(), Some("compact"));
        let expected = StreamConfig {
            streamlets: 4,
            ..StreamConfig::default()
        };
        assert_eq!(config, expected);
        // Another rank finds it.
        drop(world.open().unwrap());
    });
}

#[test]
fn a_stream_from_which_state_would_be_removed_is_refused() {
    for_both(|world| {
        let name = "shop.state.users";
        world
            .log
            .create_stream(name, StreamConfig::default())
            .unwrap();
        for policy in ["delete", "compact,delete"] {
            world.set_policy(policy);
            let error = world.open().err().unwrap().to_string();
            let expected = format!(
                "stream shop.state.users holds the state of a flow, and its setting cleanup.policy is {policy:?}"
            );
            assert!(error.starts_with(&expected), "{error}");
        }
    });
}

#[test]
fn a_name_that_no_stream_can_have_is_refused() {
    for_both(|world| {
        let error = world.store.changelog("shop", "all users").err().unwrap();
        let error = error.to_string();
        assert!(error.contains("shop.state.all users"), "{error}");
    });
}

#[test]
fn a_record_of_another_program_is_named() {
    // Murmur2 gives the key to partition 2.
    const KEY: &[u8] = b"ada";
    let owner = millstream_client::partition_of_key(KEY, 4) as u32;
    let other = (owner + 1) % 4;
    let cases = [
        (other, None, "it has no key"),
        (other, Some(KEY), "its key belongs to another partition"),
        (owner, Some(KEY), "no user has this key"),
    ];
    for (partition, key, why) in cases {
        for_both(|world| {
            let mut run = world.begin(None);
            // The stream takes records without a key only while it has another policy.
            world.set_policy("delete");
            world.append(partition, key, None);
            world.set_policy("compact");
            let mut run_again = world.begin(None);
            let restored = run_again
                .0
                .restore(&mut |_, _| Err("no user has this key".into()));
            let error = restored.unwrap_err().to_string();
            let expected = format!(
                "stream shop.state.users, partition {partition}, offset 0: {why}; has another"
            );
            assert!(error.starts_with(&expected), "{error}");
            run.push(&[]).unwrap();
        });
    }
}

#[test]
fn an_open_transaction_of_another_program_is_named_since_state_behind_it_is_missing() {
    for_both(|world| {
        let mut run = world.begin(None);
        world.append(1, Some(b"x"), Some(foreign_producer()));
        let prepared = run.store(1, &[(b"ada", Some(b"1")), (b"bob", Some(b"1"))]);
        drop(run);
        let error = world.begin(Some(&prepared)).restore().unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("stream shop.state.users, partition 1: the transaction of "),
            "{error}"
        );
    });
}

#[test]
fn two_runs_of_a_process_cannot_use_one_store_of_a_log() {
    let (world, other) = (World::start(false), World::start(false));
    let lock = world.store.lock().unwrap();
    let again = LogCheckpoints::new(&world.log, "shop");
    let error = again.lock().err().unwrap().to_string();
    assert!(
        error.starts_with("the checkpoints shop.checkpoint.* are in use by another run"),
        "{error}"
    );
    // Other flows and other logs are free.
    let flow = LogCheckpoints::new(&world.log, "shops");
    let _locks = (flow.lock().unwrap(), other.store.lock().unwrap());
    drop(lock);
    drop(again.lock().unwrap());
    let mut run = world.begin(None);
    assert_eq!(run.restore().unwrap(), table(&[]));
}
