//! Folders for data.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// A folder that is removed with all that it holds when it is no longer needed.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes a folder, empty.
    pub fn create(path: PathBuf) -> Result<Folder> {
        let folder = Folder { path };
        folder.empty()?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it with what it holds, for the next one who asks for it to empty it.
    pub fn keep(self) {
        std::mem::forget(self);
    }

    /// Removes what it holds.
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
        // What stays is removed by the next run.
        let _ = fs::remove_dir_all(&self.path);
    }
}
