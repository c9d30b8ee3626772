//! The reading of values while a flow runs, from a changelog or a table outside of the flow: what the loader, the stages and the
//! readers of state share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, mem};

use parking_lot::{Condvar, Mutex};

use crate::error::BoxError;
use crate::state::changelog_reader::ChangelogReader;

/// The reads of an element by a reader `R`. Its lock is taken while a table is locked, and no other lock while it is held.
pub struct Loading<R: ?Sized = dyn ChangelogReader> {
    reader: Arc<R>,
    progress: Mutex<Progress>,
    /// Notified at each change of the progress.
    changed: Condvar,
    /// Stored with the progress: the threads have to end.
    is_stopped: AtomicBool,
    /// The scan has to end: for that reason, or since memory has no room for all values.
    scan_has_to_end: AtomicBool,
    /// Stored when there is a failure: workers ask often.
    has_failed: AtomicBool,
    /// The flow's bell.
    waker: Waker,
}

#[derive(Default)]
struct Progress {
    /// A stage wants keys.
    is_wanted: bool,
    /// A checkpoint is complete.
    is_complete: bool,
    /// The first error.
    failure: Option<String>,
}

impl<R: ?Sized> Loading<R> {
    /// Begins to read from `reader`; `waker` wakes the stages.
    pub fn new(reader: Arc<R>, waker: Waker) -> Self {
        Loading {
            reader,
            progress: Mutex::default(),
            changed: Condvar::new(),
            is_stopped: AtomicBool::new(false),
            scan_has_to_end: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            waker,
        }
    }

    /// Returns the reader.
    pub fn reader(&self) -> &R {
        &self.reader
    }

    /// Tells the loader that a table wants keys.
    pub fn want(&self) {
        self.progress.lock().is_wanted = true;
        self.changed.notify_all();
    }

    /// Tells the loader that a checkpoint is complete, so that values may leave memory.
    pub fn complete(&self) {
        self.progress.lock().is_complete = true;
        self.changed.notify_all();
    }

    /// Waits until a table wants keys, a checkpoint is complete, or `time` has passed, if it is not without a bound; `false`
    /// when the loader has to end.
    pub fn wait(&self, time: Option<Duration>) -> bool {
        let mut progress = self.progress.lock();
        let mut is_over = false;
        loop {
            if progress.failure.is_some() || self.is_stopped.load(Ordering::Relaxed) {
                return false;
            }
            let is_wanted = mem::take(&mut progress.is_wanted);
            let is_complete = mem::take(&mut progress.is_complete);
            if is_wanted || is_complete || is_over {
                return true;
            }
            match time {
                Some(time) => is_over = self.changed.wait_for(&mut progress, time).timed_out(),
                None => self.changed.wait(&mut progress),
            }
        }
    }

    /// Wakes the stages.
    pub fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Ends the scan.
    pub fn give_up_scan(&self) {
        self.scan_has_to_end.store(true, Ordering::Relaxed);
    }

    /// Whether the scan has to end.
    pub fn scan_has_to_end(&self) -> &AtomicBool {
        &self.scan_has_to_end
    }

    /// Notes an error, unless an earlier one was noted. A worker ends the flow with it.
    pub fn fail(&self, error: &BoxError) {
        let mut progress = self.progress.lock();
        progress.failure.get_or_insert_with(|| error.to_string());
        self.has_failed.store(true, Ordering::Relaxed);
        drop(progress);
        self.changed.notify_all();
        self.wake();
    }

    /// Returns the error that was noted.
    pub fn failure(&self) -> Option<BoxError> {
        match self.has_failed.load(Ordering::Relaxed) {
            true => self.progress.lock().failure.clone().map(BoxError::from),
            false => None,
        }
    }

    /// Whether an error was noted.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Ends the threads that read.
    pub fn stop(&self) {
        let progress = self.progress.lock();
        self.is_stopped.store(true, Ordering::Relaxed);
        self.give_up_scan();
        drop(progress);
        self.changed.notify_all();
        // Stages of other flows may wait for values.
        self.wake();
    }

    /// Whether the loader reads the keys that tables want.
    pub fn is_at_work(&self) -> bool {
        !self.has_stopped() && !self.has_failed.load(Ordering::Relaxed)
    }

    /// Whether the threads have to end.
    pub fn is_stopped(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// Whether the threads have to end.
    pub fn has_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}

/// The threads that read the values of an element. Dropped, they end: no reader outlives this.
pub struct LoadThreads<R: ?Sized = dyn ChangelogReader> {
    loading: Arc<Loading<R>>,
    threads: Vec<JoinHandle<()>>,
}

impl<R: ?Sized + Send + Sync + 'static> LoadThreads<R> {
    /// No threads yet.
    pub fn new(loading: Arc<Loading<R>>) -> Self {
        LoadThreads {
            loading,
            threads: Vec::new(),
        }
    }

    /// Starts a thread; an error or a panic of `run` is a failure of the loading.
    ///
    /// # Errors
    /// When the system has no thread.
    pub fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce(&Loading<R>) -> Result<(), BoxError> + Send + 'static,
    ) -> io::Result<()> {
        let loading = Arc::clone(&self.loading);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let failed = Failed(&loading);
            if let Err(error) = run(&loading) {
                loading.fail(&error);
            }
            mem::forget(failed);
        });
        self.threads.push(thread?);
        Ok(())
    }

    /// Returns the failure of a read.
    pub fn failure(&self) -> Option<BoxError> {
        self.loading.failure()
    }
}

impl<R: ?Sized> Drop for LoadThreads<R> {
    fn drop(&mut self) {
        self.loading.stop();
        for thread in self.threads.drain(..) {
            // A panic is noted as a failure.
            let _ = thread.join();
        }
    }
}

/// Dropped by a panic: user code that decodes keys and values may panic.
struct Failed<'a, R: ?Sized>(&'a Loading<R>);

impl<R: ?Sized> Drop for Failed<'_, R> {
    fn drop(&mut self) {
        let error = "its thread panicked while it read keys and values";
        self.0.fail(&error.into());
    }
}
