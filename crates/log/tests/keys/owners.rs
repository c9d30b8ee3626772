//! Which partition has a key.

use millstream_base::partition_of_key;
use millstream_log::{KeyRange, Log, LogError, StreamConfig, StreamDefaults};

use super::{append, config, get, keyed, scan, sync};

#[test]
fn a_record_outside_of_its_keys_partition_is_counted_and_not_found() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        lanes: 3,
        ..keyed("compact")
    };
    let stream = log.create_stream("s", config).unwrap();
    let key = b"foobar";
    let owner = partition_of_key(key, 3) as u32;
    let other = (owner + 1) % 3;
    append(
        &stream.partition(other).unwrap(),
        &[(Some(key), Some(b"1"))],
    );
    assert_eq!(stream.get(key).unwrap(), None);
    assert_eq!(get(&stream.partition(other).unwrap(), key), None);
    let misplaced = |n: u32| stream.partition(n).unwrap().key_stats().misplaced;
    assert_eq!((misplaced(owner), misplaced(other)), (0, 1));

    append(
        &stream.partition(owner).unwrap(),
        &[(Some(key), Some(b"2"))],
    );
    // One without value deletes nothing there either.
    append(&stream.partition(other).unwrap(), &[(Some(key), None)]);
    assert_eq!(&stream.get(key).unwrap().unwrap().value[..], b"2");
    assert_eq!(get(&stream.partition(other).unwrap(), key), None);
    assert_eq!((misplaced(owner), misplaced(other)), (0, 2));
}

#[test]
fn a_keyed_stream_gets_no_more_partitions() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    for (name, policy) in [("one", "compact"), ("both", "compact,delete")] {
        log.create_stream(name, keyed(policy)).unwrap();
        for (streamlets, lanes) in [(1, 2), (2, 1)] {
            let error = log.grow_stream(name, streamlets, lanes).unwrap_err();
            assert!(matches!(error, LogError::KeyedNotGrown { .. }), "{error}");
            let copy = format!("`millstream stream copy {name} NEW`");
            let error = error.to_string();
            assert!(error.contains(&copy), "{error}");
            assert!(error.contains("--keyed --partitions N`"), "{error}");
        }
        // It has this size already.
        log.grow_stream(name, 1, 1).unwrap();
        assert_eq!(log.stream(name).unwrap().partition_count(), 1);
    }
    let defaults = StreamDefaults {
        settings: keyed("compact").settings,
        ..StreamDefaults::default()
    };
    log.create_stream("by-default", StreamConfig::default())
        .unwrap();
    log.set_defaults(defaults);
    let error = log.grow_stream("by-default", 1, 2).unwrap_err();
    assert!(matches!(error, LogError::KeyedNotGrown { .. }), "{error}");
    // No user looks for keys in the streams of the broker itself.
    log.internal_stream("__own").unwrap();
    log.grow_stream("__own", 1, 2).unwrap();
}

#[test]
fn a_stream_that_grew_before_it_is_keyed_counts_its_misplaced_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let partition = stream.partition(0).unwrap();
    let keys: Vec<[u8; 1]> = (0..50).map(|n| [n]).collect();
    for key in &keys {
        append(&partition, &[(Some(key), Some(b"1"))]);
    }
    log.grow_stream("s", 1, 2).unwrap();
    let compact = |config: &mut StreamConfig| config.settings = keyed("compact").settings;
    log.alter_stream("s", compact).unwrap();
    sync(&log);

    let stays = |key: &[u8]| partition_of_key(key, 2) == 0;
    let left = keys.iter().filter(|key| stays(*key)).count();
    assert!((1..50).contains(&left));
    for key in &keys {
        let found = stream.get(key).unwrap();
        assert_eq!(found.is_some(), stays(key), "{key:?}");
    }
    assert_eq!(scan(&partition, KeyRange::all(), 7, 1_000).len(), left);
    let stats = partition.key_stats();
    assert_eq!(
        (stats.keys, stats.misplaced),
        (left as u64, (50 - left) as u64)
    );
}
