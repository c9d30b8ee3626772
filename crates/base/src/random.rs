//! The trait for randomness, and the system's random source.

use std::fs::File;
use std::io::{self, Read};

/// A source of random bytes.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes` with random bytes.
    ///
    /// # Errors
    /// When the source cannot be read.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The operating system's random source.
#[derive(Debug, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        File::open("/dev/urandom")?.read_exact(bytes)
    }
}
