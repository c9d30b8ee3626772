//! No output of `Debug` or `Display` contains a secret.

use std::net::SocketAddr;

use millstream_wire::sasl::{Client, Mechanism, NONCE_BYTES, Nonce, PlainMessage};

use super::super::record::Change;
use super::*;

const PASSWORD: &str = "correct horse";

/// Returns the forms in which bytes may appear in output: as text, as numbers, in hexadecimal
/// digits.
fn forms(bytes: &[u8]) -> Vec<String> {
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let escaped = bytes.escape_ascii().to_string();
    vec![numbers.join(", "), hex.clone(), hex.to_uppercase(), escaped]
}

#[track_caller]
fn check(printed: &str) {
    let store = with_user("alice", PASSWORD, Hash::Sha256);
    let credential = store.users().credential("alice", Hash::Sha256).unwrap();
    let secrets = [
        PASSWORD.as_bytes(),
        &SECRET,
        credential.stored_key().as_bytes(),
        credential.server_key().as_bytes(),
    ];
    for secret in secrets {
        for form in forms(secret) {
            // The beginning of a key is too much already.
            let end = form.len().min(16);
            assert!(!printed.contains(&form[..end]), "{printed}");
        }
    }
}

#[test]
fn debug_and_display_hide_passwords() {
    let store = with_user("alice", PASSWORD, Hash::Sha256);
    let record = store.user_record(
        "bob",
        PASSWORD,
        Hash::Sha256,
        Iterations(4096),
        &[1; SALT_BYTES],
    );
    check(&format!("{store:?} {record:?} {:?}", store.snapshot()));
    check(&format!(
        "{:?} {:?}",
        Secret::from_random(SECRET),
        store.users().claimed("bob", Hash::Sha256)
    ));
}

/// At every step, and in every form of the password.
#[test]
fn messages_of_logins_hide_passwords() {
    let store = with_user("alice", PASSWORD, Hash::Sha256);
    let nonce = Nonce::from_random(&[1; NONCE_BYTES]);
    for mechanism in [Mechanism::Plain, Mechanism::Scram(Hash::Sha256)] {
        let plain = PlainMessage {
            authorization: "",
            user: "alice",
            password: PASSWORD,
        };
        let (_, scram) = Client::start(mechanism, "alice", PASSWORD, &nonce).unwrap();
        for message in [
            plain.to_bytes(),
            scram.to_vec(),
            PASSWORD.into(),
            b"\0\0\0correct horse".to_vec(),
        ] {
            let mut login = Authentication::new(Mechanism::PASSWORDS.into());
            let hello = millstream_wire::messages::SaslHandshakeRequest::default()
                .with_mechanism(mechanism.name().into());
            login.handshake(1, &hello);
            let result = login.message(store.users(), &nonce, &message);
            check(&format!("{login:?}"));
            if let Err(error) = result {
                check(&format!("{error:?} {error}"));
            }
        }
    }
}

#[test]
fn audit_lines_hide_passwords() {
    let from: SocketAddr = "10.0.0.1:50000".parse().unwrap();
    let alice = Principal::user("alice").unwrap();
    let pattern = (ResourceType::Topic, PatternType::Prefixed, "log-");
    let rule = acl(
        pattern,
        ("User:bob", "*"),
        (Permission::Allow, Operation::Read),
    );
    let long = "x".repeat(1000);
    for (identity, action, allowed, expected) in [
        (
            Identity::Known(&alice),
            AuditAction::LogIn(Some(Mechanism::Plain)),
            true,
            r#"allowed "User:alice" from 10.0.0.1:50000: log in by PLAIN"#,
        ),
        (
            Identity::Claimed("eve\nallowed \"User:root\"\u{202e}"),
            AuditAction::LogIn(None),
            false,
            r#"denied unverified "eve\nallowed \"User:root\"\u{202e}" from 10.0.0.1:50000: log in"#,
        ),
        (
            Identity::Claimed(&long),
            AuditAction::LogIn(None),
            false,
            &format!(
                r#"denied unverified "{}"… from 10.0.0.1:50000: log in"#,
                "x".repeat(200)
            ),
        ),
        (
            Identity::Known(&alice),
            AuditAction::Use(Operation::Alter, Resource::CLUSTER),
            false,
            r#"denied "User:alice" from 10.0.0.1:50000: Alter cluster "kafka-cluster""#,
        ),
        (
            Identity::Known(&alice),
            AuditAction::SetCredential("bob", Hash::Sha512),
            true,
            r#"allowed "User:alice" from 10.0.0.1:50000: set SCRAM-SHA-512 of user "bob""#,
        ),
        (
            Identity::Known(&alice),
            AuditAction::RemoveCredential("bob", Hash::Sha256),
            true,
            r#"allowed "User:alice" from 10.0.0.1:50000: remove SCRAM-SHA-256 of user "bob""#,
        ),
        (
            Identity::Known(&alice),
            AuditAction::AddAcl(&rule),
            true,
            r#"allowed "User:alice" from 10.0.0.1:50000: add rule allow "User:bob" from * to Read on prefixed topic "log-""#,
        ),
        (
            Identity::Known(&alice),
            AuditAction::RemoveAcl(&rule),
            true,
            r#"allowed "User:alice" from 10.0.0.1:50000: remove rule allow "User:bob" from * to Read on prefixed topic "log-""#,
        ),
    ] {
        let event = AuditEvent {
            identity,
            from,
            action,
            allowed,
        };
        assert_eq!(event.to_string(), expected);
        assert_eq!(event.to_string().lines().count(), 1);
    }
}

#[test]
fn changes_are_audited() {
    let mut store = with_user("alice", PASSWORD, Hash::Sha256);
    let pattern = (ResourceType::Group, PatternType::Literal, "*");
    let rule = acl(
        pattern,
        ("User:*", "::1"),
        (Permission::Deny, Operation::All),
    );
    let added = store.acl_record(&rule).unwrap().unwrap();
    store.apply(added.clone()).unwrap();
    let user = store.user_record(
        "alice",
        PASSWORD,
        Hash::Sha512,
        Iterations(4096),
        &[1; SALT_BYTES],
    );
    let mut records = store.snapshot();
    records.truncate(1);
    records.extend([
        user.unwrap(),
        store.user_tombstone("alice", Hash::Sha256).unwrap(),
        added,
        store.acl_tombstone(&rule).unwrap(),
    ]);
    let changes = records
        .into_iter()
        .map(|record| Change::decode(record).unwrap());
    let lines =
        changes.filter_map(|change| AuditAction::of(&change).map(|action| action.to_string()));
    assert_eq!(
        lines.collect::<Vec<_>>(),
        [
            r#"set SCRAM-SHA-512 of user "alice""#,
            r#"remove SCRAM-SHA-256 of user "alice""#,
            r#"add rule deny "User:*" from ::1 to All on literal group "*""#,
            r#"remove rule deny "User:*" from ::1 to All on literal group "*""#,
        ]
    );
}
