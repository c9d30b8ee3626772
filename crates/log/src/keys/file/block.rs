//! Blocks of entries: keys in their order, each without the prefix that it shares with the key before.

use millstream_base::{Offset, Position};

use super::Version;

/// The longest varint.
const VARINT_BYTES_MAX: usize = 10;

const TOMBSTONE: u64 = 1;
const MISPLACED: u64 = 2;
const FLAG_BITS: u32 = 2;

/// Appends an entry, which follows an entry with the key `before`; empty for the first one.
pub fn put_entry(
    out: &mut Vec<u8>,
    before: &[u8],
    key: &[u8],
    version: &Version,
    first_offset: Offset,
) {
    let shared = before.iter().zip(key).take_while(|(a, b)| a == b).count();
    put_varint(out, shared as u64);
    put_bytes(out, &key[shared..]);
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let flags = flag(version.is_tombstone, TOMBSTONE) | flag(version.is_misplaced, MISPLACED);
    put_varint(
        out,
        (version.offset.0 - first_offset.0) << FLAG_BITS | flags,
    );
    put_varint(out, version.chunk.0);
    put_varint(out, version.bytes.into());
}

/// Reads the entries of a block.
#[derive(Debug, Default)]
pub struct BlockReader {
    /// The entries, and the position behind the last one that was read.
    bytes: Vec<u8>,
    at: usize,
    key: Vec<u8>,
}

impl BlockReader {
    /// Reads the entries in `bytes`, from the first one on.
    pub fn new(bytes: Vec<u8>) -> BlockReader {
        BlockReader {
            bytes,
            at: 0,
            key: Vec::new(),
        }
    }

    /// The key of the last entry that was read.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether all entries were read.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Reads the next entry; `None` if it is damaged.
    pub fn next(&mut self, first_offset: Offset) -> Option<Version> {
        let is_first = self.at == 0;
        let mut input = Input(&self.bytes[self.at..]);
        let shared = usize::try_from(input.varint()?).ok()?;
        let kept = self.key.get(..shared)?.len();
        let rest = input.bytes()?;
        // Keys rise: behind the shared prefix this one is greater.
        if !is_first && rest <= &self.key[kept..] {
            return None;
        }
        let (numbered, chunk) = (input.varint()?, Position(input.varint()?));
        let bytes = u32::try_from(input.varint()?).ok()?;
        let version = Version {
            offset: Offset(first_offset.0.checked_add(numbered >> FLAG_BITS)?),
            chunk,
            bytes,
            is_tombstone: numbered & TOMBSTONE != 0,
            is_misplaced: numbered & MISPLACED != 0,
        };
        self.key.truncate(kept);
        self.key.extend_from_slice(rest);
        self.at = self.bytes.len() - input.0.len();
        Some(version)
    }
}

/// Appends a length and bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a number: seven bits in a byte, the lowest first.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes numbers and bytes off the front of a slice.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for (index, &byte) in self.0.iter().enumerate().take(VARINT_BYTES_MAX) {
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * index);
            if shifted >> (7 * index) != bits {
                return None;
            }
            number |= shifted;
            if byte < 0x80 {
                self.0 = &self.0[index + 1..];
                return Some(number);
            }
        }
        None
    }

    /// Takes a length and this many bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}
