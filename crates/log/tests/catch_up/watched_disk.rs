//! The system's disk, with a record of the reads of groups' files, which a test can block.

use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::disk::{Access, DirEntry, SystemDisk};
use millstream_base::{Disk, DiskFile};
use parking_lot::{Condvar, Mutex};

use crate::TIMEOUT;

/// The kind of a read: the method of the disk that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadKind {
    Plain,
    Once,
    PastCache,
}

/// A read of a group's file.
#[derive(Debug, Clone)]
pub struct Request {
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
    pub kind: ReadKind,
    /// By a thread that reads ahead.
    pub is_ahead: bool,
}

/// Records the reads of groups' files, and makes some of them wait.
#[derive(Default)]
pub struct Watch {
    pub state: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Default)]
pub struct Watched {
    pub requests: Vec<Request>,
    pub in_flight: usize,
    pub in_flight_peak: usize,
    /// Reads of windows at 4 MiB or behind wait until this many have been in flight at once.
    pub together: usize,
    /// Reads of windows that begin here or behind wait.
    pub closed_from: Option<u64>,
    /// Reads of windows by the threads that read ahead wait.
    pub are_threads_held: bool,
}

impl Watch {
    fn begin(&self, request: Request) {
        let mut state = self.state.lock();
        let (kind, offset, is_ahead) = (request.kind, request.offset, request.is_ahead);
        state.requests.push(request);
        if kind == ReadKind::Plain {
            return;
        }
        state.in_flight += 1;
        state.in_flight_peak = state.in_flight_peak.max(state.in_flight);
        self.changed.notify_all();
        loop {
            let is_alone = offset >= 4 << 20 && state.in_flight_peak < state.together;
            let is_closed = state.closed_from.is_some_and(|from| offset >= from);
            let is_held = is_ahead && state.are_threads_held;
            if !is_alone && !is_closed && !is_held {
                return;
            }
            let waited = self.changed.wait_for(&mut state, TIMEOUT);
            assert!(!waited.timed_out(), "{} in flight", state.in_flight);
        }
    }

    fn end_window(&self) {
        self.state.lock().in_flight -= 1;
        self.changed.notify_all();
    }

    pub fn set(&self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    pub fn wait_until(&self, is_so: impl Fn(&Watched) -> bool) {
        let mut state = self.state.lock();
        while !is_so(&state) {
            let waited = self.changed.wait_for(&mut state, TIMEOUT);
            assert!(!waited.timed_out(), "{:?}", state.requests.last());
        }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    pub fn bytes(&self) -> u64 {
        self.requests().iter().map(|request| request.bytes).sum()
    }
}

/// The system's disk; a [`Watch`] observes the reads of groups' files.
pub struct WatchedDisk(pub Arc<Watch>);

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let file = SystemDisk.open(path, access)?;
        if access != Access::Read || path.extension().is_none_or(|extension| extension != "log") {
            return Ok(file);
        }
        Ok(Box::new(WatchedFile {
            file,
            path: path.to_owned(),
            watch: Arc::clone(&self.0),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        SystemDisk.create_dir_all(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        SystemDisk.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        SystemDisk.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        SystemDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        SystemDisk.sync_dir(path)
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        SystemDisk.sync_tree(path)
    }
}

struct WatchedFile {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    watch: Arc<Watch>,
}

impl WatchedFile {
    fn request(&self, buffer: &[u8], offset: u64, kind: ReadKind) -> Request {
        Request {
            path: self.path.clone(),
            offset,
            bytes: buffer.len() as u64,
            kind,
            is_ahead: std::thread::current().name() == Some("millstream-ahead"),
        }
    }
}

impl DiskFile for WatchedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.watch
            .begin(self.request(buffer, offset, ReadKind::Plain));
        self.file.read_at(buffer, offset)
    }

    fn read_past_cache_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let request = self.request(buffer, offset, ReadKind::PastCache);
        self.watch.begin(request);
        let read = self.file.read_past_cache_at(buffer, offset);
        self.watch.end_window();
        read
    }

    fn read_once_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.watch
            .begin(self.request(buffer, offset, ReadKind::Once));
        let read = self.file.read_once_at(buffer, offset);
        self.watch.end_window();
        read
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_at(parts, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.file.reserve(len)
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.file.try_lock()
    }
}
