//! State elements whose changes are noted, as checkpoints see them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use parking_lot::Mutex;

use crate::checkpoint::changelog::Changelog;
use crate::checkpoint::participants::Committer;
use crate::checkpoint::passed_time::PassedTime;
use crate::checkpoint::shard::{Deferred, Written};
use crate::checkpoint::write_error::{Unencodable, named};
use crate::checkpoint::writer_bell::WriterBell;
use crate::error::{BoxError, Failure};
use crate::sinks::sink::SinkStart;
use crate::stage::user_code::{Label, catch};
use crate::state::change::Change;
use crate::state::loading::LoadThreads;
use crate::state::logged::{Changes, LoggedState, StateHead};
use crate::state::watched::{NotWatched, WatchedChangelog, WatchedElement};

/// Changes that are encoded before they are pushed together.
const CHANGES_AT_ONCE: usize = 256;

/// The keys of an element on one rank that may change between two checkpoints, about: their former values take memory, and
/// a checkpoint copies the new ones.
const CHANGED_KEYS_MAX: usize = 1 << 20;

/// … and the bytes of their keys and values, if they are on average as large as in the last checkpoint.
const CHANGED_BYTES_MAX: u64 = 256 << 20;

/// A state element that can have a changelog.
pub struct LoggedElement {
    label: Label,
    state: Arc<dyn LoggedState>,
    /// The mean bytes of a change in the last checkpoint. Stored by the writer, loaded by the workers.
    change_bytes: AtomicU64,
    /// The time up to which the changelog may drop changes that have ended.
    passed: Arc<PassedTime>,
    /// Set before the flow runs, if the store of checkpoints has changelogs.
    log: OnceLock<OpenLog>,
    /// Set before the flow runs, if values are read while it does.
    loading: OnceLock<LoadThreads>,
}

struct OpenLog {
    /// Locked for single calls: by the writer of a checkpoint, and by the worker that commits, which never waits.
    log: Mutex<LogState>,
    /// The waker of a commit that found the changelog locked. The writer takes it after each of its calls.
    commit_waker: Mutex<Option<Waker>>,
    /// The same changelog for readers, if it is a stream.
    watched: Option<Arc<dyn WatchedChangelog>>,
}

struct LogState {
    changelog: Box<dyn Changelog>,
    /// Whether it has changes that were not flushed yet.
    is_unflushed: bool,
}

impl LoggedElement {
    pub fn new(name: &str, state: Arc<dyn LoggedState>) -> Self {
        LoggedElement {
            label: Label(name.into()),
            state,
            change_bytes: AtomicU64::new(0),
            passed: Arc::default(),
            log: OnceLock::new(),
            loading: OnceLock::new(),
        }
    }

    /// The name of the state element.
    pub fn name(&self) -> &str {
        &self.label.0
    }

    /// The time that all ranks have passed, for the decisions about complete checkpoints.
    pub fn passed(&self) -> &Arc<PassedTime> {
        &self.passed
    }

    /// Makes `changelog` take the element's changes, which readers find in `watched`. Called before anything is restored.
    pub fn open(&self, changelog: Box<dyn Changelog>, watched: Option<Arc<dyn WatchedChangelog>>) {
        self.state.note_changes();
        let log = LogState {
            changelog,
            is_unflushed: false,
        };
        self.log.get_or_init(|| OpenLog {
            log: Mutex::new(log),
            commit_waker: Mutex::default(),
            watched,
        });
    }

    /// Notes the element's changes from now on, if it has no changelog. Called when it is restored.
    pub fn begin(&self) {
        if !self.is_open() && self.has_history() {
            self.state.note_changes();
        }
    }

    /// Whether enough keys have changed to make a checkpoint due.
    pub fn has_many_changes(&self) -> bool {
        let changed = self.state.changed_keys();
        let bytes = changed as u64 * self.change_bytes.load(Ordering::Relaxed);
        let bytes_max = CHANGED_BYTES_MAX.min(self.state.changed_bytes_max());
        changed >= CHANGED_KEYS_MAX || bytes >= bytes_max
    }

    /// A checkpoint of the whole element is taken.
    pub fn cut(&self, checkpoint: u64) {
        self.state.cut(checkpoint);
        self.state.sweep();
    }

    /// Whether readers may ask for the values of the last complete checkpoint.
    pub fn has_history(&self) -> bool {
        self.state.has_history()
    }

    /// Whether its values have a lifetime.
    pub fn has_lifetime(&self) -> bool {
        self.state.has_lifetime()
    }

    /// Whether it has a changelog.
    pub fn is_open(&self) -> bool {
        self.log.get().is_some()
    }

    /// Returns the element for readers that watch it.
    pub fn watched(&self) -> Result<WatchedElement, NotWatched> {
        if !self.state.is_watchable() {
            return Err(NotWatched::Partial);
        }
        let open = self.log.get();
        let watched = open.and_then(|open| open.watched.as_ref());
        Ok(WatchedElement {
            changelog: Arc::clone(watched.ok_or(NotWatched::NoStream)?),
            state: Arc::clone(&self.state),
        })
    }

    fn log(&self) -> &OpenLog {
        self.log.get().expect("the element has a changelog")
    }

    /// Lets the changelog decide the changes of an earlier run.
    pub fn recover(&self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        self.log().call(|log| log.changelog.recover(start))
    }

    /// Reads the changelog, or begins to, if it is large: then `waker` wakes the workers when values have come. The element
    /// continues from it as of the checkpoint `resumed`. Without one the element stays as it is, and the next checkpoint
    /// makes the changelog equal to it.
    pub fn restore(&self, resumed: Option<u64>, waker: &Waker) -> Result<(), BoxError> {
        let state = &self.state;
        let mut reader = None;
        if state.is_lazy() {
            reader = self.log().call(|log| log.changelog.reader(resumed))?;
        }
        let is_scanned = resumed.is_some() && reader.as_ref().is_some_and(|it| it.is_large());
        if let Some(reader) = reader {
            let threads = state.read_lazily(reader, is_scanned, waker.clone())?;
            self.loading.get_or_init(|| threads);
        }
        if is_scanned {
            return Ok(());
        }
        self.log().call(|log| {
            log.changelog
                .restore(resumed, &mut |key, value| match resumed {
                    Some(_) => state.restore_change(key, value),
                    None => state.note_changed(key).map_err(|error| {
                        format!(
                            "the flow begins anew, and an earlier run has left a key of another type: {error}"
                        )
                        .into()
                    }),
                })
        })?;
        catch(|| {
            state.restored();
            Ok(())
        })
    }

    /// Returns the failure of a value that was to be read while the flow runs.
    pub fn loading_failure(&self) -> Option<Failure> {
        let error = self.loading.get()?.failure()?;
        Some(Failure::Error {
            operator: Arc::clone(&self.label.0),
            error: format!("a value cannot be read from its changelog: {error}").into(),
        })
    }

    /// Returns what a checkpoint has of the element beside its changes, the element being at rest; `None` also without a
    /// changelog.
    pub fn head(&self, checkpoint: u64) -> Result<Option<StateHead>, Failure> {
        if !self.is_open() {
            return Ok(None);
        }
        let head = self.label.run(|| self.state.head(checkpoint));
        head.map_err(|error| Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        })
    }

    /// Restores that, before the changes.
    pub fn restore_head(&self, head: &[u8]) -> Result<(), BoxError> {
        self.state.restore_head(head)
    }

    /// Returns an entry of the element as changelogs have it, the element being at rest.
    pub fn sample(&self) -> Option<Vec<u8>> {
        let sample = self.label.run(|| self.state.sample())?;
        postcard::to_stdvec(&sample).ok()
    }

    /// Reads the sample of the checkpoint that the flow resumes from. Nothing is changed by that.
    pub fn check_sample(&self, sample: &[u8]) -> Result<(), BoxError> {
        let (key, value): (Vec<u8>, Vec<u8>) = postcard::from_bytes(sample)?;
        let checked = catch(|| self.state.check_sample(&key, &value));
        checked.map_err(|error| {
            format!("its keys or values have another type than in the checkpoint: {error}").into()
        })
    }

    /// Checks that the element, which is restored, has the key of the checkpoint's sample.
    pub fn check_restored(&self, sample: &[u8]) -> Result<(), BoxError> {
        let (key, _): (Vec<u8>, Vec<u8>) = postcard::from_bytes(sample)?;
        match self.state.has(&key)? {
            true => Ok(()),
            false => Err(
                "it lacks a key that the checkpoint has, so records of the state were removed, perhaps with their stream; \
                 bring them back, or remove all checkpoints of the flow and start it anew"
                    .into(),
            ),
        }
    }

    /// A checkpoint of the changes is taken, the element being at rest. The result writes them while it goes on.
    pub fn cut_changes(self: &Arc<Self>, checkpoint: u64) -> Box<dyn Deferred> {
        self.state.cut(checkpoint);
        Box::new(CutChanges {
            element: Arc::clone(self),
            checkpoint,
            written: Mutex::new(None),
        })
    }

    /// Runs code of the changelog, or for it, and names it in the error.
    fn write<R>(&self, code: impl FnOnce() -> Result<R, BoxError>) -> Result<R, BoxError> {
        let place = format!("the changelog of state \"{}\"", self.name());
        catch(code).map_err(|error| named(&place, &error))
    }
}

/// The changes of an element before a checkpoint.
struct CutChanges {
    element: Arc<LoggedElement>,
    checkpoint: u64,
    /// The changes that the changelog has, if it has all and they are not prepared. For the thread that writes the checkpoint.
    written: Mutex<Option<Written>>,
}

impl CutChanges {
    fn give_up(&self) {
        // It may be user code, which has failed before.
        let _ = self.element.write(|| {
            self.element.log().call(LogState::give_up);
            Ok(())
        });
    }
}

impl Deferred for CutChanges {
    /// Appends the changes, and waits until they are stored.
    fn write(&self, bell: &Arc<WriterBell>) -> Result<(), BoxError> {
        if self.written.lock().is_some() {
            return Ok(());
        }
        let element = &self.element;
        element.label.run(|| element.state.sweep());
        if let Some(time) = element.passed.get() {
            element.write(|| element.log().call(|log| log.changelog.passed(time)))?;
        }
        let waker = Waker::from(Arc::clone(bell));
        let mut sum = Written::default();
        let mut write = |changes: Changes<'_>| {
            let mut changes = changes.inspect(|change| {
                sum.changes += 1;
                sum.bytes += change.as_ref().map_or(0, Change::bytes);
            });
            element.log().write(&mut changes, bell, &waker)
        };
        let written = element.write(|| element.state.write(self.checkpoint, &mut write));
        match written {
            Ok(()) => {
                *self.written.lock() = Some(sum);
                if let Some(mean) = sum.bytes.checked_div(sum.changes) {
                    element.change_bytes.store(mean, Ordering::Relaxed);
                }
            }
            Err(_) => self.give_up(),
        }
        written
    }

    fn prepare(&self) -> Result<(Vec<u8>, Written), BoxError> {
        let element = &self.element;
        let prepare = |log: &mut LogState| log.changelog.prepare(self.checkpoint);
        let prepared = element.write(|| element.log().call(prepare))?;
        let written = self.written.lock().take();
        element.state.written(self.checkpoint);
        Ok((prepared, written.unwrap_or_default()))
    }
}

impl Drop for CutChanges {
    fn drop(&mut self) {
        if self.written.lock().is_some() {
            self.give_up();
        }
    }
}

impl OpenLog {
    /// Calls the changelog, and wakes a commit that was refused meanwhile.
    fn call<R>(&self, code: impl FnOnce(&mut LogState) -> R) -> R {
        struct Unlocked<'a>(&'a OpenLog);
        impl Drop for Unlocked<'_> {
            fn drop(&mut self) {
                if let Some(waker) = self.0.commit_waker.lock().take() {
                    waker.wake();
                }
            }
        }
        let _unlocked = Unlocked(self);
        let mut log = self.log.lock();
        code(&mut log)
    }

    /// Appends changes, and waits until they are stored.
    fn write(
        &self,
        changes: Changes<'_>,
        bell: &WriterBell,
        waker: &Waker,
    ) -> Result<(), BoxError> {
        loop {
            let batch = catch(|| changes.take(CHANGES_AT_ONCE).collect());
            let batch: Vec<Change> = batch.map_err(|error| Unencodable(error.to_string()))?;
            if batch.is_empty() {
                break;
            }
            self.push(&batch, bell, waker)?;
        }
        while !self.call(|log| log.flush(waker))? {
            bell.wait()?;
        }
        Ok(())
    }

    fn push(&self, mut batch: &[Change], bell: &WriterBell, waker: &Waker) -> Result<(), BoxError> {
        while !batch.is_empty() {
            let taken = self.call(|log| log.push(batch, waker))?;
            let rest = batch.get(taken..).ok_or_else(|| {
                format!(
                    "it was given {} changes and returned that it took {taken}; its push has to return how many it took of those",
                    batch.len()
                )
            })?;
            if taken == 0 {
                // It may have to flush first.
                self.call(|log| log.flush(waker))?;
                bell.wait()?;
            }
            batch = rest;
        }
        Ok(())
    }
}

impl LogState {
    fn give_up(&mut self) {
        self.is_unflushed = false;
        self.changelog.give_up();
    }

    fn push(&mut self, changes: &[Change], waker: &Waker) -> Result<usize, BoxError> {
        self.is_unflushed = true;
        self.changelog.push(changes, waker)
    }

    fn flush(&mut self, waker: &Waker) -> Result<bool, BoxError> {
        if self.is_unflushed {
            self.is_unflushed = !self.changelog.flush(waker)?;
        }
        Ok(!self.is_unflushed)
    }
}

impl Committer for LoggedElement {
    fn commit(&self, checkpoint: u64, waker: &Waker) -> Result<bool, Failure> {
        self.state.complete(checkpoint);
        let Some(open) = self.log.get() else {
            return Ok(true);
        };
        let mut log = open.log.try_lock();
        if log.is_none() {
            *open.commit_waker.lock() = Some(waker.clone());
            // The writer may have left before it could find the waker.
            log = open.log.try_lock();
        }
        let Some(mut log) = log else {
            return Ok(false);
        };
        let committed = self.label.run(|| log.changelog.commit(checkpoint, waker));
        committed.map_err(|error| Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        })
    }
}

#[cfg(test)]
mod tests;
