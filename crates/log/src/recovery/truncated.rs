//! The torn ends that a start truncates from files: they stay in the folder `aside` for a while.

use std::ops::Range;
use std::path::Path;

use millstream_base::{DiskFile, Position};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::aside::read_parts;
use crate::ids::LaneId;
use crate::index::entry::INDEX_INTERVAL_BYTES;

const PREFIX: &str = "torn.";

/// The starts whose torn ends stay; a start that truncates a file removes older ones.
const STARTS_RETAINED: u64 = 16;

/// The torn ends that one start truncates.
pub struct TruncatedTails {
    write_bytes_max: usize,
    /// The number of this start among those that truncated a file; drawn with the first one.
    start: Option<u64>,
}

impl TruncatedTails {
    /// `write_bytes_max` is the most that is written to a file before it is synced, and is not in the
    /// journal.
    pub fn new(write_bytes_max: usize) -> TruncatedTails {
        TruncatedTails {
            write_bytes_max,
            start: None,
        }
    }

    /// The longest torn end of an interrupted write.
    pub fn bytes_max(&self) -> u64 {
        self.write_bytes_max as u64 + INDEX_INTERVAL_BYTES
    }

    /// Copies the torn end of a group's file before it is truncated. Nothing is copied where all of it is 0, or where
    /// the disk is full.
    pub fn keep(
        &mut self,
        dir: &DataDir,
        lane: LaneId,
        file: &dyn DiskFile,
        path: &Path,
        range: Range<Position>,
    ) -> Result<()> {
        let bytes = range.end.0 - range.start.0;
        let copied_to = match is_zero(file, path, range.clone())? {
            true => "nowhere, since all of it is 0".to_owned(),
            false => match self.copy(dir, lane, file, path, range.clone()) {
                Ok(to) => to,
                Err(error) if error.is_disk_full() => "nowhere, since the disk is full".to_owned(),
                Err(error) => return Err(error),
            },
        };
        tracing::warn!(path = %path.display(), position = range.start.0, bytes, copied_to,
            "truncated the torn end of this file, as a crash leaves it");
        Ok(())
    }

    fn copy(
        &mut self,
        dir: &DataDir,
        lane: LaneId,
        file: &dyn DiskFile,
        path: &Path,
        range: Range<Position>,
    ) -> Result<String> {
        let folder = dir.aside_dir()?;
        let start = match self.start {
            Some(start) => start,
            None => *self.start.insert(next_start(dir, &folder)?),
        };
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let to = folder.join(format!(
            "{PREFIX}{start:08}.{}-{name}.{}",
            lane.stream, range.start
        ));
        dir.copy_aside(file, path, range, &to)?;
        Ok(to.display().to_string())
    }

    /// Makes the names of the copies durable.
    pub fn sync(&self, dir: &DataDir) -> Result<()> {
        match self.start {
            Some(_) => dir.sync_dir(&dir.aside_dir()?),
            None => Ok(()),
        }
    }
}

/// Returns a number above the numbers of earlier starts, and removes torn ends that were moved aside before
/// the last few starts.
fn next_start(dir: &DataDir, folder: &Path) -> Result<u64> {
    let known = dir.aside_entries(PREFIX)?;
    let next = known.iter().map(|(start, _)| start + 1).max().unwrap_or(1);
    for (start, name) in known {
        if start + STARTS_RETAINED <= next {
            let path = folder.join(name);
            dir.disk
                .remove_file(&path)
                .map_err(|error| LogError::io("remove", path, error))?;
        }
    }
    Ok(next)
}

fn is_zero(file: &dyn DiskFile, path: &Path, range: Range<Position>) -> Result<bool> {
    let mut is_zero = true;
    read_parts(file, path, range, |part| {
        is_zero &= part.iter().all(|byte| *byte == 0);
        Ok(())
    })?;
    Ok(is_zero)
}
