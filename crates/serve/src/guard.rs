//! What every request passes on its way in, and every answer on its way out.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::RequestError;

/// Keeps answers out of caches and out of reach of other sites.
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

pub async fn guard(request: Request, next: Next) -> Response {
    let mut response = match check(&request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    response.headers_mut().extend(HEADERS);
    response
}

fn check(request: &Request) -> Result<(), RequestError> {
    if !is_for_this_machine(request) {
        return Err(RequestError::Host);
    }
    match *request.method() {
        Method::GET | Method::HEAD => Ok(()),
        ref other => Err(RequestError::Method(other.to_string())),
    }
}

/// A site that lets its own name point to this machine (DNS rebinding) makes a browser send that
/// name; an address or `localhost` cannot be made to point elsewhere.
fn is_for_this_machine(request: &Request) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter().peekable();
    let is_in_uri_allowed = request.uri().authority().is_none_or(is_allowed);
    is_in_uri_allowed && hosts.peek().is_some() && hosts.all(is_header_allowed)
}

fn is_header_allowed(host: &HeaderValue) -> bool {
    Authority::try_from(host.as_bytes()).is_ok_and(|authority| is_allowed(&authority))
}

fn is_allowed(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    address.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_host(host: &'static str, is_allowed: bool) {
        let host = HeaderValue::from_static(host);
        assert_eq!(is_header_allowed(&host), is_allowed, "{host:?}");
    }

    #[test]
    fn addresses_and_localhost_are_allowed_with_and_without_port() {
        for host in ["127.0.0.1", "192.168.0.7:8080", "[::1]", "[fe80::1]:8080"] {
            check_host(host, true);
        }
        check_host("localhost", true);
        check_host("LocalHost:8080", true);
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
}
