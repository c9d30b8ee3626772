//! Decodes chunks of other implementations, and encodes them again. `golden/README.md` lists the implementations.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use millstream_base::{Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor, Header, Producer, Record};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    chunks: BTreeMap<String, ExpectedChunk>,
    cases: BTreeMap<String, Vec<ExpectedRecord>>,
}

#[derive(Deserialize)]
struct ExpectedChunk {
    case: String,
    compression: String,
    transactional: bool,
    producer: (i64, i16, i32),
}

/// Bytes in hexadecimal.
#[derive(Debug, PartialEq, Deserialize)]
struct ExpectedRecord {
    timestamp: i64,
    key: Option<String>,
    value: Option<String>,
    headers: Vec<(String, Option<String>)>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn as_expected(record: &Record<'_>) -> ExpectedRecord {
    ExpectedRecord {
        timestamp: record.timestamp.0,
        key: record.key.map(hex),
        value: record.value.map(hex),
        headers: record
            .headers()
            .map(|header| (hex(header.name), header.value.map(hex)))
            .collect(),
    }
}

/// All golden chunks, with their names and expected records.
fn golden(mut each: impl FnMut(&str, &[u8], &ExpectedChunk, &[ExpectedRecord])) {
    let text = fs::read_to_string(folder().join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_str(&text).unwrap();
    // Three implementations, two cases, five compressions.
    assert_eq!(expected.chunks.len(), 30);
    for (name, chunk) in &expected.chunks {
        let bytes = fs::read(folder().join(format!("{name}.bin"))).unwrap();
        each(name, &bytes, chunk, &expected.cases[&chunk.case]);
    }
}

#[test]
fn golden_chunks_decode_to_their_records() {
    let mut decompressor = Decompressor::default();
    golden(|name, bytes, expected, expected_records| {
        let chunk = Chunk::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let header = chunk.header();
        let compression = header.attributes.compression();
        assert_eq!(compression.to_string(), expected.compression, "{name}");
        assert_eq!(
            header.attributes.is_transactional(),
            expected.transactional,
            "{name}"
        );
        let (id, epoch, sequence) = expected.producer;
        assert_eq!(header.producer_id, ProducerId(id), "{name}");
        assert_eq!(header.producer_epoch, ProducerEpoch(epoch), "{name}");
        assert_eq!(header.base_sequence, Sequence(sequence), "{name}");
        assert_eq!(
            header.record_count as usize,
            expected_records.len(),
            "{name}"
        );

        let records = chunk.records(&mut decompressor).unwrap();
        for (index, record) in records.enumerate() {
            let record = record.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(record.offset, Offset(index as u64), "{name}");
            assert_eq!(
                as_expected(&record),
                expected_records[index],
                "{name} {index}"
            );
        }
    });
}

/// Uncompressed chunks are encoded to identical bytes. Compressed ones need not be, since encoders differ, but they
/// decode to the same body.
#[test]
fn golden_chunks_are_encoded_to_the_same_bytes() {
    let mut decompressor = Decompressor::default();
    golden(|name, bytes, expected, _| {
        let chunk = Chunk::parse(bytes).unwrap();
        let header = *chunk.header();
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.set_transactional(expected.transactional);
        for record in chunk.records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            let headers: Vec<Header<'_>> = record.headers().collect();
            builder
                .push(record.timestamp, record.key, record.value, &headers)
                .unwrap();
        }
        let producer = (header.producer_id != ProducerId::NONE).then_some(Producer {
            id: header.producer_id,
            epoch: header.producer_epoch,
            sequence: header.base_sequence,
        });
        let encoded = builder.finish(producer).unwrap();

        let uncompressed = name.replace(&expected.compression, "none");
        let original = fs::read(folder().join(format!("{uncompressed}.bin"))).unwrap();
        // The leader epoch (12..16) is the broker's; the CRC does not cover it, and clients write
        // either 0 or -1.
        assert_eq!(encoded[..12], original[..12], "{name}");
        assert_eq!(encoded[16..], original[16..], "{name}");
    });
}

#[test]
fn headers_with_the_prefix_are_secondary_keys() {
    let bytes = fs::read(folder().join("java-mixed-lz4.bin")).unwrap();
    let mut decompressor = Decompressor::default();
    let chunk = Chunk::parse(&bytes).unwrap();
    let mut found = Vec::new();
    for record in chunk.records(&mut decompressor).unwrap() {
        let record = record.unwrap();
        for (name, key) in record.secondary_keys() {
            found.push((record.timestamp, name.to_vec(), key.to_vec()));
        }
    }
    let city = (
        Timestamp(1_700_000_000_002),
        b"city".to_vec(),
        "Zürich".as_bytes().to_vec(),
    );
    assert_eq!(
        found,
        [city],
        "a header without a value is not a secondary key"
    );
}
