//! What a stage reads: a source, or the ring that an earlier stage writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use millstream_ring::Ring;

use crate::chain::Label;
use crate::doorbell::Doorbell;
use crate::error::Failure;
use crate::source::{Output, Source, SourceStatus};

/// What became of an attempt to read.
pub enum Read {
    /// So many items were given to `work`.
    Items(usize),
    Idle,
    End,
}

pub trait Input: Send + 'static {
    type Item;

    /// Gives `work` up to `budget` items, in one or two parts, and holds on to them until it
    /// returns.
    fn read(
        &mut self,
        budget: usize,
        work: impl FnOnce([&[Self::Item]; 2]) -> Result<(), Failure>,
    ) -> Result<Read, Failure>;
}

pub struct SourceInput<S: Source> {
    pub source: S,
    pub label: Label,
    pub doorbell: Arc<Doorbell>,
    pub waker: Waker,
    /// Set by [`Running::stop`](crate::Running::stop): no more is asked of the source.
    pub stopping: Arc<AtomicBool>,
    pub output: Output<S::Item>,
    /// The source said so together with its last items.
    pub ended: bool,
}

impl<S: Source> Input for SourceInput<S> {
    type Item = S::Item;

    fn read(
        &mut self,
        budget: usize,
        work: impl FnOnce([&[S::Item]; 2]) -> Result<(), Failure>,
    ) -> Result<Read, Failure> {
        if self.ended || self.stopping.load(Ordering::Relaxed) {
            return Ok(Read::End);
        }
        let status = self
            .label
            .run(|| self.source.poll(&mut self.output, budget, &self.waker))
            .map_err(|error| Failure {
                operator: Arc::clone(&self.label.0),
                error,
            })?;
        self.ended = status == SourceStatus::End;
        if let SourceStatus::IdleUntil(time) = status {
            self.doorbell.ring_at(time);
        }
        let count = self.output.items.len();
        if count > 0 {
            work([&self.output.items, &[]])?;
            self.output.items.clear();
        }
        Ok(match status {
            SourceStatus::Ready => Read::Items(count),
            _ if count > 0 => Read::Items(count),
            SourceStatus::Idle | SourceStatus::IdleUntil(_) => Read::Idle,
            SourceStatus::End => Read::End,
        })
    }
}

pub struct RingInput<T> {
    pub ring: Arc<Ring<T>>,
}

impl<T: Send + 'static> Input for RingInput<T> {
    type Item = T;

    fn read(
        &mut self,
        budget: usize,
        work: impl FnOnce([&[T]; 2]) -> Result<(), Failure>,
    ) -> Result<Read, Failure> {
        let Some(slice) = self.ring.try_read(budget) else {
            return Ok(match self.ring.is_finished() {
                true => Read::End,
                false => Read::Idle,
            });
        };
        let parts = slice.parts();
        let count = parts[0].len() + parts[1].len();
        work(parts)?;
        slice.done();
        Ok(Read::Items(count))
    }
}
