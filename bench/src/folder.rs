//! Folders for data.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A folder that is removed with all its files when it is dropped.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates an empty folder; files of an earlier run are removed.
    pub fn create(path: PathBuf) -> Result<Folder> {
        let folder = Folder { path };
        folder.empty()?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the folder with its files; the next run that asks for the folder empties it.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Removes the files in it.
    pub fn empty(&self) -> Result<()> {
        let path = &self.path;
        if path.exists() {
            fs::remove_dir_all(path).with_context(|| format!("cannot remove {path:?}"))?;
        }
        fs::create_dir_all(path).with_context(|| format!("cannot create {path:?}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next run removes files that stay.
        let _ = fs::remove_dir_all(&self.path);
    }
}
