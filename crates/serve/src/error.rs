//! The reasons to refuse a request.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::gate::Visited;
use crate::keyed::LookUpError;
use crate::routes::ENTRIES_MAX;

/// The header that asks for a login with a password.
const BASIC: (HeaderName, &str) = (
    header::WWW_AUTHENTICATE,
    "Basic realm=\"millstream\", charset=\"UTF-8\"",
);

/// The header that asks for a login with a token.
const BEARER: (HeaderName, &str) = (header::WWW_AUTHENTICATE, "Bearer realm=\"millstream\"");

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(
        "there is no page at {0:?}: try /, /healthz, /readyz, /metrics, /api/v1/overview, \
         /api/v1/streams, /api/v1/groups, /api/v1/flows, \
         /api/v1/flows/<flow>/metrics, /state/<flow>/<element>, /state/<flow>/<element>/<key>, \
         /kv/<stream> or /kv/<stream>/<key>"
    )]
    UnknownPath(String),
    #[error("unknown flow {0:?}: /api/v1/flows lists those that run")]
    UnknownFlow(String),
    #[error("unknown element {element:?}: the flow {flow:?} has no state element of this name")]
    UnknownElement { flow: String, element: String },
    #[error(
        "unknown key {key:?}: the element {element:?} of the flow {flow:?} has no value for it at the moment; \
         /state/<flow>/<element> lists its keys"
    )]
    UnknownKey {
        flow: String,
        element: String,
        key: String,
    },
    #[error(
        "unknown key {key:?}: the stream {stream:?} has no value for it at the moment; /kv/<stream> lists its keys"
    )]
    AbsentKey { stream: String, key: String },
    #[error("the path {0:?} is malformed: the name of a stream must be percent-encoded UTF-8")]
    StreamName(String),
    #[error(
        "the query {0:?} is refused: it may be any of prefix=<text>, from=<key>, to=<key> and limit=<n>, a number from 1 \
         to {ENTRIES_MAX}, each once and percent-encoded"
    )]
    KeysQuery(String),
    #[error(transparent)]
    LookUp(#[from] LookUpError),
    #[error("the path is malformed: {0}; names and keys must be percent-encoded UTF-8")]
    Path(#[from] PathRejection),
    #[error("the query {0:?} is refused: it may be limit=<n>, a number from 1 to {ENTRIES_MAX}")]
    Query(String),
    #[error("{0} is not allowed: use GET or HEAD")]
    Method(String),
    #[error(
        "the Host header of this request has an unknown name: this server accepts an IP address, localhost and the names of \
         --http-hosts; open it by its address, such as http://127.0.0.1:8080/"
    )]
    Host,
    #[error(
        "the Origin header of this request names another site: this server answers only requests of its own pages"
    )]
    Origin,
    #[error(
        "log in with the name and the password of a user, by HTTP's scheme Basic{}, or with a certificate",
        or_token(.takes_tokens)
    )]
    LogIn { takes_tokens: bool },
    #[error("this user may not read: an access rule must allow {}", right(.0))]
    Denied(Visited),
    #[error("the node is not ready: {0}")]
    NotReady(String),
    #[error("too many bytes of answers wait to be sent: try again later")]
    Busy,
    #[error("reading the content failed: see the log of the node, and report it as a bug")]
    Panicked,
}

/// The right to read the thing.
fn right(visited: &Visited) -> String {
    match visited {
        Visited::Node => "Describe on the cluster".to_owned(),
        Visited::Stream(name) => format!("Read on the stream {name:?}"),
    }
}

fn or_token(takes_tokens: &bool) -> &'static str {
    match takes_tokens {
        true => ", with a token, by the scheme Bearer",
        false => "",
    }
}

impl RequestError {
    fn status(&self) -> StatusCode {
        match self {
            RequestError::UnknownPath(_)
            | RequestError::UnknownFlow(_)
            | RequestError::UnknownElement { .. }
            | RequestError::UnknownKey { .. }
            | RequestError::AbsentKey { .. }
            | RequestError::LookUp(LookUpError::UnknownStream(_)) => StatusCode::NOT_FOUND,
            RequestError::Path(_)
            | RequestError::Query(_)
            | RequestError::StreamName(_)
            | RequestError::KeysQuery(_) => StatusCode::BAD_REQUEST,
            RequestError::LookUp(LookUpError::NotKeyed(_)) => StatusCode::CONFLICT,
            RequestError::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            RequestError::Host | RequestError::Origin | RequestError::Denied(_) => {
                StatusCode::FORBIDDEN
            }
            RequestError::LogIn { .. } => StatusCode::UNAUTHORIZED,
            RequestError::NotReady(_)
            | RequestError::Busy
            | RequestError::LookUp(LookUpError::Busy(_)) => StatusCode::SERVICE_UNAVAILABLE,
            RequestError::Panicked | RequestError::LookUp(LookUpError::Failed(_)) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.to_string() }));
        let mut response = (self.status(), body).into_response();
        let headers = match self {
            RequestError::Method(_) => &[(header::ALLOW, "GET, HEAD")][..],
            RequestError::LogIn { takes_tokens: true } => &[BASIC, BEARER],
            RequestError::LogIn { .. } => &[BASIC],
            RequestError::NotReady(_)
            | RequestError::Busy
            | RequestError::LookUp(LookUpError::Busy(_)) => &[(header::RETRY_AFTER, "1")],
            _ => &[],
        };
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().append(name, value);
        }
        response
    }
}
