//! Connections and requests that the server refuses, closes or holds back.

use std::future::{Future, ready};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_base::{Credentials, TcpNetwork};
use millstream_flow::Running;
use millstream_serve::{Admission, Content, Gate, Metric, Options, Server, Visited, Visitor};
use serde_json::{Value, json};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::support::{ANSWER_TIME_MAX, Sample, connect, exchange, get, request, start};

#[test]
fn other_hosts_are_refused() {
    let server = start();
    let with_host = |host: &str| request(&server, "GET", "/metrics", host);
    for host in ["127.0.0.1", "localhost:8080", "[::1]:8080", "10.1.2.3"] {
        assert_eq!(with_host(host).status, 200, "{host}");
    }
    for host in ["example.com", "localhost.example.com", ""] {
        with_host(host).check_error(403, "Host");
    }
    let none = "GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
    exchange(&server, none).check_error(403, "Host");
    let two = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    exchange(&server, two).check_error(403, "Host");
    let in_uri = "GET http://a.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    exchange(&server, in_uri).check_error(403, "Host");
}

#[test]
fn oversized_heads_are_refused() {
    let server = start();
    let long = "x".repeat(20_000);
    assert_eq!(get(&server, &format!("/{long}")).status, 431);
    let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n");
    assert_eq!(exchange(&server, &header).status, 431);
    let many = "X-Many: 1\r\n".repeat(1_000);
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    assert_eq!(exchange(&server, &many).status, 431);
}

#[test]
fn all_methods_but_get_and_head_are_refused() {
    let server = start();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let answer = request(&server, method, "/healthz", "localhost");
        answer.check_error(405, method);
        assert!(answer.head.contains("allow: get, head"));
    }
    let head = request(&server, "HEAD", "/api/v1/overview", "localhost");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

/// Returns how long the server holds a connection on which the client sends only `sent`.
fn time_held(server: &Server, sent: &str) -> Duration {
    let mut stream = connect(server);
    stream.write_all(sent.as_bytes()).expect("send");
    let start = Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server closes");
    start.elapsed()
}

#[test]
fn silent_and_half_finished_clients_are_disconnected() {
    let server = start();
    std::thread::scope(|scope| {
        for sent in [
            "",
            "GET / HT",
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let server = &server;
            scope.spawn(move || {
                let held = time_held(server, sent);
                assert!(held > Duration::from_secs(1), "{sent:?} {held:?}");
                assert!(held < Duration::from_secs(10), "{sent:?} {held:?}");
            });
        }
    });
}

/// Raises the limit of open files: 1,100 connections need 2,200 files in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
}

/// A node that answers only while the test does not hold the lock.
#[derive(Default)]
struct Gated(Mutex<()>);

impl Content for Gated {
    fn flows(&self) -> Vec<Arc<Running>> {
        Vec::new()
    }

    fn overview(&self) -> Value {
        let _open = self.0.lock();
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

#[test]
fn connections_beyond_the_bound_wait() {
    allow_many_files();
    let gated = Arc::new(Gated::default());
    let options = Options {
        // The connections beside those of watches.
        watches: 0,
        ..Options::default()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(TcpNetwork, address, gated.clone(), options).expect("a free port");
    let ask = |path: &str| {
        let mut stream = connect(&server);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("send");
        stream
    };
    let is_answered = |stream: &mut TcpStream, wait| -> bool {
        stream.set_read_timeout(Some(wait)).expect("timeout");
        stream.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0)
    };
    let gate = gated.0.lock();
    let mut streams: Vec<TcpStream> = (0..1_024).map(|_| ask("/api/v1/overview")).collect();
    let mut waiting: Vec<TcpStream> = (1_024..1_100).map(|_| ask("/healthz")).collect();
    assert!(!is_answered(&mut waiting[0], Duration::from_millis(200)));
    drop(gate);
    for stream in streams.iter_mut().chain(&mut waiting) {
        assert!(is_answered(stream, ANSWER_TIME_MAX));
    }
}

#[test]
fn stopping_is_prompt_and_frees_the_port() {
    let stop = || {
        let server = start();
        let address = server.local_address();
        let mut silent = connect(&server);
        let mut idle = connect(&server);
        idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .expect("send");
        let bytes = idle.read(&mut [0; 1_024]).expect("an answer");
        assert!(bytes > 0);
        let start = Instant::now();
        server.stop();
        let time = start.elapsed();
        assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0);
        assert_eq!(idle.read(&mut [0; 16]).unwrap_or(0), 0);
        assert!(TcpStream::connect(address).is_err());
        time
    };
    // A server that waits for the silent ones takes two seconds each time; a busy machine delays only some stops.
    assert!((0..5).any(|_| stop() < Duration::from_secs(2)));
}

#[test]
fn an_address_for_other_machines_is_refused_without_a_gate() {
    let start = |address: &str, gate: Option<Arc<dyn Gate>>| {
        let options = Options {
            gate,
            ..Options::default()
        };
        let address = address.parse().expect("an address");
        Server::start(TcpNetwork, address, Sample::new(), options)
    };
    for address in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0", "10.1.2.3:0"] {
        let error = start(address, None).err().expect("it is open to all");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{address}");
        for part in [address, "without logins", "127.0.0.1:0"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
    for address in ["127.0.0.1:0", "127.1.2.3:0"] {
        start(address, None).expect("only this machine reaches it");
    }
    let server = start("0.0.0.0:0", Some(Arc::new(Closed))).expect("clients log in");
    let port = server.local_address().port();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connect");
    let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).expect("send");
    stream
        .set_read_timeout(Some(ANSWER_TIME_MAX))
        .expect("timeout");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

/// A gate that admits no visitor.
struct Closed;

impl Gate for Closed {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn visitor(&self, _: SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
        Arc::new(Closed)
    }
}

impl Visitor for Closed {
    fn admit(
        self: Arc<Self>,
        _: Visited,
        _: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        Box::pin(ready(Admission::Denied))
    }
}

#[test]
fn an_address_in_use_is_an_error() {
    let server = start();
    let second = Server::start(
        TcpNetwork,
        server.local_address(),
        Sample::new(),
        Options::default(),
    );
    let error = second.err().expect("it is in use");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
