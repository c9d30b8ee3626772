//! Encrypted connections and logins.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use millstream_broker::security::{Principal, TlsFiles};
use millstream_broker::{ListenerConfig, SecurityConfig};
use millstream_client::{
    Acl, AclOperation, Client, ClientConfig, ClientError, Consumer, DeliveryPath, Hash,
    LocalConfig, LocalSource, Login, Mechanism, PatternType, Permission, ResourceType, Start, Tls,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use tempfile::TempDir;

use crate::consuming::{place, values};
use crate::push::{next, pushed};
use crate::push_paths::path_of;
use crate::support::{Node, produce};

/// An authority, and the certificates that it has signed: of a server, and of the user `CN=alice`.
struct Pki {
    folder: TempDir,
    authority: String,
    /// The certificate and the key of the user.
    user: [String; 2],
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
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alice");
        let user_key = KeyPair::generate().unwrap();
        let user = params.signed_by(&user_key, &authority).unwrap();
        let pki = Pki {
            folder: tempfile::tempdir().unwrap(),
            authority: authority.pem(),
            user: [user.pem(), user_key.serialize_pem()],
        };
        fs::write(pki.path("authority.pem"), &pki.authority).unwrap();
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
fn the_error_for_a_certificate_of_an_old_version_does_not_blame_the_authorities() {
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
async fn connections_are_encrypted_with_servers_that_the_authority_has_signed() {
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
async fn memory_is_shared_with_users_that_log_in_on_the_local_socket() {
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

/// The client presents a certificate to the listener, and the local socket has no TLS. The error claimed that the
/// socket belonged to another server, on another machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_socket_that_needs_a_login_is_not_reported_as_another_server() {
    let pki = Pki::new();
    let node = Node::with_user("alice", "secret", |config| {
        config.tls = Some(TlsFiles {
            authorities: Some(pki.path("authority.pem")),
            ..pki.files()
        });
        config.security.authentication = true;
        config.security.super_users = Principal::user("CN=alice").into_iter().collect();
    });
    node.create("t", 1);
    let tls = Tls::new(pki.authority.as_bytes()).unwrap();
    let [user, key] = pki.user.each_ref().map(|pem| pem.as_bytes());
    let tls = tls.with_certificate(user, key).unwrap();
    let client = client(&node, |config| config.tls = Some(tls));
    produce(&client, "t", ["value".to_owned()]).await;
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::Earliest)]);
    let refused = client
        .subscribe_local(&LocalConfig::default(), &[source])
        .await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("log in first"), "{error}");
    assert!(!error.contains("another machine"), "{error}");
    // A consumer goes on over the network.
    assert_eq!(path_of(&client, pushed()).await, DeliveryPath::Pushed);
}

/// A node with a local socket and two listeners, of which the first asks for a login; and a client of each.
async fn node_with_two_listeners(super_users: &[&str]) -> (Node, [Client; 2]) {
    let node = Node::with_user("alice", "secret", |config| {
        let users = super_users.iter().filter_map(|name| Principal::user(name));
        config.security.super_users = users.collect();
        let listeners = ["SASL_PLAINTEXT", "PLAINTEXT"].map(|protocol| ListenerConfig {
            protocol: Some(protocol.parse().unwrap()),
            ..ListenerConfig::new(config.listeners[0].address)
        });
        config.listeners = listeners.into();
    });
    let to = |listener: usize| ClientConfig::new(node.addresses()[listener].to_string());
    let mut with_login = to(0);
    with_login.login = Some(Login {
        mechanism: Mechanism::Scram(Hash::Sha256),
        user: "alice".to_owned(),
        password: "secret".to_owned(),
    });
    let [alice, anonymous] = [with_login, to(1)].map(Client::new);
    node.create("t", 1);
    produce(&alice, "t", ["value".to_owned()]).await;
    (node, [alice, anonymous])
}

/// The local socket asked for a login wherever a listener did.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_shared_with_and_without_login_if_one_listener_asks_for_it() {
    let (_node, clients) = node_with_two_listeners(&["alice", "ANONYMOUS"]).await;
    for client in &clients {
        assert_eq!(path_of(client, pushed()).await, DeliveryPath::Shared);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_rules_apply_to_anonymous_clients_of_the_local_socket() {
    let (_node, [alice, anonymous]) = node_with_two_listeners(&["alice"]).await;
    let may_read = Acl {
        resource: ResourceType::Stream,
        name: "t".to_owned(),
        pattern: PatternType::Literal,
        principal: "User:ANONYMOUS".to_owned(),
        host: "*".to_owned(),
        operation: AclOperation::Read,
        permission: Permission::Allow,
    };
    alice.create_acl(&may_read).await.unwrap();
    assert_eq!(path_of(&alice, pushed()).await, DeliveryPath::Shared);
    assert_eq!(path_of(&anonymous, pushed()).await, DeliveryPath::Pushed);
    let source = LocalSource::Partitions(vec![(place("t", 0), Start::Earliest)]);
    let refused = anonymous
        .subscribe_local(&LocalConfig::default(), &[source])
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, ClientError::NotShared { why, .. } if why.contains("every stream")),
        "{refused}"
    );
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
    let refused = client(&node, |_| {}).streams("").await;
    assert!(refused.unwrap_err().to_string().contains("log in first"));
    // A user without the right to set passwords gets an error.
    let scram = login(Mechanism::Scram(Hash::Sha512), "secret");
    let refused = scram
        .set_password("bob", Hash::Sha256, "x")
        .await
        .unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused}");
}
