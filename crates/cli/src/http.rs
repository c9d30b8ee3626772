//! The HTTP server of running commands.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use millstream_base::TcpNetwork;
use millstream_broker::security::check_exposure;
use millstream_flow::Running;
use millstream_log::Log;
use millstream_serve::{Content, Metric, MetricKind, Options, Server};
use serde_json::{Value, json};

use crate::console::Progress;
use crate::settings::{Settings, SettingsError};

/// Listens at the address of the settings. Without one, listens at the default, or at a free port if the default is
/// taken; without a default, does not serve HTTP. Users do not log in, so only this machine may reach the address.
pub fn serve(
    settings: &Settings,
    default: Option<SocketAddr>,
    content: Arc<dyn Content>,
    progress: &Progress,
) -> anyhow::Result<Option<Server>> {
    let asked = settings.http;
    let Some(address) = asked.or(default) else {
        return Ok(None);
    };
    check_exposure(address, false, false, false)
        .map_err(|_| SettingsError::HttpExposed { address })?;
    let start = |address| {
        let options = Options {
            hosts: settings.http_hosts(),
            ..Options::default()
        };
        Server::start(TcpNetwork, address, Arc::clone(&content), options)
    };
    let mut started = start(address);
    if asked.is_none()
        && let Err(error) = &started
        && error.kind() == ErrorKind::AddrInUse
    {
        progress.note(&format!("{address} is in use; taking a free port"));
        started = start(SocketAddr::new(address.ip(), 0));
    }
    let server = started.map_err(|error| cannot_listen(address, error))?;
    let message = format!("watch it at {}", url(server.local_address(), false));
    match asked == Some(server.local_address()) {
        true => progress.note(&message),
        // The user cannot know the chosen port.
        false => progress.insist(&message),
    }
    Ok(Some(server))
}

/// Serves a flow on its gathering rank, if the user asked for that.
pub fn serve_flow(
    settings: &Settings,
    running: &Arc<Running>,
    is_gathering: bool,
    is_json: bool,
) -> anyhow::Result<Option<Server>> {
    if !is_gathering {
        return Ok(None);
    }
    let content = Arc::new(FlowContent {
        running: Arc::clone(running),
        started_at: Instant::now(),
    });
    serve(settings, None, content, &Progress::new(is_json))
}

/// A flow with no metrics beyond those of every flow.
struct FlowContent {
    running: Arc<Running>,
    started_at: Instant,
}

impl Content for FlowContent {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(&self.running)]
    }

    fn overview(&self) -> Value {
        json!({
            "name": "flow run",
            "flow": self.running.name(),
            "uptime_s": self.started_at.elapsed().as_secs_f64(),
        })
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

pub fn cannot_listen(address: SocketAddr, error: io::Error) -> anyhow::Error {
    let failed: anyhow::Result<()> = Err(error)
        .with_context(|| format!("cannot listen on {address}; choose another with --http"));
    failed.expect_err("it is one")
}

/// The page's address.
pub fn url(address: SocketAddr, has_tls: bool) -> String {
    let scheme = if has_tls { "https" } else { "http" };
    format!("{scheme}://{address}/")
}

/// The metrics of a log.
pub fn log_metrics(log: &Log) -> Vec<Metric> {
    use MetricKind::{Counter, Gauge};
    let log = log.stats();
    let (compaction, hot_keys) = (log.compaction, log.hot_keys);
    #[rustfmt::skip]
    let metrics = vec![
        Metric::new("pool_bytes", Gauge, log.pool_bytes, "Memory for segments."),
        Metric::new("pool_used_bytes", Gauge, log.pool_used_bytes, "Memory of segments in use."),
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
