//! Arbitrary texts as filters, and arbitrary records that they are evaluated on: all that a subscriber can
//! make a broker do with them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_base::crc32c;
use millstream_record::{Chunk, Decompressor, Filter, HEADER_BYTES, LENGTH_PREFIX_BYTES, Selected};

/// Small, so that bombs are quick; and they are refused all the same.
const DECOMPRESSED_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|input: (&str, &[u8])| {
    let (text, bytes) = input;
    let Ok(filter) = Filter::parse(text) else {
        return;
    };
    assert_eq!(filter.to_string().parse(), Ok(filter.clone()));
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
    let mut out = Vec::new();
    match filter.select(&chunk, &mut decompressor, &mut out) {
        Ok(Selected::Some(records)) => {
            let rebuilt = Chunk::parse(&out).expect("it was just made");
            assert!(0 < records && records < chunk.header().record_count);
            assert_eq!(rebuilt.header().record_count, records);
            let again = filter.select(&rebuilt, &mut decompressor, &mut Vec::new());
            assert_eq!(again, Ok(Selected::All));
        }
        Ok(Selected::All | Selected::None) | Err(_) => assert!(out.is_empty()),
    }
});
