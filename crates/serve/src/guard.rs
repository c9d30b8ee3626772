//! The checks of every request, and the headers and bounds of every answer.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;

use crate::body::discard_unless_awaited;
use crate::connection::Connection;
use crate::error::RequestError;
use crate::gate::{Admission, Visited, Visitor, credentials_of};
use crate::kv;
use crate::memory::Memory;
use crate::others_first::others_first;
use crate::query::{self, Cors, Queried};
use crate::shown::Shown;
use crate::state;
use crate::watches::Endless;

/// The headers that forbid caches to store answers, and other sites to read them.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    ),
    (
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    ),
];

/// The header in which a browser says how the site that makes a request relates to this one.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Paths that need no login: they reveal only whether the node lives.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The memory of all unsent answers, in bytes.
const ANSWERS_BYTES_MAX: usize = 64 << 20;

/// Answers up to this size are not counted: the bound on connections bounds them.
const SMALL_ANSWER_BYTES: usize = 1 << 10;

/// The state that all connections share.
pub struct Rules {
    /// The names that `Host` may have, beside addresses and `localhost`.
    hosts: Vec<String>,
    answers: Memory,
}

impl Rules {
    pub fn new(hosts: Vec<String>) -> Rules {
        Rules {
            hosts,
            answers: Memory::new(ANSWERS_BYTES_MAX),
        }
    }
}

/// The pages of a server, behind the checks of every request.
pub struct Guarded {
    rules: Rules,
    shown: Arc<Shown>,
    /// All pages but those of serving flows.
    pages: TowerToHyperService<Router>,
}

impl Guarded {
    pub fn new(rules: Rules, shown: Arc<Shown>, pages: Router) -> Guarded {
        Guarded {
            rules,
            shown,
            pages: TowerToHyperService::new(pages),
        }
    }

    /// Answers a request.
    pub async fn answer(
        self: Arc<Self>,
        connection: Arc<Connection>,
        request: hyper::Request<Incoming>,
    ) -> Result<Response, Infallible> {
        let (head, body) = request.into_parts();
        let is_head = head.method == Method::HEAD;
        let queried = query::queried(&*self.shown.content, head.uri.path());
        let mut cors = Cors::default();
        let checked = self.rules.check(&head, queried.as_ref(), &mut cors);
        // A browser asks for permission without credentials.
        let is_preflight = checked.is_ok() && cors.is_preflight(&head);
        let admitted = match checked {
            Ok(()) if is_preflight => Ok(()),
            Ok(()) => admit(&head, &connection.visitor).await,
            Err(error) => Err(error),
        };
        let mut response = match admitted {
            Ok(()) if is_preflight => cors.permission(&head),
            Ok(()) => self.page(&connection, queried, head, body).await,
            Err(error) => {
                discard_unless_awaited(&head.headers, Body::new(body)).await;
                error.into_response()
            }
        };
        if is_head {
            remove_body(&mut response);
        }
        let mut response = self.rules.hold(response).await;
        response.headers_mut().extend(HEADERS);
        cors.mark(response.headers_mut());
        Ok(response)
    }

    /// Answers an admitted request.
    async fn page(
        &self,
        connection: &Arc<Connection>,
        queried: Option<Queried>,
        mut head: Parts,
        body: Incoming,
    ) -> Response {
        if let Some(queried) = queried {
            let time = &connection.time;
            let answer = query::answer(&self.shown, time, queried, &head, Body::new(body)).await;
            return answer.into_response();
        }
        if head.method == Method::GET
            && let Some(answer) = state::value_at_once(&*self.shown.content, &head.uri)
        {
            others_first().await;
            return answer;
        }
        head.extensions.insert(Arc::clone(connection));
        let request = Request::from_parts(head, Body::new(body));
        // Few requests come here, and each connection has room for the futures of the others alone.
        match Box::pin(self.pages.call(request)).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// Takes the body of an answer to HEAD away, and leaves its length.
fn remove_body(response: &mut Response) {
    let is_endless = response.extensions().get::<Endless>().is_some();
    let bytes = response.body().size_hint().exact();
    if let Some(bytes) = bytes.filter(|_| !is_endless) {
        // The router has done so with the answers of pages.
        let headers = response.headers_mut();
        headers
            .entry(header::CONTENT_LENGTH)
            .or_insert(bytes.into());
    }
    *response.body_mut() = Body::empty();
}

/// Asks the gate, unless the path is open.
async fn admit(head: &Parts, visitor: &Arc<dyn Visitor>) -> Result<(), RequestError> {
    if OPEN_PATHS.contains(&head.uri.path()) {
        return Ok(());
    }
    let credentials = head.headers.get(header::AUTHORIZATION);
    let credentials = credentials.and_then(credentials_of);
    for (place, visited) in visited_by(head).into_iter().enumerate() {
        let admission = Arc::clone(visitor).admit(visited, credentials.clone());
        match admission.await {
            Admission::Allowed => {}
            Admission::LogIn { takes_tokens } => {
                return Err(RequestError::LogIn { takes_tokens });
            }
            Admission::Denied => {
                let denied = visited_by(head).swap_remove(place);
                return Err(RequestError::Denied(denied));
            }
            Admission::NotReady => {
                return Err(RequestError::NotReady("it is starting".to_owned()));
            }
        }
    }
    Ok(())
}

/// Returns all things that a request reads or writes, of which there is at least one.
fn visited_by(head: &Parts) -> Vec<Visited> {
    let path = head.uri.path();
    if let Some(elements) = state::visited(path, head.uri.query().unwrap_or_default()) {
        return elements;
    }
    vec![match (kv::stream_of(path), query::flow_of(path)) {
        (Some(stream), _) if is_read(&head.method) => Visited::Read(stream),
        (Some(stream), _) => Visited::Write(stream),
        (None, Some(flow)) => Visited::Query(flow),
        (None, None) => Visited::Node,
    }]
}

impl Rules {
    fn check(
        &self,
        head: &Parts,
        queried: Option<&Queried>,
        cors: &mut Cors,
    ) -> Result<(), RequestError> {
        if !self.is_for_this_server(head) {
            return Err(RequestError::Host);
        }
        if let Some(Ok(requests)) = queried {
            *cors = Cors::of(&requests.settings().origins, &head.headers);
        }
        if !cors.is_allowed() && !is_of_this_origin(head) {
            return Err(RequestError::Origin);
        }
        // The handlers of keys know their methods.
        let (method, path) = (&head.method, head.uri.path());
        if is_read(method) || kv::is_written(path) {
            return Ok(());
        }
        if query::is_query(path) {
            return query::check_method(method);
        }
        Err(RequestError::Method {
            method: method.to_string(),
            allowed: "GET, HEAD",
        })
    }

    /// Returns whether `Host` names this server. A site can let its own name point to this machine (DNS
    /// rebinding), and the browser then sends that name. It cannot do so with an address or `localhost`.
    fn is_for_this_server(&self, head: &Parts) -> bool {
        let mut hosts = head.headers.get_all(header::HOST).iter().peekable();
        let authority = head.uri.authority();
        let is_in_uri_allowed = authority.is_none_or(|authority| self.is_allowed(authority));
        let is_allowed = |host: &HeaderValue| self.is_header_allowed(host);
        is_in_uri_allowed && hosts.peek().is_some() && hosts.all(is_allowed)
    }

    fn is_header_allowed(&self, host: &HeaderValue) -> bool {
        Authority::try_from(host.as_bytes()).is_ok_and(|authority| self.is_allowed(&authority))
    }

    fn is_allowed(&self, authority: &Authority) -> bool {
        let host = authority.host();
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        // No browser or program sends a user's name in the authority of a request for one of our pages.
        let has_user = authority.as_str().contains('@');
        let mut names = self.hosts.iter().map(String::as_str).chain(["localhost"]);
        let is_name = names.any(|name| host.eq_ignore_ascii_case(name));
        !has_user && (address.parse::<IpAddr>().is_ok() || is_name)
    }

    /// Counts an answer's memory until it is sent, so that slow clients cannot use memory without bound.
    async fn hold(&self, response: Response) -> Response {
        // The queue of its events is short.
        let is_endless = response.extensions().get::<Endless>().is_some();
        let bytes = response.body().size_hint().exact();
        if is_endless || bytes.is_some_and(|bytes| bytes <= SMALL_ANSWER_BYTES as u64) {
            return response;
        }
        let (parts, body) = response.into_parts();
        // The whole body is in memory already.
        let Ok(bytes) = to_bytes(body, usize::MAX).await else {
            return RequestError::Panicked.into_response();
        };
        if bytes.len() <= SMALL_ANSWER_BYTES {
            return Response::from_parts(parts, Body::from(bytes));
        }
        // An answer larger than all of the memory waits until no other is unsent.
        match self.answers.take(bytes.len()) {
            Some(room) => Response::from_parts(parts, Body::from(room.hold(bytes))),
            None => RequestError::Busy.into_response(),
        }
    }
}

fn is_read(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Returns whether a page of this server, or no page at all, makes the request.
///
/// Browsers send `Origin` with all methods but GET and HEAD. Only old browsers send a form's POST
/// without it. Before the other methods they ask by OPTIONS, which gets a permission only by [`Cors`].
/// `Sec-Fetch-Site` distinguishes the servers of one name for HTTP and for HTTPS, which `Origin` and `Host` without a
/// port do not. A read may come from another site, since links lead here.
fn is_of_this_origin(head: &Parts) -> bool {
    let headers = &head.headers;
    let host = headers.get(header::HOST).map(HeaderValue::as_bytes);
    let is_of_host = headers.get_all(header::ORIGIN).iter().all(|origin| {
        let origin = origin.as_bytes();
        let authority = origin
            .strip_prefix(b"https://")
            .or_else(|| origin.strip_prefix(b"http://"));
        authority.is_some() && authority == host
    });
    // `none` is a request that no page makes.
    let mut sites = headers.get_all(FETCH_SITE).iter();
    is_of_host
        && (is_read(&head.method) || sites.all(|site| site == "same-origin" || site == "none"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_host(host: &'static str, is_allowed: bool) {
        let host = HeaderValue::from_static(host);
        let rules = Rules::new(vec!["node1.example.com".to_owned()]);
        assert_eq!(rules.is_header_allowed(&host), is_allowed, "{host:?}");
    }

    #[test]
    fn addresses_and_localhost_are_allowed_with_and_without_port() {
        for host in ["127.0.0.1", "192.168.0.7:8080", "[::1]", "[fe80::1]:8080"] {
            check_host(host, true);
        }
        check_host("localhost", true);
        check_host("LocalHost:8080", true);
        check_host("Node1.example.com:8080", true);
    }

    #[test]
    fn other_names_are_refused() {
        for host in ["example.com", "example.com:8080", "localhost.example.com"] {
            check_host(host, false);
        }
        for host in ["127.0.0.1.example.com", "1.2.3", "", ":8080", "[::1", "a b"] {
            check_host(host, false);
        }
        check_host("127.0.0.1@example.com", false);
    }

    #[track_caller]
    fn check_origin(origin: &'static str, is_ours: bool) {
        let request = Request::builder()
            .header(header::HOST, "127.0.0.1:8080")
            .header(header::ORIGIN, origin)
            .body(())
            .unwrap();
        assert_eq!(
            is_of_this_origin(&request.into_parts().0),
            is_ours,
            "{origin}"
        );
    }

    #[test]
    fn pages_of_other_origins_are_refused() {
        check_origin("http://127.0.0.1:8080", true);
        check_origin("https://127.0.0.1:8080", true);
        for origin in [
            "null",
            "",
            "127.0.0.1:8080",
            "http://127.0.0.1",
            "http://127.0.0.1:8081",
            "http://example.com",
            "ftp://127.0.0.1:8080",
        ] {
            check_origin(origin, false);
        }
    }

    #[test]
    fn browsers_write_only_for_pages_of_this_server() {
        let is_ours = |method: Method, site: &'static str| {
            let request = Request::builder()
                .method(method)
                .header(header::HOST, "127.0.0.1:8080")
                .header(FETCH_SITE, site)
                .body(())
                .unwrap();
            is_of_this_origin(&request.into_parts().0)
        };
        for method in [Method::PUT, Method::DELETE, Method::PATCH, Method::POST] {
            for (site, expected) in [
                ("same-origin", true),
                ("none", true),
                ("same-site", false),
                ("cross-site", false),
                ("", false),
            ] {
                assert_eq!(is_ours(method.clone(), site), expected, "{method} {site}");
            }
        }
        // A link of another site.
        assert!(is_ours(Method::GET, "cross-site"));
    }

    #[tokio::test]
    async fn unread_answers_share_one_bound() {
        let rules = Rules::new(Vec::new());
        let answer = || Response::new(Body::from(vec![b'x'; ANSWERS_BYTES_MAX / 4]));
        let mut held = Vec::new();
        for _ in 0..4 {
            let response = rules.hold(answer()).await;
            assert_eq!(response.status(), 200);
            held.push(response);
        }
        let refused = rules.hold(answer()).await;
        assert_eq!(refused.status(), 503);
        // A small answer needs no permits.
        let small = rules.hold(Response::new(Body::from("ok"))).await;
        assert_eq!(small.status(), 200);
        let taken = held.pop().map(Response::into_body);
        drop(to_bytes(taken.unwrap(), usize::MAX).await.unwrap());
        assert_eq!(rules.hold(answer()).await.status(), 200);
    }
}
