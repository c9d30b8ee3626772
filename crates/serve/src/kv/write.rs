//! Writes of keys.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::time::timeout;

use super::{KvPath, etag, parse};
use crate::body::discard_unless_awaited;
use crate::error::RequestError;
use crate::keyed::{KeyedFuture, KeyedStreams, KeyedVersion};
use crate::shown::Shown;

/// The time for a write, which ends before the server closes the connection.
const WRITE_TIME_MAX: Duration = Duration::from_secs(30);

/// Headers that change the meaning of a write, but not here.
const REFUSED_HEADERS: [HeaderName; 5] = [
    header::CONTENT_ENCODING,
    header::CONTENT_RANGE,
    header::IF_MATCH,
    header::IF_NONE_MATCH,
    header::IF_UNMODIFIED_SINCE,
];

/// Stores the body as the value of a key.
pub async fn put(State(shown): State<Shown>, request: Request) -> Result<Response, RequestError> {
    let (head, body) = request.into_parts();
    let checked = target(&shown, &head).and_then(|target| {
        let bytes_max = target.streams.value_bytes_max(&target.stream)?;
        Ok((target, bytes_max))
    });
    let (target, bytes_max) = match checked {
        Ok(checked) => checked,
        Err(error) => {
            discard_unless_awaited(&head.headers, body).await;
            return Err(error);
        }
    };
    let value = shown.bodies.read(&head.headers, body, bytes_max).await?;
    let stored = target.write(Some(value)).await?;
    Ok((StatusCode::NO_CONTENT, [(header::ETAG, etag(stored))]).into_response())
}

/// Removes the value of a key, if there is one.
pub async fn delete(
    State(shown): State<Shown>,
    request: Request,
) -> Result<StatusCode, RequestError> {
    let (head, _) = request.into_parts();
    target(&shown, &head)?.write(None).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Refuses the methods that a key does not have.
pub async fn refuse(State(shown): State<Shown>, method: Method, uri: Uri) -> RequestError {
    match shown.content.keyed() {
        None => RequestError::UnknownPath(uri.path().to_owned()),
        Some(_) => RequestError::Method {
            method: method.to_string(),
            allowed: "GET, HEAD, PUT, DELETE",
        },
    }
}

/// The key that a request writes.
struct Target {
    streams: Arc<dyn KeyedStreams>,
    stream: String,
    key: Vec<u8>,
}

/// Checks all of a request but its body.
fn target(shown: &Shown, head: &Parts) -> Result<Target, RequestError> {
    let unknown = || RequestError::UnknownPath(head.uri.path().to_owned());
    let streams = shown.content.keyed().ok_or_else(unknown)?;
    let KvPath { stream, key } = parse(head.uri.path())?;
    if let Some(query) = head.uri.query().filter(|query| !query.is_empty()) {
        return Err(RequestError::WriteQuery(query.to_owned()));
    }
    let mut refused = REFUSED_HEADERS.iter();
    if let Some(name) = refused.find(|name| head.headers.contains_key(*name)) {
        return Err(RequestError::WriteHeader(name.clone()));
    }
    Ok(Target {
        streams,
        stream,
        key: key.ok_or_else(unknown)?,
    })
}

impl Target {
    async fn write(self, value: Option<Bytes>) -> Result<KeyedVersion, RequestError> {
        in_time(self.streams.put(&self.stream, self.key, value)).await
    }
}

async fn in_time<T>(write: KeyedFuture<T>) -> Result<T, RequestError> {
    match timeout(WRITE_TIME_MAX, write).await {
        Ok(written) => Ok(written?),
        Err(_) => Err(RequestError::SlowWrite(WRITE_TIME_MAX)),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_does_not_become_durable_is_answered() {
        let written = in_time::<()>(Box::pin(pending())).await;
        assert!(matches!(written, Err(RequestError::SlowWrite(_))));
    }
}
