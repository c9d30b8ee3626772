//! Readers and cursors, also where groups or the stream go while they read.

use millstream_base::{ByteSize, Cursor, GroupId, LaneIndex, Offset, Position, StreamletIndex};
use millstream_log::{Durability, Log, LogConfig, LogError, ReadStart, Stream, StreamConfig};

use crate::{S0, append, chunk, config, values};

/// The head of a group's file.
const HEAD_BYTES: usize = 4096;

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
fn a_reader_at_the_end_of_a_removed_group_continues_with_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        group_segments: 1,
        segment: ByteSize(65_536),
        // The last group alone stays.
        retention: Some(ByteSize(1)),
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
fn a_reader_older_than_the_first_group_reads_it() {
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
fn a_reader_of_a_deleted_stream_fails() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    append(&stream, &chunk(&["a"], None));
    let mut reader = stream.reader(ReadStart::Earliest);
    log.delete_stream("s").unwrap();
    let error = reader.read(1000).unwrap_err();
    assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
}

/// Positions of a group of two chunks where no chunk starts.
fn bad_positions(first: u64, end: u64) -> [u64; 9] {
    [
        1,
        10,
        60,
        first - 1,
        first + 1,
        first + 10,
        end - 1,
        end + 1,
        u64::MAX,
    ]
}

#[test]
fn reading_at_a_position_where_no_chunk_starts_is_not_reported_as_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let chunks = [chunk(&["a", "b", "c"], None), chunk(&["d"; 100], None)];
    for chunk in &chunks {
        append(&stream, chunk);
    }
    let first = chunks[0].len() as u64;
    let end = first + chunks[1].len() as u64;
    for step in [
        "in memory",
        "evicted",
        "after a restart",
        "without an index",
    ] {
        match step {
            "evicted" => {
                log.persist();
                log.evict();
            }
            "after a restart" | "without an index" => {
                log.close().unwrap();
                if step == "without an index" {
                    std::fs::remove_file(file_of(dir.path(), "index")).unwrap();
                }
                log = Log::open(config(dir.path())).unwrap();
            }
            _ => {}
        }
        let lane = log.stream("s").unwrap().partition(0).unwrap();
        for position in bad_positions(first, end) {
            let mut cursor = lane.earliest();
            cursor.position = Position(position);
            for bytes_max in [1, 1000, 1 << 20] {
                let error = log.read(&cursor, bytes_max).unwrap_err();
                let is_refused = matches!(error, LogError::BadCursor { .. });
                assert!(is_refused, "{position} {step}: {error}");
            }
            let error = lane.reader(cursor).read(1000).unwrap_err();
            let is_refused = matches!(error, LogError::BadCursor { .. });
            assert!(is_refused, "{position} {step}: {error}");
        }
        for (position, count) in [(0, 2), (first, 1), (end, 0)] {
            let mut cursor = lane.earliest();
            cursor.position = Position(position);
            let read = log.read(&cursor, 1 << 20).unwrap();
            assert_eq!(read.map_or(0, |read| read.chunks().count()), count);
        }
        assert!(lane.damage().is_none(), "{step}");
        assert_eq!(log.stats().damaged_reads, 0, "{step}");
    }
}

#[test]
fn damage_is_reported_to_readers_at_a_chunks_start_and_within_it() {
    for (chunk_start, from) in [(false, 0), (false, 10), (true, 0), (true, 10)] {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(config(dir.path())).unwrap();
        let stream = log.create_stream("s", StreamConfig::default()).unwrap();
        let chunks = [chunk(&["a"; 50], None), chunk(&["d"; 50], None)];
        for chunk in &chunks {
            append(&stream, chunk);
        }
        log.close().unwrap();
        let first = chunks[0].len();
        let start = if chunk_start { first } else { 0 };
        let path = file_of(dir.path(), "log");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[HEAD_BYTES + start + 200] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let log = Log::open(config(dir.path())).unwrap();
        let lane = log.stream("s").unwrap().partition(0).unwrap();
        assert!(lane.damage().is_none(), "a start does not read so far");
        let mut cursor = lane.earliest();
        cursor.position = Position((start + from) as u64);
        let error = log.read(&cursor, 1000).unwrap_err();
        let LogError::Corrupted { position, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(position, start as u64);
        assert!(lane.damage().is_some() && log.stats().damaged_reads > 0);
    }
}

#[test]
fn a_shared_group_does_not_commit_a_position_where_no_chunk_starts() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let chunks = [chunk(&["a", "b", "c"], None), chunk(&["d"; 100], None)];
    for chunk in &chunks {
        append(&stream, chunk);
    }
    let first = chunks[0].len() as u64;
    let end = first + chunks[1].len() as u64;
    let shared_group = log.shared_group("s", "g").unwrap();
    let [start] = shared_group.next_groups(S0, "one", 1).unwrap()[..] else {
        panic!("one group");
    };
    let at = |position| Cursor {
        position: Position(position),
        ..start
    };
    for position in bad_positions(first, end) {
        let error = shared_group.commit("one", &at(position)).unwrap_err();
        let is_refused = matches!(error, LogError::BadCursor { .. });
        assert!(is_refused, "{position}: {error}");
    }
    shared_group.commit("one", &at(first)).unwrap();
    shared_group.release("one");
    let next = shared_group.next_groups(S0, "two", 1).unwrap();
    assert_eq!(next[0].position, Position(first));
    assert_eq!(
        log.read(&next[0], 1000).unwrap().unwrap().chunks().count(),
        1
    );
    shared_group.commit("two", &at(end)).unwrap();
}

/// The file of the first users' stream with this extension.
fn file_of(dir: &std::path::Path, extension: &str) -> std::path::PathBuf {
    let folder = std::fs::read_dir(dir.join("streams/16")).unwrap();
    let mut paths = folder.map(|entry| entry.unwrap().path());
    let found = paths.find(|path| path.extension().is_some_and(|found| found == extension));
    found.unwrap()
}
