//! Random bytes.

use millstream_base::Random;

use crate::error::{LogError, Result};

/// Draws random bytes.
pub fn draw<const N: usize>(random: &dyn Random) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    random
        .fill(&mut bytes)
        .map_err(|error| LogError::io("read", "the random source", error))?;
    Ok(bytes)
}
