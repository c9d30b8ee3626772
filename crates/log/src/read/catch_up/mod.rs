//! Catch-up reads: from the groups' files, where the pool no longer holds the segments.
//!
//! A read that begins where an earlier read ended is sequential, and goes through *windows*: up to
//! 1 MiB of whole chunks each, read past the system's cache into the catch-up memory; those of
//! [`Written`](crate::Durability::Written) streams are read through it, since it has the bytes that were written last.
//! Threads of low priority read the next windows while the reader works on this one. A reader that comes to a window before
//! them reads it itself. The number of windows ahead, and their size, grow with each window that the reader comes to.
//! A window stays in memory until another one needs the room, or there is no read for some seconds, so readers close behind one
//! another read the disk once. Any other read takes from the file only the bytes that it needs, through the system's
//! cache, which keeps bytes that are looked up again and again.
//!
//! Reading ahead reports no errors. A window that cannot be read is forgotten, and one that holds damage
//! ends before it; the reader that comes there reads by itself and finds the error.

pub mod ahead;
mod file;
mod runs;
pub mod windows;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::disk::Access;
use millstream_base::{Clock, Position};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Result;
use crate::files::DataDir;
use crate::group::Group;
use crate::lane::LaneState;
use crate::memory::buffer::{BufferWriter, Slice};
use crate::memory::pool::{Arena, Pool};
use crate::read::catch_up::ahead::{Load, Loading, THREADS_MAX};
use crate::read::catch_up::file::{ReadMode, load};
use crate::read::catch_up::runs::{Plan, Runs};
use crate::read::catch_up::windows::{MayGo, Windows, block_bytes, key};
use crate::read::index_cache::IndexCache;
use crate::settings::config::Background;

/// Without a read for this long, no window stays in memory. A consumer that polls every few seconds still finds the windows
/// that were read ahead of it.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// The catch-up memory's windows, and the threads that fill them.
pub struct CatchUp {
    dir: Arc<DataDir>,
    clock: Arc<dyn Clock>,
    indexes: Arc<IndexCache>,
    shared: Arc<CatchUpShared>,
}

pub struct CatchUpShared {
    pool: Arc<Pool>,
    /// None where the caller does the background work: then the reader itself reads ahead.
    threads_max: usize,
    state: Mutex<CatchUpState>,
    /// Notified when there is something to load, and at the end.
    work: Condvar,
    /// Notified when a window is loaded or forgotten, and when a thread ends.
    changed: Condvar,
}

#[derive(Default)]
pub struct CatchUpState {
    windows: Windows,
    runs: Runs,
    /// The windows that wait for a thread. A reader takes out the one that it comes to, so readers wait only for loads that have
    /// begun.
    queue: VecDeque<Load>,
    threads: usize,
    idle_threads: usize,
    /// Whether a reader found no memory. Until a read finds half of it free, the list holds no windows, so that memory
    /// comes free, with a notification, when readers release it.
    is_short: bool,
    is_closed: bool,
    /// The monotonic time of the last read.
    read_at: Duration,
}

/// The purpose of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Data for a reader, which may read on behind it.
    ReadOn,
    /// Data to find a chunk: the ends of these reads do not predict other reads.
    LookUp,
}

/// The source of the bytes of a read.
enum Found {
    /// In a window; the plan says how much more to read ahead, if any.
    InWindow(Slice, Option<Plan>),
    /// On disk, where an earlier read ended. The size of its window.
    BehindRead(usize),
    /// Elsewhere on disk.
    Elsewhere,
}

/// The outcome of loading a reader's own window.
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
            shared: Arc::new(CatchUpShared {
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
        let slice = self.read_piece(group, range, bytes_max, purpose)?;
        if purpose == Purpose::ReadOn {
            let end = from.plus(slice.len() as u64);
            let now = self.clock.monotonic();
            self.shared.state.lock().runs.begin(group, end, now);
        }
        Ok(slice)
    }

    /// Allocates a block of `bytes` for a reader; windows that no reader holds, and queued ones, make room for it. `None`
    /// when readers hold all memory.
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
            // Its thread may not run for long, so no reader waits for it.
            if let Some(load) = state.queue.pop_back() {
                state.windows.remove_unloaded(&load.window());
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

    /// Drops the windows of a replaced group that no reader holds.
    pub fn forget_group(&self, group: &Arc<Group>) {
        let state = &mut *self.shared.state.lock();
        state.windows.forget_group(group);
        state.runs.forget_group(group);
    }

    /// Forgets all windows if there was no read for some time, so that their memory can be given back.
    pub fn forget_idle(&self, now: Duration) {
        let state = &mut *self.shared.state.lock();
        if now.saturating_sub(state.read_at) >= IDLE_AFTER {
            state.windows.clear();
        }
    }

    /// Forgets all windows: the next reads see the bytes on disk.
    pub fn forget(&self) {
        self.shared.state.lock().windows.clear();
    }

    /// Ends the threads, each after the window that it is reading.
    pub fn close(&self) {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        state.is_closed = true;
        for load in std::mem::take(&mut state.queue) {
            state.windows.remove_unloaded(&load.window());
        }
        shared.work.notify_all();
        shared.changed.notify_all();
        while state.threads > 0 {
            shared.changed.wait(&mut state);
        }
    }

    /// Looks for a window; loads a queued one, and waits for one that is being loaded.
    fn find(&self, group: &Arc<Group>, from: Position, purpose: Purpose) -> Found {
        let shared = &self.shared;
        let now = self.clock.monotonic();
        let memory = shared.pool.size_bytes(Arena::Windows);
        let mut state = shared.state.lock();
        state.read_at = now;
        if shared.pool.used_bytes(Arena::Windows) <= memory / 2 {
            state.is_short = false;
        }
        loop {
            let CatchUpState {
                windows,
                runs,
                queue,
                ..
            } = &mut *state;
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
            let window = key(group, window.start);
            let queued = queue.iter().position(|load| load.window() == window);
            match queued.and_then(|at| queue.remove(at)) {
                Some(load) => MutexGuard::unlocked(&mut state, || shared.load(load)),
                None => shared.changed.wait(&mut state),
            }
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
        let Ok(file) = self.dir.open_group(&group.name(), Access::Read) else {
            return Own::Failed;
        };
        let Some(writer) = self.allocate(block_bytes(&range)) else {
            return Own::Failed;
        };
        let (range, plan) = {
            let memory = self.shared.pool.size_bytes(Arena::Windows);
            let CatchUpState { windows, runs, .. } = &mut *self.shared.state.lock();
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
        match load(&*file, &path, group, range, ReadMode::of(lane), writer) {
            Ok(slice) => {
                loading.end(slice.clone());
                Own::Loaded(slice)
            }
            Err(_) => Own::Failed,
        }
    }
}

impl Drop for CatchUp {
    fn drop(&mut self) {
        self.close();
    }
}
