//! Reads key files.

use std::io;

use millstream_base::{DiskFile, KeyRange, Offset, crc32c};

use super::block::{BlockReader, Input};
use super::filter;
use super::names::{FOOTER_BYTES, Footer, HEADER_BYTES, encode_header};
use super::{CRC_BYTES, FILTER_BLOCKS, KeyCounts, KeyFileError, Version};
use crate::ids::GroupName;
use crate::keys::kind::KeyKind;

/// The bytes of a key file.
pub trait ReadBytes {
    /// Fills `buffer` from a position, up to the end of the file. Returns the number of bytes read.
    fn read_bytes(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
}

impl ReadBytes for dyn DiskFile + '_ {
    fn read_bytes(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.read_full_at(buffer, position)
    }
}

/// The parts of a key file that stay in memory: its filters, and the first key of each block.
#[derive(Debug)]
pub struct KeyFile {
    first_offset: Offset,
    blocks: Vec<Block>,
    /// The end of the last block.
    blocks_end: u64,
    /// One for each [`FILTER_BLOCKS`] blocks.
    filters: Vec<Box<[u8]>>,
}

#[derive(Debug)]
struct Block {
    first_key: Box<[u8]>,
    position: u64,
}

impl KeyFile {
    /// Reads filters and block list of the key file of a group that ends at `end`.
    ///
    /// # Errors
    /// When it is damaged, or belongs to another group.
    pub fn open(
        file: &dyn DiskFile,
        name: &GroupName,
        kind: &KeyKind,
        end: Offset,
    ) -> Result<KeyFile, KeyFileError> {
        let damaged = KeyFileError::damaged;
        let (footer, footer_at) = read_footer(file, name, kind, end)?;
        let bytes = read_part(file, footer.filters, footer_at)?;
        let list_at = (footer.blocks - footer.filters) as usize;
        let filters = read_filters(&bytes[..list_at]);
        let filters = filters.ok_or(damaged(footer.filters, "the filters"))?;
        let blocks = read_blocks(&bytes[list_at..], footer.filters);
        let blocks = blocks.ok_or(damaged(footer.blocks, "the block list"))?;
        if filters.len() != blocks.len().div_ceil(FILTER_BLOCKS) {
            return Err(damaged(footer.blocks, "filters and block list differ"));
        }
        Ok(KeyFile {
            first_offset: name.first_offset,
            blocks,
            blocks_end: footer.filters,
            filters,
        })
    }

    /// Reads only the block list of the group's keys: then the file serves only cursors, and any key may be in it.
    ///
    /// # Errors
    /// As [`KeyFile::open`].
    pub fn open_for_cursors(
        file: &dyn DiskFile,
        name: &GroupName,
        end: Offset,
    ) -> Result<KeyFile, KeyFileError> {
        let (footer, footer_at) = read_footer(file, name, &KeyKind::Primary, end)?;
        let bytes = read_part(file, footer.blocks, footer_at)?;
        let blocks = read_blocks(&bytes, footer.filters);
        Ok(KeyFile {
            first_offset: name.first_offset,
            blocks: blocks.ok_or(KeyFileError::damaged(footer.blocks, "the block list"))?,
            blocks_end: footer.filters,
            filters: Vec::new(),
        })
    }

    /// Reads the counts of the key file of a group that ends at `end`, and nothing else of it.
    ///
    /// # Errors
    /// When header or footer are damaged, or belong to another group.
    pub fn read_counts(
        file: &dyn DiskFile,
        name: &GroupName,
        kind: &KeyKind,
        end: Offset,
    ) -> Result<KeyCounts, KeyFileError> {
        let (footer, _) = read_footer(file, name, kind, end)?;
        Ok(footer.counts)
    }

    /// The memory that it takes, about.
    pub fn memory_bytes(&self) -> usize {
        let filters: usize = self.filters.iter().map(|filter| filter.len()).sum();
        let block = |block: &Block| size_of::<Block>() + block.first_key.len();
        filters + self.blocks.iter().map(block).sum::<usize>()
    }

    /// Whether a range has no keys that the group can have.
    pub fn is_behind(&self, range: &KeyRange) -> bool {
        let first = self.blocks.first().map(|block| &block.first_key);
        first.is_none_or(|first| {
            range
                .until
                .as_deref()
                .is_some_and(|until| until <= &**first)
        })
    }

    /// Returns the block that has the key with this [`hash`](key_hash), if the group has the key; `None` if it has not.
    pub fn block_with(&self, key: &[u8], hash: u64) -> Option<usize> {
        let block = self.block_of(key)?;
        let filter = self.filters.get(block / FILTER_BLOCKS);
        filter
            .is_none_or(|filter| filter::may_contain(filter, hash))
            .then_some(block)
    }

    /// Returns the newest record of a key in its [block](Self::block_with); `None` if the group has none.
    ///
    /// # Errors
    /// When the block is damaged or cannot be read.
    pub fn get<F: ReadBytes + ?Sized>(
        &self,
        file: &F,
        block: usize,
        key: &[u8],
    ) -> Result<Option<Version>, KeyFileError> {
        let mut reader = self.read_block(file, block)?;
        while !reader.is_at_end() {
            let version = self.next_of(&mut reader, block)?;
            if reader.key() >= key {
                return Ok((reader.key() == key).then_some(version));
            }
        }
        Ok(None)
    }

    /// Returns a cursor at the first key that is not less than `from`.
    ///
    /// # Errors
    /// When a block is damaged or cannot be read.
    pub fn cursor<'a, F: ReadBytes + ?Sized>(
        &'a self,
        file: &'a F,
        from: &[u8],
    ) -> Result<KeyCursor<'a, F>, KeyFileError> {
        let mut cursor = KeyCursor {
            key_file: self,
            file,
            next_block: self.block_of(from).unwrap_or(0),
            reader: BlockReader::default(),
            version: None,
        };
        cursor.advance()?;
        while cursor.version.is_some() && cursor.key() < from {
            cursor.advance()?;
        }
        Ok(cursor)
    }

    /// The places of blocks, filters and block list, each with its checksum at the end.
    #[cfg(test)]
    pub fn parts(&self) -> Vec<std::ops::Range<usize>> {
        let mut ends: Vec<u64> = self.blocks.iter().map(|block| block.position).collect();
        ends.push(self.blocks_end);
        let mut end = self.blocks_end;
        for filter in &self.filters {
            end += (4 + filter.len() + CRC_BYTES) as u64;
            ends.push(end);
        }
        let list = self.blocks.iter().map(|block| {
            let mut entry = Vec::new();
            super::block::put_bytes(&mut entry, &block.first_key);
            super::block::put_varint(&mut entry, block.position);
            entry.len()
        });
        ends.push(end + (list.sum::<usize>() + CRC_BYTES) as u64);
        let parts = ends
            .windows(2)
            .map(|pair| pair[0] as usize..pair[1] as usize);
        parts.collect()
    }

    /// The last block whose first key is not greater than a key.
    fn block_of(&self, key: &[u8]) -> Option<usize> {
        let behind = self
            .blocks
            .partition_point(|block| *block.first_key <= *key);
        behind.checked_sub(1)
    }

    fn read_block<F: ReadBytes + ?Sized>(
        &self,
        file: &F,
        block: usize,
    ) -> Result<BlockReader, KeyFileError> {
        let position = self.blocks[block].position;
        let next = self.blocks.get(block + 1);
        let end = next.map_or(self.blocks_end, |next| next.position);
        let mut bytes = vec![0; (end - position) as usize];
        let count = file.read_bytes(&mut bytes, position)?;
        bytes.truncate(count);
        let entries = checked(&bytes).map(<[u8]>::len);
        let entries = entries.ok_or(KeyFileError::damaged(position, "a block"))?;
        bytes.truncate(entries);
        Ok(BlockReader::new(bytes))
    }

    fn next_of(&self, reader: &mut BlockReader, block: usize) -> Result<Version, KeyFileError> {
        let version = reader.next(self.first_offset);
        version.ok_or_else(|| KeyFileError::damaged(self.blocks[block].position, "an entry"))
    }
}

/// Walks over the entries of a key file in the order of their keys.
pub struct KeyCursor<'a, F: ReadBytes + ?Sized> {
    key_file: &'a KeyFile,
    file: &'a F,
    next_block: usize,
    reader: BlockReader,
    version: Option<Version>,
}

impl<'a, F: ReadBytes + ?Sized> KeyCursor<'a, F> {
    /// The file that it reads.
    pub fn file(&self) -> &'a F {
        self.file
    }

    /// The key at the cursor.
    pub fn key(&self) -> &[u8] {
        self.reader.key()
    }

    /// The key's newest record in the group; `None` behind the last key.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Moves on to the next key.
    ///
    /// # Errors
    /// When the next block is damaged or cannot be read.
    pub fn advance(&mut self) -> Result<(), KeyFileError> {
        self.version = None;
        if self.reader.is_at_end() {
            if self.next_block == self.key_file.blocks.len() {
                return Ok(());
            }
            self.reader = self.key_file.read_block(self.file, self.next_block)?;
            self.next_block += 1;
        }
        let block = self.next_block - 1;
        self.version = Some(self.key_file.next_of(&mut self.reader, block)?);
        Ok(())
    }
}

/// Returns the hash by which a key file finds a key.
pub fn key_hash(key: &[u8]) -> u64 {
    filter::hash(key)
}

/// Reads header and footer. Returns the footer and its position.
fn read_footer(
    file: &dyn DiskFile,
    name: &GroupName,
    kind: &KeyKind,
    end: Offset,
) -> Result<(Footer, u64), KeyFileError> {
    let damaged = KeyFileError::damaged;
    let Some(footer_at) = file.len()?.checked_sub(FOOTER_BYTES as u64) else {
        return Err(damaged(0, "it is shorter than a footer"));
    };
    let mut header = [0; HEADER_BYTES];
    file.read_full_at(&mut header, 0)?;
    if header != encode_header(name, kind) {
        return Err(damaged(0, "its header belongs to another group"));
    }
    let mut footer = [0; FOOTER_BYTES];
    file.read_full_at(&mut footer, footer_at)?;
    let mut footer = Footer::decode(&footer).ok_or(damaged(footer_at, "the footer"))?;
    footer.counts.file_bytes = footer_at + FOOTER_BYTES as u64;
    let parts = [
        HEADER_BYTES as u64,
        footer.filters,
        footer.blocks,
        footer_at,
    ];
    if !parts.is_sorted() {
        return Err(damaged(footer_at, "the footer contradicts the file"));
    }
    if footer.end != end {
        return Err(damaged(
            footer_at,
            "it ends at another offset than the group",
        ));
    }
    Ok((footer, footer_at))
}

/// Reads a part of a file that the footer names: as much as the file really has.
fn read_part(file: &dyn DiskFile, from: u64, to: u64) -> Result<Vec<u8>, KeyFileError> {
    let mut bytes = vec![0; (to - from) as usize];
    match file.read_full_at(&mut bytes, from)? == bytes.len() {
        true => Ok(bytes),
        false => Err(KeyFileError::damaged(from, "it ends early")),
    }
}

/// Takes the checksum off bytes that end with it; `None` if it is another one.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (content, crc) = bytes.split_last_chunk::<CRC_BYTES>()?;
    (crc32c(content).to_le_bytes() == *crc).then_some(content)
}

fn read_filters(mut bytes: &[u8]) -> Option<Vec<Box<[u8]>>> {
    let mut filters = Vec::new();
    while let Some(length) = bytes.first_chunk::<4>() {
        let filter_bytes = u32::from_le_bytes(*length) as usize;
        let section_bytes = filter_bytes.checked_add(4 + CRC_BYTES)?;
        let (section, rest) = bytes.split_at_checked(section_bytes)?;
        let (_, filter) = checked(section)?.split_first_chunk::<4>()?;
        if !filter::is_size(filter.len()) {
            return None;
        }
        filters.push(filter.into());
        bytes = rest;
    }
    bytes.is_empty().then_some(filters)
}

/// Reads the block list. The blocks follow the header and each other, up to `end`.
fn read_blocks(bytes: &[u8], end: u64) -> Option<Vec<Block>> {
    let mut input = Input(checked(bytes)?);
    let mut blocks: Vec<Block> = Vec::new();
    while !input.0.is_empty() {
        let first_key = input.bytes()?.into();
        let position = input.varint()?;
        let is_next = match blocks.last() {
            None => position == HEADER_BYTES as u64,
            Some(last) => last.position < position && last.first_key < first_key,
        };
        if !is_next || position >= end {
            return None;
        }
        blocks.push(Block {
            first_key,
            position,
        });
    }
    (!blocks.is_empty() || end == HEADER_BYTES as u64).then_some(blocks)
}
