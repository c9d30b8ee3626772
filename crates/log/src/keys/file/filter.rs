//! Filters, which say that a key is not in a file: the split-block Bloom filter of Parquet, with xxHash64.
//!
//! A filter is a row of blocks of 256 bits. The upper half of a key's hash selects a block, and the lower half one bit in each
//! of the block's eight words. About one of 200 absent keys passes.

use twox_hash::XxHash64;

/// Bits of a filter for each key.
const KEY_BITS: usize = 12;

/// Eight words of 32 bits.
const BLOCK_BYTES: usize = 32;

/// Odd multipliers, one for each word; Parquet uses the same.
const SALT: [u32; 8] = [
    0x47b6_137b,
    0x4497_4d91,
    0x8824_ad5b,
    0xa2b7_289d,
    0x7054_95c7,
    0x2df1_424b,
    0x9efc_4947,
    0x5c6b_fb31,
];

/// Returns the hash of a key.
pub fn hash(key: &[u8]) -> u64 {
    XxHash64::oneshot(0, key)
}

/// Makes the filter of keys with these hashes.
pub fn build(hashes: &[u64]) -> Vec<u8> {
    let blocks = (hashes.len() * KEY_BITS).div_ceil(8 * BLOCK_BYTES).max(1);
    let mut filter = vec![0; blocks * BLOCK_BYTES];
    for hash in hashes {
        for (byte, mask) in bits(blocks, *hash) {
            filter[byte] |= mask;
        }
    }
    filter
}

/// Whether the filter may contain a key with this hash; `false` proves that it does not. A filter has at least one block.
pub fn may_contain(filter: &[u8], hash: u64) -> bool {
    let blocks = filter.len() / BLOCK_BYTES;
    bits(blocks, hash).all(|(byte, mask)| filter.get(byte).is_some_and(|bits| bits & mask != 0))
}

/// Whether a filter can have this size.
pub fn is_size(bytes: usize) -> bool {
    bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES)
}

/// The bits of a hash in a filter of `blocks` blocks: for each word the byte, and the bit in it.
fn bits(blocks: usize, hash: u64) -> impl Iterator<Item = (usize, u8)> {
    let block = ((hash >> 32) * blocks as u64) >> 32;
    let start = block as usize * BLOCK_BYTES;
    SALT.into_iter().enumerate().map(move |(word, salt)| {
        let bit = (hash as u32).wrapping_mul(salt) >> 27;
        (start + 4 * word + bit as usize / 8, 1 << (bit % 8))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_passes_all_of_its_keys_and_few_others() {
        for count in [0_u32, 1, 100, 50_000] {
            let key = |n: u32| format!("key {n}").into_bytes();
            let hashes: Vec<u64> = (0..count).map(|n| hash(&key(n))).collect();
            let filter = build(&hashes);
            assert!(is_size(filter.len()));
            assert!(hashes.iter().all(|hash| may_contain(&filter, *hash)));
            let others = (count..count + 50_000).filter(|n| may_contain(&filter, hash(&key(*n))));
            let passed = others.count();
            assert!(passed < 500, "{passed} of 50,000 pass, with {count} keys");
        }
    }

    #[test]
    fn hashes_and_bits_equal_parquets() {
        assert_eq!(hash(b""), 0xef46_db37_51d8_e999);
        assert_eq!(hash(b"a"), 0xd24e_c4f1_a98c_6e5b);
        // The lower half is 1, so each word has the bit that its salt's upper five bits name.
        let filter = build(&[1]);
        let words = SALT.map(|salt| (1_u32 << (salt >> 27)).to_le_bytes());
        assert_eq!(filter, words.concat());
    }
}
