//! The log as its users see it, on a real disk.

use std::io::Read;
use std::time::Duration;

use millstream_base::{
    ByteSize, Cursor, GroupId, LaneIndex, Offset, ProducerEpoch, ProducerId, Sequence,
    StreamletIndex, Timestamp,
};
use millstream_log::{
    Background, Durability, Log, LogConfig, LogError, OBJECT_RECORD_BYTES, ReadStart, Stream,
    StreamConfig, StreamDefaults, StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression, Decompressor, Producer};

const S0: StreamletIndex = StreamletIndex(0);

fn config(dir: &std::path::Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

fn chunk(values: &[&str], producer: Option<(i64, i32)>) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    for value in values {
        builder
            .push(Timestamp(1000), None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    let producer = producer.map(|(id, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

fn append(stream: &Stream, chunk: &[u8]) -> (StreamPartition, Offset) {
    let (lane, appended) = stream.append(S0, chunk).unwrap();
    lane.acknowledge(&appended).unwrap();
    (lane, appended.base_offset)
}

/// All values of a stream, lane by lane as they come.
fn values(stream: &Stream) -> Vec<String> {
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut decompressor = Decompressor::default();
    let mut values = Vec::new();
    while let Some(chunks) = reader.read(100_000).unwrap() {
        for chunk in chunks.chunks() {
            for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                let value = record.unwrap().value.unwrap();
                values.push(String::from_utf8(value.to_vec()).unwrap());
            }
        }
    }
    values
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for run in 0..4 {
        let log = Log::open(config(dir.path())).unwrap();
        let stream = match log.stream("lines") {
            Ok(stream) => stream,
            Err(_) => log.create_stream("lines", StreamConfig::default()).unwrap(),
        };
        assert_eq!(values(&stream), expected);
        for n in 0..50 {
            let value = format!("run {run} line {n}");
            append(&stream, &chunk(&[&value], None));
            expected.push(value);
        }
        assert_eq!(values(&stream), expected);
        log.close().unwrap();
    }
}

#[test]
fn a_stream_much_larger_than_the_pool_is_read_back_whole() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        durability: Durability::Async,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("large", config).unwrap();
    let payload = "x".repeat(1000);
    let mut last = None;
    // 40 MB through a pool of 4 MiB.
    for n in 0..4000 {
        let value = format!("{n} {payload}");
        let values = [value.as_str(); 10];
        let (lane, appended) = stream.append(S0, &chunk(&values, None)).unwrap();
        last = Some((lane, appended));
    }
    let (lane, appended) = last.unwrap();
    lane.wait_durable(appended.next_offset).unwrap();
    let check = |stream: &Stream| {
        let values = values(stream);
        assert_eq!(values.len(), 40_000);
        for (n, value) in values.iter().enumerate() {
            assert!(value.starts_with(&format!("{} ", n / 10)), "{n}");
        }
    };
    check(&stream);
    assert!(log.stats().evicted_segments > 0);
    log.close().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(4 << 20))).unwrap();
    check(&log.stream("large").unwrap());
    let lane = log.stream("large").unwrap().partition(0).unwrap();
    for offset in [0, 1, 9, 10, 20_005, 39_999] {
        let cursor = lane.seek_offset(Offset(offset)).unwrap();
        let chunks = log.read(&cursor, 1).unwrap().unwrap();
        let header = *chunks.chunks().next().unwrap().unwrap().header();
        assert_eq!(header.base_offset, Offset(offset / 10 * 10));
    }
}

#[test]
fn a_retried_chunk_is_stored_once_also_across_a_restart_and_growth() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let (_, first) = append(&stream, &chunk(&["a", "b"], Some((7, 0))));
    let (_, again) = append(&stream, &chunk(&["a", "b"], Some((7, 0))));
    assert_eq!(first, again);
    append(&stream, &chunk(&["c"], Some((7, 2))));
    log.grow_stream("s", 1, 4).unwrap();
    let (lane, _) = append(&stream, &chunk(&["c"], Some((7, 2))));
    assert_eq!(lane.id().lane, LaneIndex(0));
    let gap = stream.append(S0, &chunk(&["e"], Some((7, 9)))).unwrap_err();
    assert!(
        matches!(
            gap,
            LogError::OutOfOrderSequence {
                expected: Sequence(3),
                ..
            }
        ),
        "{gap}"
    );
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.stream("s").unwrap();
    append(&stream, &chunk(&["c"], Some((7, 2))));
    append(&stream, &chunk(&["d"], Some((7, 3))));
    let (lane, _) = append(&stream, &chunk(&["other"], Some((6, 0))));
    assert_eq!(lane.id().lane, LaneIndex(2), "6 modulo 4");
    let mut values = values(&stream);
    values.sort();
    assert_eq!(values, ["a", "b", "c", "d", "other"]);
}

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
    assert!(info.bytes <= 300_000 && info.earliest > Offset(0));
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
fn a_reader_at_the_end_of_a_group_that_is_removed_goes_on_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        group_segments: 1,
        segment: ByteSize(65_536),
        retention: Some(ByteSize(65_536)),
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let value = "v".repeat(1000);
    let append_and_remove = |appended: u64| {
        append(&stream, &chunk(&[value.as_str(); 10], None));
        log.persist();
        assert_eq!(stream.info().partitions[0].durable, Offset(appended * 10));
        log.apply_retention().unwrap()
    };
    let mut at_end = stream.reader(ReadStart::Earliest);
    let mut in_between = stream.reader(ReadStart::Earliest);
    let mut appended = 0;
    let mut read = 0;
    // One has read all before more comes and groups go; the other stays within the first group.
    let mut removed = 0;
    while removed < 3 {
        appended += 1;
        let stands_at = at_end.cursors()[0];
        let removed_now = append_and_remove(appended);
        if removed_now > 0 {
            let read = log.read(&stands_at, 1).unwrap();
            assert!(read.is_none(), "its group has ended");
        }
        removed += removed_now;
        while let Some(chunks) = at_end.read(1).unwrap() {
            read += chunks.chunks().count() as u64;
            if read == 1 {
                in_between.read(1).unwrap();
            }
        }
        assert_eq!(read, appended);
        assert!(appended < 1000, "nothing is ever removed");
    }
    let error = in_between.read(1).unwrap_err();
    assert!(matches!(error, LogError::CursorRemoved { .. }), "{error}");
}

#[test]
fn objects_are_put_got_by_range_listed_and_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let content: Vec<u8> = (0..3 * OBJECT_RECORD_BYTES + 77)
        .map(|n| (n % 251) as u8)
        .collect();
    let info = log.put_object("models/a", &mut &content[..]).unwrap();
    assert_eq!(info.bytes, content.len() as u64);
    assert_eq!(info.crc32c, millstream_base::crc32c(&content));
    let empty = log.put_object("empty", &mut &b""[..]).unwrap();
    assert_eq!(empty.bytes, 0);
    let error = log.put_object("models/a", &mut &b""[..]).unwrap_err();
    assert!(matches!(error, LogError::Exists { .. }), "{error}");
    log.close().unwrap();

    let log = Log::open(config(dir.path())).unwrap();
    let get = |name: &str, range: Option<std::ops::Range<u64>>| {
        let mut bytes = Vec::new();
        log.get_object(name, range)
            .unwrap()
            .read_to_end(&mut bytes)
            .unwrap();
        bytes
    };
    assert_eq!(get("models/a", None), content);
    assert_eq!(get("empty", None), b"");
    let record = OBJECT_RECORD_BYTES as u64;
    for range in [
        0..1,
        5..5,
        record - 1..record + 1,
        2 * record..3 * record + 77,
    ] {
        let expected = &content[range.start as usize..range.end as usize];
        assert_eq!(get("models/a", Some(range)), expected);
    }
    let error = log.get_object("models/a", Some(1..u64::MAX)).unwrap_err();
    assert!(matches!(error, LogError::BadRange { .. }), "{error}");
    let names = |prefix| -> Vec<String> {
        let objects = log.objects(prefix).unwrap();
        objects.into_iter().map(|object| object.name).collect()
    };
    assert_eq!(names(""), ["empty", "models/a"]);
    assert_eq!(names("models/"), ["models/a"]);
    log.delete_object("models/a").unwrap();
    assert_eq!(names(""), ["empty"]);
    assert!(log.stream_names().is_empty());
}

#[test]
fn one_thousand_small_streams_take_far_fewer_commits_than_streams() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(128 << 20))).unwrap();
    let create = |n: usize| {
        log.create_stream(&format!("s{n}"), StreamConfig::default())
            .unwrap()
    };
    let streams: Vec<Stream> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|t| scope.spawn(move || (0..1000).skip(t).step_by(16).map(create).collect()))
            .collect();
        let parts = threads.into_iter().map(|thread| thread.join().unwrap());
        parts.flat_map(|part: Vec<Stream>| part).collect()
    });
    let before = log.stats();
    let chunk = chunk(&["a"], None);
    let appended: Vec<_> = streams
        .iter()
        .map(|stream| stream.append(S0, &chunk).unwrap())
        .collect();
    for (lane, appended) in &appended {
        lane.wait_durable(appended.next_offset).unwrap();
    }
    let commits = log.stats().journal_blocks - before.journal_blocks;
    assert!(commits < 500, "{commits} commits for 1000 streams");
}

#[test]
fn memory_streams_are_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let scratch = StreamConfig {
        durability: Durability::Memory,
        group_segments: 1,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("scratch", scratch).unwrap();
    let before = log.stats();
    let value = "v".repeat(10_000);
    // Far more than the pool holds: the oldest groups go.
    for _ in 0..2000 {
        stream.append(S0, &chunk(&[&value], None)).unwrap();
    }
    // The background may still be taking groups away.
    let kept = loop {
        let mut reader = stream.reader(ReadStart::Earliest);
        let mut chunks = 0;
        let error = loop {
            match reader.read(1) {
                Ok(Some(_)) => chunks += 1,
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        match error {
            None => break chunks,
            Some(LogError::CursorRemoved { .. }) => {}
            Some(error) => panic!("{error}"),
        }
    };
    assert!(kept > 0 && kept < 2000, "{kept}");
    let stats = log.stats();
    assert_eq!(
        stats.journal_blocks + stats.direct_commits,
        before.journal_blocks + before.direct_commits
    );
}

#[test]
fn idle_lanes_give_their_buffers_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig {
        idle_after: Duration::from_millis(100),
        ..config(dir.path())
    })
    .unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    append(&stream, &chunk(&["a"], None));
    assert!(log.stats().pool_used_bytes > 0);
    let started = std::time::Instant::now();
    while log.stats().pool_used_bytes > 0 {
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    append(&stream, &chunk(&["b"], None));
    assert_eq!(values(&stream), ["a", "b"]);
}

#[test]
fn a_reader_that_was_there_before_the_first_group_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let two_lanes = StreamConfig {
        lanes: 2,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", two_lanes).unwrap();
    let mut reader = stream.reader(ReadStart::Earliest);
    assert!(reader.read(1000).unwrap().is_none());
    // The first group's id goes to one lane, the second one's to the other.
    append(&stream, &chunk(&["a"], Some((1, 0))));
    append(&stream, &chunk(&["b"], Some((2, 0))));
    let mut lanes: Vec<LaneIndex> = (0..2)
        .map(|_| reader.read(1000).unwrap().unwrap().lane)
        .collect();
    lanes.sort_unstable();
    assert_eq!(lanes, [LaneIndex(0), LaneIndex(1)]);
}

#[test]
fn memory_is_taken_first_from_segments_that_all_readers_have_passed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let value = "v".repeat(1000);
    let fill = |name: &str| {
        let stream = log.create_stream(name, StreamConfig::default()).unwrap();
        for _ in 0..100 {
            append(&stream, &chunk(&[value.as_str(); 10], None));
        }
        stream
    };
    // Both have closed segments in memory; one has a reader that still needs them.
    let needed = fill("needed");
    let mut reader = needed.reader(ReadStart::Earliest);
    fill("other");
    log.persist();
    let evicted = log.stats().evicted_segments;
    // Memory gets short, and only some of it is needed.
    let third = log.create_stream("third", StreamConfig::default()).unwrap();
    while log.stats().evicted_segments == evicted {
        append(&third, &chunk(&[value.as_str(); 10], None));
    }
    // Without its files, the first stream can only be read from memory.
    let folder = dir.path().join("streams").join(needed.id().to_string());
    std::fs::remove_dir_all(folder).unwrap();
    let mut bytes = 0;
    while let Some(chunks) = reader.read(1 << 20).unwrap() {
        bytes += chunks.bytes.len();
    }
    assert!(bytes > 1_000_000, "{bytes}");
}

#[test]
fn groups_and_segments_are_discovered_and_read_by_cursor() {
    let dir = tempfile::tempdir().unwrap();
    let small_groups = StreamConfig {
        group_segments: 2,
        segment: ByteSize(65_536),
        ..StreamConfig::default()
    };
    let value = "v".repeat(1000);
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", small_groups).unwrap();
    let chunks: Vec<Vec<u8>> = (0..40)
        .map(|n| chunk(&[format!("{n} {value}").as_str(); 10], None))
        .collect();
    let requests: Vec<(StreamletIndex, &[u8])> =
        chunks.iter().map(|chunk| (S0, &chunk[..])).collect();
    for (n, result) in stream.append_all(&requests).into_iter().enumerate() {
        assert_eq!(result.unwrap().base_offset, Offset(n as u64 * 10));
    }
    let read_all = |log: &Log| {
        let stream = log.stream("s").unwrap();
        let (first, last) = stream.available_groups(S0).unwrap().unwrap();
        let mut bytes = Vec::new();
        let mut segments = 0;
        for group in first.0..=last.0 {
            let group = GroupId(group);
            let (first, last) = stream.available_segments(S0, group).unwrap().unwrap();
            for segment in first.0..=last.0 {
                let from = stream
                    .segment_cursor(S0, group, millstream_base::SegmentIndex(segment))
                    .unwrap();
                assert_eq!(from.segment.0, segment);
                segments += 1;
            }
            let mut cursor = stream.group_cursor(S0, group);
            while let Some(read) = log.read_all(&[cursor], 30_000).remove(0).unwrap() {
                bytes.extend_from_slice(&read.bytes);
                cursor = read.next;
            }
        }
        (bytes, segments)
    };
    let (bytes, segments) = read_all(&log);
    assert_eq!(bytes.len(), chunks.iter().map(Vec::len).sum::<usize>());
    log.close().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    assert_eq!(read_all(&log), (bytes, segments));
}

#[test]
fn many_lanes_that_are_never_written_do_not_fill_the_pool_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let scratch = StreamConfig {
        durability: Durability::Memory,
        lanes: 128,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("scratch", scratch).unwrap();
    // Twice as many heads as the pool of 4 MiB has blocks.
    for n in 0..1000 {
        let lane = stream.partition(n % 128).unwrap();
        lane.append(&chunk(&["a"], None)).unwrap();
    }
    append(
        &log.create_stream("kept", StreamConfig::default()).unwrap(),
        &chunk(&["b"], None),
    );
}

#[test]
fn a_reader_of_a_deleted_stream_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    append(&stream, &chunk(&["a"], None));
    let mut reader = stream.reader(ReadStart::Earliest);
    log.delete_stream("s").unwrap();
    let error = reader.read(1000).unwrap_err();
    assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
}

#[test]
fn a_cursor_within_a_chunk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let (lane, _) = append(&stream, &chunk(&["a", "b", "c"], None));
    let mut cursor = lane.earliest();
    cursor.position.0 += 10;
    let error = log.read(&cursor, 1000).unwrap_err();
    assert!(matches!(error, LogError::BadCursor { .. }), "{error}");
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
fn settings_are_altered_in_use_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let large = chunk(&[&"x".repeat(2_000)], None);
    append(&stream, &large);
    let altered = log
        .alter_stream("s", |config| {
            config.chunk_bytes_max = Some(ByteSize(1_000));
            config.group_segments = 3;
            let policy = ("cleanup.policy".to_owned(), "compact".to_owned());
            config.settings.extend([policy]);
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
fn a_stream_that_several_ask_for_at_once_is_there_for_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let barrier = std::sync::Barrier::new(4);
    // Whoever fails goes on, since the others wait for it.
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

/// Copies a folder as it is now, which is what a crash leaves.
fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Its segments were asked to be larger than any block of the pool.
#[test]
fn a_lane_with_very_much_in_the_journal_is_there_after_a_crash() {
    const CHUNKS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let (data, crashed) = (dir.path().join("data"), dir.path().join("crashed"));
    let config = |dir: &std::path::Path| LogConfig::with_pool(dir, ByteSize(512 << 20));
    let log = Log::open(config(&data)).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    // So small that each goes into the journal, and together more than two of the largest segments.
    let value = "x".repeat(100 << 10);
    for _ in 0..CHUNKS {
        append(&stream, &chunk(&[&value], None));
    }
    copy(&data, &crashed);
    let log = Log::open(config(&crashed)).unwrap();
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(lane.durable_offset(), Offset(CHUNKS));
    assert_eq!(values(&log.stream("s").unwrap()).len(), CHUNKS as usize);
}

/// Their files could stay open until the next sync.
#[test]
fn lanes_that_are_written_and_not_synced_keep_few_files_open() {
    const LANES: u32 = 400;
    const OPEN_MAX: usize = 160;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir.path(), ByteSize(64 << 20))
    })
    .unwrap();
    let config = StreamConfig {
        lanes: LANES,
        durability: Durability::Written,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    for partition in 0..LANES {
        let lane = stream.partition(partition).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), None, Some(b"value"), &[])
            .unwrap();
        let appended = lane.append(builder.finish(None).unwrap()).unwrap();
        lane.acknowledge(&appended).unwrap();
        assert_eq!(lane.durable_offset(), Offset(0));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    let open = open.filter(|path| path.starts_with(dir.path())).count();
    assert!(open < OPEN_MAX, "{open} files");
    while log.step() {}
    let lanes = stream.info().partitions;
    assert!(lanes.iter().all(|lane| lane.durable == Offset(1)));
}

/// Chunks of this process take the same way as those of producers in the network.
#[test]
fn chunks_get_the_time_and_the_codec_that_their_stream_asks_for() {
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
fn defaults_count_for_users_streams_without_settings_of_their_own_and_at_once() {
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
fn a_users_stream_is_not_taken_for_one_of_the_node() {
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
