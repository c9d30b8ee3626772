//! The simulated disk: its operations, its faults, and the ways a run on it ends.

use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::disk::{Access, DirEntry, Disk, DiskFile};
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use crate::Rng;
use crate::image::{FileId, HandleId, Image, Node, ROOT};
use crate::trace::{Operation, OperationKind};

/// The most bytes that a file may have: contents are in memory.
pub const FILE_BYTES_MAX: usize = 1 << 30;

/// A simulated disk. A clone is the same disk.
///
/// It holds what is visible and what is durable apart, as POSIX allows at its worst: a file's sync
/// does not make its name durable, and a folder's sync makes no file's content durable. The root
/// folder always exists; a folder below it has to be made durable by a sync of the folder above.
///
/// Paths are read from the root, whether or not they begin with `/`. Faults name files by the path
/// under which they were opened; those of a sync of a tree by the path they have.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// An image that a crash may have left, and when.
#[derive(Debug)]
pub struct CrashImage {
    /// How many operations came before the crash.
    pub operations: u64,
    /// What the disk then holds.
    pub disk: SimDisk,
}

/// Tells the paths that a fault concerns.
type Matcher = Box<dyn Fn(&Path) -> bool + Send>;

/// Runs before an operation on an open file.
type Hook = Arc<dyn Fn(&Path, &OperationKind) + Send + Sync>;

struct State {
    image: Image,
    rng: Rng,
    operations: u64,
    handles: u64,
    /// The operation at which the machine crashes.
    crash_at: Option<u64>,
    crashed: bool,
    is_read_only: bool,
    failing_sync: Option<Matcher>,
    failing_writes: Option<Matcher>,
    file_hook: Option<Hook>,
    trace: Option<Vec<Operation>>,
    /// The images after each operation, with the operations before them.
    recorded: Option<Vec<(u64, Image)>>,
}

impl SimDisk {
    /// An empty disk, whose choices (how much of a failing operation takes effect) follow from
    /// `seed`.
    pub fn new(seed: u64) -> Self {
        SimDisk::with_image(Image::empty(u64::MAX), Rng::with_seed(seed))
    }

    fn with_image(image: Image, rng: Rng) -> Self {
        let state = State {
            image,
            rng,
            operations: 0,
            handles: 0,
            crash_at: None,
            crashed: false,
            is_read_only: false,
            failing_sync: None,
            failing_writes: None,
            file_hook: None,
            trace: None,
            recorded: None,
        };
        SimDisk {
            state: Arc::new(Mutex::new(state)),
        }
    }

    // How a run ends.

    /// What a crash of the machine at this moment leaves. Faults are gone; the capacity stays, and
    /// so do the count and the trace of operations.
    ///
    /// Of every unsynced write any sectors may survive, in any order, and the length may be any
    /// that these justify. The unsynced changes of a folder's names survive up to some moment.
    pub fn crash(&self, rng: &mut Rng) -> SimDisk {
        let state = self.state.lock();
        let image = state.image.after_crash(rng);
        state.next_run(image, rng.fork())
    }

    /// What a kill of the process at this moment leaves: all that was written, though what was not
    /// synced may yet be lost in a crash. Locks and faults are gone; the rest is as for
    /// [`SimDisk::crash`].
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state.lock();
        let rng = state.rng.fork();
        state.next_run(state.image.after_kill(), rng)
    }

    /// Lets the machine crash at the `operations`-th operation from now, or at once if that is 0.
    /// That operation fails though it may have had effect, wholly or (a write) in part; from then
    /// on everything fails with "simulated crash".
    pub fn crash_at(&self, operations: u64) {
        let mut state = self.state.lock();
        state.crash_at = Some(state.operations + operations);
        state.crashed = operations == 0;
    }

    /// Whether the crash that [`SimDisk::crash_at`] asked for has happened.
    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// How many operations were asked for that change the disk or make changes durable.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    // Faults.

    /// Lets the next sync of a matching file or folder fail with `EIO`.
    ///
    /// As on Linux, what the file had unsynced stays visible and counts as written: a later sync
    /// succeeds and does not write it, and a crash shows that it is lost, or not, or in part. A
    /// folder's changes stay unsynced.
    pub fn fail_next_sync(&self, matches: impl Fn(&Path) -> bool + Send + 'static) {
        self.state.lock().failing_sync = Some(Box::new(matches));
    }

    /// Lets writes to matching files, and changes of their length or reservation, fail with `EIO`
    /// from now on. `|_| false` ends this.
    pub fn fail_writes(&self, matches: impl Fn(&Path) -> bool + Send + 'static) {
        self.state.lock().failing_writes = Some(Box::new(matches));
    }

    /// Calls `hook` before each change of an open file's content and each sync of an open file. The disk is
    /// not locked during the call, so `hook` may block the calling thread while others use the disk.
    pub fn before_file_operations(
        &self,
        hook: impl Fn(&Path, &OperationKind) + Send + Sync + 'static,
    ) {
        self.state.lock().file_hook = Some(Arc::new(hook));
    }

    /// Sets how many bytes all files together may have or reserve; what exceeds this fails with
    /// `ENOSPC`, a write perhaps after some of its bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().image.capacity = bytes;
    }

    /// Sets whether every change fails with `EROFS`.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.state.lock().is_read_only = is_read_only;
    }

    // Looking at the disk and spoiling it. None of this counts as an operation or meets a fault, and
    // what it leaves of a file, and the names in its folder, are durable.

    /// All files and their lengths, in the order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let image = &self.state.lock().image;
        let tree = image.tree(ROOT, Path::new("/")).into_iter();
        tree.filter_map(|(path, node)| match node {
            Node::File(file) => Some((path, image.content(file).bytes().len() as u64)),
            Node::Folder(_) => None,
        })
        .collect()
    }

    /// All bytes of a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let image = &self.state.lock().image;
        Ok(image.content(image.file(path.as_ref())?).bytes().to_vec())
    }

    /// Makes `bytes` the content of a file, which need not exist, in a folder, which must.
    ///
    /// # Errors
    /// When there is no such folder, or no room for another file.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let image = &mut self.state.lock().image;
        let (folder, name) = image.place(path.as_ref())?;
        let file = match image.child(folder, name) {
            Some(Node::File(file)) => file,
            Some(Node::Folder(_)) => return Err(Errno::ISDIR.into()),
            None => image.create_file(folder, name)?,
        };
        image.sync_names(&[folder]);
        image.replace(file, bytes.to_vec());
        Ok(())
    }

    /// Changes one bit of a file; bit 0 is the lowest of its first byte.
    ///
    /// # Errors
    /// When there is no such file or it has no such bit.
    pub fn flip_bit(&self, path: impl AsRef<Path>, bit: u64) -> io::Result<()> {
        let mut bytes = self.read_file(&path)?;
        let index = usize::try_from(bit / 8).unwrap_or(usize::MAX);
        *bytes.get_mut(index).ok_or(Errno::INVAL)? ^= 1 << (bit % 8);
        self.write_file(path, &bytes)
    }

    /// Cuts a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn truncate(&self, path: impl AsRef<Path>, len: usize) -> io::Result<()> {
        let mut bytes = self.read_file(&path)?;
        bytes.truncate(len);
        self.write_file(path, &bytes)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn remove(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let image = &mut self.state.lock().image;
        let (folder, _) = image.place(path.as_ref())?;
        image.remove_file(path.as_ref())?;
        image.sync_names(&[folder]);
        Ok(())
    }

    // Records of a run.

    /// Begins to note all operations.
    pub fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// The operations since [`SimDisk::start_trace`], those before a crash included.
    pub fn trace(&self) -> Vec<Operation> {
        self.state.lock().trace.clone().unwrap_or_default()
    }

    /// Begins to keep the disk as it is after each operation, for [`SimDisk::crash_images`]. Costs
    /// a copy of each changed file per operation: for short runs.
    pub fn start_recording(&self) {
        let mut state = self.state.lock();
        state.recorded = Some(vec![(state.operations, state.image.clone())]);
    }

    /// What a crash may leave after each operation since [`SimDisk::start_recording`], and before
    /// the first: `per_operation` images each. The same run and seed give the same images.
    pub fn crash_images(
        &self,
        per_operation: usize,
        seed: u64,
    ) -> impl Iterator<Item = CrashImage> + use<> {
        let recorded = self.state.lock().recorded.clone().unwrap_or_default();
        recorded.into_iter().flat_map(move |(operations, image)| {
            let mut rng = Rng::with_seed(seed.wrapping_add(operations));
            (0..per_operation).map(move |_| CrashImage {
                operations,
                disk: SimDisk::with_image(image.after_crash(&mut rng), rng.fork()),
            })
        })
    }

    /// Opens a file that exists, or was just created, for a handle of its own.
    fn handle(&self, state: &mut State, file: FileId, path: &Path, access: Access) -> SimFile {
        state.handles += 1;
        state.image.opened(file);
        SimFile {
            disk: self.clone(),
            id: file,
            path: path.to_owned(),
            is_writable: access != Access::Read,
            handle: HandleId(state.handles),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk")
            .field("operations", &self.operations())
            .field("files", &self.files())
            .finish()
    }
}

impl State {
    /// The disk on which the next run goes on with `image`.
    fn next_run(&self, image: Image, rng: Rng) -> SimDisk {
        let disk = SimDisk::with_image(image, rng);
        let mut state = disk.state.lock();
        state.operations = self.operations;
        state.trace = self.trace.clone();
        drop(state);
        disk
    }

    fn check_alive(&self) -> io::Result<()> {
        match self.crashed {
            true => Err(crash_error()),
            false => Ok(()),
        }
    }

    /// Runs one operation that counts.
    fn operate<T>(
        &mut self,
        path: &Path,
        kind: OperationKind,
        apply: impl FnOnce(&mut State) -> io::Result<T>,
    ) -> io::Result<T> {
        self.check_alive()?;
        self.operations += 1;
        self.crashed = self.crash_at == Some(self.operations);
        let result = match self.check_faults(path, &kind) {
            Err(error) => Err(error),
            Ok(()) if self.crashed && self.rng.bool() => Err(crash_error()),
            Ok(()) => apply(self),
        };
        let result = match self.crashed {
            true => Err(crash_error()),
            false => result,
        };
        if let Some(trace) = &mut self.trace {
            trace.push(Operation {
                number: self.operations,
                path: path.to_owned(),
                kind,
                error: result.as_ref().err().map(io::Error::kind),
            });
        }
        if let Some(recorded) = &mut self.recorded {
            recorded.push((self.operations, self.image.clone()));
        }
        result
    }

    fn check_faults(&self, path: &Path, kind: &OperationKind) -> io::Result<()> {
        if self.is_read_only && !kind.is_sync() {
            return Err(Errno::ROFS.into());
        }
        match &self.failing_writes {
            Some(matches) if kind.is_of_content() && matches(path) => Err(Errno::IO.into()),
            _ => Ok(()),
        }
    }

    /// Whether the sync of `path` is the one that has to fail.
    fn takes_sync_fault(&mut self, path: &Path) -> bool {
        self.failing_sync.take_if(|matches| matches(path)).is_some()
    }

    fn sync_file(&mut self, file: FileId, path: &Path) -> io::Result<()> {
        if self.takes_sync_fault(path) {
            self.image.fail_sync(file, &mut self.rng);
            return Err(Errno::IO.into());
        }
        self.image.sync(file);
        Ok(())
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let state = &mut *self.state.lock();
        state.check_alive()?;
        let (folder, name) = state.image.place(path)?;
        let file = match state.image.child(folder, name) {
            Some(Node::Folder(_)) => return Err(Errno::ISDIR.into()),
            Some(Node::File(_)) if state.is_read_only && access != Access::Read => {
                return Err(Errno::ROFS.into());
            }
            Some(Node::File(file)) => file,
            None if access == Access::Create => {
                let create = |state: &mut State| state.image.create_file(folder, name);
                state.operate(path, OperationKind::Create, create)?
            }
            None => return Err(Errno::NOENT.into()),
        };
        Ok(Box::new(self.handle(state, file, path, access)))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let state = &mut *self.state.lock();
        state.check_alive()?;
        let above: Vec<&Path> = path.ancestors().collect();
        for path in above.into_iter().rev() {
            match state.image.node(path) {
                Ok(Node::Folder(_)) => {}
                Ok(Node::File(_)) => return Err(Errno::EXIST.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let (parent, name) = state.image.place(path)?;
                    let create = |state: &mut State| state.image.create_folder(parent, name);
                    state.operate(path, OperationKind::CreateDir, create)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<DirEntry>> {
        let state = self.state.lock();
        state.check_alive()?;
        let names = state.image.names(state.image.folder(path)?);
        let entries = names.map(|(name, node)| DirEntry {
            name: name.to_string(),
            is_dir: matches!(node, Node::Folder(_)),
        });
        Ok(entries.collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let kind = OperationKind::Rename { to: to.to_owned() };
        let mut state = self.state.lock();
        state.operate(from, kind, |state| state.image.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::RemoveFile, |state| {
            state.image.remove_file(path)
        })
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::RemoveDir, |state| {
            state.image.remove_folder(path)
        })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::SyncDir, |state| {
            let folder = state.image.folder(path)?;
            if state.takes_sync_fault(path) {
                return Err(Errno::IO.into());
            }
            state.image.sync_names(&[folder]);
            Ok(())
        })
    }

    fn sync_tree(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.operate(path, OperationKind::SyncTree, |state| {
            let mut result = Ok(());
            let mut folders = Vec::new();
            for (path, node) in state.image.tree(state.image.folder(path)?, path) {
                match node {
                    Node::File(file) if state.image.is_dirty(file) => {
                        result = result.and(state.sync_file(file, &path));
                    }
                    Node::File(_) => {}
                    Node::Folder(folder) => folders.push((path, folder)),
                }
            }
            let mut synced = Vec::new();
            for (path, folder) in folders {
                match state.takes_sync_fault(&path) {
                    true => result = Err(Errno::IO.into()),
                    false => synced.push(folder),
                }
            }
            state.image.sync_names(&synced);
            result
        })
    }
}

struct SimFile {
    disk: SimDisk,
    id: FileId,
    path: PathBuf,
    is_writable: bool,
    handle: HandleId,
}

impl SimFile {
    /// Locks the disk for an operation, after the hook of [`SimDisk::before_file_operations`].
    fn lock_for(&self, kind: &OperationKind) -> MutexGuard<'_, State> {
        let hook = self.disk.state.lock().file_hook.clone();
        if let Some(hook) = hook {
            hook(&self.path, kind);
        }
        self.disk.state.lock()
    }

    /// Runs an operation that changes the content.
    fn change(
        &self,
        kind: OperationKind,
        apply: impl FnOnce(&mut State) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.is_writable {
            return Err(Errno::BADF.into());
        }
        self.lock_for(&kind).operate(&self.path, kind, apply)
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.disk.state.lock();
        state.check_alive()?;
        let bytes = state.image.content(self.id).bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let found = bytes.get(start..).unwrap_or_default();
        let count = found.len().min(buffer.len());
        buffer[..count].copy_from_slice(&found[..count]);
        Ok(count)
    }

    fn write_all_at(&self, parts: &mut [IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(len);
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        let end = size(offset.saturating_add(len as u64))?;
        let kind = OperationKind::Write {
            offset,
            len: len as u64,
        };
        self.change(kind, |state| {
            if state.crashed {
                bytes.truncate(state.rng.usize(..=len));
            }
            let at = end - len;
            state.image.write(self.id, at, bytes, &mut state.rng)
        })
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock_for(&OperationKind::Sync);
        state.operate(&self.path, OperationKind::Sync, |state| {
            state.sync_file(self.id, &self.path)
        })
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.disk.state.lock();
        state.check_alive()?;
        Ok(state.image.content(self.id).bytes().len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let size = size(len)?;
        self.change(OperationKind::SetLen { len }, |state| {
            state.image.set_len(self.id, size)
        })
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let size = size(len)?;
        self.change(OperationKind::Reserve { len }, |state| {
            state.image.reserve(self.id, size)
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.disk.state.lock();
        state.check_alive()?;
        Ok(state.image.try_lock(self.id, self.handle))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        state.image.closed(self.id, self.handle);
    }
}

fn crash_error() -> io::Error {
    io::Error::other("simulated crash")
}

/// A length of a file, where it is possible.
fn size(len: u64) -> io::Result<usize> {
    match usize::try_from(len) {
        Ok(size) if size <= FILE_BYTES_MAX => Ok(size),
        _ => Err(Errno::FBIG.into()),
    }
}
