//! The content of a log after a restart or a crash.

use millstream_base::{ByteSize, LaneIndex, Offset, Sequence};
use millstream_log::{Log, LogConfig, LogError, StreamConfig};

use crate::{S0, append, chunk, config, values};

#[test]
fn acknowledged_records_survive_restarts() {
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

/// Copies a folder as it is now: a crash would leave it so.
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

/// Recovery asked the pool for segments larger than any of its blocks.
#[test]
fn a_lane_with_much_data_in_the_journal_survives_a_crash() {
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
