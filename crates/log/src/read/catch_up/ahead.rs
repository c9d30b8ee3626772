//! Reading ahead: the next windows of a run, loaded by threads.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Position};

use crate::abort::AbortOnPanic;
use crate::group::Group;
use crate::lane::LaneState;
use crate::memory::buffer::{BufferWriter, Slice};
use crate::memory::pool::Arena;
use crate::priority;
use crate::read::catch_up::file::{ReadMode, load};
use crate::read::catch_up::runs::Plan;
use crate::read::catch_up::windows::{AHEAD_SHARE, MayGo, WindowKey, block_bytes, key};
use crate::read::catch_up::{CatchUp, CatchUpShared, CatchUpState};

/// Threads that read ahead: the most requests in flight beside the readers' own.
pub const THREADS_MAX: usize = 8;

/// A thread without work for this long ends.
const THREAD_IDLE_MAX: Duration = Duration::from_secs(10);

/// The most windows in memory: beyond them, one more costs more to find than it helps.
const WINDOWS_MAX: usize = 256;

/// A window that waits for a thread.
pub struct Load {
    pub file: Arc<dyn DiskFile>,
    pub path: PathBuf,
    pub group: Arc<Group>,
    pub range: Range<Position>,
    pub mode: ReadMode,
    pub writer: BufferWriter,
}

impl Load {
    pub fn window(&self) -> WindowKey {
        key(&self.group, self.range.start)
    }
}

impl CatchUp {
    /// Has the windows of a plan loaded.
    pub(super) fn read_ahead(&self, lane: &LaneState, plan: Plan) {
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
                None => match self.dir.open_group(&group.name(), Access::Read) {
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
                    mode: ReadMode::of(lane),
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

impl CatchUpShared {
    /// A block for a window that no reader has come to yet; `None` when these windows have their share.
    fn allocate_ahead(&self, state: &mut CatchUpState, bytes: usize) -> Option<BufferWriter> {
        if state.is_short || state.is_closed {
            return None;
        }
        let size = self.pool.size_bytes(Arena::Windows);
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

    /// Wakes or starts a thread for the queued windows, if there can be one more.
    fn wake_thread(self: &Arc<Self>, state: &mut CatchUpState) {
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
            priority::lower();
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

    pub(super) fn load(&self, planned: Load) {
        let Load {
            file,
            path,
            group,
            range,
            mode,
            writer,
        } = planned;
        let loading = Loading {
            shared: self,
            window: key(&group, range.start),
        };
        if let Ok(slice) = load(&*file, &path, &group, range, mode, writer) {
            loading.end(slice);
        }
    }
}

/// A window that is being loaded; forgotten when it cannot be.
pub struct Loading<'s> {
    pub shared: &'s CatchUpShared,
    pub window: WindowKey,
}

impl Loading<'_> {
    pub fn end(self, slice: Slice) {
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
