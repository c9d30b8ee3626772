//! The metrics of a log.

use millstream_log::Log;
use millstream_serve::{Metric, MetricKind};

/// Returns the metrics of a log.
pub fn log_metrics(log: &Log) -> Vec<Metric> {
    use MetricKind::{Counter, Gauge};
    let log = log.stats();
    let (compaction, hot_keys) = (log.compaction, log.hot_keys);
    #[rustfmt::skip]
    let metrics = vec![
        Metric::new("pool_bytes", Gauge, log.pool_bytes, "Memory for segments."),
        Metric::new("pool_used_bytes", Gauge, log.pool_used_bytes, "Memory of segments in use."),
        Metric::new("pool_resident_bytes", Gauge, log.pool_resident_bytes, "Memory of segments that the process has: in use, and free for a moment. Without free pages that a consumer reads through its mapping."),
        Metric::new("evicted_segments_total", Counter, log.evicted_segments, "Segments whose memory was freed."),
        Metric::new("journal_files", Gauge, log.journal_files as u64, "Files of the journal."),
        Metric::new("journal_blocks_total", Counter, log.journal_blocks, "Blocks written to the journal, each with a write and a sync."),
        Metric::new("journal_bytes_total", Counter, log.journal_bytes, "Bytes of chunks written to the journal."),
        Metric::new("direct_commits_total", Counter, log.direct_commits, "Commits to group files, past the journal."),
        Metric::new("direct_bytes_total", Counter, log.direct_bytes, "Bytes of chunks committed to group files."),
        Metric::new("persisted_groups_total", Counter, log.persisted_groups, "Groups whose files the persistence manager brought up to date."),
        Metric::new("compactions_total", Counter, compaction.passes, "Compactions, each of one partition."),
        Metric::new("compactions_failed_total", Counter, compaction.failed, "Compactions that have failed."),
        Metric::new("compaction_bytes_before_total", Counter, compaction.bytes_before, "Bytes of the groups that compactions have replaced."),
        Metric::new("compaction_bytes_after_total", Counter, compaction.bytes_after, "Bytes of the groups in their place."),
        Metric::new("compaction_dropped_records_total", Counter, compaction.records_dropped, "Records that compactions have dropped."),
        Metric::new("compaction_due_partitions", Gauge, compaction.due_partitions, "Partitions that are due for compaction."),
        Metric::new("compaction_failing_partitions", Gauge, compaction.failing_partitions, "Partitions whose last compaction has failed."),
        Metric::new("compaction_replaced_groups", Gauge, compaction.replaced_groups, "Groups that were replaced and that stay for readers, for a while."),
        Metric::new("hot_keys", Gauge, hot_keys.keys, "Keys whose newest record is in memory, or of which memory knows that they have none."),
        Metric::new("hot_keys_bytes", Gauge, hot_keys.bytes, "Memory of the records of hot keys."),
        Metric::new("hot_keys_max_bytes", Gauge, hot_keys.bytes_max, "Bound of the memory of the records of hot keys."),
        Metric::new("hot_keys_hits_total", Counter, hot_keys.hits, "Look-ups of keys that memory answered."),
        Metric::new("hot_keys_misses_total", Counter, hot_keys.misses, "Look-ups of keys that went to the key index."),
        Metric::new("disk_full", Gauge, u64::from(log.disk_full), "1 while writes are refused since the disk is full, and 0 else."),
        Metric::new("decompression_bytes", Gauge, log.decompression_bytes, "Memory used to decompress and rebuild records."),
        Metric::new("decompression_peak_bytes", Gauge, log.decompression_peak_bytes, "Peak memory used to decompress and rebuild records."),
        Metric::new("faulted_lanes", Gauge, log.faulted_lanes, "Lanes that refuse writes, or of which a read has met damage."),
        Metric::new("damaged_reads_total", Counter, log.damaged_reads, "Reads that met damage."),
    ];
    metrics
}
