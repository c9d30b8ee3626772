//! Statistics of a log.

use std::sync::atomic::Ordering;

use serde::Serialize;

use crate::compact::stats::LogCompaction;
use crate::log::Log;
use crate::memory::pool::Arena;
use crate::read::keys::hot::HotKeyStats;

/// Statistics of a log.
#[derive(Debug, Clone, Serialize)]
pub struct LogStats {
    /// Memory for segments.
    pub pool_bytes: u64,
    /// The bytes of it in use.
    pub pool_used_bytes: u64,
    /// The bytes of it that take memory: those in use, and those that were in use a moment ago. A consumer that reads through its
    /// mapping where the log gave memory back makes the kernel add pages that this does not count, until their block is used.
    pub pool_resident_bytes: u64,
    /// Blocks written to the journal: each is one write and one sync.
    pub journal_blocks: u64,
    /// Bytes of chunks in them.
    pub journal_bytes: u64,
    /// Journal files on disk.
    pub journal_files: usize,
    /// Commits straight into group files.
    pub direct_commits: u64,
    /// Bytes of chunks in them.
    pub direct_bytes: u64,
    /// Groups that the persistence manager brought up to date.
    pub persisted_groups: u64,
    /// Segments whose buffers were given back.
    pub evicted_segments: u64,
    /// Compaction of all streams together.
    pub compaction: LogCompaction,
    /// The records of hot keys in memory, of all keyed streams together.
    pub hot_keys: HotKeyStats,
    /// Whether writes are refused since the disk is full.
    pub disk_full: bool,
    /// Lanes that refuse writes, or of which a read has found damage.
    pub faulted_lanes: u64,
    /// How often reads found damage.
    pub damaged_reads: u64,
    /// Memory that records are decompressed and rebuilt in, now; see [`LogConfig::decompression`](crate::LogConfig::decompression).
    pub decompression_bytes: u64,
    /// The most of it that was ever in use, with the buffers that wait for the next use.
    pub decompression_peak_bytes: u64,
}

impl Log {
    /// Returns the statistics of the log.
    pub fn stats(&self) -> LogStats {
        let core = &self.inner.core;
        let journal = core.journal.usage();
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (decompression_bytes, decompression_peak_bytes) = core.reads.decompression.used();
        LogStats {
            decompression_bytes: decompression_bytes as u64,
            decompression_peak_bytes: decompression_peak_bytes as u64,
            pool_bytes: core.pool.size_bytes(Arena::Segments) as u64,
            pool_used_bytes: core.pool.used_bytes(Arena::Segments) as u64,
            pool_resident_bytes: core.pool.resident_bytes(Arena::Segments) as u64,
            journal_blocks: journal.blocks,
            journal_bytes: journal.bytes,
            journal_files: journal.files,
            direct_commits: count(&core.counters.direct_commits),
            direct_bytes: count(&core.counters.direct_bytes),
            persisted_groups: count(&core.counters.persisted_groups),
            evicted_segments: count(&core.counters.evicted_segments),
            compaction: core.compaction(),
            hot_keys: core.reads.hot_keys.stats(),
            disk_full: core.appends.disk.is_full(),
            faulted_lanes: core.faulted_lanes(),
            damaged_reads: core.reads.damage.reads(),
        }
    }
}
