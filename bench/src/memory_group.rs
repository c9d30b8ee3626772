//! A group of processes whose memory the kernel limits, including the system's cache of the files that they read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context as _, Result, bail};
use millstream_base::ByteSize;

/// Where version 1 of control groups limits memory, and the name of the limit.
const V1: (&str, &str) = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes");

/// The same in version 2.
const V2: (&str, &str) = ("/sys/fs/cgroup", "memory.max");

/// The file by which a process joins.
const ENTRY: &str = "cgroup.procs";

/// A control group. It is removed when this is dropped; by then its processes must have ended.
pub struct MemoryGroup {
    dir: PathBuf,
}

impl MemoryGroup {
    /// Creates a group without a process.
    ///
    /// # Errors
    /// When the user lacks the right, or the system lacks groups with a limit of memory.
    pub fn create(memory: ByteSize) -> Result<MemoryGroup> {
        let (root, limit) = match Path::new(V1.0).is_dir() {
            true => V1,
            false => V2,
        };
        let dir = Path::new(root).join(format!("millstream-bench-{}", process::id()));
        fs::create_dir(&dir).with_context(|| format!("cannot create {dir:?}"))?;
        let group = MemoryGroup { dir };
        let limit = group.dir.join(limit);
        if !limit.exists() {
            bail!("{limit:?} does not exist: memory is not among the controllers of the group");
        }
        fs::write(&limit, memory.0.to_string())
            .with_context(|| format!("cannot write {limit:?}"))?;
        Ok(group)
    }

    /// The file by which a process joins.
    pub fn entry(&self) -> PathBuf {
        self.dir.join(ENTRY)
    }

    /// Joins with this process.
    pub fn join(entry: &Path) -> Result<()> {
        fs::write(entry, process::id().to_string())
            .with_context(|| format!("cannot join {entry:?}"))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group that stays is empty.
        let _ = fs::remove_dir(&self.dir);
    }
}
