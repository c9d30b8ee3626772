//! Damaged blocks of the journal: found, and replaced by empty ones, so that those behind them are read.

use std::ops::Range;
use std::path::Path;

use millstream_base::{DiskFile, Position};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::journal::file_reader::FileReader;
use crate::journal::format::{
    BLOCK_HEADER_BYTES, BlockId, FILE_HEADER_BYTES, FILE_HEADER_USED, encode_file_header,
    encode_head,
};
use crate::journal::old::{OldJournal, end_of};

/// A part of a file that holds no whole blocks, though some should be there.
pub struct Damage {
    pub bytes: Range<u64>,
    /// The numbers of the blocks that are missing.
    pub blocks: Range<u64>,
}

impl OldJournal {
    /// Takes damaged blocks out of the files, so that those behind them are read: lanes whose runs are missing then
    /// have a gap. `keep` is given each range of bytes before it is changed.
    pub fn take_damage_out(
        &self,
        dir: &DataDir,
        mut keep: impl FnMut(&dyn DiskFile, &Path, Range<Position>) -> Result<()>,
    ) -> Result<()> {
        let mut readers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            readers.push(FileReader::open(dir, file)?);
        }
        let mut previous_end = 0;
        for n in 0..readers.len() {
            let end = end_of(&readers, n);
            let reader = &readers[n];
            let (damage, found_end) = reader.find_lane_damage(end)?;
            let has_blocks = found_end > FILE_HEADER_BYTES;
            if reader.previous_end.is_none() && has_blocks {
                let header = Position(0)..Position(FILE_HEADER_USED as u64);
                keep(&*reader.file, &reader.name.path, header)?;
                reader.write(&encode_file_header(reader.name.sequence, previous_end), 0)?;
            }
            for Damage { bytes, blocks } in damage {
                let range = Position(bytes.start)..Position(bytes.end);
                keep(&*reader.file, &reader.name.path, range)?;
                if reader.file_len()? < bytes.end {
                    let longer = reader.file.set_len(bytes.end);
                    longer.map_err(|error| LogError::io("write", &reader.name.path, error))?;
                }
                reader.write_empty_blocks(bytes, blocks)?;
            }
            reader
                .file
                .sync()
                .map_err(|error| LogError::io("sync", &reader.name.path, error))?;
            previous_end = found_end;
        }
        Ok(())
    }
}

impl FileReader<'_> {
    /// Finds the parts that are damaged, and where the file ends.
    fn find_lane_damage(&self, end: Option<u64>) -> Result<(Vec<Damage>, u64)> {
        let mut damage = Vec::new();
        let (mut at, mut next_block) = (FILE_HEADER_BYTES, 0);
        let note = self.name.note.filter(|_| end.is_none());
        while end.is_none_or(|end| at < end) {
            if let Some((_, bytes)) = self.block(at, next_block)? {
                at += bytes;
                next_block += 1;
                continue;
            }
            let mut following = None;
            self.find_head(at + 1, |start, head| {
                let is_whole =
                    head.number > next_block && self.block(start, head.number)?.is_some();
                following = is_whole.then_some((start, head.number));
                Ok(is_whole)
            })?;
            let (start, number) = match (following, end) {
                (Some(following), _) => following,
                (None, Some(end)) => (end, next_block + 1),
                (None, None) => match note.filter(|note| at < note.end) {
                    Some(note) => (note.end, note.blocks.max(next_block + 1)),
                    None => break,
                },
            };
            damage.push(Damage {
                bytes: at..start,
                blocks: next_block..number,
            });
            (at, next_block) = (start, number);
        }
        Ok((damage, at))
    }

    fn file_len(&self) -> Result<u64> {
        let len = self.file.len();
        len.map_err(|error| LogError::io("read", &self.name.path, error))
    }

    /// Writes blocks without runs, which have these numbers and take these bytes.
    fn write_empty_blocks(&self, bytes: Range<u64>, blocks: Range<u64>) -> Result<()> {
        let mut at = bytes.start;
        for number in blocks.clone() {
            let is_last = number + 1 == blocks.end;
            let block_bytes = match is_last {
                true => bytes.end.saturating_sub(at),
                false => BLOCK_HEADER_BYTES as u64,
            };
            let is_block = (BLOCK_HEADER_BYTES as u64..=u64::from(u32::MAX)).contains(&block_bytes);
            if !is_block {
                return Err(self.corrupted(at, "block"));
            }
            let id = BlockId {
                file: self.name.sequence,
                secret: self.name.secret,
                number,
            };
            self.write(&encode_head(&id, &[], block_bytes), at)?;
            at += block_bytes;
        }
        Ok(())
    }
}
