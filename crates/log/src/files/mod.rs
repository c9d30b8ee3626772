//! Where things lie in a data directory, and what belongs there.
//!
//! ```text
//! millstream.data                          marker with the format's version; locked while in use
//! journal/<sequence>-<secret>.journal                                see `journal`
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>.log     chunks, one after another
//! streams/<stream>/<streamlet>-<lane>-<group>-<first offset>.index   see `index`
//! aside/torn.<start>.<stream>-<group's name>.<position>              what a start cut from a group's file
//! aside/<…>                                                          what `repair` took away
//! ```

pub mod disk_space;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hashbrown::HashSet;
use millstream_base::disk::Access;
use millstream_base::{
    Disk, DiskFile, GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex,
};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::ids::{GroupName, LaneId};

const MARKER: &str = "millstream.data";
const MARKER_TEXT: &str = "millstream data, format ";

/// The format that this program writes, and the only one that it reads. Streams of the first one had
/// no identity.
pub const FORMAT: u32 = 2;

/// A folder that file systems make at their root; nobody put it there.
pub const LOST_AND_FOUND: &str = "lost+found";

/// The folders of the journal and of the streams.
const JOURNAL: &str = "journal";
const STREAMS: &str = "streams";

/// The folder for what was cut from files, and for what `repair` takes away.
pub const ASIDE: &str = "aside";

/// What the names of files there begin with that are of streams the catalog lost.
const LOST_PREFIX: &str = "lost.";

/// How much is copied there at once.
const COPY_BYTES: usize = 1 << 20;

/// The name in the data directory of the socket where clients come in that run on the same machine.
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
            // Founding was cut off: nothing is stored yet, and the marker may not be on the medium.
            _ if names.len() == 1 => found(&*disk, root, &path)?,
            Some(_) => {}
            None => return Err(LogError::ForeignFile { path }),
        }
        if let Some(foreign) = names
            .iter()
            .find(|name| !matches!(name.as_str(), MARKER | JOURNAL | STREAMS | ASIDE))
        {
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
            let what = "the folder is missing, and what it held after a crash is in no other file; if it is lost, or \
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
        // In this order: a journal without streams tells that these were removed.
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

    pub fn journal_dir(&self) -> PathBuf {
        self.root.join(JOURNAL)
    }

    pub fn streams_dir(&self) -> PathBuf {
        self.root.join(STREAMS)
    }

    pub fn stream_dir(&self, stream: StreamId) -> PathBuf {
        self.streams_dir().join(stream.to_string())
    }

    pub fn group_path(&self, lane: LaneId, group: GroupId, first_offset: Offset) -> PathBuf {
        self.stream_dir(lane.stream).join(format!(
            "{}-{}-{:010}-{:020}.log",
            lane.streamlet, lane.lane, group.0, first_offset.0
        ))
    }

    /// The folder for what is taken away; made where it is missing.
    pub fn aside_dir(&self) -> Result<PathBuf> {
        let path = self.root.join(ASIDE);
        self.disk
            .create_dir_all(&path)
            .and_then(|()| self.disk.sync_dir(&self.root))
            .map_err(|error| LogError::io("create folder", &path, error))?;
        Ok(path)
    }

    /// What is in that folder whose name begins with `prefix` and a number.
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

    /// Makes sure that a stream's folder exists for good.
    pub fn create_stream_dir(&self, stream: StreamId) -> Result<()> {
        if self.stream_dirs.lock().contains(&stream) {
            return Ok(());
        }
        let path = self.stream_dir(stream);
        self.disk
            .create_dir_all(&path)
            .map_err(|error| LogError::io("create folder", path, error))?;
        self.stream_dirs.lock().insert(stream);
        Ok(())
    }

    /// Makes a stream's names durable: those in its folder, and the folder's.
    pub fn sync_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.sync_dir(&self.stream_dir(stream))?;
        self.sync_dir(&self.streams_dir())
    }

    pub fn sync_dir(&self, path: &Path) -> Result<()> {
        self.disk
            .sync_dir(path)
            .map_err(|error| LogError::io("sync folder", path, error))
    }

    /// Makes everything durable that was written to group files.
    pub fn sync_streams(&self) -> Result<()> {
        let path = self.streams_dir();
        self.disk
            .sync_tree(&path)
            .map_err(|error| LogError::io("sync folder", path, error))
    }

    /// The streams that have folders.
    pub fn list_streams(&self) -> Result<Vec<StreamId>> {
        let path = self.streams_dir();
        list(&*self.disk, &path)?
            .into_iter()
            .map(|name| match name.parse() {
                Ok(id) if StreamId(id).to_string() == name => Ok(StreamId(id)),
                _ => Err(LogError::ForeignFile {
                    path: path.join(name),
                }),
            })
            .collect()
    }

    /// The groups that have files in a stream's folder, and those that have an index only; in no
    /// particular order.
    pub fn list_groups(&self, stream: StreamId) -> Result<(Vec<GroupName>, Vec<GroupName>)> {
        let path = self.stream_dir(stream);
        let mut groups = Vec::new();
        let mut indexes = Vec::new();
        for name in list(&*self.disk, &path)? {
            let (stem, is_log) = match name.rsplit_once('.') {
                Some((stem, "log")) => (stem, true),
                Some((stem, "index")) => (stem, false),
                _ => (name.as_str(), false),
            };
            let Some((lane, group, offset)) = parse_group_name(stream, stem) else {
                return Err(LogError::ForeignFile {
                    path: path.join(name),
                });
            };
            if is_log {
                groups.push((lane, group, offset));
            } else {
                indexes.push((lane, group, offset));
            }
        }
        let known: HashSet<GroupName> = groups.iter().copied().collect();
        indexes.retain(|index| !known.contains(index));
        Ok((groups, indexes))
    }

    /// Moves what is in a stream's folder to the folder `aside`, and removes the folder. Answers what the
    /// files' names begin with there.
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

    /// Removes a stream's folder and all in it.
    pub fn remove_stream_dir(&self, stream: StreamId) -> Result<()> {
        self.stream_dirs.lock().remove(&stream);
        let path = self.stream_dir(stream);
        let names = match self.disk.list(&path) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(LogError::io("list", path, error)),
        };
        for entry in names {
            let path = path.join(entry.name);
            self.disk
                .remove_file(&path)
                .map_err(|error| LogError::io("remove", path, error))?;
        }
        self.disk
            .remove_dir(&path)
            .map_err(|error| LogError::io("remove folder", path, error))
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

fn parse_group_name(stream: StreamId, stem: &str) -> Option<(LaneId, GroupId, Offset)> {
    let mut numbers = stem.split('-');
    let lane = LaneId {
        stream,
        streamlet: StreamletIndex(numbers.next()?.parse().ok()?),
        lane: LaneIndex(numbers.next()?.parse().ok()?),
    };
    let group = GroupId(numbers.next()?.parse().ok()?);
    let offset = Offset(numbers.next()?.parse().ok()?);
    numbers.next().is_none().then_some((lane, group, offset))
}

/// The names in a folder, without what the file system itself puts there.
fn list(disk: &dyn Disk, path: &Path) -> Result<Vec<String>> {
    let entries = disk
        .list(path)
        .map_err(|error| LogError::io("list", path, error))?;
    Ok(entries
        .into_iter()
        .map(|entry| entry.name)
        .filter(|name| name != LOST_AND_FOUND)
        .collect())
}

/// Calls `each` with what a file holds in a range, part by part, up to the end of the file.
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
