//! Settings and bounds.

use std::time::Duration;

/// The longest transactional id, in bytes.
pub const TRANSACTIONAL_ID_BYTES_MAX: usize = 1024;
/// The longest name of a topic or group that takes part in a transaction, in bytes.
pub const NAME_BYTES_MAX: usize = 4096;
/// The most partitions and groups that may take part in a transaction.
pub const PARTICIPANTS_PER_TRANSACTION_MAX: usize = 10_000;
/// The most bytes that their names may have together; that of a topic counts once. With the bound on their
/// number it keeps the record of a transaction below 1 MiB.
pub const NAME_BYTES_PER_TRANSACTION_MAX: usize = 512 << 10;
/// How many producer ids one record reserves.
pub const PRODUCER_ID_BLOCK: i64 = 1000;
/// How long to wait before the first failed marker is written again; every further failure doubles it.
pub const RETRY_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
pub const RETRY_BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The settings of transactions. The defaults are Kafka's where it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The longest timeout that a producer may ask for.
    pub timeout_max: Duration,
    /// How long an unused transactional id is retained.
    pub transactional_id_retention: Duration,
    /// The interval between searches for expired transactional ids.
    pub retention_check_interval: Duration,
    /// How many transactional ids there may be.
    pub transactional_ids_max: usize,
    /// The most bytes that all transactional ids, and the names of all participants, may take together.
    pub name_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            timeout_max: Duration::from_secs(15 * 60),
            transactional_id_retention: Duration::from_secs(7 * 24 * 60 * 60),
            retention_check_interval: Duration::from_secs(60 * 60),
            transactional_ids_max: 1_000_000,
            name_bytes_max: 256 << 20,
        }
    }
}
