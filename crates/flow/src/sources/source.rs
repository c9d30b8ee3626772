//! The contract of sources, which give a flow its items.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use crate::error::BoxError;
use crate::sources::positions::Positions;
use crate::time::partitions::SourcePartitions;

/// The outcome of a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceStatus {
    /// It gave items, or made progress, and may have more.
    Ready,
    /// There is nothing now; the source wakes the waker when there is.
    Idle,
    /// There is nothing before this time of the flow's clock
    /// ([`Clock::monotonic`](millstream_base::Clock::monotonic)).
    IdleUntil(Duration),
    /// There will never be anything again. The source is not asked any more.
    End,
}

/// Gives a flow its items. One worker at a time polls it.
pub trait Source: Send + 'static {
    /// The type of its items.
    type Item: Send + 'static;

    /// Appends up to about `budget` items to `out`; never waits. A source that returns [`SourceStatus::Idle`] holds a
    /// clone of `waker` and wakes it when there is something.
    ///
    /// # Errors
    /// Ends the flow.
    fn poll(
        &mut self,
        out: &mut Output<Self::Item>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError>;

    /// Returns the partitions of its items, such as the partitions of a stream: one may be far ahead of another, so
    /// watermarks go by the one that is furthest behind. A source that returns [`SourcePartitions::One`] though it reads
    /// several loses items of the slower ones as late.
    fn partitions(&self) -> SourcePartitions<'_, Self::Item>;

    /// Returns the number of records in an item. The flow's latency is [sampled](crate::Latency) by records: one in a
    /// hundred. Called once per item, and only where the source's stage is the end of the flow.
    fn records_of(&self, _item: &Self::Item) -> u64 {
        1
    }

    /// Returns the positions of the source, for those that watch the flow; `None` where the input has no end to be
    /// behind.
    /// Asked for once, before anything is asked of the source.
    fn positions(&self) -> Option<Arc<dyn Positions>> {
        None
    }

    /// Whether the flow calls [`commit`](Source::commit).
    fn wants_commits(&self) -> bool {
        false
    }

    /// Saves the position behind the last item that it gave, for a checkpoint that all of its items so far are part
    /// of. It may wait: the flow's sources pause meanwhile.
    ///
    /// # Errors
    /// Ends the flow; of sources that cannot go on from anywhere.
    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Err("it keeps no position, so there can be no checkpoint of it".into())
    }

    /// Resumes from a [saved](Source::save) position. Called before anything is asked of it.
    ///
    /// # Errors
    /// When it cannot go on from there: the flow does not begin.
    fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
        Err("it keeps no position, so it cannot resume from a checkpoint".into())
    }

    /// Whether sources that share their work save one common position. Then any number of sources can resume from it;
    /// otherwise as many must resume as were saved.
    fn shares_position(&self) -> bool {
        false
    }

    /// The flow is over, whether its input has ended or not: nothing more is asked of the source.
    fn close(&mut self) {}

    /// Everything that the source has given has gone through the flow, and its sinks have it for
    /// good. Called about once per [interval](crate::FlowSettings::commit_interval) and at the end. It
    /// may wait: the flow's sources pause meanwhile.
    ///
    /// # Errors
    /// Ends the flow.
    fn commit(&mut self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    type Item = S::Item;

    fn poll(
        &mut self,
        out: &mut Output<Self::Item>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        (**self).poll(out, budget, waker)
    }

    fn records_of(&self, item: &Self::Item) -> u64 {
        (**self).records_of(item)
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        (**self).positions()
    }

    fn partitions(&self) -> SourcePartitions<'_, Self::Item> {
        (**self).partitions()
    }

    fn wants_commits(&self) -> bool {
        (**self).wants_commits()
    }

    fn commit(&mut self) -> Result<(), BoxError> {
        (**self).commit()
    }

    fn close(&mut self) {
        (**self).close();
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        (**self).save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        (**self).restore(saved)
    }

    fn shares_position(&self) -> bool {
        (**self).shares_position()
    }
}

/// The items of a poll.
#[derive(Debug)]
pub struct Output<T> {
    pub(crate) items: Vec<T>,
}

impl<T> Default for Output<T> {
    fn default() -> Self {
        Output { items: Vec::new() }
    }
}

impl<T> Output<T> {
    /// Appends an item.
    pub fn push(&mut self, item: T) {
        self.items.push(item);
    }

    /// The items so far.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// Takes all items out, in their order.
    pub fn drain(&mut self) -> impl Iterator<Item = T> {
        self.items.drain(..)
    }
}

impl<T> Extend<T> for Output<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        self.items.extend(items);
    }
}
