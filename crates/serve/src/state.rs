//! The pages of state elements, below `/state`.

mod awaiting;
mod element;
mod feed;
mod headers;
mod listing;
mod position;
mod query;
mod ranks;
mod secondary;
mod watch;

use std::iter;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderValue, Uri, header};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use serde_json::Value;

use self::awaiting::{Reading, read_from};
use self::element::{Element, Found};
pub use self::feed::Feeds;
pub use self::listing::{elements, flows};
use self::query::StateQuery;
use self::ranks::FlowRanks;
use self::watch::WatchedKeys;
use crate::Content;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::gate::Visited;
use crate::kv::is_watch;
use crate::shown::Shown;

/// Returns the elements that a request reads: the one that its path names, and those by which it finds entries. `None` for
/// other paths.
pub fn visited(path: &str, query: &str) -> Option<Vec<Visited>> {
    let mut names = path.strip_prefix("/state/")?.split('/');
    let decoded = |name| percent_decode_str(name).decode_utf8_lossy().into_owned();
    let flow = decoded(names.next()?);
    let element = decoded(names.next()?);
    let elements = iter::once(element).chain(query::secondary_of(query));
    let of_flow = |element| Visited::State {
        flow: flow.clone(),
        element,
    };
    Some(elements.map(of_flow).collect())
}

/// Answers `/state/<flow>/<element>`.
pub async fn entries(
    shown: State<Arc<Shown>>,
    path: Result<Path<(String, String)>, PathRejection>,
    Extension(connection): Extension<Arc<Connection>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let Path((flow, element)) = path?;
    if let Some(query) = uri.query().filter(|query| is_watch(query)) {
        let keys = WatchedKeys {
            flow,
            element,
            key: None,
        };
        return watch::changes(shown, &connection, keys, query, &headers).await;
    }
    let query = StateQuery::parse(uri.query().unwrap_or_default())?;
    let reading = Reading {
        flow,
        element,
        query,
    };
    read_from(shown, reading, |elements, wanted| {
        let list = elements.list(wanted)?;
        let mut headers = elements.element.headers(list.found)?;
        headers::next(&mut headers, list.next.as_deref());
        Ok((headers, Json(list.entries)).into_response())
    })
    .await
}

/// Answers `/state/<flow>/<element>/<key>`.
pub async fn value(
    shown: State<Arc<Shown>>,
    path: Result<Path<(String, String, String)>, PathRejection>,
    Extension(connection): Extension<Arc<Connection>>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, RequestError> {
    let Path((flow, element, key)) = path?;
    if let Some(query) = uri.query().filter(|query| is_watch(query)) {
        let keys = WatchedKeys {
            flow,
            element,
            key: Some(key),
        };
        return watch::changes(shown, &connection, keys, query, &headers).await;
    }
    let query = StateQuery::parse_of_key(uri.query().unwrap_or_default())?;
    let reading = Reading {
        flow,
        element,
        query,
    };
    read_from(shown, reading, move |elements, _| {
        value_in(&elements.element, &key)
    })
    .await
}

/// Answers `/state/<flow>/<element>/<key>` as [`value`] does, without waiting; `None` for other paths, for requests that may
/// have to wait, and for malformed ones.
pub fn value_at_once(content: &dyn Content, uri: &Uri) -> Option<Response> {
    let mut names = uri.path().strip_prefix("/state/")?.split('/');
    let mut decoded = || {
        let name = names.next().filter(|name| !name.is_empty())?;
        Some(percent_decode_str(name).decode_utf8().ok()?.into_owned())
    };
    let (flow, element, key) = (decoded()?, decoded()?, decoded()?);
    let query = uri.query().unwrap_or_default();
    if names.next().is_some() || is_watch(query) {
        return None;
    }
    let reading = Reading {
        flow,
        element,
        query: StateQuery::parse_of_key(query).ok()?,
    };
    at_once(content, &reading, &key).map(IntoResponse::into_response)
}

/// Reads one key on the thread of HTTP; `None` if the read would have to wait. Two switches to another thread and back cost
/// more than the read.
fn at_once(
    content: &dyn Content,
    reading: &Reading,
    key: &str,
) -> Option<Result<Response, RequestError>> {
    let query = &reading.query;
    if query.at_least.is_some() {
        return None;
    }
    let read = || {
        let ranks = FlowRanks::find(content, &reading.flow)?.at_once();
        value_in(&Element::find(&ranks, &reading.element, query)?, key)
    };
    // The flow's code reads keys and writes values.
    let read = panic::catch_unwind(AssertUnwindSafe(read));
    let read = read.unwrap_or(Err(RequestError::Panicked));
    (!matches!(read, Err(RequestError::WouldWait))).then_some(read)
}

fn value_in(element: &Element, key: &str) -> Result<Response, RequestError> {
    let found = element.value(key)?;
    let headers = element.headers(Found::of(found.as_ref()))?;
    Ok(match found.and_then(|found| found.value) {
        Some(value) => json_response(headers, &value),
        None => {
            let error = RequestError::UnknownKey {
                flow: element.flow().to_owned(),
                element: element.name.clone(),
                key: key.to_owned(),
            };
            (headers, error).into_response()
        }
    })
}

/// As axum's `Json` makes it, without a second map of headers.
fn json_response(mut headers: HeaderMap, value: &Value) -> Response {
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    let mut response = Response::new(Body::from(value.to_string()));
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests;
