//! Chunks in memory.

use std::iter::FusedIterator;

use millstream_base::crc32c;

use crate::header::CRC_START;
use crate::{ChunkError, ChunkHeader, Compression, Decompressor, HEADER_BYTES, Records};

/// Checks that `bytes` are exactly one chunk: header, size and CRC-32C. It does not read the records.
///
/// # Errors
/// When they are not; the error names the fault.
pub fn check(bytes: &[u8]) -> Result<ChunkHeader, ChunkError> {
    Chunk::parse(bytes).map(|chunk| chunk.header)
}

/// Checks the chunk at the start of `bytes`; other bytes may follow it.
///
/// # Errors
/// Like [`check`].
pub fn check_prefix(bytes: &[u8]) -> Result<ChunkHeader, ChunkError> {
    Chunk::split(bytes)?.checked().map(|chunk| chunk.header)
}

/// A chunk: its header and its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    header: ChunkHeader,
    /// Exactly `header.total_bytes`.
    bytes: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// Takes `bytes` that are exactly one chunk, after [`check`]ing them.
    ///
    /// # Errors
    /// Like [`check`].
    pub fn parse(bytes: &'a [u8]) -> Result<Chunk<'a>, ChunkError> {
        Chunk::trusted(bytes)?.checked()
    }

    /// Takes `bytes` that are exactly one chunk; the caller has checked its CRC-32C before.
    ///
    /// # Errors
    /// When the header is wrong or states another size.
    pub fn trusted(bytes: &'a [u8]) -> Result<Chunk<'a>, ChunkError> {
        let chunk = Chunk::split(bytes)?;
        if chunk.bytes.len() < bytes.len() {
            return Err(ChunkError::Excess {
                total_bytes: chunk.header.total_bytes,
                have: bytes.len(),
            });
        }
        Ok(chunk)
    }

    /// Takes the chunk at the start of `bytes`, without checking its CRC.
    fn split(bytes: &'a [u8]) -> Result<Chunk<'a>, ChunkError> {
        let header = ChunkHeader::parse(bytes)?;
        let total_bytes = header.total_bytes as usize;
        match bytes.get(..total_bytes) {
            Some(bytes) => Ok(Chunk { header, bytes }),
            None => Err(ChunkError::Truncated {
                part: "chunk",
                needed: total_bytes,
                have: bytes.len(),
            }),
        }
    }

    /// Checks the CRC.
    fn checked(self) -> Result<Chunk<'a>, ChunkError> {
        let stored = self.header.crc;
        let computed = crc32c(&self.bytes[CRC_START..]);
        if stored == computed {
            Ok(self)
        } else {
            Err(ChunkError::Crc { stored, computed })
        }
    }

    /// The header.
    pub fn header(&self) -> &ChunkHeader {
        &self.header
    }

    /// The whole chunk.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The records. Records of an uncompressed chunk lie in the chunk itself; `decompressor` decompresses
    /// others into its buffer, which the next chunk uses again.
    ///
    /// # Errors
    /// When the records cannot be decompressed within the bound of `decompressor`, or when there are fewer
    /// bytes than their number of records needs at least. The iterator returns the fault of a single record.
    pub fn records<'s>(&self, decompressor: &'s mut Decompressor) -> Result<Records<'s>, ChunkError>
    where
        'a: 's,
    {
        let body = &self.bytes[HEADER_BYTES..];
        let records = match self.header.attributes.compression() {
            Compression::None => body,
            // A chunk without records need not be valid input for its codec.
            _ if body.is_empty() => body,
            codec => decompressor.decompress(codec, body)?,
        };
        Records::new(&self.header, records)
    }
}

/// Iterates over adjacent chunks in a slice; ends after the first error.
#[derive(Debug, Clone)]
pub struct Chunks<'a> {
    rest: &'a [u8],
    position: usize,
    is_trusted: bool,
    has_failed: bool,
}

impl<'a> Chunks<'a> {
    /// Iterates over chunks, checking each as [`check`] does.
    pub fn new(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks {
            rest: bytes,
            position: 0,
            is_trusted: false,
            has_failed: false,
        }
    }

    /// Iterates over chunks without checking their CRC-32C, which the caller has checked before.
    pub fn trusted(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks {
            is_trusted: true,
            ..Chunks::new(bytes)
        }
    }

    /// The position behind the chunks that were returned so far. After an error the bad chunk begins there.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, ChunkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() || self.has_failed {
            return None;
        }
        let mut chunk = Chunk::split(self.rest);
        if !self.is_trusted {
            chunk = chunk.and_then(Chunk::checked);
        }
        match &chunk {
            Ok(chunk) => {
                self.rest = &self.rest[chunk.bytes.len()..];
                self.position += chunk.bytes.len();
            }
            Err(_) => self.has_failed = true,
        }
        Some(chunk)
    }
}

impl FusedIterator for Chunks<'_> {}
