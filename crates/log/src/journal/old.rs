//! The journal of the last run: its files are found, replayed and removed.

use std::path::PathBuf;

use hashbrown::HashSet;
use millstream_base::{Position, Timestamp};

use crate::error::{LogError, Result};
use crate::files::manifest::Record;
use crate::files::{DataDir, LOST_AND_FOUND};
use crate::journal::end::{self, EndNote};
use crate::journal::file_reader::FileReader;
use crate::journal::format::{FILE_HEADER_BYTES, PROBE, file_path, is_of_format_1, parse_name};
use crate::journal::listed::{append, release};
use crate::journal::run::RecoveredRun;

/// The journal files of a former life, in order.
#[derive(Default)]
pub struct OldJournal {
    pub files: Vec<OldFile>,
}

pub struct OldFile {
    pub sequence: u64,
    pub secret: u64,
    pub path: PathBuf,
    /// The end of its blocks, where the manifest has it.
    listed_end: Option<u64>,
    /// The note of the journal's end, where it names this file.
    pub note: Option<EndNote>,
}

impl OldJournal {
    /// Finds the files.
    ///
    /// # Errors
    /// When one that is listed is missing.
    pub fn find(dir: &DataDir) -> Result<OldJournal> {
        let (journal, missing) = OldJournal::find_rest(dir)?;
        match missing.into_iter().next() {
            None => Ok(journal),
            Some((_, path)) => Err(LogError::corrupted(
                path,
                Position(0),
                "this file of the journal is in the list of files and missing, and chunks that it held after a crash are \
                 in no other file; if it is lost, `millstream repair --cut __journal` takes it out of the list",
            )),
        }
    }

    /// Finds the files that are there, and the sequences and paths of listed ones that are missing.
    pub fn find_rest(dir: &DataDir) -> Result<(OldJournal, Vec<(u64, PathBuf)>)> {
        let mut files = OldFile::find_all(dir)?;
        let note = EndNote::read(dir)?;
        let is_there: HashSet<u64> = files.iter().map(|file| file.sequence).collect();
        let mut missing = Vec::new();
        dir.manifest().look_at(|listed| {
            for file in &mut files {
                let listed = listed.journal_file(file.sequence);
                file.listed_end = listed.and_then(|listed| listed.end).map(|end| end.0);
                // One that is not listed is obsolete, or the journal of a former program.
                let is_named = |note: &EndNote| {
                    (note.sequence, note.secret) == (file.sequence, file.secret) && listed.is_some()
                };
                file.note = note.filter(is_named);
            }
            for (sequence, file) in listed.journal() {
                if !is_there.contains(&sequence) {
                    missing.push((sequence, file_path(dir, sequence, file.secret)));
                }
            }
        });
        Ok((OldJournal { files }, missing))
    }

    /// Takes listed files that are missing out of the list. Returns whether there were some.
    pub fn forget_missing(dir: &DataDir) -> Result<bool> {
        let (_, missing) = OldJournal::find_rest(dir)?;
        if missing.is_empty() {
            return Ok(false);
        }
        dir.manifest().change(|listed| {
            for (sequence, _) in missing {
                listed.forget_journal_file(sequence);
            }
        })?;
        Ok(true)
    }

    /// Returns whether there are no files: the last run ended cleanly, or this is the first.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Returns a number for the next file. It skips one number, so that the next file does not name the last of these files as
    /// its predecessor. It is at least the time in milliseconds, so that blocks of an older journal, stored as data,
    /// are never taken for blocks of this one.
    pub fn next_sequence(&self, now: Timestamp) -> u64 {
        let last = self.files.last().map_or(0, |file| file.sequence);
        (last + 2).max(u64::try_from(now.0).unwrap_or(0))
    }

    /// Calls `each` with every durable run, in the order of their writing. Bytes that were read may never have
    /// reached the medium; they have when this returns, and the manifest lists the files with their ends.
    pub fn replay(
        &self,
        dir: &DataDir,
        mut each: impl FnMut(RecoveredRun, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut readers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            readers.push(FileReader::open(dir, file)?);
        }
        let mut ends = Vec::with_capacity(readers.len());
        for n in 0..readers.len() {
            ends.push(readers[n].replay(end_of(&readers, n), &mut each)?);
        }
        self.list(dir, &ends)
    }

    /// Lists files that hold blocks, with the ends of these: a later note names another file.
    fn list(&self, dir: &DataDir, ends: &[u64]) -> Result<()> {
        let files = self.files.iter().zip(ends);
        let is_new = |(file, end): &(&OldFile, &u64)| {
            **end > FILE_HEADER_BYTES && file.listed_end != Some(**end)
        };
        let records = files.filter(is_new).map(|(file, end)| Record::JournalFile {
            sequence: file.sequence,
            secret: file.secret,
            end: Position(*end),
        });
        match append(dir, &records.collect::<Vec<_>>()) {
            // The next start reads files that are not listed, too.
            Err(error) if error.is_disk_full() => Ok(()),
            listed => listed,
        }
    }

    /// Removes the files, after their runs are in synced group files. Each stays at least as long
    /// as the one before it, since its header names that one's end.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        release(dir, self.files.iter().map(|file| file.sequence))?;
        for OldFile { path, .. } in &self.files {
            dir.disk
                .remove_file(path)
                .map_err(|error| LogError::io("remove", path, error))?;
            dir.sync_dir(&dir.journal_dir())?;
        }
        Ok(())
    }
}

impl OldFile {
    /// Finds the files that are there, in order.
    pub fn find_all(dir: &DataDir) -> Result<Vec<OldFile>> {
        let folder = dir.journal_dir();
        let mut files = Vec::new();
        for entry in dir
            .disk
            .list(&folder)
            .map_err(|error| LogError::io("list", &folder, error))?
        {
            let path = folder.join(&entry.name);
            if entry.name == LOST_AND_FOUND || entry.name == end::NAME {
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
                listed_end: None,
                note: None,
            });
        }
        files.sort_unstable_by_key(|file| file.sequence);
        Ok(files)
    }
}

/// Returns the end of a file, which the manifest has, or the file's successor; the files in between may have been used
/// again.
pub fn end_of(readers: &[FileReader<'_>], n: usize) -> Option<u64> {
    let file = readers[n].name;
    let by_next = || {
        let next = readers.get(n + 1)?;
        let is_next = next.name.sequence == file.sequence + 1;
        next.previous_end.filter(|_| is_next)
    };
    file.listed_end.or_else(by_next)
}
