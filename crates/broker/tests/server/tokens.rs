//! Tokens: the server lets clients in with a valid one, for as long as it lasts.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use bytes::Bytes;
use millstream_base::Timestamp;
use millstream_broker::security::{TokenError, TokenKeys, TokenRules};
use millstream_broker::{KeySource, TokenConfig};
use millstream_wire::messages::{
    MetadataRequest, SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
};
use millstream_wire::sasl::BearerMessage;
use millstream_wire::{ApiKey, Response, ResponseError};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RsaKeyPair,
};
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::PrivatePkcs8KeyDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::logins::{ADMIN, add_admin, guard};
use crate::support::{Connection, Node, ask, fetch_request, text};

/// A key for these tests alone.
const RSA: &[u8] = include_bytes!("data/rsa_for_tests.pem");

const NOW_S: i64 = 1_700_000_000;

fn base64(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Signs tokens.
pub enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    fn rsa() -> Signer {
        let key = PrivatePkcs8KeyDer::from_pem_slice(RSA).unwrap();
        Signer::Rsa(RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).unwrap())
    }

    fn ecdsa(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap()
    }

    pub fn p256() -> Signer {
        Signer::P256(Signer::ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING))
    }

    fn all() -> [Signer; 4] {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        [
            Signer::rsa(),
            Signer::p256(),
            Signer::P384(Signer::ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING)),
            Signer::Ed25519(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap()),
        ]
    }

    /// Its public key, as a set of keys holds it.
    pub fn public(&self, id: &str) -> Value {
        let ec = |curve: &str, key: &EcdsaKeyPair| {
            let (x, y) =
                key.public_key().as_ref()[1..].split_at(key.public_key().as_ref().len() / 2);
            json!({ "kty": "EC", "crv": curve, "x": base64(x), "y": base64(y) })
        };
        let mut key = match self {
            Signer::Rsa(key) => {
                let public: ring::rsa::PublicKeyComponents<Vec<u8>> = key.public().into();
                json!({ "kty": "RSA", "n": base64(public.n), "e": base64(public.e) })
            }
            Signer::P256(key) => ec("P-256", key),
            Signer::P384(key) => ec("P-384", key),
            Signer::Ed25519(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": base64(key.public_key()) })
            }
        };
        key["kid"] = id.into();
        key["use"] = "sig".into();
        key
    }

    fn algorithms(&self) -> &'static [&'static str] {
        match self {
            Signer::Rsa(_) => &["RS256", "RS512", "PS256"],
            Signer::P256(_) => &["ES256"],
            Signer::P384(_) => &["ES384"],
            Signer::Ed25519(_) => &["EdDSA"],
        }
    }

    fn sign(&self, algorithm: &str, bytes: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Signer::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                let padding: &dyn ring::signature::RsaEncoding = match algorithm {
                    "RS256" => &RSA_PKCS1_SHA256,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    other => panic!("{other}"),
                };
                key.sign(padding, &random, bytes, &mut signature).unwrap();
                signature
            }
            Signer::P256(key) | Signer::P384(key) => {
                key.sign(&random, bytes).unwrap().as_ref().to_vec()
            }
            Signer::Ed25519(key) => key.sign(bytes).as_ref().to_vec(),
        }
    }

    pub fn token_by(&self, algorithm: &str, id: &str, claims: &Value) -> String {
        let header = json!({ "alg": algorithm, "typ": "JWT", "kid": id });
        let signed = unsigned(&header, claims);
        let signature = self.sign(algorithm, signed.as_bytes());
        format!("{signed}.{}", base64(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.token_by(self.algorithms()[0], "k", claims)
    }

    fn keys(&self) -> TokenKeys {
        TokenKeys::parse(
            &json!({ "keys": [self.public("k")] })
                .to_string()
                .into_bytes(),
        )
        .unwrap()
    }
}

fn unsigned(header: &Value, claims: &Value) -> String {
    format!(
        "{}.{}",
        base64(header.to_string()),
        base64(claims.to_string())
    )
}

pub fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://issuer.example".to_owned(),
        audience: "millstream".to_owned(),
        user_claim: "sub".to_owned(),
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example", "aud": ["other", "millstream"], "sub": "alice",
        "iat": NOW_S - 10, "nbf": NOW_S - 10, "exp": NOW_S + 60,
    })
}

pub fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

#[track_caller]
fn check(keys: &TokenKeys, token: &str) -> Result<String, TokenError> {
    let verified = keys.check(token, &rules(), Timestamp(NOW_S * 1000))?;
    Ok(verified.principal.to_string())
}

#[test]
fn tokens_signed_by_a_known_key_are_accepted() {
    let signers = Signer::all();
    let public: Vec<Value> = signers.iter().map(|signer| signer.public("k")).collect();
    // Keys of other kinds are skipped.
    let mut all = public.clone();
    all.push(json!({ "kty": "oct", "k": "c2VjcmV0" }));
    all.push(json!({ "kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA" }));
    let all = TokenKeys::parse(&json!({ "keys": all }).to_string().into_bytes()).unwrap();
    for signer in &signers {
        for algorithm in signer.algorithms() {
            let token = signer.token_by(algorithm, "k", &claims());
            assert_eq!(
                check(&all, &token),
                Ok("User:alice".to_owned()),
                "{algorithm}"
            );
            assert_eq!(check(&signer.keys(), &token), Ok("User:alice".to_owned()));
            let unknown = signer.token_by(algorithm, "other", &claims());
            assert_eq!(check(&all, &unknown), Err(TokenError::UnknownKey));
        }
    }
    let one = with("aud", "millstream".into());
    let signer = &signers[1];
    assert_eq!(
        check(&signer.keys(), &signer.token(&one)),
        Ok("User:alice".to_owned())
    );
}

#[test]
fn tokens_for_another_server_or_time_are_refused() {
    let signer = Signer::p256();
    let keys = signer.keys();
    for (claims, error) in [
        (with("exp", (NOW_S - 31).into()), TokenError::Expired),
        (without("exp"), TokenError::Expired),
        (with("exp", "9999999999".into()), TokenError::Expired),
        (with("nbf", (NOW_S + 31).into()), TokenError::Early),
        (with("nbf", "0".into()), TokenError::Early),
        (with("iat", (NOW_S + 31).into()), TokenError::Early),
        (
            with("iss", "https://issuer.example.evil".into()),
            TokenError::Issuer,
        ),
        (without("iss"), TokenError::Issuer),
        (with("aud", "other".into()), TokenError::Audience),
        (with("aud", json!(["other"])), TokenError::Audience),
        (
            with("aud", json!({ "millstream": 1 })),
            TokenError::Audience,
        ),
        (without("aud"), TokenError::Audience),
        (without("sub"), TokenError::User),
        (with("sub", 7.into()), TokenError::User),
        (with("sub", "*".into()), TokenError::User),
        (with("sub", "".into()), TokenError::User),
    ] {
        assert_eq!(check(&keys, &signer.token(&claims)), Err(error), "{claims}");
    }
    // Clocks may differ a little.
    for claims in [
        with("exp", (NOW_S - 29).into()),
        with("nbf", (NOW_S + 29).into()),
    ] {
        assert!(check(&keys, &signer.token(&claims)).is_ok(), "{claims}");
    }
}

#[test]
fn tokens_signed_by_no_known_key_are_refused() {
    let (signer, forger) = (Signer::rsa(), Signer::p256());
    let keys = signer.keys();
    let header = |algorithm: &str| json!({ "alg": algorithm, "typ": "JWT", "kid": "k" });

    // Not signed at all.
    for algorithm in ["none", "None", ""] {
        let signed = unsigned(&header(algorithm), &claims());
        for token in [format!("{signed}."), format!("{signed}.AAAA")] {
            assert_eq!(
                check(&keys, &token),
                Err(TokenError::Algorithm),
                "{algorithm}"
            );
        }
    }
    // The secret is public: the public key, in each form that a server could have it in.
    let public = signer.public("k");
    let modulus = public["n"].as_str().unwrap();
    let forms = [
        modulus.as_bytes().to_vec(),
        BASE64_URL_SAFE_NO_PAD.decode(modulus).unwrap(),
        public.to_string().into_bytes(),
    ];
    for secret in forms {
        let signed = unsigned(&header("HS256"), &claims());
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &secret);
        let signature = ring::hmac::sign(&key, signed.as_bytes());
        let token = format!("{signed}.{}", base64(signature));
        assert_eq!(check(&keys, &token), Err(TokenError::Algorithm));
    }
    // By another key.
    assert_eq!(
        check(&keys, &forger.token(&claims())),
        Err(TokenError::UnknownKey)
    );
    let others = Signer::p256().keys();
    assert_eq!(
        check(&others, &forger.token(&claims())),
        Err(TokenError::Signature)
    );
    // Changed after it was signed.
    let token = signer.token(&claims());
    let parts: Vec<&str> = token.split('.').collect();
    let changed = base64(with("sub", "admin".into()).to_string());
    let token = format!("{}.{changed}.{}", parts[0], parts[2]);
    assert_eq!(check(&keys, &token), Err(TokenError::Signature));
    // Malformed tokens, or one with an extension that the server would have to understand.
    let critical = unsigned(&json!({ "alg": "RS256", "crit": ["exp"] }), &claims());
    for token in [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        parts[0],
        &format!("{critical}.{}", parts[2]),
    ] {
        assert_eq!(check(&keys, token), Err(TokenError::Malformed), "{token}");
    }
    // A key is valid only for the algorithm that it names.
    let mut bound = signer.public("k");
    bound["alg"] = "RS512".into();
    let bound = TokenKeys::parse(json!({ "keys": [bound] }).to_string().as_bytes()).unwrap();
    assert_eq!(
        check(&bound, &signer.token(&claims())),
        Err(TokenError::UnknownKey)
    );
}

#[test]
fn malformed_key_sets_are_refused() {
    let large = vec![b' '; 1 << 20];
    let many = json!({ "keys": vec![json!({ "kty": "oct" }); 101] }).to_string();
    let cases: [&[u8]; 5] = [b"", b"{}", b"{\"keys\":[]}", &large, many.as_bytes()];
    for json in cases {
        assert!(TokenKeys::parse(json).is_err());
    }
}

/// Starts a server that accepts tokens of this signer.
fn node(signer: &Signer, keys: &Path) -> Node {
    fs::write(keys, json!({ "keys": [signer.public("k")] }).to_string()).unwrap();
    Node::on(tempfile::tempdir().unwrap(), add_admin, |config| {
        guard(config);
        let alice = "User:alice".parse().unwrap();
        config.security.super_users.insert(alice);
        config.security.tokens = Some(TokenConfig {
            keys: KeySource::File(keys.to_owned()),
            authorities: None,
            rules: rules(),
        });
    })
}

/// Returns a token of a user that is valid for this many seconds from now on, beside the clock
/// skew.
fn token_for(signer: &Signer, user: &str, seconds: f64) -> String {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let now = now.as_secs_f64();
    signer.token(&json!({
        "iss": "https://issuer.example", "aud": "millstream", "sub": user,
        "exp": now + seconds - 30.0,
    }))
}

impl Connection {
    pub fn show(&mut self, token: &str) -> SaslAuthenticateResponse {
        let request = SaslHandshakeRequest::default().with_mechanism(text("OAUTHBEARER"));
        let answer = ask!(self, SaslHandshake, 1, request);
        assert_eq!(answer.error_code, 0);
        let message = BearerMessage {
            authorization: "",
            token,
        };
        let request =
            SaslAuthenticateRequest::default().with_auth_bytes(Bytes::from(message.to_bytes()));
        ask!(self, SaslAuthenticate, 2, request)
    }
}

#[test]
fn a_token_logs_in_until_it_expires() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Signer::p256();
    let node = node(&signer, &dir.path().join("keys.json"));
    let mut client = node.connect();
    let answer = client.show(&token_for(&signer, "alice", 3.0));
    assert_eq!(answer.error_code, 0, "{answer:?}");
    assert!(
        (1..=3_000).contains(&answer.session_lifetime_ms),
        "{answer:?}"
    );
    client.create_topic("t", 1);

    // A client that logs in again, as it may at any time, stays connected; also where it is silent.
    let mut renewed = node.connect();
    assert_eq!(
        renewed.show(&token_for(&signer, "alice", 3.0)).error_code,
        0
    );
    let answer = renewed.show(&token_for(&signer, "alice", 600.0));
    assert_eq!(answer.error_code, 0);
    assert!(answer.session_lifetime_ms > 500_000, "{answer:?}");

    // Closed without a request, when the token has expired.
    let began = Instant::now();
    assert!(client.receive_frame().is_none());
    assert!(began.elapsed() < Duration::from_secs(40));
    renewed.create_topic("u", 1);

    // It may not log in as another user, nor with another mechanism.
    let answer = renewed.show(&token_for(&signer, "bob", 600.0));
    let refused = ResponseError::SaslAuthenticationFailed.code();
    assert_eq!(answer.error_code, refused);
    assert!(renewed.receive_frame().is_none());
    let mut client = node.connect();
    assert_eq!(
        client.show(&token_for(&signer, "alice", 600.0)).error_code,
        0
    );
    let request = SaslHandshakeRequest::default().with_mechanism(text("PLAIN"));
    let answer = ask!(client, SaslHandshake, 1, request);
    assert_eq!(answer.error_code, ResponseError::IllegalSaslState.code());
}

#[test]
fn requests_in_progress_are_answered_when_the_token_expires() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Signer::p256();
    let node = node(&signer, &dir.path().join("keys.json"));
    node.connect().log_in(ADMIN).create_topic("t", 1);
    let mut client = node.connect();
    let answer = client.show(&token_for(&signer, "alice", 6.0));
    assert_eq!(answer.error_code, 0, "{answer:?}");
    // There are no records, so it waits until the token has expired.
    let request = fetch_request(&[("t", 0, 0)]).with_max_wait_ms(10_000);
    client.send(11, request);
    let Response::Fetch(fetched) = client.receive(ApiKey::Fetch, 11).1 else {
        panic!("it is an answer to that");
    };
    assert_eq!(fetched.topics[0].partitions[0].error_code, 0);
    assert!(client.receive_frame().is_none());
}

#[test]
fn a_bad_token_is_refused_with_a_reason_and_closes_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let signer = Signer::p256();
    let node = node(&signer, &dir.path().join("keys.json"));
    let forged = token_for(&Signer::p256(), "alice", 600.0);
    let expired = token_for(&signer, "alice", -1.0);
    for (token, why) in [
        (&*forged, "signature"),
        (&*expired, "expired"),
        ("x", "JSON Web Token"),
    ] {
        let mut client = node.connect();
        let answer = client.show(token);
        let refused = ResponseError::SaslAuthenticationFailed.code();
        assert_eq!(answer.error_code, refused);
        let message = answer.error_message.unwrap();
        assert!(message.contains(why), "{message}");
        assert!(client.receive_frame().is_none());
    }
    assert_eq!(node.broker().status().logins_refused, 3);
    // A user with a valid token may do what rules allow, and passwords still work.
    let mut bob = node.connect();
    assert_eq!(bob.show(&token_for(&signer, "bob", 600.0)).error_code, 0);
    let request = MetadataRequest::default().with_topics(None);
    bob.send(12, request);
    let _ = bob.receive(ApiKey::Metadata, 12);
    node.connect().log_in(ADMIN).create_topic("t", 1);
}

#[test]
fn a_token_of_a_new_key_is_accepted_once_the_key_is_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys.json");
    let (old, new) = (Signer::p256(), Signer::p256());
    let node = node(&old, &keys);
    let claims = with("exp", json!(9_999_999_999_i64));
    let old = old.token_by("ES256", "k", &claims);
    assert_eq!(node.connect().show(&old).error_code, 0);
    fs::write(&keys, json!({ "keys": [new.public("new")] }).to_string()).unwrap();
    let new = new.token_by("ES256", "new", &claims);
    let answer = node.connect().show(&new);
    assert_eq!(answer.error_code, 0, "{answer:?}");
    // The old key has gone with the renewal.
    let answer = node.connect().show(&old);
    let refused = ResponseError::SaslAuthenticationFailed.code();
    assert_eq!(answer.error_code, refused, "{answer:?}");
}
