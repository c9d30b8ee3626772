//! Streams that keep the last record of each key: their records need keys, and their groups are small.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_base::{ByteSize, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp};
use millstream_log::{
    Compaction, KEY_BYTES_MAX, KEYED_GROUP_BYTES_MAX, Log, LogError, Stream, StreamConfig,
    StreamDefaults,
};
use millstream_record::{ChunkBuilder, Compression, Producer};

use super::{S0, append, config};

fn settings(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    settings.iter().map(owned).collect()
}

fn compacted() -> StreamConfig {
    StreamConfig {
        settings: settings(&[("cleanup.policy", "compact")]),
        ..StreamConfig::default()
    }
}

/// A chunk of records with these keys.
fn keyed(keys: &[Option<&str>], compression: Compression, is_transactional: bool) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    builder.set_transactional(is_transactional);
    for key in keys {
        let key = key.map(str::as_bytes);
        builder.push(Timestamp(1), key, Some(b"v"), &[]).unwrap();
    }
    let producer = Producer {
        id: ProducerId(7),
        epoch: ProducerEpoch(0),
        sequence: Sequence(0),
    };
    let chunk = builder.finish(is_transactional.then_some(producer));
    chunk.unwrap().to_vec()
}

#[track_caller]
fn assert_refused(appended: Result<impl std::fmt::Debug, LogError>, numbers: &[u32]) {
    match appended {
        Err(LogError::NoKey { stream, records }) => {
            assert_eq!((&*stream, &*records), ("s", numbers));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_record_without_a_key_is_refused_in_every_chunk_and_nothing_of_the_chunk_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", compacted()).unwrap();
    let partition = stream.partition(0).unwrap();
    for compression in Compression::ALL {
        for is_transactional in [false, true] {
            let keys = [Some("a"), Some(""), None, Some("b"), None];
            let chunk = keyed(&keys, compression, is_transactional);
            assert_refused(partition.append(&chunk), &[2, 4]);
            assert_refused(partition.append_foreign(&chunk), &[2, 4]);
            assert_refused(stream.append(S0, &chunk), &[2, 4]);
            assert_refused(stream.append_foreign(S0, &chunk), &[2, 4]);
        }
    }
    assert_eq!(partition.next_offset().0, 0);
    assert_eq!(partition.producers(), []);
    let refused = partition.append(&keyed(&[None], Compression::Lz4, false));
    let expected = "record 0 of the chunk is refused: it has no key, or one of more than 1048576 bytes, and stream s keeps the last record of each key \
                    (cleanup.policy has compact); send it with a key";
    assert_eq!(refused.unwrap_err().to_string(), expected);
    let [long, longest] = [1, 0].map(|more| "k".repeat(KEY_BYTES_MAX + more));
    let chunk = keyed(&[Some(&longest), Some(&long)], Compression::Lz4, false);
    assert_refused(partition.append_foreign(&chunk), &[1]);
    assert!(partition.check_key(Some(long.as_bytes())).is_err());
    assert!(partition.check_key(Some(longest.as_bytes())).is_ok());
    let many = keyed(&[None; 150], Compression::Lz4, false);
    let first: Vec<u32> = (0..100).collect();
    assert_refused(partition.append(&many), &first);
    append(&stream, &keyed(&[Some("a")], Compression::Zstd, false));
}

#[test]
fn the_policies_of_stream_and_node_apply_and_changes_take_effect_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let without = keyed(&[None], Compression::None, false);
    append(&stream, &without);
    let set = |policy: &str| {
        let policy = settings(&[("cleanup.policy", policy)]);
        log.alter_stream("s", |config| config.settings.extend(policy))
            .unwrap();
    };
    set("delete,compact");
    assert_refused(stream.append(S0, &without), &[0]);
    set("delete");
    append(&stream, &without);

    log.alter_stream("s", |config| config.settings.clear())
        .unwrap();
    log.set_defaults(StreamDefaults {
        settings: settings(&[
            ("cleanup.policy", "compact"),
            ("min.compaction.lag.ms", "9"),
        ]),
        ..StreamDefaults::default()
    });
    assert_refused(stream.append(S0, &without), &[0]);
    let expected = Compaction {
        lag_min: Duration::from_millis(9),
        ..Compaction::default()
    };
    assert_eq!(stream.compaction(), Some(expected));
    set("delete");
    append(&stream, &without);
    assert_eq!(stream.compaction(), None);

    // The streams of the log itself and objects go on as before.
    log.create_stream("other", StreamConfig::default()).unwrap();
    log.delete_stream("other").unwrap();
    drop(stream);
    log.close().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    append(&log.stream("s").unwrap(), &without);
}

#[test]
fn groups_of_a_compacted_stream_are_at_most_16_mib_whatever_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let value = vec![7; 250_000];
    let mut builder = ChunkBuilder::new(Compression::None);
    builder
        .push(Timestamp(1), Some(b"key"), Some(&value), &[])
        .unwrap();
    let chunk = builder.finish(None).unwrap().to_vec();
    let groups = |stream: &Stream| {
        let (first, last) = stream.available_groups(StreamletIndex(0)).unwrap().unwrap();
        (first, last)
    };
    for (name, config) in [("s", compacted()), ("plain", StreamConfig::default())] {
        let is_compacted = name == "s";
        let bytes = ByteSize(config.segment.0 * u64::from(config.group_segments));
        assert_eq!(bytes, ByteSize(128 << 20));
        let stream = log.create_stream(name, config.clone()).unwrap();
        for _ in 0..=KEYED_GROUP_BYTES_MAX / chunk.len() as u64 {
            append(&stream, &chunk);
        }
        let (first, last) = groups(&stream);
        assert_eq!(first != last, is_compacted, "{name}: {first:?} {last:?}");
        assert_eq!(stream.config(), config);
    }
}
