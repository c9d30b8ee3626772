//! Virtual logs: the order in which chunks of a stream become durable.
//!
//! An append pushes a reference to its chunk (a [`Run`]; neighbours are joined) onto its lane's
//! virtual log. A virtual log with pending runs stands in one of two lines until a syncer takes it:
//! most go into the next block of the journal together; one whose only lane is busy is synced
//! straight into its group's file, so that its data is written once. While a syncer has it, new
//! runs pile up and go with the next commit: no timer is needed. Only a virtual log whose
//! producers wait for no commit ([`Durability::Async`]) is put off, for [`LAZY_AFTER`](super::sync_queue::LAZY_AFTER) or until much
//! has come together: it goes with the next block, or makes one of its own then.
//!
//! A virtual log of a [`Durability::Written`] stream always goes into its groups' files, without a sync.
//! Its lanes stand in a third line until a syncer syncs these files (see [`unsynced`](super::unsynced)).
//!
//! A virtual log is in at most one line, or with at most one syncer (`queued`), so its runs become
//! durable in the order of their appends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::{Offset, Position};
use parking_lot::Mutex;

use crate::group::Group;
use crate::journal::run::Run;
use crate::lane::LaneState;
use crate::memory::buffer::Buffer;
use crate::settings::config::Durability;

/// From here on a sync is bound by bytes, not by its latency, and writing them twice costs more
/// than a sync of one's own.
pub const DIRECT_BYTES_MIN: usize = 256 << 10;

/// A virtual log with this many bytes pending is not put off any longer.
const LAZY_BYTES_MAX: usize = 4 << 20;

/// The most bytes of one virtual log in a commit: bounds the time until its first chunk is durable.
pub const COMMIT_BYTES_MAX: usize = 8 << 20;

/// Appended chunks of one lane that wait for durability.
#[derive(Debug)]
pub struct PendingRun {
    pub lane: Arc<LaneState>,
    pub run: Run,
    /// The lane's offset behind the run.
    pub next_offset: Offset,
}

/// The duty of the append that pushed a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// Nothing: the virtual log is queued, or with a syncer.
    InLine,
    /// The virtual log must be put in line: [`SyncQueue::add`](super::sync_queue::SyncQueue::add).
    First,
    /// It is delayed, and should become due at once: [`SyncQueue::hurry`](super::sync_queue::SyncQueue::hurry).
    Due,
}

#[derive(Debug)]
pub struct VirtualLog {
    pending: Mutex<Pending>,
    /// Whether one lane has this virtual log for itself.
    single_lane: AtomicBool,
    /// The longest run that neighbours are joined to.
    run_bytes_max: usize,
    /// The durability of its stream.
    pub durability: Durability,
}

#[derive(Debug, Default)]
struct Pending {
    runs: VecDeque<PendingRun>,
    bytes: usize,
    /// In a queue or with a syncer.
    queued: bool,
}

impl VirtualLog {
    /// An empty one.
    pub fn new(run_bytes_max: usize, durability: Durability) -> VirtualLog {
        VirtualLog {
            pending: Mutex::default(),
            single_lane: AtomicBool::new(true),
            run_bytes_max,
            durability,
        }
    }

    /// Whether its producers are answered before a syncer commits their chunks, so that the commit may be put off.
    fn is_lazy(&self) -> bool {
        self.durability == Durability::Async
    }

    /// Notes that more than one lane shares it.
    pub fn set_shared(&self) {
        self.single_lane.store(false, Ordering::Relaxed);
    }

    /// Adds a chunk of `lane` that was appended at `position`.
    #[must_use]
    pub fn push(
        &self,
        lane: &Arc<LaneState>,
        group: &Arc<Group>,
        position: Position,
        buffer: &Arc<Buffer>,
        range: std::ops::Range<usize>,
        next_offset: Offset,
    ) -> Pushed {
        let len = range.len();
        let mut pending = self.pending.lock();
        let was_much = pending.bytes >= LAZY_BYTES_MAX;
        pending.bytes += len;
        let is_due = self.is_lazy() && !was_much && pending.bytes >= LAZY_BYTES_MAX;
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
        match std::mem::replace(&mut pending.queued, true) {
            false => Pushed::First,
            true if is_due => Pushed::Due,
            true => Pushed::InLine,
        }
    }

    /// Whether it may be put off.
    pub fn can_wait(&self) -> bool {
        self.is_lazy() && self.pending.lock().bytes < LAZY_BYTES_MAX
    }

    /// Whether its next commit goes straight into the group's file.
    pub fn is_direct(&self) -> bool {
        if self.durability == Durability::Written {
            return true;
        }
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

    /// Puts back runs that could not be made durable yet.
    pub fn put_back(&self, runs: Vec<PendingRun>) {
        let mut pending = self.pending.lock();
        for run in runs.into_iter().rev() {
            pending.bytes += run.run.slice.len();
            pending.runs.push_front(run);
        }
    }

    /// Called after a commit. Returns whether more is pending, so that it must be queued again.
    #[must_use]
    pub fn committed(&self) -> bool {
        let mut pending = self.pending.lock();
        pending.queued = !pending.runs.is_empty();
        pending.queued
    }
}
