//! The routes: each path and its answer.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router, middleware};
use millstream_flow::{
    CheckpointCounts, LateEvents, LateSource, Latency, Position, Running, StageMetrics,
    StateReader, Wait,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Content;
use crate::error::RequestError;
use crate::guard::{Rules, guard};
use crate::history::{History, Throughput};
use crate::kv;
use crate::page::page;
use crate::prometheus;

/// The entries of a state element in one answer to a request without `limit`.
pub const ENTRIES_DEFAULT: usize = 100;

/// The largest `limit`, so that an answer fits into memory.
pub const ENTRIES_MAX: usize = 10_000;

type Shared = State<Shown>;
type Answer<T> = Result<Json<T>, RequestError>;

/// The state of all handlers.
#[derive(Clone)]
pub struct Shown {
    pub content: Arc<dyn Content>,
    pub history: Arc<History>,
}

pub fn router(shown: Shown, rules: Arc<Rules>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/streams", get(streams))
        .route("/api/v1/groups", get(groups))
        .route("/api/v1/flows", get(flows))
        .route("/api/v1/flows/{flow}/metrics", get(flow_metrics))
        .route("/state/{flow}/{element}", get(entries))
        .route("/state/{flow}/{element}/{key}", get(value))
        .route("/kv/{*path}", get(kv::page))
        .fallback(|uri: Uri| async move { RequestError::UnknownPath(uri.path().to_owned()) })
        .layer(middleware::from_fn_with_state(rules, guard))
        .with_state(shown)
}

async fn metrics(shown: Shared) -> Result<impl IntoResponse, RequestError> {
    let text = read(shown, |Shown { content, .. }| {
        Ok(prometheus::text(&content.metrics(), &content.flows()))
    });
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text.await?))
}

async fn readiness(shown: Shared) -> Result<&'static str, RequestError> {
    read(shown, |Shown { content, .. }| {
        let readiness = content.readiness();
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
    read(shown, move |Shown { content, .. }| {
        let unknown = || RequestError::UnknownPath(uri.path().to_owned());
        list(&*content).map(Json).ok_or_else(unknown)
    })
    .await
}

async fn overview(shown: Shared) -> Answer<Value> {
    read(shown, |shown| Ok(Json(shown.content.overview()))).await
}

async fn flows(shown: Shared) -> Answer<Vec<String>> {
    read(shown, |Shown { content, .. }| {
        let names = content.flows().into_iter();
        Ok(Json(names.map(|flow| flow.name().to_owned()).collect()))
    })
    .await
}

/// All metrics of a flow.
#[derive(Serialize)]
struct FlowMetrics {
    flow: String,
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
    #[serde(flatten)]
    throughput: Throughput,
}

async fn flow_metrics(
    shown: Shared,
    path: Result<Path<String>, PathRejection>,
) -> Answer<FlowMetrics> {
    let Path(name) = path?;
    read(shown, |Shown { content, history }| {
        let flow = flow(&*content, name)?;
        Ok(Json(FlowMetrics {
            flow: flow.name().to_owned(),
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
            throughput: history.of(&flow),
        }))
    })
    .await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntriesQuery {
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    value: Value,
}

async fn entries(
    shown: Shared,
    path: Result<Path<(String, String)>, PathRejection>,
    uri: Uri,
    query: Result<Query<EntriesQuery>, QueryRejection>,
) -> Answer<Vec<Entry>> {
    let Path((flow, element)) = path?;
    let limit = query
        .ok()
        .map(|Query(query)| query.limit.unwrap_or(ENTRIES_DEFAULT))
        .filter(|limit| (1..=ENTRIES_MAX).contains(limit))
        .ok_or_else(|| RequestError::Query(uri.query().unwrap_or_default().to_owned()))?;
    read(shown, move |Shown { content, .. }| {
        let state = state(&*content, flow, element)?.reader;
        let mut keys = state.keys(limit);
        keys.sort_unstable();
        // The flow may have removed a key meanwhile.
        let entry = |key: String| state.get(&key).map(|value| Entry { key, value });
        Ok(Json(keys.into_iter().filter_map(entry).collect()))
    })
    .await
}

async fn value(
    shown: Shared,
    path: Result<Path<(String, String, String)>, PathRejection>,
) -> Answer<Value> {
    let Path((flow, element, key)) = path?;
    read(shown, move |Shown { content, .. }| {
        let state = state(&*content, flow, element)?;
        match state.reader.get(&key) {
            Some(value) => Ok(Json(value)),
            None => Err(RequestError::UnknownKey {
                flow: state.flow,
                element: state.element,
                key,
            }),
        }
    })
    .await
}

struct FoundState {
    flow: String,
    element: String,
    reader: Arc<dyn StateReader>,
}

fn state(content: &dyn Content, flow: String, element: String) -> Result<FoundState, RequestError> {
    let running = self::flow(content, flow.clone())?;
    match running.state(&element) {
        Some(reader) => Ok(FoundState {
            flow,
            element,
            reader,
        }),
        None => Err(RequestError::UnknownElement { flow, element }),
    }
}

fn flow(content: &dyn Content, name: String) -> Result<Arc<Running>, RequestError> {
    let mut flows = content.flows().into_iter();
    let flow = flows.find(|flow| flow.name() == name);
    flow.ok_or(RequestError::UnknownFlow(name))
}

/// Runs `read` on a thread for blocking work, where a lock does not delay other connections.
async fn read<T: Send + 'static>(
    State(shown): Shared,
    read: impl FnOnce(Shown) -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    tokio::task::spawn_blocking(move || read(shown))
        .await
        .unwrap_or(Err(RequestError::Panicked))
}
