//! The server as its clients see it, byte for byte over TCP.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_base::TcpNetwork;
use millstream_flow::StateReader;
use millstream_serve::{Content, Server};
use serde_json::{Value, json};

/// Far more than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

struct Known(BTreeMap<String, Value>);

impl StateReader for Known {
    fn get(&self, key: &str) -> Option<Value> {
        self.0.get(key).cloned()
    }

    fn keys(&self, limit: usize) -> Vec<String> {
        self.0.keys().rev().take(limit).cloned().collect()
    }
}

/// A state element whose reading is broken.
struct Broken;

impl StateReader for Broken {
    fn get(&self, _: &str) -> Option<Value> {
        panic!("a test of what a broken state element does to its server")
    }

    fn keys(&self, _: usize) -> Vec<String> {
        Vec::new()
    }
}

struct Sample;

impl Content for Sample {
    fn flows(&self) -> Vec<String> {
        vec!["ads".to_owned(), "two words".to_owned()]
    }

    fn state(&self, flow: &str, element: &str) -> Option<Arc<dyn StateReader>> {
        let counts = |count| {
            let entries = (0..count).map(|n| (format!("campaign-{n:05}"), json!({ "views": n })));
            Some(Arc::new(Known(entries.collect())) as Arc<dyn StateReader>)
        };
        match (flow, element) {
            ("ads", "campaign_counts") => counts(150),
            ("ads", "large") => counts(20_000),
            ("ads", "broken") => Some(Arc::new(Broken)),
            ("two words", "a/b") => Some(Arc::new(Known(BTreeMap::from([
                ("grüße/☃ 100%".to_owned(), json!(7)),
                ("plus+plus".to_owned(), json!(8)),
            ])))),
            _ => None,
        }
    }

    fn overview(&self) -> Value {
        json!({ "name": "millstream", "flow": "ads", "events": 5 })
    }

    fn metrics(&self) -> String {
        "# TYPE millstream_events_total counter\nmillstream_events_total 5\n".to_owned()
    }
}

fn start() -> Server {
    start_with(Arc::new(Sample))
}

fn start_with(content: Arc<dyn Content>) -> Server {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::start(TcpNetwork, address, content).expect("a free port")
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_address()).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.head.contains("content-type: application/json"));
        serde_json::from_str(&self.body).expect("JSON")
    }

    #[track_caller]
    fn check_error(&self, status: u16, says: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        let message = json["error"].as_str().expect("a message");
        assert!(message.contains(says), "{message}");
    }
}

/// Sends `request` and reads until the server closes.
fn exchange(server: &Server, request: &str) -> Answer {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = Vec::new();
    // A server that closes before it has read everything makes the system report a reset.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    Answer {
        status: head[9..12].parse().expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

fn request(server: &Server, method: &str, path: &str, host: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(server, &request)
}

fn get(server: &Server, path: &str) -> Answer {
    request(server, "GET", path, &server.local_address().to_string())
}

#[test]
fn the_page_comes_with_a_policy_that_lets_it_talk_to_this_server_only() {
    let answer = get(&start(), "/");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/html"));
    assert!(answer.head.contains("default-src 'none'"));
    assert!(!answer.head.contains("unsafe"));
    assert!(answer.body.starts_with("<!doctype html>"));
}

#[test]
fn health_overview_flows_and_metrics() {
    let server = start();
    let health = get(&server, "/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    assert_eq!(get(&server, "/api/v1/overview").json(), Sample.overview());
    let flows = get(&server, "/api/v1/flows").json();
    assert_eq!(flows, json!(["ads", "two words"]));
    let metrics = get(&server, "/metrics");
    assert_eq!(metrics.body, Sample.metrics());
    let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(metrics.head.contains(content_type));
    assert!(metrics.head.contains("cache-control: no-store"));
    assert!(metrics.head.contains("x-content-type-options: nosniff"));
}

#[test]
fn one_value_by_its_key() {
    let server = start();
    let answer = get(&server, "/state/ads/campaign_counts/campaign-00042");
    assert_eq!(answer.json(), json!({ "views": 42 }));
}

#[test]
fn names_and_keys_hold_any_percent_encoded_text() {
    let server = start();
    let path = "/state/two%20words/a%2Fb/gr%C3%BC%C3%9Fe%2F%E2%98%83%20100%25";
    assert_eq!(get(&server, path).json(), json!(7));
    let path = "/state/two%20words/a%2Fb/plus+plus";
    assert_eq!(get(&server, path).json(), json!(8));
    get(&server, "/state/two%20words/a%2Fb/%FF").check_error(400, "UTF-8");
}

#[test]
fn entries_are_ordered_and_bounded() {
    let server = start();
    let count = |path| {
        let list = get(&server, path).json();
        let list = list.as_array().expect("a list").clone();
        assert!(list.is_sorted_by_key(|entry| entry["key"].to_string()));
        list.len()
    };
    assert_eq!(count("/state/ads/campaign_counts"), 100);
    assert_eq!(count("/state/ads/campaign_counts?limit=3"), 3);
    assert_eq!(count("/state/ads/campaign_counts?limit=10000"), 150);
    assert_eq!(count("/state/ads/large?limit=10000"), 10_000);
    let last = get(&server, "/state/ads/campaign_counts?limit=1").json();
    let entry = json!([{ "key": "campaign-00149", "value": { "views": 149 } }]);
    assert_eq!(last, entry);
}

#[test]
fn a_query_that_makes_no_sense_is_refused() {
    let server = start();
    let list = |query: &str| get(&server, &format!("/state/ads/campaign_counts?{query}"));
    for query in ["limit=0", "limit=10001", "limit=many", "limit=-1", "limt=3"] {
        let answer = list(query);
        answer.check_error(400, &format!("the query \"{query}\" is refused"));
        answer.check_error(400, "limit=<n>, a number from 1 to 10000");
        // The words of a library would mean nothing to whoever asks.
        assert!(!answer.body.contains("deserialize"), "{}", answer.body);
    }
}

#[test]
fn what_is_unknown_is_named() {
    let server = start();
    get(&server, "/state/adds/campaign_counts").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/adds/x/y").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/ads/counts/x").check_error(404, r#"unknown element "counts""#);
    let answer = get(&server, "/state/ads/campaign_counts/x%20y");
    answer.check_error(404, r#"unknown key "x y""#);
    get(&server, "/state").check_error(404, "nothing at \"/state\"");
    get(&server, "/api/v2/overview").check_error(404, "/api/v1/overview");
}

#[test]
fn a_broken_state_element_breaks_one_request() {
    let server = start();
    get(&server, "/state/ads/broken/x").check_error(500, "report it");
    assert_eq!(get(&server, "/api/v1/overview").status, 200);
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

/// How long the server keeps a connection on which the client sent `sent` and no more.
fn time_kept(server: &Server, sent: &str) -> Duration {
    let mut stream = connect(server);
    stream.write_all(sent.as_bytes()).expect("send");
    let start = Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server closes");
    start.elapsed()
}

#[test]
fn clients_that_say_nothing_or_stop_halfway_are_let_go() {
    let server = start();
    std::thread::scope(|scope| {
        for sent in [
            "",
            "GET / HT",
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let server = &server;
            scope.spawn(move || {
                let kept = time_kept(server, sent);
                assert!(kept > Duration::from_secs(1), "{sent:?} {kept:?}");
                assert!(kept < Duration::from_secs(10), "{sent:?} {kept:?}");
            });
        }
    });
}

/// 1,100 connections need 2,200 files in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
}

/// A node that answers only as long as the gate is not held.
#[derive(Default)]
struct Gated(Mutex<()>);

impl Content for Gated {
    fn flows(&self) -> Vec<String> {
        Vec::new()
    }

    fn state(&self, _: &str, _: &str) -> Option<Arc<dyn StateReader>> {
        None
    }

    fn overview(&self) -> Value {
        let _open = self.0.lock();
        json!({})
    }

    fn metrics(&self) -> String {
        String::new()
    }
}

#[test]
fn connections_beyond_the_bound_wait_for_a_place() {
    allow_many_files();
    let gated = Arc::new(Gated::default());
    let server = start_with(gated.clone());
    let ask = |path: &str| {
        let mut stream = connect(&server);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("send");
        stream
    };
    let is_answered = |stream: &mut TcpStream, patience| -> bool {
        stream.set_read_timeout(Some(patience)).expect("timeout");
        stream.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0)
    };
    let gate = gated.0.lock();
    let mut streams: Vec<TcpStream> = (0..1_024).map(|_| ask("/api/v1/overview")).collect();
    let mut waiting: Vec<TcpStream> = (1_024..1_100).map(|_| ask("/healthz")).collect();
    assert!(!is_answered(&mut waiting[0], Duration::from_millis(200)));
    drop(gate);
    for stream in streams.iter_mut().chain(&mut waiting) {
        assert!(is_answered(stream, PATIENCE));
    }
}

#[test]
fn stopping_is_prompt_and_frees_the_port() {
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
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0);
    assert_eq!(idle.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_in_use_is_an_error() {
    let server = start();
    let second = Server::start(TcpNetwork, server.local_address(), Arc::new(Sample));
    let error = second.err().expect("it is in use");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}
