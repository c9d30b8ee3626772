//! TLS: connections are encrypted, and a certificate names the client's user.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_broker::security::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned,
    SupportedProtocolVersion,
};

use crate::logins::{ADMIN, add_admin, guard};
use crate::support::{Connection, Node, TIME_MAX, values};

/// An authority, and the certificates of a server and of clients.
pub struct Pki {
    folder: TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    pub fn new() -> Pki {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pki = Pki {
            folder: tempfile::tempdir().unwrap(),
            authority: CertifiedIssuer::self_signed(params, key).unwrap(),
        };
        std::fs::write(pki.path("authority.pem"), pki.authority.pem()).unwrap();
        pki.issue("server");
        pki
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn issue(&self, name: &str) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name = Default::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.authority).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            certificates: self.path("server.pem"),
            key: self.path("server.key"),
            authorities: Some(self.path("authority.pem")),
        }
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()
    }

    /// Returns a connection by TLS, with a certificate of this name if one is given.
    fn connect(&self, node: &Node, name: Option<&str>) -> Connection {
        let stream = tls_stream(node, self.client_config(name, ALL_VERSIONS));
        let tcp = stream.sock.try_clone().unwrap();
        Connection::over(Box::new(stream), tcp)
    }

    fn client_config(
        &self,
        name: Option<&str>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate("authority")).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match name {
            None => builder.with_no_client_auth(),
            Some(name) => {
                let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}.key"))).unwrap();
                let chain = vec![self.certificate(name)];
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }
}

fn tls_stream(node: &Node, config: Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(config, name).unwrap();
    let tcp = TcpStream::connect(node.address()).unwrap();
    tcp.set_read_timeout(Some(TIME_MAX)).unwrap();
    StreamOwned::new(tls, tcp)
}

/// Large answers and many small ones come through whole.
fn write_and_read(client: &mut Connection, topic: &str) {
    client.create_topic(topic, 1);
    let large = "x".repeat(3 << 20);
    client.produce(topic, 0, &[&large, "small"]);
    let fetched = client.fetch(topic, 0, 0);
    assert_eq!(values(&fetched), [large.as_str(), "small"]);
}

#[test]
fn records_go_through_tls() {
    let pki = Pki::new();
    let node = Node::with(|config| config.tls = Some(pki.files()));
    write_and_read(&mut pki.connect(&node, None), "t");
    // A client that does not speak TLS gets no answer, and does no harm.
    let mut plain = node.connect();
    plain.send_bytes(&[0, 0, 0, 8, 0, 18, 0, 0, 0, 0, 0, 1]);
    while plain.receive_some().is_some() {}
    write_and_read(&mut pki.connect(&node, None), "u");
}

#[test]
fn a_client_certificate_logs_in() {
    let pki = Pki::new();
    pki.issue("carol");
    let node = Node::on(tempfile::tempdir().unwrap(), add_admin, |config| {
        guard(config);
        config.tls = Some(pki.files());
        let carol = "User:CN=carol".parse().unwrap();
        config.security.super_users.insert(carol);
    });
    write_and_read(&mut pki.connect(&node, Some("carol")), "t");
    // A client without a certificate can log in with a password.
    write_and_read(&mut pki.connect(&node, None).log_in(ADMIN), "u");
    // The server refuses a certificate that another authority has signed.
    let other = Pki::new();
    other.issue("carol");
    for file in ["carol.pem", "carol.key"] {
        std::fs::copy(other.path(file), pki.path(file)).unwrap();
    }
    let mut stranger = pki.connect(&node, Some("carol"));
    let frame = stranger.frame(0, millstream_wire::messages::ApiVersionsRequest::default());
    assert!(!stranger.try_send(&frame) || stranger.is_broken());
}

/// Asks for the versions over two connections of one client; returns the kind of the second one's handshake.
fn second_handshake(node: &Node, config: &Arc<ClientConfig>) -> Option<HandshakeKind> {
    let ask = |config| {
        let mut stream = tls_stream(node, config);
        // ApiVersions in version 0, without a name.
        let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255];
        stream.write_all(&request).unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        stream.conn.handshake_kind()
    };
    ask(Arc::clone(config));
    ask(Arc::clone(config))
}

/// A resumed session would let in a client whose certificate has expired since.
#[test]
fn sessions_are_resumed_only_where_no_client_certificates_are_checked() {
    let pki = Pki::new();
    pki.issue("carol");
    let checks = Node::with(|config| config.tls = Some(pki.files()));
    let asks_for_none = Node::with(|config| {
        config.tls = Some(TlsFiles {
            authorities: None,
            ..pki.files()
        });
    });
    for version in ALL_VERSIONS {
        let config = |name| pki.client_config(name, &[*version]);
        let full = second_handshake(&checks, &config(Some("carol")));
        assert_eq!(full, Some(HandshakeKind::Full), "{version:?}");
        let resumed = second_handshake(&asks_for_none, &config(None));
        assert_eq!(resumed, Some(HandshakeKind::Resumed), "{version:?}");
    }
}

#[test]
fn silent_tls_connections_do_not_block_others_and_are_closed() {
    let pki = Pki::new();
    let node = Node::with(|config| config.tls = Some(pki.files()));
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(node.address()).unwrap())
        .collect();
    write_and_read(&mut pki.connect(&node, None), "t");
    // They are let go before long.
    let first = &silent[0];
    first
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    assert_eq!((&*first).read(&mut [0; 1]).unwrap(), 0);
}
