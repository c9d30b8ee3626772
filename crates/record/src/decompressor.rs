//! Decompression of a chunk's records, within a bound.

use std::fmt;
use std::io::Read;

use lz4_flex::frame::FrameDecoder;
use zstd::zstd_safe::{DCtx, get_error_name, zstd_sys::ZSTD_ErrorCode};

use crate::ChunkError;
use crate::compression::{Compression, XERIAL_MAGIC, XERIAL_VERSIONS};

/// The default bound of a chunk's decompressed records, in bytes.
pub const MAX_DECOMPRESSED_BYTES: usize = 128 << 20;

/// The first capacity of a buffer, which then doubles.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// The smallest block size of LZ4's format. Even a decompressor with a lower bound accepts blocks of this size.
const LZ4_BLOCK_BYTES_MIN: usize = 64 << 10;

/// The magic of LZ4's oldest frame format, and the size of its blocks.
const LZ4_LEGACY_MAGIC: &[u8; 4] = &[0x02, 0x21, 0x4c, 0x18];
const LZ4_LEGACY_BLOCK_BYTES: usize = 8 << 20;

/// The first buffer for zstd has this many times the compressed size. Few records compress better, so one pass is
/// enough for most chunks.
const ZSTD_RATIO_LIKELY: usize = 4;

/// Snappy's densest element copies 64 bytes and takes 3, so a block grows at most by this factor.
const SNAPPY_RATIO_MAX: usize = 22;

/// Decompresses the records of chunks, one chunk after another, into the same buffer.
///
/// The buffer grows with the codec's real output, not with the sizes that the input claims, up to the bound. It never
/// shrinks. LZ4 also allocates up to three blocks of the size that its frame names: at most 16 MiB in all, and none
/// larger than the bound. Other codecs allocate less than 256 KiB.
pub struct Decompressor {
    /// The records of the last chunk; the bytes behind them have no meaning.
    buffer: Vec<u8>,
    bytes_max: usize,
    /// Bytes of the buffer that the last chunk took.
    last_bytes: usize,
    snappy: snap::raw::Decoder,
    /// Created at the first use.
    zstd: Option<DCtx<'static>>,
}

impl fmt::Debug for Decompressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decompressor")
            .field("buffer_bytes", &self.buffer.len())
            .field("bytes_max", &self.bytes_max)
            .finish_non_exhaustive()
    }
}

impl Default for Decompressor {
    fn default() -> Self {
        Decompressor::with_bytes_max(MAX_DECOMPRESSED_BYTES)
    }
}

impl Decompressor {
    /// Creates a decompressor that refuses chunks with more than `bytes_max` decompressed bytes.
    pub fn with_bytes_max(bytes_max: usize) -> Decompressor {
        Decompressor {
            buffer: Vec::new(),
            bytes_max,
            last_bytes: 0,
            snappy: snap::raw::Decoder::new(),
            zstd: None,
        }
    }

    /// The decompressed size of the last chunk, in bytes; after an error, the size of the buffer.
    pub fn last_bytes(&self) -> usize {
        self.last_bytes
    }

    /// Decompresses all of `bytes`.
    pub(crate) fn decompress(
        &mut self,
        codec: Compression,
        bytes: &[u8],
    ) -> Result<&[u8], ChunkError> {
        self.last_bytes = 0;
        let count = match codec {
            Compression::None => return Err(failed(codec, "there is nothing to decompress")),
            Compression::Gzip => self.read_all(codec, flate2::bufread::MultiGzDecoder::new(bytes)),
            Compression::Snappy => self.read_snappy(bytes),
            Compression::Lz4 => self.read_lz4(bytes),
            Compression::Zstd => self.read_zstd(bytes),
        };
        let count = count.inspect_err(|_| self.last_bytes = self.buffer.len())?;
        self.last_bytes = count;
        Ok(&self.buffer[..count])
    }

    /// Reads to the end, and makes room when the buffer is full. Returns the number of bytes read.
    fn read_all(&mut self, codec: Compression, mut from: impl Read) -> Result<usize, ChunkError> {
        let mut filled = 0;
        loop {
            if filled == self.buffer.len() && !self.grow(filled + 1) {
                // The buffer has reached the bound, so the input must end here.
                return match from.read(&mut [0]) {
                    Ok(0) => Ok(filled),
                    Ok(_) => Err(self.too_large(codec)),
                    Err(error) => Err(failed(codec, error)),
                };
            }
            match from.read(&mut self.buffer[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(count) => filled += count,
                Err(error) => return Err(failed(codec, error)),
            }
        }
    }

    /// Reads LZ4's frames, unless their blocks exceed the bound: the codec allocates three blocks of the size that the
    /// frame names.
    fn read_lz4(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let codec = Compression::Lz4;
        if lz4_block_bytes(bytes) > self.bytes_max.max(LZ4_BLOCK_BYTES_MIN) {
            return Err(self.too_large(codec));
        }
        self.read_all(codec, FrameDecoder::new(bytes))
    }

    /// Decompresses straight into the buffer, which also serves as zstd's window; a streaming decoder would allocate
    /// the window that the frame claims. If the buffer is too small, it doubles the buffer and begins again.
    fn read_zstd(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let codec = Compression::Zstd;
        let mut context = match self.zstd.take() {
            Some(context) => context,
            None => DCtx::try_create().ok_or_else(|| failed(codec, "there is no memory for it"))?,
        };
        let likely = bytes.len().saturating_mul(ZSTD_RATIO_LIKELY);
        self.grow(likely.max(BUFFER_BYTES_MIN).min(self.bytes_max));
        let count = loop {
            let code = match context.decompress(&mut self.buffer[..], bytes) {
                Ok(count) => break Ok(count),
                Err(code) => code,
            };
            let is_full =
                code.wrapping_neg() == ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize;
            if !is_full {
                break Err(failed(codec, get_error_name(code)));
            }
            if !self.grow(self.buffer.len() + 1) {
                break Err(self.too_large(codec));
            }
        };
        self.zstd = Some(context);
        count
    }

    /// Reads snappy-java's framing (Java, kafka-python, Sarama) or a single raw block (librdkafka).
    fn read_snappy(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        let codec = Compression::Snappy;
        let Some(framed) = bytes.strip_prefix(XERIAL_MAGIC) else {
            return self.read_snappy_block(bytes, 0);
        };
        let mut rest = framed
            .get(XERIAL_VERSIONS.len()..)
            .ok_or_else(|| failed(codec, "the header is cut off"))?;
        let mut filled = 0;
        while !rest.is_empty() {
            let (length, behind) = rest
                .split_first_chunk()
                .ok_or_else(|| failed(codec, "a block's length is cut off"))?;
            let (block, behind) = behind
                .split_at_checked(u32::from_be_bytes(*length) as usize)
                .ok_or_else(|| failed(codec, "a block is cut off"))?;
            filled += self.read_snappy_block(block, filled)?;
            rest = behind;
        }
        Ok(filled)
    }

    /// Decompresses a block behind the first `filled` bytes. Returns the size of its output.
    fn read_snappy_block(&mut self, block: &[u8], filled: usize) -> Result<usize, ChunkError> {
        let codec = Compression::Snappy;
        let claimed = snap::raw::decompress_len(block).map_err(|error| failed(codec, error))?;
        if claimed / SNAPPY_RATIO_MAX > block.len() {
            let reason = format!("a block of {} bytes claims to hold {claimed}", block.len());
            return Err(failed(codec, reason));
        }
        if !self.grow(filled + claimed) {
            return Err(self.too_large(codec));
        }
        self.snappy
            .decompress(block, &mut self.buffer[filled..filled + claimed])
            .map_err(|error| failed(codec, error))
    }

    /// Grows the buffer to at least `bytes`; `false` if that exceeds the bound.
    fn grow(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        if bytes > self.buffer.len() {
            let doubled = bytes.max(2 * self.buffer.len()).max(BUFFER_BYTES_MIN);
            let wanted = doubled.min(self.bytes_max);
            self.buffer.reserve_exact(wanted - self.buffer.len());
            self.buffer.resize(wanted, 0);
        }
        true
    }

    fn too_large(&self, codec: Compression) -> ChunkError {
        ChunkError::DecompressedSize {
            codec,
            limit: self.bytes_max,
        }
    }
}

/// Returns the largest block size that an LZ4 frame's header names; 0 without a header.
fn lz4_block_bytes(frame: &[u8]) -> usize {
    if frame.starts_with(LZ4_LEGACY_MAGIC) {
        return LZ4_LEGACY_BLOCK_BYTES;
    }
    // Magic, flags, then the descriptor of blocks, with the size in bits 4 to 6: 4 is 64 KiB, each step four times that.
    match frame.get(5).map(|descriptor| (descriptor >> 4) & 7) {
        Some(size @ 4..) => LZ4_BLOCK_BYTES_MIN << (2 * (size - 4)),
        _ => 0,
    }
}

fn failed(codec: Compression, reason: impl fmt::Display) -> ChunkError {
    ChunkError::Decompress {
        codec,
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compressor::Compressor;

    fn compressed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
        let mut to = Vec::new();
        if let Some(mut compressor) = Compressor::new(compression) {
            compressor.compress(bytes, &mut to).unwrap();
        }
        to
    }

    #[test]
    fn a_decompression_bomb_is_refused_at_the_bound() {
        const BYTES_MAX: usize = 1 << 20;
        let bomb = vec![0; 64 << 20];
        for compression in &Compression::ALL[1..] {
            let bytes = compressed(*compression, &bomb);
            let mut decompressor = Decompressor::with_bytes_max(BYTES_MAX);
            assert_eq!(
                decompressor.decompress(*compression, &bytes),
                Err(ChunkError::DecompressedSize {
                    codec: *compression,
                    limit: BYTES_MAX
                })
            );
            assert!(decompressor.buffer.capacity() <= BYTES_MAX, "{compression}");
        }
    }

    #[test]
    fn content_of_exactly_the_bound_is_decompressed() {
        for compression in &Compression::ALL[1..] {
            for bytes_max in [0, 1, 100_000] {
                let content = vec![7; bytes_max];
                let bytes = compressed(*compression, &content);
                let mut decompressor = Decompressor::with_bytes_max(bytes_max);
                assert_eq!(
                    decompressor.decompress(*compression, &bytes),
                    Ok(&content[..]),
                    "{compression}"
                );
            }
        }
    }

    /// The buffer grows only for sizes that snappy's format can reach.
    #[test]
    fn a_snappy_size_that_its_input_cannot_reach_is_refused_before_allocation() {
        // 100 MiB as a varint, then a literal of one byte.
        let block = [0x80, 0x80, 0x80, 0x32, 0x00, 0x00];
        let mut decompressor = Decompressor::default();
        let result = decompressor.decompress(Compression::Snappy, &block);
        assert!(
            matches!(result, Err(ChunkError::Decompress { .. })),
            "{result:?}"
        );
        assert_eq!(decompressor.buffer.capacity(), 0);
    }

    /// Guards against zstd's allocation of the window that a frame claims: up to 128 MiB beyond the bound.
    #[test]
    fn the_window_that_a_zstd_frame_claims_is_not_allocated() {
        // A frame without a content size that claims a window of 2 GiB and holds one raw block: "x".
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x09, 0x00, 0x00, b'x'];
        let mut decompressor = Decompressor::with_bytes_max(1 << 20);
        // Whether or not zstd refuses the frame, it must not allocate the window.
        let _ = decompressor.decompress(Compression::Zstd, &frame);
        assert!(decompressor.buffer.capacity() <= BUFFER_BYTES_MIN);
        assert!(
            decompressor
                .zstd
                .as_ref()
                .is_some_and(|context| context.sizeof() < 1 << 20)
        );
    }

    #[test]
    fn lz4_blocks_that_are_larger_than_the_bound_are_refused_before_allocation() {
        let mut frame = compressed(Compression::Lz4, b"x");
        assert_eq!(lz4_block_bytes(&frame), 64 << 10);
        // Blocks of 4 MiB.
        frame[5] = (frame[5] & 0x0f) | 0x70;
        assert_eq!(lz4_block_bytes(&frame), 4 << 20);
        let limit = 1 << 20;
        let codec = Compression::Lz4;
        let refused = Decompressor::with_bytes_max(limit)
            .decompress(codec, &frame)
            .map(drop);
        assert_eq!(refused, Err(ChunkError::DecompressedSize { codec, limit }));
    }

    #[test]
    fn a_decompressor_serves_all_codecs_even_after_errors() {
        let mut decompressor = Decompressor::default();
        for size in [300_000, 10, 0, 70_000] {
            let content: Vec<u8> = (0..size).map(|n: u32| (n / 3) as u8).collect();
            for compression in &Compression::ALL[1..] {
                let bytes = compressed(*compression, &content);
                assert_eq!(
                    decompressor.decompress(*compression, &bytes),
                    Ok(&content[..]),
                    "{compression} {size}"
                );
                // Truncated input stops the decoder in the middle.
                let _ = decompressor.decompress(*compression, &bytes[..bytes.len() / 2]);
            }
        }
    }

    #[test]
    fn snappy_is_read_with_and_without_framing() {
        let content: Vec<u8> = (0..100_000_u32).map(|n| (n / 5) as u8).collect();
        let raw = snap::raw::Encoder::new().compress_vec(&content).unwrap();
        let framed = compressed(Compression::Snappy, &content);
        assert!(framed.starts_with(XERIAL_MAGIC));
        for bytes in [raw, framed] {
            let mut decompressor = Decompressor::default();
            assert_eq!(
                decompressor.decompress(Compression::Snappy, &bytes),
                Ok(&content[..])
            );
        }
    }
}
