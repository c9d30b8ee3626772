//! The consumer's side of a subscription.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::descriptor::{BadDescriptor, Descriptor};
use crate::file::OpenError;
use crate::memory::Memory;
use crate::state::State;
use crate::sync::{AtomicU64, Mutex, Ordering, fence, lock};
use crate::window::{Moved, Window};

/// The broker's announcement of a subscription over the connection.
#[derive(Debug, Clone, Copy)]
pub struct Announced<'a> {
    /// Distinguishes the subscription from others whose file had the same path.
    pub identity: u64,
    /// The size of the pool's file.
    pub pool_bytes: u64,
    /// The number of partitions of each source.
    pub places: &'a [u32],
}

/// A subscription that is fed through shared memory. Clones are the same subscription.
#[derive(Clone)]
pub struct Subscription {
    memory: Arc<Memory>,
    closed: Arc<Closed>,
}

impl Subscription {
    /// Opens the shared file at `path`; returns a ring for each source.
    ///
    /// # Errors
    /// When it cannot be opened, or contradicts the announcement.
    pub fn open(
        path: &Path,
        announced: Announced<'_>,
    ) -> Result<(Subscription, Vec<SourceRing>), OpenError> {
        let memory = Arc::new(Memory::open(path, announced.identity)?);
        let (found, expected) = (memory.shape().sources(), announced.places.len());
        if found != expected {
            return Err(OpenError::Sources {
                path: path.to_owned(),
                found,
                expected,
            });
        }
        Ok(Subscription::of(memory, announced))
    }

    /// Opens the other side of `publisher`, in the same model.
    #[cfg(loom)]
    pub fn in_model(
        publisher: &crate::Publisher,
        announced: Announced<'_>,
    ) -> (Subscription, Vec<SourceRing>) {
        Subscription::of(publisher.memory(), announced)
    }

    fn of(memory: Arc<Memory>, announced: Announced<'_>) -> (Subscription, Vec<SourceRing>) {
        let closed = Arc::new(Closed {
            word: AtomicU64::new(0),
        });
        let ring = |(index, places): (usize, &u32)| SourceRing {
            finished: Arc::new(Finished {
                memory: Arc::clone(&memory),
                index,
                window: Mutex::new(Window::new(memory.shape().entries())),
            }),
            closed: Arc::clone(&closed),
            next: 0,
            tail: 0,
            places: *places,
            pool_bytes: announced.pool_bytes,
        };
        let rings = announced.places.iter().enumerate().map(ring).collect();
        (Subscription { memory, closed }, rings)
    }

    /// Returns the state. Bytes of the pool that were read before a call that returns `Live` are valid.
    pub fn state(&self) -> State {
        self.memory.state()
    }

    /// Closes this side, because the connection to the broker is lost, or the consumer stops. Threads that wait in
    /// [`SourceRing::take`] return. The broker does not learn of this: the bytes of held descriptors stay in place until
    /// it ends the subscription.
    pub fn close(&self, code: i32) {
        let ended = u64::from(code.cast_unsigned()) << 32 | CLOSED;
        let closed = &self.closed.word;
        // Only the first code counts. Releases to the load in `Closed::code`.
        let _ = closed.compare_exchange(0, ended, Ordering::AcqRel, Ordering::Relaxed);
        for index in 0..self.memory.shape().sources() {
            self.memory.source(index).broker.bell.ring();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

const CLOSED: u64 = 1;

/// Whether this side is closed. Written by [`Subscription::close`] before it rings the bells of the rings; read by the
/// threads that take from the rings.
struct Closed {
    /// 0, or [`CLOSED`] and the code in the upper half.
    word: AtomicU64,
}

impl Closed {
    fn code(&self) -> Option<i32> {
        // Acquires the exchange in `Subscription::close`.
        match self.word.load(Ordering::Acquire) {
            0 => None,
            word => Some(((word >> 32) as u32).cast_signed()),
        }
    }
}

/// An item from a ring.
#[derive(Debug)]
pub enum Taken {
    /// A descriptor, and the hold that pins its bytes.
    Descriptor(Descriptor, Hold),
    /// The ring had no descriptor.
    TimedOut,
    /// The subscription has ended, for the reason of this code.
    Ended(i32),
}

/// The file contains an impossible value: the other side, or a foreign process, broke the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Broken {
    /// An impossible number of descriptors.
    #[error("a ring of {entries} claims {tail} descriptors, of which {taken} were taken")]
    Tail {
        /// The tail in the file.
        tail: u64,
        /// The number of descriptors taken.
        taken: u64,
        /// The number of entries.
        entries: u32,
    },
    /// A descriptor that cannot be used.
    #[error("descriptor {sequence} is damaged: {error}")]
    Descriptor {
        /// The number of the descriptor.
        sequence: u64,
        /// The fault.
        #[source]
        error: BadDescriptor,
    },
}

/// The ring of one source, for the one thread that takes its descriptors.
pub struct SourceRing {
    finished: Arc<Finished>,
    closed: Arc<Closed>,
    /// The sequence of the next descriptor to be taken.
    next: u64,
    /// The tail at the last load.
    tail: u64,
    places: u32,
    pool_bytes: u64,
}

impl SourceRing {
    /// Returns the next descriptor. Waits for it up to `timeout`, asleep.
    ///
    /// # Errors
    /// When the file contains an impossible value. The subscription is unusable then.
    pub fn take(&mut self, timeout: Duration) -> Result<Taken, Broken> {
        let taken = self.try_take()?;
        if !matches!(taken, Taken::TimedOut) || timeout.is_zero() {
            return Ok(taken);
        }
        let deadline = Instant::now().checked_add(timeout);
        let memory = Arc::clone(&self.finished.memory);
        let bell = &memory.source(self.finished.index).broker.bell;
        loop {
            let seen = bell.rings();
            let taken = self.try_take()?;
            if !matches!(taken, Taken::TimedOut) {
                return Ok(taken);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if !bell.wait(seen, left.unwrap_or(Duration::MAX)) {
                return Ok(Taken::TimedOut);
            }
        }
    }

    /// Takes like [`take`](SourceRing::take), without waiting.
    ///
    /// # Errors
    /// Like [`take`](SourceRing::take).
    #[inline]
    pub fn try_take(&mut self) -> Result<Taken, Broken> {
        let memory = &self.finished.memory;
        if let State::Ended(code) = memory.state() {
            return Ok(Taken::Ended(code));
        }
        if let Some(code) = self.closed.code() {
            return Ok(Taken::Ended(code));
        }
        if self.tail == self.next {
            let line = &memory.source(self.finished.index).broker;
            // Acquires the store in `Publisher::flush`, and with it the descriptors before.
            self.tail = self.check_tail(line.tail.load(Ordering::Acquire))?;
        }
        if self.tail == self.next {
            return Ok(Taken::TimedOut);
        }
        let sequence = self.next;
        let words = memory.slot(self.finished.index, sequence).read();
        let descriptor = Descriptor::decode(&words)
            .and_then(|descriptor| {
                descriptor.check(self.places, self.pool_bytes)?;
                Ok(descriptor)
            })
            .map_err(|error| Broken::Descriptor { sequence, error })?;
        self.next += 1;
        let hold = Hold {
            finished: Arc::clone(&self.finished),
            sequence,
        };
        Ok(Taken::Descriptor(descriptor, hold))
    }

    /// Checks the tail: it is never more than `entries` beyond the finished descriptors, of which there are no more
    /// than taken ones.
    fn check_tail(&self, tail: u64) -> Result<u64, Broken> {
        let entries = self.finished.memory.shape().entries();
        match tail.checked_sub(self.next) {
            Some(waiting) if waiting <= u64::from(entries) => Ok(tail),
            _ => Err(Broken::Tail {
                tail,
                taken: self.next,
                entries,
            }),
        }
    }
}

impl fmt::Debug for SourceRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceRing")
            .field("index", &self.finished.index)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// The finished descriptors of a source.
struct Finished {
    memory: Arc<Memory>,
    index: usize,
    window: Mutex<Window>,
}

impl Finished {
    fn finish(&self, sequence: u64) {
        let source = self.memory.source(self.index);
        let mut window = lock(&self.window);
        let Some(Moved { before, now }) = window.finish(sequence) else {
            return;
        };
        // Under the lock, so that progress never moves back. Releases to the load in `Publisher::progress`.
        source.consumer.progress.store(now, Ordering::Release);
        drop(window);
        // Pairs with the fence in `Publisher::want_progress`; above `Publisher` stands why no wake-up is lost.
        fence(Ordering::SeqCst);
        let wanted = source.broker.wanted.load(Ordering::Relaxed);
        if before < wanted && wanted <= now {
            self.memory.header().doorbell.bell.ring();
        }
    }
}

/// Pins the bytes of a descriptor. Drop holds as soon as possible, in any order: the broker revokes a subscription that
/// holds descriptors for too long.
pub struct Hold {
    finished: Arc<Finished>,
    sequence: u64,
}

impl Hold {
    /// The number of the descriptor in its source, from 0 on.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns whether all bytes read so far were in place.
    pub fn is_live(&self) -> bool {
        self.finished.memory.state() == State::Live
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.finished.finish(self.sequence);
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("index", &self.finished.index)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
