//! The simulated disk: its faults, its records, and the ways in which a run on it ends.

mod damage;
mod operations;

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::Rng;
use crate::image::{FileId, Image};
use crate::trace::{Operation, OperationKind};

/// The most bytes of a file, since contents are in memory.
pub const FILE_BYTES_MAX: usize = 1 << 30;

/// A simulated disk. A clone is the same disk.
///
/// It holds the visible and the durable state apart, in the worst form that POSIX allows: a file's
/// sync does not make its name durable, and a folder's sync makes no file's content durable. The root
/// folder always exists; a folder below it becomes durable by a sync of the folder above.
///
/// Paths start at the root, with or without a leading `/`. Faults name files by the path under which
/// they were opened; faults of a sync of a tree by their present path.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// A disk that a crash may leave, and the time of the crash.
#[derive(Debug)]
pub struct CrashImage {
    /// The number of operations before the crash.
    pub operations: u64,
    /// The disk after the crash.
    pub disk: SimDisk,
}

/// Selects the paths that a fault concerns.
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
    /// The image after each operation, with the operation's number.
    recorded: Option<Vec<(u64, Image)>>,
}

impl SimDisk {
    /// Creates an empty disk. `seed` decides its random choices, such as how much of a failing operation
    /// takes effect.
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

    /// Returns the disk after a crash of the machine at this moment. It has no faults, and retains the
    /// capacity, and the count and the trace of operations.
    ///
    /// Of every unsynced write any sectors may survive, in any order, and the length may be any
    /// that these justify. The unsynced changes of a folder's names survive up to some moment.
    pub fn crash(&self, rng: &mut Rng) -> SimDisk {
        let state = self.state.lock();
        let image = state.image.after_crash(rng);
        state.next_run(image, rng.fork())
    }

    /// Returns the disk after a kill of the process at this moment. It holds all written bytes, though a
    /// crash may still lose those that were not synced. It has no locks and no faults; the rest is as for
    /// [`SimDisk::crash`].
    pub fn kill(&self) -> SimDisk {
        let mut state = self.state.lock();
        let rng = state.rng.fork();
        state.next_run(state.image.after_kill(), rng)
    }

    /// Lets the machine crash at the `operations`-th operation from now, or at once if that is 0.
    /// That operation fails, though it may have taken effect, wholly or (a write) in part. From then
    /// on all operations fail with "simulated crash".
    pub fn crash_at(&self, operations: u64) {
        let mut state = self.state.lock();
        state.crash_at = Some(state.operations + operations);
        state.crashed = operations == 0;
    }

    /// Whether the crash that [`SimDisk::crash_at`] asked for has happened.
    pub fn has_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// The number of calls so far that change the disk or make changes durable, failed ones included.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    // Faults.

    /// Lets the next sync of a matching file or folder fail with `EIO`.
    ///
    /// As on Linux, the unsynced changes of the file stay visible and count as written: a later sync
    /// succeeds without writing them, and a crash may lose all of them, some or none. A folder's changes
    /// stay unsynced.
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

    /// Sets the number of bytes that all files together may have or reserve. An operation beyond it fails
    /// with `ENOSPC`; a write perhaps after some of its bytes.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().image.capacity = bytes;
    }

    /// Sets whether every change fails with `EROFS`.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.state.lock().is_read_only = is_read_only;
    }

    // Records of a run.

    /// Begins to record all operations.
    pub fn start_trace(&self) {
        self.state.lock().trace = Some(Vec::new());
    }

    /// The operations since [`SimDisk::start_trace`], including those before a crash.
    pub fn trace(&self) -> Vec<Operation> {
        self.state.lock().trace.clone().unwrap_or_default()
    }

    /// Begins to record the disk after each operation, for [`SimDisk::crash_images`]. It costs a copy of
    /// each changed file per operation, so use it for short runs.
    pub fn start_recording(&self) {
        let mut state = self.state.lock();
        state.recorded = Some(vec![(state.operations, state.image.clone())]);
    }

    /// Returns disks that a crash may leave: `per_operation` of them after each operation since
    /// [`SimDisk::start_recording`], and before the first. The same run and seed give the same images.
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
    /// The disk of the next run, with the content of `image`.
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

    /// Counts, runs and records one operation.
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

    /// Takes the fault of the next sync, if it matches `path`. Returns whether it did.
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

fn crash_error() -> io::Error {
    io::Error::other("simulated crash")
}
