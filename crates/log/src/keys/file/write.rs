//! Writes key files.

use std::io;

use millstream_base::{DiskFile, Offset, crc32c};

use super::block::{put_bytes, put_entry, put_varint};
use super::filter;
use super::names::{Footer, encode_header};
use super::{BLOCK_BYTES, FILTER_BLOCKS, Horizons, KeyCounts, Version};
use crate::ids::GroupName;
use crate::keys::kind::KeyKind;

/// Bytes that are collected for one write.
const WRITE_BYTES: usize = 64 << 10;

/// Counts of a group's records that lookups pass over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut {
    pub without_key: u64,
    pub misplaced: u64,
}

/// Writes a key file from entries in the order of their keys.
///
/// It holds the filters and the block list until the end: about 12 bits for each key, and a key for each block.
pub struct KeyFileWriter<'a> {
    file: &'a dyn DiskFile,
    first_offset: Offset,
    /// Bytes that are written to the file …
    written: u64,
    /// … and bytes that follow them.
    buffer: Vec<u8>,
    /// The entries of the open block.
    block: Vec<u8>,
    /// The last key that was added.
    last_key: Vec<u8>,
    blocks: usize,
    /// The hashes of keys whose filter is not built yet.
    hashes: Vec<u64>,
    filters: Vec<u8>,
    block_list: Vec<u8>,
    counts: KeyCounts,
}

impl<'a> KeyFileWriter<'a> {
    /// Begins the key file of a group. `file` is empty.
    pub fn new(file: &'a dyn DiskFile, name: &GroupName, kind: &KeyKind) -> KeyFileWriter<'a> {
        KeyFileWriter {
            file,
            first_offset: name.first_offset,
            written: 0,
            buffer: encode_header(name, kind).to_vec(),
            block: Vec::new(),
            last_key: Vec::new(),
            blocks: 0,
            hashes: Vec::new(),
            filters: Vec::new(),
            block_list: Vec::new(),
            counts: KeyCounts::default(),
        }
    }

    /// Adds an entry. Its key is greater than all before, and its offset is in the group.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add(&mut self, key: &[u8], version: &Version) -> io::Result<()> {
        let rises = self.counts.keys == 0 || *self.last_key < *key;
        assert!(rises, "keys are added in their order");
        if !self.put_in_open_block(key, version) {
            self.end_block()?;
            let position = self.position();
            put_bytes(&mut self.block_list, key);
            put_varint(&mut self.block_list, position);
            put_entry(&mut self.block, &[], key, version, self.first_offset);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.hashes.push(filter::hash(key));
        self.counts.keys += 1;
        self.counts.tombstones += u64::from(version.is_tombstone);
        Ok(())
    }

    /// Ends the file, which is not synced. `end` is the offset behind the group.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(
        mut self,
        end: Offset,
        left_out: LeftOut,
        horizons: Horizons,
    ) -> io::Result<KeyCounts> {
        self.end_block()?;
        self.end_filter();
        self.counts.without_key = left_out.without_key;
        self.counts.misplaced = left_out.misplaced;
        self.counts.horizons = Some(horizons);
        let filters = self.position();
        self.buffer.append(&mut self.filters);
        let blocks = self.position();
        let crc = crc32c(&self.block_list);
        self.buffer.append(&mut self.block_list);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        let footer = Footer {
            counts: self.counts,
            filters,
            blocks,
            end,
        };
        self.buffer.extend_from_slice(&footer.encode());
        self.write()?;
        self.counts.file_bytes = self.written;
        Ok(self.counts)
    }

    /// Adds an entry to the open block; `false` if there is none, or the entry does not fit.
    fn put_in_open_block(&mut self, key: &[u8], version: &Version) -> bool {
        let before = self.block.len();
        if before == 0 {
            return false;
        }
        let (block, first_offset) = (&mut self.block, self.first_offset);
        put_entry(block, &self.last_key, key, version, first_offset);
        if block.len() > BLOCK_BYTES {
            block.truncate(before);
            return false;
        }
        true
    }

    /// The position at which the next block begins.
    fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Ends the open block, if there is one, and the filter of its keys if it is the filter's last block.
    fn end_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let crc = crc32c(&self.block);
        self.buffer.append(&mut self.block);
        self.buffer.extend_from_slice(&crc.to_le_bytes());
        self.blocks += 1;
        if self.blocks.is_multiple_of(FILTER_BLOCKS) {
            self.end_filter();
        }
        match self.buffer.len() < WRITE_BYTES {
            true => Ok(()),
            false => self.write(),
        }
    }

    fn end_filter(&mut self) {
        if self.hashes.is_empty() {
            return;
        }
        let filter = filter::build(&self.hashes);
        self.hashes.clear();
        let start = self.filters.len();
        let length = filter.len() as u32;
        self.filters.extend_from_slice(&length.to_le_bytes());
        self.filters.extend_from_slice(&filter);
        let crc = crc32c(&self.filters[start..]);
        self.filters.extend_from_slice(&crc.to_le_bytes());
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_at(&self.buffer, self.written)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
