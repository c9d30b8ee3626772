//! Deleting the beginning of lanes.

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{
    AtLeast, Background, Durability, Log, LogConfig, LogError, ReadStart, StreamConfig,
    StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression};

fn open(dir: &std::path::Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

/// Appends a chunk of ten records, of about 10 KB in all.
fn append(lane: &StreamPartition, timestamp: i64) {
    let mut builder = ChunkBuilder::new(Compression::None);
    for _ in 0..10 {
        let value = [7; 1_000];
        let timestamp = Timestamp(timestamp);
        builder.push(timestamp, None, Some(&value), &[]).unwrap();
    }
    lane.append(builder.finish(None).unwrap()).unwrap();
}

/// Base offsets of all chunks that a reader sees.
fn all(log: &Log) -> Vec<u64> {
    let mut reader = log.stream("s").unwrap().reader(ReadStart::Earliest);
    let mut offsets = Vec::new();
    while let Some(read) = reader.read(1 << 20).unwrap() {
        let bases = read
            .chunks()
            .map(|chunk| chunk.unwrap().header().base_offset.0);
        offsets.extend(bases);
    }
    offsets
}

fn delete(log: &Log, lane: &StreamPartition, offset: u64) -> Result<Offset, LogError> {
    let lanes = [(lane.clone(), Offset(offset))];
    log.delete_before(&lanes).remove(0)
}

#[test]
fn a_lane_begins_at_its_deletion_offset_also_after_a_restart() {
    for durability in [Durability::Sync, Durability::Written, Durability::Async] {
        let dir = tempfile::tempdir().unwrap();
        let mut log = open(dir.path());
        let config = StreamConfig {
            segment: ByteSize(64 << 10),
            group_segments: 1,
            durability,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let lane = stream.partition(0).unwrap();
        (0..40).for_each(|n| append(&lane, n));
        let early = delete(&log, &lane, 1);
        assert!(matches!(early, Err(LogError::OffsetOutOfRange { .. })));
        while log.step() {}
        let groups = lane.info().groups;
        assert!(groups > 5);
        drop((lane, stream));

        for (offset, first) in [(5, 0), (23, 20), (95, 90), (200, 200)] {
            let lane = log.stream("s").unwrap().partition(0).unwrap();
            assert_eq!(delete(&log, &lane, offset).unwrap(), Offset(offset));
            // Deleted records stay deleted.
            assert_eq!(delete(&log, &lane, 1).unwrap(), Offset(offset));
            for restart in [false, true] {
                if restart {
                    log.close().unwrap();
                    log = open(dir.path());
                }
                let lane = log.stream("s").unwrap().partition(0).unwrap();
                assert_eq!(lane.earliest_offset(), Offset(offset));
                assert_eq!(all(&log), (first..400).step_by(10).collect::<Vec<_>>());
                let below = lane.fetch(Offset(offset - 1), Offset(400), 1, AtLeast::OneChunk);
                assert!(
                    matches!(below, Err(LogError::OffsetOutOfRange { earliest, .. })
                        if earliest == Offset(offset)),
                    "{below:?}"
                );
                let at = lane.fetch(Offset(offset), Offset(400), 1, AtLeast::OneChunk);
                assert_eq!(at.unwrap().next, Offset(first + 10));
                let oldest = lane.record_at(Timestamp(0)).unwrap();
                assert_eq!(oldest, Some((Offset(offset), Timestamp(first as i64 / 10))));
            }
        }
        let lane = log.stream("s").unwrap().partition(0).unwrap();
        assert!(lane.info().groups < groups, "groups are removed");

        // All of it; the lane goes on where it was.
        assert_eq!(delete(&log, &lane, 400).unwrap(), Offset(400));
        assert_eq!((lane.info().groups, lane.info().bytes), (1, 0));
        assert_eq!(all(&log), [0; 0]);
        append(&lane, 50);
        while log.step() {}
        assert_eq!(all(&log), [400]);
        drop(lane);
        log.close().unwrap();
        log = open(dir.path());
        assert_eq!(all(&log), [400]);
    }
}

#[test]
fn deleting_from_several_lanes_returns_a_result_for_each() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        streamlets: 2,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let gone = log.create_stream("gone", StreamConfig::default()).unwrap();
    let gone_lane = gone.partition(0).unwrap();
    log.delete_stream("gone").unwrap();
    let lanes: Vec<StreamPartition> = (0..2).map(|n| stream.partition(n).unwrap()).collect();
    lanes.iter().for_each(|lane| append(lane, 0));
    while log.step() {}
    let answers = log.delete_before(&[
        (lanes[0].clone(), Offset(11)),
        (lanes[1].clone(), Offset(7)),
        (gone_lane, Offset(0)),
    ]);
    assert!(matches!(answers[0], Err(LogError::OffsetOutOfRange { .. })));
    assert!(matches!(answers[1], Ok(Offset(7))));
    assert!(matches!(answers[2], Err(LogError::UnknownStream { .. })));
    assert_eq!(lanes[0].earliest_offset(), Offset(0));
    assert_eq!(lanes[1].earliest_offset(), Offset(7));
}

#[test]
fn a_deletion_in_a_memory_stream_lasts_until_the_log_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        durability: Durability::Memory,
        segment: ByteSize(64 << 10),
        group_segments: 1,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let lane = stream.partition(0).unwrap();
    (0..40).for_each(|n| append(&lane, n));
    let used = log.stats().pool_used_bytes;
    assert_eq!(delete(&log, &lane, 395).unwrap(), Offset(395));
    assert!(log.stats().pool_used_bytes < used, "memory comes back");
    assert_eq!(all(&log), [390]);
    assert_eq!(delete(&log, &lane, 400).unwrap(), Offset(400));
    append(&lane, 0);
    assert_eq!(all(&log), [400]);
    drop((lane, stream));
    log.close().unwrap();
    let log = open(dir.path());
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    append(&lane, 0);
    assert_eq!(all(&log), [0]);
}
