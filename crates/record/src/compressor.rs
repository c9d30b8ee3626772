//! Compression of a chunk's records.

use std::fmt;
use std::io::Write;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

use crate::ChunkError;
use crate::compression::{Compression, XERIAL_MAGIC, XERIAL_VERSIONS};

/// The highest level of gzip.
const GZIP_LEVEL_MAX: i32 = 9;

/// Bytes that snappy-java compresses in one block.
const XERIAL_BLOCK_BYTES: usize = 32 << 10;

/// Compresses the records of one chunk after another.
pub(crate) enum Compressor {
    Gzip(flate2::Compression),
    Snappy(Box<snap::raw::Encoder>),
    Lz4,
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Compressor {
    /// Creates the compressor; `None` for [`Compression::None`].
    pub(crate) fn new(compression: Compression) -> Option<Compressor> {
        match compression {
            Compression::None => None,
            Compression::Gzip => Some(Compressor::Gzip(flate2::Compression::default())),
            Compression::Snappy => Some(Compressor::Snappy(Box::new(snap::raw::Encoder::new()))),
            Compression::Lz4 => Some(Compressor::Lz4),
            Compression::Zstd => Some(Compressor::Zstd(zstd::bulk::Compressor::default())),
        }
    }

    /// Creates the compressor at a level of its codec. Snappy and LZ4 have no levels, and ignore it.
    pub(crate) fn with_level(
        compression: Compression,
        level: i32,
    ) -> Result<Option<Compressor>, ChunkError> {
        let mut compressor = Compressor::new(compression);
        match &mut compressor {
            Some(Compressor::Gzip(of_gzip)) => {
                *of_gzip = flate2::Compression::new(level.clamp(1, GZIP_LEVEL_MAX) as u32);
            }
            Some(Compressor::Zstd(of_zstd)) => of_zstd
                .set_compression_level(level)
                .map_err(|error| not_compressed(compression, error))?,
            Some(Compressor::Snappy(_) | Compressor::Lz4) | None => {}
        }
        Ok(compressor)
    }

    fn codec(&self) -> Compression {
        match self {
            Compressor::Gzip(_) => Compression::Gzip,
            Compressor::Snappy(_) => Compression::Snappy,
            Compressor::Lz4 => Compression::Lz4,
            Compressor::Zstd(_) => Compression::Zstd,
        }
    }

    /// Appends `bytes`, compressed, to `to`.
    pub(crate) fn compress(&mut self, bytes: &[u8], to: &mut Vec<u8>) -> Result<(), ChunkError> {
        let codec = self.codec();
        match self {
            Compressor::Gzip(level) => {
                let mut encoder = flate2::write::GzEncoder::new(to, *level);
                encoder
                    .write_all(bytes)
                    .and_then(|()| encoder.finish().map(drop))
                    .map_err(|error| not_compressed(codec, error))
            }
            Compressor::Snappy(encoder) => write_snappy(encoder, bytes, to),
            Compressor::Lz4 => {
                // Kafka's Java client reads only independent blocks.
                let info = FrameInfo::new()
                    .block_mode(BlockMode::Independent)
                    .block_size(BlockSize::Max64KB);
                let mut encoder = FrameEncoder::with_frame_info(info, to);
                encoder
                    .write_all(bytes)
                    .map_err(|error| not_compressed(codec, error))?;
                encoder
                    .try_finish()
                    .map_err(|error| not_compressed(codec, error))
            }
            Compressor::Zstd(compressor) => {
                let start = to.len();
                to.resize(start + zstd::zstd_safe::compress_bound(bytes.len()), 0);
                let count = compressor
                    .compress_to_buffer(bytes, &mut to[start..])
                    .map_err(|error| not_compressed(codec, error))?;
                to.truncate(start + count);
                Ok(())
            }
        }
    }
}

/// Writes snappy-java's framing, which every client reads, in small blocks, so that clients need little memory.
fn write_snappy(
    encoder: &mut snap::raw::Encoder,
    bytes: &[u8],
    to: &mut Vec<u8>,
) -> Result<(), ChunkError> {
    to.extend_from_slice(XERIAL_MAGIC);
    to.extend_from_slice(XERIAL_VERSIONS);
    for block in bytes.chunks(XERIAL_BLOCK_BYTES) {
        let length_at = to.len();
        let start = length_at + size_of::<u32>();
        to.resize(start + snap::raw::max_compress_len(block.len()), 0);
        let count = encoder
            .compress(block, &mut to[start..])
            .map_err(|error| not_compressed(Compression::Snappy, error))?;
        to[length_at..start].copy_from_slice(&(count as u32).to_be_bytes());
        to.truncate(start + count);
    }
    Ok(())
}

fn not_compressed(codec: Compression, reason: impl fmt::Display) -> ChunkError {
    ChunkError::Compress {
        codec,
        reason: reason.to_string(),
    }
}
