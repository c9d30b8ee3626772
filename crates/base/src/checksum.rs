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
