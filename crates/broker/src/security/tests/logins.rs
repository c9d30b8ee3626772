//! Logins, from the client's first byte on.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millstream_wire::messages::{SaslAuthenticateRequest, SaslHandshakeRequest};
use millstream_wire::sasl::{
    Client, ClientError, ClientFinal, ClientFirst, Credential, ITERATIONS_DEFAULT, Mechanism,
    NONCE_BYTES, Nonce, Progress, SaltedPassword, ScramExchange, ServerFirst,
};
use millstream_wire::{ApiKey, ResponseError, StrBytes};
use proptest::prelude::*;

use super::super::record::Change;
use super::*;

const SHA_256: Mechanism = Mechanism::Scram(Hash::Sha256);
const SHA_512: Mechanism = Mechanism::Scram(Hash::Sha512);

fn nonce(byte: u8) -> Nonce {
    Nonce::from_random(&[byte; NONCE_BYTES])
}

fn begun(mechanism: Mechanism) -> Authentication {
    let mut login = Authentication::new(Mechanism::PASSWORDS.into());
    let response = login.handshake(1, &hello(mechanism.name()));
    assert_eq!(response.error_code, 0);
    assert_eq!(login.mechanism(), Some(mechanism));
    login
}

fn hello(mechanism: &str) -> SaslHandshakeRequest {
    SaslHandshakeRequest::default().with_mechanism(StrBytes::from_string(mechanism.to_owned()))
}

/// Sends bytes; returns the server's answer, or the code and text of its error.
fn send(login: &mut Authentication, users: &Users, bytes: Bytes) -> Result<Bytes, (i16, String)> {
    let request = SaslAuthenticateRequest::default().with_auth_bytes(bytes);
    let response = login.authenticate(users, &nonce(2), &request);
    match response.error_code {
        0 => Ok(response.auth_bytes),
        code => Err((code, response.error_message.unwrap().to_string())),
    }
}

/// Runs a whole login; returns the client's user, or the server's error.
fn log_in(
    users: &Users,
    mechanism: Mechanism,
    user: &str,
    password: &str,
) -> Result<Principal, (i16, String)> {
    let mut login = begun(mechanism);
    let (mut client, mut bytes) = Client::start(mechanism, user, password, &nonce(1)).unwrap();
    loop {
        assert!(login.principal().is_none());
        assert!(!login.admits(ApiKey::Produce));
        let answer = send(&mut login, users, bytes);
        assert_eq!(login.claimed_user(), Some(user));
        assert_eq!(answer.is_err(), login.is_failed());
        match client.answer(&answer?).unwrap() {
            Progress::Done => break,
            Progress::Send(next, message) => (client, bytes) = (next, message),
        }
    }
    assert!(login.admits(ApiKey::Produce));
    Ok(login.principal().unwrap().clone())
}

#[test]
fn the_correct_password_logs_in_with_each_mechanism() {
    for (hash, mechanisms) in [
        (Hash::Sha256, [Mechanism::Plain, SHA_256]),
        (Hash::Sha512, [Mechanism::Plain, SHA_512]),
    ] {
        for name in ["alice", "a,b=c", "Dvořák"] {
            let store = with_user(name, "příliš secret", hash);
            for mechanism in mechanisms {
                let principal = log_in(store.users(), mechanism, name, "příliš secret").unwrap();
                assert_eq!(principal.to_string(), format!("User:{name}"));
            }
        }
    }
}

#[test]
fn a_wrong_password_and_an_unknown_user_get_the_same_refusal() {
    let store = with_user("alice", "secret", Hash::Sha512);
    let code = ResponseError::SaslAuthenticationFailed.code();
    for (mechanism, text) in [
        (
            Mechanism::Plain,
            "Authentication failed: Invalid username or password",
        ),
        (
            SHA_256,
            "Authentication failed during authentication due to invalid credentials with SASL \
             mechanism SCRAM-SHA-256",
        ),
        (
            SHA_512,
            "Authentication failed during authentication due to invalid credentials with SASL \
             mechanism SCRAM-SHA-512",
        ),
    ] {
        for (user, password) in [("alice", "wrong"), ("bob", "secret"), ("*", "secret")] {
            let refused = log_in(store.users(), mechanism, user, password).unwrap_err();
            assert_eq!(refused, (code, text.to_owned()), "{user}");
        }
    }
    // There is a credential for the other hash only.
    assert!(log_in(store.users(), SHA_256, "alice", "secret").is_err());
}

#[test]
fn plain_checks_the_password_with_the_stronger_hash() {
    let mut store = with_user("alice", "old", Hash::Sha256);
    let salt = [2; SALT_BYTES];
    let record = store.user_record("alice", "new", Hash::Sha512, Iterations(4096), &salt);
    store.apply(record.unwrap()).unwrap();
    assert!(log_in(store.users(), Mechanism::Plain, "alice", "new").is_ok());
    assert!(log_in(store.users(), Mechanism::Plain, "alice", "old").is_err());
    assert!(log_in(store.users(), SHA_256, "alice", "old").is_ok());

    let record = store.user_tombstone("alice", Hash::Sha512).unwrap();
    store.apply(record).unwrap();
    assert!(log_in(store.users(), Mechanism::Plain, "alice", "old").is_ok());
    let record = store.user_tombstone("alice", Hash::Sha256).unwrap();
    store.apply(record).unwrap();
    assert!(log_in(store.users(), Mechanism::Plain, "alice", "old").is_err());
    assert!(store.users().is_empty());
}

/// Returns the server's first answer with SHA-256.
fn challenge(users: &Users, user: &str) -> String {
    challenge_with(SHA_256, users, user)
}

/// Returns the server's first answer.
fn challenge_with(mechanism: Mechanism, users: &Users, user: &str) -> String {
    let mut login = begun(mechanism);
    let (_, bytes) = Client::start(mechanism, user, "any", &nonce(1)).unwrap();
    let answer = send(&mut login, users, bytes).unwrap();
    String::from_utf8(answer.to_vec()).unwrap()
}

#[test]
fn a_challenge_for_an_unknown_user_looks_like_one_for_a_known_user() {
    let store = with_user("alice", "secret", Hash::Sha256);
    let known = challenge(store.users(), "alice");
    let unknown = challenge(store.users(), "bob");
    assert_eq!(unknown.len(), known.len());
    assert!(known.ends_with(",i=4096") && unknown.ends_with(",i=4096"));
    for hash in [Hash::Sha256, Hash::Sha512] {
        let users = store.users();
        let [known, unknown] = ["alice", "bob"].map(|user| users.claimed(user, hash).credential);
        assert_eq!(known.iterations(), unknown.iterations());
        assert_eq!(known.salt().len(), unknown.salt().len());
    }
    // The salt is the same every time, also after a restart, and differs from other users'.
    assert_eq!(unknown, challenge(store.users(), "bob"));
    assert_ne!(unknown, challenge(store.users(), "carol"));
    let other = Secret::from_random([8; SECRET_BYTES]);
    let settings = AclSettings::new(true);
    let (restored, first) =
        Store::restore(settings.clone(), store.snapshot(), other.clone()).unwrap();
    assert!(first.is_none());
    assert_eq!(unknown, challenge(restored.users(), "bob"));
    let (elsewhere, _) = Store::restore(settings, [], other).unwrap();
    assert_ne!(unknown, challenge(elsewhere.users(), "bob"));
}

/// Returns the comparable part of the first answer: iterations, the length of the salt, and whether
/// it is a text.
fn visible(challenge: &str) -> (u32, usize, bool) {
    let first = ServerFirst::parse(challenge.as_bytes()).unwrap();
    let is_text = first.salt.iter().all(u8::is_ascii_alphanumeric);
    (first.iterations.0, first.salt.len(), is_text)
}

#[test]
fn salts_and_iterations_of_unknown_users_are_distributed_like_those_of_known_ones() {
    let mut store = empty();
    let random: Vec<u8> = (100..100 + SALT_BYTES as u8).collect();
    // Salts as this project's client, `user init`, and Kafka's own tools make them.
    let kinds: [(usize, u32, &[u8]); 3] = [
        (60, 8192, &random),
        (30, 4096, &random),
        (10, 4096, b"1g4nx5k6sdd8fh2ljb0p3q7r9"),
    ];
    let names = (0..).map(|number| format!("known {number}"));
    let made = kinds
        .iter()
        .flat_map(|kind| std::iter::repeat_n(kind, kind.0));
    for (name, (_, iterations, salt)) in names.zip(made) {
        let keys = [[1; 32], [2; 32]];
        let [stored, server] = &keys;
        let iterations = Iterations(*iterations);
        let credential = Credential::from_parts(Hash::Sha256, salt, iterations, stored, server);
        let change = Change::Credential(name, Hash::Sha256, credential);
        store.apply(change.encode()).unwrap();
    }
    let settings = AclSettings::new(true);
    let other = Secret::from_random([8; SECRET_BYTES]);
    let (restored, _) = Store::restore(settings, store.snapshot(), other).unwrap();

    let mut counts = BTreeMap::new();
    for number in 0..2000 {
        let name = format!("unknown {number}");
        let answer = challenge(store.users(), &name);
        assert_eq!(answer, challenge(store.users(), &name));
        assert_eq!(
            answer,
            challenge(restored.users(), &name),
            "after a restart"
        );
        *counts.entry(visible(&answer)).or_insert(0) += 1;
    }
    let known: BTreeSet<_> = (0..100)
        .map(|number| visible(&challenge(store.users(), &format!("known {number}"))))
        .collect();
    assert!(counts.keys().eq(&known), "{counts:?} {known:?}");
    // The shares among the unknown names and the known users agree within a quarter.
    for (users, iterations, salt) in kinds {
        let is_text = salt.iter().all(u8::is_ascii_alphanumeric);
        let count = counts[&(iterations, salt.len(), is_text)];
        let expected = users * 20;
        assert!(
            count > expected * 3 / 4 && count < expected * 5 / 4,
            "{counts:?}"
        );
    }

    // A further user changes the answer for few unknown names, and the salt where it changes the rest.
    let before: Vec<_> = (0..500)
        .map(|number| challenge(store.users(), &format!("unknown {number}")))
        .collect();
    let salt = [9; SALT_BYTES];
    let record = store.user_record("further", "secret", Hash::Sha256, Iterations(5000), &salt);
    store.apply(record.unwrap()).unwrap();
    let mut changed = 0;
    for (number, before) in before.iter().enumerate() {
        let after = challenge(store.users(), &format!("unknown {number}"));
        if after != *before {
            changed += 1;
            assert_ne!(visible(&after), visible(before));
            let salt = |text: &str| ServerFirst::parse(text.as_bytes()).unwrap().salt;
            assert_ne!(salt(&after)[..16], salt(before)[..16]);
        }
    }
    assert!(changed < 25, "{changed} of 500");
}

/// A salt of Kafka's own tools is a number of 130 bits in base 36. Digits that are drawn evenly give
/// others.
#[test]
fn made_up_salts_of_digits_are_numbers_that_kafkas_tools_can_draw() {
    for known in [
        "g4nx5k6sdd8fh2ljb0p3q7r9",
        "1g4nx5k6sdd8fh2ljb0p3q7r9",
        "1ag4nx5k6sdd8fh2ljb0p3q7r9",
    ] {
        let mut store = empty();
        let keys = [[1; 32], [2; 32]];
        let [stored, server] = &keys;
        let (salt, iterations) = (known.as_bytes(), Iterations(4096));
        let credential = Credential::from_parts(Hash::Sha256, salt, iterations, stored, server);
        let change = Change::Credential("known".to_owned(), Hash::Sha256, credential);
        store.apply(change.encode()).unwrap();
        let salts = (0..1000).map(|number| {
            let challenge = challenge(store.users(), &format!("unknown {number}"));
            let salt = ServerFirst::parse(challenge.as_bytes()).unwrap().salt;
            String::from_utf8(salt).unwrap()
        });
        let salts: BTreeSet<String> = salts.collect();
        assert_eq!(salts.len(), 1000);
        assert!(salts.iter().all(|salt| salt.len() == known.len()));
        let first_digits: BTreeSet<u8> = salts.iter().map(|salt| salt.as_bytes()[0]).collect();
        // The greatest number of 130 bits begins with "1om".
        let (digits, count) = match known.len() {
            26 => (b'1'..=b'1', 1),
            _ => (b'1'..=b'z', 35),
        };
        assert!(first_digits.iter().all(|digit| digits.contains(digit)));
        assert_eq!(first_digits.len(), count);
        if known.len() == 26 {
            assert!(salts.iter().all(|salt| salt.as_str() < "1on"));
            let second_digits = salts.iter().map(|salt| salt.as_bytes()[1]);
            assert_eq!(second_digits.collect::<BTreeSet<u8>>().len(), 25);
        }
    }
}

/// A client compares the answers of both hashes.
#[test]
fn both_hashes_of_an_unknown_user_look_like_those_of_a_known_user() {
    let mut store = empty();
    let (old, new) = (Iterations(4096), ITERATIONS_DEFAULT);
    let known = [
        ("old", Some(old), Some(old)),
        ("new", Some(new), Some(new)),
        ("mixed", Some(old), Some(new)),
        ("strong", None, Some(old)),
        ("weak", Some(Iterations(5000)), None),
    ];
    for (name, sha256, sha512) in known {
        for (hash, iterations) in [(Hash::Sha256, sha256), (Hash::Sha512, sha512)] {
            let Some(iterations) = iterations else {
                continue;
            };
            let record = store.user_record(name, "secret", hash, iterations, &[1; SALT_BYTES]);
            store.apply(record.unwrap()).unwrap();
        }
    }
    let both = |name: &str| {
        let both = [SHA_256, SHA_512].map(|hash| challenge_with(hash, store.users(), name));
        both.map(|challenge| visible(&challenge))
    };
    let of_known: BTreeSet<_> = known.iter().map(|(name, ..)| both(name)).collect();
    assert_eq!(of_known.len(), 4, "strong looks like old: {of_known:?}");
    let of_unknown: BTreeSet<_> = (0..300).map(|n| both(&format!("unknown {n}"))).collect();
    assert_eq!(of_unknown, of_known);
}

#[test]
fn unknown_users_answer_like_those_that_the_tools_create_where_there_are_no_users() {
    for mechanism in [SHA_256, SHA_512] {
        let (iterations, salt_bytes, _) =
            visible(&challenge_with(mechanism, empty().users(), "alice"));
        assert_eq!((iterations, salt_bytes), (ITERATIONS_DEFAULT.0, SALT_BYTES));
    }
}

#[test]
fn a_client_refuses_a_server_that_lacks_its_credential() {
    let [real, false_one] =
        ["secret", "guessed"].map(|password| with_user("alice", password, Hash::Sha256));
    let mut login = begun(SHA_256);
    let (client, bytes) = Client::start(SHA_256, "alice", "secret", &nonce(1)).unwrap();
    let answer = send(&mut login, real.users(), bytes.clone()).unwrap();
    let Progress::Send(client, _) = client.answer(&answer).unwrap() else {
        panic!("it has to prove that it has the password");
    };
    // The false server accepts every client, and answers with all it knows.
    let mut other = begun(SHA_256);
    send(&mut other, false_one.users(), bytes.clone()).unwrap();
    let (guesser, _) = Client::start(SHA_256, "alice", "guessed", &nonce(1)).unwrap();
    let Progress::Send(_, proof) = guesser.answer(&answer).unwrap() else {
        panic!("it has to prove that it has the password");
    };
    let answer = send(&mut other, false_one.users(), proof).unwrap();
    assert_eq!(
        client.answer(&answer).unwrap_err(),
        ClientError::WrongSignature
    );
}

#[test]
fn an_authorization_id_of_another_user_is_refused() {
    let store = with_user("alice", "secret", Hash::Sha256);
    for (mechanism, message) in [
        (Mechanism::Plain, "bob\0alice\0secret"),
        (SHA_256, "n,a=bob,n=alice,r=abc"),
    ] {
        let mut login = begun(mechanism);
        let (_, text) = send(&mut login, store.users(), message.into()).unwrap_err();
        assert!(text.contains("authorization id"), "{text}");
        assert!(login.is_failed());
    }
    let mut login = begun(Mechanism::Plain);
    assert!(send(&mut login, store.users(), "alice\0alice\0secret".into()).is_ok());
    let mut login = begun(SHA_256);
    assert!(send(&mut login, store.users(), "n,a=alice,n=alice,r=abc".into()).is_ok());
}

/// An eavesdropper replays a proof.
#[test]
fn a_replayed_proof_is_refused() {
    let store = with_user("alice", "secret", Hash::Sha256);
    let (client, first) = Client::start(SHA_256, "alice", "secret", &nonce(1)).unwrap();
    let mut login = begun(SHA_256);
    let answer = send(&mut login, store.users(), first.clone()).unwrap();
    let Progress::Send(_, proof) = client.answer(&answer).unwrap() else {
        panic!("it has to prove that it has the password");
    };
    assert!(send(&mut login, store.users(), proof.clone()).is_ok());
    for fresh in [nonce(2), nonce(3)] {
        let mut login = begun(SHA_256);
        login.message(store.users(), &fresh, &first).unwrap();
        let result = login.message(store.users(), &nonce(9), &proof);
        // Only a server that draws the same nonce again accepts it.
        assert_eq!(result.is_ok(), fresh == nonce(2));
    }
}

/// A client with the right password that breaks the protocol.
#[test]
fn a_correct_proof_with_a_wrong_header_or_nonce_is_refused() {
    let store = with_user("alice", "secret", Hash::Sha256);
    let credential = store.users().credential("alice", Hash::Sha256).unwrap();
    let salted = SaltedPassword::new(Hash::Sha256, "secret", credential.salt(), Iterations(4096));
    let first = ClientFirst::parse(b"n,,n=alice,r=abc").unwrap();
    let log_in = |header: &str, change_nonce: fn(&str) -> String| {
        let mut login = begun(SHA_256);
        let answer = login.message(store.users(), &nonce(2), first.text().as_bytes());
        let server_first = ServerFirst::parse(&answer.unwrap()).unwrap();
        let signed = format!("c={header},r={}", change_nonce(server_first.nonce.as_str()));
        let mut last = ClientFinal::parse(format!("{signed},p=").as_bytes()).unwrap();
        last.proof = salted.proof(&ScramExchange::new(&first, &server_first, &last));
        let answer = login.message(store.users(), &nonce(3), last.text().as_bytes());
        answer.is_ok()
    };
    assert!(log_in("biws", str::to_owned));
    // The client has seen another answer, or the server another beginning: "y,,".
    assert!(!log_in("biws", |nonce| format!("{nonce}x")));
    assert!(!log_in("biws", |_| "abc".to_owned()));
    assert!(!log_in("eSws", str::to_owned));
    assert!(!log_in("", str::to_owned));
}

#[test]
fn messages_of_a_login_are_refused_out_of_order() {
    let store = with_user("alice", "secret", Hash::Sha256);
    let illegal = ResponseError::IllegalSaslState.code();
    let password = || Bytes::from_static(b"\0alice\0secret");

    let mut login = Authentication::new(Mechanism::PASSWORDS.into());
    assert!(login.admits(ApiKey::ApiVersions) && login.admits(ApiKey::SaslHandshake));
    assert!(!login.admits(ApiKey::Metadata));
    assert_eq!(
        send(&mut login, store.users(), password()).unwrap_err().0,
        illegal
    );
    assert!(login.is_failed());
    assert!(!login.admits(ApiKey::ApiVersions));

    let mut login = begun(Mechanism::Plain);
    assert_eq!(login.handshake(1, &hello("PLAIN")).error_code, illegal);
    assert!(login.is_failed());
    assert_eq!(
        send(&mut login, store.users(), password()).unwrap_err().0,
        illegal
    );

    let mut login = begun(Mechanism::Plain);
    assert!(send(&mut login, store.users(), password()).is_ok());
    assert_eq!(
        send(&mut login, store.users(), password()).unwrap_err().0,
        illegal
    );
    assert!(login.is_failed() && login.principal().is_none());
}

#[test]
fn disabled_and_unknown_mechanisms_are_refused() {
    let unsupported = ResponseError::UnsupportedSaslMechanism.code();
    for name in ["PLAIN", "plain", "GSSAPI", "", "SCRAM-SHA-256-PLUS"] {
        let mut login = Authentication::new([SHA_256, SHA_512].into());
        let response = login.handshake(1, &hello(name));
        assert_eq!(response.error_code, unsupported);
        let names: Vec<&str> = response.mechanisms.iter().map(|name| &**name).collect();
        assert_eq!(names, ["SCRAM-SHA-256", "SCRAM-SHA-512"]);
        assert!(login.is_failed());
    }
}

#[test]
fn the_oldest_handshake_is_followed_by_bare_messages() {
    let store = with_user("alice", "secret", Hash::Sha256);
    let mut login = Authentication::new(Mechanism::PASSWORDS.into());
    assert!(!login.takes_bare_message());
    login.handshake(0, &hello("SCRAM-SHA-256"));
    let (client, first) = Client::start(SHA_256, "alice", "secret", &nonce(1)).unwrap();
    assert!(login.takes_bare_message());
    let answer = login.message(store.users(), &nonce(2), &first).unwrap();
    let Progress::Send(client, proof) = client.answer(&answer).unwrap() else {
        panic!("it has to prove that it has the password");
    };
    assert!(login.takes_bare_message());
    let answer = login.message(store.users(), &nonce(3), &proof).unwrap();
    assert!(matches!(client.answer(&answer), Ok(Progress::Done)));
    assert!(!login.takes_bare_message() && login.principal().is_some());
    assert!(!begun(Mechanism::Plain).takes_bare_message());
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..100),
        "(n|y|p=x),(a=[ab])?,(m=a,)?(n=[ab=2CD3]{0,4})?,(r=[ -~]{0,6})?(,x=y)?"
            .prop_map(String::into_bytes),
        "c=(biws|eSws),r=[a-c]{0,3}(,x=y)?,p=[A-D=]{0,45}".prop_map(String::into_bytes),
        "\0?(alice|bob)\0?[a-e]{0,3}\0?".prop_map(String::into_bytes),
    ]
}

proptest! {
    /// No random input logs a client in, and a failed login stays failed.
    #[test]
    fn random_messages_never_log_in(
        mechanism in prop::sample::select(vec![SHA_256, SHA_512]),
        messages in prop::collection::vec(any_message(), 1..4),
    ) {
        let users = Users::new(Secret::from_random(SECRET));
        let mut login = begun(mechanism);
        for message in messages {
            let had_failed = login.is_failed();
            let result = login.message(&users, &nonce(2), &message);
            prop_assert!(login.principal().is_none());
            prop_assert_eq!(result.is_err(), login.is_failed());
            prop_assert!(!(had_failed && result.is_ok()));
        }
    }
}

proptest! {
    // Each case hashes a password.
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn random_bytes_are_no_password(message in any_message()) {
        let users = Users::new(Secret::from_random(SECRET));
        let mut login = begun(Mechanism::Plain);
        prop_assert!(login.message(&users, &nonce(2), &message).is_err());
        prop_assert!(login.is_failed());
    }
}
