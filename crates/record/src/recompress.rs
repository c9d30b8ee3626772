//! Makes chunks with the same records and another compression.

use crate::compressor::Compressor;
use crate::header::{self, CHUNK_BYTES_MAX};
use crate::{Chunk, ChunkError, ChunkHeader, Compression, HEADER_BYTES, Records};

/// Returns `chunk` with its records compressed by another codec, at a level of that codec if one is given.
///
/// `records` iterates over the chunk's records from the first one. The new header differs only in size, codec and
/// checksum, so producer, sequence, transaction and times stay the same.
///
/// # Errors
/// When the records cannot be compressed, or the new chunk would be larger than the format allows.
///
/// ```
/// use millstream_base::Timestamp;
/// use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor, recompressed};
///
/// let mut builder = ChunkBuilder::new(Compression::None);
/// builder.push(Timestamp(1000), None, Some(&[7; 1000]), &[])?;
/// let plain = Chunk::parse(builder.finish(None)?)?;
/// let mut decompressor = Decompressor::default();
/// let zipped = recompressed(&plain, &plain.records(&mut decompressor)?, Compression::Zstd, None)?;
///
/// let zipped = Chunk::parse(&zipped)?;
/// assert!(zipped.bytes().len() < 200);
/// let record = zipped.records(&mut decompressor)?.next().expect("one record")?;
/// assert_eq!((record.timestamp, record.value), (Timestamp(1000), Some(&[7; 1000][..])));
/// # Ok::<(), millstream_record::ChunkError>(())
/// ```
pub fn recompressed(
    chunk: &Chunk<'_>,
    records: &Records<'_>,
    compression: Compression,
    level: Option<i32>,
) -> Result<Vec<u8>, ChunkError> {
    let compressor = match level {
        Some(level) => Compressor::with_level(compression, level)?,
        None => Compressor::new(compression),
    };
    let mut bytes = vec![0; HEADER_BYTES];
    match compressor {
        None => bytes.extend_from_slice(records.rest()),
        Some(mut compressor) => compressor.compress(records.rest(), &mut bytes)?,
    }
    if bytes.len() > CHUNK_BYTES_MAX {
        return Err(ChunkError::TooLarge {
            bytes: bytes.len(),
            max: CHUNK_BYTES_MAX,
        });
    }
    let header = ChunkHeader {
        total_bytes: bytes.len() as u32,
        attributes: chunk.header().attributes.with_compression(compression),
        ..*chunk.header()
    };
    if let Some(bytes) = bytes.first_chunk_mut() {
        header.write(bytes);
    }
    header::set_crc(&mut bytes);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use millstream_base::{ProducerEpoch, ProducerId, Sequence, Timestamp};

    use super::*;
    use crate::{ChunkBuilder, Decompressor, Producer};

    /// The properties that recompression preserves: the header without size, codec and checksum, and the records.
    fn content(bytes: &[u8]) -> (ChunkHeader, Vec<String>) {
        let chunk = Chunk::parse(bytes).unwrap();
        let header = ChunkHeader {
            total_bytes: 0,
            crc: 0,
            attributes: chunk.header().attributes.uncompressed(),
            ..*chunk.header()
        };
        let mut decompressor = Decompressor::default();
        let records = chunk.records(&mut decompressor).unwrap();
        let records = records.map(|record| format!("{:?}", record.unwrap()));
        (header, records.collect())
    }

    #[test]
    fn recompression_from_any_codec_to_any_other_changes_only_the_codec() {
        let producer = Producer {
            id: ProducerId(7),
            epoch: ProducerEpoch(3),
            sequence: Sequence(11),
        };
        for from in Compression::ALL {
            let mut builder = ChunkBuilder::new(from);
            builder.set_transactional(true);
            for n in 0..100 {
                let value = [n as u8; 50];
                let time = Timestamp(1_000 - n);
                builder.push(time, Some(b"key"), Some(&value), &[]).unwrap();
            }
            let original = builder.finish(Some(producer)).unwrap();
            let chunk = Chunk::parse(original).unwrap();
            for to in Compression::ALL {
                for level in [None, Some(-1), Some(1), Some(9), Some(22)] {
                    let mut decompressor = Decompressor::default();
                    let records = chunk.records(&mut decompressor).unwrap();
                    let made = recompressed(&chunk, &records, to, level).unwrap();
                    let header = *Chunk::parse(&made).unwrap().header();
                    assert_eq!(header.attributes.compression(), to);
                    assert_eq!(
                        content(&made),
                        content(original),
                        "{from} to {to} at {level:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn higher_levels_make_smaller_chunks() {
        let mut builder = ChunkBuilder::new(Compression::None);
        for n in 0_u32..5_000 {
            let value = (n.wrapping_mul(2_654_435_761) >> 12).to_string();
            builder
                .push(Timestamp(0), None, Some(value.as_bytes()), &[])
                .unwrap();
        }
        let chunk = Chunk::parse(builder.finish(None).unwrap()).unwrap();
        for (codec, low, high) in [(Compression::Gzip, 1, 9), (Compression::Zstd, -50, 19)] {
            let mut decompressor = Decompressor::default();
            let records = chunk.records(&mut decompressor).unwrap();
            let size = |level| {
                let made = recompressed(&chunk, &records, codec, Some(level));
                made.unwrap().len()
            };
            assert!(size(high) < size(low), "{codec}");
        }
    }
}
