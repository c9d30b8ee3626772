//! The bound of watches.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::memory::Memory;

/// The most watches of a server.
pub const WATCHES_MAX: usize = 256;

/// The memory of the large events of all watches that are not sent yet, in bytes.
const EVENTS_BYTES_MAX: usize = 64 << 20;

/// Marks an answer whose body does not end by itself.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

/// The places of all watches.
pub struct Watches {
    places: Arc<Semaphore>,
    memory: Arc<Memory>,
    /// Changes when the server stops.
    stopping: watch::Receiver<()>,
}

impl Watches {
    pub fn new(stopping: watch::Receiver<()>) -> Watches {
        Watches::with_memory(stopping, EVENTS_BYTES_MAX)
    }

    /// As [`new`](Self::new), with this memory of large events.
    pub fn with_memory(stopping: watch::Receiver<()>, bytes: usize) -> Watches {
        Watches {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
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

    /// Returns how many watches are open.
    pub fn open(&self) -> usize {
        WATCHES_MAX - self.places.available_permits()
    }

    /// Returns a receiver that changes when the server stops.
    pub fn stopping(&self) -> watch::Receiver<()> {
        self.stopping.clone()
    }
}
