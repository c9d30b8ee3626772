//! Randomness from a seed, so that a run can be repeated.

use std::io;

use millstream_base::Random;
use parking_lot::Mutex;

use crate::Rng;

/// Random bytes from a seed.
#[derive(Debug)]
pub struct SimRandom {
    rng: Mutex<Rng>,
}

impl SimRandom {
    /// Creates the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        SimRandom {
            rng: Mutex::new(Rng::with_seed(seed)),
        }
    }
}

impl Random for SimRandom {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.rng.lock().fill(bytes);
        Ok(())
    }
}
