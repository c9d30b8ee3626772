//! The files of a directory for checkpoints.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::disk::{Access, DirEntry};
use millstream_base::{Disk, DiskFile};

use super::error::{CheckpointDirError, io_error};
use super::names::{Entry, StateFile};

/// A directory on a disk.
#[derive(Clone)]
pub struct Files {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
}

impl Files {
    /// Lists the files.
    pub fn entries(&self) -> Result<Vec<Entry>, CheckpointDirError> {
        let entries = self.disk.list(&self.dir);
        let entries = entries.map_err(io_error("list", &self.dir))?.into_iter();
        let entry = |DirEntry { name, is_dir }| match Entry::of(&name) {
            Some(entry) if !is_dir || matches!(entry, Entry::Unfinished(_)) => Ok(entry),
            _ => Err(CheckpointDirError::Foreign {
                path: self.dir.join(name),
            }),
        };
        entries.map(entry).collect()
    }

    pub fn state_path(&self, file: &StateFile) -> PathBuf {
        self.dir.join(file.to_string())
    }

    /// Makes a file. [`sync`](Self::sync) makes its name durable.
    pub fn create(&self, path: &Path) -> Result<Box<dyn DiskFile>, CheckpointDirError> {
        let opened = self.disk.open(path, Access::Create);
        opened.map_err(io_error("create", path))
    }

    /// Makes the names of all files durable.
    pub fn sync(&self) -> Result<(), CheckpointDirError> {
        let synced = self.disk.sync_dir(&self.dir);
        synced.map_err(io_error("sync the directory", &self.dir))
    }

    pub fn remove(&self, path: &Path) -> Result<(), CheckpointDirError> {
        let removed = self.disk.remove_file(path);
        removed.map_err(io_error("remove", path))
    }

    /// Opens a file that is only read.
    pub fn open(&self, path: &Path) -> Result<Box<dyn DiskFile>, CheckpointDirError> {
        let opened = self.disk.open(path, Access::Read);
        opened.map_err(io_error("open", path))
    }
}
