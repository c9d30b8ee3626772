//! The feeds of a server, each while a watch needs it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::task::run;
use super::{Feed, Source};
use crate::memory::Memory;

/// The memory of all items that wait in queues of subscribers, in bytes. Each item counts once.
const ITEMS_BYTES_MAX: usize = 64 << 20;

/// The watches that read changelogs by themselves at once: those that begin, and those that have fallen behind.
const READERS_MAX: usize = 256;

/// The longest time that a new watch waits for its turn to read.
const TURN_TIME_MAX: Duration = Duration::from_secs(10);

/// All feeds.
pub struct Feeds {
    feeds: Mutex<HashMap<Name, Weak<Running>>>,
    memory: Arc<Memory>,
    readers: Arc<Semaphore>,
}

/// A flow and its element.
type Name = (String, String);

/// A feed with its task, which ends with this.
pub struct Running {
    pub feed: Arc<Feed>,
    /// See [`Source::run`].
    run: usize,
    /// Its run is the one above while this exists.
    _source: Arc<dyn Source>,
    task: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Feeds {
    pub fn new() -> Feeds {
        Feeds::with_bounds(ITEMS_BYTES_MAX, READERS_MAX)
    }

    pub fn with_bounds(items_bytes: usize, readers: usize) -> Feeds {
        Feeds {
            feeds: Mutex::default(),
            memory: Arc::new(Memory::new(items_bytes)),
            readers: Arc::new(Semaphore::new(readers)),
        }
    }

    /// Returns the feed of an element. Starts its task if there is none, or the last one has ended.
    pub fn of(&self, name: &Name, source: &Arc<dyn Source>) -> Arc<Running> {
        let mut feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        let known = feeds.get(name).and_then(Weak::upgrade);
        if let Some(known) = known
            && known.run == source.run()
            && known.feed.end_reason().is_none()
        {
            return known;
        }
        feeds.retain(|_, it| it.strong_count() > 0);
        let feed = Arc::new(Feed::new(Arc::clone(&self.memory)));
        let task = tokio::spawn(run(Arc::clone(&feed), Arc::clone(source)));
        let running = Arc::new(Running {
            feed,
            run: source.run(),
            _source: Arc::clone(source),
            task: task.abort_handle(),
        });
        feeds.insert(name.clone(), Arc::downgrade(&running));
        running
    }

    /// Waits for a turn to read a changelog; `None` if none comes in time.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.readers).acquire_owned();
        timeout(TURN_TIME_MAX, turn).await.ok()?.ok()
    }

    /// The turns of readers.
    pub(super) fn readers(&self) -> Arc<Semaphore> {
        Arc::clone(&self.readers)
    }

    /// Returns how many feeds are needed.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let feeds = self.feeds.lock().unwrap_or_else(PoisonError::into_inner);
        feeds.values().filter(|it| it.strong_count() > 0).count()
    }
}
