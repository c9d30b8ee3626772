//! The keys and values that the benchmark stores.

use anyhow::{Result, ensure};
use bytes::Bytes;
use fastrand::Rng;
use millstream_base::Timestamp;
use millstream_record::{ChunkBuilder, Compression};

/// The size of a key.
pub const KEY_BYTES: usize = 16;

/// The size of a value.
pub const VALUE_BYTES: usize = 100;

/// Odd, so that no two numbers have the same key: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

pub type Key = [u8; KEY_BYTES];
pub type Value = [u8; VALUE_BYTES];

/// Returns the key with this number, in hexadecimal digits. Keys of neighbouring numbers are far apart in their order.
pub fn key(number: u64) -> Key {
    let mut rest = number.wrapping_mul(SPREAD);
    let mut key = [0; KEY_BYTES];
    for digit in key.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
    }
    key
}

/// Returns a value of the key with this number. It begins with the number.
pub fn value(number: u64, version: u64) -> Value {
    let mut value = [0; VALUE_BYTES];
    let mut rng = Rng::with_seed(number ^ version.wrapping_mul(SPREAD));
    rng.fill(&mut value);
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// Makes a chunk with a version of random keys among so many.
pub fn chunk_of(rng: &mut Rng, records: usize, keys: u64, version: u64) -> Result<Bytes> {
    let mut builder = ChunkBuilder::new(Compression::None);
    for _ in 0..records {
        let number = rng.u64(..keys);
        let (key, value) = (key(number), value(number, version));
        let time = Timestamp(1_700_000_000_000);
        builder.push(time, Some(&key), Some(&value), &[])?;
    }
    Ok(Bytes::copy_from_slice(builder.finish(None)?))
}

/// Checks that a value is one of the key with this number.
pub fn check(number: u64, value: &[u8]) -> Result<()> {
    let is_it = value.len() == VALUE_BYTES && value[..8] == number.to_le_bytes();
    ensure!(is_it, "key {number} has the value of another key");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_a_key_and_a_value_of_its_own() {
        assert_eq!(&key(0), b"0000000000000000");
        assert_eq!(&key(1), b"9e3779b97f4a7c15");
        assert!(check(7, &value(7, 1)).is_ok());
        assert!(check(7, &value(8, 1)).is_err());
        assert_ne!(value(7, 1), value(7, 2));
    }
}
