//! `journal/end`: the note of where the blocks of the journal's last file end.
//!
//! ```text
//! 0 "MSJEND01" 8 | 8 sequence of the file 8 | 16 its secret 8 | 24 number of its blocks 8 | 32 end of the last one 8 |
//! 40 CRC of all before 4 | 44 zero 20
//! ```
//!
//! It is written in place behind the sync of each block, before the block's producers are answered, and never synced. So after a
//! kill of the process it is exact, and after a crash of the machine the blocks reach at least up to there.

use std::io::ErrorKind;
use std::path::PathBuf;

use millstream_base::disk::Access;
use millstream_base::{DiskFile, crc32c};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::journal::format::u64_at;

pub const NAME: &str = "end";

const MAGIC: [u8; 8] = *b"MSJEND01";

/// A sector holds the whole note, so a crash does not tear it.
const BYTES: usize = 64;

const CRC_AT: usize = 40;

/// The end of the blocks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndNote {
    pub sequence: u64,
    pub secret: u64,
    pub blocks: u64,
    pub end: u64,
}

impl EndNote {
    /// Reads the note of the last run. `None` where there is no whole one.
    pub fn read(dir: &DataDir) -> Result<Option<EndNote>> {
        let path = dir.journal_dir().join(NAME);
        let read = || {
            let file = match dir.disk.open(&path, Access::Read) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file?,
            };
            let mut bytes = [0; BYTES];
            let count = file.read_full_at(&mut bytes, 0)?;
            Ok(EndNote::decode(&bytes[..count]))
        };
        read().map_err(|error| LogError::io("read", &path, error))
    }

    fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.secret.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.blocks.to_le_bytes());
        bytes[32..CRC_AT].copy_from_slice(&self.end.to_le_bytes());
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<EndNote> {
        if bytes.len() != BYTES {
            return None;
        }
        let note = EndNote {
            sequence: u64_at(bytes, 8),
            secret: u64_at(bytes, 16),
            blocks: u64_at(bytes, 24),
            end: u64_at(bytes, 32),
        };
        (note.encode()[..] == *bytes).then_some(note)
    }
}

/// The note's file, while the journal is written.
pub struct EndFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    has_failed: bool,
}

impl EndFile {
    /// Opens the file; makes it where it is missing. The note of the last run stays until the first block.
    pub fn open(dir: &DataDir) -> Result<EndFile> {
        let path = dir.journal_dir().join(NAME);
        let file = dir.disk.open(&path, Access::Create);
        Ok(EndFile {
            file: file.map_err(|error| LogError::io("open", &path, error))?,
            path,
            has_failed: false,
        })
    }

    /// Writes the note. Where that fails, the former one stays true, and a torn one does not count.
    pub fn write(&mut self, note: &EndNote) {
        let written = self.file.write_at(&note.encode(), 0);
        match written {
            Ok(()) => self.has_failed = false,
            // Once, not with each block.
            Err(_) if self.has_failed => {}
            Err(error) => {
                let error = LogError::io("write", &self.path, error);
                tracing::warn!(%error, "a start cannot detect whether the journal's last blocks are missing");
                self.has_failed = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_no_others() {
        let note = EndNote {
            sequence: 0x11,
            secret: 0x22,
            blocks: 0x33,
            end: 0x44,
        };
        let bytes = note.encode();
        let mut expected = b"MSJEND01".to_vec();
        for number in [0x11_u64, 0x22, 0x33, 0x44] {
            expected.extend_from_slice(&number.to_le_bytes());
        }
        expected.extend_from_slice(&crc32c(&expected).to_le_bytes());
        expected.resize(BYTES, 0);
        assert_eq!(bytes[..], expected);
        assert_eq!(EndNote::decode(&bytes), Some(note));
        for len in 0..bytes.len() {
            assert_eq!(EndNote::decode(&bytes[..len]), None);
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(EndNote::decode(&flipped), None, "bit {bit}");
        }
    }
}
