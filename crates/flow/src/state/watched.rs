//! Changelogs that readers watch beside the flow.

use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;

use millstream_base::{KeyEvent, KeyRange, Offset, WatchFrom, WatchPositions};
use serde_json::Value;

use crate::error::BoxError;
use crate::state::logged::LoggedState;

/// Work on a changelog that a reader waits for. Its executor is one of tokio's.
pub type WatchFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, WatchError>> + Send + 'a>>;

/// The committed changes of a state element on all ranks, in the stream with its changelog.
pub trait WatchedChangelog: Send + Sync {
    /// Begins to watch the keys of a range, by their encoded bytes. From then on the watch misses no change.
    fn watch(
        &self,
        range: KeyRange,
        from: WatchFrom,
    ) -> WatchFuture<'static, Box<dyn ChangelogWatch>>;

    /// Returns the present ends of the partitions, by their numbers: the changes of all complete checkpoints are before
    /// them.
    fn ends(&self) -> WatchFuture<'static, Vec<Offset>>;
}

/// A watch of a changelog. Where it would miss a change, it says so and makes a snapshot.
pub trait ChangelogWatch: Send {
    /// Waits for the next event, or returns `None` when the position has moved on without one. If the future is dropped, no event
    /// is lost.
    ///
    /// # Errors
    /// When the changelog was deleted, or cannot be read: the watch has ended.
    fn next(&mut self) -> WatchFuture<'_, Option<KeyEvent>>;

    /// Returns the position behind the last event, or further on if no event is between; of no use within a snapshot.
    fn positions(&self) -> WatchPositions;

    /// Returns whether a snapshot has begun and not ended.
    fn is_in_snapshot(&self) -> bool;
}

/// The reason why a watch cannot begin, or ends.
#[derive(thiserror::Error)]
pub enum WatchError {
    /// The changelog was deleted and made again since a position.
    #[error(
        "the changelog {stream:?} was deleted and made again since this position: begin again without one"
    )]
    MadeAgain {
        /// The stream.
        stream: String,
    },
    /// The changelog cannot be read.
    #[error("{0}")]
    Failed(BoxError),
}

millstream_base::debug_as_display!(WatchError);

/// The reason why no reader can watch a state element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotWatched {
    /// The flow takes no checkpoints, so no changes are stored.
    NoCheckpoints,
    /// Each checkpoint has the element whole.
    SavedWhole,
    /// Instances have shares of the values, so a change of a share is none of a value.
    Partial,
    /// The store of checkpoints has changes elsewhere than in streams.
    NoStream,
}

/// A state element whose changes readers watch.
#[derive(Clone)]
pub struct WatchedElement {
    pub(crate) changelog: Arc<dyn WatchedChangelog>,
    pub(crate) state: Arc<dyn LoggedState>,
}

/// A change of a state element, as readers see it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownChange {
    /// The key's text; `None` if it has none.
    pub key: Option<String>,
    /// The key's [canonical bytes](millstream_base::key).
    pub bytes: Vec<u8>,
    /// The entry of the key that has changed, if it has several: an object that no other entry of the key has.
    pub entry: Option<Value>,
    /// The new value; `None` if there is none any more.
    pub value: Option<Value>,
}

impl WatchedElement {
    /// Returns the changelog.
    pub fn changelog(&self) -> &dyn WatchedChangelog {
        &*self.changelog
    }

    /// Whether each key of the changelog is a key of the element, by its canonical bytes.
    pub fn has_plain_keys(&self) -> bool {
        self.state.has_plain_keys()
    }

    /// Decodes a change of the changelog.
    ///
    /// # Errors
    /// When it is none of this element, JSON cannot hold its value, or user code panics.
    pub fn show(&self, key: &[u8], value: Option<&[u8]>) -> Result<ShownChange, BoxError> {
        // A panic would end the task of all watches, and none of them would learn it.
        let shown = panic::catch_unwind(AssertUnwindSafe(|| self.state.show(key, value)));
        shown.unwrap_or_else(|_| Err("the code of the element panicked".into()))
    }
}
