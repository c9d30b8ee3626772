//! The journal of the last run: its files are found, replayed and removed.

use std::path::PathBuf;

use millstream_base::Timestamp;

use crate::error::{LogError, Result};
use crate::files::{DataDir, LOST_AND_FOUND};
use crate::journal::file_reader::FileReader;
use crate::journal::format::{PROBE, is_of_format_1, parse_name};
use crate::journal::run::RecoveredRun;

/// The journal files of a former life, in order.
pub struct OldJournal {
    pub files: Vec<OldFile>,
}

pub struct OldFile {
    pub sequence: u64,
    pub secret: u64,
    pub path: PathBuf,
}

impl OldJournal {
    /// Finds the files.
    pub fn find(dir: &DataDir) -> Result<OldJournal> {
        let folder = dir.journal_dir();
        let mut files = Vec::new();
        for entry in dir
            .disk
            .list(&folder)
            .map_err(|error| LogError::io("list", &folder, error))?
        {
            let path = folder.join(&entry.name);
            if entry.name == LOST_AND_FOUND {
                continue;
            }
            if entry.name == PROBE {
                dir.disk
                    .remove_file(&path)
                    .map_err(|error| LogError::io("remove", &path, error))?;
                continue;
            }
            let (sequence, secret) = match parse_name(dir, &path) {
                Some(name) => name,
                None if is_of_format_1(&path) => return Err(LogError::OlderJournal { path }),
                None => return Err(LogError::ForeignFile { path }),
            };
            files.push(OldFile {
                sequence,
                secret,
                path,
            });
        }
        files.sort_unstable_by_key(|file| file.sequence);
        Ok(OldJournal { files })
    }

    /// Returns whether there are no files: the last run ended cleanly, or this is the first.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A number for the next file. One is left out: so the end that the next file names of the file before
    /// it is not that of the last of these. And it is at least the time in milliseconds, so
    /// that blocks of an older journal, stored as data, are never taken for this one's.
    pub fn next_sequence(&self, now: Timestamp) -> u64 {
        let last = self.files.last().map_or(0, |file| file.sequence);
        (last + 2).max(u64::try_from(now.0).unwrap_or(0))
    }

    /// Calls `each` with every durable run, in the order of their writing. Bytes that were read may never have
    /// reached the medium; they have when this returns.
    pub fn replay(
        &self,
        dir: &DataDir,
        mut each: impl FnMut(RecoveredRun, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut readers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            readers.push(FileReader::open(dir, file)?);
        }
        for n in 0..readers.len() {
            readers[n].replay(end_of(&readers, n), &mut each)?;
        }
        Ok(())
    }

    /// Removes the files, after their runs are in synced group files. Each stays at least as long
    /// as the one before it, since its header names that one's end.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        for OldFile { path, .. } in &self.files {
            dir.disk
                .remove_file(path)
                .map_err(|error| LogError::io("remove", path, error))?;
            dir.sync_dir(&dir.journal_dir())?;
        }
        Ok(())
    }
}

/// Returns the end of a file, which its successor names; the files in between may have been used again.
pub fn end_of(readers: &[FileReader<'_>], n: usize) -> Option<u64> {
    let next = readers.get(n + 1)?;
    let is_next = next.name.sequence == readers[n].name.sequence + 1;
    next.previous_end.filter(|_| is_next)
}
