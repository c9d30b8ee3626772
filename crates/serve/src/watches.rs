//! The bound of watches.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The most watches of a server.
pub const WATCHES_MAX: usize = 256;

/// Marks an answer whose body does not end by itself.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

/// The places of all watches.
pub struct Watches {
    places: Arc<Semaphore>,
    /// Changes when the server stops.
    stopping: watch::Receiver<()>,
}

impl Watches {
    pub fn new(stopping: watch::Receiver<()>) -> Watches {
        Watches {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
            stopping,
        }
    }

    /// Takes a place, if one is free.
    pub fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.places).try_acquire_owned().ok()
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
