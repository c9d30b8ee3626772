//! The data directory: its layout, its lock, and the files that belong there.
//!
//! ```text
//! millstream.data                          marker with the format's version; locked while in use
//! clean-stop                               see `recovery::clean_stop`; clean-stop.new is its next content
//! journal/<sequence>-<secret>.journal                                see `journal`
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>.log     chunks, one after another
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>.index   see `index`
//! aside/torn.<start>.<stream>-<group's name>.<position>              the torn end that a start truncated from a file
//! aside/<…>                                                          files and parts of files that `repair` took away
//! ```
//!
//! One process has a data directory open. A file or folder that does not belong there is refused and never removed. This folder
//! knows names, and nothing of the files' content but the manifest's.

pub mod aside;
pub mod disk_space;
// The log does not use it yet.
#[cfg(test)]
mod manifest;
pub mod stream_dirs;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hashbrown::HashSet;
use millstream_base::disk::Access;
use millstream_base::{Disk, DiskFile, Position, StreamId};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::ids::{GroupName, LaneId};

const MARKER: &str = "millstream.data";
const MARKER_TEXT: &str = "millstream data, format ";

/// The format that this program writes, and the only one that it reads. Streams of the first one had
/// no identity.
pub const FORMAT: u32 = 2;

/// The record of a clean stop, and its next content until it takes that name.
const CLEAN_STOP: &str = "clean-stop";
const NEW_CLEAN_STOP: &str = "clean-stop.new";

/// A folder that file systems make at their root.
pub const LOST_AND_FOUND: &str = "lost+found";

/// The folders of the journal and of the streams.
const JOURNAL: &str = "journal";
const STREAMS: &str = "streams";

/// The endings of a group's file and of its index.
const LOG: &str = "log";
const INDEX: &str = "index";

/// The folder for the torn ends of files, and for files that `repair` takes away.
pub const ASIDE: &str = "aside";

/// The name in the data directory of the socket for clients on the same machine.
pub const SOCKET: &str = "socket";

/// An open, locked data directory.
pub struct DataDir {
    pub disk: Arc<dyn Disk>,
    pub root: PathBuf,
    /// Held for its lock, until [`DataDir::unlock`].
    marker: Mutex<Option<Box<dyn DiskFile>>>,
    /// Group files that are open.
    pub open_group_files: Arc<AtomicUsize>,
    /// Lanes that got a file since they were looked at for the last time.
    pub named: Mutex<Vec<LaneId>>,
    /// Streams whose folders exist and are synced.
    stream_dirs: Mutex<HashSet<StreamId>>,
}

impl DataDir {
    /// Opens or founds a data directory and takes its lock.
    pub fn open(disk: Arc<dyn Disk>, root: &Path) -> Result<DataDir> {
        disk.create_dir_all(root)
            .map_err(|error| LogError::io("create folder", root, error))?;
        let mut names: Vec<String> = list(&*disk, root)?;
        names.retain(|name| name != SOCKET);
        let path = root.join(MARKER);
        if names.is_empty() {
            found(&*disk, root, &path)?;
        } else if !names.iter().any(|name| name == MARKER) {
            return Err(LogError::ForeignFile {
                path: root.join(&names[0]),
            });
        }
        let marker = disk
            .open(&path, Access::Write)
            .map_err(|error| LogError::io("open for writing", &path, error))?;
        let locked = marker
            .try_lock()
            .map_err(|error| LogError::io("lock", &path, error))?;
        if !locked {
            return Err(LogError::Locked {
                dir: root.to_owned(),
            });
        }
        let mut text = [0; 64];
        let count = marker
            .read_full_at(&mut text, 0)
            .map_err(|error| LogError::io("read", &path, error))?;
        match parse_marker(&text[..count]) {
            Some(version) if version > FORMAT => {
                return Err(LogError::NewerFormat {
                    dir: root.to_owned(),
                    found: version,
                    known: FORMAT,
                });
            }
            Some(version) if version < FORMAT && names.len() > 1 => {
                return Err(LogError::OlderFormat {
                    dir: root.to_owned(),
                    found: version,
                    known: FORMAT,
                });
            }
            // Founding was interrupted: nothing is stored yet, and the marker may not be on the medium.
            _ if names.len() == 1 => found(&*disk, root, &path)?,
            Some(_) => {}
            None => return Err(LogError::ForeignFile { path }),
        }
        let is_known = |name: &&String| {
            matches!(
                name.as_str(),
                MARKER | JOURNAL | STREAMS | ASIDE | CLEAN_STOP | NEW_CLEAN_STOP
            )
        };
        if let Some(foreign) = names.iter().find(|name| !is_known(name)) {
            return Err(LogError::ForeignFile {
                path: root.join(foreign),
            });
        }
        let has = |folder: &str| names.iter().any(|name| name == folder);
        if has(JOURNAL) && !has(STREAMS) {
            let what = "the folder is missing, though the journal's is there";
            return Err(LogError::corrupted(root.join(STREAMS), Position(0), what));
        }
        if has(STREAMS) && !has(JOURNAL) && !list(&*disk, &root.join(STREAMS))?.is_empty() {
            let what = "the folder is missing, and chunks that it held after a crash are in no other file; if it is lost, or \
                        the last run ended in good order, make an empty one";
            return Err(LogError::corrupted(root.join(JOURNAL), Position(0), what));
        }
        let dir = DataDir {
            disk,
            root: root.to_owned(),
            marker: Mutex::new(Some(marker)),
            open_group_files: Arc::default(),
            named: Mutex::default(),
            stream_dirs: Mutex::default(),
        };
        // In this order: a journal without streams shows that these were removed.
        for path in [dir.streams_dir(), dir.journal_dir()] {
            dir.disk
                .create_dir_all(&path)
                .map_err(|error| LogError::io("create folder", path, error))?;
        }
        dir.sync_dir(root)?;
        Ok(dir)
    }

    /// Lets another log open the directory; nothing may be written any more.
    pub fn unlock(&self) {
        *self.marker.lock() = None;
    }

    pub fn clean_stop_path(&self) -> PathBuf {
        self.root.join(CLEAN_STOP)
    }

    pub fn new_clean_stop_path(&self) -> PathBuf {
        self.root.join(NEW_CLEAN_STOP)
    }

    pub fn journal_dir(&self) -> PathBuf {
        self.root.join(JOURNAL)
    }

    pub fn streams_dir(&self) -> PathBuf {
        self.root.join(STREAMS)
    }

    pub fn stream_dir(&self, stream: StreamId) -> PathBuf {
        self.streams_dir().join(stream.to_string())
    }

    pub fn group_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{LOG}"))
    }

    pub fn index_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{INDEX}"))
    }

    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk
            .sync_dir(path)
            .map_err(|error| LogError::io("sync folder", path, error))
    }
}

fn found(disk: &dyn Disk, root: &Path, marker: &Path) -> Result<()> {
    // The folders above may be new too. One that cannot be read was not made here.
    let above = root.ancestors().skip(1);
    for folder in above {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        match disk.sync_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
            result => result.map_err(|error| LogError::io("sync folder", folder, error))?,
        }
    }
    let write = || {
        let file = disk.open(marker, Access::Create)?;
        file.write_at(format!("{MARKER_TEXT}{FORMAT}\n").as_bytes(), 0)?;
        file.sync()?;
        disk.sync_dir(root)
    };
    write().map_err(|error| LogError::io("write", marker, error))
}

fn parse_marker(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.strip_prefix(MARKER_TEXT)?
        .strip_suffix('\n')?
        .parse()
        .ok()
}

/// Returns the names in a folder, without those of the file system itself.
pub fn list(disk: &dyn Disk, path: &Path) -> Result<Vec<String>> {
    let entries = disk
        .list(path)
        .map_err(|error| LogError::io("list", path, error))?;
    Ok(entries
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name != LOST_AND_FOUND)
        .collect())
}
