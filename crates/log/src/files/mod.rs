//! The data directory: its layout, its lock, and the files that belong there.
//!
//! ```text
//! millstream.data                          marker with the format's version; locked while in use
//! manifest                                 see `manifest`; manifest.new is its next content
//! clean-stop                               see `clean_stop`; clean-stop.new is its next content
//! journal/<sequence>-<secret>.journal                                see `journal`
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>-<gen>.log     see `group_head`, then chunks, one after another
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>.log           the same of format 2: chunks, one after another
//!                                                    ….index               see `index`
//!                                                    ….keys                see `keys::file`; .keys.new and .keys.<n>.new are not finished
//!                                                    ….by-<name>           the same of secondary keys with this name
//! aside/torn.<start>.<stream>-<group's name>.<position>              the torn end that a start truncated from a file
//! aside/<…>                                                          files and parts of files that `repair` took away
//! ```
//!
//! One process has a data directory open. A file or folder that does not belong there is refused and never removed. This folder
//! knows the names of all files, and the content only of marker, manifest, heads and the record of a clean stop.

pub mod aside;
pub mod clean_stop;
pub mod disk_space;
pub mod group_head;
pub mod key_files;
pub mod manifest;
mod marker;
pub mod stream_dirs;
pub mod upgrade;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use millstream_base::{Disk, DiskFile, Random, StreamId};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::manifest::Manifest;
use crate::ids::GroupName;
use crate::keys::secondary::name::SecondaryName;

pub use crate::files::marker::FORMAT;

/// The record of a clean stop, and its next content until it takes that name.
const CLEAN_STOP: &str = "clean-stop";
const NEW_CLEAN_STOP: &str = "clean-stop.new";

/// A folder that file systems make at their root.
pub const LOST_AND_FOUND: &str = "lost+found";

/// The folders of the journal and of the streams.
const JOURNAL: &str = "journal";
const STREAMS: &str = "streams";

/// The endings of a group's file, of its index, and of its key file.
const LOG: &str = "log";
const INDEX: &str = "index";
const KEYS: &str = "keys";

/// The beginning of the ending of a file of secondary keys; the name of their index follows.
const KEYS_BY: &str = "by-";

/// The folder for the torn ends of files, and for files that `repair` takes away.
pub const ASIDE: &str = "aside";

/// The name in the data directory of the socket for clients on the same machine.
pub const SOCKET: &str = "socket";

/// A locked data directory.
pub struct DataDir {
    pub disk: Arc<dyn Disk>,
    pub root: PathBuf,
    /// Held for its lock, until [`DataDir::unlock`].
    marker: Mutex<Option<Box<dyn DiskFile>>>,
    /// Whether it was of an earlier format when it was opened.
    pub is_upgraded: bool,
    /// Set when the directory is open.
    manifest: OnceLock<Manifest>,
    /// Group files that are open.
    pub open_group_files: Arc<AtomicUsize>,
    /// Streams whose folders exist, and whether that is durable.
    stream_dirs: Mutex<HashMap<StreamId, bool>>,
    /// The indexes of secondary keys for which a stream's folder may have files.
    secondary: Mutex<HashMap<StreamId, BTreeSet<SecondaryName>>>,
}

impl DataDir {
    /// Opens or founds a data directory and takes its lock. One of format 2 becomes one of this format.
    pub fn open(disk: Arc<dyn Disk>, random: Arc<dyn Random>, root: &Path) -> Result<DataDir> {
        let (mut dir, format) = DataDir::lock(disk, root)?;
        dir.is_upgraded = format < FORMAT;
        let manifest = dir.find_manifest(random, format)?;
        let _ = dir.manifest.set(manifest);
        // In this order: a journal without streams shows that these were removed. And behind the manifest: streams
        // without one show that it was removed.
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

    /// The list of its files.
    pub fn manifest(&self) -> &Manifest {
        self.manifest.get().expect("set when it was opened")
    }

    pub fn manifest_path(&self) -> PathBuf {
        self.root.join(manifest::NAME)
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

    pub fn keys_path(&self, name: &GroupName) -> PathBuf {
        self.stream_dir(name.lane.stream)
            .join(format!("{name}.{KEYS}"))
    }

    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk
            .sync_dir(path)
            .map_err(|error| LogError::io("sync folder", path, error))
    }
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
