//! The bound of watches.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::memory::Memory;

/// The memory of the large events of all watches that are not sent yet, in bytes.
const EVENTS_BYTES_MAX: usize = 64 << 20;

/// Marks an answer whose body does not end by itself.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

/// The places of all watches.
pub struct Watches {
    places: Arc<Semaphore>,
    most: usize,
    memory: Arc<Memory>,
    /// Changes when the server stops.
    stopping: watch::Receiver<()>,
}

impl Watches {
    /// `most` bounds the watches at once.
    pub fn new(most: usize, stopping: watch::Receiver<()>) -> Watches {
        Watches::with_memory(most, stopping, EVENTS_BYTES_MAX)
    }

    /// As [`new`](Self::new), with this memory of large events.
    pub fn with_memory(most: usize, stopping: watch::Receiver<()>, bytes: usize) -> Watches {
        Watches {
            places: Arc::new(Semaphore::new(most)),
            most,
            memory: Arc::new(Memory::new(bytes)),
            stopping,
        }
    }

    /// Takes a place, if one is free.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
    }

    /// Returns the memory of large events.
    pub fn memory(&self) -> Arc<Memory> {
        Arc::clone(&self.memory)
    }

    /// Returns the most watches at once.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Returns how many watches are open.
    pub fn open(&self) -> usize {
        self.most - self.places.available_permits()
    }

    /// Returns a receiver that changes when the server stops.
    pub fn stopping(&self) -> watch::Receiver<()> {
        self.stopping.clone()
    }
}
