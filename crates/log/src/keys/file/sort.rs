//! Sorts the keys of a group into its key file, with bounded memory: keys that memory has no room for go to sorted *runs*,
//! which are merged at the end.

use std::path::{Path, PathBuf};

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Offset, Position};
use millstream_record::{ChunkHeader, Record};

use super::buffer::KeyBuffer;
use super::merge::KeyMerge;
use super::read::KeyFile;
use super::write::{KeyFileWriter, LeftOut};
use super::{Horizons, KeyCounts, KeyFileError, Version};
use crate::ids::GroupName;
use crate::keys::expiry::Ends;
use crate::keys::kind::KeyKind;
use crate::keys::secondary::name::SecondaryName;
use crate::keys::secondary::{entry, indexed_keys, is_left_out};
use crate::keys::table::record_bytes;

/// The most runs that are merged at once. Each takes the memory of its filters and of a block.
const RUNS_MAX: usize = 16;

/// Sorts the keys of a group.
pub struct KeySorter<'a> {
    disk: &'a dyn Disk,
    name: GroupName,
    kind: KeyKind,
    /// The end of the group, and of all runs.
    end: Offset,
    /// The file to write. Runs have this path with a number before the last ending.
    path: PathBuf,
    /// The most memory for keys. At most 4 GiB.
    bytes_max: usize,
    keys: KeyBuffer,
    left_out: LeftOut,
    horizons: Horizons,
    ends: Ends,
    /// The last entry of a secondary key.
    entry: Vec<u8>,
    /// Runs that are on disk. Each has newer records than the runs before it.
    runs: Vec<PathBuf>,
    runs_made: usize,
}

impl<'a> KeySorter<'a> {
    /// Begins the key file of a group that ends at `end`, with keys of this kind. `path` is the file to write; one that is there is overwritten.
    pub fn new(
        disk: &'a dyn Disk,
        path: PathBuf,
        name: GroupName,
        kind: KeyKind,
        end: Offset,
        bytes_max: usize,
    ) -> KeySorter<'a> {
        KeySorter {
            disk,
            name,
            kind,
            end,
            path,
            bytes_max,
            keys: KeyBuffer::default(),
            left_out: LeftOut::default(),
            horizons: Horizons::default(),
            ends: Ends::default(),
            entry: Vec::new(),
            runs: Vec::new(),
            runs_made: 0,
        }
    }

    /// Adds the next record with a key.
    ///
    /// # Errors
    /// When a run cannot be written.
    pub fn add(&mut self, key: &[u8], version: Version) -> Result<(), KeyFileError> {
        self.left_out.misplaced += u64::from(version.is_misplaced);
        if !self.keys.has_room(key, self.bytes_max) {
            self.end_run()?;
        }
        self.keys.add(key, version);
        Ok(())
    }

    /// Adds the next record, whose chunk is at this position. `is_owned` says whether the partition owns a key.
    ///
    /// # Errors
    /// When a run cannot be written.
    pub fn add_record(
        &mut self,
        record: &Record<'_>,
        chunk: Position,
        is_owned: impl Fn(&[u8]) -> bool,
    ) -> Result<(), KeyFileError> {
        if let KeyKind::Secondary(name) = &self.kind {
            let name = name.clone();
            return self.add_secondary(record, &name, chunk, is_owned);
        }
        let Some(key) = record.key else {
            self.add_without_key();
            return Ok(());
        };
        let bytes = record_bytes(record);
        self.ends.add(record, bytes);
        let version = Version {
            offset: record.offset,
            chunk,
            bytes,
            is_tombstone: record.value.is_none(),
            is_misplaced: !is_owned(key),
        };
        self.add(key, version)
    }

    /// Counts a record without a key.
    pub fn add_without_key(&mut self) {
        self.left_out.without_key += 1;
    }

    /// Adds the secondary keys of the next record.
    fn add_secondary(
        &mut self,
        record: &Record<'_>,
        name: &SecondaryName,
        chunk: Position,
        is_owned: impl Fn(&[u8]) -> bool,
    ) -> Result<(), KeyFileError> {
        let Some(key) = record.key.filter(|_| record.value.is_some()) else {
            return Ok(());
        };
        self.left_out.without_key += u64::from(is_left_out(record, name));
        let version = Version {
            offset: record.offset,
            chunk,
            bytes: record_bytes(record),
            is_tombstone: false,
            is_misplaced: !is_owned(key),
        };
        let mut bytes = std::mem::take(&mut self.entry);
        for secondary in indexed_keys(record, name) {
            entry::encode(secondary, key, &mut bytes);
            self.add(&bytes, version)?;
        }
        self.entry = bytes;
        Ok(())
    }

    /// Takes note of a chunk of the group.
    pub fn note_chunk(&mut self, header: &ChunkHeader) {
        self.horizons.note(header);
    }

    /// Writes the key file, and makes its content durable.
    ///
    /// # Errors
    /// When a file cannot be written, or a run is not read back as it was written.
    pub fn finish(mut self) -> Result<KeyCounts, KeyFileError> {
        self.horizons.values = self.ends.due_at();
        self.horizons.has_endless = self.ends.has_endless();
        let path = self.path.clone();
        let (file, counts) = if self.runs.is_empty() {
            self.write_sorted(&path)?
        } else {
            self.end_run()?;
            self.merge_runs(&path)?
        };
        file.sync()?;
        Ok(counts)
    }

    /// Moves the keys in memory to a run.
    fn end_run(&mut self) -> Result<(), KeyFileError> {
        if self.keys.is_empty() {
            return Ok(());
        }
        let path = self.next_run();
        self.write_sorted(&path)?;
        self.keys.clear();
        if self.runs.len() == RUNS_MAX {
            let path = self.next_run();
            self.merge_runs(&path)?;
            // The last one is the new one.
            let last = self.runs.len() - 1;
            for run in self.runs.drain(..last) {
                let _ = self.disk.remove_file(&run);
            }
        }
        Ok(())
    }

    fn next_run(&mut self) -> PathBuf {
        let ending = self.path.extension().unwrap_or_default().to_owned();
        let mut path = self.path.with_extension(self.runs_made.to_string());
        path.as_mut_os_string().push(".");
        path.as_mut_os_string().push(ending);
        self.runs_made += 1;
        // Removed in any case, also when it cannot be written.
        self.runs.push(path.clone());
        path
    }

    /// Writes the keys in memory.
    fn write_sorted(&self, path: &Path) -> Result<(Box<dyn DiskFile>, KeyCounts), KeyFileError> {
        let file = self.create(path)?;
        let mut writer = KeyFileWriter::new(&*file, &self.name, &self.kind);
        for reference in self.keys.sorted() {
            let (key, version) = self.keys.get(&reference);
            writer.add(key, version)?;
        }
        let counts = writer.finish(self.end, self.left_out, self.horizons)?;
        Ok((file, counts))
    }

    /// Merges all runs before the file `path` into it.
    fn merge_runs(&self, path: &Path) -> Result<(Box<dyn DiskFile>, KeyCounts), KeyFileError> {
        let paths = self.runs.iter().filter(|run| **run != path);
        let files = paths.map(|run| self.disk.open(run, Access::Read));
        let files: Vec<Box<dyn DiskFile>> = files.collect::<Result<_, _>>()?;
        let runs = files.iter();
        let runs = runs.map(|file| KeyFile::open(&**file, &self.name, &self.kind, self.end));
        let runs: Vec<KeyFile> = runs.collect::<Result<_, _>>()?;
        let cursors = runs.iter().zip(&files);
        let cursors = cursors.map(|(run, file)| run.cursor(&**file, &[]));
        let mut merge = KeyMerge::new(cursors.collect::<Result<_, _>>()?);
        let to = self.create(path)?;
        let mut writer = KeyFileWriter::new(&*to, &self.name, &self.kind);
        while let Some(version) = merge.advance()? {
            writer.add(merge.key(), &version)?;
        }
        let counts = writer.finish(self.end, self.left_out, self.horizons)?;
        Ok((to, counts))
    }

    fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>, KeyFileError> {
        let file = self.disk.open(path, Access::Create)?;
        file.set_len(0)?;
        Ok(file)
    }
}

impl Drop for KeySorter<'_> {
    fn drop(&mut self) {
        for run in &self.runs {
            let _ = self.disk.remove_file(run);
        }
    }
}
