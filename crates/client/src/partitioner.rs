//! Chooses the partition of a record.

/// Returns the partition of a key, by the same hash as Kafka's own clients, so that both agree.
pub fn partition_of_key(key: &[u8], partitions: usize) -> usize {
    let positive = murmur2(key) & 0x7fff_ffff;
    positive as usize % partitions.max(1)
}

/// MurmurHash2 of 32 bits, with Kafka's seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const MULTIPLIER: u32 = 0x5bd1_e995;
    const SHIFT: u32 = 24;
    let mut hash = SEED ^ bytes.len() as u32;
    let (blocks, rest) = bytes.as_chunks::<4>();
    for block in blocks {
        let mut word = u32::from_le_bytes(*block).wrapping_mul(MULTIPLIER);
        word ^= word >> SHIFT;
        hash = hash.wrapping_mul(MULTIPLIER) ^ word.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let word = rest
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ hash >> 15
}

/// The partitioner for records without a key: fills a chunk for one partition, then moves to the
/// next one, so that chunks are full.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    partition: usize,
    bytes: usize,
}

impl Turn {
    pub fn next(&mut self, record_bytes: usize, chunk_bytes: usize, partitions: usize) -> usize {
        if self.bytes >= chunk_bytes {
            self.bytes = 0;
            self.partition += 1;
        }
        self.partition %= partitions.max(1);
        self.bytes += record_bytes;
        self.partition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those of the tests of Kafka's own clients (`UtilsTest.testMurmur2`).
    #[test]
    fn keys_are_hashed_as_kafka_does() {
        let cases = [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ];
        for (key, hash) in cases {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn records_without_a_key_fill_one_chunk_after_another() {
        let mut turn = Turn::default();
        let partitions: Vec<usize> = (0..7).map(|_| turn.next(10, 20, 3)).collect();
        assert_eq!(partitions, [0, 0, 1, 1, 2, 2, 0]);
    }
}
