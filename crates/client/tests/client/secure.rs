//! Encrypted connections and logins.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_broker::SecurityConfig;
use millstream_broker::security::{Principal, TlsFiles};
use millstream_client::{
    Client, ClientConfig, ClientError, Consumer, DeliveryPath, Hash, Login, Mechanism, Start, Tls,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

use crate::consuming::{place, values};
use crate::push::{next, pushed};
use crate::support::{Node, produce};

/// An authority, and a server's certificate that it has signed.
struct Pki {
    folder: TempDir,
    authority: String,
}

impl Pki {
    fn new() -> Pki {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        let authority = CertifiedIssuer::self_signed(params, key).unwrap();
        let names = ["localhost", "127.0.0.1"].map(str::to_owned);
        let params = CertificateParams::new(names.to_vec()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        let pki = Pki {
            folder: tempfile::tempdir().unwrap(),
            authority: authority.pem(),
        };
        fs::write(pki.path("server.pem"), certificate.pem()).unwrap();
        fs::write(pki.path("server.key"), key.serialize_pem()).unwrap();
        pki
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles {
            certificates: self.path("server.pem"),
            key: self.path("server.key"),
            authorities: None,
        }
    }
}

fn client(node: &Node, change: impl FnOnce(&mut ClientConfig)) -> Client {
    let mut config = ClientConfig::new(node.address().to_string());
    change(&mut config);
    Client::new(config)
}

fn pem(der: &[u8]) -> String {
    let body = BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n")
}

#[test]
fn a_certificate_of_an_old_version_is_not_blamed_on_the_authorities() {
    let pki = Pki::new();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![]).unwrap();
    let mut der = certificate.self_signed(&key).unwrap().der().to_vec();
    let version = [0xa0, 3, 2, 1, 2];
    let at = der.windows(5).position(|bytes| bytes == version).unwrap();
    // Version 1 is written as 0.
    der[at + 4] = 0;
    let tls = Tls::new(pki.authority.as_bytes()).unwrap();
    let shown = tls.with_certificate(pem(&der).as_bytes(), key.serialize_pem().as_bytes());
    let error = shown.unwrap_err().to_string();
    assert!(error.contains("X.509 version 3"), "{error}");
}

#[tokio::test]
async fn connections_are_encrypted_with_whom_the_authority_has_signed() {
    let pki = Pki::new();
    let node = Node::with(|config| config.tls = Some(pki.files()));
    node.create("t", 1);
    let believes = |authority: &str| {
        let tls = Tls::new(authority.as_bytes()).unwrap();
        client(&node, |config| config.tls = Some(tls))
    };
    produce(&believes(&pki.authority), "t", ["value".to_owned()]).await;
    assert_eq!(node.values("t", 0), ["value"]);
    let other = believes(&Pki::new().authority)
        .streams("")
        .await
        .unwrap_err();
    assert!(matches!(other, ClientError::Connect { .. }), "{other}");
    let plain = client(&node, |_| {}).streams("").await.unwrap_err();
    assert!(!matches!(plain, ClientError::Refused { .. }), "{plain}");
    assert!(matches!(Tls::new(b"garbage"), Err(ClientError::Tls { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_shared_with_who_logs_in_on_the_local_socket_too() {
    let pki = Pki::new();
    let node = Node::with_user("alice", "secret", |config| {
        config.tls = Some(pki.files());
        config.security.authentication = true;
        config.security.super_users = Principal::user("alice").into_iter().collect();
    });
    node.create("t", 1);
    let tls = Tls::new(pki.authority.as_bytes()).unwrap();
    let alice = client(&node, |config| {
        config.tls = Some(tls);
        config.login = Some(Login {
            mechanism: Mechanism::Scram(Hash::Sha256),
            user: "alice".to_owned(),
            password: "secret".to_owned(),
        });
    });
    produce(&alice, "t", ["value".to_owned()]).await;
    let places = [(place("t", 0), Start::Earliest)];
    let consumer = Consumer::assigned(&alice, pushed(), &places);
    let fetched = next(&mut consumer.await.unwrap()).await.unwrap();
    assert_eq!(fetched.path(), DeliveryPath::Shared);
    assert_eq!(values(&fetched), ["value"]);
}

#[tokio::test]
async fn every_mechanism_logs_in_and_wrong_passwords_do_not() {
    let node = Node::with_user("alice", "secret", |config| {
        config.security = SecurityConfig {
            authentication: true,
            ..SecurityConfig::default()
        };
    });
    let login = |mechanism, password: &str| {
        let login = Login {
            mechanism,
            user: "alice".to_owned(),
            password: password.to_owned(),
        };
        assert!(!format!("{login:?}").contains(password));
        client(&node, |config| config.login = Some(login))
    };
    for mechanism in Mechanism::PASSWORDS {
        login(mechanism, "secret").streams("").await.unwrap();
        let refused = login(mechanism, "guessed").streams("").await.unwrap_err();
        assert!(
            refused.to_string().contains("alice") || matches!(refused, ClientError::Login { .. })
        );
        assert!(!refused.to_string().contains("guessed"), "{refused}");
    }
    let nobody = client(&node, |_| {}).streams("").await;
    assert!(nobody.unwrap_err().to_string().contains("log in first"));
    // Who has not the right to set passwords is told.
    let scram = login(Mechanism::Scram(Hash::Sha512), "secret");
    let refused = scram
        .set_password("bob", Hash::Sha256, "x")
        .await
        .unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
}
