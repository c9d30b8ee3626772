//! All metrics of a node.

use std::fs;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_log::{CompactionStats, KeyStats, PartitionInfo, StreamInfo};
use millstream_serve::{Metric, MetricKind, MetricValue, Sample};

use crate::content::Look;
use crate::log_metrics::log_metrics;

use MetricKind::{Counter, Gauge, Histogram};

/// Returns all metrics of a node. Their number grows with the streams, partitions and groups.
pub fn of(look: &Look, uptime: Duration) -> Vec<Metric> {
    let broker = &look.broker;
    #[rustfmt::skip]
    let mut metrics = vec![
        Metric::new("uptime_seconds", Gauge, uptime.as_secs(), "Time since the start of the program."),
        Metric::new("streams", Gauge, look.streams.len() as u64, "Streams of users."),
        Metric::new("partitions", Gauge, look.partitions(), "Partitions of these streams."),
        Metric::new("groups", Gauge, broker.groups.len() as u64, "Groups of consumers."),
        Metric::new("connections", Gauge, broker.connections, "Open connections of the network listener."),
        Metric::new("connections_accepted_total", Counter, broker.connections_accepted, "Connections that were taken."),
        Metric::new("connections_refused_total", Counter, broker.connections_refused, "Connections that were closed at once, since there were too many."),
        Metric::new("connections_failed_total", Counter, broker.connections_failed, "Connections that were closed for an error of their client, TLS included."),
        Metric::new("logins_refused_total", Counter, broker.logins_refused, "Logins that were refused."),
        Metric::new("denied_total", Counter, broker.denied, "Requests that no access rule allows."),
        Metric::new("dead_letters_written_total", Counter, broker.dead_letters, "Dead letters of share groups that were written since the start."),
        Metric::new("dead_letters_due_partitions", Gauge, broker.dead_letter_partitions, "Partitions of share groups with records whose dead letters have to be written."),
        Metric::new("requests_memory_bytes", Gauge, broker.requests_bytes, "Memory of requests that are being worked on."),
        Metric::new("requests_memory_max_bytes", Gauge, broker.requests_bytes_max, "The bound of that memory."),
        Metric::new("answers_memory_bytes", Gauge, broker.answers_bytes, "Memory of answers, from before they are built until they are written."),
        Metric::new("answers_memory_max_bytes", Gauge, broker.answers_bytes_max, "The bound of that memory."),
    ];
    metrics.extend(log_metrics(&look.log));
    metrics.extend(disk(look));
    metrics.extend(resident());
    metrics.extend(of_partitions(&look.streams));
    metrics.extend(of_keys(&look.streams));
    metrics.push(of_transactions(&look.streams));
    metrics.extend(of_compaction(&look.streams));
    metrics.extend(of_groups(look));
    metrics.extend(of_requests(look));
    metrics
}

/// The file system of the data directory; absent if the operating system does not report it.
fn disk(look: &Look) -> Vec<Metric> {
    let Ok(disk) = rustix::fs::statvfs(look.log.dir()) else {
        return Vec::new();
    };
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    #[rustfmt::skip]
    let metrics = vec![
        Metric::new("disk_bytes", Gauge, bytes(disk.f_blocks), "Size of the file system of the data directory."),
        Metric::new("disk_free_bytes", Gauge, bytes(disk.f_bavail), "Free space of that file system."),
    ];
    metrics
}

/// Absent if the operating system does not report it.
fn resident() -> Option<Metric> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let bytes = kib << 10;
    let help = "Memory of the process, including mapped files.";
    Some(Metric::new("resident_bytes", Gauge, bytes, help))
}

/// A metric of every partition; a partition without it has no sample.
fn by_partition(
    streams: &[StreamInfo],
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: impl Fn(&PartitionInfo) -> Option<MetricValue>,
) -> Metric {
    let partitions = streams.iter().flat_map(|stream| {
        let each = |lane| (stream.name.as_str(), lane);
        stream.partitions.iter().map(each)
    });
    let samples = partitions.filter_map(|(stream, lane)| {
        let value = value(lane)?;
        let partition = lane.partition.to_string();
        Some(sample(
            [("stream", stream), ("partition", &partition)],
            value,
        ))
    });
    Metric {
        name,
        help,
        kind,
        samples: samples.collect(),
    }
}

fn of_partitions(streams: &[StreamInfo]) -> [Metric; 8] {
    let by = |name, help, value: fn(&PartitionInfo) -> u64| {
        let value = |lane: &PartitionInfo| Some(MetricValue::Count(value(lane)));
        by_partition(streams, name, Gauge, help, value)
    };
    #[rustfmt::skip]
    let metrics = [
        by("partition_first_offset", "The first offset that is kept.", |lane| lane.earliest.0),
        by("partition_end_offset", "Behind the last durable record.", |lane| lane.durable.0),
        by("partition_stable_offset", "Where readers of committed records, and compaction, wait for the end of a transaction.",
            |lane| lane.stable.0),
        by("partition_records", "Durable offsets: records, markers of transactions, and records that compaction has removed.", |lane| lane.durable.0 - lane.earliest.0),
        by("partition_bytes", "Durable bytes.", |lane| lane.bytes),
        by("partition_log_groups", "Groups of segments, each a file.", |lane| lane.groups as u64),
        by("partition_faulted", "1 when the partition has a fault, as a damaged file is, and 0 else.",
            |lane| u64::from(lane.fault.is_some())),
        by("partition_cut_bytes", "Bytes that this start truncated from the end.", |lane| lane.truncated_bytes),
    ];
    metrics
}

fn of_transactions(streams: &[StreamInfo]) -> Metric {
    by_partition(
        streams,
        "partition_oldest_transaction_timestamp_seconds",
        Gauge,
        "When the oldest open transaction began; absent if none is open.",
        |lane| Some(seconds(lane.oldest_transaction?)),
    )
}

/// Partitions have samples from the first key file or lookup by key after the start on.
fn of_keys(streams: &[StreamInfo]) -> Vec<Metric> {
    let by = |name, kind, help, value: fn(&KeyStats) -> u64| {
        let value = |lane: &PartitionInfo| Some(MetricValue::Count(value(lane.keys.as_ref()?)));
        by_partition(streams, name, kind, help, value)
    };
    #[rustfmt::skip]
    let mut metrics = vec![
        by("partition_keys", Gauge, "Keys that have a value.", |keys| keys.keys),
        by("partition_keys_bytes", Gauge, "Memory of the index by key.", |keys| keys.bytes),
        by("partition_misplaced_records", Gauge, "Records whose key another partition owns, so they are not found by key.",
            |keys| keys.misplaced),
        by("partition_keyless_records", Gauge, "Records without a key.", |keys| keys.without_key),
        by("partition_key_files", Gauge, "Key files in use, each beside a closed group.", |keys| keys.files),
        by("partition_key_files_bytes", Gauge, "Bytes of the key files in use.", |keys| keys.file_bytes),
        by("partition_key_files_built_total", Counter, "Key files that were made.", |keys| keys.files_built),
        by("partition_key_files_rebuilt_total", Counter, "Key files that were made in place of damaged or lost ones.",
            |keys| keys.files_rebuilt),
    ];
    let partly_indexed = |lane: &PartitionInfo| count(lane.partly_indexed?);
    metrics.push(by_partition(
        streams,
        "partition_partly_indexed_records",
        Gauge,
        "Records that have too many secondary keys, or too long ones, so they are not found by all of them.",
        partly_indexed,
    ));
    let failed_at = |lane: &PartitionInfo| Some(seconds(lane.keys?.files_failed_at?));
    metrics.push(by_partition(
        streams,
        "partition_key_files_failure_timestamp_seconds",
        Gauge,
        "When a key file could not be made, most recently; absent if that never happened.",
        failed_at,
    ));
    metrics
}

/// Partitions of compacted streams have samples.
fn of_compaction(streams: &[StreamInfo]) -> [Metric; 6] {
    let by = |name, kind, help, value: fn(&CompactionStats) -> Option<MetricValue>| {
        let value = |lane: &PartitionInfo| value(lane.compaction.as_ref()?);
        by_partition(streams, name, kind, help, value)
    };
    #[rustfmt::skip]
    let metrics = [
        by("partition_compaction_dirty_ratio", Gauge,
            "The share of bytes that were written since the last compaction, of those that could be compacted.",
            |stats| Some(MetricValue::Number(stats.dirty_ratio()))),
        by("partition_compactions_total", Counter, "Compactions.", |stats| count(stats.passes)),
        by("partition_compactions_failed_total", Counter, "Compactions that have failed.", |stats| count(stats.failed)),
        by("partition_compaction_bytes_before_total", Counter, "Bytes of the groups that compactions have replaced.",
            |stats| count(stats.bytes_before)),
        by("partition_compaction_bytes_after_total", Counter, "Bytes of the groups in their place.",
            |stats| count(stats.bytes_after)),
        by("partition_compaction_timestamp_seconds", Gauge, "When the last compaction was; absent if there was none.",
            |stats| Some(seconds(stats.compacted_at?))),
    ];
    metrics
}

fn count(count: u64) -> Option<MetricValue> {
    Some(MetricValue::Count(count))
}

/// A time as Prometheus has it.
fn seconds(time: Timestamp) -> MetricValue {
    MetricValue::Number(time.0 as f64 / 1e3)
}

fn of_groups(look: &Look) -> [Metric; 2] {
    let groups = &look.broker.groups;
    let members = groups.iter().map(|group| {
        let labels = [("group", group.name.as_str()), ("state", group.state)];
        sample(labels, MetricValue::Count(group.members as u64))
    });
    let lag = groups.iter().flat_map(|group| {
        group.topics.iter().map(|topic| {
            let labels = [("group", group.name.as_str()), ("stream", &topic.stream)];
            sample(labels, MetricValue::Count(topic.lag_records))
        })
    });
    [
        Metric {
            name: "group_members",
            help: "Members of a group.",
            kind: Gauge,
            samples: members.collect(),
        },
        Metric {
            name: "group_lag_records",
            help: "Offsets that a group has not processed, by stream: of records, and of markers of transactions.",
            kind: Gauge,
            samples: lag.collect(),
        },
    ]
}

fn of_requests(look: &Look) -> [Metric; 2] {
    let requests = &look.broker.requests;
    let times = requests.iter().map(|request| {
        let value = MetricValue::Histogram {
            buckets: request.buckets.clone(),
            count: request.count,
            sum: request.seconds,
        };
        sample([("request", &*format!("{:?}", request.api))], value)
    });
    let errors = requests.iter().map(|request| {
        let kind = format!("{:?}", request.api);
        sample([("request", &*kind)], MetricValue::Count(request.errors))
    });
    [
        Metric {
            name: "request_seconds",
            help: "Time from the arrival of a request to its answer, including all waits.",
            kind: Histogram,
            samples: times.collect(),
        },
        Metric {
            name: "request_errors_total",
            help: "Answers with an error in them.",
            kind: Counter,
            samples: errors.collect(),
        },
    ]
}

fn sample<const N: usize>(labels: [(&'static str, &str); N], value: MetricValue) -> Sample {
    Sample {
        labels: labels.map(|(name, text)| (name, text.to_owned())).to_vec(),
        value,
    }
}
