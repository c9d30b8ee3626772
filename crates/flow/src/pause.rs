//! The pause of all sources, which every input of this rank sees.

use std::sync::atomic::{AtomicBool, AtomicU64};

/// The pause of the sources, and the last snapshot that was taken. All inputs of the rank share it.
#[derive(Default)]
pub struct Pause {
    /// No source gives anything. Written by workers, read by sources.
    pub is_on: AtomicBool,
    /// The number of the last snapshot that was taken. An input that read the barrier of a later one waits.
    pub done: AtomicU64,
}
