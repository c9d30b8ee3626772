//! Why a request is refused.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::routes::ENTRIES_MAX;

/// How visitors log in with a password.
const BASIC: (HeaderName, &str) = (
    header::WWW_AUTHENTICATE,
    "Basic realm=\"millstream\", charset=\"UTF-8\"",
);

/// How visitors log in with a token.
const BEARER: (HeaderName, &str) = (header::WWW_AUTHENTICATE, "Bearer realm=\"millstream\"");

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(
        "there is nothing at {0:?}: try /, /healthz, /readyz, /metrics, /api/v1/overview, \
         /api/v1/streams, /api/v1/groups, /api/v1/flows, \
         /api/v1/flows/<flow>/metrics, /state/<flow>/<element> or /state/<flow>/<element>/<key>"
    )]
    UnknownPath(String),
    #[error("unknown flow {0:?}: /api/v1/flows lists those that run")]
    UnknownFlow(String),
    #[error("unknown element {element:?}: the flow {flow:?} has no state element of this name")]
    UnknownElement { flow: String, element: String },
    #[error(
        "unknown key {key:?}: the element {element:?} of the flow {flow:?} does not hold it (now); \
         /state/<flow>/<element> lists keys that it holds"
    )]
    UnknownKey {
        flow: String,
        element: String,
        key: String,
    },
    #[error("the path is not understood: {0}; names and keys are percent-encoded UTF-8")]
    Path(#[from] PathRejection),
    #[error("the query {0:?} is refused: it may be limit=<n>, a number from 1 to {ENTRIES_MAX}")]
    Query(String),
    #[error("{0} is not allowed: everything here is read with GET or HEAD")]
    Method(String),
    #[error(
        "this server does not answer to the name in the Host header of this request, only to an IP address, to localhost and \
         to the names that --http-hosts gives: open it by its address, such as http://127.0.0.1:8080/"
    )]
    Host,
    #[error(
        "a page of another site has made this request, as its Origin header says: this server answers its own pages alone"
    )]
    Origin,
    #[error(
        "log in with the name and the password of a user, by HTTP's scheme Basic{}, or with a certificate",
        or_token(.takes_tokens)
    )]
    LogIn { takes_tokens: bool },
    #[error("this user may not look: an access rule has to allow Describe on the cluster")]
    Denied,
    #[error("the node is not ready: {0}")]
    NotReady(String),
    #[error("too much that was asked for waits to be sent: ask again later")]
    Busy,
    #[error("reading what was asked for failed: see the log of the node, and report it as a bug")]
    Panicked,
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
            | RequestError::UnknownKey { .. } => StatusCode::NOT_FOUND,
            RequestError::Path(_) | RequestError::Query(_) => StatusCode::BAD_REQUEST,
            RequestError::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            RequestError::Host | RequestError::Origin | RequestError::Denied => {
                StatusCode::FORBIDDEN
            }
            RequestError::LogIn { .. } => StatusCode::UNAUTHORIZED,
            RequestError::NotReady(_) | RequestError::Busy => StatusCode::SERVICE_UNAVAILABLE,
            RequestError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
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
            RequestError::NotReady(_) | RequestError::Busy => &[(header::RETRY_AFTER, "1")],
            _ => &[],
        };
        for (name, value) in headers {
            let value = HeaderValue::from_static(value);
            response.headers_mut().append(name, value);
        }
        response
    }
}
