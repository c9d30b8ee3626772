//! Catch-up reads: from the groups' files, where the pool no longer holds the segments.
//!
//! A read that begins where an earlier read ended is sequential, and goes through *windows*: up to
//! 1 MiB of whole chunks each, read past the system's cache into the catch-up memory. Threads read the
//! next windows while the reader works on this one. How many there are, and how large, grows with each
//! window that it comes to.
//! A window stays in memory until another one needs the room, so readers close behind one another read
//! the disk once. Any other read takes from the file what it needs and no more, through the system's
//! cache, which keeps what is looked up again and again.
//!
//! Reading ahead reports no errors. A window that cannot be read is forgotten, and one that holds damage
//! ends before it; the reader that comes there reads by itself and finds the error.

mod file;
mod runs;
pub mod windows;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::disk::Access;
use millstream_base::{Clock, DiskFile, Position};
use parking_lot::{Condvar, Mutex};

use crate::abort::AbortOnPanic;
use crate::error::Result;
use crate::files::DataDir;
use crate::group::Group;
use crate::lane::LaneState;
use crate::memory::pool::{Arena, BufferWriter, Pool, Slice};
use crate::read::catch_up::file::{ReadMode, load};
use crate::read::catch_up::runs::{Plan, Runs};
use crate::read::catch_up::windows::{AHEAD_SHARE, MayGo, WindowKey, Windows, block_bytes, key};
use crate::read::index_cache::IndexCache;
use crate::settings::config::Background;

/// The most windows in memory: beyond them, one more costs more to find than it helps.
const WINDOWS_MAX: usize = 256;

/// Threads that read ahead: the most requests in flight beside the readers' own.
const THREADS_MAX: usize = 8;

/// A thread that has had nothing to read for so long ends.
const THREAD_IDLE_MAX: Duration = Duration::from_secs(10);

/// The catch-up memory's windows, and the threads that fill them.
pub struct CatchUp {
    dir: Arc<DataDir>,
    clock: Arc<dyn Clock>,
    indexes: Arc<IndexCache>,
    shared: Arc<Shared>,
}

struct Shared {
    pool: Arc<Pool>,
    /// None where the caller does the background work: then the reader itself reads ahead.
    threads_max: usize,
    state: Mutex<State>,
    /// Notified when there is something to load, and at the end.
    work: Condvar,
    /// Notified when a window is loaded or forgotten, and when a thread ends.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    windows: Windows,
    runs: Runs,
    queue: VecDeque<Load>,
    threads: usize,
    idle_threads: usize,
    /// A reader found no memory. Until half of it is free no window is kept, so that memory comes
    /// free, and is announced, when readers let go of it.
    is_short: bool,
    is_closed: bool,
}

/// A window that waits for a thread.
struct Load {
    file: Arc<dyn DiskFile>,
    path: PathBuf,
    group: Arc<Group>,
    range: Range<Position>,
    writer: BufferWriter,
}

/// What a read is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Data for a reader, which may read on behind it.
    ReadOn,
    /// To find a chunk: where such reads begin and end says nothing of those to come.
    LookUp,
}

/// Where a read finds its bytes.
enum Found {
    /// In a window; perhaps more is to be read ahead.
    InWindow(Slice, Option<Plan>),
    /// On disk, where an earlier read ended. How large its window is to be.
    BehindRead(usize),
    /// Elsewhere on disk.
    Elsewhere,
}

/// What became of a reader's own window.
enum Own {
    Loaded(Slice),
    /// Another reader was faster.
    IsThere,
    /// It cannot be read as a window.
    Failed,
}

impl CatchUp {
    pub fn new(
        dir: Arc<DataDir>,
        clock: Arc<dyn Clock>,
        indexes: Arc<IndexCache>,
        pool: Arc<Pool>,
        background: Background,
    ) -> CatchUp {
        CatchUp {
            dir,
            clock,
            indexes,
            shared: Arc::new(Shared {
                pool,
                threads_max: match background {
                    Background::Threads => THREADS_MAX,
                    Background::Manual => 0,
                },
                state: Mutex::default(),
                work: Condvar::new(),
                changed: Condvar::new(),
            }),
        }
    }

    /// Reads a group's file where a chunk starts, within a range that is synced and may be read: at most
    /// `bytes_max`, unless one chunk is larger or memory has more.
    pub fn read(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        range: Range<Position>,
        bytes_max: usize,
        purpose: Purpose,
    ) -> Result<Slice> {
        let from = range.start;
        loop {
            match self.find(group, from, purpose) {
                Found::InWindow(slice, plan) => {
                    if let Some(plan) = plan {
                        self.read_ahead(lane, plan);
                    }
                    return Ok(slice);
                }
                Found::BehindRead(window_bytes) => {
                    match self.read_window(lane, group, from, window_bytes.max(bytes_max)) {
                        Own::Loaded(slice) => return Ok(slice),
                        Own::IsThere => {}
                        Own::Failed => break,
                    }
                }
                Found::Elsewhere => break,
            }
        }
        let slice = self.read_piece(group, range, bytes_max)?;
        if purpose == Purpose::ReadOn {
            let end = from.plus(slice.len() as u64);
            let now = self.clock.monotonic();
            self.shared.state.lock().runs.begin(group, end, now);
        }
        Ok(slice)
    }

    /// A block for `bytes` that a reader is to get; windows that no reader holds make room for it. `None`
    /// when readers hold all.
    pub fn allocate(&self, bytes: usize) -> Option<BufferWriter> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        loop {
            if let Some(writer) = shared.pool.allocate(Arena::Windows, bytes) {
                return Some(writer);
            }
            if state.windows.forget_one(MayGo::All, 0) {
                continue;
            }
            if !state.windows.are_loading() {
                break;
            }
            shared.changed.wait(&mut state);
        }
        state.is_short = true;
        state.windows.clear();
        None
    }

    /// Forgets what memory has of files: the next reads see what the disk has.
    pub fn forget(&self) {
        self.shared.state.lock().windows.clear();
    }

    /// Ends the threads; what they are reading is read to its end.
    pub fn close(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.is_closed = true;
        for load in std::mem::take(&mut state.queue) {
            let window = key(&load.group, load.range.start);
            state.windows.remove_unloaded(&window);
        }
        shared.work.notify_all();
        shared.changed.notify_all();
        while state.threads > 0 {
            shared.changed.wait(&mut state);
        }
    }

    /// Looks for a window; waits for one that is being loaded.
    fn find(&self, group: &Arc<Group>, from: Position, purpose: Purpose) -> Found {
        let shared = &self.shared;
        let now = self.clock.monotonic();
        let memory = shared.pool.size_bytes(Arena::Windows);
        let mut state = shared.state.lock();
        loop {
            let State { windows, runs, .. } = &mut *state;
            let Some(window) = windows.at(group, from) else {
                break;
            };
            if let Some(slice) = window.read(from, runs.turns()) {
                let plan = match purpose {
                    Purpose::ReadOn => runs.go_on(group, from, window.end, memory, now),
                    Purpose::LookUp => None,
                };
                return Found::InWindow(slice, plan);
            }
            shared.changed.wait(&mut state);
        }
        match state.runs.window_at(group, from, memory, now) {
            Some(window_bytes) if purpose == Purpose::ReadOn => Found::BehindRead(window_bytes),
            _ => Found::Elsewhere,
        }
    }

    /// Loads the window that begins at `from`, while threads load those behind it.
    fn read_window(
        &self,
        lane: &LaneState,
        group: &Arc<Group>,
        from: Position,
        window_bytes: usize,
    ) -> Own {
        let Some(range) = self.window_range(lane, group, from, window_bytes) else {
            return Own::Failed;
        };
        let path = group.path(&self.dir);
        let Ok(file) = self.dir.disk.open(&path, Access::Read) else {
            return Own::Failed;
        };
        let Some(writer) = self.allocate(block_bytes(&range)) else {
            return Own::Failed;
        };
        let (range, plan) = {
            let memory = self.shared.pool.size_bytes(Arena::Windows);
            let State { windows, runs, .. } = &mut *self.shared.state.lock();
            if windows.at(group, from).is_some() {
                return Own::IsThere;
            }
            let range = windows.add(group, range, true, runs.turns());
            runs.missed(group, from);
            let now = self.clock.monotonic();
            let plan = runs.go_on(group, from, range.end, memory, now);
            (range, plan)
        };
        let loading = Loading {
            shared: &self.shared,
            window: key(group, from),
        };
        // First, so that these requests are under way beside the reader's own.
        if let Some(plan) = plan {
            self.read_ahead(lane, plan);
        }
        match load(&*file, &path, group, range, writer, ReadMode::BypassCache) {
            Ok(slice) => {
                loading.end(slice.clone());
                Own::Loaded(slice)
            }
            Err(_) => Own::Failed,
        }
    }

    /// Has the windows of a plan loaded.
    fn read_ahead(&self, lane: &LaneState, plan: Plan) {
        let shared = &self.shared;
        let mut at = plan.from.clone();
        let mut planned = 0;
        let mut open: Option<(PathBuf, Arc<dyn DiskFile>)> = None;
        while planned < plan.count {
            let Some((group, range)) = self.next_window(lane, &at.0, at.1, plan.window_bytes)
            else {
                break;
            };
            let path = group.path(&self.dir);
            let file = match open.take().filter(|(of, _)| *of == path) {
                Some((_, file)) => file,
                None => match self.dir.disk.open(&path, Access::Read) {
                    Ok(file) => Arc::from(file),
                    Err(_) => break,
                },
            };
            open = Some((path.clone(), Arc::clone(&file)));
            let mut state = shared.state.lock();
            if let Some(window) = state.windows.at(&group, range.start) {
                at = (group, window.end);
            } else {
                let Some(writer) = shared.allocate_ahead(&mut state, block_bytes(&range)) else {
                    break;
                };
                let turn = state.runs.turns();
                let range = state.windows.add(&group, range, false, turn);
                at = (Arc::clone(&group), range.end);
                state.queue.push_back(Load {
                    file,
                    path,
                    group,
                    range,
                    writer,
                });
                shared.wake_thread(&mut state);
            }
            planned += 1;
        }
        let mut state = shared.state.lock();
        state.runs.planned(&plan, at, plan.count - planned);
        // Without threads the reader does their work.
        while state.threads == 0
            && let Some(load) = state.queue.pop_front()
        {
            drop(state);
            shared.load(load);
            state = shared.state.lock();
        }
    }
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// A block for a window that no reader has come to yet; `None` when such windows have their share.
    fn allocate_ahead(&self, state: &mut State, bytes: usize) -> Option<BufferWriter> {
        let size = self.pool.size_bytes(Arena::Windows);
        if state.is_short && self.pool.used_bytes(Arena::Windows) <= size / 2 {
            state.is_short = false;
        }
        if state.is_short || state.is_closed {
            return None;
        }
        let turn = state.runs.turns();
        loop {
            let is_over_share = state.windows.unread_bytes() + bytes > size / AHEAD_SHARE;
            if !is_over_share
                && state.windows.len() < WINDOWS_MAX
                && let Some(writer) = self.pool.allocate(Arena::Windows, bytes)
            {
                return Some(writer);
            }
            let may_go = match is_over_share {
                true => MayGo::Abandoned,
                false => MayGo::ReadAndAbandoned,
            };
            if !state.windows.forget_one(may_go, turn) {
                return None;
            }
        }
    }

    /// Sees to it that a thread takes what was queued, if there can be any.
    fn wake_thread(self: &Arc<Self>, state: &mut State) {
        if state.queue.len() <= state.idle_threads {
            self.work.notify_one();
            return;
        }
        if state.threads >= self.threads_max {
            return;
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("millstream-ahead".to_owned());
        let spawned = thread.spawn(move || {
            let _abort = AbortOnPanic;
            shared.load_all();
        });
        // Where none can be had, the reader does its work.
        if spawned.is_ok() {
            state.threads += 1;
        }
    }

    /// A thread's work, until there is none for a while.
    fn load_all(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(load) = state.queue.pop_front() {
                drop(state);
                self.load(load);
                state = self.state.lock();
                continue;
            }
            if state.is_closed {
                break;
            }
            state.idle_threads += 1;
            let is_over = self.work.wait_for(&mut state, THREAD_IDLE_MAX).timed_out();
            state.idle_threads -= 1;
            if is_over && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        self.changed.notify_all();
    }

    fn load(&self, planned: Load) {
        let Load {
            file,
            path,
            group,
            range,
            writer,
        } = planned;
        let loading = Loading {
            shared: self,
            window: key(&group, range.start),
        };
        if let Ok(slice) = load(&*file, &path, &group, range, writer, ReadMode::BypassCache) {
            loading.end(slice);
        }
    }
}

/// A window that is being loaded; forgotten when it cannot be.
struct Loading<'s> {
    shared: &'s Shared,
    window: WindowKey,
}

impl Loading<'_> {
    fn end(self, slice: Slice) {
        let mut state = self.shared.state.lock();
        if !state.is_short {
            state.windows.loaded(&self.window, slice);
        }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.windows.remove_unloaded(&self.window);
        self.shared.changed.notify_all();
    }
}
