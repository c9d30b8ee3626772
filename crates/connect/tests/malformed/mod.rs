//! A chunk that its producer sent malformed.

use millstream_base::{Timestamp, crc32c};
use millstream_record::{ChunkBuilder, Compression};

/// Returns a chunk with this many good records before one that declares a length beyond the chunk; its checksum is
/// right.
pub fn chunk(good: usize) -> Vec<u8> {
    const RECORDS: usize = 61;
    const RECORD_BYTES: usize = 15;
    let mut builder = ChunkBuilder::new(Compression::None);
    for _ in 0..=good {
        builder
            .push(Timestamp(0), None, Some(b"12345678"), &[])
            .unwrap();
    }
    let mut chunk = builder.finish(None).unwrap().to_vec();
    chunk[RECORDS + good * RECORD_BYTES] = 0x7e;
    let crc = crc32c(&chunk[21..]).to_be_bytes();
    chunk[17..21].copy_from_slice(&crc);
    chunk
}
