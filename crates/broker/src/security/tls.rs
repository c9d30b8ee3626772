//! TLS: certificates, keys, and the users of client certificates.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, AlertDescription, RootCertStore, ServerConfig};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::BasicConstraints;

use super::principal::Principal;

/// The largest file of certificates or keys, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of certificates and keys, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, followed by those of the authorities between it and the root.
    pub certificates: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// Clients may show certificates that one of these authorities has signed; without this, the
    /// server asks for none.
    pub authorities: Option<PathBuf>,
}

/// The reason for which the files do not make a TLS server. No message repeats their contents.
#[derive(thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// A file is too large.
    #[error("{}: larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file has wrong contents.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// Key and certificate do not belong together.
    #[error("{}: this is not the key of the first certificate in {}", key.display(), certificates.display())]
    OtherKey {
        /// The file with the key.
        key: PathBuf,
        /// The file with the certificates.
        certificates: PathBuf,
    },
}

millstream_base::debug_as_display!(TlsError);

impl TlsError {
    fn content(path: &Path, what: impl ToString) -> Self {
        TlsError::Content {
            path: path.to_owned(),
            what: what.to_string(),
        }
    }
}

/// A server's side of TLS, which follows its files when they are renewed.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    /// The file contents that the current config was made of.
    contents: Contents,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file is missing or has wrong contents.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let contents = Contents::read(&files)?;
        let current = Current {
            config: Arc::new(server_config(&files, &contents)?),
            contents,
        };
        let current = RwLock::new(current);
        Ok(Tls { files, current })
    }

    /// Returns the config for the next connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.config)
    }

    /// Reads the files again, and returns whether they have changed; to be called from time to
    /// time.
    ///
    /// # Errors
    /// When the files have wrong contents, perhaps because not all are renewed yet. The previous
    /// contents stay in use.
    pub fn refresh(&self) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.files)?;
        let is_same = {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            current.contents == contents
        };
        if is_same {
            return Ok(false);
        }
        let config = Arc::new(server_config(&self.files, &contents)?);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        *current = Current { config, contents };
        Ok(true)
    }
}

/// Returns the user of a certificate that TLS has checked: `User:` and the subject, as in
/// `User:CN=alice,O=Example`. `None` if the certificate has no subject that can be a user.
pub fn principal_of(certificate: &CertificateDer<'_>) -> Option<Principal> {
    let certificate = Certificate::from_der(certificate).ok()?;
    Principal::user(&certificate.tbs_certificate().subject().to_string())
}

/// Returns which side ended a TLS handshake, and why.
pub fn handshake_failure(error: &io::Error) -> String {
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref());
    match of_tls {
        Some(rustls::Error::AlertReceived(alert)) if is_about_certificates(*alert) => {
            format!("the client refuses the broker's certificate: TLS alert {alert:?}")
        }
        Some(rustls::Error::AlertReceived(alert)) => {
            format!("the client ends the TLS handshake: alert {alert:?}")
        }
        Some(rustls::Error::InvalidCertificate(why)) => {
            format!("the client's certificate is refused: {why}")
        }
        Some(rustls::Error::InvalidMessage(_)) => {
            "the client does not speak TLS, and this listener does".to_owned()
        }
        Some(error) => format!("the TLS handshake failed: {error}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => {
            "the client closed the connection during the TLS handshake".to_owned()
        }
        None => format!("the connection broke during the TLS handshake: {error}"),
    }
}

/// Returns whether a client sends this alert because of the broker's certificate.
fn is_about_certificates(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
    )
}

/// Reads the certificates of authorities from a PEM file.
///
/// # Errors
/// When the file cannot be read, or has no certificates.
pub fn load_roots(path: &Path) -> Result<RootCertStore, TlsError> {
    roots(path, &read(path)?)
}

/// The bytes of the files. The key is secret.
#[derive(PartialEq, Eq)]
struct Contents {
    certificates: Vec<u8>,
    key: Vec<u8>,
    authorities: Option<Vec<u8>>,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Contents(…)")
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let authorities = files.authorities.as_deref();
        Ok(Contents {
            certificates: read(&files.certificates)?,
            key: read(&files.key)?,
            authorities: authorities.map(read).transpose()?,
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error| {
        let path = path.to_owned();
        TlsError::Read { path, error }
    };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    // The size of a pipe or a device is not known beforehand.
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let path = path.to_owned();
        return Err(TlsError::TooLarge { path });
    }
    Ok(bytes)
}

fn server_config(files: &TlsFiles, contents: &Contents) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificates, &contents.certificates)?;
    let key = private_key(&files.key, &contents.key)?;
    warn_of_authority(&files.certificates, &chain[0]);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::content(&files.certificates, error))?;
    let authorities = files
        .authorities
        .as_ref()
        .zip(contents.authorities.as_ref());
    let builder = match authorities {
        None => builder.with_no_client_auth(),
        Some((path, bytes)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(
                Arc::new(roots(path, bytes)?),
                provider,
            );
            // Clients without a certificate can log in otherwise.
            let verifier = verifier.allow_unauthenticated().build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| TlsError::content(path, error))?,
            )
        }
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|error| refused(files, error))?;
    if authorities.is_some() {
        // A resumed session takes over the client's certificate, and does not check again whether it has expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(config)
}

/// Warns of a certificate that clients written in Rust, ours among them, refuse from a server;
/// other clients accept it.
fn warn_of_authority(path: &Path, certificate: &CertificateDer<'_>) {
    let is_authority = || {
        let certificate = Certificate::from_der(certificate).ok()?;
        let constraints = certificate
            .tbs_certificate()
            .get_extension::<BasicConstraints>();
        Some(constraints.ok()??.1.ca)
    };
    if is_authority() == Some(true) {
        tracing::warn!(
            "{}: the certificate is that of an authority (CA:TRUE), as `openssl req -x509` makes it by itself, and clients in \
             Rust refuse it: make it with -addext basicConstraints=critical,CA:FALSE",
            path.display()
        );
    }
}

fn refused(files: &TlsFiles, error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::OtherKey {
            key: files.key.clone(),
            certificates: files.certificates.clone(),
        },
        // The library reports a key that it cannot use in this way.
        rustls::Error::General(what) => TlsError::content(&files.key, what),
        error => TlsError::content(&files.certificates, error),
    }
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let certificates = certificates.map_err(|error| TlsError::content(path, error))?;
    if certificates.is_empty() {
        return Err(TlsError::content(path, "no certificate in PEM was found"));
    }
    Ok(certificates)
}

fn private_key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        pem::Error::NoItemsFound => {
            let what = "no private key in PEM was found; keys with a password are not supported";
            TlsError::content(path, what)
        }
        error => TlsError::content(path, error),
    })
}

fn roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, bytes)? {
        let added = roots.add(certificate);
        added.map_err(|error| TlsError::content(path, error))?;
    }
    Ok(roots)
}
