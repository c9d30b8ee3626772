//! The reading of values while a flow that has resumed runs: what the loader, the stages and the readers of state share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::{io, mem};

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::BoxError;
use crate::state::changelog_reader::ChangelogReader;

/// The progress of an element whose values are read while the flow runs. Its lock is taken while a table is locked, and no
/// other lock while it is held.
pub struct Loading {
    progress: Mutex<Progress>,
    /// Notified at each change of the progress.
    changed: Condvar,
    /// Held by the thread that stages all values.
    scanning: Mutex<()>,
    /// Stored with the progress: the scan asks often.
    is_stopped: AtomicBool,
    /// Stored when there is a failure: workers ask often.
    has_failed: AtomicBool,
    /// The flow's bell.
    waker: Waker,
}

struct Progress {
    /// A stage wants keys.
    is_wanted: bool,
    /// `None` once all values are in memory.
    reader: Option<Arc<dyn ChangelogReader>>,
    /// The first error.
    failure: Option<String>,
}

impl Loading {
    /// Begins to read from `reader`; `waker` wakes the stages.
    pub fn new(reader: Arc<dyn ChangelogReader>, waker: Waker) -> Loading {
        Loading {
            progress: Mutex::new(Progress {
                is_wanted: false,
                reader: Some(reader),
                failure: None,
            }),
            changed: Condvar::new(),
            scanning: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            waker,
        }
    }

    /// Tells the loader that a table wants keys.
    pub fn want(&self) {
        self.progress.lock().is_wanted = true;
        self.changed.notify_all();
    }

    /// Waits until a table wants keys; `false` when there is nothing more to load.
    pub fn wait_wanted(&self) -> bool {
        let mut progress = self.progress.lock();
        loop {
            if self.has_ended(&progress) {
                return false;
            }
            if mem::take(&mut progress.is_wanted) {
                return true;
            }
            self.changed.wait(&mut progress);
        }
    }

    fn has_ended(&self, progress: &Progress) -> bool {
        progress.reader.is_none()
            || progress.failure.is_some()
            || self.is_stopped.load(Ordering::Relaxed)
    }

    /// Returns the reader; `None` once all values are in memory.
    ///
    /// # Errors
    /// The failure of an earlier read.
    pub fn reader(&self) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        let progress = self.progress.lock();
        match &progress.failure {
            Some(failure) => Err(failure.clone().into()),
            None => Ok(progress.reader.clone()),
        }
    }

    /// Wakes the stages.
    pub fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// All values are in memory.
    pub fn finish(&self) {
        let reader = self.progress.lock().reader.take();
        self.changed.notify_all();
        self.wake();
        drop(reader);
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
            true => self.reader().err(),
            false => None,
        }
    }

    /// Waits until no other thread stages all values.
    pub fn begin_scan(&self) -> MutexGuard<'_, ()> {
        self.scanning.lock()
    }

    /// Ends the threads that read.
    pub fn stop(&self) {
        let progress = self.progress.lock();
        self.is_stopped.store(true, Ordering::Relaxed);
        drop(progress);
        self.changed.notify_all();
    }

    /// Whether the threads that read have to end.
    pub fn is_stopped(&self) -> &AtomicBool {
        &self.is_stopped
    }

    /// Waits until all values are in memory; `false` if no thread reads them any more.
    pub fn wait_whole(&self) -> bool {
        let mut progress = self.progress.lock();
        while !self.has_ended(&progress) {
            self.changed.wait(&mut progress);
        }
        progress.reader.is_none()
    }
}

/// The threads that read the values of an element. Dropped, they end: no reader outlives this.
pub struct LoadThreads {
    loading: Arc<Loading>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadThreads {
    /// No threads yet.
    pub fn new(loading: Arc<Loading>) -> LoadThreads {
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
        run: impl FnOnce(&Loading) -> Result<(), BoxError> + Send + 'static,
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

impl Drop for LoadThreads {
    fn drop(&mut self) {
        self.loading.stop();
        for thread in self.threads.drain(..) {
            // A panic is noted as a failure.
            let _ = thread.join();
        }
    }
}

/// Dropped by a panic: user code that decodes keys and values may panic.
struct Failed<'a>(&'a Loading);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        let error = "its thread panicked while it read keys and values";
        self.0.fail(&error.into());
    }
}
