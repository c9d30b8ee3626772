//! TLS: handshakes in memory, and files with wrong contents.

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::{ByteSize, SystemRandom};
use millstream_log::{Log, LogConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

use super::*;
use crate::security::service::SecurityService;

/// An authority, and files that it has signed.
struct Pki {
    folder: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let pki = Pki {
            folder: tempfile::tempdir().unwrap(),
            authority: CertifiedIssuer::self_signed(params, key).unwrap(),
        };
        pki.write("authority.pem", &pki.authority.pem());
        pki.issue("server", &[(DnType::CommonName, "server")]);
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Creates a certificate for localhost and its key: `name.pem` and `name.key`.
    fn issue(&self, name: &str, subject: &[(DnType, &str)]) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = Default::default();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn files(&self, authorities: Option<PathBuf>) -> TlsFiles {
        TlsFiles {
            certificates: self.path("server.pem"),
            key: self.path("server.key"),
            authorities,
        }
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()
    }

    /// Returns a client that trusts the authority, and may show a certificate.
    fn client(&self, name: Option<&str>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("authority")).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                builder
                    .with_client_auth_cert(vec![self.certificate(name)], key)
                    .unwrap()
            }
        }
    }
}

/// Returns the certificates that server and client have seen of each other; `None` if either
/// refused.
fn shake_hands(tls: &Tls, client: ClientConfig) -> Option<[Option<CertificateDer<'static>>; 2]> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
    let mut server = ServerConnection::new(tls.config()).unwrap();
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() || client.wants_write() {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().ok()?;
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().ok()?;
        }
    }
    let first = |certificates: Option<&[CertificateDer<'_>]>| {
        certificates.map(|certificates| certificates[0].clone().into_owned())
    };
    Some([
        first(server.peer_certificates()),
        first(client.peer_certificates()),
    ])
}

#[test]
fn clients_accept_the_certificate_of_the_server() {
    let pki = Pki::new();
    let tls = Tls::load(pki.files(None)).unwrap();
    let [client, server] = shake_hands(&tls, pki.client(None)).unwrap();
    assert_eq!(client, None);
    assert_eq!(server, Some(pki.certificate("server")));
    // A client that trusts another authority refuses the server.
    assert!(shake_hands(&tls, Pki::new().client(None)).is_none());
}

#[test]
fn the_subject_of_a_client_certificate_is_its_principal() {
    let pki = Pki::new();
    let subject = [
        (DnType::CountryName, "CZ"),
        (DnType::OrganizationName, "Example, Inc"),
        (DnType::CommonName, "alice"),
    ];
    pki.issue("alice", &subject);
    let authorities = pki.path("authority.pem");
    let tls = Tls::load(pki.files(Some(authorities))).unwrap();
    let [client, _] = shake_hands(&tls, pki.client(Some("alice"))).unwrap();
    let principal = principal_of(&client.unwrap()).unwrap();
    assert_eq!(principal.to_string(), r"User:CN=alice,O=Example\, Inc,C=CZ");
    let [client, _] = shake_hands(&tls, pki.client(None)).unwrap();
    assert_eq!(client, None);

    // Another authority signed this client's certificate.
    let other = Pki::new();
    other.issue("alice", &subject);
    for file in ["alice.pem", "alice.key"] {
        fs::copy(other.path(file), pki.path(file)).unwrap();
    }
    assert!(shake_hands(&tls, pki.client(Some("alice"))).is_none());
}

#[test]
fn a_certificate_that_logs_in_no_user_is_warned_of() {
    let pki = Pki::new();
    pki.issue("nobody", &[]);
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let clock = Arc::clone(log.clock());
    let (settings, random) = (SecurityConfig::default(), Arc::new(SystemRandom));
    let security = SecurityService::open(&log, &settings, clock, random).unwrap();
    let from = "10.0.0.1:50000".parse().unwrap();
    let lines_about = |name| {
        let certificate = pki.certificate(name);
        lines_of(|| drop(security.log_in_by(&certificate, from)))
    };
    let [warned] = &lines_about("nobody")[..] else {
        panic!("no warning");
    };
    assert!(warned.contains("no subject that can be a user"), "{warned}");
    assert!(warned.contains("10.0.0.1:50000"), "{warned}");
    let [audited] = &lines_about("server")[..] else {
        panic!("no audit line");
    };
    assert!(audited.contains("User:CN=server"), "{audited}");
}

#[test]
fn certificates_without_a_subject_name_no_principal() {
    let pki = Pki::new();
    pki.issue("nobody", &[]);
    assert_eq!(principal_of(&pki.certificate("nobody")), None);
    pki.issue("line", &[(DnType::CommonName, "a\nb")]);
    let principal = principal_of(&pki.certificate("line"));
    assert!(principal.is_none_or(|principal| !principal.name().contains('\n')));
    assert_eq!(principal_of(&CertificateDer::from_slice(b"garbage")), None);
    let mut damaged = pki.certificate("line").to_vec();
    for index in 0..damaged.len() {
        damaged[index] ^= 0xff;
        let _ = principal_of(&CertificateDer::from_slice(&damaged));
        damaged[index] ^= 0xff;
    }
}

#[test]
fn renewed_files_are_read_again() {
    let pki = Pki::new();
    let tls = Tls::load(pki.files(None)).unwrap();
    assert!(!tls.refresh().unwrap());
    let before = pki.certificate("server");

    // The certificate is renewed already, its key is not yet.
    let old_key = fs::read_to_string(pki.path("server.key")).unwrap();
    pki.issue("server", &[(DnType::CommonName, "server")]);
    let key = fs::read_to_string(pki.path("server.key")).unwrap();
    pki.write("server.key", &old_key);
    assert!(matches!(tls.refresh(), Err(TlsError::OtherKey { .. })));
    let [_, server] = shake_hands(&tls, pki.client(None)).unwrap();
    assert_eq!(server, Some(before.clone()));

    pki.write("server.key", &key);
    assert!(tls.refresh().unwrap());
    let [_, server] = shake_hands(&tls, pki.client(None)).unwrap();
    assert_eq!(server, Some(pki.certificate("server")));
    assert_ne!(server, Some(before));
}

#[test]
fn errors_name_the_file_and_the_fault() {
    #[track_caller]
    fn check(files: TlsFiles, path: &Path, what: &str) {
        let error = Tls::load(files).unwrap_err();
        let cause = error.source().map(ToString::to_string);
        let text = format!("{error}: {}", cause.unwrap_or_default());
        let path = format!("{}: ", path.display());
        assert!(text.contains(&path) && text.contains(what), "{text}");
    }
    let pki = Pki::new();
    let files = || pki.files(None);
    let server = fs::read_to_string(pki.path("server.pem")).unwrap();
    let key = fs::read_to_string(pki.path("server.key")).unwrap();
    pki.write("empty", "");
    pki.write("cut", &server[..server.len() / 2]);
    pki.write("large", &" ".repeat((1 << 20) + 1));
    pki.write(
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n",
    );
    pki.issue("other", &[(DnType::CommonName, "other")]);
    let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
    pki.write("encrypted", &encrypted);
    pki.write(
        "nonsense.key",
        "-----BEGIN PRIVATE KEY-----\nYWJj\n-----END PRIVATE KEY-----\n",
    );

    for (name, what) in [
        ("missing", "No such file"),
        ("", "directory"),
        ("empty", "no certificate"),
        ("server.key", "no certificate"),
        ("large", "larger than 1048576 bytes"),
        ("cut", ""),
        ("nonsense", ""),
    ] {
        let path = pki.path(name);
        let certificates = path.clone();
        check(
            TlsFiles {
                certificates,
                ..files()
            },
            &path,
            what,
        );
        let authorities = Some(path.clone());
        let files = TlsFiles {
            authorities,
            ..files()
        };
        check(files, &path, what);
    }
    for (name, what) in [
        ("missing", "No such file"),
        ("empty", "no private key"),
        ("server.pem", "no private key"),
        ("encrypted", "keys with a password are not supported"),
        ("nonsense.key", ""),
        ("other.key", "not the key of the first certificate in"),
    ] {
        let path = pki.path(name);
        let key = path.clone();
        check(TlsFiles { key, ..files() }, &path, what);
    }
    let printed = format!("{:?}", Tls::load(files()).unwrap());
    let secret = key.lines().nth(1).unwrap();
    assert!(
        !printed.contains(secret) && !printed.contains("key: ["),
        "{printed}"
    );
}
