//! Arbitrary bytes as chunks: all that a broker does with a produce request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millstream_record::{ChunkHeader, Chunks, check, check_prefix};

fuzz_target!(|bytes: &[u8]| {
    let header = ChunkHeader::parse(bytes);
    let prefix = check_prefix(bytes);
    if let Ok(header) = check(bytes) {
        assert_eq!(prefix, Ok(header));
        assert_eq!(header.total_bytes as usize, bytes.len());
    }
    if let Ok(prefix) = prefix {
        assert_eq!(header, Ok(prefix));
    }
    let mut chunks = Chunks::new(bytes);
    let found: usize = chunks
        .by_ref()
        .flatten()
        .map(|chunk| chunk.bytes().len())
        .sum();
    assert_eq!(found, chunks.position());
    assert!(found <= bytes.len());
});
