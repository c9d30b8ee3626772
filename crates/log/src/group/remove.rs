//! The removal of a group's files and memory.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use millstream_base::disk::Access;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::group::file::GroupFile;

impl Group {
    /// Removes the index of a closed group for ever: the group is about to be removed.
    pub fn remove_index(&self, dir: &DataDir) -> Result<()> {
        let mut file = self.file.lock();
        file.index = None;
        // So it is not made anew.
        self.unwritten_entries.lock().clear();
        remove_file(dir, self.index_path(dir))
    }

    /// Takes the group away: frees its buffers and removes its files. The names are gone for good
    /// after the folder is synced.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        let mut file = self.file.lock();
        remove_file(dir, self.index_path(dir))?;
        remove_file(dir, self.path(dir))?;
        self.forget(&mut file);
        Ok(())
    }

    /// Takes the group away as [`Group::remove`] does, and makes its file that of a later group of its
    /// lane, which is empty: to begin a file needs room. Its index must be gone for good. After a
    /// failure it is unknown which of the two the file is.
    pub fn hand_file_over(&self, dir: &DataDir, later: &Group) -> Result<()> {
        let mut file = self.file.lock();
        let mut later_file = later.file.lock();
        if later_file.named || later_file.written > 0 {
            // Something came meanwhile.
            drop((file, later_file));
            return self.remove(dir);
        }
        let (from, to) = (self.path(dir), later.path(dir));
        dir.disk
            .rename(&from, &to)
            .map_err(|error| LogError::io("rename", from, error))?;
        self.forget(&mut file);
        later_file.open = None;
        dir.sync_dir(&dir.stream_dir(self.lane.stream))?;
        later_file.named = true;
        // A crash before this leaves chunks whose offsets do not fit the name: the start cuts them.
        dir.disk
            .open(&to, Access::Write)
            .and_then(|handle| handle.set_len(0).and_then(|()| handle.sync()))
            .map_err(|error| LogError::io("truncate", to, error))
    }

    fn forget(&self, file: &mut GroupFile) {
        self.removed.store(true, Ordering::Release);
        file.open = None;
        file.index = None;
        for segment in self.segments.write().iter_mut() {
            segment.buffer = None;
        }
        *self.index.write() = None;
        self.unwritten_entries.lock().clear();
    }
}

fn remove_file(dir: &DataDir, path: PathBuf) -> Result<()> {
    match dir.disk.remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LogError::io("remove", path, error))
        }
        _ => Ok(()),
    }
}
