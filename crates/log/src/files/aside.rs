//! The folder `aside`: for the torn ends of files, and for files that a repair takes away.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Position, StreamId};

use crate::error::{LogError, Result};
use crate::files::{ASIDE, DataDir};

/// The prefix of the names of files there that belong to streams the catalog lost.
const LOST_PREFIX: &str = "lost.";

/// The bytes that one step copies there.
const COPY_BYTES: usize = 1 << 20;

impl DataDir {
    /// Returns the folder; makes it where it is missing.
    pub fn aside_dir(&self) -> Result<PathBuf> {
        let path = self.root.join(ASIDE);
        self.disk
            .create_dir_all(&path)
            .and_then(|()| self.disk.sync_dir(&self.root))
            .map_err(|error| LogError::io("create folder", &path, error))?;
        Ok(path)
    }

    /// Lists the files of that folder whose names begin with `prefix` and a number.
    pub fn aside_entries(&self, prefix: &str) -> Result<Vec<(u64, String)>> {
        let folder = self.aside_dir()?;
        let entries = self
            .disk
            .list(&folder)
            .map_err(|error| LogError::io("list", &folder, error))?;
        let number = |name: &str| name.strip_prefix(prefix)?.split('.').next()?.parse().ok();
        let numbered = entries
            .into_iter()
            .filter_map(|entry| Some((number(&entry.name)?, entry.name)));
        Ok(numbered.collect())
    }

    /// Copies a part of a file into a new one in that folder, whose content is durable then, and its name is not.
    pub fn copy_aside(
        &self,
        file: &dyn DiskFile,
        path: &Path,
        range: Range<Position>,
        to: &Path,
    ) -> Result<()> {
        let error = |error| LogError::io("write", to, error);
        let copy = self.disk.open(to, Access::Create).map_err(error)?;
        copy.set_len(0).map_err(error)?;
        let mut at = 0;
        read_parts(file, path, range, |part| {
            copy.write_at(part, at).map_err(error)?;
            at += part.len() as u64;
            Ok(())
        })?;
        copy.sync().map_err(error)
    }

    /// Moves the files of a stream's folder to the folder `aside`, and removes the folder. Returns the beginning
    /// of the files' names there.
    pub fn move_stream_aside(&self, stream: StreamId) -> Result<PathBuf> {
        let folder = self.aside_dir()?;
        let known = self.aside_entries(LOST_PREFIX)?;
        let number = known.iter().map(|(number, _)| number + 1).max();
        let prefix = format!("{LOST_PREFIX}{:06}.{stream}-", number.unwrap_or(1));
        let path = self.stream_dir(stream);
        let names = match self.disk.list(&path) {
            Ok(names) => names,
            // Only the journal knew of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(LogError::io("list", path, error)),
        };
        for entry in names {
            let from = path.join(&entry.name);
            self.disk
                .rename(&from, &folder.join(format!("{prefix}{}", entry.name)))
                .map_err(|error| LogError::io("move", from, error))?;
        }
        self.sync_dir(&folder)?;
        self.remove_stream_dir(stream)?;
        Ok(folder.join(prefix))
    }
}

/// Calls `each` with the bytes of a file in a range, part by part, up to the end of the file.
pub fn read_parts(
    file: &dyn DiskFile,
    path: &Path,
    range: Range<Position>,
    mut each: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let mut bytes = vec![0; COPY_BYTES];
    let mut at = range.start.0;
    while at < range.end.0 {
        let wanted = (range.end.0 - at).min(COPY_BYTES as u64) as usize;
        let count = file
            .read_full_at(&mut bytes[..wanted], at)
            .map_err(|error| LogError::io("read", path, error))?;
        if count == 0 {
            break;
        }
        each(&bytes[..count])?;
        at += count as u64;
    }
    Ok(())
}
