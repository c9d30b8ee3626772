//! Objects: bounded, immutable streams.
//!
//! The content of an object is a stream of one lane: records of a fixed size, one a chunk, so that
//! a byte is found from its number. The object exists from the moment its entry in the catalog is
//! durable, which is after its content is.

use std::io;
use std::io::Read;
use std::sync::Arc;

use millstream_base::{Offset, StreamId, Timestamp, crc32c};
use millstream_record::{Chunk, ChunkBuilder, Compression, Decompressor, check};
use serde::{Deserialize, Serialize};

use crate::core::Core;
use crate::error::{LogError, Result};
use crate::handle::readers::PartitionReader;
use crate::lane::LaneState;
use crate::memory::buffer::Slice;
use crate::produce::append::append_to_lane;
use crate::produce::wait::wait_durable;
use crate::read::catch_up::windows::WINDOW_BYTES;
use crate::read::seek::seek_offset;

/// Bytes of the content in each record but the last.
pub const OBJECT_RECORD_BYTES: usize = 128 << 10;

/// The most bytes of an object that may be on their way to the disk.
const IN_FLIGHT_RECORDS: u64 = 16;

/// A description of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Its name.
    pub name: String,
    /// Size of the content.
    pub bytes: u64,
    /// CRC-32C of the content.
    pub crc32c: u32,
    /// When it was put.
    pub created: Timestamp,
    /// The stream that holds the content.
    pub stream: StreamId,
}

/// Writes the content of an object into its lane; returns its size and checksum when all of it is durable.
pub(crate) fn write_content(
    core: &Core,
    lane: &Arc<LaneState>,
    content: &mut dyn Read,
) -> Result<(u64, u32)> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut buffer = vec![0; OBJECT_RECORD_BYTES];
    let mut digest = Crc32cDigest::default();
    let mut bytes = 0;
    let mut end = Offset(0);
    loop {
        let count = read_full(content, &mut buffer)
            .map_err(|error| LogError::io("read", "the object's content", error))?;
        if count == 0 {
            break;
        }
        builder.push(core.clock.now(), None, Some(&buffer[..count]), &[])?;
        let chunk = builder.finish(None)?;
        end = append_to_lane(core, lane, &check(chunk)?, chunk)?.next_offset;
        builder.clear();
        digest.update(&buffer[..count]);
        bytes += count as u64;
        if end.0 > IN_FLIGHT_RECORDS {
            wait_durable(core, lane, Offset(end.0 - IN_FLIGHT_RECORDS))?;
        }
    }
    wait_durable(core, lane, end)?;
    Ok((bytes, digest.0))
}

/// CRC-32C over several pieces.
#[derive(Debug, Default)]
struct Crc32cDigest(u32);

impl Crc32cDigest {
    fn update(&mut self, bytes: &[u8]) {
        self.0 = millstream_base::checksum::crc32c_combine(self.0, crc32c(bytes), bytes.len());
    }
}

fn read_full(content: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match content.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads a range of an object's content.
pub struct ObjectReader {
    reader: PartitionReader,
    info: ObjectInfo,
    /// The next byte to give, and the one behind the last.
    at: u64,
    end: u64,
    chunks: Option<(Slice, usize)>,
    decompressor: Decompressor,
}

impl std::fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectReader")
            .field("info", &self.info)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl ObjectReader {
    pub(crate) fn new(
        core: Arc<Core>,
        lane: Arc<LaneState>,
        info: ObjectInfo,
        start: u64,
        end: u64,
    ) -> Result<ObjectReader> {
        if start > end || end > info.bytes {
            return Err(LogError::BadRange {
                name: info.name,
                start,
                end,
                bytes: info.bytes,
            });
        }
        let record = Offset(start / OBJECT_RECORD_BYTES as u64);
        let cursor = seek_offset(&core.reads, &lane, record)?.cursor;
        Ok(ObjectReader {
            reader: PartitionReader::new(core, lane, cursor),
            info,
            at: start,
            end,
            chunks: None,
            decompressor: Decompressor::default(),
        })
    }

    /// The description of the object.
    pub fn info(&self) -> &ObjectInfo {
        &self.info
    }

    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let left = self.end - self.at;
        if left == 0 || buffer.is_empty() {
            return Ok(0);
        }
        let missing = || LogError::Corrupted {
            path: self.info.name.clone().into(),
            position: self.at,
            what: "the object's content ends here".to_owned(),
        };
        let (slice, start) = match self.chunks.take() {
            Some(chunks) => chunks,
            None => {
                let read = self.reader.read(WINDOW_BYTES)?;
                (read.ok_or_else(missing)?.bytes, 0)
            }
        };
        let header = millstream_record::ChunkHeader::parse(&slice[start..])?;
        let chunk_end = start + header.total_bytes as usize;
        let chunk = Chunk::trusted(&slice[start..chunk_end])?;
        let mut records = chunk.records(&mut self.decompressor)?;
        let value = records
            .next()
            .transpose()?
            .and_then(|record| record.value)
            .ok_or_else(missing)?;
        let first = header
            .base_offset
            .0
            .saturating_mul(OBJECT_RECORD_BYTES as u64);
        let value = usize::try_from(self.at.saturating_sub(first))
            .ok()
            .and_then(|skip| value.get(skip..))
            .filter(|value| !value.is_empty())
            .ok_or_else(missing)?;
        let count = value
            .len()
            .min(buffer.len())
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        buffer[..count].copy_from_slice(&value[..count]);
        self.at += count as u64;
        if count < value.len() {
            self.chunks = Some((slice, start));
        } else if chunk_end < slice.len() {
            self.chunks = Some((slice, chunk_end));
        }
        Ok(count)
    }
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_some(buffer).map_err(io::Error::other)
    }
}
