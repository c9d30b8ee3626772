//! The streams of changelogs: their creation, their settings, and records of other programs in them.

use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_client::partition_of_key;
use millstream_connect::LogCheckpoints;
use millstream_flow::Checkpoints;
use millstream_log::{
    CLEANUP_POLICY, COMPACT, COMPACTION_LAG_MAX, DELETE_RETENTION, DIRTY_RATIO_MIN, Durability,
    FILE_DELETE_DELAY, KEYED_CLOCK, StreamConfig, StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression, Header};

use crate::support::{World, for_both, foreign_producer, table};

#[test]
fn a_missing_changelog_stream_is_created_as_a_keyed_stream() {
    for_both(|world| {
        drop(world.open().unwrap());
        let stream = world.log.stream("shop.state.users").unwrap();
        assert_eq!(stream.partition_count(), 4);
        let mut config = stream.config();
        let policy = config.settings.remove(CLEANUP_POLICY);
        assert_eq!(policy.as_deref(), Some("compact"));
        let clock = config.settings.remove(KEYED_CLOCK);
        assert_eq!(clock.as_deref(), Some("-9223372036854775807"));
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
fn a_changelog_refuses_a_stream_whose_policy_removes_records() {
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

/// Else a crash could lose state, and records of checkpoints, after results that follow from them were committed.
#[test]
fn a_changelog_refuses_a_stream_of_weaker_durability() {
    for durability in [Durability::Written, Durability::Async, Durability::Memory] {
        for_both(|world| {
            for name in ["shop.state.users", "shop.checkpoints"] {
                let config = StreamConfig {
                    durability,
                    settings: [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into(),
                    ..StreamConfig::default()
                };
                world.log.create_stream(name, config).unwrap();
            }
            let opened = world.open().map(drop);
            for (name, refused) in [
                ("shop.state.users", opened),
                ("shop.checkpoints", world.store.lock().map(drop)),
            ] {
                let error = refused.unwrap_err().to_string();
                let expected = format!(
                    "stream {name} holds the state of a flow, and its setting millstream.durability is {:?}, so a crash",
                    durability.name()
                );
                assert!(error.starts_with(&expected), "{error}");
            }
            // Once it is gone, the flow creates one.
            world.log.delete_stream("shop.checkpoints").unwrap();
            drop(world.store.lock().unwrap());
        });
    }
}

#[test]
fn a_changelog_refuses_an_invalid_stream_name() {
    for_both(|world| {
        let error = world.store.changelog("shop", "all users").err().unwrap();
        let error = error.to_string();
        assert!(error.contains("shop.state.all users"), "{error}");
    });
}

#[test]
fn a_restore_names_the_offset_of_a_record_of_another_program() {
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
                .restore(None, &mut |_, _| Err("no user has this key".into()));
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
fn a_restore_refuses_a_change_without_a_checkpoint_header() {
    const KEY: &[u8] = b"ada";
    let partition = millstream_client::partition_of_key(KEY, 4) as u32;
    for value in [Some(&b"7"[..]), None] {
        for_both(|world| {
            let prepared = world.begin(None).store(1, &[(KEY, Some(b"1"))]);
            // As `kv put` and `kv delete` do.
            world.append_value(partition, Some(KEY), value, None);
            for prepared in [Some(&prepared[..]), None] {
                let error = world.begin(prepared).restore().unwrap_err().to_string();
                let expected = "it has no header \"checkpoint\" with a number, as the flow's own changes have; has another";
                assert!(error.contains(expected), "{error}");
                assert!(error.contains("Delete this stream"), "{error}");
            }
            // A change of the flow replaces it.
            let prepared = world.begin(Some(&prepared)).store(2, &[(KEY, Some(b"2"))]);
            let restored = world.begin(Some(&prepared)).restore().unwrap();
            assert_eq!(restored, table(&[(KEY, b"2")]));
        });
    }
}

#[test]
fn a_restore_refuses_a_change_of_a_later_checkpoint() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(7, &[(b"ada", Some(b"1")), (b"bob", Some(b"1"))]);
        let prepared = run.store(8, &[(b"ada", None)]);
        drop(run);
        let restored = world.begin(Some(&prepared)).restore_at(8).unwrap();
        assert_eq!(restored, table(&[(b"bob", b"1")]));
        let error = world.begin(Some(&prepared)).restore_at(7).unwrap_err();
        let error = error.to_string();
        let expected = "the change is of checkpoint 8, and the flow resumes from checkpoint 7";
        assert!(error.contains(expected), "{error}");
        // A flow that begins anew replaces it.
        let mut keys = Vec::new();
        let noted = &mut |key: &[u8], _: Option<&[u8]>| {
            keys.push(key.to_vec());
            Ok(())
        };
        world.begin(None).0.restore(None, noted).unwrap();
        assert!(keys.contains(&b"ada".to_vec()), "{keys:?}");
    });
}

#[test]
fn a_restore_reports_removed_changes() {
    for_both(|world| {
        let mut run = world.begin(None);
        run.store(1, &[(b"ada", Some(b"1"))]);
        let prepared = run.store(2, &[(b"bob", Some(b"1"))]);
        drop(run);
        world.set_policy("delete");
        for partition in 0..4 {
            let partition = world.partition(partition);
            let end = partition.next_offset();
            for removed in world.log.delete_before(&[(partition, end)]) {
                removed.unwrap();
            }
        }
        world.set_policy("compact");
        // Also of a flow that begins anew, since it could never resume.
        let resumed = world.begin(Some(&prepared)).restore();
        let anew = world.begin(None).0.restore(None, &mut |_, _| Ok(()));
        for refused in [resumed.map(drop), anew] {
            let error = refused.unwrap_err().to_string();
            let expected = " were removed, and with them state of the flow: delete this stream";
            assert!(error.contains(expected), "{error}");
        }
    });
}

#[test]
fn a_restore_names_an_open_transaction_of_another_program_that_hides_state() {
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

/// The number of records that a partition has.
fn stored(partition: &StreamPartition) -> u64 {
    let mut reader = partition.reader(partition.earliest());
    let mut count = 0;
    while let Some(chunks) = reader.read(1 << 20).unwrap() {
        let chunks = chunks.chunks();
        count += chunks
            .map(|chunk| u64::from(chunk.unwrap().header().record_count))
            .sum::<u64>();
    }
    count
}

/// Appends changes of keys, outside of transactions: markers of these stay for longer than their records.
fn change(world: &World, keys: &[String], value: Option<&[u8]>) {
    let checkpoint = Header {
        name: b"checkpoint",
        value: Some(b"1"),
    };
    for key in keys {
        let mut builder = ChunkBuilder::new(Compression::None);
        let key = key.as_bytes();
        let pushed = builder.push(Timestamp(0), Some(key), value, &[checkpoint]);
        pushed.unwrap();
        let partition = world.partition(partition_of_key(key, 4) as u32);
        partition.append(builder.finish(None).unwrap()).unwrap();
    }
}

/// The end up to which a partition is read then lies behind a stretch of offsets without records.
#[test]
fn a_state_is_restored_after_compaction_has_removed_all_of_its_records() {
    for_both(|world| {
        drop(world.open().unwrap());
        let set = |config: &mut StreamConfig| {
            let settings = [
                (COMPACTION_LAG_MAX, "1"),
                (DIRTY_RATIO_MIN, "0"),
                (DELETE_RETENTION, "0"),
                (FILE_DELETE_DELAY, "0"),
            ];
            let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
            config.settings.extend(settings);
        };
        world.log.alter_stream("shop.state.users", set).unwrap();
        let keys: Vec<String> = (0..100).map(|number| format!("user {number}")).collect();
        change(world, &keys, Some(b"1"));
        change(world, &keys, None);
        let started_at = Instant::now();
        while (0..4).any(|partition| stored(&world.partition(partition)) > 0) {
            assert!(started_at.elapsed() < Duration::from_secs(120));
            thread::sleep(Duration::from_millis(10));
        }
        let mut run = world.begin(None);
        assert_eq!(run.restore().unwrap(), table(&[]));
        run.store(3, &[(b"user 7", Some(b"3"))]);
        let restored = world.open().unwrap().restore().unwrap();
        assert_eq!(restored, table(&[(b"user 7", b"3")]));
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
