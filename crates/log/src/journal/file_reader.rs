//! Reading one file of the journal: block by block, up to its end or to a torn block.

use std::ops::Range;

use millstream_base::disk::Access;
use millstream_base::{
    DiskFile, GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex, crc32c,
};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::LaneId;
use crate::journal::format::{
    BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockId, FILE_HEADER_BYTES, FILE_HEADER_USED, RUN_BYTES,
    RUNS_MAX, encode_file_header, u32_at, u64_at,
};
use crate::journal::old::OldFile;
use crate::journal::run::RecoveredRun;

pub struct FileReader<'a> {
    pub name: &'a OldFile,
    pub file: Box<dyn DiskFile>,
    pub len: u64,
    /// The end of the file before, as the header names it. `None` where that is not valid: the file was not
    /// begun under its number, or is damaged.
    pub previous_end: Option<u64>,
}

/// Header and directory of a block.
pub struct BlockHead {
    pub number: u64,
    pub directory: Vec<u8>,
    pub block_bytes: u64,
}

/// One block, checked.
pub struct Block {
    pub runs: Vec<(RecoveredRun, usize)>,
    pub data: Vec<u8>,
}

impl<'a> FileReader<'a> {
    pub fn open(dir: &DataDir, name: &'a OldFile) -> Result<Self> {
        let path = &name.path;
        let error = |error| LogError::io("read", path, error);
        let file = dir.disk.open(path, Access::Write);
        let file = file.map_err(|error| LogError::io("open", path, error))?;
        let len = file.len().map_err(error)?;
        let mut header = [0; FILE_HEADER_USED];
        let count = file.read_full_at(&mut header, 0).map_err(error)?;
        let previous_end = u64_at(&header, 16);
        let encoded = encode_file_header(name.sequence, previous_end);
        let valid = count == header.len() && header[..] == encoded;
        Ok(FileReader {
            name,
            file,
            len,
            previous_end: valid.then_some(previous_end),
        })
    }

    /// Replays the blocks up to `end`, if it is known, or up to the torn end. Returns where they end.
    pub fn replay(
        &self,
        end: Option<u64>,
        each: &mut impl FnMut(RecoveredRun, &[u8]) -> Result<()>,
    ) -> Result<u64> {
        let least = end.or(self.name.note.map(|note| note.end));
        if self.previous_end.is_none() {
            // The header is synced before the first block is written.
            match least {
                Some(least) if least > FILE_HEADER_BYTES => {
                    return Err(self.missing(0, "file header", least));
                }
                _ => self.check_nothing_follows(0, "file header", 0)?,
            }
            return Ok(FILE_HEADER_BYTES);
        }
        let mut at = FILE_HEADER_BYTES;
        let mut last_written = 0..FILE_HEADER_USED as u64;
        let mut next_block = 0;
        while end.is_none_or(|end| at < end) {
            let Some((block, bytes)) = self.block(at, next_block)? else {
                if let Some(least) = least.filter(|least| at < *least) {
                    return Err(self.missing(at, "block", least));
                }
                self.check_nothing_follows(at, "block", next_block)?;
                self.write_again(last_written)?;
                break;
            };
            let mut data = &block.data[..];
            for (run, len) in block.runs {
                let (run_data, rest) = data.split_at(len);
                each(run, run_data)?;
                data = rest;
            }
            last_written = at..at + bytes;
            at += bytes;
            next_block += 1;
        }
        Ok(at)
    }

    /// Writes and syncs the last write again, a block or the header: its sync may have failed,
    /// or never come. Everything before it was synced before it was written.
    fn write_again(&self, last: Range<u64>) -> Result<()> {
        let mut bytes = vec![0; (last.end - last.start) as usize];
        self.file
            .read_full_at(&mut bytes, last.start)
            .and_then(|_| self.file.write_at(&bytes, last.start))
            .and_then(|()| self.file.sync())
            .map_err(|error| LogError::io("write again", &self.name.path, error))
    }

    /// The block at `at`, if it is whole and in its turn.
    pub fn block(&self, at: u64, number: u64) -> Result<Option<(Block, u64)>> {
        let head = self.block_head(at)?;
        let head = head.filter(|head| head.number == number);
        let Some(BlockHead {
            directory,
            block_bytes,
            ..
        }) = head
        else {
            return Ok(None);
        };
        let head_bytes = (BLOCK_HEADER_BYTES + directory.len()) as u64;
        let mut data = vec![0; (block_bytes - head_bytes) as usize];
        let count = self
            .file
            .read_full_at(&mut data, at + head_bytes)
            .map_err(|error| LogError::io("read", &self.name.path, error))?;
        if count < data.len() {
            return Ok(None);
        }
        let mut runs = Vec::with_capacity(directory.len() / RUN_BYTES);
        let mut rest = &data[..];
        for entry in directory.chunks_exact(RUN_BYTES) {
            let run = RecoveredRun {
                lane: LaneId {
                    stream: StreamId(u64_at(entry, 0)),
                    streamlet: StreamletIndex(u32_at(entry, 32)),
                    lane: LaneIndex(u32_at(entry, 36)),
                },
                group: GroupId(u64_at(entry, 8)),
                position: Position(u64_at(entry, 16)),
                group_first_offset: Offset(u64_at(entry, 24)),
            };
            let len = u32_at(entry, 40) as usize;
            let Some((run_data, others)) = rest.split_at_checked(len) else {
                return Ok(None);
            };
            if crc32c(run_data) != u32_at(entry, 44) {
                return Ok(None);
            }
            rest = others;
            runs.push((run, len));
        }
        // A block without runs stands where a repair took damaged ones out.
        if !rest.is_empty() && !runs.is_empty() {
            return Ok(None);
        }
        Ok(Some((Block { runs, data }, block_bytes)))
    }

    /// Header and directory at `at`, if the checksum holds and they are of this file.
    fn block_head(&self, at: u64) -> Result<Option<BlockHead>> {
        let error = |error| LogError::io("read", &self.name.path, error);
        let mut head = vec![0; BLOCK_HEADER_BYTES];
        let count = self.file.read_full_at(&mut head, at).map_err(error)?;
        if count < head.len() || head[..4] != BLOCK_MAGIC {
            return Ok(None);
        }
        let id = BlockId {
            file: u64_at(&head, 8),
            secret: u64_at(&head, 16),
            number: u64_at(&head, 24),
        };
        let block_bytes = u64::from(u32_at(&head, 32));
        let run_count = u32_at(&head, 36) as usize;
        let head_bytes = BLOCK_HEADER_BYTES + run_count.min(RUNS_MAX + 1) * RUN_BYTES;
        if run_count > RUNS_MAX
            || (head_bytes as u64) > block_bytes
            || at + block_bytes > self.len
            || (id.file, id.secret) != (self.name.sequence, self.name.secret)
        {
            return Ok(None);
        }
        head.resize(head_bytes, 0);
        let count = self.file.read_full_at(&mut head, at).map_err(error)?;
        if count < head.len() || crc32c(&head[8..]) != u32_at(&head, 4) {
            return Ok(None);
        }
        Ok(Some(BlockHead {
            number: id.number,
            directory: head.split_off(BLOCK_HEADER_BYTES),
            block_bytes,
        }))
    }

    pub fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        let written = self.file.write_at(bytes, at);
        written.map_err(|error| LogError::io("write", &self.name.path, error))
    }

    /// Nothing valid may follow the place where the journal seems to end.
    fn check_nothing_follows(&self, at: u64, what: &str, next_block: u64) -> Result<()> {
        self.find_head(at + 1, |_, head| match head.number >= next_block {
            true => Err(self.corrupted(at, what)),
            false => Ok(false),
        })
    }

    /// Calls `is_wanted` with the heads of blocks that begin from `start` on, and their positions, until it returns
    /// `true`.
    pub fn find_head(
        &self,
        mut start: u64,
        mut is_wanted: impl FnMut(u64, BlockHead) -> Result<bool>,
    ) -> Result<()> {
        const WINDOW_BYTES: usize = 1 << 20;
        let mut window = vec![0; WINDOW_BYTES];
        while start < self.len {
            let count = self
                .file
                .read_full_at(&mut window, start)
                .map_err(|error| LogError::io("read", &self.name.path, error))?;
            let magics = window[..count]
                .windows(BLOCK_MAGIC.len())
                .enumerate()
                .filter(|(_, bytes)| *bytes == BLOCK_MAGIC);
            for (n, _) in magics {
                let at = start + n as u64;
                if let Some(head) = self.block_head(at)?
                    && is_wanted(at, head)?
                {
                    return Ok(());
                }
            }
            if count < window.len() {
                break;
            }
            // A magic may lie across two windows.
            start += (count - BLOCK_MAGIC.len() + 1) as u64;
        }
        Ok(())
    }

    /// The error of a part that is damaged, with valid ones behind it.
    pub fn corrupted(&self, at: u64, what: &str) -> LogError {
        self.damaged(at, what, "valid ones follow it")
    }

    /// The error of a part that is damaged, though blocks were synced up to `end`.
    fn missing(&self, at: u64, what: &str, end: u64) -> LogError {
        self.damaged(at, what, &format!("blocks were synced up to byte {end}"))
    }

    fn damaged(&self, at: u64, what: &str, why: &str) -> LogError {
        let what = format!(
            "this {what} of the journal is damaged or missing, and {why}; `millstream repair --cut __journal` takes out only \
             damaged blocks"
        );
        LogError::corrupted(&self.name.path, Position(at), what)
    }
}
