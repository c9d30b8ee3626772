//! HTTP for people and programs that want to see what a node computes: a live page, the state of
//! its flows and how they run, an overview and metrics.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the live page |
//! | `/healthz` | `ok` as long as the node answers |
//! | `/metrics` | [`Content::metrics`] and all that is measured of the flows, in the text format of Prometheus |
//! | `/api/v1/overview` | [`Content::overview`] |
//! | `/api/v1/flows` | the names of the flows |
//! | `/api/v1/flows/<flow>/metrics` | all that is measured of one flow, see below |
//! | `/state/<flow>/<element>?limit=<n>` | up to `n` entries of a state element (100, at most 10,000), ordered by key: `[{"key": …, "value": …}, …]` |
//! | `/state/<flow>/<element>/<key>` | the value of one key |
//!
//! The metrics of a flow are an object with `flow`, `is_finished`, `workers`, `workers_replaced`,
//! `stages` (a [`StageMetrics`](millstream_flow::StageMetrics) each, in the order of the graph),
//! `latency` (a [`Latency`](millstream_flow::Latency)), `lag_records` and `positions` (how far it is in the streams
//! that it reads: a [`Position`](millstream_flow::Position) per partition), `late_events` (by state element, a
//! [`LateEvents`](millstream_flow::LateEvents) each), `waits` (which sources hold back event time, and why: a
//! [`Wait`](millstream_flow::Wait) each), `checkpoints` (a [`CheckpointCounts`](millstream_flow::CheckpointCounts),
//! or null where none are taken), `watched_seconds` (how long this server has looked at the
//! flow) and `throughput`: for every second of the last five minutes `seconds`, when it ended on the
//! scale of `watched_seconds`, and `items_per_second`, what each stage read in it.
//!
//! Names and keys in a path are percent-encoded UTF-8. An error is `{"error": "…"}`, which says
//! what to do. Only GET and HEAD are answered.
//!
//! The server is for the machine that it runs on, and asks for no password. So that no web site
//! can read it through the browser of somebody who sits there (DNS rebinding), it answers only
//! requests whose `Host` is an IP address or `localhost`; any other name gets 403.

mod error;
mod guard;
mod history;
mod page;
mod prometheus;
mod routes;
mod server;

use std::sync::Arc;

use millstream_flow::Running;

pub use prometheus::{Metric, MetricKind};
pub use server::Server;

/// What a server shows. Its methods may lock and wait: they run on threads of their own.
pub trait Content: Send + Sync + 'static {
    /// The flows, with their state elements. No two have the same name.
    fn flows(&self) -> Vec<Arc<Running>>;

    /// What the node does now, as the live page shows it: an object with any of `name`, `flow`,
    /// `uptime_s`, `input_bytes`, `bytes`, `bytes_per_second`, `words`, `count`, `ingested_records`,
    /// `ingested_bytes`, `durable_records`, `records_per_second`, `lag_records`, `events`, `counted`
    /// and `windows`.
    fn overview(&self) -> serde_json::Value;

    /// What is measured beside the flows.
    fn metrics(&self) -> Vec<Metric>;
}
