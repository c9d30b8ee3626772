//! The file of a group: write-back, syncs, and the index entries that follow them.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Position};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::group_head::GroupHead;
use crate::files::manifest::{Record, RecordCount};
use crate::group::Group;
use crate::index::entry::IndexEntry;
use crate::index::file::IndexWriter;

/// When more group files are open than this, a busy lane's file is closed after each commit too:
/// with their indexes they stay well below the open files of a process.
const OPEN_FILES_MAX: usize = 128;

/// The way in which bytes are written to a file.
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
    pub listing: Listing,
    /// The failure after which the file must not be written any more.
    pub failed: Option<LogError>,
}

/// Whether the manifest lists a file. Its name is durable before, and no byte of it counts before (rule M).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// It does not, and there may be no file.
    None,
    /// It does, as far as the process outlasts. [`Manifest::sync_to`](crate::files::manifest::Manifest::sync_to) makes that
    /// durable.
    Appended(RecordCount),
    Durable,
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
        if self.is_removed() || (to.0 <= file.written && file.listing != Listing::None) {
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

    /// The open file; created with its head where there is none, unless it is listed: then it was lost.
    fn open(&self, dir: &DataDir, file: &mut GroupFile) -> Result<Arc<CountedFile>> {
        let counted = match &mut file.open {
            Some(counted) => counted,
            closed => {
                dir.create_stream_dir(self.lane.stream)?;
                let opened = match file.listing {
                    Listing::None => dir.create_group(&GroupHead::of_first(
                        self.name(),
                        self.identity,
                        self.leader_epoch,
                    )),
                    Listing::Appended(_) | Listing::Durable => {
                        dir.open_group(&self.name(), Access::Write)
                    }
                };
                let handle = opened.map_err(|error| LogError::io("open", self.path(dir), error))?;
                closed.insert(Arc::new(CountedFile::new(handle, &dir.open_group_files)))
            }
        };
        Ok(Arc::clone(counted))
    }

    /// Begins the file, and lists it without syncing the list: so a start after a kill misses the file from its first byte
    /// on.
    pub fn begin(&self, dir: &DataDir) -> Result<()> {
        let _one = self.syncing.lock();
        let mut file = self.file.lock();
        if self.is_removed() || file.listing != Listing::None {
            return Ok(());
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        let handle = self.open(dir, &mut file)?;
        drop(file);
        let synced = handle.file.sync();
        drop(handle);
        let synced = synced.map_err(|error| LogError::io("sync", self.path(dir), error));
        let named = synced.and_then(|()| dir.sync_stream_dir(self.lane.stream));
        named.map_err(|error| self.set_failed(&error))?;
        list(dir, &[self])
    }

    /// Creates the file. Neither its name nor its head is durable then.
    pub fn create(&self, dir: &DataDir) -> Result<()> {
        self.open(dir, &mut self.file.lock()).map(drop)
    }

    /// Syncs the written bytes, and lists the file. A failure is final, since the content of the file is unknown then;
    /// but for a full disk, where the list has no room: then nothing of it counts as synced yet.
    pub fn sync(&self, dir: &DataDir, keep_open: KeepOpen) -> Result<()> {
        let _one = self.syncing.lock();
        let mut file = self.file.lock();
        if self.is_removed() {
            return Ok(());
        }
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        if file.listing == Listing::Durable && file.written == self.synced().0 {
            // Only its end may have come since.
            let to = self.synced();
            self.note_synced(dir, &mut file, to, keep_open);
            return Ok(());
        }
        let handle = self.open(dir, &mut file)?;
        let (to, listing) = (Position(file.written), file.listing);
        drop(file);
        let synced = handle.file.sync();
        drop(handle);
        let synced = synced.map_err(|error| LogError::io("sync", self.path(dir), error));
        let synced = synced.and_then(|()| match listing {
            Listing::None => dir.sync_stream_dir(self.lane.stream),
            Listing::Appended(_) | Listing::Durable => Ok(()),
        });
        synced.map_err(|error| self.set_failed(&error))?;
        list_durably(dir, &[self])?;
        let mut file = self.file.lock();
        if let Some(error) = &file.failed {
            return Err(error.clone());
        }
        // The whole data directory may have been synced meanwhile.
        let to = to.max(self.synced());
        self.note_synced(dir, &mut file, to, keep_open);
        Ok(())
    }

    /// Marks the file as unusable: a sync of the whole data directory failed.
    pub fn fail(&self, fault: &LogError) {
        self.failed.store(true, Ordering::Relaxed);
        self.file.lock().failed.get_or_insert_with(|| fault.clone());
    }

    /// Marks the file as unusable. Returns the error that later users of the file get.
    fn set_failed(&self, error: &LogError) -> LogError {
        let fault = error.to_lane_fault();
        self.fail(&fault);
        fault
    }

    /// Returns whether there is a file, and the manifest lists it durably.
    pub fn has_file(&self) -> bool {
        self.file.lock().listing == Listing::Durable
    }

    /// Returns whether the manifest lists the file, durably or at least until the process ends.
    pub fn is_listed(&self) -> bool {
        self.file.lock().listing != Listing::None
    }

    /// Whether the file must not be written any more.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    fn note_synced(&self, dir: &DataDir, file: &mut GroupFile, to: Position, keep_open: KeepOpen) {
        assert_eq!(file.listing, Listing::Durable, "rule M");
        debug_assert!(self.synced() <= to && to.0 <= file.written);
        self.synced.store(to.0, Ordering::Release);
        if let Err(error) = self.write_entries(dir, file, to) {
            tracing::warn!(group = %self.id, stream = %self.lane.stream, %error,
                "index not written; the next start reads the group's file instead");
        }
        self.forget_index_if_cold();
        let done = self.end().is_some_and(|end| end.position <= to);
        let keep_open = keep_open == KeepOpen::Yes && KeepOpen::of_busy(dir) == KeepOpen::Yes;
        if done || (!keep_open && to.0 == file.written) {
            file.open = None;
            file.index = None;
        }
    }

    /// Makes durable the entries of the index whose positions are synced, and its name.
    ///
    /// # Errors
    /// When they cannot be written or synced.
    pub fn sync_index(&self, dir: &DataDir) -> Result<()> {
        let path = self.index_path(dir);
        let mut file = self.file.lock();
        let written = self.write_entries(dir, &mut file, self.synced());
        written.map_err(|error| LogError::io("write", &path, error))?;
        // A closed group does not leave it open.
        file.index = None;
        drop(file);
        let index = dir.disk.open(&path, Access::Write);
        index
            .and_then(|index| index.sync())
            .map_err(|error| LogError::io("sync", path, error))?;
        dir.sync_stream_dir(self.lane.stream)
    }

    /// Writes the entries whose positions are synced. The index can be rebuilt from the file and the groups before, so a
    /// failure costs time at the next start and nothing else.
    fn write_entries(
        &self,
        dir: &DataDir,
        file: &mut GroupFile,
        to: Position,
    ) -> std::io::Result<()> {
        let ready: Vec<IndexEntry> = {
            let mut entries = self.unwritten_entries.lock();
            let count = entries.partition_point(|entry| entry.position <= to);
            entries.drain(..count).collect()
        };
        if ready.is_empty() {
            return Ok(());
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
                    self.identity,
                    *index_len,
                )?);
            }
            let writer = index.as_mut().expect("opened above");
            writer.append(&ready)?;
            Ok::<u64, std::io::Error>(writer.len())
        })();
        match written {
            Ok(len) => {
                *index_len = len;
                Ok(())
            }
            Err(error) => {
                *index = None;
                let mut entries = self.unwritten_entries.lock();
                for entry in ready.into_iter().rev() {
                    entries.push_front(entry);
                }
                Err(error)
            }
        }
    }
}

/// Takes note that the first bytes of groups' files are synced, and lists the files: the caller synced all folders of
/// streams after [`Group::write_back`] had returned these positions.
///
/// # Errors
/// When files could not be listed. On a full disk nothing of them counts as synced yet, and after other failures they must
/// not be written any more.
pub fn synced_with_all(dir: &DataDir, groups: &mut [(Arc<Group>, Position)]) -> Result<()> {
    // The lanes' groups are listed in their order.
    groups.sort_unstable_by_key(|(group, _)| (group.lane, group.id));
    let all: Vec<&Group> = groups.iter().map(|(group, _)| &**group).collect();
    let _one_each: Vec<_> = all.iter().map(|group| group.syncing.lock()).collect();
    list_durably(dir, &all)?;
    for (group, to) in groups.iter() {
        let mut file = group.file.lock();
        if file.failed.is_none() && !group.is_removed() && group.synced() <= *to {
            group.note_synced(dir, &mut file, *to, KeepOpen::No);
        }
    }
    Ok(())
}

/// Lists files that were begun, whose names are durable, without syncing the list.
pub fn list_begun(dir: &DataDir, groups: &[Arc<Group>]) -> Result<()> {
    let mut all: Vec<&Group> = groups.iter().map(|group| &**group).collect();
    all.sort_unstable_by_key(|group| (group.lane, group.id));
    let _one_each: Vec<_> = all.iter().map(|group| group.syncing.lock()).collect();
    list(dir, &all)
}

/// Lists the files of groups that are not listed yet, with one write. Their names are durable; the caller holds `syncing` of
/// each, so none is removed meanwhile.
fn list(dir: &DataDir, groups: &[&Group]) -> Result<()> {
    let is_unlisted = |group: &&&Group| {
        let file = group.file.lock();
        file.listing == Listing::None && file.failed.is_none() && !group.is_removed()
    };
    let unlisted: Vec<&&Group> = groups.iter().filter(is_unlisted).collect();
    if unlisted.is_empty() {
        return Ok(());
    }
    let records: Vec<Record> = unlisted
        .iter()
        .map(|group| Record::Group(group.name()))
        .collect();
    let appended = dir
        .manifest()
        .append(&records)
        .map_err(|error| match error.is_disk_full() {
            true => error,
            false => fail_all(&unlisted, &error),
        })?;
    for group in unlisted {
        group.file.lock().listing = Listing::Appended(appended);
    }
    Ok(())
}

/// As [`list`], and syncs the list.
fn list_durably(dir: &DataDir, groups: &[&Group]) -> Result<()> {
    list(dir, groups)?;
    let appended = |group: &&&Group| match group.file.lock().listing {
        Listing::Appended(count) => Some(count),
        Listing::None | Listing::Durable => None,
    };
    let begun: Vec<&&Group> = groups
        .iter()
        .filter(|group| appended(group).is_some())
        .collect();
    let Some(last) = begun.iter().filter_map(appended).max() else {
        return Ok(());
    };
    let synced = dir.manifest().sync_to(last);
    synced.map_err(|error| fail_all(&begun, &error))?;
    for group in begun {
        group.file.lock().listing = Listing::Durable;
    }
    Ok(())
}

fn fail_all(groups: &[&&Group], error: &LogError) -> LogError {
    let fault = error.to_lane_fault();
    groups.iter().for_each(|group| group.fail(&fault));
    fault
}
