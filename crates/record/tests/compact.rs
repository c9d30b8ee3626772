//! Rewrites chunks, and compares the result with a plain list of records and with Kafka's log cleaner.

use std::fs;
use std::path::Path;

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{
    Chunk, ChunkBuilder, ChunkError, Chunks, Compression, Decompressor, EndMarker, Fate, Header,
    Producer, REWRITTEN_BYTES_MAX, Record, RewriteRules, Rewriter, TimestampType, TransactionEnd,
    set_append_time, set_place,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp(1_000_000);

/// The time for which tombstones stay.
const DELETE_RETENTION_MS: i64 = 500;

fn rules() -> RewriteRules {
    RewriteRules {
        begins_tombstones: true,
        compression: None,
        now: NOW,
        horizon: Timestamp(NOW.0 + DELETE_RETENTION_MS),
        tombstones_end: Offset(0),
        markers_end: Offset(0),
    }
}

/// A record that owns its fields, with the properties that it gets from its chunk.
#[derive(Debug, Clone, PartialEq)]
struct Owned {
    offset: u64,
    timestamp: Timestamp,
    timestamp_type: Option<TimestampType>,
    leader_epoch: i32,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// The delete horizon, of tombstones and markers.
    horizon: Option<Timestamp>,
    /// The producer, of markers.
    marker_of: Option<ProducerId>,
}

/// All records of adjacent chunks, after a check that the chunks cover `first..end` without gaps.
fn records(bytes: &[u8], first: u64, end: u64) -> Vec<Owned> {
    let mut decompressor = Decompressor::default();
    let (mut all, mut next) = (Vec::new(), Offset(first));
    for chunk in Chunks::new(bytes) {
        let chunk = chunk.unwrap();
        let header = *chunk.header();
        assert_eq!(header.base_offset, next);
        next = header.next_offset();
        let is_control = header.attributes.is_control();
        for record in chunk.records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            let is_tombstone = record.key.is_some() && record.value.is_none();
            all.push(Owned {
                offset: record.offset.0,
                timestamp: record.timestamp,
                timestamp_type: Some(header.attributes.timestamp_type()),
                leader_epoch: header.leader_epoch,
                key: record.key.map(<[u8]>::to_vec),
                value: record.value.map(<[u8]>::to_vec),
                headers: record
                    .headers()
                    .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)))
                    .collect(),
                horizon: header
                    .delete_horizon()
                    .filter(|_| is_control || is_tombstone),
                marker_of: is_control.then_some(header.producer_id),
            });
        }
    }
    assert_eq!(next, Offset(end));
    all
}

/// Rewrites adjacent chunks from `first` on, and keeps the records that `is_live` names.
fn rewrite(
    bytes: &[u8],
    first: u64,
    rules: RewriteRules,
    is_live: impl Fn(u64) -> bool,
) -> Vec<u8> {
    let (mut decompressor, mut out) = (Decompressor::default(), Vec::new());
    let mut rewriter = Rewriter::new(Offset(first), rules);
    for chunk in Chunks::new(bytes) {
        let chunk = chunk.unwrap();
        let records = chunk.records(&mut decompressor).unwrap();
        rewriter
            .push(
                &chunk,
                records,
                |_, record| match is_live(record.offset.0) {
                    true => Fate::Stays,
                    false => Fate::Goes,
                },
                &mut out,
            )
            .unwrap();
    }
    rewriter.finish(&mut out).unwrap();
    out
}

/// Key, value, and whether the record has a header.
type Drawn = (Option<Vec<u8>>, Option<Vec<u8>>, bool);

/// A chunk to rewrite.
#[derive(Debug, Clone)]
enum Source {
    Data {
        records: Vec<Drawn>,
        compression: Compression,
        epoch: i32,
        is_transactional: bool,
        append_time: Option<i64>,
    },
    Marker(i64),
}

fn source() -> impl Strategy<Value = Source> {
    let value = prop_oneof![
        4 => vec(any::<u8>(), 0..40),
        1 => (0..30_000_usize).prop_map(|count| vec![7; count]),
    ];
    let key = option::weighted(0.9, vec(any::<u8>(), 0..6));
    let record = (key, option::weighted(0.8, value), any::<bool>());
    let data = (
        vec(record, 1..20),
        proptest::sample::select(&Compression::ALL[..]),
        prop_oneof![9 => Just(0), 1 => 1..3],
        any::<bool>(),
        option::weighted(0.1, 0..3_i64),
    );
    prop_oneof![
        6 => data.prop_map(|(records, compression, epoch, is_transactional, append_time)| Source::Data {
            records, compression, epoch, is_transactional, append_time,
        }),
        1 => (0..5_i64).prop_map(Source::Marker),
    ]
}

/// Writes adjacent chunks from `first` on. Returns them and the offset behind them.
fn write(sources: &[Source], first: u64) -> (Vec<u8>, u64) {
    let (mut bytes, mut next) = (Vec::new(), first);
    for source in sources {
        let (mut chunk, epoch) = match source {
            Source::Data {
                records,
                compression,
                epoch,
                is_transactional,
                append_time,
            } => {
                let mut builder = ChunkBuilder::new(*compression);
                builder.set_transactional(*is_transactional);
                for (n, (key, value, has_header)) in records.iter().enumerate() {
                    let headers = [Header {
                        name: b"k.n",
                        value: Some(b"v"),
                    }];
                    let headers = if *has_header { &headers[..] } else { &[] };
                    let timestamp = Timestamp(1_000 - n as i64);
                    builder
                        .push(timestamp, key.as_deref(), value.as_deref(), headers)
                        .unwrap();
                }
                let producer = Producer {
                    id: ProducerId(7),
                    epoch: ProducerEpoch(0),
                    sequence: Sequence(0),
                };
                let mut chunk = builder.finish(Some(producer)).unwrap().to_vec();
                if let Some(time) = append_time {
                    set_append_time(&mut chunk, Timestamp(*time));
                }
                (chunk, *epoch)
            }
            Source::Marker(producer) => {
                let marker = EndMarker {
                    producer_id: ProducerId(*producer),
                    producer_epoch: ProducerEpoch(1),
                    end: TransactionEnd::Commit,
                    coordinator_epoch: 4,
                };
                (marker.to_chunk(Timestamp(500)).unwrap(), 0)
            }
        };
        set_place(&mut chunk, Offset(next), epoch);
        next = Chunk::parse(&chunk).unwrap().header().next_offset().0;
        bytes.extend(chunk);
    }
    (bytes, next)
}

/// The records that remain: a list, and no chunks.
fn remaining(all: Vec<Owned>, rules: RewriteRules, is_live: impl Fn(u64) -> bool) -> Vec<Owned> {
    let is_over = |record: &Owned, end: Offset| {
        record.offset < end.0 && record.horizon.is_some_and(|horizon| horizon <= rules.now)
    };
    let stays = |record: &Owned| match record.marker_of {
        Some(_) => !is_over(record, rules.markers_end),
        None => is_live(record.offset) && !is_over(record, rules.tombstones_end),
    };
    let stamped = |mut record: Owned| {
        let is_tombstone = record.key.is_some() && record.value.is_none();
        if (is_tombstone && rules.begins_tombstones) || record.marker_of.is_some() {
            record.horizon = record.horizon.or(Some(rules.horizon));
        }
        record
    };
    all.into_iter().filter(stays).map(stamped).collect()
}

/// Checks the properties of rewritten chunks that no record shows.
fn check_chunks(bytes: &[u8]) {
    let mut decompressor = Decompressor::default();
    for chunk in Chunks::new(bytes) {
        let chunk = chunk.unwrap();
        let header = chunk.header();
        let mut plain = 0;
        let mut newest = Timestamp(-1);
        for record in chunk.records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            newest = newest.max(record.timestamp);
            plain += record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len);
        }
        if header.record_count > 1 {
            assert!(plain < REWRITTEN_BYTES_MAX, "{plain} bytes");
        }
        assert_eq!(header.max_timestamp, newest);
        if !header.attributes.is_control() {
            assert!(!header.attributes.is_transactional());
            assert_eq!(header.producer_id, ProducerId::NONE);
            assert_eq!(header.base_sequence, Sequence(-1));
        }
    }
}

proptest! {
    #[test]
    fn a_rewrite_keeps_live_records_and_covers_all_offsets(
        sources in vec(source(), 0..12),
        first in 0..1_u64 << 40,
        live in vec(any::<bool>(), 1..50),
        live_again in vec(any::<bool>(), 1..50),
        tombstones_end in any::<proptest::sample::Index>(),
        markers_end in any::<proptest::sample::Index>(),
        begins_tombstones in any::<bool>(),
    ) {
        let rules = || RewriteRules { begins_tombstones, ..rules() };
        let (bytes, end) = write(&sources, first);
        let is_live = |offset: u64| live[offset as usize % live.len()];
        let once = rewrite(&bytes, first, rules(), is_live);
        check_chunks(&once);
        let expected = remaining(records(&bytes, first, end), rules(), is_live);
        prop_assert_eq!(records(&once, first, end), expected.clone());

        // Later, when the horizons of the first time have passed.
        let count = (end - first) as usize + 1;
        let later = RewriteRules {
            compression: Some((Compression::Lz4, None)),
            now: rules().horizon,
            horizon: Timestamp(rules().horizon.0 + DELETE_RETENTION_MS),
            tombstones_end: Offset(first + tombstones_end.index(count) as u64),
            markers_end: Offset(first + markers_end.index(count) as u64),
            begins_tombstones: true,
        };
        let is_live = |offset: u64| live_again[offset as usize % live_again.len()];
        let twice = rewrite(&once, first, later, is_live);
        check_chunks(&twice);
        let expected = remaining(expected, later, is_live);
        prop_assert_eq!(records(&twice, first, end), expected);

        let again = rewrite(&twice, first, RewriteRules { now: NOW, ..later }, |_| true);
        prop_assert_eq!(again, twice, "a rewrite that drops nothing changes nothing");
    }
}

#[test]
fn a_rewrite_joins_small_chunks_and_divides_large_ones() {
    let record = |bytes: usize| (Some(b"key".to_vec()), Some(vec![7; bytes]), false);
    let source = |records| Source::Data {
        records,
        compression: Compression::None,
        epoch: 0,
        is_transactional: false,
        append_time: None,
    };
    let sizes = |sources: &[Source]| -> Vec<u32> {
        let (bytes, _) = write(sources, 0);
        let rewritten = rewrite(&bytes, 0, rules(), |_| true);
        let chunks = Chunks::new(&rewritten);
        chunks
            .map(|chunk| chunk.unwrap().header().record_count)
            .collect()
    };
    let small = vec![source(vec![record(100)]); 100];
    assert_eq!(sizes(&small), [100]);
    assert_eq!(sizes(&[source(vec![record(4_000); 10])]), [4, 4, 2]);
    assert_eq!(
        sizes(&[source(vec![record(100), record(20_000), record(100)])]),
        [1, 1, 1]
    );
}

#[test]
fn a_record_that_expires_is_dropped_and_counts_as_a_dropped_deletion() {
    let mut builder = ChunkBuilder::new(Compression::None);
    for key in [b"a", b"b", b"c"] {
        let pushed = builder.push(NOW, Some(key), Some(b"v"), &[]);
        pushed.unwrap();
    }
    let bytes = builder.finish(None).unwrap();
    let chunk = Chunk::parse(bytes).unwrap();
    let rewritten = |fates: [Fate; 3]| {
        let (mut decompressor, mut out) = (Decompressor::default(), Vec::new());
        let mut rewriter = Rewriter::new(Offset(0), rules());
        let records = chunk.records(&mut decompressor).unwrap();
        let fate = |_: &_, record: &Record<'_>| fates[record.offset.0 as usize];
        rewriter.push(&chunk, records, fate, &mut out).unwrap();
        rewriter.finish(&mut out).unwrap();
        let left = offsets_of(&out);
        (left, rewriter.dropped_to())
    };
    let (stays, expires) = (Fate::Stays, Fate::Expires);
    assert_eq!(rewritten([stays, Fate::Goes, stays]), (vec![0, 2], None));
    let expected = (vec![0, 2], Some(Offset(2)));
    assert_eq!(rewritten([stays, expires, stays]), expected);
    assert_eq!(rewritten([expires; 3]), (vec![], Some(Offset(3))));
}

/// The offsets of the three records of a chunk that are left.
fn offsets_of(rewritten: &[u8]) -> Vec<u64> {
    let left = records(rewritten, 0, 3).into_iter();
    left.map(|record| record.offset).collect()
}

#[test]
fn empty_chunks_cover_a_gap_longer_than_one_chunk_can_span() {
    const SPAN: u64 = 1 << 31;
    let key = |name: &str| (Some(name.as_bytes().to_vec()), Some(vec![1]), false);
    let chunk = |name| Source::Data {
        records: vec![key(name)],
        compression: Compression::Zstd,
        epoch: 0,
        is_transactional: false,
        append_time: None,
    };
    // Five chunks of one record, each of which is the last of 2^31 offsets.
    let (mut bytes, first) = (Vec::new(), 100);
    for n in 0..5 {
        let (one, _) = write(&[chunk("key")], first + n * SPAN);
        let mut long = rewrite(&one, first + n * SPAN, rules(), |_| true);
        // It looks as if it had been rewritten with the records behind it.
        long[23..27].copy_from_slice(&i32::MAX.to_be_bytes());
        let crc = millstream_base::crc32c(&long[21..]);
        long[17..21].copy_from_slice(&crc.to_be_bytes());
        bytes.extend(long);
    }
    let end = first + 5 * SPAN;
    let all = records(&bytes, first, end);
    assert_eq!(all.len(), 5);
    for (live, chunks) in [
        (vec![], 5),
        (vec![4], 5),
        (vec![0, 3], 5),
        (vec![0, 1, 2, 3, 4], 5),
    ] {
        let is_live = |offset: u64| live.contains(&((offset - first) / SPAN));
        let rewritten = rewrite(&bytes, first, rules(), is_live);
        let left: Vec<Owned> = all
            .iter()
            .filter(|record| is_live(record.offset))
            .cloned()
            .collect();
        assert_eq!(records(&rewritten, first, end), left);
        assert_eq!(Chunks::new(&rewritten).count(), chunks, "{live:?}");
    }
}

#[test]
fn chunks_that_are_not_adjacent_are_refused() {
    let (bytes, _) = write(&[Source::Marker(1)], 5);
    let chunk = Chunk::parse(&bytes).unwrap();
    let mut decompressor = Decompressor::default();
    let records = chunk.records(&mut decompressor).unwrap();
    let mut rewriter = Rewriter::new(Offset(4), rules());
    let refused = rewriter.push(&chunk, records, |_, _| Fate::Stays, &mut Vec::new());
    let expected = ChunkError::NotAdjacent {
        expected: Offset(4),
        base_offset: Offset(5),
    };
    assert_eq!(refused, Err(expected));
}

/// `golden/Cleaned.java` made the batches, and ran the filter of Kafka's log cleaner on them.
#[test]
fn a_rewritten_chunk_equals_the_bytes_of_kafkas_log_cleaner() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cleaned");
    for name in [
        "values",
        "tombstones",
        "horizon-ahead",
        "append-time",
        "marker",
        "marker-again",
        "empty",
    ] {
        let read = |of: &str| fs::read(folder.join(format!("{name}.{of}.bin"))).unwrap();
        let (source, mut expected) = (read("source"), read("cleaned"));
        let chunk = Chunk::parse(&source).unwrap();
        let first = chunk.header().base_offset.0;
        let mut decompressor = Decompressor::default();
        let old: Vec<u64> = chunk
            .records(&mut decompressor)
            .unwrap()
            .map(Result::unwrap)
            .filter(|record| record.key.is_some_and(|key| key.starts_with(b"old")))
            .map(|record| record.offset.0)
            .collect();
        let mut made = rewrite(&source, first, rules(), |offset| !old.contains(&offset));
        if name == "empty" {
            // Kafka's has the newest time of the records that are gone, ours has none; nothing reads it.
            for bytes in [&mut made, &mut expected] {
                bytes[17..21].fill(0);
                bytes[35..43].fill(0);
            }
        }
        assert_eq!(made, expected, "{name}");
    }
}
