//! The input of a stage that reads a source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use millstream_base::Clock;
use millstream_ring::SAMPLE_EVERY;

use crate::doorbell::Doorbell;
use crate::error::{BoxError, Failure};
use crate::pause::Pause;
use crate::sources::positions::Positions;
use crate::sources::source::{Output, Source, SourceStatus};
use crate::stage::input::{Input, Took};
use crate::stage::row::RowStart;
use crate::stage::user_code::Label;
use crate::time::partitions::{PartitionId, Partitions, SourcePartitions};

/// The input of a stage that reads a source: see [`Operators`](crate::Operators).
pub struct SourceInput<S: Source> {
    pub(crate) source: S,
    pub(crate) label: Label,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) waker: Waker,
    /// Set by [`Running::stop`](crate::Running::stop): no more is asked of the source.
    pub(crate) stopping: Arc<AtomicBool>,
    /// When it is on nothing is asked of the source.
    pub(crate) pause: Arc<Pause>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) output: Output<S::Item>,
    /// When `output` was filled.
    pub(crate) stamp: u64,
    /// Records since the last that was sampled.
    pub(crate) unsampled: u64,
    /// The number of items that a poll gave lately.
    pub(crate) usual: usize,
    /// The source reported its end together with its last items.
    pub(crate) ended: bool,
}

impl<S: Source> RowStart for SourceInput<S> {
    type Item = S::Item;

    const IS_SHARED: bool = false;
}

impl<S: Source> Input for SourceInput<S> {
    /// More than usual, to find out whether it could give more.
    fn readable(&self) -> usize {
        match self.is_finished() || self.pause.is_on.load(Ordering::SeqCst) {
            true => 0,
            false => 2 * self.usual.max(1),
        }
    }

    fn is_finished(&self) -> bool {
        self.ended || self.stopping.load(Ordering::Relaxed)
    }

    fn take(&mut self, budget: usize) -> Result<Took, Failure> {
        if self.is_finished() {
            return Ok(Took::End);
        }
        let status = self
            .label
            .run(|| self.source.poll(&mut self.output, budget, &self.waker));
        let status = status.map_err(|error| self.failure(error))?;
        self.ended = status == SourceStatus::End;
        if let SourceStatus::IdleUntil(time) = status {
            self.doorbell.ring_at(time);
        }
        if !self.output.items.is_empty() {
            self.usual = (self.usual + self.output.items.len()).div_ceil(2);
            self.stamp = self.clock.monotonic().as_nanos() as u64;
            return Ok(Took::Items);
        }
        Ok(match status {
            // It has made progress of its own.
            SourceStatus::Ready => Took::Items,
            SourceStatus::Idle | SourceStatus::IdleUntil(_) => Took::Idle,
            SourceStatus::End => Took::End,
        })
    }

    fn parts(&self) -> [&[S::Item]; 2] {
        [&self.output.items, &[]]
    }

    fn stamp(&mut self) -> u64 {
        self.stamp
    }

    fn sample(&mut self, mut visit: impl FnMut(u64, u64)) {
        let items = self.output.items.iter();
        self.unsampled += items.map(|item| self.source.records_of(item)).sum::<u64>();
        let samples = self.unsampled / SAMPLE_EVERY;
        if samples > 0 {
            visit(self.stamp, samples);
        }
        self.unsampled %= SAMPLE_EVERY;
    }

    fn done(&mut self) {
        self.output.items.clear();
    }

    fn wake_at(&self, time: Duration) {
        self.doorbell.ring_at(time);
    }

    fn partition_of(&self, item: &S::Item) -> Option<PartitionId> {
        match self.source.partitions() {
            SourcePartitions::One => None,
            SourcePartitions::Many { partition_of, .. } => Some(partition_of(item)),
        }
    }

    fn partitions(&self) -> Option<Partitions> {
        match self.source.partitions() {
            SourcePartitions::One => None,
            SourcePartitions::Many { partitions, .. } => Some(partitions.clone()),
        }
    }

    fn wants_commits(&self) -> bool {
        self.source.wants_commits()
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        self.source.positions()
    }

    fn shares_position(&self) -> bool {
        self.source.shares_position()
    }

    fn save(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let saved = self.label.run(|| self.source.save());
        let saved = saved.map_err(|error| self.failure(error))?;
        let mut bytes = vec![u8::from(self.ended)];
        bytes.extend(saved);
        Ok(Some(bytes))
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let [ended, saved @ ..] = saved else {
            return Err("the saved position of a source is truncated".into());
        };
        self.ended = *ended != 0;
        if self.ended {
            tracing::warn!(
                source = &*self.label.0,
                "an earlier run has read this source to its end, so this one reads nothing of it; remove the flow's checkpoints to begin anew"
            );
        }
        self.label.run(|| self.source.restore(saved))
    }

    fn close(&mut self) {
        self.label.run(|| self.source.close());
    }

    fn commit(&mut self) -> Result<(), Failure> {
        let committed = self.label.run(|| self.source.commit());
        committed.map_err(|error| self.failure(error))
    }
}

impl<S: Source> SourceInput<S> {
    fn failure(&self, error: BoxError) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.label.0),
            error,
        }
    }
}
