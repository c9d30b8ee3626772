//! Copies of hot keys' records in memory: they are never older than the log.

use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId};
use millstream_log::{HotKeyStats, Log, StreamPartition};
use millstream_record::{Compression, EndMarker, TransactionEnd};

use super::{append, chunk, config, get, keyed, small_groups, sync, while_not_keyed};

/// The value that memory has; `None` if memory does not know.
fn hot(partition: &StreamPartition, key: &str) -> Option<Option<String>> {
    let known = partition.get_hot(key.as_bytes()).unwrap()?;
    Some(known.map(|version| String::from_utf8(version.value.to_vec()).unwrap()))
}

fn found(partition: &StreamPartition, key: &str) -> Option<String> {
    get(partition, key.as_bytes()).map(|(_, value)| String::from_utf8(value).unwrap())
}

fn put(partition: &StreamPartition, key: &str, value: Option<&str>) {
    append(
        partition,
        &[(Some(key.as_bytes()), value.map(str::as_bytes))],
    );
}

fn value(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn a_looked_up_key_stays_in_memory_and_follows_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    put(&partition, "a", Some("1"));
    assert_eq!(hot(&partition, "a"), None);
    assert_eq!(found(&partition, "a"), value("1"));
    assert_eq!(hot(&partition, "a"), Some(value("1")));
    assert_eq!(found(&partition, "b"), None);
    assert_eq!(hot(&partition, "b"), Some(None));

    // The index has not read these.
    put(&partition, "a", Some("2"));
    put(&partition, "b", Some("3"));
    assert_eq!(hot(&partition, "a"), None);
    // A lookup of any key applies the new records.
    assert_eq!(found(&partition, "c"), None);
    assert_eq!(hot(&partition, "a"), Some(value("2")));
    assert_eq!(hot(&partition, "b"), Some(value("3")));
    put(&partition, "a", None);
    assert_eq!(found(&partition, "a"), None);
    assert_eq!(hot(&partition, "a"), Some(None));

    let before = partition.next_offset();
    sync(&log);
    log.delete_before(&[(partition.clone(), before)])[0]
        .clone()
        .unwrap();
    assert_eq!(hot(&partition, "b"), Some(None));
}

#[test]
fn lookups_are_counted_by_the_place_that_answers_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.hot_keys = ByteSize(1 << 20);
    let log = Log::open(config).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    let bytes_max = log.stats().hot_keys.bytes_max;
    assert_eq!(bytes_max, 1 << 20);
    assert_eq!(
        log.stats().hot_keys,
        HotKeyStats {
            bytes_max,
            ..HotKeyStats::default()
        }
    );

    let long = "v".repeat(1000);
    put(&partition, "a", Some(&long));
    for _ in 0..4 {
        assert_eq!(found(&partition, "a"), value(&long));
    }
    assert_eq!(found(&partition, "b"), None);
    let stats = log.stats().hot_keys;
    assert_eq!((stats.keys, stats.hits, stats.misses), (2, 3, 2));
    assert!((1000..3000).contains(&stats.bytes), "{stats:?}");

    // More than fits.
    for n in 0..2000 {
        let key = n.to_string();
        put(&partition, &key, Some(&long));
        assert_eq!(found(&partition, &key), value(&long));
    }
    let stats = log.stats().hot_keys;
    assert_eq!((stats.hits, stats.misses), (3, 2002));
    assert!(stats.keys < 1000 && stats.bytes <= bytes_max, "{stats:?}");
}

#[test]
fn records_of_a_transaction_become_visible_with_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    put(&partition, "a", Some("0"));
    assert_eq!(found(&partition, "a"), value("0"));
    let mut expected = value("0");
    for (n, end) in [TransactionEnd::Abort, TransactionEnd::Commit]
        .into_iter()
        .enumerate()
    {
        let written = chunk(
            &[(Some(b"a"), Some(b"1"))],
            Compression::Lz4,
            Some((1, n as i32)),
        );
        partition.append(&written).unwrap();
        assert_eq!(hot(&partition, "a"), Some(expected.clone()));
        let marker = EndMarker {
            producer_id: ProducerId(1),
            producer_epoch: ProducerEpoch(0),
            end,
            coordinator_epoch: 0,
        };
        partition.append_marker(&marker).unwrap();
        sync(&log);
        if end == TransactionEnd::Commit {
            expected = value("1");
        }
        assert_eq!(found(&partition, "a"), expected);
        assert_eq!(hot(&partition, "a"), Some(expected.clone()));
    }
}

#[test]
fn records_known_only_from_a_key_file_replace_copies_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", small_groups("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    let fill = || {
        for n in 0..20 {
            let key = format!("other {n}");
            put(&partition, &key, Some(&"x".repeat(10_000)));
        }
        log.persist();
        sync(&log);
    };
    put(&partition, "a", Some("1"));
    fill();
    assert_eq!(found(&partition, "a"), value("1"));
    for round in 0..3 {
        let newer = format!("newer {round}");
        put(&partition, "a", Some(&newer));
        fill();
        assert_eq!(hot(&partition, "a"), None, "the index has not read on");
        // The look-up of another key lets key files stand for the records.
        assert_eq!(found(&partition, "b"), None);
        assert!(partition.key_stats().files > round);
        let known = hot(&partition, "a");
        assert!(known.is_none_or(|known| known == value(&newer)));
        assert_eq!(found(&partition, "a"), value(&newer));
        assert_eq!(hot(&partition, "a"), Some(value(&newer)));
    }
}

#[test]
fn keys_that_move_to_another_partition_are_not_found_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let keys: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    let partition = stream.partition(0).unwrap();
    for key in &keys {
        put(&partition, key, Some("1"));
        assert_eq!(found(&partition, key), value("1"));
    }
    while_not_keyed(&log, || log.grow_stream("s", 1, 2)).unwrap();
    let owned = keys.iter();
    let owned = owned.filter(|key| found(&partition, key).is_some());
    assert!((1..20).contains(&owned.count()));
    for key in &keys {
        assert_eq!(hot(&partition, key), Some(found(&partition, key)));
    }
    assert_eq!(partition.next_offset(), Offset(20));
}
