//! Fetches the keys for tokens from the URL where their issuer publishes them.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper::http::uri::Scheme;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::tls::{TlsError, load_roots};
use super::tokens::KEYS_BYTES_MAX;
use crate::peer::Stream;

/// The longest time of a fetch, for all its steps together.
const FETCH_TIME_MAX: Duration = Duration::from_secs(10);

/// The largest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The files where systems keep the certificates of the trusted authorities: Debian, Fedora,
/// openSUSE, Alpine and BSD.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The variable that names another file of authorities, as OpenSSL reads it.
const AUTHORITIES_VARIABLE: &str = "SSL_CERT_FILE";

/// The URL where an issuer publishes the public keys (JWKS) of its tokens: `https://`, or `http://` to this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeysUrl {
    uri: Uri,
    /// IPv6 addresses stand here without their brackets.
    host: String,
    is_encrypted: bool,
}

/// Why a fetch has failed.
#[derive(thiserror::Error)]
pub enum FetchError {
    /// The runtime for the fetch cannot be started.
    #[error("no runtime for the fetch: {0}")]
    Runtime(io::Error),
    /// The host's name cannot be resolved.
    #[error("cannot resolve {host}: {error}")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        error: io::Error,
    },
    /// The host has no address, or none of this machine for a URL without TLS.
    #[error("{0} has no address that the server may connect to")]
    NoAddress(String),
    /// The server does not accept the connection.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The last address that was tried.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// The files of authorities cannot be used.
    #[error("cannot read the authorities of token_authorities: {0}")]
    Authorities(#[from] TlsError),
    /// There is no file of authorities.
    #[error(
        "found no certificates of authorities of this system: name a file of them with token_authorities"
    )]
    NoAuthorities,
    /// TLS cannot be set up, or the host's certificate is not good.
    #[error(
        "TLS failed: {0}; if one of your own authorities has signed the certificate, name it with token_authorities"
    )]
    Tls(io::Error),
    /// The settings of TLS are refused.
    #[error("TLS cannot be set up: {0}")]
    TlsSetup(#[from] rustls::Error),
    /// The answer breaks off, or is not HTTP.
    #[error("the exchange over HTTP failed: {0}")]
    Http(#[from] hyper::Error),
    /// The answer is another one than 200.
    #[error("it answered {0}")]
    Status(StatusCode),
    /// The answer sends the server elsewhere.
    #[error(
        "it answered {0}, and the server follows no redirects: give the URL of the keys itself"
    )]
    Redirect(StatusCode),
    /// The answer is too large.
    #[error("the answer is larger than {KEYS_BYTES_MAX} bytes")]
    TooLarge,
    /// The answer breaks off.
    #[error("the answer breaks off: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("it took longer than {} s", FETCH_TIME_MAX.as_secs())]
    Slow,
}

millstream_base::debug_as_display!(FetchError);

impl FromStr for KeysUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<KeysUrl, String> {
        let uri: Uri = text
            .parse()
            .map_err(|error| format!("is no URL: {error}"))?;
        let authority = uri.authority().ok_or("names no host")?;
        if authority.as_str().contains('@') {
            return Err("must not contain a user or a password".to_owned());
        }
        let host = authority.host();
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = address.unwrap_or(host).to_owned();
        if ServerName::try_from(host.clone()).is_err() {
            return Err("names no host".to_owned());
        }
        let is_encrypted = uri.scheme() == Some(&Scheme::HTTPS);
        if !is_encrypted && uri.scheme() != Some(&Scheme::HTTP) {
            return Err("must begin with https://".to_owned());
        }
        let parsed: Option<IpAddr> = host.parse().ok();
        let is_loopback = match parsed {
            Some(address) => address.is_loopback(),
            None => host.eq_ignore_ascii_case("localhost"),
        };
        if !is_encrypted && !is_loopback {
            return Err(
                "must begin with https://: over http:// an attacker on the network could replace the keys; only an address \
                 of this machine, such as 127.0.0.1, works without TLS"
                    .to_owned(),
            );
        }
        Ok(KeysUrl {
            uri,
            host,
            is_encrypted,
        })
    }
}

impl fmt::Display for KeysUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

impl KeysUrl {
    /// Returns whether the keys are fetched over TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Fetches the keys. Trusts servers whose certificate one of `authorities` has signed, or,
    /// without `authorities`, one of the system's. Blocks for at most 10 seconds.
    ///
    /// # Errors
    /// See [`FetchError`].
    ///
    /// # Panics
    /// When asynchronous code calls this: it blocks.
    pub fn fetch(&self, authorities: Option<&Path>) -> Result<Bytes, FetchError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(FetchError::Runtime)?;
        let fetched =
            runtime.block_on(async { timeout(FETCH_TIME_MAX, self.fetch_with(authorities)).await });
        // A name that is still being resolved must not hold up the caller.
        runtime.shutdown_background();
        fetched.unwrap_or(Err(FetchError::Slow))
    }

    async fn fetch_with(&self, authorities: Option<&Path>) -> Result<Bytes, FetchError> {
        if !self.is_encrypted {
            return self.exchange(self.connect().await?).await;
        }
        let connector = connector(authorities)?;
        let name = ServerName::try_from(self.host.clone());
        let name = name.map_err(|error| FetchError::Tls(io::Error::other(error)))?;
        let connected = connector.connect(name, self.connect().await?).await;
        self.exchange(connected.map_err(FetchError::Tls)?).await
    }

    async fn connect(&self) -> Result<TcpStream, FetchError> {
        let port = match self.is_encrypted {
            true => 443,
            false => 80,
        };
        let port = self.uri.port_u16().unwrap_or(port);
        let addresses = tokio::net::lookup_host((self.host.as_str(), port)).await;
        let addresses = addresses.map_err(|error| FetchError::Resolve {
            host: self.host.clone(),
            error,
        })?;
        let mut failed = FetchError::NoAddress(self.host.clone());
        // The name `localhost` may resolve to another machine.
        for address in addresses.filter(|address| self.is_encrypted || address.ip().is_loopback()) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => failed = FetchError::Connect { address, error },
            }
        }
        Err(failed)
    }

    async fn exchange(&self, stream: impl Stream) -> Result<Bytes, FetchError> {
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .handshake(TokioIo::new(stream))
            .await?;
        // The task ends with the runtime of the fetch.
        tokio::spawn(connection);
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let authority = self
            .uri
            .authority()
            .map_or("", |authority| authority.as_str());
        let request = Request::get(path)
            .header(header::HOST, authority)
            .header(header::ACCEPT, "application/jwk-set+json, application/json")
            .header(header::USER_AGENT, "millstream")
            .body(Empty::<Bytes>::new())
            .expect("path and authority are those of a URI");
        let response = sender.send_request(request).await?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_redirection() => return Err(FetchError::Redirect(status)),
            status => return Err(FetchError::Status(status)),
        }
        let body = Limited::new(response.into_body(), KEYS_BYTES_MAX)
            .collect()
            .await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => FetchError::TooLarge,
            false => FetchError::Body(error),
        })?;
        Ok(body.to_bytes())
    }
}

/// Returns a TLS connector that trusts the certificates that these authorities have signed. It
/// reads their file for each fetch, so a renewed file takes effect.
fn connector(authorities: Option<&Path>) -> Result<TlsConnector, FetchError> {
    let roots = match authorities {
        Some(path) => load_roots(path)?,
        None => load_roots(&system_authorities().ok_or(FetchError::NoAuthorities)?)?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_authorities() -> Option<PathBuf> {
    let named = std::env::var_os(AUTHORITIES_VARIABLE).map(PathBuf::from);
    let known = SYSTEM_AUTHORITIES.iter().map(PathBuf::from);
    named.or_else(|| known.into_iter().find(|path| path.exists()))
}
