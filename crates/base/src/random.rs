//! Randomness, passed in.

use std::fs::File;
use std::io::{self, Read};

/// Where code gets random bytes from.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes` with random bytes.
    ///
    /// # Errors
    /// When the operating system has no source of randomness to offer.
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
