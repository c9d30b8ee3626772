//! Virtual logs: the order in which chunks of a stream become durable, and who does it next.
//!
//! An append pushes a reference to its chunk (a [`Run`]; neighbours are joined) onto its lane's
//! virtual log. A virtual log with pending runs stands in one of two lines until a syncer takes it:
//! most go into the next block of the journal together; one whose only lane is busy is synced
//! straight into its group's file, so that its data is written once. While a syncer has it, new
//! runs pile up and go with the next commit: no timer is needed.
//!
//! A virtual log is in at most one line, or with at most one syncer (`queued`), so its runs become
//! durable in the order of their appends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::{Offset, Position};
use parking_lot::{Condvar, Mutex};

use crate::group::Group;
use crate::journal::Run;
use crate::lane::LaneState;
use crate::pool::Buffer;

/// From here on a sync is bound by bytes, not by its latency, and writing them twice costs more
/// than a sync of one's own.
pub const DIRECT_BYTES_MIN: usize = 256 << 10;

/// How much one commit takes of one virtual log: bounds the time until its first chunk is durable.
pub const COMMIT_BYTES_MAX: usize = 8 << 20;

/// Appended chunks of one lane that wait for durability.
#[derive(Debug)]
pub struct PendingRun {
    pub lane: Arc<LaneState>,
    pub run: Run,
    /// The lane's offset behind the run.
    pub next_offset: Offset,
}

#[derive(Debug)]
pub struct VirtualLog {
    pending: Mutex<Pending>,
    /// Whether one lane has this virtual log for itself.
    single_lane: AtomicBool,
    /// The longest run that neighbours are joined to.
    run_bytes_max: usize,
}

#[derive(Debug, Default)]
struct Pending {
    runs: VecDeque<PendingRun>,
    bytes: usize,
    /// In a line or with a syncer.
    queued: bool,
}

impl VirtualLog {
    pub fn new(run_bytes_max: usize) -> VirtualLog {
        VirtualLog {
            pending: Mutex::default(),
            single_lane: AtomicBool::new(true),
            run_bytes_max,
        }
    }

    /// Tells that more than one lane shares it.
    pub fn set_shared(&self) {
        self.single_lane.store(false, Ordering::Relaxed);
    }

    /// Adds a chunk of `lane` that was appended at `position`. `true` when the virtual log must be
    /// put in line.
    #[must_use]
    pub fn push(
        &self,
        lane: &Arc<LaneState>,
        group: &Arc<Group>,
        position: Position,
        buffer: &Arc<Buffer>,
        range: std::ops::Range<usize>,
        next_offset: Offset,
    ) -> bool {
        let len = range.len();
        let mut pending = self.pending.lock();
        pending.bytes += len;
        let joined = pending.runs.back_mut().is_some_and(|last| {
            Arc::ptr_eq(&last.run.group, group)
                && last.run.slice.len() + len <= self.run_bytes_max
                && last.run.end() == position
                && last.run.slice.extend_in(buffer, range.clone())
        });
        if joined {
            pending.runs.back_mut().expect("joined to it").next_offset = next_offset;
        } else {
            pending.runs.push_back(PendingRun {
                lane: Arc::clone(lane),
                run: Run {
                    group: Arc::clone(group),
                    position,
                    slice: buffer.slice(range),
                },
                next_offset,
            });
        }
        !std::mem::replace(&mut pending.queued, true)
    }

    /// Whether its next commit goes straight into the group's file.
    pub fn is_direct(&self) -> bool {
        self.single_lane.load(Ordering::Relaxed) && self.pending.lock().bytes >= DIRECT_BYTES_MIN
    }

    /// The runs of the next commit, oldest first: at most `bytes_max` unless the first is longer.
    pub fn take(&self, bytes_max: usize) -> Vec<PendingRun> {
        let mut pending = self.pending.lock();
        let mut bytes = 0;
        let count = pending
            .runs
            .iter()
            .take_while(|pending| {
                bytes += pending.run.slice.len();
                bytes <= bytes_max
            })
            .count()
            .max(1)
            .min(pending.runs.len());
        let taken: Vec<PendingRun> = pending.runs.drain(..count).collect();
        pending.bytes -= taken
            .iter()
            .map(|taken| taken.run.slice.len())
            .sum::<usize>();
        taken
    }

    /// Puts back what could not be made durable yet.
    pub fn put_back(&self, runs: Vec<PendingRun>) {
        let mut pending = self.pending.lock();
        for run in runs.into_iter().rev() {
            pending.bytes += run.run.slice.len();
            pending.runs.push_front(run);
        }
    }

    /// After a commit: `true` when more is pending, so that it must be put in line again.
    #[must_use]
    pub fn committed(&self) -> bool {
        let mut pending = self.pending.lock();
        pending.queued = !pending.runs.is_empty();
        pending.queued
    }
}

/// The lines in which virtual logs wait for a syncer.
#[derive(Debug, Default)]
pub struct SyncQueue {
    lines: Mutex<Lines>,
    /// Notified when there may be work for one more syncer.
    work: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    direct: VecDeque<Arc<VirtualLog>>,
    journal: VecDeque<Arc<VirtualLog>>,
    /// One block is written at a time.
    journal_busy: bool,
    closed: bool,
}

/// What a syncer is to do.
pub enum SyncWork {
    /// Commit this virtual log into its group's file.
    Direct(Arc<VirtualLog>),
    /// Commit these with one block of the journal, then call [`SyncQueue::journal_done`].
    Journal(Vec<Arc<VirtualLog>>),
}

impl SyncQueue {
    /// Puts a virtual log in line.
    pub fn add(&self, log: Arc<VirtualLog>) {
        let direct = log.is_direct();
        let mut lines = self.lines.lock();
        if direct {
            lines.direct.push_back(log);
        } else {
            lines.journal.push_back(log);
        }
        drop(lines);
        self.work.notify_one();
    }

    /// The next work, or `None` when there is none.
    pub fn try_take(&self) -> Option<SyncWork> {
        Self::take_from(&mut self.lines.lock())
    }

    /// Waits for work; `None` when the log is closed and all is done.
    pub fn take(&self) -> Option<SyncWork> {
        let mut lines = self.lines.lock();
        loop {
            if let Some(work) = Self::take_from(&mut lines) {
                return Some(work);
            }
            if lines.closed && !lines.journal_busy {
                return None;
            }
            self.work.wait(&mut lines);
        }
    }

    fn take_from(lines: &mut Lines) -> Option<SyncWork> {
        if let Some(log) = lines.direct.pop_front() {
            return Some(SyncWork::Direct(log));
        }
        if lines.journal_busy || lines.journal.is_empty() {
            return None;
        }
        lines.journal_busy = true;
        Some(SyncWork::Journal(lines.journal.drain(..).collect()))
    }

    /// Lets the next block be written.
    pub fn journal_done(&self) {
        let mut lines = self.lines.lock();
        lines.journal_busy = false;
        if lines.closed {
            // Every syncer waits for this before it ends.
            self.work.notify_all();
        } else {
            self.work.notify_one();
        }
    }

    /// Lets [`SyncQueue::take`] end.
    pub fn close(&self) {
        self.lines.lock().closed = true;
        self.work.notify_all();
    }
}
