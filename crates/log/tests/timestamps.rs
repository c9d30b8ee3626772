//! Records by their timestamps.

use std::cmp::Reverse;

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{Background, Durability, Log, LogConfig, StreamConfig, StreamPartition};
use millstream_record::{ChunkBuilder, Compression};

fn open(dir: &std::path::Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

fn chunk(timestamps: &[i64], compression: Compression) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for timestamp in timestamps {
        let value = [7; 500];
        let timestamp = Timestamp(*timestamp);
        builder.push(timestamp, None, Some(&value), &[]).unwrap();
    }
    builder.finish(None).unwrap().to_vec()
}

/// Compares with a walk over all records.
fn check(lane: &StreamPartition, chunks: &[Vec<i64>], at: &str) {
    let offsets: Vec<u64> = chunks
        .iter()
        .scan(0, |next, chunk| {
            let base = *next;
            *next += chunk.len() as u64;
            Some(base)
        })
        .collect();
    for timestamp in -2..=102 {
        let found = lane.record_at(Timestamp(timestamp)).unwrap();
        let in_chunk = |(chunk, base): (&Vec<i64>, &u64)| {
            let n = chunk.iter().position(|other| *other >= timestamp)?;
            Some((Offset(base + n as u64), Timestamp(chunk[n])))
        };
        let expected = chunks.iter().zip(&offsets).find_map(in_chunk);
        assert_eq!(found, expected, "{at}: at {timestamp}");
    }
    for n in (0..=chunks.len()).step_by(7) {
        let end = offsets.get(n).copied().unwrap_or(u64::MAX);
        let before = chunks[..n].iter().flatten();
        let expected = before
            .zip(0..)
            .max_by_key(|(timestamp, offset)| (**timestamp, Reverse(*offset)))
            .map(|(timestamp, offset)| (Offset(offset), Timestamp(*timestamp)));
        let found = lane.newest_record(Offset(end)).unwrap();
        assert_eq!(found, expected, "{at}: before {end}");
    }
}

#[test]
fn lookups_by_time_find_the_first_record_at_a_time_and_the_newest() {
    for compression in [Compression::None, Compression::Lz4] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let config = StreamConfig {
            segment: ByteSize(64 << 10),
            group_segments: 2,
            durability: Durability::Async,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let lane = stream.partition(0).unwrap();
        // Timestamps that neither rise nor fall, over several groups.
        let mut state = 1u64;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            (state >> 33) % below
        };
        let chunks: Vec<Vec<i64>> = (0..300)
            .map(|n| {
                let count = 1 + draw(6);
                (0..count).map(|_| (draw(1 + n / 3)) as i64).collect()
            })
            .collect();
        for timestamps in &chunks {
            lane.append(&chunk(timestamps, compression)).unwrap();
        }
        while log.step() {}
        check(&lane, &chunks, "in memory");
        log.persist();
        log.evict();
        check(&lane, &chunks, "from disk");
        drop((lane, stream));
        log.close().unwrap();
        let log = open(dir.path());
        let lane = log.stream("s").unwrap().partition(0).unwrap();
        check(&lane, &chunks, "after a restart");
    }
}

#[test]
fn a_lookup_by_time_in_an_empty_lane_finds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    assert_eq!(lane.record_at(Timestamp(0)).unwrap(), None);
    assert_eq!(lane.newest_record(Offset(9)).unwrap(), None);
    // Not durable yet.
    lane.append(&chunk(&[5], Compression::None)).unwrap();
    assert_eq!(lane.record_at(Timestamp(0)).unwrap(), None);
    assert_eq!(lane.newest_record(Offset(9)).unwrap(), None);
    while log.step() {}
    let found = Some((Offset(0), Timestamp(5)));
    assert_eq!(lane.record_at(Timestamp(0)).unwrap(), found);
    assert_eq!(lane.newest_record(Offset(9)).unwrap(), found);
}

#[test]
fn a_lookup_by_time_believes_a_chunks_header_against_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    lane.append(&chunk(&[1, 2], Compression::None)).unwrap();
    let mut lies = chunk(&[3, 4], Compression::None);
    // No record has the largest timestamp …
    lies[35..43].copy_from_slice(&50i64.to_be_bytes());
    // … and the bytes are no records.
    let mut broken = chunk(&[5, 6], Compression::None);
    broken[61] = 0x7f;
    for chunk in [&mut lies, &mut broken] {
        let crc = millstream_base::crc32c(&chunk[21..]);
        chunk[17..21].copy_from_slice(&crc.to_be_bytes());
        lane.append(chunk).unwrap();
    }
    while log.step() {}
    let at = |timestamp| lane.record_at(Timestamp(timestamp)).unwrap();
    assert_eq!(at(4), Some((Offset(3), Timestamp(4))));
    assert_eq!(at(7), Some((Offset(2), Timestamp(50))));
    let newest = lane.newest_record(Offset(9)).unwrap();
    assert_eq!(newest, Some((Offset(2), Timestamp(50))));
}
