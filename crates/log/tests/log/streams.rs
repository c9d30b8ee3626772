//! Streams: their names, identities, settings and retention.

use millstream_base::{ByteSize, Cursor, GroupId, Offset, ProducerId};
use millstream_log::{
    Durability, Log, LogConfig, LogError, ReadStart, StreamConfig, StreamDefaults,
};
use millstream_record::{Compression, Decompressor};

use crate::{S0, append, chunk, config, values};

#[test]
fn retention_removes_closed_groups_and_keeps_the_offsets() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        group_segments: 1,
        segment: ByteSize(65_536),
        retention: Some(ByteSize(300_000)),
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let value = "v".repeat(1000);
    let mut end = Offset(0);
    for _ in 0..100 {
        let (_, base) = append(&stream, &chunk(&[value.as_str(); 10], None));
        end = base.plus(10);
    }
    log.persist();
    let removed = log.apply_retention().unwrap();
    assert!(removed >= 8, "{removed}");
    let info = &stream.info().partitions[0];
    let newest_groups = 300_000..300_000 + 65_536;
    assert!(newest_groups.contains(&info.bytes), "{}", info.bytes);
    assert!(info.earliest > Offset(0));
    assert_eq!(info.durable, end);
    let gone = Cursor {
        stream: stream.id(),
        streamlet: S0,
        group: GroupId(1),
        segment: Default::default(),
        position: Default::default(),
    };
    let error = log.read(&gone, 1000).unwrap_err();
    assert!(matches!(error, LogError::CursorRemoved { .. }), "{error}");

    // By age: the timestamps are of 1970, so everything goes, and offsets go on.
    log.set_retention("s", Some(1000), None).unwrap();
    log.apply_retention().unwrap();
    assert_eq!(stream.info().partitions[0].bytes, 0);
    log.close().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(4 << 20))).unwrap();
    let (_, base) = append(&log.stream("s").unwrap(), &chunk(&["next"], None));
    assert_eq!(base, end);
}

#[test]
fn a_stream_that_is_created_again_is_another_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let first = log.create_stream("s", StreamConfig::default()).unwrap();
    let other = log.create_stream("t", StreamConfig::default()).unwrap();
    assert_ne!(first.uuid(), other.uuid());
    assert_eq!(log.stream_by_uuid(first.uuid()).unwrap().name(), "s");
    log.delete_stream("s").unwrap();
    let second = log.create_stream("s", StreamConfig::default()).unwrap();
    assert_ne!(first.uuid(), second.uuid());
    let gone = log.stream_by_uuid(first.uuid());
    assert!(matches!(gone, Err(LogError::UnknownStream { .. })));
    let uuid = second.uuid();
    drop((first, second, other));
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    assert_eq!(log.stream("s").unwrap().uuid(), uuid);
    assert_eq!(log.stream("s").unwrap().info().uuid, uuid);
    assert_eq!(log.stream_by_uuid(uuid).unwrap().name(), "s");
}

#[test]
fn settings_are_altered_in_use_and_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let large = chunk(&[&"x".repeat(2_000)], None);
    append(&stream, &large);
    let altered = log
        .alter_stream("s", |config| {
            config.chunk_bytes_max = Some(ByteSize(1_000));
            config.group_segments = 3;
            let setting = ("flush.ms".to_owned(), "7".to_owned());
            config.settings.extend([setting]);
        })
        .unwrap();
    assert_eq!(altered, stream.config());
    assert_eq!(stream.partition(0).unwrap().chunk_bytes_max(), 1_000);
    let refused = stream.append(S0, &large).unwrap_err();
    assert!(
        matches!(
            refused,
            LogError::ChunkTooLarge {
                bytes_max: ByteSize(1_000),
                ..
            }
        ),
        "{refused}"
    );
    append(&stream, &chunk(&["small"], None));

    type Alter = fn(&mut StreamConfig);
    let refused: [(&str, Alter); 6] = [
        ("lanes", |config| config.lanes = 2),
        ("durability", |config| {
            config.durability = Durability::Memory
        }),
        ("segment", |config| config.segment = ByteSize(100_000)),
        ("chunk_bytes_max", |config| {
            config.chunk_bytes_max = Some(ByteSize(1));
        }),
        ("settings", |config| {
            let all = (0..300).map(|n| (n.to_string(), String::new()));
            config.settings = all.collect();
        }),
        ("settings", |config| {
            let long = ("x".to_owned(), "y".repeat(17 << 10));
            config.settings.extend([long]);
        }),
    ];
    for (name, alter) in refused {
        match log.alter_stream("s", alter) {
            Err(LogError::BadSetting { setting, .. }) => assert_eq!(setting, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(stream.config(), altered, "nothing of these holds");
    let own = log.alter_stream("__catalog", |_| {});
    assert!(matches!(own, Err(LogError::BadName { .. })));
    drop(stream);
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.stream("s").unwrap();
    assert_eq!(stream.config(), altered);
    let refused = stream.append(S0, &large).unwrap_err();
    assert!(matches!(refused, LogError::ChunkTooLarge { .. }));
    log.alter_stream("s", |config| config.chunk_bytes_max = None)
        .unwrap();
    append(&stream, &large);
}

#[test]
fn concurrent_requests_for_a_stream_all_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let barrier = std::sync::Barrier::new(4);
    // A thread whose call fails goes on, since the others wait for it.
    let ask = || {
        let mut asked = Vec::new();
        for n in 0..20 {
            barrier.wait();
            let config = StreamConfig::default();
            asked.push(log.stream_or_create(&format!("s{n}"), config));
            asked.push(log.internal_stream(&format!("__s{n}")));
        }
        asked
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for thread in threads {
            for stream in thread.join().unwrap() {
                stream.unwrap();
            }
        }
    });
    assert_eq!(log.stream_names().len(), 20);
    let exists = log.create_stream("s0", StreamConfig::default());
    assert!(matches!(exists, Err(LogError::Exists { .. })));
}

/// Chunks of this process take the same path as chunks of producers in the network.
#[test]
fn chunks_get_the_timestamp_type_and_codec_of_their_streams_settings() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let settings = [
        ("message.timestamp.type", "LogAppendTime"),
        ("compression.type", "lz4"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = StreamConfig {
        settings: settings.into(),
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let sent = chunk(&["a", "b"], Some((7, 0)));
    let before = log.clock().now();
    let (lane, appended) = stream.append(S0, &sent).unwrap();
    let time = appended.append_time.unwrap();
    assert!((before..=log.clock().now()).contains(&time), "{time}");
    lane.acknowledge(&appended).unwrap();
    // A producer that sends it again is recognized, though other bytes were stored.
    let (_, again) = stream.append(S0, &sent).unwrap();
    assert_eq!((again.duplicate, again.append_time), (true, None));

    assert_eq!(values(&stream), ["a", "b"]);
    let chunks = stream
        .reader(ReadStart::Earliest)
        .read(100_000)
        .unwrap()
        .unwrap();
    let mut decompressor = Decompressor::default();
    for chunk in chunks.chunks() {
        let chunk = chunk.unwrap();
        let header = chunk.header();
        assert_eq!(header.attributes.compression(), Compression::Lz4);
        assert_eq!(
            (header.producer_id, header.max_timestamp),
            (ProducerId(7), time)
        );
        for record in chunk.records(&mut decompressor).unwrap() {
            assert_eq!(record.unwrap().timestamp, time);
        }
    }
}

#[test]
fn changed_defaults_apply_at_once_to_streams_without_their_own_settings() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let bare = log.create_stream("bare", StreamConfig::default()).unwrap();
    let own = StreamConfig {
        chunk_bytes_max: Some(ByteSize(100_000)),
        ..StreamConfig::default()
    };
    let own = log.create_stream("own", own).unwrap();
    let internal = log.internal_stream("__internal").unwrap();
    let large = chunk(&[&"x".repeat(10_000)], None);
    append(&bare, &large);
    log.set_defaults(StreamDefaults {
        chunk_bytes_max: Some(ByteSize(1_000)),
        ..StreamDefaults::default()
    });
    let later = log.create_stream("later", StreamConfig::default()).unwrap();
    for stream in [&bare, &later] {
        let refused = stream.append(S0, &large).unwrap_err();
        assert!(matches!(refused, LogError::ChunkTooLarge { .. }));
        assert_eq!(
            stream.config(),
            StreamConfig::default(),
            "they have none of their own"
        );
    }
    append(&own, &large);
    append(&internal, &large);
    log.set_defaults(StreamDefaults::default());
    append(&bare, &large);
}

#[test]
fn a_stream_of_a_user_is_not_internal() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log
        .create_stream("__later", StreamConfig::default())
        .unwrap();
    assert!(!stream.is_internal());
    assert!(log.internal_stream("__own").unwrap().is_internal());
    let taken = log.internal_stream("__later");
    assert!(matches!(taken, Err(LogError::Exists { .. })));
    for name in [
        "__catalog",
        "__groups",
        "__consumer_offsets",
        "__object/7",
        ".",
    ] {
        let refused = log.create_stream(name, StreamConfig::default());
        assert!(matches!(refused, Err(LogError::BadName { .. })), "{name}");
    }
}
