//! Keys for tokens that the broker fetches from a URL.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use millstream_broker::security::KEYS_BYTES_MAX;
use millstream_broker::{FetchError, KeySource, KeysUrl, TokenConfig};
use millstream_wire::ResponseError;
use serde_json::json;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::logins::{add_admin, guard};
use crate::support::Node;
use crate::tls::Pki;
use crate::tokens::{Signer, rules, with};

/// Answers every request on a connection of its own.
type Answer = Box<dyn FnMut(&mut dyn Write) + Send>;

/// An issuer's server of keys.
struct KeyServer {
    port: u16,
    answer: Arc<Mutex<Answer>>,
    requests: Arc<AtomicUsize>,
}

impl KeyServer {
    /// With the certificate of the authority, or without TLS.
    fn start(pki: Option<&Pki>, answer: Answer) -> KeyServer {
        let tls = pki.map(|pki| {
            let chain = vec![CertificateDer::from_pem_file(pki.path("server.pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(pki.path("server.key")).unwrap();
            let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
            Arc::new(config)
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = KeyServer {
            port: listener.local_addr().unwrap().port(),
            answer: Arc::new(Mutex::new(answer)),
            requests: Arc::default(),
        };
        let (answer, requests) = (Arc::clone(&server.answer), Arc::clone(&server.requests));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                match &tls {
                    None => serve(stream, &answer, &requests),
                    Some(tls) => {
                        let tls = ServerConnection::new(Arc::clone(tls)).unwrap();
                        serve(StreamOwned::new(tls, stream), &answer, &requests);
                    }
                }
            }
        });
        server
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().unwrap() = answer;
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    fn url(&self, start: &str) -> KeysUrl {
        format!("{start}:{}/keys?all", self.port).parse().unwrap()
    }
}

fn serve(mut stream: impl Read + Write, answer: &Mutex<Answer>, requests: &AtomicUsize) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        // A client that refuses the certificate sends no request.
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("GET /keys?all HTTP/1.1\r\n"), "{head}");
    requests.fetch_add(1, Ordering::SeqCst);
    answer.lock().unwrap()(&mut stream);
}

/// These bytes, as far as the client takes them.
fn raw(bytes: impl Into<Vec<u8>>) -> Answer {
    let bytes = bytes.into();
    Box::new(move |stream| {
        let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
    })
}

fn ok(body: &str) -> Answer {
    let bytes = body.len();
    raw(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n{body}"
    ))
}

fn keys_of(signer: &Signer, id: &str) -> Answer {
    ok(&json!({ "keys": [signer.public(id)] }).to_string())
}

/// Starts a server that accepts tokens signed by the keys of this key server.
fn node(server: &KeyServer, pki: &Pki) -> Node {
    let config = TokenConfig {
        keys: KeySource::Url(server.url("https://localhost")),
        authorities: Some(pki.path("authority.pem")),
        rules: rules(),
    };
    Node::on(tempfile::tempdir().unwrap(), add_admin, |broker| {
        guard(broker);
        broker.security.tokens = Some(config);
    })
}

/// Checks whether the node accepts a token of this key.
#[track_caller]
fn check(node: &Node, signer: &Signer, id: &str, is_taken: bool) {
    let claims = with("exp", json!(9_999_999_999_i64));
    let answer = node.connect().show(&signer.token_by("ES256", id, &claims));
    let refused = ResponseError::SaslAuthenticationFailed.code();
    let expected = if is_taken { 0 } else { refused };
    assert_eq!(answer.error_code, expected, "{answer:?}");
}

#[test]
fn keys_of_a_url_are_fetched_at_the_start_and_for_an_unknown_key() {
    let (pki, old, new) = (Pki::new(), Signer::p256(), Signer::p256());
    let server = KeyServer::start(Some(&pki), keys_of(&old, "old"));
    let node = node(&server, &pki);
    check(&node, &old, "old", true);
    assert_eq!(server.requests(), 1);
    server.answers(keys_of(&new, "new"));
    check(&node, &new, "new", true);
    check(&node, &old, "old", false);
    assert_eq!(server.requests(), 2);
}

#[test]
fn keys_stay_when_their_url_fails_and_many_unknown_keys_are_one_fetch() {
    let (pki, signer) = (Pki::new(), Signer::p256());
    let server = KeyServer::start(Some(&pki), keys_of(&signer, "k"));
    let node = node(&server, &pki);
    server.answers(raw("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n"));
    let began = Instant::now();
    for id in ["a", "b", "c"] {
        check(&node, &Signer::p256(), id, false);
    }
    if began.elapsed() < Duration::from_secs(30) {
        assert_eq!(server.requests(), 2);
    }
    check(&node, &signer, "k", true);
}

/// Returns the error of a fetch.
#[track_caller]
fn fetch(server: &KeyServer, start: &str, authorities: Option<PathBuf>) -> FetchError {
    let fetched = server.url(start).fetch(authorities.as_deref());
    fetched.expect_err("it must fail")
}

#[test]
fn answers_without_keys_are_refused() {
    let pki = Pki::new();
    let server = KeyServer::start(Some(&pki), raw(""));
    let fails = || {
        fetch(
            &server,
            "https://localhost",
            Some(pki.path("authority.pem")),
        )
    };
    assert!(matches!(fails(), FetchError::Http(_)));
    for status in [301, 302, 303, 307, 308] {
        let location = server.url("https://localhost");
        server.answers(raw(format!(
            "HTTP/1.1 {status} There\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
        )));
        let before = server.requests();
        assert!(matches!(fails(), FetchError::Redirect(_)), "{status}");
        assert_eq!(server.requests(), before + 1, "{status}");
    }
    server.answers(raw("HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"));
    assert!(matches!(fails(), FetchError::Status(_)));
    server.answers(raw("SSH-2.0-x\r\n\r\n"));
    assert!(matches!(fails(), FetchError::Http(_)));
    let header = "x".repeat(1 << 20);
    server.answers(raw(format!("HTTP/1.1 200 OK\r\nX: {header}\r\n\r\n")));
    assert!(matches!(fails(), FetchError::Http(_)));
    server.answers(raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"));
    assert!(matches!(fails(), FetchError::Body(_)));
}

#[test]
fn oversized_answers_of_a_key_server_are_refused() {
    let pki = Pki::new();
    let large = |bytes: usize| ok(&" ".repeat(bytes));
    let server = KeyServer::start(Some(&pki), large(KEYS_BYTES_MAX));
    let authorities = pki.path("authority.pem");
    let url = server.url("https://localhost");
    let fetched = url.fetch(Some(&authorities)).unwrap();
    assert_eq!(fetched.len(), KEYS_BYTES_MAX);
    server.answers(large(KEYS_BYTES_MAX + 1));
    let error = fetch(&server, "https://localhost", Some(authorities.clone()));
    assert!(matches!(error, FetchError::TooLarge), "{error}");
    // A chunked body without an end.
    server.answers(Box::new(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        // Many chunks in each write, since each write is a record of TLS.
        let chunks = b"4\r\n    \r\n".repeat(1000);
        while stream.write_all(&chunks).is_ok() {}
    }));
    let error = fetch(&server, "https://localhost", Some(authorities));
    assert!(matches!(error, FetchError::TooLarge), "{error}");
}

#[test]
fn an_answer_that_drips_ends_with_the_time_for_it() {
    let server = KeyServer::start(
        None,
        Box::new(|stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
            while stream.write_all(b" ").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        }),
    );
    let began = Instant::now();
    let error = fetch(&server, "http://127.0.0.1", None);
    assert!(matches!(error, FetchError::Slow), "{error}");
    assert!(began.elapsed() >= Duration::from_secs(10));
}

#[test]
fn certificates_that_no_authority_has_signed_for_the_host_are_refused() {
    let (pki, other) = (Pki::new(), Pki::new());
    let server = KeyServer::start(Some(&pki), ok("{}"));
    let authority = || Some(pki.path("authority.pem"));
    let good = server.url("https://localhost");
    good.fetch(authority().as_deref()).unwrap();
    assert_eq!(server.requests(), 1);
    let foreign = fetch(
        &server,
        "https://localhost",
        Some(other.path("authority.pem")),
    );
    assert!(matches!(foreign, FetchError::Tls(_)), "{foreign}");
    // The certificate is for localhost.
    let misnamed = fetch(&server, "https://127.0.0.1", authority());
    assert!(matches!(misnamed, FetchError::Tls(_)), "{misnamed}");
    // The system does not trust this authority; it may trust none.
    let unknown = fetch(&server, "https://localhost", None);
    assert!(
        matches!(unknown, FetchError::Tls(_) | FetchError::NoAuthorities),
        "{unknown}"
    );
    let missing = fetch(&server, "https://localhost", Some(pki.path("missing")));
    assert!(matches!(missing, FetchError::Authorities(_)), "{missing}");
    fs::write(pki.path("empty"), "").unwrap();
    let empty = fetch(&server, "https://localhost", Some(pki.path("empty")));
    assert!(matches!(empty, FetchError::Authorities(_)), "{empty}");
    assert_eq!(server.requests(), 1);
}

#[test]
fn an_unreachable_server_of_keys_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    let url: KeysUrl = format!("http://127.0.0.1:{port}/").parse().unwrap();
    let error = url.fetch(None).unwrap_err();
    assert!(matches!(error, FetchError::Connect { .. }), "{error}");
}

#[test]
fn urls_without_tls_are_refused_unless_they_name_this_machine() {
    let server = KeyServer::start(None, ok("{}"));
    assert_eq!(
        server.url("http://127.0.0.1").fetch(None).unwrap(),
        "{}".as_bytes()
    );
    assert_eq!(
        server.url("http://localhost").fetch(None).unwrap(),
        "{}".as_bytes()
    );
    for good in [
        "https://issuer.example/keys",
        "https://issuer.example:8443",
        "HTTPS://[2001:db8::1]/keys",
        "http://[::1]:80/",
    ] {
        assert!(good.parse::<KeysUrl>().is_ok(), "{good}");
    }
    for (wrong, why) in [
        ("http://issuer.example/keys", "must begin with https://"),
        ("http://10.0.0.1/keys", "must begin with https://"),
        (
            "http://127.0.0.1.issuer.example/",
            "must begin with https://",
        ),
        ("ftp://issuer.example/keys", "must begin with https://"),
        ("https://user:secret@issuer.example/", "a user"),
        ("https:///keys", ""),
        ("https://", ""),
        ("/keys", "host"),
        ("", ""),
    ] {
        let error = wrong.parse::<KeysUrl>().unwrap_err();
        assert!(error.contains(why), "{wrong}: {error}");
    }
}
