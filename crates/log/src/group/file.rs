//! The file of a group: write-back, syncs, and the index entries that follow them.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Position};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::index::entry::IndexEntry;
use crate::index::file::IndexWriter;

/// When more group files are open than this, a busy lane's file is closed after each commit too:
/// with their indexes they stay well below the open files of a process.
const OPEN_FILES_MAX: usize = 128;

/// How bytes are written to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteMode {
    /// Through the cache of the operating system, so that they outlast the process as soon as they are written.
    Cached,
    /// Past the cache where they are many: they are synced at once.
    BypassCache,
}

/// Whether a write-back leaves the file open for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepOpen {
    Yes,
    No,
}

impl KeepOpen {
    /// For a busy lane's file.
    pub fn of_busy(dir: &DataDir) -> KeepOpen {
        match dir.open_group_files.load(Ordering::Relaxed) <= OPEN_FILES_MAX {
            true => KeepOpen::Yes,
            false => KeepOpen::No,
        }
    }
}

pub struct GroupFile {
    /// Kept open only while a busy lane syncs straight into it; the index likewise.
    pub open: Option<Arc<CountedFile>>,
    pub index: Option<IndexWriter>,
    /// Bytes of the file that were written, synced or not.
    pub written: u64,
    /// Bytes of the index file; 0 when there is none yet.
    pub index_len: u64,
    /// Whether the file has a name that survives a crash.
    pub named: bool,
    /// The failure after which the file must not be written any more.
    pub failed: Option<LogError>,
}

/// An open file that is counted while it is open.
pub struct CountedFile {
    pub file: Box<dyn DiskFile>,
    pub count: Arc<AtomicUsize>,
}

impl CountedFile {
    pub fn new(file: Box<dyn DiskFile>, count: &Arc<AtomicUsize>) -> CountedFile {
        count.fetch_add(1, Ordering::Relaxed);
        CountedFile {
            file,
            count: Arc::clone(count),
        }
    }
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for GroupFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupFile")
            .field("written", &self.written)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl Group {
    /// Writes the bytes in memory up to `to` into the file, without syncing it, and returns the end of
    /// the written bytes. The lane's earlier groups must be written whole before.
    pub fn write_back(
        &self,
        dir: &DataDir,
        to: Position,
        mode: WriteMode,
        keep_open: KeepOpen,
    ) -> Result<Position> {
        let mut file = self.file.lock();
        if self.is_removed() || (to.0 <= file.written && file.named) {
            return Ok(Position(file.written));
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        let from = Position(file.written);
        let to = to.max(from);
        let slices = self.slices(from, to);
        let mut parts: Vec<IoSlice<'_>> = slices.iter().map(|slice| IoSlice::new(slice)).collect();
        let handle = self.open(dir, &mut file)?;
        match mode {
            WriteMode::Cached => handle.file.write_all_at(&mut parts, from.0),
            WriteMode::BypassCache => handle.file.write_past_cache_at(&mut parts, from.0),
        }
        .map_err(|error| LogError::io("write", self.path(dir), error))?;
        file.written = to.0;
        if keep_open == KeepOpen::No {
            file.open = None;
        }
        Ok(to)
    }

    /// The open file; created where there is none.
    fn open(&self, dir: &DataDir, file: &mut GroupFile) -> Result<Arc<CountedFile>> {
        let counted = match &mut file.open {
            Some(counted) => counted,
            closed => {
                dir.create_stream_dir(self.lane.stream)?;
                let path = self.path(dir);
                let handle = dir
                    .disk
                    .open(&path, Access::Create)
                    .map_err(|error| LogError::io("open", path, error))?;
                closed.insert(Arc::new(CountedFile::new(handle, &dir.open_group_files)))
            }
        };
        Ok(Arc::clone(counted))
    }

    /// Syncs the written bytes. A failure is final: the content of the file is unknown then.
    pub fn sync(&self, dir: &DataDir, keep_open: KeepOpen) -> Result<()> {
        let _one = self.syncing.lock();
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        let path = self.path(dir);
        if file.named && file.written == self.synced().0 {
            // Only its end may have come since.
            let to = self.synced();
            self.note_synced(dir, &mut file, to, keep_open);
            return Ok(());
        }
        let handle = self.open(dir, &mut file)?;
        let (to, is_named) = (Position(file.written), file.named);
        drop(file);
        let mut result = handle
            .file
            .sync()
            .map_err(|error| LogError::io("sync", &path, error));
        drop(handle);
        if result.is_ok() && !is_named {
            result = dir.sync_stream_dir(self.lane.stream);
        }
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        if let Err(error) = result {
            let fault = LogError::PartitionFault {
                what: error.to_string(),
            };
            self.failed.store(true, Ordering::Relaxed);
            file.failed = Some(fault.clone());
            return Err(fault);
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        // The whole data directory may have been synced meanwhile.
        let to = to.max(self.synced());
        self.note_synced(dir, &mut file, to, keep_open);
        Ok(())
    }

    /// Takes note that the first `to` bytes are synced: the caller synced the whole data directory
    /// after [`Group::write_back`] had returned that position.
    pub fn synced_with_all(&self, dir: &DataDir, to: Position) {
        let mut file = self.file.lock();
        if file.failed.is_none() && !self.is_removed() && self.synced() <= to {
            self.note_synced(dir, &mut file, to, KeepOpen::No);
        }
    }

    /// Marks the file as unusable: a sync of the whole data directory failed.
    pub fn fail(&self, fault: &LogError) {
        self.failed.store(true, Ordering::Relaxed);
        self.file.lock().failed.get_or_insert_with(|| fault.clone());
    }

    /// Returns whether there is a file whose name survives a crash.
    pub fn has_file(&self) -> bool {
        self.file.lock().named
    }

    /// Whether the file must not be written any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn note_synced(&self, dir: &DataDir, file: &mut GroupFile, to: Position, keep_open: KeepOpen) {
        if !file.named {
            file.named = true;
            dir.named.lock().push(self.lane);
        }
        debug_assert!(self.synced() <= to && to.0 <= file.written);
        self.synced.store(to.0, Ordering::Release);
        self.write_entries(dir, file, to);
        self.forget_index_if_cold();
        let done = self.end().is_some_and(|end| end.position <= to);
        let keep_open = keep_open == KeepOpen::Yes && KeepOpen::of_busy(dir) == KeepOpen::Yes;
        if done || (!keep_open && to.0 == file.written) {
            file.open = None;
            file.index = None;
        }
    }

    /// Writes the entries whose positions are synced. The index can be rebuilt from the file, so a
    /// failure costs time at the next start and nothing else.
    fn write_entries(&self, dir: &DataDir, file: &mut GroupFile, to: Position) {
        let ready: Vec<IndexEntry> = {
            let mut entries = self.unwritten_entries.lock();
            let count = entries.partition_point(|entry| entry.position <= to);
            entries.drain(..count).collect()
        };
        if ready.is_empty() {
            return;
        }
        let GroupFile {
            index, index_len, ..
        } = file;
        let written = (|| {
            if index.is_none() {
                *index = Some(IndexWriter::open(
                    &*dir.disk,
                    &self.index_path(dir),
                    &self.name(),
                    *index_len,
                )?);
            }
            let writer = index.as_mut().expect("opened above");
            writer.append(&ready)?;
            Ok::<u64, std::io::Error>(writer.len())
        })();
        match written {
            Ok(len) => *index_len = len,
            Err(error) => {
                tracing::warn!(group = %self.id, stream = %self.lane.stream, %error,
                    "index not written; the next start reads the group's file instead");
                *index = None;
                let mut entries = self.unwritten_entries.lock();
                for entry in ready.into_iter().rev() {
                    entries.push_front(entry);
                }
            }
        }
    }
}
