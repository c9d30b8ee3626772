//! Chunks as they lie in memory.

use std::iter::FusedIterator;

use millstream_base::crc32c;

use crate::header::CRC_START;
use crate::{ChunkError, ChunkHeader, Compression, Decompressor, HEADER_BYTES, Records};

/// Checks that `bytes` are exactly one chunk: header, size and CRC-32C. The records are not walked.
///
/// # Errors
/// When they are not; the error says what is wrong.
pub fn check(bytes: &[u8]) -> Result<ChunkHeader, ChunkError> {
    Chunk::parse(bytes).map(|chunk| chunk.header)
}

/// Checks the chunk at the start of `bytes`, which may go on behind it.
///
/// # Errors
/// As [`check`].
pub fn check_prefix(bytes: &[u8]) -> Result<ChunkHeader, ChunkError> {
    Chunk::split(bytes)?.checked().map(|chunk| chunk.header)
}

/// One chunk: its header and its bytes.
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
    /// As [`check`].
    pub fn parse(bytes: &'a [u8]) -> Result<Chunk<'a>, ChunkError> {
        Chunk::trusted(bytes)?.checked()
    }

    /// Takes `bytes` that are exactly one chunk and whose CRC-32C was checked before.
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

    /// The records. Those of an uncompressed chunk lie in the chunk itself; others are decompressed
    /// by `decompressor`, which callers use again and again.
    ///
    /// # Errors
    /// When the records cannot be decompressed within the bound of `decompressor`, or are fewer bytes
    /// than so many records take. What is wrong with a single record is told by the iterator.
    pub fn records<'s>(&self, decompressor: &'s mut Decompressor) -> Result<Records<'s>, ChunkError>
    where
        'a: 's,
    {
        let body = &self.bytes[HEADER_BYTES..];
        let records = match self.header.attributes.compression() {
            Compression::None => body,
            // Whatever the codec makes of nothing: these are no records.
            _ if body.is_empty() => body,
            codec => decompressor.decompress(codec, body)?,
        };
        Records::new(&self.header, records)
    }
}

/// The chunks that lie one after another in a slice; ends after the first error.
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

    /// Iterates over chunks whose CRC-32C was checked before.
    pub fn trusted(bytes: &'a [u8]) -> Chunks<'a> {
        Chunks {
            is_trusted: true,
            ..Chunks::new(bytes)
        }
    }

    /// Where the chunks end that were returned so far: after an error, where the bad one begins.
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
