//! The content of the files of a state element: blocks of changes, of which each has keys of one bucket only. So a join of
//! files takes one bucket after the other, and skips the blocks of the others.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use millstream_base::DiskFile;
use millstream_base::checksum::{crc32c, crc32c_combine};
use serde::{Deserialize, Serialize};

use super::error::{CheckpointDirError, io_error};

/// The buckets of keys. A join has the changes of one of them in memory.
pub const BUCKETS: u8 = 64;

/// A block is written when its changes have this size.
const BLOCK_BYTES: usize = 16 << 10;

/// The largest block, in bytes: it has a single large change.
const BLOCK_BYTES_MAX: usize = 1 << 30;

/// CRC-32C of the rest of the block (little-endian), length of the changes (little-endian), bucket.
const HEADER_BYTES: usize = 9;

/// A change in a block, as postcard writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record<'a> {
    pub key: &'a [u8],
    /// `None` deletes the key.
    pub value: Option<&'a [u8]>,
    /// The event time, in milliseconds, from which on no run needs the change.
    pub expires: Option<i64>,
}

/// Returns the bucket of a key.
pub fn bucket_of(key: &[u8]) -> u8 {
    (crc32c(key) % u32::from(BUCKETS)) as u8
}

/// A beginning of a file: its first `bytes`, and their CRC-32C.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub bytes: u64,
    pub crc32c: u32,
}

impl Extent {
    fn push(&mut self, bytes: usize, crc32c: u32) {
        self.crc32c = crc32c_combine(self.crc32c, crc32c, bytes);
        self.bytes += bytes as u64;
    }

    /// Adds a block, which begins with the checksum of its rest.
    fn push_block(&mut self, bytes: usize, crc_of_rest: u32) {
        self.push(4, crc32c(&crc_of_rest.to_le_bytes()));
        self.push(bytes - 4, crc_of_rest);
    }
}

/// Writes changes behind the blocks of a file.
pub struct BlockWriter {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    written: Extent,
    /// By bucket: the block that is not written yet, with room for its header; empty without changes.
    blocks: Vec<Vec<u8>>,
}

impl BlockWriter {
    /// A writer of a new file, which is empty.
    pub fn new(path: &Path, file: Box<dyn DiskFile>) -> BlockWriter {
        BlockWriter {
            path: path.to_owned(),
            file,
            written: Extent::default(),
            blocks: vec![Vec::new(); usize::from(BUCKETS)],
        }
    }

    pub fn push(&mut self, record: &Record<'_>) -> Result<(), CheckpointDirError> {
        let bytes = record.key.len() + record.value.map_or(0, <[u8]>::len);
        if bytes > BLOCK_BYTES_MAX / 2 {
            return Err(CheckpointDirError::TooLarge {
                path: self.path.clone(),
                bytes: bytes as u64,
                bytes_max: BLOCK_BYTES_MAX as u64 / 2,
            });
        }
        let bucket = bucket_of(record.key);
        let block = &mut self.blocks[usize::from(bucket)];
        if block.is_empty() {
            block.resize(HEADER_BYTES, 0);
        }
        let encoded = postcard::to_io(record, &mut *block).map(drop);
        encoded.map_err(|error| self.error("encode a change for", io::Error::other(error)))?;
        match self.blocks[usize::from(bucket)].len() >= BLOCK_BYTES {
            true => self.write(bucket, 1),
            false => Ok(()),
        }
    }

    /// Writes all blocks to the file. [`sync`](Self::sync) makes them durable.
    pub fn flush(&mut self) -> Result<(), CheckpointDirError> {
        self.write(0, BUCKETS)
    }

    pub fn sync(&self) -> Result<(), CheckpointDirError> {
        self.file
            .sync()
            .map_err(|error| self.error("make durable", error))
    }

    /// Returns the part of the file that has been written.
    pub fn written(&self) -> Extent {
        self.written
    }

    /// Returns to a state in which the file was durable. The blocks behind it are overwritten.
    pub fn return_to(&mut self, durable: Extent) {
        self.blocks.iter_mut().for_each(|block| *block = Vec::new());
        self.written = durable;
        // They take up space. Nothing reads them if they stay.
        let _ = self.file.set_len(durable.bytes);
    }

    /// Writes the blocks of `count` buckets from `first` on, and frees their memory.
    fn write(&mut self, first: u8, count: u8) -> Result<(), CheckpointDirError> {
        let mut after = self.written;
        let (first, last) = (usize::from(first), usize::from(first) + usize::from(count));
        let blocks = &mut self.blocks[first..last];
        for (bucket, block) in (first..).zip(&mut *blocks) {
            if !block.is_empty() {
                let crc32c = finish(block, bucket as u8);
                after.push_block(block.len(), crc32c);
            }
        }
        if after == self.written {
            return Ok(());
        }
        let mut parts: Vec<IoSlice<'_>> = blocks.iter().map(|block| IoSlice::new(block)).collect();
        let written = self.file.write_all_at(&mut parts, self.written.bytes);
        written.map_err(|error| self.error("write", error))?;
        self.written = after;
        let blocks = &mut self.blocks[first..last];
        blocks.iter_mut().for_each(|block| *block = Vec::new());
        Ok(())
    }

    fn error(&self, action: &'static str, error: io::Error) -> CheckpointDirError {
        io_error(action, &self.path)(error)
    }
}

/// Writes the header of a block; returns the checksum in it.
fn finish(block: &mut [u8], bucket: u8) -> u32 {
    let bytes = (block.len() - HEADER_BYTES) as u32;
    block[4..8].copy_from_slice(&bytes.to_le_bytes());
    block[8] = bucket;
    let crc32c = crc32c(&block[4..]);
    block[..4].copy_from_slice(&crc32c.to_le_bytes());
    crc32c
}

/// Reads the blocks of a file up to the end that a checkpoint names.
pub struct BlockReader {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    named: Extent,
    /// The blocks before were read or skipped; the checksum is right if none was skipped.
    read: Extent,
    /// Bytes of the file from `window_at` on.
    window: Vec<u8>,
    window_at: u64,
    /// Bytes that are read at once, at least.
    read_bytes: usize,
}

/// A block that was read.
pub struct Block<'a> {
    records: &'a [u8],
    path: &'a Path,
}

impl BlockReader {
    /// # Errors
    /// When the file is shorter than the checkpoint says.
    pub fn new(
        path: &Path,
        file: Box<dyn DiskFile>,
        named: Extent,
        read_bytes: usize,
    ) -> Result<BlockReader, CheckpointDirError> {
        let len = file.len().map_err(io_error("read", path))?;
        if len < named.bytes {
            return Err(CheckpointDirError::Short {
                path: path.to_owned(),
                expected: named.bytes,
                found: len,
            });
        }
        Ok(BlockReader {
            path: path.to_owned(),
            file,
            named,
            read: Extent::default(),
            window: Vec::new(),
            window_at: 0,
            read_bytes,
        })
    }

    /// Goes back to the first block.
    pub fn rewind(&mut self) {
        self.read = Extent::default();
    }

    /// Returns the bucket of the next block; `None` at the end.
    pub fn peek(&mut self) -> Result<Option<u8>, CheckpointDirError> {
        if self.read.bytes == self.named.bytes {
            return Ok(None);
        }
        match self.take(HEADER_BYTES)?[8] {
            bucket if bucket < BUCKETS => Ok(Some(bucket)),
            bucket => Err(self.damaged(&format!("its bucket is {bucket}"))),
        }
    }

    /// Passes over the next block.
    pub fn skip(&mut self) -> Result<(), CheckpointDirError> {
        self.read.bytes += self.block_bytes()? as u64;
        Ok(())
    }

    /// Reads the next block; `None` at the end.
    pub fn next(&mut self) -> Result<Option<Block<'_>>, CheckpointDirError> {
        if self.peek()?.is_none() {
            return Ok(None);
        }
        let bytes = self.block_bytes()?;
        let block = self.take(bytes)?;
        let found = crc32c(&block[4..]);
        if block[..4] != found.to_le_bytes() {
            return Err(self.damaged("its checksum is wrong"));
        }
        let start = (self.read.bytes - self.window_at) as usize;
        self.read.push_block(bytes, found);
        Ok(Some(Block {
            records: &self.window[start + HEADER_BYTES..start + bytes],
            path: &self.path,
        }))
    }

    /// Checks that all blocks, of which none was skipped, are those that the checkpoint names.
    pub fn check(&self) -> Result<(), CheckpointDirError> {
        match self.read == self.named {
            true => Ok(()),
            false => Err(CheckpointDirError::Damaged {
                path: self.path.clone(),
                why: format!(
                    "its first {} bytes have the checksum {:08x}, and the checkpoint names {:08x}",
                    self.named.bytes, self.read.crc32c, self.named.crc32c
                ),
            }),
        }
    }

    fn block_bytes(&mut self) -> Result<usize, CheckpointDirError> {
        let header = self.take(HEADER_BYTES)?;
        let bytes: [u8; 4] = header[4..8].try_into().expect("it has four bytes");
        let bytes = HEADER_BYTES + u32::from_le_bytes(bytes) as usize;
        let left = self.named.bytes - self.read.bytes;
        match bytes <= BLOCK_BYTES_MAX && bytes as u64 <= left {
            true => Ok(bytes),
            false => Err(self.damaged(&format!("it has {bytes} bytes, and {left} are left"))),
        }
    }

    /// Returns the next `bytes`, which stay the next ones.
    fn take(&mut self, bytes: usize) -> Result<&[u8], CheckpointDirError> {
        let at = self.read.bytes;
        let left = self.named.bytes - at;
        if bytes as u64 > left {
            return Err(self.damaged(&format!("only {left} bytes are left for its header")));
        }
        let end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + bytes as u64 > end {
            let wanted = (bytes.max(self.read_bytes) as u64).min(left) as usize;
            self.window.resize(wanted, 0);
            self.window_at = at;
            let found = self.file.read_full_at(&mut self.window, at);
            let found = found.map_err(io_error("read", &self.path))?;
            if found < wanted {
                self.window.clear();
                return Err(CheckpointDirError::Short {
                    path: self.path.clone(),
                    expected: self.named.bytes,
                    found: at + found as u64,
                });
            }
        }
        let start = (at - self.window_at) as usize;
        Ok(&self.window[start..start + bytes])
    }

    fn damaged(&self, why: &str) -> CheckpointDirError {
        CheckpointDirError::Damaged {
            path: self.path.clone(),
            why: format!("the block at byte {} is damaged: {why}", self.read.bytes),
        }
    }
}

impl<'a> Block<'a> {
    /// Calls `each` with every change, in their order.
    pub fn each<E: From<CheckpointDirError>>(
        &self,
        mut each: impl FnMut(Record<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = self.records;
        while !rest.is_empty() {
            let taken = postcard::take_from_bytes(rest);
            let (record, behind) = taken.map_err(|error| CheckpointDirError::Damaged {
                path: self.path.to_owned(),
                why: format!("a change in it cannot be read: {error}"),
            })?;
            rest = behind;
            each(record)?;
        }
        Ok(())
    }
}
