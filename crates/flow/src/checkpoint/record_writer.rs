//! Writes the records of complete checkpoints while the flow goes on: on rank 0, one at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::checkpoint::counts::CheckpointCounts;
use crate::checkpoint::decision_signal::DecisionSignal;
use crate::checkpoint::record::{Record, encode};
use crate::checkpoint::store::Checkpoints;
use crate::checkpoint::write_error::FinalError;
use crate::error::BoxError;

/// The pause before a record is tried again for the first time. It doubles each time, …
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// … up to this one.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Writes records to a store.
pub struct RecordWriter {
    store: Arc<dyn Checkpoints>,
    signal: Arc<DecisionSignal>,
    counts: Arc<Mutex<CheckpointCounts>>,
    shared: Arc<Shared>,
    /// Writes one record.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// The last checkpoint whose record is stored, and the time that it took. Written by the thread, read by workers.
    stored: Mutex<(u64, Duration)>,
    /// A record is being written.
    is_on: AtomicBool,
    /// The run is over: nothing is tried again.
    is_over: Mutex<bool>,
    over: Condvar,
}

impl RecordWriter {
    pub fn new(
        store: Arc<dyn Checkpoints>,
        signal: Arc<DecisionSignal>,
        counts: Arc<Mutex<CheckpointCounts>>,
    ) -> RecordWriter {
        RecordWriter {
            store,
            signal,
            counts,
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Returns the last checkpoint whose record this run has stored.
    pub fn stored(&self) -> u64 {
        self.shared.stored.lock().0
    }

    /// Returns the time to store that record.
    pub fn took(&self) -> Duration {
        self.shared.stored.lock().1
    }

    /// Writes a record in the background, unless one is being written: then the signal follows, and the caller asks
    /// again.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn start(&self, record: Record) -> Result<(), BoxError> {
        if self.shared.is_on.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        let mut thread = self.thread.lock();
        if let Some(ended) = thread.take() {
            // The thread has only to return.
            let _ = ended.join();
        }
        let store = Arc::clone(&self.store);
        let writing = Writing {
            shared: Arc::clone(&self.shared),
            signal: Arc::clone(&self.signal),
            counts: Arc::clone(&self.counts),
        };
        let spawned = thread::Builder::new()
            .name("checkpoint-record".into())
            .spawn(move || writing.write(&*store, &record));
        match spawned {
            Ok(spawned) => *thread = Some(spawned),
            Err(error) => {
                return Err(format!("there is no thread to write a record: {error}").into());
            }
        }
        Ok(())
    }

    /// Ends the attempts, and waits for the record that is being written.
    pub fn end(&self) {
        *self.shared.is_over.lock() = true;
        self.shared.over.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // The panic is of user code: the record counts as not stored.
            let _ = thread.join();
        }
    }
}

/// Stores a record, and returns when it is durable.
pub fn write(store: &dyn Checkpoints, record: &Record) -> Result<(), BoxError> {
    let records = store.records().ok_or("the store has no records")?;
    records.append(&encode(record)?)
}

/// A record is being written, until this is dropped.
struct Writing {
    shared: Arc<Shared>,
    signal: Arc<DecisionSignal>,
    counts: Arc<Mutex<CheckpointCounts>>,
}

impl Writing {
    /// Results wait for this record, so that it is tried until it is stored.
    fn write(self, store: &dyn Checkpoints, record: &Record) {
        let started_at = Instant::now();
        let mut pause = PAUSE_MIN;
        let mut last_error = String::new();
        loop {
            match write(store, record) {
                Ok(()) => {
                    *self.shared.stored.lock() = (record.checkpoint, started_at.elapsed());
                    return;
                }
                Err(error) if error.is::<FinalError>() => return self.signal.fail(error),
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        let (flow, number) = (&record.head.flow, record.checkpoint);
                        tracing::warn!(
                            "flow {flow}: the record of checkpoint {number} cannot be stored, and is tried again: {error}"
                        );
                    }
                    let mut counts = self.counts.lock();
                    counts.failed += 1;
                    counts.error = Some(error.clone());
                    last_error = error;
                }
            }
            let mut is_over = self.shared.is_over.lock();
            if !*is_over {
                self.shared.over.wait_for(&mut is_over, pause);
            }
            if *is_over {
                return;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if thread::panicking() {
            self.signal
                .fail("the store of checkpoints panicked, so no record was stored".into());
        }
        // First: a worker that the signal wakes sees it.
        self.shared.is_on.store(false, Ordering::SeqCst);
        self.signal.wake_by_ref();
    }
}
