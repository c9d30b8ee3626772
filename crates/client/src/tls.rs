//! Encrypted connections.

use std::fmt;
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
pub struct Tls(Arc<ClientConfig>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Believes servers whose certificate one of these authorities has signed; `authorities` is PEM.
    ///
    /// # Errors
    /// When there are no certificates in it.
    pub fn new(authorities: &[u8]) -> Result<Tls, ClientError> {
        let builder = builder(authorities)?;
        Ok(Tls(Arc::new(builder.with_no_client_auth())))
    }

    /// As [`new`](Self::new), and shows a certificate. All are PEM.
    ///
    /// # Errors
    /// When certificates or key are not there, or do not belong together.
    pub fn with_certificate(
        authorities: &[u8],
        certificates: &[u8],
        key: &[u8],
    ) -> Result<Tls, ClientError> {
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| refused(format!("the client's key: {error}")))?;
        let chain = parse(certificates)?;
        let config = builder(authorities)?.with_client_auth_cert(chain, key);
        let config = config.map_err(|error| refused(error.to_string()))?;
        Ok(Tls(Arc::new(config)))
    }

    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0))
            .connect(name, stream)
            .await
    }
}

type Builder = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn builder(authorities: &[u8]) -> Result<Builder, ClientError> {
    let mut roots = RootCertStore::empty();
    for certificate in parse(authorities)? {
        let added = roots.add(certificate);
        added.map_err(|error| refused(error.to_string()))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| refused(error.to_string()))?;
    Ok(builder.with_root_certificates(roots))
}

fn parse(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err(refused("no certificate in PEM was found".to_owned())),
        Err(error) => Err(refused(error.to_string())),
    }
}

fn refused(what: String) -> ClientError {
    ClientError::Tls { what }
}
