//! Requests to serving flows.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{Credentials, TcpNetwork};
use millstream_flow::serving::{
    Call, Chunks, Reply, Request, RequestSettings, Requests, Respond, Response,
};
use millstream_flow::{BoxError, DeadLetter, DeadLetters, Emit, Flow, FlowSettings, Running};
use millstream_serve::{Admission, Content, Gate, Metric, Options, Server, Visited, Visitor};
use serde_json::{Value, json};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::support::{Answer, connect, exchange, get, request, start, start_with};

/// The web site that may use the flow.
const SHOP: &str = "https://shop.example.com";

struct NoLetters;

impl DeadLetters for NoLetters {
    fn put(&self, _: &[DeadLetter]) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A node with serving flows.
pub struct Serving {
    running: Vec<Arc<Running>>,
    requests: Vec<Requests>,
}

impl Content for Serving {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.running.clone()
    }

    fn overview(&self) -> Value {
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    fn requests(&self) -> Vec<Requests> {
        self.requests.clone()
    }
}

pub fn settings() -> RequestSettings {
    RequestSettings {
        body_bytes_max: 1_000,
        time_max: Duration::from_secs(20),
        origins: vec![SHOP.to_owned()],
        ..RequestSettings::default()
    }
}

/// Returns a node with one flow, "echo & co", of this operator.
pub fn serving(
    settings: RequestSettings,
    answer: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static,
) -> Arc<Serving> {
    let of_flow = FlowSettings {
        dead_letters: Some(Arc::new(NoLetters)),
        ..FlowSettings::default()
    };
    serving_with(of_flow, settings, answer)
}

fn serving_with(
    of_flow: FlowSettings,
    settings: RequestSettings,
    answer: impl Fn(&Call) -> Option<Reply> + Send + Sync + 'static,
) -> Arc<Serving> {
    let flow = Flow::with_settings("echo & co", of_flow);
    let requests = Requests::new(&flow, settings);
    flow.sources("requests", requests.sources(2))
        .flat_map(move |call: &Call, emit: &mut Emit<'_, Reply>| {
            if let Some(reply) = answer(call) {
                emit(&reply);
            }
        })
        .sink("respond", Respond);
    let running = Arc::new(flow.run().unwrap());
    requests.begin(&running).unwrap();
    Arc::new(Serving {
        running: vec![running],
        requests: vec![requests],
    })
}

/// Answers with all that the flow has got.
pub fn echo(call: &Call) -> Option<Reply> {
    let headers = call.headers().map(|(name, value)| {
        let value = String::from_utf8_lossy(value).into_owned();
        (name.to_owned(), value)
    });
    let got = json!({
        "method": call.method(),
        "path": call.path(),
        "segment": call.segment(0),
        "query": call.query_pairs().collect::<Vec<_>>(),
        "headers": headers.collect::<Vec<_>>(),
        "body": String::from_utf8_lossy(call.body()),
    });
    Some(call.reply(Response::json(&got).status(203).header("X-Flow", "echo")))
}

/// Sends a request with these first lines, and reads until the server closes.
fn send(server: &Server, head: &str, body: &str) -> Answer {
    let (line, headers) = head.split_once("\r\n").expect("a request line");
    let length = match body.is_empty() {
        true => String::new(),
        false => format!("Content-Length: {}\r\n", body.len()),
    };
    send_as_is(server, line, &format!("{headers}{length}"), body)
}

fn send_as_is(server: &Server, line: &str, headers: &str, body: &str) -> Answer {
    let host = server.local_address();
    let request = format!("{line}\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n{body}");
    exchange(server, &request)
}

#[test]
fn a_flow_gets_the_whole_request_and_its_response_is_the_answer() {
    let server = start_with(serving(settings(), echo));
    let head = "PATCH /q/echo%20%26%20co/gr%C3%BC%C3%9Fe/../x?n=10&q=a+b HTTP/1.1\r\nX-Mine: 1\r\nAuthorization: Basic YTpi\r\n";
    let answer = send(&server, head, "the body");
    assert_eq!(answer.status, 203);
    assert!(answer.head.contains("x-flow: echo"));
    assert!(answer.head.contains("cache-control: no-store"));
    let got = answer.json();
    assert_eq!(got["method"], "PATCH");
    assert_eq!(got["path"], "/gr%C3%BC%C3%9Fe/../x");
    assert_eq!(got["segment"], "grüße");
    assert_eq!(got["query"], json!([["n", "10"], ["q", "a b"]]));
    assert_eq!(got["body"], "the body");
    let headers = got["headers"].to_string();
    assert!(headers.contains(r#"["x-mine","1"]"#), "{headers}");
    assert!(!headers.contains("YTpi"), "{headers}");
    for path in ["/q/echo%20%26%20co", "/q/echo%20%26%20co/"] {
        assert_eq!(get(&server, path).json()["path"], "/");
    }
    for method in ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PROPFIND"] {
        let head = format!("{method} /q/echo%20%26%20co/x HTTP/1.1\r\n");
        assert_eq!(send(&server, &head, "").json()["method"], method);
    }
    let head = send(&server, "HEAD /q/echo%20%26%20co/x HTTP/1.1\r\n", "");
    assert_eq!((head.status, &*head.body), (203, ""));
    let trace = send(&server, "TRACE /q/echo%20%26%20co/x HTTP/1.1\r\n", "");
    trace.check_error(405, "TRACE is not allowed");
    for target in ["/q/echo%20%26%20co/%FF", "/q/echo%20%26%20co/x?n=%FF"] {
        get(&server, target).check_error(400, "UTF-8");
    }
}

#[test]
fn an_unknown_flow_is_answered_with_those_that_there_are() {
    let server = start_with(serving(settings(), echo));
    let answer = get(&server, "/q/other/x");
    answer.check_error(404, "unknown serving flow \"other\"");
    answer.check_error(404, "those that take requests are echo & co");
    get(&start(), "/q/ads").check_error(404, "no flow of this node takes requests");
    get(&server, "/q").check_error(404, "no page at \"/q\"");
}

#[test]
fn a_body_beyond_the_bound_is_refused_and_not_read_if_its_size_is_announced() {
    let server = start_with(serving(settings(), echo));
    let path = "POST /q/echo%20%26%20co/x HTTP/1.1\r\n";
    let largest = send(&server, path, &"x".repeat(1_000));
    assert_eq!(largest.json()["body"].as_str().unwrap().len(), 1_000);
    // It waits for permission to send the body, so an answer without it shows that the server reads none.
    let head = format!("{path}Expect: 100-continue\r\nContent-Length: 1000000000\r\n");
    send(&server, &head, "").check_error(413, "too large");
    let body = format!("258\r\n{0}\r\n258\r\n{0}\r\n0\r\n\r\n", "x".repeat(600));
    let chunked = "Transfer-Encoding: chunked\r\n";
    send_as_is(&server, path.trim_end(), chunked, &body).check_error(413, "too large");
    assert_eq!(send(&server, path, "still here").status, 203);
}

#[test]
fn a_request_that_the_flow_drops_or_answers_wrongly_shows_no_internals() {
    let content = serving(settings(), |call| match call.path() {
        "/panic" => panic!("a test of a panic with a secret"),
        "/status" => Some(call.reply(Response::new(42))),
        "/header" => Some(call.reply(Response::new(200).header("a b", "secret"))),
        "/split" => Some(call.reply(Response::new(200).header("a", "b\r\nc: d"))),
        "/length" => Some(call.reply(Response::text("all").header("Content-Length", "1"))),
        _ => None,
    });
    let server = start_with(content);
    for path in ["dropped", "panic"] {
        let since = Instant::now();
        let answer = get(&server, &format!("/q/echo%20%26%20co/{path}"));
        answer.check_error(500, "has dropped this request");
        assert!(!answer.body.contains("secret"));
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    for path in ["status", "header", "split"] {
        let answer = get(&server, &format!("/q/echo%20%26%20co/{path}"));
        answer.check_error(500, "that HTTP does not have");
        assert!(!answer.body.contains("secret"));
    }
    let answer = get(&server, "/q/echo%20%26%20co/length");
    assert_eq!(answer.body, "all");
}

#[test]
fn a_flow_that_does_not_answer_is_late_and_a_full_queue_is_busy_at_once() {
    let bounds = RequestSettings {
        requests_max: 2,
        time_max: Duration::from_millis(300),
        ..settings()
    };
    // It keeps all calls.
    let content = serving(bounds, |call| {
        std::mem::forget(call.clone());
        None
    });
    let server = start_with(content);
    let path = "/q/echo%20%26%20co/x";
    get(&server, path).check_error(504, "has not answered within 0.3 s");
    get(&server, path).check_error(504, "has not answered");
    let since = Instant::now();
    let busy = get(&server, path);
    busy.check_error(503, "try again later");
    assert!(busy.head.contains("retry-after: 1"), "{}", busy.head);
    assert!(since.elapsed() < Duration::from_millis(300));
}

/// Sends a request that waits in the flow, ends the flow, and returns the answer.
fn answer_at_the_end(content: Arc<Serving>, end: impl FnOnce(&Server)) -> (Server, Answer) {
    let requests = content.requests[0].clone();
    let server = start_with(content);
    let waiting = thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&server, "/q/echo%20%26%20co/keep"));
        let since = Instant::now();
        while requests.waiting() == 0 {
            assert!(since.elapsed() < Duration::from_secs(20));
            thread::sleep(Duration::from_millis(1));
        }
        end(&server);
        waiting.join().unwrap()
    });
    (server, waiting)
}

/// Keeps all calls, and panics for one of them.
fn keep(call: &Call) -> Option<Reply> {
    assert_ne!(call.path(), "/panic", "a test of a panic with a secret");
    std::mem::forget(call.clone());
    None
}

#[test]
fn requests_to_a_flow_that_ends_are_answered_even_if_they_wait() {
    let content = serving(settings(), keep);
    let running = Arc::clone(&content.running[0]);
    let (server, waiting) = answer_at_the_end(content, |_| running.stop());
    waiting.check_error(503, "the flow \"echo & co\" has ended");
    get(&server, "/q/echo%20%26%20co/x").check_error(503, "has ended");
}

#[test]
fn requests_to_a_flow_that_fails_get_the_class_of_its_error() {
    // Without dead letters, a panic ends the flow.
    let content = serving_with(FlowSettings::default(), settings(), keep);
    let panic = |server: &Server| drop(get(server, "/q/echo%20%26%20co/panic"));
    let (server, waiting) = answer_at_the_end(content, panic);
    for answer in [waiting, get(&server, "/q/echo%20%26%20co/x")] {
        answer.check_error(503, "has failed, since an operator panicked");
        assert!(!answer.body.contains("secret"));
    }
}

#[test]
fn a_client_that_leaves_frees_its_place() {
    let (sender, calls) = mpsc::channel();
    let content = serving(settings(), move |call| {
        sender.send(call.clone()).unwrap();
        None
    });
    let requests = content.requests[0].clone();
    let server = start_with(content);
    let mut stream = connect(&server);
    let host = server.local_address();
    write!(
        stream,
        "GET /q/echo%20%26%20co/x HTTP/1.1\r\nHost: {host}\r\n\r\n"
    )
    .unwrap();
    let call: Call = calls.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(!call.is_settled());
    drop(stream);
    let since = Instant::now();
    while !call.is_settled() {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "the call goes on"
        );
        thread::sleep(Duration::from_millis(1));
    }
    drop(call.reply(Response::text("too late")));
    drop(call);
    while requests.waiting() > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "it leaks");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_of_one_connection_come_in_their_order() {
    let server = start_with(serving(settings(), |call| {
        Some(call.reply(Response::text(call.path())))
    }));
    let host = server.local_address();
    let mut stream = connect(&server);
    let mut sent = String::new();
    for number in 0..20 {
        let end = if number == 19 {
            "Connection: close\r\n"
        } else {
            ""
        };
        sent +=
            &format!("GET /q/echo%20%26%20co/{number:02} HTTP/1.1\r\nHost: {host}\r\n{end}\r\n");
    }
    stream.write_all(sent.as_bytes()).unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    let bodies: Vec<_> = answers.split("\r\n\r\n").skip(1).collect();
    assert_eq!(bodies.len(), 20);
    for (number, body) in bodies.iter().enumerate() {
        assert!(body.starts_with(&format!("/{number:02}")), "{body}");
    }
}

/// A flow that streams what the test sends.
pub fn streaming() -> (Arc<Serving>, mpsc::Receiver<Chunks>) {
    let (sender, chunks) = mpsc::channel();
    let content = serving(settings(), move |call| {
        let (chunks, response) = Response::streamed("text/plain");
        sender.send(chunks).unwrap();
        Some(call.reply(response))
    });
    (content, chunks)
}

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let (mut got, mut byte) = (Vec::new(), [0]);
    while !got.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{got:?}");
        got.push(byte[0]);
    }
    String::from_utf8(got).unwrap()
}

#[test]
fn a_streamed_response_arrives_piece_by_piece() {
    let (content, chunks) = streaming();
    let server = start_with(content);
    let host = server.local_address();
    let mut stream = connect(&server);
    write!(
        stream,
        "GET /q/echo%20%26%20co/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
    )
    .unwrap();
    let body = chunks.recv_timeout(Duration::from_secs(20)).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n").to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    for piece in ["one", "two"] {
        body.send(piece).unwrap();
        assert_eq!(read_until(&mut stream, piece), format!("3\r\n{piece}"));
        read_until(&mut stream, "\r\n");
    }
    drop(body);
    assert_eq!(read_until(&mut stream, "0\r\n\r\n"), "0\r\n\r\n");
    // A body that is not whole has no end.
    write!(
        stream,
        "GET /q/echo%20%26%20co/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
    )
    .unwrap();
    let body = chunks.recv_timeout(Duration::from_secs(20)).unwrap();
    body.send("part").unwrap();
    let head = read_until(&mut stream, "part");
    assert!(head.contains("200 OK"), "{head}");
    body.abort();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    let rest = String::from_utf8(rest).unwrap();
    assert_eq!(rest, "\r\n");
}

#[test]
fn the_sender_of_a_stream_waits_for_a_slow_client_and_learns_that_it_left() {
    let (content, chunks) = streaming();
    let server = start_with(content);
    let host = server.local_address();
    let mut stream = connect(&server);
    write!(
        stream,
        "GET /q/echo%20%26%20co/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
    )
    .unwrap();
    let body = chunks.recv_timeout(Duration::from_secs(20)).unwrap();
    // Sockets hold some megabytes.
    let sending = thread::spawn(move || {
        let mut sent = 0_u64;
        while body.send(vec![b'x'; 16 << 10]).is_ok() {
            sent += 16 << 10;
            assert!(sent < 256 << 20, "nothing holds it back");
        }
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!sending.is_finished());
    drop(stream);
    sending.join().unwrap();
}

#[test]
fn only_pages_of_named_sites_may_use_a_flow() {
    let server = start_with(serving(settings(), echo));
    let send = |method: &str, headers: &str| {
        let head = format!("{method} /q/echo%20%26%20co/x HTTP/1.1\r\n{headers}");
        send(&server, &head, "")
    };
    let own = format!("Origin: http://{}\r\n", server.local_address());
    assert_eq!(send("POST", &own).status, 203);
    let shop = format!("Origin: {SHOP}\r\nSec-Fetch-Site: cross-site\r\n");
    let allowed = send("POST", &shop);
    assert_eq!(allowed.status, 203);
    let marks = format!("access-control-allow-origin: {SHOP}");
    assert!(allowed.head.contains(&marks), "{}", allowed.head);
    assert!(allowed.head.contains("vary: origin"), "{}", allowed.head);
    for other in [
        "https://evil.example.com",
        "null",
        "https://shop.example.com:8443",
    ] {
        for method in ["POST", "GET", "OPTIONS"] {
            let refused = send(method, &format!("Origin: {other}\r\n"));
            refused.check_error(403, "another site makes this request");
            assert!(!refused.head.contains("access-control"), "{}", refused.head);
        }
    }
    send("POST", "Sec-Fetch-Site: cross-site\r\n").check_error(403, "another site");
    // A browser asks first.
    let asks = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-mine\r\n";
    let answer = send("OPTIONS", &format!("{shop}{asks}"));
    assert_eq!(answer.status, 204, "{answer:?}");
    for header in [
        &*marks,
        "access-control-allow-methods: put",
        "access-control-allow-headers: x-mine",
        "access-control-max-age: 600",
    ] {
        assert!(answer.head.contains(header), "{}", answer.head);
    }
    assert!(!answer.head.contains("allow-credentials"));
    let evil = send(
        "OPTIONS",
        &format!("Origin: https://evil.example.com\r\n{asks}"),
    );
    assert_eq!(evil.status, 403);
    // The names of hosts count here, too.
    request(&server, "GET", "/q/echo%20%26%20co/x", "evil.example.com").check_error(403, "Host");
}

/// Admits visitors with a login to the flow "echo & co", and to nothing else.
struct Guarded;

impl Gate for Guarded {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn visitor(&self, _: std::net::SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
        Arc::new(Guarded)
    }
}

impl Visitor for Guarded {
    fn admit(
        self: Arc<Self>,
        visited: Visited,
        credentials: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        let admission = match (credentials, visited) {
            (None, _) => Admission::LogIn { takes_tokens: true },
            (_, Visited::Query(flow)) if flow == "echo & co" => Admission::Allowed,
            _ => Admission::Denied,
        };
        Box::pin(std::future::ready(admission))
    }
}

#[test]
fn requests_to_a_flow_are_a_right_of_their_own() {
    let options = Options {
        gate: Some(Arc::new(Guarded)),
        hosts: Vec::new(),
        ..Options::default()
    };
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let content = serving(settings(), echo);
    let server = Server::start(TcpNetwork, address, content, options).unwrap();
    let login = "Authorization: Bearer forged\r\n";
    let send = |path: &str, headers: &str| {
        send(&server, &format!("POST {path} HTTP/1.1\r\n{headers}"), "")
    };
    send("/q/echo%20%26%20co/x", "").check_error(401, "log in");
    assert_eq!(send("/q/echo%20%26%20co/x", login).status, 203);
    let denied = send("/q/secret/x", login);
    denied.check_error(403, "this user may not send requests to this flow");
    assert!(!denied.body.contains("echo"), "{}", denied.body);
    // A browser asks without a login.
    let asks = format!("Origin: {SHOP}\r\nAccess-Control-Request-Method: PUT\r\n");
    let head = format!("OPTIONS /q/echo%20%26%20co/x HTTP/1.1\r\n{asks}");
    assert_eq!(self::send(&server, &head, "").status, 204);
}

#[test]
fn callers_in_the_process_and_over_http_share_a_flow() {
    let content = serving(settings(), echo);
    let requests = content.requests[0].clone();
    let server = start_with(content);
    let here = requests.call(Request::get("/x?n=1")).wait().unwrap();
    let here: Value = serde_json::from_str(here.body_text().unwrap()).unwrap();
    let there = get(&server, "/q/echo%20%26%20co/x?n=1").json();
    for field in ["method", "path", "query", "body"] {
        assert_eq!(here[field], there[field]);
    }
}
