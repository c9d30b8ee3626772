//! Why a request is refused.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::routes::ENTRIES_MAX;

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(
        "there is nothing at {0:?}: try /, /healthz, /metrics, /api/v1/overview, /api/v1/flows, \
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
        "this server answers only to an IP address or to localhost, not to the name in the Host \
         header of this request: open it by its address, such as http://127.0.0.1:8080/"
    )]
    Host,
    #[error("reading what was asked for failed: see the log of the node, and report it as a bug")]
    Panicked,
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
            RequestError::Host => StatusCode::FORBIDDEN,
            RequestError::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for RequestError {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.to_string() }));
        let mut response = (self.status(), body).into_response();
        if let RequestError::Method(_) = self {
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(header::ALLOW, allowed);
        }
        response
    }
}
