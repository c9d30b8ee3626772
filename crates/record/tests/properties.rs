//! Properties of all chunks, and of all bytes that are not chunks.

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp, crc32c};
use millstream_record::{
    Chunk, ChunkBuilder, ChunkError, ChunkHeader, Chunks, Compression, Decompressor, HEADER_BYTES,
    Header, LENGTH_PREFIX_BYTES, Producer, RecordFault, check, check_prefix, set_base_offset,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// A record that owns its fields.
#[derive(Debug, Clone, PartialEq)]
struct Owned {
    timestamp: Timestamp,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..20),
        // Lengths of two and three bytes, and bytes that compress well.
        (any::<u8>(), 0..20_000_usize).prop_map(|(byte, count)| vec![byte; count]),
    ]
}

fn record() -> impl Strategy<Value = Owned> {
    let name = prop_oneof![
        bytes(),
        bytes().prop_map(|name| [b"k.", &name[..]].concat())
    ];
    let headers = vec((name, option::of(bytes())), 0..4);
    (
        any::<i64>(),
        option::of(bytes()),
        option::of(bytes()),
        headers,
    )
        .prop_map(|(timestamp, key, value, headers)| Owned {
            timestamp: Timestamp(timestamp),
            key,
            value,
            headers,
        })
}

/// A typical record.
fn plain_record() -> impl Strategy<Value = Owned> {
    let field = || {
        let long = proptest::sample::select(vec![0, 1, 10, 63, 64, 8191, 8192]);
        option::of(prop_oneof![3 => vec(edge_byte(), 0..8), 1 => long.prop_map(|len| vec![0; len])])
    };
    let few_headers = prop_oneof![
        20 => Just(Vec::new()),
        1 => Just(vec![(b"name".to_vec(), Some(b"value".to_vec()))]),
    ];
    let timestamp = prop_oneof![0..3_i64, Just(1_i64 << 20), Just(1_i64 << 27), any::<i64>()];
    (timestamp, field(), field(), few_headers).prop_map(|(timestamp, key, value, headers)| Owned {
        timestamp: Timestamp(timestamp),
        key,
        value,
        headers,
    })
}

/// A byte with a meaning in a varint.
fn edge_byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        proptest::sample::select(vec![0, 1, 2, 0x7f, 0x80, 0xff]),
        any::<u8>()
    ]
}

fn compression() -> impl Strategy<Value = Compression> {
    proptest::sample::select(&Compression::ALL[..])
}

fn producer() -> impl Strategy<Value = Producer> {
    (0..i64::MAX, 0..i16::MAX, 0..i32::MAX).prop_map(|(id, epoch, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        sequence: Sequence(sequence),
    })
}

fn push(builder: &mut ChunkBuilder, record: &Owned) {
    let headers: Vec<Header<'_>> = record
        .headers
        .iter()
        .map(|(name, value)| Header {
            name,
            value: value.as_deref(),
        })
        .collect();
    let (key, value) = (record.key.as_deref(), record.value.as_deref());
    builder
        .push(record.timestamp, key, value, &headers)
        .unwrap();
}

fn build(compression: Compression, records: &[Owned], producer: Option<Producer>) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    for record in records {
        push(&mut builder, record);
    }
    builder.finish(producer).unwrap().to_vec()
}

/// All records of a chunk, after a check that their offsets are consecutive.
fn records(chunk: &Chunk<'_>, decompressor: &mut Decompressor) -> Result<Vec<Owned>, ChunkError> {
    let mut all = Vec::new();
    for (index, record) in chunk.records(decompressor)?.enumerate() {
        let record = record?;
        assert_eq!(record.offset, chunk.header().base_offset.plus(index as u64));
        let headers: Vec<_> = record
            .headers()
            .map(|header| (header.name.to_vec(), header.value.map(<[u8]>::to_vec)))
            .collect();
        let secondary_keys: Vec<_> = record.secondary_keys().collect();
        let expected: Vec<_> = headers
            .iter()
            .filter_map(|(name, value)| Some((name.strip_prefix(b"k.")?, value.as_deref()?)))
            .collect();
        assert_eq!(secondary_keys, expected);
        all.push(Owned {
            timestamp: record.timestamp,
            key: record.key.map(<[u8]>::to_vec),
            value: record.value.map(<[u8]>::to_vec),
            headers,
        });
    }
    Ok(all)
}

/// Calls every function that takes outside bytes. Each must return without a panic, and an iterator with at most one
/// error.
fn walk(bytes: &[u8]) {
    let _ = ChunkHeader::parse(bytes);
    let _ = check_prefix(bytes);
    let mut decompressor = Decompressor::with_bytes_max(1 << 20);
    for chunk in Chunks::trusted(bytes).flatten() {
        let Ok(records) = chunk.records(&mut decompressor) else {
            continue;
        };
        let taken = records.clone().try_for_each(|record| record.map(drop));
        assert_eq!(records.clone().check(), taken);
        let count_max = chunk.header().record_count as usize + 1;
        let mut walked = 0;
        for record in records {
            walked += 1;
            if let Ok(record) = record {
                assert!(record.offset <= chunk.header().last_offset());
                record.headers().for_each(drop);
                record.secondary_keys().for_each(drop);
            }
        }
        assert!(walked <= count_max);
    }
}

/// A chunk with this body and a well-formed header.
fn chunk_around(body: &[u8], codec: u8, record_count: u8) -> Vec<u8> {
    let mut chunk = vec![0; HEADER_BYTES];
    chunk.extend_from_slice(body);
    let batch_length = (chunk.len() - LENGTH_PREFIX_BYTES) as u32;
    chunk[8..12].copy_from_slice(&batch_length.to_be_bytes());
    chunk[16] = 2;
    chunk[22] = codec;
    chunk[23..27].copy_from_slice(&i32::from(record_count).to_be_bytes());
    chunk[57..61].copy_from_slice(&i32::from(record_count).to_be_bytes());
    let crc = crc32c(&chunk[21..]);
    chunk[17..21].copy_from_slice(&crc.to_be_bytes());
    chunk
}

proptest! {
    #[test]
    fn records_round_trip(
        compression in compression(),
        built in vec(record(), 1..30),
        producer in option::of(producer()),
        base_offset in 0..i64::MAX / 2,
    ) {
        let mut bytes = build(compression, &built, producer);
        let base_offset = Offset(base_offset as u64);
        set_base_offset(&mut bytes, base_offset);

        let chunk = Chunk::parse(&bytes).unwrap();
        let header = chunk.header();
        prop_assert_eq!(header.base_offset, base_offset);
        prop_assert_eq!(header.next_offset(), base_offset.plus(built.len() as u64));
        prop_assert_eq!(header.total_bytes as usize, bytes.len());
        prop_assert_eq!(header.record_count as usize, built.len());
        prop_assert_eq!(header.attributes.compression(), compression);
        prop_assert_eq!(header.base_timestamp, built[0].timestamp);
        prop_assert_eq!(
            Some(header.max_timestamp),
            built.iter().map(|record| record.timestamp).max()
        );
        let none = Producer {
            id: ProducerId::NONE,
            epoch: ProducerEpoch(-1),
            sequence: Sequence(-1),
        };
        let read = Producer {
            id: header.producer_id,
            epoch: header.producer_epoch,
            sequence: header.base_sequence,
        };
        prop_assert_eq!(read, producer.unwrap_or(none));
        prop_assert_eq!(records(&chunk, &mut Decompressor::default()), Ok(built));
    }

    #[test]
    fn a_builder_builds_the_same_chunk_after_clear(
        compression in compression(),
        first in vec(record(), 1..10),
        second in vec(record(), 1..10),
    ) {
        let mut builder = ChunkBuilder::new(compression);
        for records in [&first, &second] {
            builder.clear();
            for record in records {
                push(&mut builder, record);
            }
            prop_assert_eq!(builder.record_count() as usize, records.len());
            let expected = build(compression, records, None);
            prop_assert_eq!(builder.finish(None).unwrap(), &expected);
            prop_assert_eq!(builder.finish(None).unwrap(), &expected, "finishing is repeatable");
        }
    }

    #[test]
    fn chunks_are_returned_up_to_the_first_bad_one(
        sizes in vec(1_usize..5, 0..5),
        tail in vec(any::<u8>(), 0..100),
    ) {
        let record = Owned {
            timestamp: Timestamp(1),
            key: None,
            value: Some(b"value".to_vec()),
            headers: Vec::new(),
        };
        let mut bytes = Vec::new();
        for size in &sizes {
            bytes.extend(build(Compression::None, &vec![record.clone(); *size], None));
        }
        let good_bytes = bytes.len();
        bytes.extend(&tail);

        let mut chunks = Chunks::new(&bytes);
        for size in &sizes {
            let chunk = chunks.next().unwrap().unwrap();
            prop_assert_eq!(chunk.header().record_count as usize, *size);
        }
        // Random bytes practically never have the right magic and CRC.
        if !tail.is_empty() {
            prop_assert!(chunks.next().unwrap().is_err());
        }
        prop_assert!(chunks.next().is_none());
        prop_assert_eq!(chunks.position(), good_bytes);
    }

    #[test]
    fn every_flipped_bit_is_detected(
        compression in compression(),
        built in vec(record(), 1..5),
        bit: proptest::sample::Index,
    ) {
        let mut bytes = build(compression, &built, None);
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Base offset and leader epoch are the broker's, so the CRC does not cover them.
        let is_covered = !(0..8).contains(&(bit / 8)) && !(12..16).contains(&(bit / 8));
        if is_covered {
            prop_assert!(check(&bytes).is_err());
        }
        walk(&bytes);
    }

    #[test]
    fn every_truncation_is_detected(
        compression in compression(),
        built in vec(record(), 1..5),
        length: proptest::sample::Index,
    ) {
        let bytes = build(compression, &built, None);
        let cut = &bytes[..length.index(bytes.len())];
        let is_truncated = matches!(check(cut), Err(ChunkError::Truncated { .. }));
        prop_assert!(is_truncated);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        walk(&bytes);
    }

    #[test]
    fn arbitrary_bodies_never_panic(
        body in vec(any::<u8>(), 0..300),
        codec in 0_u8..5,
        record_count in 0_u8..40,
    ) {
        let bytes = chunk_around(&body, codec, record_count);
        prop_assert!(check(&bytes).is_ok());
        walk(&bytes);
    }

    /// Draws records without headers, most of which the check skips, with numbers at the limits of the fast path.
    #[test]
    fn the_check_of_a_chunk_finds_the_same_faults_as_the_iterator(
        built in vec(plain_record(), 1..200),
        damage in vec((any::<proptest::sample::Index>(), edge_byte()), 0..3),
    ) {
        let mut body = build(Compression::None, &built, None).split_off(HEADER_BYTES);
        for (index, byte) in damage {
            let index = index.index(body.len());
            body[index] = byte;
        }
        walk(&chunk_around(&body, 0, built.len() as u8));
    }

    /// Damages valid bodies, so it gets deeper into the decoder than random bodies.
    #[test]
    fn damaged_bodies_never_panic(
        compression in compression(),
        built in vec(record(), 1..5),
        damage in vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut body = build(compression, &built, None).split_off(HEADER_BYTES);
        for (index, byte) in damage {
            let index = index.index(body.len());
            body[index] = byte;
        }
        walk(&chunk_around(&body, compression as u8, built.len() as u8));
    }
}

#[test]
fn the_check_of_a_chunk_reads_long_varints_to_their_last_byte() {
    let number = |number: usize| {
        let mut bytes = Vec::new();
        let mut left = 2 * number;
        while left >= 0x80 {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes
    };
    // A check that ends the timestamp's delta too early would take its last byte for the offset delta.
    for (value_bytes, unfinished) in [1, 63, 100, 8191, 9000]
        .into_iter()
        .flat_map(|bytes| (1..10).map(move |n| (bytes, n)))
    {
        let mut record = vec![0];
        record.resize(1 + unfinished, 0x80);
        record.extend([0, 1]);
        record.extend(number(value_bytes));
        record.resize(record.len() + value_bytes, 0);
        record.push(0);
        let body = [number(record.len()), record].concat();
        let chunk = chunk_around(&body, 0, 1);
        walk(&chunk);
        let chunk = Chunk::parse(&chunk).unwrap();
        let mut decompressor = Decompressor::default();
        assert!(chunk.records(&mut decompressor).unwrap().check().is_err());
    }
}

#[test]
fn the_check_of_a_chunk_reaches_its_last_record() {
    // Offset deltas take up to three bytes.
    let count = 20_000;
    let mut builder = ChunkBuilder::new(Compression::None);
    for n in 0..count {
        let value = vec![7; n % 200];
        builder
            .push(Timestamp(n as i64), None, Some(&value), &[])
            .unwrap();
    }
    let bytes = builder.finish(None).unwrap();
    let mut decompressor = Decompressor::default();
    let chunk = Chunk::parse(bytes).unwrap();
    assert_eq!(chunk.records(&mut decompressor).unwrap().check(), Ok(()));
    let last = bytes.len() - 1;
    let mut bytes = bytes.to_vec();
    // The last record claims to have a header.
    bytes[last] = 2;
    let chunk = Chunk::trusted(&bytes).unwrap();
    let wrong = chunk.records(&mut decompressor).unwrap().check();
    let is_last = |error: &ChunkError| matches!(error, ChunkError::Record { index, .. } if *index == count as u32 - 1);
    assert!(wrong.as_ref().is_err_and(is_last), "{wrong:?}");
}

#[test]
fn errors_name_wrong_header_fields() {
    let good = chunk_around(&[], 0, 0);
    let with = |at: usize, field: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        ChunkHeader::parse(&bytes).unwrap_err()
    };
    let field = |field, value, min, max| ChunkError::Field {
        field,
        value,
        min,
        max,
    };
    let length_max = i64::from(i32::MAX);
    for (error, expected) in [
        (
            with(0, &[0x80]),
            field("baseOffset", i64::MIN, 0, i64::MAX - (1 << 31)),
        ),
        (
            with(8, &48_i32.to_be_bytes()),
            field("batchLength", 48, 49, length_max),
        ),
        (
            with(8, &(-1_i32).to_be_bytes()),
            field("batchLength", -1, 49, length_max),
        ),
        (
            with(23, &(-1_i32).to_be_bytes()),
            field("lastOffsetDelta", -1, 0, length_max),
        ),
        (
            with(57, &(-1_i32).to_be_bytes()),
            field("recordCount", -1, 0, 1),
        ),
        (
            with(57, &2_i32.to_be_bytes()),
            field("recordCount", 2, 0, 1),
        ),
        (with(16, &[1]), ChunkError::Magic(1)),
        (with(22, &[5]), ChunkError::Codec(5)),
    ] {
        assert_eq!(error, expected);
    }
    assert_eq!(
        ChunkHeader::parse(&good[..60]),
        Err(ChunkError::Truncated {
            part: "header",
            needed: 61,
            have: 60
        })
    );
    assert_eq!(
        check(&[&good[..], b"more"].concat()),
        Err(ChunkError::Excess {
            total_bytes: 61,
            have: 65
        })
    );
}

#[test]
fn errors_name_wrong_record_fields() {
    let mut decompressor = Decompressor::default();
    let mut first_error = |body: &[u8], count| {
        let bytes = chunk_around(body, 0, count);
        let chunk = Chunk::parse(&bytes).unwrap();
        match chunk.records(&mut decompressor) {
            Err(error) => error,
            Ok(mut records) => records.find_map(Result::err).unwrap(),
        }
    };
    // Length 6, attributes, both deltas, key and value null, no headers.
    let good = [12, 0, 0, 0, 1, 1, 0];
    let record = |index, field, fault| ChunkError::Record {
        index,
        field,
        fault,
    };
    let range = |value, min, max| RecordFault::Range { value, min, max };
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        bytes
    };
    for (error, expected) in [
        (
            first_error(&with(0, 14), 1),
            record(0, "length", range(7, 0, 6)),
        ),
        (
            first_error(&with(0, 0), 1),
            record(0, "attributes", RecordFault::CutOff),
        ),
        (
            first_error(&with(3, 4), 1),
            record(0, "offsetDelta", range(2, 0, 1)),
        ),
        (
            first_error(&with(4, 3), 1),
            record(0, "keyLength", range(-2, -1, 2)),
        ),
        (
            first_error(&with(4, 100), 1),
            record(0, "keyLength", range(50, -1, 2)),
        ),
        (
            first_error(&with(5, 4), 1),
            record(0, "valueLength", range(2, -1, 1)),
        ),
        (
            first_error(&with(6, 2), 1),
            record(0, "headerCount", range(1, 0, 0)),
        ),
        (
            first_error(&with(6, 0x80), 1),
            record(0, "headerCount", RecordFault::Varint),
        ),
        (
            first_error(&[14, 0, 0, 0, 1, 1, 0, 0], 1),
            record(0, "length", RecordFault::Excess(1)),
        ),
        // The same offset again.
        (
            first_error(&[good, good].concat(), 2),
            record(1, "offsetDelta", range(0, 1, 2)),
        ),
        (
            first_error(&good, 2),
            ChunkError::RecordCount { count: 2, bytes: 7 },
        ),
        (
            first_error(&[&good[..], &[9]].concat(), 1),
            ChunkError::RecordsExcess { count: 1, bytes: 1 },
        ),
    ] {
        assert_eq!(error, expected);
    }
}

#[test]
fn a_builder_without_records_builds_no_chunk() {
    let mut builder = ChunkBuilder::new(Compression::None);
    assert!(builder.is_empty());
    assert_eq!(builder.finish(None), Err(ChunkError::Empty));
}

#[test]
fn a_chunk_without_records_is_read_with_every_codec() {
    // Compaction leaves chunks without records behind.
    for codec in 0..5 {
        let bytes = chunk_around(&[], codec, 0);
        let chunk = Chunk::parse(&bytes).unwrap();
        assert_eq!(
            records(&chunk, &mut Decompressor::default()),
            Ok(Vec::new())
        );
    }
}
