//! Access control: encryption, logins and rights of visitors.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderValue;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_base::Credentials;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Encrypts connections, and decides which visitors may read and write.
pub trait Gate: Send + Sync + 'static {
    /// Returns the TLS configuration of the next connection; `None` if it is not encrypted.
    fn tls(&self) -> Option<Arc<ServerConfig>>;

    /// Returns the visitor of a new connection, given its certificate.
    fn visitor(
        &self,
        from: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Arc<dyn Visitor>;
}

/// The other side of a connection.
pub trait Visitor: Send + Sync + 'static {
    /// Returns whether the visitor may do this now, given its credentials.
    fn admit(
        self: Arc<Self>,
        visited: Visited,
        credentials: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>>;
}

/// The thing that a visitor wants to read or write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Visited {
    /// The node: its page, its metrics, and the names of its flows and of their state.
    Node,
    /// An element of a flow's state, to read.
    State {
        /// The name of the flow.
        flow: String,
        /// The name of the element.
        element: String,
    },
    /// Records of a stream, to read.
    Read(String),
    /// Records of a stream, to write.
    Write(String),
    /// A serving flow, to send it a request of any method.
    Query(String),
}

/// The answer of a gate to a visitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The visitor may do this.
    Allowed,
    /// The visitor must log in, or its login failed.
    LogIn {
        /// Whether it may also log in with a token.
        takes_tokens: bool,
    },
    /// The user may not do this.
    Denied,
    /// The gate cannot admit visitors yet.
    NotReady,
}

/// Reads the header `Authorization`; returns `None` for a scheme or a form that visitors cannot log in with.
pub(crate) fn credentials_of(header: &HeaderValue) -> Option<Credentials> {
    let (scheme, given) = header.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Credentials::Token(given.trim().to_owned()));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(BASE64_STANDARD.decode(given.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Credentials::Password {
        user: user.to_owned(),
        password: password.to_owned(),
    })
}

/// A gate that admits every visitor, without TLS; for addresses that only this machine reaches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open;

impl Gate for Open {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn visitor(&self, _: SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
        Arc::new(Open)
    }
}

impl Visitor for Open {
    fn admit(
        self: Arc<Self>,
        _: Visited,
        _: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        Box::pin(ready(Admission::Allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &'static str) -> Option<Credentials> {
        credentials_of(&HeaderValue::from_static(text))
    }

    #[test]
    fn credentials_of_the_scheme_basic_are_parsed() {
        let found = of("Basic QWxhZGRpbjpvcGVuOnNlc2FtZQ==").unwrap();
        let expected = Credentials::Password {
            user: "Aladdin".to_owned(),
            password: "open:sesame".to_owned(),
        };
        assert_eq!(found, expected);
        assert_eq!(format!("{found:?}"), "Password(\"Aladdin\")");
        for wrong in [
            "",
            "Basic",
            "Basic ",
            "Digest QWxhZGRpbjpvcGVu",
            "Basic QWxhZGRpbg==",
            "Basic %%%",
            "Basic //8=",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn tokens_of_the_scheme_bearer_are_parsed() {
        for text in ["Bearer a.b.c", "bearer  a.b.c "] {
            let found = of(text).unwrap();
            assert_eq!(found, Credentials::Token("a.b.c".to_owned()));
            assert_eq!(format!("{found:?}"), "Token");
        }
        assert_eq!(of("Bearer"), None);
    }
}
