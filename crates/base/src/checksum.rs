//! CRC-32C (Castagnoli), the checksum of Kafka's record batches and of all files of the log.

/// CRC-32C of `bytes`.
///
/// ```
/// assert_eq!(millstream_base::crc32c(b"123456789"), 0xe306_9283);
/// ```
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    // The algorithm's state is 32 bits wide; the crate returns every width as u64.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of two pieces together, from the checksum of each and the length of the second.
///
/// ```
/// use millstream_base::checksum::{crc32c, crc32c_combine};
/// let whole = crc32c_combine(crc32c(b"12345"), crc32c(b"6789"), 4);
/// assert_eq!(whole, crc32c(b"123456789"));
/// ```
pub fn crc32c_combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    crc_fast::checksum_combine(
        crc_fast::CrcAlgorithm::Crc32Iscsi,
        first.into(),
        second.into(),
        second_bytes as u64,
    ) as u32
}
