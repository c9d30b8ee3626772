//! Who may look.

use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use axum::http::HeaderValue;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

/// Encrypts connections, and decides who may look.
pub trait Gate: Send + Sync + 'static {
    /// How the next connection is encrypted; `None` if it is not.
    fn tls(&self) -> Option<Arc<ServerConfig>>;

    /// The other side of a new connection, with the certificate that it has shown.
    fn visitor(
        &self,
        from: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Arc<dyn Visitor>;
}

/// The other side of a connection.
pub trait Visitor: Send + Sync + 'static {
    /// Whether it may look now, given what it logs in with.
    fn admit(
        self: Arc<Self>,
        credentials: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>>;
}

/// What a visitor is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may look.
    Allowed,
    /// It has to log in, or has not shown that it is the user that it claims to be.
    LogIn,
    /// The user may not look.
    Denied,
    /// Nobody can be let in yet.
    NotReady,
}

/// A name and a password, as HTTP's scheme `Basic` sends them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
}

/// Hides the password.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({:?})", self.user)
    }
}

impl Credentials {
    /// Of the header `Authorization`; `None` if it says something else.
    pub(crate) fn of(header: &HeaderValue) -> Option<Credentials> {
        let (scheme, encoded) = header.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let text = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        Some(Credentials {
            user: user.to_owned(),
            password: password.to_owned(),
        })
    }
}

/// A gate that is open to everybody, without TLS: for addresses that only this machine reaches.
#[derive(Debug, Clone, Copy)]
pub struct Open;

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
        _: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        Box::pin(ready(Admission::Allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_the_scheme_basic_writes_them() {
        let of = |text: &'static str| Credentials::of(&HeaderValue::from_static(text));
        let found = of("Basic QWxhZGRpbjpvcGVuOnNlc2FtZQ==").unwrap();
        assert_eq!(
            (found.user.as_str(), found.password.as_str()),
            ("Aladdin", "open:sesame")
        );
        assert_eq!(format!("{found:?}"), "Credentials(\"Aladdin\")");
        for wrong in [
            "",
            "Basic",
            "Basic ",
            "Bearer QWxhZGRpbjpvcGVu",
            "Basic QWxhZGRpbg==",
            "Basic %%%",
            "Basic //8=",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }
}
