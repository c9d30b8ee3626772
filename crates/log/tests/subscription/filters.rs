//! Subscriptions with a filter.

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{LogError, Next, StreamConfig, Subscription};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor, Filter};
use proptest::prelude::*;
use tempfile::tempdir;

use crate::{open, with_stream};

/// A chunk with a record for each of `kinds`, whose value is `keep` or `drop`, and as long as `bytes`.
fn mixed(kinds: &[bool], bytes: usize, compression: Compression) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for keep in kinds {
        let mut value = if *keep {
            b"keep".to_vec()
        } else {
            b"drop".to_vec()
        };
        value.resize(bytes.max(4), b'.');
        builder.push(Timestamp(5), None, Some(&value), &[]).unwrap();
    }
    builder.finish(None).unwrap().to_vec()
}

proptest! {
    /// A filter hands out the matching records at their offsets, and no more bytes than these take.
    #[test]
    fn a_filter_selects_the_matching_records(
        chunks in prop::collection::vec(
            (prop::collection::vec(prop::bool::weighted(0.3), 1..40), 0..3_000usize, any::<bool>()),
            1..40,
        ),
        bytes_max in 1..100_000usize,
        by_group in any::<bool>(),
    ) {
        let dir = tempdir().unwrap();
        let log = open(dir.path());
        let config = StreamConfig {
            segment: ByteSize(256 << 10),
            group_segments: 1,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let lane = stream.partition(0).unwrap();
        let mut subscription = match by_group {
            true => Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        subscription.set_filter(Filter::parse(r#"value starts with "keep""#).unwrap());
        let (mut expected, mut matching_bytes) = (Vec::new(), 0);
        for (kinds, bytes, is_compressed) in &chunks {
            let compression = if *is_compressed { Compression::Lz4 } else { Compression::None };
            let from = lane.next_offset().0;
            lane.append(&mixed(kinds, *bytes, compression)).unwrap();
            while log.step() {}
            let matching = (from..).zip(kinds).filter(|(_, keep)| **keep);
            expected.extend(matching.map(|(offset, _)| offset));
            matching_bytes += kinds.iter().filter(|keep| **keep).count() * (bytes + 100);
        }
        let (mut seen, mut seen_bytes, mut next) = (Vec::new(), 0, Offset(0));
        let mut decompressor = Decompressor::default();
        while let Next::Handed(handed) = subscription.next(bytes_max).unwrap() {
            prop_assert_eq!(handed.from, next);
            next = handed.next;
            seen_bytes += handed.chunks.bytes.len();
            for chunk in Chunks::new(&handed.chunks.bytes) {
                for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                    let record = record.unwrap();
                    prop_assert!(record.value.unwrap().starts_with(b"keep"));
                    seen.push(record.offset.0);
                }
            }
        }
        prop_assert_eq!(next, lane.next_offset());
        prop_assert_eq!(seen, expected);
        prop_assert!(seen_bytes <= matching_bytes + 200 * chunks.len(), "{} of {}", seen_bytes, matching_bytes);
    }
}

#[test]
fn a_chunk_that_cannot_be_filtered_is_reported_behind_the_chunks_before_it() {
    let (_dir, log, stream) = with_stream(1);
    let lane = stream.partition(0).unwrap();
    lane.append(&mixed(&[true, false], 10, Compression::None))
        .unwrap();
    // 33 MB of records.
    lane.append(&mixed(&[true; 33], 1 << 20, Compression::Zstd))
        .unwrap();
    while log.step() {}
    let mut subscription = Subscription::of_stream(&stream);
    subscription.set_filter(Filter::parse(r#"value contains "keep""#).unwrap());
    let Next::Handed(handed) = subscription.next(1 << 20).unwrap() else {
        panic!("there are two chunks");
    };
    assert_eq!(handed.next, Offset(2));
    let error = subscription.next(1 << 20).unwrap_err();
    assert!(
        matches!(error.error, LogError::NotFiltered { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("without a filter"), "{error}");
}

/// A megabyte of compressed chunks was looked through at once, however many gigabytes of records that is.
#[test]
fn one_step_filters_a_bounded_number_of_compressed_bytes() {
    let (_dir, log, stream) = with_stream(1);
    let lane = stream.partition(0).unwrap();
    let (large, small) = (&[false; 20][..], &[false][..]);
    for kinds in [large, large, small, small] {
        lane.append(&mixed(kinds, 1 << 20, Compression::Zstd))
            .unwrap();
    }
    for _ in 0..100 {
        lane.append(&mixed(small, 1_000, Compression::Zstd))
            .unwrap();
    }
    while log.step() {}
    for by_group in [false, true] {
        let mut subscription = match by_group {
            true => Subscription::of_shared_group(&log, &stream, "app", "one".to_owned()).unwrap(),
            false => Subscription::of_stream(&stream),
        };
        subscription.set_filter(Filter::parse(r#"value contains "keep""#).unwrap());
        for next in [20, 40, 41, 42, 142] {
            let Next::Handed(handed) = subscription.next(1 << 20).unwrap() else {
                panic!("it ends before {next}");
            };
            assert_eq!((handed.chunks.bytes.len(), handed.next), (0, Offset(next)));
        }
        assert!(matches!(subscription.next(1 << 20), Ok(Next::Nothing)));
    }
}
