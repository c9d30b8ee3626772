//! Whether the disk is full.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use event_listener::{Event, EventListener};
use millstream_base::ByteSize;

use crate::error::LogError;

/// Whether the disk is full: then the log refuses appends until the persistence manager has found room again.
#[derive(Debug)]
pub struct DiskSpace {
    /// Set by commits and write-back that fail, cleared by the persistence manager; loaded by each append.
    is_full: AtomicBool,
    /// Notified when the disk does not count as full any more, and when the log closes.
    changed: Event,
    dir: PathBuf,
    /// The room that the next journal file needs.
    needed: ByteSize,
}

impl DiskSpace {
    pub fn new(dir: PathBuf, needed: ByteSize) -> DiskSpace {
        DiskSpace {
            is_full: AtomicBool::new(false),
            changed: Event::new(),
            dir,
            needed,
        }
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Notes that a write has found no room. Returns whether the disk counted as full before.
    pub fn set_full(&self) -> bool {
        self.is_full.swap(true, Ordering::Relaxed)
    }

    /// Records that there may be room again: the next write finds out.
    pub fn clear_full(&self) {
        self.is_full.store(false, Ordering::Relaxed);
        self.wake();
    }

    /// Returns a listener for the end of the full disk. Look again after this call.
    pub fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Wakes the listeners.
    pub fn wake(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Returns the error of appends and waits while the disk is full.
    pub fn full_error(&self) -> LogError {
        LogError::DiskFull {
            dir: self.dir.clone(),
            bytes: self.needed,
        }
    }
}
