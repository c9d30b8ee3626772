//! The participants of a checkpoint's commit: sinks, and the keeper of dead letters.

use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::error::{BoxError, Failure};
use crate::sinks::dead_letter::{DEAD_LETTERS, DeadLetters};
use crate::sinks::sink::{Sink, SinkStart};
use crate::stage::user_code::Label;

/// Results or changes that count when their checkpoint is complete.
pub trait Committer: Send + Sync {
    /// Commits the results prepared for a checkpoint and for earlier ones: see
    /// [`Sink::commit`](crate::Sink::commit). Never waits.
    fn commit(&self, checkpoint: u64, waker: &Waker) -> Result<bool, Failure>;
}

/// A sink of any items, as checkpoints see it.
pub trait Participant: Committer {
    fn name(&self) -> &str;

    /// Whether a flow may resume with it from a checkpoint without its state.
    fn may_be_new(&self) -> bool {
        false
    }

    fn waits_for_commit(&self) -> bool;

    fn recover(&self, start: &SinkStart<'_>) -> Result<(), BoxError>;

    fn prepare(&self, checkpoint: u64) -> Result<Vec<u8>, Failure>;
}

/// The sink that all instances of a stage share.
pub struct SinkParticipant<T, K> {
    sink: Arc<Mutex<K>>,
    label: Label,
    item: PhantomData<fn(&T)>,
}

impl<T, K> SinkParticipant<T, K> {
    pub fn new(sink: Arc<Mutex<K>>, label: Label) -> Self {
        SinkParticipant {
            sink,
            label,
            item: PhantomData,
        }
    }

    fn run<R>(&self, code: impl FnOnce(&mut K) -> Result<R, BoxError>) -> Result<R, Failure> {
        let result = self.label.run(|| code(&mut self.sink.lock()));
        result.map_err(|error| Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        })
    }
}

impl<T, K: Sink<T>> Participant for SinkParticipant<T, K> {
    fn name(&self) -> &str {
        &self.label.0
    }

    fn waits_for_commit(&self) -> bool {
        self.label.run(|| self.sink.lock().waits_for_commit())
    }

    fn recover(&self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        self.label.run(|| self.sink.lock().recover(start))
    }

    fn prepare(&self, checkpoint: u64) -> Result<Vec<u8>, Failure> {
        self.run(|sink| sink.prepare(checkpoint))
    }
}

impl<T, K: Sink<T>> Committer for SinkParticipant<T, K> {
    fn commit(&self, checkpoint: u64, waker: &Waker) -> Result<bool, Failure> {
        self.run(|sink| sink.commit(checkpoint, waker))
    }
}

/// Dead letters as checkpoints see them.
pub struct DeadLetterParticipant {
    letters: Arc<dyn DeadLetters>,
    label: Label,
}

impl DeadLetterParticipant {
    pub fn new(letters: &Arc<dyn DeadLetters>) -> Self {
        DeadLetterParticipant {
            letters: Arc::clone(letters),
            label: Label(DEAD_LETTERS.into()),
        }
    }

    fn run<R>(
        &self,
        code: impl FnOnce(&dyn DeadLetters) -> Result<R, BoxError>,
    ) -> Result<R, Failure> {
        let result = self.label.run(|| code(&*self.letters));
        result.map_err(|error| Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        })
    }
}

impl Participant for DeadLetterParticipant {
    fn name(&self) -> &str {
        &self.label.0
    }

    /// A flow without a keeper of dead letters may get one later.
    fn may_be_new(&self) -> bool {
        true
    }

    fn waits_for_commit(&self) -> bool {
        self.label.run(|| self.letters.waits_for_commit())
    }

    fn recover(&self, start: &SinkStart<'_>) -> Result<(), BoxError> {
        self.label.run(|| self.letters.recover(start))
    }

    fn prepare(&self, checkpoint: u64) -> Result<Vec<u8>, Failure> {
        self.run(|letters| letters.prepare(checkpoint))
    }
}

impl Committer for DeadLetterParticipant {
    fn commit(&self, checkpoint: u64, waker: &Waker) -> Result<bool, Failure> {
        self.run(|letters| letters.commit(checkpoint, waker))
    }
}
