//! The routes: each path and its answer.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use millstream_flow::{
    CheckpointCounts, LateEvents, LateSource, Latency, Pool, PoolView, Position, StageMetrics,
    StateElement, Wait,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Content;
use crate::error::RequestError;
use crate::history::Throughput;
use crate::kv;
use crate::page::page;
use crate::pool;
use crate::prometheus::{self, Metric, MetricKind};
use crate::shown::{Shown, flow_names, read, running};
use crate::state;

type Shared = State<Arc<Shown>>;
type Answer<T> = Result<Json<T>, RequestError>;

/// Returns all pages but those of serving flows.
pub fn router(shown: Arc<Shown>) -> Router {
    let kv = get(kv::page).put(kv::put).delete(kv::delete);
    let kv = kv.patch(kv::patch).post(kv::post).fallback(kv::refuse);
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/streams", get(streams))
        .route("/api/v1/groups", get(groups))
        .route("/api/v1/pool", get(slots))
        .route("/api/v1/flows", get(flows))
        .route("/api/v1/flows/{flow}/metrics", get(flow_metrics))
        .route("/state", get(state::flows))
        .route("/state/{flow}", get(state::elements))
        .route("/state/{flow}/{element}", get(state::entries))
        .route("/state/{flow}/{element}/{key}", get(state::value))
        .route("/kv/{*path}", kv)
        .fallback(|uri: Uri| async move { RequestError::UnknownPath(uri.path().to_owned()) })
        .with_state(shown)
}

async fn metrics(shown: Shared) -> Result<impl IntoResponse, RequestError> {
    let text = read(shown, |shown| {
        let Shown {
            content, watches, ..
        } = shown;
        let mut metrics = content.metrics();
        let help = "Watches of keys and of state that are open over HTTP.";
        let open = watches.open() as u64;
        metrics.push(Metric::new("http_watches", MetricKind::Gauge, open, help));
        metrics.extend(pool::metrics(&Pool::of_process().report()));
        Ok(prometheus::text(&metrics, &content.flows()))
    });
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text.await?))
}

async fn readiness(shown: Shared) -> Result<&'static str, RequestError> {
    read(shown, |shown| {
        let readiness = shown.content.readiness();
        readiness.map(|()| "ok").map_err(RequestError::NotReady)
    })
    .await
}

async fn streams(shown: Shared, uri: Uri) -> Answer<Value> {
    listed(shown, uri, |content| content.streams()).await
}

async fn groups(shown: Shared, uri: Uri) -> Answer<Value> {
    listed(shown, uri, |content| content.groups()).await
}

async fn listed(
    shown: Shared,
    uri: Uri,
    list: impl FnOnce(&dyn Content) -> Option<Value> + Send + 'static,
) -> Answer<Value> {
    read(shown, move |shown| {
        let unknown = || RequestError::UnknownPath(uri.path().to_owned());
        list(&*shown.content).map(Json).ok_or_else(unknown)
    })
    .await
}

async fn overview(shown: Shared) -> Answer<Value> {
    read(shown, |shown| Ok(Json(shown.content.overview()))).await
}

async fn slots() -> Json<PoolView> {
    Json(Pool::of_process().report())
}

async fn flows(shown: Shared) -> Answer<Vec<String>> {
    read(shown, |shown| Ok(Json(flow_names(&*shown.content)))).await
}

/// A query that may name a rank.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RankQuery {
    rank: Option<u32>,
}

/// All metrics of a flow on one rank.
#[derive(Serialize)]
struct FlowMetrics {
    flow: String,
    rank: u32,
    /// All that this process has.
    ranks: Vec<u32>,
    is_finished: bool,
    workers: usize,
    workers_replaced: u64,
    lost_wakeups: u64,
    stages: Vec<StageMetrics>,
    latency: Latency,
    lag_records: Option<u64>,
    positions: Vec<Position>,
    late_events: Vec<LateEvents>,
    late_sources: Vec<LateSource>,
    waits: Vec<Wait>,
    checkpoints: Option<CheckpointCounts>,
    elements: Vec<StateElement>,
    #[serde(flatten)]
    throughput: Throughput,
}

async fn flow_metrics(
    shown: Shared,
    path: Result<Path<String>, PathRejection>,
    uri: Uri,
    query: Result<Query<RankQuery>, QueryRejection>,
) -> Answer<FlowMetrics> {
    let Path(name) = path?;
    let refused = |_| RequestError::RankQuery(uri.query().unwrap_or_default().to_owned());
    let Query(RankQuery { rank }) = query.map_err(refused)?;
    read(shown, move |shown| {
        let content = &*shown.content;
        let ranks = running(content, &name, None)?;
        let flow = Arc::clone(&running(content, &name, rank)?[0]);
        Ok(Json(FlowMetrics {
            flow: name,
            rank: flow.rank(),
            ranks: ranks.iter().map(|flow| flow.rank()).collect(),
            is_finished: flow.is_finished(),
            workers: flow.workers(),
            workers_replaced: flow.workers_replaced(),
            lost_wakeups: flow.lost_wakeups(),
            stages: flow.metrics(),
            latency: flow.latency(),
            lag_records: flow.lag_records(),
            positions: flow.positions(),
            late_events: flow.late_events(),
            late_sources: flow.late_sources(),
            waits: flow.waits(),
            checkpoints: flow.checkpoints(),
            elements: flow.elements(),
            throughput: shown.history.of(&flow),
        }))
    })
    .await
}
