//! HTTP for people and programs that want to see what a node computes: a live page, the state of
//! its flows, an overview and metrics.
//!
//! | path | answer |
//! |---|---|
//! | `/` | the live page |
//! | `/healthz` | `ok` as long as the node answers |
//! | `/metrics` | [`Content::metrics`], in the text format of Prometheus |
//! | `/api/v1/overview` | [`Content::overview`] |
//! | `/api/v1/flows` | [`Content::flows`], a list of names |
//! | `/state/<flow>/<element>?limit=<n>` | up to `n` entries of a state element (100, at most 10,000), ordered by key: `[{"key": …, "value": …}, …]` |
//! | `/state/<flow>/<element>/<key>` | the value of one key |
//!
//! Names and keys in a path are percent-encoded UTF-8. An error is `{"error": "…"}`, which says
//! what to do. Only GET and HEAD are answered.
//!
//! The server is for the machine that it runs on, and asks for no password. So that no web site
//! can read it through the browser of somebody who sits there (DNS rebinding), it answers only
//! requests whose `Host` is an IP address or `localhost`; any other name gets 403.

mod error;
mod guard;
mod page;
mod routes;
mod server;

use std::sync::Arc;

use millstream_flow::StateReader;

pub use server::Server;

/// What a server shows. Its methods may lock and wait: they run on threads of their own.
pub trait Content: Send + Sync + 'static {
    /// The names of the flows.
    fn flows(&self) -> Vec<String>;

    /// A state element of a flow; `None` if there is no such flow or no such element.
    fn state(&self, flow: &str, element: &str) -> Option<Arc<dyn StateReader>>;

    /// What the node does now, as the live page shows it: an object with any of `name`, `flow`,
    /// `uptime_s`, `ingested_records`, `ingested_bytes`, `durable_records`, `records_per_second`,
    /// `lag_records`, `events`, `counted` and `windows`.
    fn overview(&self) -> serde_json::Value;

    /// What is measured, in the text format of Prometheus.
    fn metrics(&self) -> String;
}
