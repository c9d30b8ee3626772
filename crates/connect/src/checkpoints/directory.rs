//! Checkpoints in a directory that all ranks see.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, SystemDisk};
use millstream_flow::{BoxError, Checkpoints, ShardKey, StoreLock};

use super::{check_len, named_shard, shard_name};

/// Keeps the checkpoints of one flow in a directory of their own, a file for each shard.
///
/// On several machines it is a directory of a file system that they share. A file is written under another
/// name, made durable and renamed, so that it is there whole or not at all. A run locks the file `lock` there, so that two
/// runs cannot keep their checkpoints in one directory.
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
///         interval: Duration::from_secs(10),
///         resume: Resume::Never,
///     }),
///     ..FlowSettings::default()
/// };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CheckpointDir {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
}

/// An error of a directory for checkpoints.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointDirError {
    /// The operating system refuses.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path that it concerns.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Another run keeps its checkpoints there.
    #[error(
        "{} is in use by another run{}; wait for its end or stop it, or keep these checkpoints in another directory",
        dir.display(),
        holder.map(|pid| format!(", process {pid}")).unwrap_or_default()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The process of that run, on the machine where it runs; `None` if it has not written its id yet.
        holder: Option<u32>,
    },
    /// It holds something else.
    #[error(
        "{} is not a shard of a checkpoint; keep the checkpoints of each flow in a directory of their own",
        path.display()
    )]
    Foreign {
        /// The path of the file that is not a shard.
        path: PathBuf,
    },
    /// A file ends before its length.
    #[error("{} has {expected} bytes and only {found} can be read", path.display())]
    Short {
        /// The file.
        path: PathBuf,
        /// Its length.
        expected: u64,
        /// Its length now.
        found: u64,
    },
}

/// The prefixes of the names of shards and of unfinished shards; each rank has one of both.
const SHARD: &str = "checkpoint.";
const UNFINISHED: &str = "unfinished.";

/// The file that a run locks. It stays, and names the process that locked it last.
const LOCK: &str = "lock";

/// No number of a process has more digits.
const PID_BYTES_MAX: usize = 10;

impl CheckpointDir {
    /// A directory, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made or read, or holds something else.
    pub fn open(dir: impl Into<PathBuf>) -> Result<CheckpointDir, CheckpointDirError> {
        CheckpointDir::open_on(Arc::new(SystemDisk), dir)
    }

    /// The same on a disk of the caller's.
    ///
    /// # Errors
    /// See [`CheckpointDir::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        dir: impl Into<PathBuf>,
    ) -> Result<CheckpointDir, CheckpointDirError> {
        let directory = CheckpointDir {
            disk,
            dir: dir.into(),
        };
        directory.make()?;
        directory.shards()?;
        Ok(directory)
    }

    /// Makes the directory, and those above it, so that they outlast a crash.
    fn make(&self) -> Result<(), CheckpointDirError> {
        let above = self
            .dir
            .ancestors()
            .filter(|dir| !dir.as_os_str().is_empty());
        let missing: Vec<&Path> = above
            .take_while(|dir| matches!(self.disk.list(dir), Err(error) if error.kind() == io::ErrorKind::NotFound))
            .collect();
        let made = self.disk.create_dir_all(&self.dir);
        made.map_err(io_error("make the directory", &self.dir))?;
        for dir in missing {
            let above = match dir.parent() {
                Some(above) if !above.as_os_str().is_empty() => above,
                _ => Path::new("."),
            };
            let synced = self.disk.sync_dir(above);
            synced.map_err(io_error("sync the directory", above))?;
        }
        Ok(())
    }

    fn shards(&self) -> Result<Vec<ShardKey>, CheckpointDirError> {
        let entries = self.disk.list(&self.dir);
        let entries = entries.map_err(io_error("list", &self.dir))?;
        let mut shards = Vec::new();
        for entry in entries {
            let name = entry.name.as_str();
            let shard = name.strip_prefix(SHARD).and_then(named_shard);
            match shard.filter(|_| !entry.is_dir) {
                Some(shard) => shards.push(shard),
                None if name.starts_with(UNFINISHED) || name == LOCK => {}
                None => {
                    let path = self.dir.join(name);
                    return Err(CheckpointDirError::Foreign { path });
                }
            }
        }
        Ok(shards)
    }

    /// Locks the directory for this process, and notes which one it is.
    fn hold(&self) -> Result<Box<dyn DiskFile>, CheckpointDirError> {
        let path = self.dir.join(LOCK);
        let opened = self.disk.open(&path, Access::Create);
        let file = opened.map_err(io_error("open", &path))?;
        if !file.try_lock().map_err(io_error("lock", &path))? {
            let mut text = [0; PID_BYTES_MAX];
            let count = file.read_full_at(&mut text, 0).unwrap_or_default();
            let text = std::str::from_utf8(&text[..count]).unwrap_or_default();
            return Err(CheckpointDirError::Locked {
                dir: self.dir.clone(),
                holder: text.trim().parse().ok(),
            });
        }
        let pid = std::process::id().to_string();
        let noted = file
            .set_len(0)
            .and_then(|()| file.write_at(pid.as_bytes(), 0));
        noted.map_err(io_error("write", &path))?;
        Ok(file)
    }

    fn path(&self, key: ShardKey) -> PathBuf {
        self.dir.join(format!("{SHARD}{}", shard_name(key)))
    }

    fn write(&self, path: &Path, shard: &[u8]) -> Result<(), CheckpointDirError> {
        let opened = self.disk.open(path, Access::Create);
        let file = opened.map_err(io_error("create", path))?;
        // Something may be left of an earlier attempt.
        let written = file.set_len(0).and_then(|()| file.write_at(shard, 0));
        written.map_err(io_error("write", path))?;
        file.sync().map_err(io_error("make durable", path))
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, BoxError> {
        let opened = self.disk.open(path, Access::Read);
        let file = opened.map_err(io_error("open", path))?;
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
        Ok(Some(Box::new(self.hold()?)))
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let unfinished = self.dir.join(format!("{UNFINISHED}{}", key.rank));
        let path = self.path(key);
        let written = self.write(&unfinished, shard).and_then(|()| {
            let renamed = self.disk.rename(&unfinished, &path);
            renamed.map_err(io_error("rename", &unfinished))
        });
        if let Err(error) = written {
            // It takes up space. If the removal fails, the next run overwrites the file.
            let _ = self.disk.remove_file(&unfinished);
            return Err(error.into());
        }
        let synced = self.disk.sync_dir(&self.dir);
        Ok(synced.map_err(io_error("sync the directory", &self.dir))?)
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        self.read(&self.path(key))
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        Ok(self.shards()?)
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        let path = self.path(key);
        let removed = self.disk.remove_file(&path);
        removed.map_err(io_error("remove", &path))?;
        let synced = self.disk.sync_dir(&self.dir);
        Ok(synced.map_err(io_error("sync the directory", &self.dir))?)
    }

    fn describe(&self, key: ShardKey) -> String {
        self.path(key).display().to_string()
    }
}

fn io_error<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl FnOnce(io::Error) -> CheckpointDirError + 'a {
    move |error| CheckpointDirError::Io {
        action,
        path: path.to_owned(),
        error,
    }
}
