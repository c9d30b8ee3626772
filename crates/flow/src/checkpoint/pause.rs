//! The pause of all sources, which every input of this rank sees.

use std::sync::atomic::{AtomicBool, AtomicU64};

/// Who pauses, and up to which cut all is done. Known to all inputs.
#[derive(Default)]
pub struct Pause {
    /// No source gives anything. Written by workers, read by sources.
    pub is_on: AtomicBool,
    /// The number of the last cut that was taken. Whoever met the barrier of a later one waits.
    pub done: AtomicU64,
}
