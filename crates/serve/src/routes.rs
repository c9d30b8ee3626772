//! What is answered at which path.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router, middleware};
use millstream_flow::StateReader;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Content;
use crate::error::RequestError;
use crate::guard::guard;
use crate::page::page;

/// Entries of a state element in one answer, unless the request says `limit`.
const ENTRIES_DEFAULT: usize = 100;

/// The largest `limit`: answers stay small enough to be made in memory.
pub const ENTRIES_MAX: usize = 10_000;

type Shared = State<Arc<dyn Content>>;
type Answer<T> = Result<Json<T>, RequestError>;

pub fn router(content: Arc<dyn Content>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(|| async { "ok" }))
        .route("/metrics", get(metrics))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/flows", get(flows))
        .route("/state/{flow}/{element}", get(entries))
        .route("/state/{flow}/{element}/{key}", get(value))
        .fallback(|uri: Uri| async move { RequestError::UnknownPath(uri.path().to_owned()) })
        .layer(middleware::from_fn(guard))
        .with_state(content)
}

async fn metrics(content: Shared) -> Result<impl IntoResponse, RequestError> {
    let text = read(content, |content| Ok(content.metrics())).await?;
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, content_type)], text))
}

async fn overview(content: Shared) -> Answer<Value> {
    read(content, |content| Ok(Json(content.overview()))).await
}

async fn flows(content: Shared) -> Answer<Vec<String>> {
    read(content, |content| Ok(Json(content.flows()))).await
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
    content: Shared,
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
    read(content, move |content| {
        let state = state(content, flow, element)?.reader;
        let mut keys = state.keys(limit);
        keys.sort_unstable();
        // A key may be gone by now.
        let entry = |key: String| state.get(&key).map(|value| Entry { key, value });
        Ok(Json(keys.into_iter().filter_map(entry).collect()))
    })
    .await
}

async fn value(
    content: Shared,
    path: Result<Path<(String, String, String)>, PathRejection>,
) -> Answer<Value> {
    let Path((flow, element, key)) = path?;
    read(content, move |content| {
        let state = state(content, flow, element)?;
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
    match content.state(&flow, &element) {
        Some(reader) => Ok(FoundState {
            flow,
            element,
            reader,
        }),
        None if content.flows().contains(&flow) => {
            Err(RequestError::UnknownElement { flow, element })
        }
        None => Err(RequestError::UnknownFlow(flow)),
    }
}

/// Runs `read` where it may wait for a lock without holding up other connections.
async fn read<T: Send + 'static>(
    State(content): Shared,
    read: impl FnOnce(&dyn Content) -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    tokio::task::spawn_blocking(move || read(&*content))
        .await
        .unwrap_or(Err(RequestError::Panicked))
}
