//! Logins by SASL: a client connects with the right password, or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_base::SystemRandom;
use millstream_broker::{BrokerConfig, set_password};
use millstream_log::Log;
use millstream_wire::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use millstream_wire::messages::{
    AlterUserScramCredentialsRequest, ApiVersionsRequest, DescribeUserScramCredentialsRequest,
    MetadataRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use millstream_wire::sasl::{
    Client, Hash, Iterations, MESSAGE_BYTES_MAX, Mechanism, NONCE_BYTES, Nonce, Progress,
    SaltedPassword,
};
use millstream_wire::{ApiKey, ResponseError};

use crate::support::{Connection, Node, ask, text};

/// The super user.
pub const ADMIN: (&str, &str) = ("admin", "admin's secret");

/// Starts a server where clients have to log in, and `admin` may do everything.
pub fn guarded() -> Node {
    Node::on(tempfile::tempdir().unwrap(), add_admin, guard)
}

pub fn guard(config: &mut BrokerConfig) {
    config.security.authentication = true;
    let admin = "User:admin".parse().unwrap();
    config.security.super_users.insert(admin);
}

pub fn add_admin(log: &Log) {
    let (user, password) = ADMIN;
    let clock = Arc::clone(log.clock());
    set_password(log, clock, Arc::new(SystemRandom), user, password).unwrap();
}

fn nonce() -> Nonce {
    Nonce::from_random(&[7; NONCE_BYTES])
}

impl Connection {
    /// Chooses a mechanism; returns the error.
    fn shake_hands(&mut self, version: i16, mechanism: &str) -> i16 {
        let request = SaslHandshakeRequest::default().with_mechanism(text(mechanism));
        ask!(self, SaslHandshake, version, request).error_code
    }

    /// Logs in; on failure, returns the error.
    pub fn try_log_in(
        &mut self,
        mechanism: Mechanism,
        (user, password): (&str, &str),
    ) -> Result<(), (i16, String)> {
        assert_eq!(self.shake_hands(1, mechanism.name()), 0);
        let (mut client, mut bytes) = Client::start(mechanism, user, password, &nonce()).unwrap();
        loop {
            let request = SaslAuthenticateRequest::default().with_auth_bytes(bytes);
            let answer = ask!(self, SaslAuthenticate, 2, request);
            if answer.error_code != 0 {
                return Err((answer.error_code, answer.error_message.unwrap().to_string()));
            }
            match client.answer(&answer.auth_bytes).unwrap() {
                Progress::Send(next, message) => (client, bytes) = (next, message),
                Progress::Done => return Ok(()),
            }
        }
    }

    pub fn log_in(mut self, user: (&str, &str)) -> Connection {
        let mechanism = Mechanism::Scram(Hash::Sha256);
        self.try_log_in(mechanism, user).unwrap();
        self
    }

    /// Sets a user's password over the network; returns the error.
    pub fn set_password(&mut self, (user, password): (&str, &str)) -> i16 {
        let (salt, iterations) = (b"some salt", Iterations(4096));
        let salted = SaltedPassword::new(Hash::Sha256, password, salt, iterations);
        let upsertion = ScramCredentialUpsertion::default()
            .with_name(text(user))
            .with_mechanism(1)
            .with_iterations(4096)
            .with_salt(Bytes::from_static(salt))
            .with_salted_password(Bytes::copy_from_slice(salted.as_bytes()));
        let request = AlterUserScramCredentialsRequest::default().with_upsertions(vec![upsertion]);
        ask!(self, AlterUserScramCredentials, 0, request).results[0].error_code
    }

    /// Returns whether the other side has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.receive_frame().is_none()
    }
}

#[test]
fn the_right_password_logs_in() {
    let node = guarded();
    for mechanism in Mechanism::PASSWORDS {
        let mut client = node.connect();
        // Every client gets this answer.
        let versions = ask!(client, ApiVersions, 3, ApiVersionsRequest::default());
        assert_eq!(versions.error_code, 0);
        client.try_log_in(mechanism, ADMIN).unwrap();
        client.create_topic(&format!("t{mechanism}"), 1);
    }
}

#[test]
fn a_wrong_password_is_refused_and_closes_the_connection() {
    let node = guarded();
    for mechanism in Mechanism::PASSWORDS {
        for user in [("admin", "guess"), ("unknown", "admin's secret")] {
            let mut client = node.connect();
            let (code, message) = client.try_log_in(mechanism, user).unwrap_err();
            assert_eq!(code, ResponseError::SaslAuthenticationFailed.code());
            assert!(message.starts_with("Authentication failed"), "{message}");
            assert!(client.is_closed());
        }
    }
}

#[test]
fn a_request_without_a_login_is_refused_and_closes_the_connection() {
    let node = guarded();
    let mut client = node.connect();
    let request = MetadataRequest::default()
        .with_topics(Some(vec![Default::default()]))
        .with_allow_auto_topic_creation(true);
    let answer = ask!(client, Metadata, 12, request);
    assert_eq!(
        answer.topics[0].error_code,
        ResponseError::IllegalSaslState.code()
    );
    assert!(client.is_closed());
    // An unfinished login does not count.
    let mut client = node.connect();
    assert_eq!(client.shake_hands(1, "SCRAM-SHA-256"), 0);
    client.send(12, MetadataRequest::default());
    client.receive(ApiKey::Metadata, 12);
    assert!(client.is_closed());
}

/// The fields would take memory from those of clients that have logged in.
#[test]
fn a_request_with_many_fields_is_not_decoded_before_a_login() {
    let node = guarded();
    let many = MetadataRequest::default().with_topics(Some(vec![Default::default(); 2000]));
    let mut client = node.connect();
    // It is whole, and stands behind a request that is answered.
    client.send(3, ApiVersionsRequest::default());
    client.send(12, many);
    client.receive(ApiKey::ApiVersions, 3);
    assert!(client.is_closed());
}

#[test]
fn the_longest_message_of_a_login_is_read() {
    let node = guarded();
    let mut client = node.connect();
    assert_eq!(client.shake_hands(1, "PLAIN"), 0);
    let message = Bytes::from(vec![b'a'; MESSAGE_BYTES_MAX]);
    let request = SaslAuthenticateRequest::default().with_auth_bytes(message);
    let answer = ask!(client, SaslAuthenticate, 2, request);
    let refused = ResponseError::SaslAuthenticationFailed.code();
    assert_eq!(answer.error_code, refused);
}

#[test]
fn an_unknown_mechanism_is_answered_with_the_known_ones() {
    let node = guarded();
    let mut client = node.connect();
    let request = SaslHandshakeRequest::default().with_mechanism("GSSAPI".into());
    let answer = ask!(client, SaslHandshake, 1, request);
    assert_eq!(
        answer.error_code,
        ResponseError::UnsupportedSaslMechanism.code()
    );
    let names: Vec<&str> = answer.mechanisms.iter().map(|name| &**name).collect();
    assert_eq!(names, ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]);
    assert!(client.is_closed());
}

#[test]
fn the_oldest_clients_log_in_with_bare_messages() {
    let node = guarded();
    for (mechanism, is_right) in [("PLAIN", true), ("PLAIN", false), ("SCRAM-SHA-512", true)] {
        let mut client = node.connect();
        assert_eq!(client.shake_hands(0, mechanism), 0);
        let (user, password) = (ADMIN.0, if is_right { ADMIN.1 } else { "guess" });
        let mechanism = mechanism.parse().unwrap();
        let (mut login, mut bytes) = Client::start(mechanism, user, password, &nonce()).unwrap();
        let is_let_in = loop {
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            client.send_bytes(&[&length, &bytes[..]].concat());
            let Some(answer) = client.receive_frame() else {
                break false;
            };
            match login.answer(&answer).unwrap() {
                Progress::Send(next, message) => (login, bytes) = (next, message),
                Progress::Done => break true,
            }
        };
        assert_eq!(is_let_in, is_right);
        if is_right {
            client.create_topic(&format!("bare-{mechanism}"), 1);
        }
    }
}

#[test]
fn large_requests_are_refused_before_a_login() {
    let node = guarded();
    let mut client = node.connect();
    // One that announces a little more than 64 KiB.
    let began = Instant::now();
    client.send_bytes(&((64u32 << 10) + 1).to_be_bytes());
    assert!(client.is_closed());
    // One that is accepted is given up after five seconds.
    assert!(began.elapsed() < Duration::from_secs(4));
    let mut client = node.connect().log_in(ADMIN);
    client.create_topic("t", 1);
    client.produce("t", 0, &["x".repeat(2 << 20).as_str()]);
}

#[test]
fn users_are_created_and_removed_over_the_network_and_survive_a_restart() {
    let node = guarded();
    let alice = ("alice", "alice's secret");
    let mut admin = node.connect().log_in(ADMIN);
    assert_eq!(admin.set_password(alice), 0);
    drop(node.connect().log_in(alice));
    // A client without the right cannot create users.
    let mut client = node.connect().log_in(alice);
    let denied = ResponseError::ClusterAuthorizationFailed.code();
    assert_eq!(client.set_password(("bob", "bob's secret")), denied);
    let answer = ask!(
        client,
        DescribeUserScramCredentials,
        0,
        DescribeUserScramCredentialsRequest::default()
    );
    assert_eq!((answer.error_code, answer.results.len()), (denied, 0));

    let node = Node::on(node.stop(), |_| {}, guard);
    drop(node.connect().log_in(alice));
    let mut admin = node.connect().log_in(ADMIN);
    let answer = ask!(
        admin,
        DescribeUserScramCredentials,
        0,
        DescribeUserScramCredentialsRequest::default()
    );
    let users: Vec<&str> = answer.results.iter().map(|user| &*user.user).collect();
    assert_eq!(users, ["admin", "alice"]);
    let deletion = ScramCredentialDeletion::default()
        .with_name("alice".into())
        .with_mechanism(1);
    let request = AlterUserScramCredentialsRequest::default().with_deletions(vec![deletion]);
    let answer = ask!(admin, AlterUserScramCredentials, 0, request);
    assert_eq!(answer.results[0].error_code, 0);
    let mechanism = Mechanism::Scram(Hash::Sha256);
    assert!(node.connect().try_log_in(mechanism, alice).is_err());
}

#[test]
fn a_login_at_a_listener_without_logins_is_refused() {
    let node = Node::start();
    let mut client = node.connect();
    let error = client.shake_hands(1, "PLAIN");
    assert_eq!(error, ResponseError::IllegalSaslState.code());
    // The client goes on unharmed.
    client.create_topic("t", 1);
}

/// Returns a connection from another address of this machine.
pub fn connect_from(node: &Node, from: [u8; 4]) -> Connection {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((from, 0).into()).unwrap();
        socket.connect(node.address()).await.unwrap()
    });
    let stream = stream.into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    let tcp = stream.try_clone().unwrap();
    Connection::over(Box::new(stream), tcp)
}

#[test]
fn concurrent_guesses_wait_in_turn_and_delay_no_other_login() {
    let node = guarded();
    let carol = ("carol", "carol's secret");
    assert_eq!(node.connect().log_in(ADMIN).set_password(carol), 0);
    let guess = |mechanism| {
        let refused = node
            .connect()
            .try_log_in(mechanism, ("admin", "guess"))
            .unwrap_err();
        assert_eq!(refused.0, ResponseError::SaslAuthenticationFailed.code());
    };
    guess(Mechanism::Plain);
    let began = Instant::now();
    let unanswered = AtomicUsize::new(6);
    thread::scope(|scope| {
        for number in 0..6 {
            let (guess, unanswered) = (&guess, &unanswered);
            scope.spawn(move || {
                guess(Mechanism::PASSWORDS[number % 3]);
                unanswered.fetch_sub(1, Ordering::Relaxed);
            });
        }
        // Another user from the same address, and the same user from another address.
        node.connect().log_in(carol);
        connect_from(&node, [127, 0, 0, 2]).log_in(ADMIN);
        assert!(unanswered.load(Ordering::Relaxed) > 0);
    });
    // 0.1 + 0.2 + 0.4 + 0.8 + 1.6 + 3.2 seconds.
    assert!(
        began.elapsed() > Duration::from_secs(6),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(node.broker().status().logins_refused, 7);
}
