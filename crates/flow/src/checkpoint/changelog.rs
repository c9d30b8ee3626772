//! Changelogs: the contract of streams that hold the changes of state elements.

use std::sync::Arc;

use crate::error::BoxError;
use crate::sinks::sink::Sink;
use crate::state::change::Change;
use crate::state::changelog_reader::{ChangelogReader, RestoreChange};

/// The durable log of the changes of a state element on one rank: a stream whose records are found by key. It takes
/// changes as a sink takes results, exactly once by checkpoints, except for these differences:
///
/// - The changes of a checkpoint are pushed, flushed and [prepared](Sink::prepare) on a thread beside the flow, which
///   waits for room and for [`flush`](Sink::flush). So no other method is called meanwhile but
///   [`commit`](Sink::commit), between two calls.
/// - An error of `push`, `flush` or `prepare` does not end the flow, unless it is a [`FinalError`](crate::FinalError): the
///   checkpoint fails, and the same changes, or newer ones of the same keys, are pushed again for the next one. Before
///   that comes [`give_up`](Self::give_up). Changes that were pushed without a `prepare` may count with the next one or
///   never. At the end of the flow, only a [`PassingError`](crate::PassingError) lets it push them again.
/// - It always [waits for commit](Sink::waits_for_commit), whatever that method returns.
///
/// A change is pushed by the rank that owns its key.
pub trait Changelog: Sink<Change> {
    /// Calls `each` for every committed change from the earliest to the last stable one at the time of the call, in
    /// the order of the log: `each(key, Some(value))` sets, `each(key, None)` deletes. A later call replaces earlier
    /// ones of the same key. Keys of all ranks are among them; the caller keeps its own. `resumed` is the checkpoint that
    /// the flow resumes from, if its changes are here; without one, the caller will replace all changes here.
    ///
    /// Called at most once, after [`recover`](Sink::recover) on all ranks and before any [`push`](Sink::push): not where a
    /// [`reader`](Self::reader) reads them while the flow runs. It may wait.
    ///
    /// # Errors
    /// When the changes cannot be read, other programs removed or added some, or the last one of a key is of a later
    /// checkpoint; and errors of `each`: the flow does not begin.
    fn restore<'a>(
        &mut self,
        resumed: Option<u64>,
        each: &'a mut RestoreChange<'a>,
    ) -> Result<(), BoxError>;

    /// Returns a reader, by which an element gets values that are not in memory; `None` if they all have to be. It is called
    /// before [`restore`](Self::restore), with the same checkpoint, for elements that can read so.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), as far as the faults are known before the changes are read.
    fn reader(
        &mut self,
        _resumed: Option<u64>,
    ) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        Ok(None)
    }

    /// Discards all changes since the last `prepare`; the writer pushes them again. A changelog with a transaction aborts it,
    /// so that attempts do not pile up in it and no reader waits for its end.
    fn give_up(&mut self) {}

    /// Tells that the state element has passed `time`, in milliseconds, on all ranks in a complete checkpoint: no rank of a later
    /// run needs changes that [expire](Change::expires) by then, unless the flow begins anew. `time` is the least one of all
    /// ranks, since they may share the changelog. So it may drop these changes, now or later, and
    /// [`restore`](Self::restore) may find them or not. Times need not rise. It may wait.
    ///
    /// # Errors
    /// None on account of a changelog that cannot take the time: it tries again with a later call.
    fn passed(&mut self, _time: i64) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<C: Changelog + ?Sized> Changelog for Box<C> {
    fn restore<'a>(
        &mut self,
        resumed: Option<u64>,
        each: &'a mut RestoreChange<'a>,
    ) -> Result<(), BoxError> {
        (**self).restore(resumed, each)
    }

    fn reader(
        &mut self,
        resumed: Option<u64>,
    ) -> Result<Option<Arc<dyn ChangelogReader>>, BoxError> {
        (**self).reader(resumed)
    }

    fn give_up(&mut self) {
        (**self).give_up();
    }

    fn passed(&mut self, time: i64) -> Result<(), BoxError> {
        (**self).passed(time)
    }
}
