//! Requests to serving flows.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use millstream_flow::serving::{self, Aborted, CallError, ChunkReader, Requests};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, timeout};

use crate::Content;
use crate::body::discard_unless_awaited;
use crate::connection_time::ConnectionTime;
use crate::error::RequestError;
use crate::keyed::KeyedError;
use crate::others_first::others_first;
use crate::shown::Shown;
use crate::watches::Endless;

/// The path of all serving flows.
const PATH: &str = "/q/";

/// The methods of the answer to others. Any method but CONNECT and TRACE, which are about connections, goes to the flow.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The longest time of a streamed response.
const STREAM_TIME_MAX: Duration = Duration::from_secs(600);

/// The longest time between two chunks of it.
const STREAM_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The seconds for which a browser may remember a permission.
const PERMISSION_TIME: HeaderValue = HeaderValue::from_static("600");

/// Headers that are about the connection, so the server sets them. HTTP has no meaning for them in a flow's response.
const OF_CONNECTION: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::DATE,
    HeaderName::from_static("keep-alive"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The serving flow that a path names.
pub type Queried = Result<Requests, RequestError>;

pub fn is_query(path: &str) -> bool {
    path.starts_with(PATH)
}

/// Returns the name of the flow in a path of serving flows, decoded; bytes that are no UTF-8 as replacement characters, so that a gate
/// sees a flow that does not exist.
pub fn flow_of(path: &str) -> Option<String> {
    let (name, _) = parts_of(path)?;
    Some(percent_decode_str(name).decode_utf8_lossy().into_owned())
}

/// Returns the name of a flow, and the path below it.
fn parts_of(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix(PATH)?;
    Some(match rest.find('/') {
        Some(end) => rest.split_at(end),
        None => (rest, "/"),
    })
}

/// Returns the flow of a path; `None` for paths that name none.
pub fn queried(content: &dyn Content, path: &str) -> Option<Queried> {
    let flow = flow_of(path).filter(|flow| !flow.is_empty())?;
    let all = content.requests();
    // Of the ranks of the flow in this process, the one with the fewest requests has the most time.
    let ranks = all.iter().filter(|requests| requests.flow() == flow);
    let found = ranks.min_by_key(|requests| (!requests.is_open(), requests.waiting()));
    Some(found.cloned().ok_or_else(|| {
        let known = all.iter().map(|requests| requests.flow().to_owned());
        let known = known.collect::<BTreeSet<_>>().into_iter().collect();
        RequestError::UnknownServingFlow { flow, known }
    }))
}

pub fn check_method(method: &Method) -> Result<(), RequestError> {
    match *method {
        Method::CONNECT | Method::TRACE => Err(RequestError::Method {
            method: method.to_string(),
            allowed: METHODS,
        }),
        _ => Ok(()),
    }
}

/// Hands a request to its flow, and answers with the response.
pub async fn answer(
    shown: &Shown,
    time: &Arc<ConnectionTime>,
    queried: Queried,
    head: &Parts,
    body: Body,
) -> Result<Response, RequestError> {
    let requests = match queried {
        Ok(requests) => requests,
        Err(error) => {
            discard_unless_awaited(&head.headers, body).await;
            return Err(error);
        }
    };
    let response = respond(shown, time, &requests, head, body).await?;
    http_response(response, time).ok_or_else(|| {
        let flow = requests.flow().to_owned();
        tracing::warn!(
            flow,
            "a response has a status or a header that HTTP does not have"
        );
        RequestError::Response { flow }
    })
}

async fn respond(
    shown: &Shown,
    time: &ConnectionTime,
    requests: &Requests,
    head: &Parts,
    body: Body,
) -> Result<serving::Response, RequestError> {
    let text = |text: &str| percent_decode_str(text).decode_utf8().is_ok();
    if !text(head.uri.path()) || !head.uri.query().is_none_or(text) {
        discard_unless_awaited(&head.headers, body).await;
        return Err(RequestError::QueryText);
    }
    let body_bytes_max = requests.settings().body_bytes_max;
    let announced = body.size_hint();
    let announced = announced.exact().unwrap_or(body_bytes_max as u64) as usize;
    let head_bytes = head_bytes(head);
    // Before the body is read: a flow that is busy is so at once.
    let admitted = match requests.admit(announced, announced.saturating_add(head_bytes)) {
        Ok(admitted) => admitted,
        Err(error) => {
            discard_unless_awaited(&head.headers, body).await;
            return Err(error.into());
        }
    };
    let left = admitted.time_left();
    // The last answer of a connection is not cut off.
    time.extend(left);
    let read = shown.bodies.read(&head.headers, body, body_bytes_max);
    let read = timeout(left, read).await;
    let bytes = read.unwrap_or(Err(RequestError::SlowBody(requests.settings().time_max)));
    let bytes = bytes.map_err(|error| match error {
        RequestError::Keyed(KeyedError::TooLarge { bytes_max }) => {
            RequestError::Call(CallError::TooLarge {
                flow: requests.flow().to_owned(),
                bytes_max,
            })
        }
        error => error,
    })?;
    others_first().await;
    // If the client leaves, this is dropped, and the call with it.
    let pending = admitted.call(request_of(head, bytes));
    let (left, late) = (pending.time_left(), pending.late());
    Ok(timeout(left, pending).await.unwrap_or(Err(late))?)
}

/// The memory of the head of a request, about.
fn head_bytes(head: &Parts) -> usize {
    let headers = head.headers.iter();
    let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
    headers.sum::<usize>() + head.uri.path().len() + head.uri.query().map_or(0, str::len)
}

fn request_of(head: &Parts, body: Bytes) -> serving::Request {
    let path = parts_of(head.uri.path()).map_or("/", |(_, path)| path);
    let target = match head.uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let request = serving::Request::new(head.method.as_str(), &target).with_body(body);
    let headers = head.headers.iter();
    // The credentials are those of this server.
    let headers = headers.filter(|(name, _)| *name != header::AUTHORIZATION);
    headers.fold(request, |request, (name, value)| {
        request.with_header(name.as_str(), Bytes::copy_from_slice(value.as_bytes()))
    })
}

/// Returns the response for HTTP; `None` if it has no status or header of HTTP.
fn http_response(from_flow: serving::Response, time: &Arc<ConnectionTime>) -> Option<Response> {
    let status = StatusCode::from_u16(from_flow.status_code()).ok();
    // Those below 200 are not the last answer.
    let status = status.filter(|status| (200..600).contains(&status.as_u16()))?;
    let mut response = match from_flow.body() {
        serving::Body::Whole(bytes) => Response::new(Body::from(bytes.clone())),
        serving::Body::Chunks(reader) => {
            let body = Streamed {
                reader: reader.clone(),
                time: Arc::clone(time),
                until: Instant::now() + STREAM_TIME_MAX,
            };
            let mut response = Response::new(Body::new(body));
            response.extensions_mut().insert(Endless);
            response
        }
    };
    *response.status_mut() = status;
    for (name, value) in from_flow.headers() {
        let name = HeaderName::try_from(name).ok()?;
        let value = HeaderValue::try_from(value).ok()?;
        if !OF_CONNECTION.contains(&name) {
            response.headers_mut().append(name, value);
        }
    }
    Some(response)
}

/// The body of a streamed response. Its connection lives on as long as chunks come and the client takes them.
struct Streamed {
    reader: ChunkReader,
    time: Arc<ConnectionTime>,
    until: Instant,
}

impl HttpBody for Streamed {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let next = self.reader.poll_next(context);
        if next.is_ready() {
            let left = self.until.saturating_duration_since(Instant::now());
            self.time.extend(STREAM_PAUSE_MAX.min(left));
        }
        next.map(|next| next.map(|chunk| chunk.map(Frame::data)))
    }
}

/// The permission that a serving flow gives to a page of another site.
#[derive(Debug, Default)]
pub struct Cors {
    /// Whether answers depend on the site.
    varies: bool,
    /// The site that may read the answer, or `*`.
    allowed: Option<HeaderValue>,
}

impl Cors {
    /// Returns the permission for a request with these headers to a flow that allows these sites.
    pub fn of(origins: &[String], headers: &HeaderMap) -> Cors {
        let mut given = headers.get_all(header::ORIGIN).iter();
        let allowed = match (given.next(), given.next()) {
            (Some(_), None) if origins.iter().any(|origin| origin == "*") => {
                Some(HeaderValue::from_static("*"))
            }
            (Some(given), None) => {
                let is_given = |origin: &String| origin.as_bytes() == given.as_bytes();
                origins.iter().any(is_given).then(|| given.clone())
            }
            _ => None,
        };
        Cors {
            varies: !origins.is_empty(),
            allowed,
        }
    }

    pub fn is_allowed(&self) -> bool {
        self.allowed.is_some()
    }

    /// Returns whether a browser asks by this request if a page may make another one.
    pub fn is_preflight(&self, head: &Parts) -> bool {
        self.is_allowed()
            && head.method == Method::OPTIONS
            && head
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    }

    /// Returns the permission for the request that the browser asks about.
    pub fn permission(&self, head: &Parts) -> Response {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        let asked = |name: HeaderName| head.headers.get(name).cloned();
        let method = asked(header::ACCESS_CONTROL_REQUEST_METHOD);
        let is_allowed = |method: &HeaderValue| {
            let method = Method::from_bytes(method.as_bytes());
            method.is_ok_and(|method| check_method(&method).is_ok())
        };
        let method = method.filter(is_allowed);
        let method = method.unwrap_or(HeaderValue::from_static(METHODS));
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, method);
        if let Some(names) = asked(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
        }
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, PERMISSION_TIME);
        response
    }

    /// Lets pages of the site read the answer.
    pub fn mark(&self, headers: &mut HeaderMap) {
        if self.varies {
            headers.append(header::VARY, HeaderValue::from_static("Origin"));
        }
        if let Some(allowed) = &self.allowed {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, allowed.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_flow_and_a_path_below_it() {
        for (path, flow, below) in [
            ("/q/a", "a", "/"),
            ("/q/a/", "a", "/"),
            ("/q/a%20b/c%2Fd/../e", "a b", "/c%2Fd/../e"),
            ("/q/", "", "/"),
        ] {
            assert_eq!(flow_of(path).as_deref(), Some(flow), "{path}");
            assert_eq!(parts_of(path).unwrap().1, below, "{path}");
        }
        for path in ["/q", "/kv/q/a", "/"] {
            assert_eq!(flow_of(path), None, "{path}");
        }
    }

    #[test]
    fn only_named_sites_are_allowed() {
        let allowed = |origins: &[&str], given: &[&'static str]| {
            let origins: Vec<_> = origins.iter().map(|&it| it.to_owned()).collect();
            let mut headers = HeaderMap::new();
            for origin in given {
                headers.append(header::ORIGIN, HeaderValue::from_static(origin));
            }
            Cors::of(&origins, &headers).allowed
        };
        let shop = "https://shop.example.com";
        assert_eq!(allowed(&[shop], &[shop]).unwrap(), shop);
        assert_eq!(allowed(&["*"], &[shop]).unwrap(), "*");
        assert_eq!(allowed(&[], &[shop]), None);
        assert_eq!(allowed(&[shop], &[]), None);
        for other in [
            "https://shop.example.com.evil.com",
            "http://shop.example.com",
            "null",
            "",
        ] {
            assert_eq!(allowed(&[shop], &[other]), None, "{other}");
        }
        // No browser sends two.
        assert_eq!(allowed(&[shop, "*"], &[shop, shop]), None);
    }
}
