//! The content of a record: it follows from the record's writer and number, so that every reader can check all of it.

use anyhow::{Context as _, Result, ensure};

/// A record's writer, and its number among the writer's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub writer: usize,
    pub sequence: u64,
}

const WRITER_BYTES: usize = 4;
const STAMP_BYTES: usize = WRITER_BYTES + 8;

/// Odd, so that no two writers have the same records: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One in this many records is large, of writers with large records.
const LARGE_EVERY: u64 = 64;

impl Stamp {
    /// Replaces the content of `value` by the record's value.
    pub fn write(self, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&(self.writer as u32).to_be_bytes());
        value.extend_from_slice(&self.sequence.to_be_bytes());
        let writer = (self.writer as u64).wrapping_mul(SPREAD);
        let mut random = fastrand::Rng::with_seed(writer ^ self.sequence);
        let bytes = match writer >> (u64::BITS - 2) {
            0 => random.usize(0..100),
            1 => random.usize(0..1_000),
            2 => random.usize(0..8_000),
            _ if self.sequence.is_multiple_of(LARGE_EVERY) => random.usize(50_000..300_000),
            _ => random.usize(0..500),
        };
        // Half of it can be compressed.
        let zeros = bytes / 2;
        value.resize(STAMP_BYTES + bytes, 0);
        random.fill(&mut value[STAMP_BYTES + zeros..]);
    }

    /// Reads a value, every byte of which must be right. `expected` is room to work in.
    pub fn read(value: &[u8], expected: &mut Vec<u8>) -> Result<Stamp> {
        let (writer, rest) = value.split_first_chunk().context("it is too short")?;
        let (sequence, _) = rest.split_first_chunk().context("it is too short")?;
        let stamp = Stamp {
            writer: u32::from_be_bytes(*writer) as usize,
            sequence: u64::from_be_bytes(*sequence),
        };
        stamp.write(expected);
        let differs = || {
            expected
                .iter()
                .zip(value)
                .position(|(one, other)| one != other)
        };
        ensure!(
            expected == value,
            "{stamp:?} has {} bytes and should have {}; they differ from byte {:?} on",
            value.len(),
            expected.len(),
            differs()
        );
        Ok(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::Stamp;

    #[test]
    fn a_changed_byte_of_a_stamped_value_is_found() {
        let (mut value, mut room) = (Vec::new(), Vec::new());
        for writer in 0..8 {
            let stamp = Stamp {
                writer,
                sequence: 7,
            };
            stamp.write(&mut value);
            assert_eq!(Stamp::read(&value, &mut room).unwrap(), stamp);
            for at in 0..value.len() {
                value[at] ^= 1;
                assert!(Stamp::read(&value, &mut room).is_err(), "byte {at}");
                value[at] ^= 1;
            }
            assert!(Stamp::read(&value[..value.len() - 1], &mut room).is_err());
        }
    }
}
