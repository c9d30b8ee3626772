//! Fetching by offset, as a consumer does that comes with nothing else.

use millstream_base::{ByteSize, Offset, StreamletIndex, Timestamp};
use millstream_log::{
    AtLeast, Background, Durability, Fetched, Log, LogConfig, LogError, StreamConfig,
    StreamPartition, Watch,
};
use millstream_record::{ChunkBuilder, Chunks, Compression};

fn open(dir: &std::path::Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

/// Groups of 256 KiB.
fn small_groups() -> StreamConfig {
    StreamConfig {
        durability: Durability::Async,
        segment: ByteSize(128 << 10),
        group_segments: 2,
        ..StreamConfig::default()
    }
}

/// Appends a chunk of `records` records, of about `bytes` bytes in all.
fn append(lane: &StreamPartition, records: usize, bytes: usize) -> (Offset, usize) {
    let mut builder = ChunkBuilder::new(Compression::None);
    let value = vec![7; bytes / records];
    for _ in 0..records {
        builder.push(Timestamp(0), None, Some(&value), &[]).unwrap();
    }
    let chunk = builder.finish(None).unwrap();
    (lane.append(chunk).unwrap().base_offset, chunk.len())
}

fn offsets(fetched: &Fetched) -> Vec<u64> {
    let chunks = fetched.pieces.iter().flat_map(|piece| Chunks::new(piece));
    chunks
        .map(|chunk| chunk.unwrap().header().base_offset.0)
        .collect()
}

fn fetch(
    lane: &StreamPartition,
    from: u64,
    end: u64,
    bytes_max: usize,
    at_least: AtLeast,
) -> Vec<u64> {
    let fetched = lane.fetch(Offset(from), Offset(end), bytes_max, at_least);
    offsets(&fetched.unwrap())
}

#[test]
fn a_fetch_gives_whole_chunks_within_its_bounds_from_memory_and_from_disk() {
    use AtLeast::{Nothing, OneChunk};
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    // 200 chunks with 10 offsets each.
    let chunks: Vec<(Offset, usize)> = (0..200).map(|_| append(&lane, 10, 4_000)).collect();
    let bytes = chunks[0].1;
    while log.step() {}
    for round in ["in memory", "from disk"] {
        let durable = lane.durable_offset();
        assert_eq!(durable, Offset(2_000));
        assert!(
            stream.info().partitions[0].groups > 2,
            "{round}: several groups"
        );
        let all = |at_least| fetch(&lane, 0, u64::MAX, usize::MAX, at_least);
        assert_eq!(all(Nothing), (0..2_000).step_by(10).collect::<Vec<_>>());
        for (from, end, bytes_max, at_least, expected) in [
            (0, 2_000, 3 * bytes, Nothing, vec![0, 10, 20]),
            (0, 2_000, 3 * bytes - 1, Nothing, vec![0, 10]),
            (25, 2_000, bytes, Nothing, vec![20]),
            (29, 31, usize::MAX, Nothing, vec![20, 30]),
            (29, 30, usize::MAX, Nothing, vec![20]),
            (500, 2_000, bytes - 1, Nothing, vec![]),
            (500, 2_000, bytes - 1, OneChunk, vec![500]),
            (500, 2_000, 0, OneChunk, vec![500]),
            (500, 500, usize::MAX, OneChunk, vec![]),
            (500, 499, usize::MAX, OneChunk, vec![]),
            (1_995, 9_999, usize::MAX, OneChunk, vec![1_990]),
            (2_000, 9_999, usize::MAX, OneChunk, vec![]),
        ] {
            let found = fetch(&lane, from, end, bytes_max, at_least);
            assert_eq!(
                found, expected,
                "{round}: {from} to {end}, {bytes_max} bytes"
            );
        }
        let error = lane.fetch(Offset(2_001), Offset(9_999), 1, OneChunk);
        assert!(matches!(error, Err(LogError::OffsetOutOfRange { .. })));
        log.persist();
        log.evict();
    }
    assert!(log.stats().evicted_segments > 0);
}

#[test]
fn a_consumer_reads_all_records_by_resuming_at_its_last_position() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    for n in 0..400 {
        append(&lane, 1 + n % 3, 100 + 37 * n % 9_000);
    }
    while log.step() {}
    let end = lane.durable_offset();
    // More consumers than a lane remembers the ends of, each with its own step.
    let mut positions = [Offset(0); 20];
    while positions.iter().any(|position| *position < end) {
        for (n, position) in positions.iter_mut().enumerate() {
            let fetched = lane
                .fetch(*position, end, 5_000 * (n + 1), AtLeast::OneChunk)
                .unwrap();
            assert!(!fetched.pieces.is_empty() || *position == end);
            let mut expected = *position;
            for chunk in fetched.pieces.iter().flat_map(|piece| Chunks::new(piece)) {
                let header = *chunk.unwrap().header();
                assert_eq!(header.base_offset, expected);
                expected = header.next_offset();
            }
            assert_eq!(fetched.next, expected);
            *position = expected;
        }
        log.evict();
    }
}

#[test]
fn fetched_bytes_are_sent_without_a_copy_and_outlive_eviction() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    append(&lane, 1, 1_000);
    while log.step() {}
    let fetched = lane
        .fetch(Offset(0), Offset(1), 1 << 20, AtLeast::Nothing)
        .unwrap();
    let address = fetched.pieces[0].as_ptr();
    let bytes: Vec<bytes::Bytes> = fetched.into_bytes().collect();
    assert_eq!(bytes[0].as_ptr(), address);
    log.release_idle();
    log.evict();
    log.delete_stream("s").unwrap();
    assert!(millstream_record::check(&bytes[0]).is_ok());
}

#[test]
fn removed_and_not_yet_durable_offsets_are_out_of_range() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        retention: Some(ByteSize(0)),
        durability: Durability::Sync,
        ..small_groups()
    };
    let stream = log.create_stream("s", config).unwrap();
    let lane = stream.partition(0).unwrap();
    for _ in 0..10 {
        append(&lane, 1, 100_000);
    }
    let early = lane.fetch(Offset(1), Offset(2), 1, AtLeast::OneChunk);
    assert!(
        matches!(
            early,
            Err(LogError::OffsetOutOfRange { end: Offset(0), .. })
        ),
        "{early:?}"
    );
    while log.step() {}
    log.persist();
    // Remembered ends lead nowhere any more.
    assert_eq!(fetch(&lane, 0, 10, 0, AtLeast::OneChunk), [0]);
    assert!(log.apply_retention().unwrap() > 0);
    let earliest = stream.info().partitions[0].earliest;
    assert!(earliest > Offset(1));
    for from in [0, 1] {
        let gone = lane.fetch(Offset(from), Offset(10), 1, AtLeast::OneChunk);
        match gone {
            Err(LogError::OffsetOutOfRange {
                earliest: found, ..
            }) => assert_eq!(found, earliest),
            other => panic!("{other:?}"),
        }
    }
    let found = fetch(&lane, earliest.0, 10, 0, AtLeast::OneChunk);
    assert_eq!(found, [earliest.0]);
    log.delete_stream("s").unwrap();
    let gone = lane.fetch(earliest, Offset(10), 1, AtLeast::OneChunk);
    assert!(matches!(gone, Err(LogError::UnknownStream { .. })));
}

#[test]
fn streams_in_memory_are_fetched_too() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        durability: Durability::Memory,
        ..small_groups()
    };
    let stream = log.create_stream("s", config).unwrap();
    for _ in 0..100 {
        let lane = stream
            .partition_for(StreamletIndex(0), millstream_base::ProducerId::NONE)
            .unwrap();
        append(&lane, 2, 3_000);
    }
    let lane = stream.partition(0).unwrap();
    assert_eq!(
        fetch(&lane, 101, 104, 1 << 20, AtLeast::Nothing),
        [100, 102]
    );
}

#[test]
fn consumers_read_async_chunks_before_they_are_durable() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    for durability in [Durability::Async, Durability::Sync] {
        let config = StreamConfig {
            durability,
            ..small_groups()
        };
        let stream = log.create_stream(&format!("{durability:?}"), config);
        let lane = stream.unwrap().partition(0).unwrap();
        let watch = Watch::default();
        let [readable, durable] = [watch.add_high_watermark(&lane, 1), watch.add(&lane, 2)];
        [&readable, &durable]
            .into_iter()
            .for_each(|watched| watched.arm(Offset(0)));
        // Over several groups.
        for _ in 0..200 {
            append(&lane, 10, 4_000);
        }
        assert_eq!(lane.durable_offset(), Offset(0));
        let is_early = durability == Durability::Async;
        let head = if is_early { 2_000 } else { 0 };
        assert_eq!(lane.high_watermark(), Offset(head));
        assert_eq!(lane.last_stable_offset(), Offset(head));
        let all: Vec<u64> = (0..head).step_by(10).collect();
        let read = || fetch(&lane, 0, u64::MAX, usize::MAX, AtLeast::Nothing);
        assert_eq!(read(), all);
        assert_eq!(watch.take_ready(), [1][..usize::from(is_early)]);
        while log.step() {}
        assert_eq!(lane.durable_offset(), Offset(2_000));
        assert_eq!(read(), (0..2_000).step_by(10).collect::<Vec<u64>>());
        assert!(watch.take_ready().contains(&2));
    }
}

#[test]
fn one_sync_covers_many_async_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    let blocks = || log.stats().journal_blocks;
    let before = blocks();
    for number in 1..=50 {
        append(&lane, 1, 100);
        assert_eq!(lane.high_watermark(), Offset(number));
    }
    // One after another, each would have had a block of its own.
    lane.wait_durable(Offset(50)).unwrap();
    assert!(blocks() - before < 25, "{} blocks", blocks() - before);
    // Much is not put off: the journal is bypassed.
    for _ in 0..50 {
        append(&lane, 10, 100_000);
    }
    lane.wait_durable(Offset(550)).unwrap();
}
