//! Reads arbitrary bytes in a chunk with the right length, magic and CRC, with all calls of a consumer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_base::crc32c;
use millstream_record::{Chunk, Decompressor, HEADER_BYTES, LENGTH_PREFIX_BYTES};

/// Small, so that bombs are quick; and they are refused all the same.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let mut bytes = bytes.to_vec();
    let batch_length = (bytes.len() - LENGTH_PREFIX_BYTES) as u32;
    bytes[8..12].copy_from_slice(&batch_length.to_be_bytes());
    bytes[16] = 2;
    let crc = crc32c(&bytes[21..]);
    bytes[17..21].copy_from_slice(&crc.to_be_bytes());

    // A header out of its bounds remains possible.
    let Ok(chunk) = Chunk::parse(&bytes) else {
        return;
    };
    let mut decompressor = Decompressor::with_bytes_max(DECOMPRESSED_BYTES_MAX);
    let Ok(records) = chunk.records(&mut decompressor) else {
        return;
    };
    let mut next_offset = chunk.header().base_offset;
    for record in records.flatten() {
        assert!(next_offset <= record.offset && record.offset <= chunk.header().last_offset());
        next_offset = record.offset.plus(1);
        record.headers().for_each(drop);
        record.secondary_keys().for_each(drop);
    }
});
