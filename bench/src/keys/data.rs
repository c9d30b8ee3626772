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

/// Makes a chunk with a version of random keys among this number of keys.
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

/// Draws the numbers of keys with the frequencies of Zipf's law: the key of rank i as often as 1/i^s. The ranks are strewn over
/// all numbers. The method is that of Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994.
pub struct Zipf {
    keys: u64,
    /// The sum of all frequencies, of which the first one is 1.
    sum: f64,
    /// The frequency of the second rank.
    second: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    pub fn new(keys: u64, exponent: f64) -> Zipf {
        let frequency = |rank: u64| (rank as f64).powf(-exponent);
        let sum: f64 = (1..=keys).map(frequency).sum();
        let second = frequency(2);
        let rest = 1.0 - (2.0 / keys as f64).powf(1.0 - exponent);
        Zipf {
            keys,
            sum,
            second,
            alpha: 1.0 / (1.0 - exponent),
            eta: rest / (1.0 - (1.0 + second) / sum),
        }
    }

    /// Draws the number of a key.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let rank = self.rank(rng.f64());
        Rng::with_seed(rank).u64(..self.keys)
    }

    /// Returns the rank, from 0 on, at a part of the sum of all frequencies.
    fn rank(&self, part: f64) -> u64 {
        let at = part * self.sum;
        if at < 1.0 {
            0
        } else if at < 1.0 + self.second {
            1
        } else {
            let rank = self.keys as f64 * (self.eta * part - self.eta + 1.0).powf(self.alpha);
            (rank as u64).min(self.keys - 1)
        }
    }
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

    #[test]
    fn ranks_are_drawn_as_often_as_zipfs_law_says() {
        const DRAWN: usize = 200_000;
        let zipf = Zipf::new(1_000, 0.99);
        let mut rng = Rng::with_seed(1);
        let mut counts = [0_usize; 1_000];
        for _ in 0..DRAWN {
            counts[zipf.rank(rng.f64()) as usize] += 1;
        }
        let part = |ranks: &[usize]| ranks.iter().sum::<usize>() as f64 / DRAWN as f64;
        let expected = |ranks: std::ops::Range<usize>| {
            let frequency = |rank: usize| ((rank + 1) as f64).powf(-0.99);
            ranks.map(frequency).sum::<f64>() / zipf.sum
        };
        for ranks in [0..1, 1..2, 2..10, 10..100, 100..1_000] {
            let (drawn, expected) = (part(&counts[ranks.clone()]), expected(ranks.clone()));
            assert!(
                (drawn - expected).abs() < 0.03,
                "{ranks:?}: {drawn}, {expected}"
            );
        }
    }
}
