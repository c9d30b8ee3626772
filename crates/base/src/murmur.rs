//! The hash of keys: MurmurHash2 of 32 bits as Kafka's own clients use it, and the partition that owns a key.

/// Returns the partition of a key, by the same hash as Kafka's own clients, so that both agree.
pub fn partition_of_key(key: &[u8], partitions: usize) -> usize {
    let positive = murmur2(key) & 0x7fff_ffff;
    positive as usize % partitions.max(1)
}

/// MurmurHash2 of 32 bits, with Kafka's seed.
///
/// ```
/// assert_eq!(millstream_base::murmur2(b"foobar") as i32, -790_332_482);
/// ```
pub fn murmur2(bytes: &[u8]) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The values come from the tests of Kafka's own clients (`UtilsTest.testMurmur2`).
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
    fn a_key_has_a_partition_for_every_number_of_partitions() {
        for partitions in 0..100 {
            let partition = partition_of_key(b"foobar", partitions);
            assert!(partition < partitions.max(1), "{partitions}");
        }
        // -790_332_482 without its sign bit is 1_357_151_166.
        assert_eq!(partition_of_key(b"foobar", 1_000), 166);
    }
}
