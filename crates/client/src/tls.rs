//! Encrypted connections.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::error::ClientError;

/// The client's side of TLS.
#[derive(Clone)]
pub struct Tls {
    authorities: Arc<RootCertStore>,
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls { … }")
    }
}

impl Tls {
    /// Trusts servers whose certificate one of these authorities has signed; `authorities` is PEM.
    ///
    /// # Errors
    /// When it contains no certificates.
    pub fn new(authorities: &[u8]) -> Result<Tls, ClientError> {
        let mut roots = RootCertStore::empty();
        for certificate in parse(authorities)? {
            roots.add(certificate).map_err(refused)?;
        }
        let authorities = Arc::new(roots);
        let builder = builder(&authorities)?;
        Ok(Tls {
            authorities,
            config: Arc::new(builder.with_no_client_auth()),
        })
    }

    /// Presents a certificate to servers, with those between it and the root; both are PEM.
    ///
    /// # Errors
    /// When certificates or key are missing, do not belong together, or are of a kind that TLS does not accept, as
    /// certificates of X.509 version 1 are.
    pub fn with_certificate(self, certificates: &[u8], key: &[u8]) -> Result<Tls, ClientError> {
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|error| refused(format!("the key: {error}")))?;
        let chain = parse(certificates)?;
        let config = builder(&self.authorities)?.with_client_auth_cert(chain, key);
        Ok(Tls {
            config: Arc::new(config.map_err(not_taken)?),
            ..self
        })
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.config))
            .connect(name, stream)
            .await
            .map_err(|error| explained(error, host))
    }
}

/// Adds advice on a rejected certificate to the error.
fn explained(error: io::Error, host: &str) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let Some(rustls::Error::InvalidCertificate(why)) = cause else {
        return error;
    };
    use rustls::CertificateError as Why;
    let advice = match why {
        // An authority of the same name has signed it with another key, or none has.
        Why::UnknownIssuer | Why::BadSignature => {
            "none of the authorities that the client believes has signed it: name its authority, or the \
             certificate itself if it is self-signed"
                .to_owned()
        }
        Why::NotValidForName | Why::NotValidForNameContext { .. } => {
            format!("it is not for {host}: ask for the server by a name of the certificate, or make one with this name in subjectAltName")
        }
        Why::Expired | Why::ExpiredContext { .. } => "it has expired: make another one".to_owned(),
        // The kind is not public.
        Why::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it is that of an authority (CA:TRUE), as `openssl req -x509` makes it by itself: make it with \
             -addext basicConstraints=critical,CA:FALSE"
                .to_owned()
        }
        _ => return error,
    };
    io::Error::new(
        error.kind(),
        format!("the server's certificate is refused: {advice}"),
    )
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn builder(authorities: &Arc<RootCertStore>) -> Result<Builder, ClientError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(refused)?;
    Ok(builder.with_root_certificates(Arc::clone(authorities)))
}

fn parse(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(refused("no certificate in PEM was found")),
        Err(error) => Err(refused(error)),
    }
}

fn not_taken(error: rustls::Error) -> ClientError {
    match error {
        rustls::Error::InvalidCertificate(why) => refused(format!(
            "TLS takes certificates of X.509 version 3, and not this one: {why:?}"
        )),
        error => refused(error),
    }
}

fn refused(what: impl fmt::Display) -> ClientError {
    let what = what.to_string();
    ClientError::Tls { what }
}
