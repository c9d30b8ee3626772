//! The broker's side of a subscription.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use thiserror::Error;

use crate::bell::Rings;
use crate::descriptor::Descriptor;
use crate::layout::{NEVER, Shape};
use crate::memory::Memory;
use crate::sync::{Ordering, fence};

/// The longest wait for the doorbell. A consumer can write any value into the doorbell's word, and so suppress a ring.
/// This delays only its own subscription, and at most for this time.
pub const WAIT_MAX: Duration = Duration::from_secs(30);

/// Publishes descriptors to the sources of one consumer. One thread owns it; others ring the doorbell.
///
/// # Why no entry is reused too early, and no wake-up is lost
///
/// The publisher writes descriptor N of a source into entry N modulo E after it has loaded a progress above N - E. The
/// consumer stores its progress with release after it has read the finished descriptors, and the broker loads it with
/// acquire. So the reads of the entry and of the pool's bytes happened before the write. The publisher stores the tail
/// with release after the descriptors before it, and the consumer loads it with acquire.
///
/// After the publisher has moved the tail, it rings the consumer's bell. `Bell` explains why this wakes a consumer that
/// found no descriptor and goes to sleep.
///
/// In the other direction, the consumer rings only when it gets to the progress that the broker wants. The broker
/// stores the wanted progress, and then loads the actual one; the consumer stores its progress, and then loads the
/// wanted one. Each side has a sequentially consistent fence between the two, and one of the fences comes first. If the
/// broker's does, the consumer loads the wanted progress, and rings. If the consumer's does, the broker loads the new
/// progress in [`want_progress`](Publisher::want_progress), and need not wait.
pub struct Publisher {
    memory: Arc<Memory>,
    doorbell: Arc<Doorbell>,
    sources: Box<[Counts]>,
}

/// The counts of a source's descriptors: the broker's own copy, since the consumer may overwrite the counts in the file.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// The number of written descriptors.
    pushed: u64,
    /// The number of published descriptors.
    published: u64,
    /// The consumer's progress at the last load.
    finished: u64,
}

/// The ring has no room until the consumer finishes descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the ring is full")]
pub struct Full;

/// The consumer claims an impossible progress. It broke its side of the layout, so the broker cannot know which bytes it
/// still reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "source {index} claims to have finished {claimed} descriptors, after {seen}, of {published}"
)]
pub struct BadProgress {
    /// The source.
    pub index: usize,
    /// The claimed progress.
    pub claimed: u64,
    /// Its progress at the last load.
    pub seen: u64,
    /// The number of published descriptors.
    pub published: u64,
}

/// The step that remains to wake a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a consumer without futexes waits for a byte"]
pub enum Rung {
    /// No step remains.
    Done,
    /// The consumer has no futexes: send it a byte over its connection.
    WaitsForByte,
}

impl Publisher {
    /// Creates a subscription of `sources` rings of `entries` (a power of two), in a new shared file; bounds are in
    /// [`layout`](crate::layout). No two subscriptions should have the same `identity`.
    ///
    /// # Errors
    /// When the layout does not allow these numbers, or there is not enough memory to share.
    pub fn create(sources: u32, entries: u32, identity: u64) -> io::Result<Publisher> {
        let shape = Shape::new(sources, entries)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let memory = Arc::new(Memory::create(shape, identity)?);
        for index in 0..shape.sources() {
            let wanted = &memory.source(index).broker.wanted;
            wanted.store(NEVER, Ordering::Relaxed);
        }
        Ok(Publisher {
            doorbell: Arc::new(Doorbell {
                memory: Arc::clone(&memory),
            }),
            sources: vec![Counts::default(); shape.sources()].into(),
            memory,
        })
    }

    /// Returns the path at which the consumer opens the file, while the publisher or its doorbell exists.
    pub fn path(&self) -> PathBuf {
        self.memory.path()
    }

    /// Returns the number of sources.
    pub fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Returns the number of descriptors that each source has room for.
    pub fn entries(&self) -> u32 {
        self.memory.shape().entries()
    }

    /// Returns the number of descriptors that were pushed to a source.
    ///
    /// # Panics
    /// When there is no such source, like all methods that take an index.
    pub fn pushed(&self, index: usize) -> u64 {
        self.sources[index].pushed
    }

    /// Adds a descriptor, which the consumer sees after [`flush`](Publisher::flush).
    ///
    /// # Errors
    /// When there is no room according to the last call of [`progress`](Publisher::progress).
    #[inline]
    pub fn push(&mut self, index: usize, descriptor: &Descriptor) -> Result<(), Full> {
        let source = &mut self.sources[index];
        if source.pushed - source.finished >= u64::from(self.memory.shape().entries()) {
            return Err(Full);
        }
        let slot = self.memory.slot(index, source.pushed);
        slot.write(&descriptor.encode());
        source.pushed += 1;
        Ok(())
    }

    /// Publishes the pushed descriptors to the consumer, and wakes it if it waits.
    pub fn flush(&mut self, index: usize) -> Rung {
        let source = &mut self.sources[index];
        if source.published == source.pushed {
            return Rung::Done;
        }
        source.published = source.pushed;
        let line = &self.memory.source(index).broker;
        // Releases the descriptors to the load in `SourceRing::try_take`.
        line.tail.store(source.pushed, Ordering::Release);
        match line.bell.ring() {
            true => Rung::WaitsForByte,
            false => Rung::Done,
        }
    }

    /// Returns the number of descriptors, from the first on, that the consumer has finished.
    ///
    /// # Errors
    /// When the consumer claims an impossible number.
    #[inline]
    pub fn progress(&mut self, index: usize) -> Result<u64, BadProgress> {
        let source = &mut self.sources[index];
        let line = &self.memory.source(index).consumer;
        // Acquires the store in `Finished::finish`: the consumer is done with these descriptors and their bytes.
        let claimed = line.progress.load(Ordering::Acquire);
        let (seen, published) = (source.finished, source.published);
        if !(seen..=published).contains(&claimed) {
            return Err(BadProgress {
                index,
                claimed,
                seen,
                published,
            });
        }
        source.finished = claimed;
        Ok(claimed)
    }

    /// Asks the consumer to ring the doorbell when its progress gets to `count`, and returns its progress. If the
    /// progress is at `count` already, the consumer may not ring. It rings once, and each call replaces the earlier
    /// count.
    ///
    /// # Errors
    /// When the consumer claims an impossible number.
    pub fn want_progress(&mut self, index: usize, count: u64) -> Result<u64, BadProgress> {
        let line = &self.memory.source(index).broker;
        line.wanted.store(count, Ordering::Relaxed);
        // Pairs with the fence in `Finished::finish`.
        fence(Ordering::SeqCst);
        self.progress(index)
    }

    /// Returns the number of rings of the doorbell. Note it before looking for work, and pass it to
    /// [`wait`](Publisher::wait).
    pub fn rings(&self) -> Rings {
        self.memory.header().doorbell.bell.rings()
    }

    /// Waits until the doorbell has been rung since `seen`, but no longer than `timeout`, nor than [`WAIT_MAX`];
    /// returns whether it was.
    pub fn wait(&self, seen: Rings, timeout: Duration) -> bool {
        let bell = &self.memory.header().doorbell.bell;
        bell.wait(seen, timeout.min(WAIT_MAX))
    }

    /// Returns the doorbell, which wakes the waiting thread.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    #[cfg(loom)]
    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Ends the subscription, and wakes its consumer. The consumer must not trust unfinished descriptors any more, so
    /// the broker may reuse the bytes. The first end counts; a publisher that is dropped ends with code 0.
    pub fn end(&self, code: i32) {
        self.memory.end(code);
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end(0);
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publisher")
            .field("path", &self.path())
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

/// Wakes the thread that has the publisher. A doorbell may outlive the subscription; the shared file then exists as
/// long as the doorbell.
pub struct Doorbell {
    memory: Arc<Memory>,
}

impl Doorbell {
    /// Rings.
    pub fn ring(&self) {
        // The broker has futexes, so it never waits for a byte.
        self.memory.header().doorbell.bell.ring();
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell").finish_non_exhaustive()
    }
}
