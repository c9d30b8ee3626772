//! The key files that lookups use: their filters and block lists in a bounded cache, and their blocks on disk.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use millstream_base::disk::Access;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use rustix::io::Errno;

use crate::error::LogError;
use crate::files::DataDir;
use crate::group::Group;
use crate::keys::file::KeyFileError;
use crate::keys::file::read::{KeyFile, ReadBytes};
use crate::keys::kind::KeyKind;

/// The key files of a log. When the parts in memory are too many, those go that were not used since the cache last looked
/// at them.
pub struct KeyFiles {
    dir: Arc<DataDir>,
    /// The most memory for filters and block lists, over all groups.
    bytes_max: usize,
    cached: Mutex<Cached>,
    /// Whether key files may be made. Locked for reading while one is made.
    is_open: RwLock<bool>,
    /// Tells the threads that make key files to stop.
    is_closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Cached {
    /// Each group with its bytes in memory; the group that the cache checked longest ago comes first.
    groups: VecDeque<(Weak<Group>, KeyKind, usize)>,
    bytes: usize,
}

/// The key file of a group, of which memory has filters and block list.
pub struct OpenKeyFile {
    pub group: Arc<Group>,
    kind: KeyKind,
    pub keys: Arc<KeyFile>,
    dir: Arc<DataDir>,
}

/// A key file cannot be read.
pub struct Unreadable {
    pub group: Arc<Group>,
    /// The parts that were in memory.
    pub used: Option<Arc<KeyFile>>,
    pub error: KeyFileError,
}

impl KeyFiles {
    pub fn new(dir: Arc<DataDir>, bytes_max: usize) -> KeyFiles {
        KeyFiles {
            dir,
            bytes_max,
            cached: Mutex::default(),
            is_open: RwLock::new(true),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Returns a key file of a closed group; reads the parts that memory does not have.
    pub fn open(&self, group: &Arc<Group>, kind: &KeyKind) -> Result<OpenKeyFile, Unreadable> {
        let keys = match group.loaded_keys(kind) {
            Some(keys) => keys,
            None => self.load(group, kind).map_err(|error| Unreadable {
                group: Arc::clone(group),
                used: None,
                error,
            })?,
        };
        Ok(OpenKeyFile {
            group: Arc::clone(group),
            kind: kind.clone(),
            keys,
            dir: Arc::clone(&self.dir),
        })
    }

    fn load(&self, group: &Arc<Group>, kind: &KeyKind) -> Result<Arc<KeyFile>, KeyFileError> {
        let Some(end) = group.end() else {
            return Err(io::Error::from(io::ErrorKind::NotFound).into());
        };
        let (name, disk) = (group.name(), &self.dir.disk);
        let file = disk.open(&self.dir.key_file_path(&name, kind), Access::Read)?;
        let keys = Arc::new(KeyFile::open(&*file, &name, kind, end.offset)?);
        if group.set_loaded_keys(kind, Arc::clone(&keys)) {
            self.add(group, kind, keys.memory_bytes());
        }
        Ok(keys)
    }

    fn add(&self, group: &Arc<Group>, kind: &KeyKind, bytes: usize) {
        let mut cached = self.cached.lock();
        let place = (Arc::downgrade(group), kind.clone(), bytes);
        cached.groups.push_back(place);
        cached.bytes += bytes;
        // Lookups mark each at most once more meanwhile, so this ends.
        for _ in 0..2 * cached.groups.len() {
            if cached.bytes <= self.bytes_max {
                break;
            }
            let Some((oldest, kind, bytes)) = cached.groups.pop_front() else {
                break;
            };
            match oldest.upgrade() {
                Some(oldest) if oldest.keys_are_used(&kind) => {
                    let place = (Arc::downgrade(&oldest), kind, bytes);
                    cached.groups.push_back(place);
                }
                oldest => {
                    cached.bytes -= bytes;
                    oldest.inspect(|group| group.forget_loaded(&kind));
                }
            }
        }
    }

    /// Returns the right to write key files; `None` after the end of the log.
    pub fn begin_build(&self) -> Option<RwLockReadGuard<'_, bool>> {
        // Only the end of the log writes, and waits for a compaction, which may wait for the caller.
        let is_open = self.is_open.try_read()?;
        (*is_open && !self.is_closing()).then_some(is_open)
    }

    /// Whether threads that make key files must stop.
    pub fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed)
    }

    /// Waits until no key file is being made. None is made from here on.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        *self.is_open.write() = false;
    }
}

/// It has no open file between two reads, since lanes may have more groups than a process may have open files.
impl ReadBytes for OpenKeyFile {
    fn read_bytes(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let path = self.dir.key_file_path(&self.group.name(), &self.kind);
        let file = self.dir.disk.open(&path, Access::ReadHereAndThere)?;
        file.read_full_at(buffer, position)
    }
}

impl OpenKeyFile {
    /// Returns that it cannot be read.
    pub fn unreadable(&self, error: KeyFileError) -> Unreadable {
        Unreadable {
            group: Arc::clone(&self.group),
            used: Some(Arc::clone(&self.keys)),
            error,
        }
    }
}

/// Whether the process has too many open files: then a key file that cannot be opened need not be damaged.
pub fn is_out_of_files(error: &KeyFileError) -> bool {
    let KeyFileError::Io(error) = error else {
        return false;
    };
    let codes = [Errno::MFILE, Errno::NFILE];
    let code = error.raw_os_error();
    code.is_some_and(|code| codes.iter().any(|known| known.raw_os_error() == code))
}

/// Returns the error of a key file of a group, with its path.
pub fn named(dir: &DataDir, group: &Group, kind: &KeyKind, error: KeyFileError) -> LogError {
    let path = dir.key_file_path(&group.name(), kind);
    match error {
        KeyFileError::Io(error) => LogError::io("read", path, error),
        KeyFileError::Damaged { position, what } => {
            LogError::corrupted(path, millstream_base::Position(position), what)
        }
    }
}
