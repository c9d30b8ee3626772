//! The lines in which virtual logs, and lanes with unsynced files, wait for a syncer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::lane::LaneState;
use crate::lane::virtual_log::VirtualLog;

/// The time by which syncers delay a virtual log whose producers wait for no commit.
pub const LAZY_AFTER: Duration = Duration::from_millis(30);

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
    /// Delayed virtual logs, oldest first, with the times at which they are due.
    lazy: VecDeque<(Instant, Arc<VirtualLog>)>,
    /// Whether a syncer is writing a block: one at a time.
    journal_busy: bool,
    /// Lanes with files to sync and the time of the sync, in the order of these times.
    unsynced: VecDeque<(Instant, Arc<LaneState>)>,
    /// Whether a syncer is syncing these lanes: one at a time, so that the others continue to write.
    unsynced_busy: bool,
    closed: bool,
}

impl Lines {
    fn add(&mut self, log: Arc<VirtualLog>, is_direct: bool) {
        match is_direct {
            true => self.direct.push_back(log),
            false => self.journal.push_back(log),
        }
    }

    /// Whether there is work that a syncer could begin now.
    fn has_work(&self) -> bool {
        !self.direct.is_empty() || (!self.journal.is_empty() && !self.journal_busy)
    }

    /// Whether one more syncer must wake up: for work, or to wait until a delayed virtual log is due. While a syncer writes a
    /// block, it takes the rest of the journal's queue afterwards.
    fn needs_syncer(&self) -> bool {
        self.has_work() || (!self.lazy.is_empty() && !self.journal_busy)
    }
}

/// A task of a syncer.
pub enum SyncTask {
    /// Commit this virtual log into its group's file.
    Direct(Arc<VirtualLog>),
    /// Commit these with one block of the journal, then call [`SyncQueue::journal_done`].
    Journal(Vec<Arc<VirtualLog>>),
    /// Sync the written bytes of these lanes, then call [`SyncQueue::unsynced_done`].
    Unsynced(Vec<Arc<LaneState>>),
}

impl SyncQueue {
    /// Queues a virtual log, delayed if it can wait.
    pub fn add(&self, log: Arc<VirtualLog>) {
        if !log.can_wait() {
            return self.add_now(log);
        }
        let mut lines = self.lines.lock();
        let is_first = lines.lazy.is_empty();
        lines.lazy.push_back((Instant::now() + LAZY_AFTER, log));
        drop(lines);
        if is_first {
            // A syncer has to learn until when to wait.
            self.work.notify_one();
        }
    }

    /// Queues a virtual log.
    pub fn add_now(&self, log: Arc<VirtualLog>) {
        let is_direct = log.is_direct();
        let mut lines = self.lines.lock();
        lines.add(log, is_direct);
        let has_work = lines.has_work();
        drop(lines);
        if has_work {
            self.work.notify_one();
        }
    }

    /// Queues a virtual log again after a commit, delayed if it can wait. No other syncer is woken for it: the
    /// one that calls this takes the next work itself.
    pub fn add_again(&self, log: Arc<VirtualLog>) {
        let (can_wait, is_direct) = (log.can_wait(), log.is_direct());
        let mut lines = self.lines.lock();
        match can_wait {
            true => lines.lazy.push_back((Instant::now() + LAZY_AFTER, log)),
            false => lines.add(log, is_direct),
        }
    }

    /// Queues a delayed virtual log. One that is queued or with a syncer stays there.
    pub fn hurry(&self, log: &Arc<VirtualLog>) {
        let is_direct = log.is_direct();
        let mut lines = self.lines.lock();
        let mut lazy = lines.lazy.iter();
        let Some(place) = lazy.position(|(_, lazy)| Arc::ptr_eq(lazy, log)) else {
            return;
        };
        lines.lazy.remove(place);
        lines.add(Arc::clone(log), is_direct);
        let has_work = lines.has_work();
        drop(lines);
        if has_work {
            self.work.notify_one();
        }
    }

    /// Queues a lane to have its files synced after `after`. It must not be in the queue already. This wakes no syncer: the
    /// calling syncer takes the next work itself.
    pub fn add_unsynced(&self, lane: Arc<LaneState>, after: Duration) {
        let until = Instant::now() + after;
        let mut lines = self.lines.lock();
        let place = lines.unsynced.partition_point(|(other, _)| *other <= until);
        lines.unsynced.insert(place, (until, lane));
    }

    /// Lets the files of some lanes be synced now, if they are queued for a sync.
    pub fn hurry_unsynced(&self, is_wanted: impl Fn(&LaneState) -> bool) {
        let now = Instant::now();
        let mut lines = self.lines.lock();
        let (mut wanted, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut lines.unsynced)
            .into_iter()
            .partition(|(_, lane)| is_wanted(lane));
        let is_any = !wanted.is_empty();
        wanted
            .iter_mut()
            .for_each(|(until, _)| *until = now.min(*until));
        wanted.extend(others);
        lines.unsynced = wanted;
        drop(lines);
        if is_any {
            self.work.notify_one();
        }
    }

    /// Lets the files of a lane be synced now, if they are queued for a sync.
    pub fn hurry_unsynced_lane(&self, lane: &LaneState) {
        self.hurry_unsynced(|other| std::ptr::eq(other, lane));
    }

    /// Takes all lanes with files to sync out of the queue.
    pub fn drain_unsynced(&self) -> Vec<Arc<LaneState>> {
        let mut lines = self.lines.lock();
        lines.unsynced.drain(..).map(|(_, lane)| lane).collect()
    }

    /// Wakes a syncer if the sync of some files is due: with few writes, no syncer is awake to notice.
    pub fn wake_for_unsynced(&self) {
        let lines = self.lines.lock();
        let first = lines.unsynced.front();
        let is_due = first.is_some_and(|(until, _)| *until <= Instant::now());
        drop(lines);
        if is_due {
            self.work.notify_one();
        }
    }

    /// The next work, or `None` when there is none. Nothing is put off.
    pub fn try_take(&self) -> Option<SyncTask> {
        let lines = &mut self.lines.lock();
        // This order keeps files from being synced after each write.
        Self::take_from(lines, |_| true).or_else(|| Self::take_unsynced(lines, |_| true))
    }

    /// Waits for work; `None` when the log is closed and all is done.
    pub fn take(&self) -> Option<SyncTask> {
        let mut lines = self.lines.lock();
        loop {
            let is_closed = lines.closed;
            let is_due = |until| is_closed || until <= Instant::now();
            // Due virtual logs go first: no load may delay them.
            let work = Self::take_unsynced(&mut lines, is_due);
            if let Some(work) = work.or_else(|| Self::take_from(&mut lines, is_due)) {
                if lines.needs_syncer() {
                    self.work.notify_one();
                }
                return Some(work);
            }
            if lines.closed && !lines.journal_busy {
                return None;
            }
            match lines.lazy.front() {
                Some(&(until, _)) if !lines.journal_busy => {
                    self.work.wait_until(&mut lines, until);
                }
                _ => self.work.wait(&mut lines),
            }
        }
    }

    fn take_unsynced(lines: &mut Lines, is_due: impl Fn(Instant) -> bool) -> Option<SyncTask> {
        if lines.unsynced_busy {
            return None;
        }
        let waiting = lines.unsynced.iter();
        let due = waiting.take_while(|(until, _)| is_due(*until)).count();
        if due == 0 {
            return None;
        }
        lines.unsynced_busy = true;
        let due = lines.unsynced.drain(..due).map(|(_, lane)| lane);
        Some(SyncTask::Unsynced(due.collect()))
    }

    fn take_from(lines: &mut Lines, is_due: impl Fn(Instant) -> bool) -> Option<SyncTask> {
        if let Some(log) = lines.direct.pop_front() {
            return Some(SyncTask::Direct(log));
        }
        if lines.journal_busy {
            return None;
        }
        let put_off = lines.lazy.iter();
        let due = put_off.take_while(|(until, _)| is_due(*until)).count();
        let due = lines.lazy.drain(..due).map(|(_, log)| log);
        let due: Vec<Arc<VirtualLog>> = due.collect();
        lines.journal.extend(due);
        if lines.journal.is_empty() {
            return None;
        }
        lines.journal_busy = true;
        Some(SyncTask::Journal(lines.journal.drain(..).collect()))
    }

    /// Lets the next block be written. No other syncer is woken for it: the one that calls this takes the next work
    /// itself, and wakes another one if there is more.
    pub fn journal_done(&self) {
        let mut lines = self.lines.lock();
        lines.journal_busy = false;
        if lines.closed {
            // Every syncer waits for this before it ends.
            self.work.notify_all();
        }
    }

    /// Lets the next lanes be synced.
    pub fn unsynced_done(&self) {
        self.lines.lock().unsynced_busy = false;
        // The caller takes the next work itself.
    }

    /// Lets [`SyncQueue::take`] end.
    pub fn close(&self) {
        self.lines.lock().closed = true;
        self.work.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::settings::config::Durability;

    /// An event that must happen happens long before.
    const TIME_MAX: Duration = Duration::from_secs(60);

    /// An event that must not happen would happen in far less.
    const SILENCE: Duration = Duration::from_millis(200);

    fn virtual_log() -> Arc<VirtualLog> {
        Arc::new(VirtualLog::new(1 << 20, Durability::Sync))
    }

    /// A syncer that waits for work, and sends a message for each that it took.
    fn syncer(queue: &Arc<SyncQueue>) -> mpsc::Receiver<()> {
        let (took, taken) = mpsc::channel();
        let queue = Arc::clone(queue);
        thread::spawn(move || {
            while queue.take().is_some() {
                queue.journal_done();
                let _ = took.send(());
            }
        });
        taken
    }

    /// Whether another syncer, which waits for work, goes on with a virtual log after a commit.
    fn another_syncer_continues() -> bool {
        let queue = Arc::new(SyncQueue::default());
        let log = virtual_log();
        queue.add_now(Arc::clone(&log));
        assert!(matches!(queue.take(), Some(SyncTask::Journal(_))));
        let taken = syncer(&queue);
        thread::sleep(SILENCE);
        queue.add_again(log);
        queue.journal_done();
        let is_taken = taken.recv_timeout(SILENCE).is_ok();
        queue.close();
        is_taken
    }

    #[test]
    fn a_syncer_continues_with_a_virtual_log_without_waking_another_syncer() {
        // A thread that begins to wait too late finds the work without being woken.
        const TRIES_MAX: usize = 100;
        assert!((0..TRIES_MAX).any(|_| !another_syncer_continues()));
    }

    #[test]
    fn a_syncer_that_leaves_work_in_the_queue_wakes_another_syncer() {
        let queue = Arc::new(SyncQueue::default());
        let taken = syncer(&queue);
        thread::sleep(SILENCE);
        let mut lines = queue.lines.lock();
        lines.direct.push_back(virtual_log());
        lines.direct.push_back(virtual_log());
        drop(lines);
        assert!(matches!(queue.take(), Some(SyncTask::Direct(_))));
        taken.recv_timeout(TIME_MAX).unwrap();
        queue.close();
    }

    #[test]
    fn work_for_the_journal_wakes_no_syncer_while_a_block_is_written() {
        let queue = Arc::new(SyncQueue::default());
        queue.add_now(virtual_log());
        assert!(matches!(queue.take(), Some(SyncTask::Journal(_))));
        queue.add_now(virtual_log());
        assert!(!queue.lines.lock().has_work());
        queue.journal_done();
        assert!(queue.lines.lock().has_work());
        assert!(matches!(queue.take(), Some(SyncTask::Journal(_))));
    }
}
