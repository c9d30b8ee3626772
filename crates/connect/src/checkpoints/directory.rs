//! Checkpoints in a directory that all ranks see.

mod blocks;
mod chain;
mod changelog;
mod error;
mod files;
mod join;
mod names;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Random, SystemDisk, SystemRandom};
use millstream_flow::{BoxError, Changelog, Checkpoints, ShardKey, StoreLock};

use self::changelog::DirChangelog;
use self::error::io_error;
use self::files::Files;
use self::names::{Entry, LOCK};
use super::check_len;

pub use self::error::CheckpointDirError;

/// Keeps the checkpoints of one flow in a directory of their own: a shard of each rank. It names further files, which hold
/// the state elements whose changes are noted: a *base*, and the changes since. So a checkpoint writes these changes only,
/// and from time to time a new base.
///
/// On several machines it is a directory of a file system that they share. A shard is written under another name, made durable
/// and renamed, so that it is there whole or not at all. A run locks the file `lock` there, so that two runs cannot keep their
/// checkpoints in one directory.
///
/// ```
/// use millstream_connect::CheckpointDir;
/// use millstream_flow::{Checkpointing, FlowSettings, Resume};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("checkpoints");
/// let settings = FlowSettings {
///     checkpoints: Some(Checkpointing {
///         store: Arc::new(CheckpointDir::open(&path)?),
///         interval: Some(Duration::from_secs(10)),
///         resume: Resume::Never,
///     }),
///     ..FlowSettings::default()
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CheckpointDir {
    files: Files,
    random: Arc<dyn Random>,
}

/// No number of a process has more digits.
const PID_BYTES_MAX: usize = 10;

impl CheckpointDir {
    /// A directory, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made or read, or holds something else.
    pub fn open(dir: impl Into<PathBuf>) -> Result<CheckpointDir, CheckpointDirError> {
        CheckpointDir::open_on(Arc::new(SystemDisk), Arc::new(SystemRandom), dir)
    }

    /// The same with a disk and a randomness of the caller's.
    ///
    /// # Errors
    /// See [`CheckpointDir::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        random: Arc<dyn Random>,
        dir: impl Into<PathBuf>,
    ) -> Result<CheckpointDir, CheckpointDirError> {
        let dir = dir.into();
        let files = Files { disk, dir };
        let directory = CheckpointDir { files, random };
        directory.make()?;
        directory.files.entries()?;
        Ok(directory)
    }

    /// Makes the directory, and those above it, so that they outlast a crash.
    fn make(&self) -> Result<(), CheckpointDirError> {
        let above = self
            .files
            .dir
            .ancestors()
            .filter(|dir| !dir.as_os_str().is_empty());
        let missing: Vec<&Path> = above
            .take_while(|dir| matches!(self.files.disk.list(dir), Err(error) if error.kind() == io::ErrorKind::NotFound))
            .collect();
        let made = self.files.disk.create_dir_all(&self.files.dir);
        made.map_err(io_error("make the directory", &self.files.dir))?;
        for dir in missing {
            let above = match dir.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            let synced = self.files.disk.sync_dir(above);
            synced.map_err(io_error("sync the directory", above))?;
        }
        Ok(())
    }

    /// Removes files that an interrupted run has left. No rank has begun to write.
    fn sweep(&self) -> Result<(), CheckpointDirError> {
        let entries = self.files.entries()?;
        let mut shards = entries.iter();
        let has_shards = shards.any(|entry| matches!(entry, Entry::Shard(_)));
        for entry in entries {
            match entry {
                // If it stays, it is overwritten, or found then.
                Entry::Unfinished(name) => drop(self.files.remove(&self.files.dir.join(name))),
                // No shard names it.
                Entry::State(file) if !has_shards => {
                    self.files.remove(&self.files.state_path(&file))?
                }
                Entry::Lock | Entry::Shard(_) | Entry::State(_) => {}
            }
        }
        Ok(())
    }

    /// Locks the directory for this process, and notes which one it is.
    fn hold(&self) -> Result<Box<dyn DiskFile>, CheckpointDirError> {
        let path = self.files.dir.join(LOCK);
        let opened = self.files.disk.open(&path, Access::Create);
        let file = opened.map_err(io_error("open", &path))?;
        if !file.try_lock().map_err(io_error("lock", &path))? {
            let mut text = [0; PID_BYTES_MAX];
            let count = file.read_full_at(&mut text, 0).unwrap_or_default();
            let text = std::str::from_utf8(&text[..count]).unwrap_or_default();
            return Err(CheckpointDirError::Locked {
                dir: self.files.dir.clone(),
                holder: text.trim().parse().ok(),
            });
        }
        let pid = std::process::id().to_string();
        // Only for the message above: a full disk does not refuse the start.
        let _ = file
            .set_len(0)
            .and_then(|()| file.write_at(pid.as_bytes(), 0));
        Ok(file)
    }

    fn path(&self, key: ShardKey) -> PathBuf {
        self.files.dir.join(names::shard(key))
    }

    fn write(&self, path: &Path, shard: &[u8]) -> Result<(), CheckpointDirError> {
        let file = self.files.create(path)?;
        // Something may be left of an earlier attempt.
        let written = file.set_len(0).and_then(|()| file.write_at(shard, 0));
        written.map_err(io_error("write", path))?;
        file.sync().map_err(io_error("make durable", path))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, BoxError> {
        let file = self.files.open(path)?;
        let len = file.len().map_err(io_error("read", path))?;
        check_len(&path.display().to_string(), len)?;
        let mut shard = vec![0; usize::try_from(len)?];
        let read = file.read_full_at(&mut shard, 0);
        let found = read.map_err(io_error("read", path))?;
        match found == shard.len() {
            true => Ok(shard),
            false => Err(CheckpointDirError::Short {
                path: path.to_owned(),
                expected: len,
                found: found as u64,
            }
            .into()),
        }
    }
}

impl Checkpoints for CheckpointDir {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        let lock = self.hold()?;
        self.sweep()?;
        Ok(Some(Box::new(lock)))
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let unfinished = self.files.dir.join(names::unfinished(key.rank));
        let written = self.write(&unfinished, shard).and_then(|()| {
            let renamed = self.files.disk.rename(&unfinished, &self.path(key));
            renamed.map_err(io_error("rename", &unfinished))
        });
        if let Err(error) = written {
            // It takes up space. If the removal fails, the next run removes the file.
            let _ = self.files.disk.remove_file(&unfinished);
            return Err(error.into());
        }
        Ok(self.files.sync()?)
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.read(&self.path(key))
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        let shard = |entry| match entry {
            Entry::Shard(key) => Some(key),
            _ => None,
        };
        Ok(self
            .files
            .entries()?
            .into_iter()
            .filter_map(shard)
            .collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.files.remove(&self.path(key))?;
        Ok(self.files.sync()?)
    }

    fn changelog(&self, _: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        let mut run = [0; 8];
        self.random.fill(&mut run)?;
        let run = u64::from_le_bytes(run);
        Ok(Some(Box::new(DirChangelog::new(
            self.files.clone(),
            element,
            run,
        ))))
    }

    fn changelogs_go_back(&self) -> bool {
        true
    }

    /// Other programs may use the file system, too.
    fn interval_min(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn describe(&self, key: ShardKey) -> String {
        self.path(key).display().to_string()
    }
}
