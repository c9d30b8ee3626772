//! Clients of HTTP/2.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use axum::http::{Method, Request, StatusCode};
use bytes::Bytes;
use h2::client::{self, SendRequest};
use millstream_serve::Server;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::keys::node;
use crate::queries::{echo, serving, settings, streaming};
use crate::support::{ANSWER_TIME_MAX, start, start_with};

/// Runs a client. A server is started elsewhere, since that blocks.
fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build();
    let client = async { timeout(ANSWER_TIME_MAX, client).await };
    runtime.unwrap().block_on(client).expect("answers in time")
}

/// Opens a connection.
async fn open(server: &Server) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(server.local_address()).await.unwrap();
    let (requests, connection) = client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    requests
}

/// Returns a request for a path of the server.
fn get(server: &Server, path: &str) -> Request<()> {
    let uri = format!("http://{}{path}", server.local_address());
    Request::builder().uri(uri).body(()).unwrap()
}

async fn ask(
    requests: &mut SendRequest<Bytes>,
    request: Request<()>,
    body: &'static str,
) -> (StatusCode, String) {
    poll_fn(|context| requests.poll_ready(context))
        .await
        .unwrap();
    let (response, mut sender) = requests.send_request(request, body.is_empty()).unwrap();
    if !body.is_empty() {
        sender.send_data(body.into(), true).unwrap();
    }
    let response = response.await.unwrap();
    let status = response.status();
    let mut pieces = response.into_body();
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.data().await {
        let piece = piece.unwrap();
        pieces.flow_control().release_capacity(piece.len()).unwrap();
        bytes.extend_from_slice(&piece);
    }
    (status, String::from_utf8(bytes).unwrap())
}

#[test]
fn requests_at_once_share_a_connection() {
    let server = start();
    run(async {
        let mut requests = open(&server).await;
        // The first answer comes behind the server's bounds.
        ask(&mut requests, get(&server, "/healthz"), "").await;
        let mut asked = JoinSet::new();
        for number in 0..100 {
            let path = format!("/state/ads/campaign_counts/campaign-{number:05}");
            let (request, mut requests) = (get(&server, &path), requests.clone());
            asked.spawn(async move { (number, ask(&mut requests, request, "").await) });
        }
        while let Some(answer) = asked.join_next().await {
            let (number, (status, body)) = answer.unwrap();
            assert_eq!(status, 200, "{body}");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["views"], number);
        }
    });
}

#[test]
fn hosts_and_origins_are_checked() {
    let server = start();
    run(async {
        let mut requests = open(&server).await;
        let elsewhere = Request::builder().uri("http://a.example/healthz");
        let answer = ask(&mut requests, elsewhere.body(()).unwrap(), "").await;
        assert_eq!(answer.0, 403);
        assert!(answer.1.contains("Host"), "{answer:?}");
        let mut of_site = get(&server, "/healthz");
        let site = "https://a.example".parse().unwrap();
        of_site.headers_mut().insert("origin", site);
        let (status, _) = ask(&mut requests, of_site, "").await;
        assert_eq!(status, 403);
        let (status, _) = ask(&mut requests, get(&server, "/healthz"), "").await;
        assert_eq!(status, 200);
    });
}

#[test]
fn a_flow_gets_the_request_and_a_large_body_is_refused() {
    let server = start_with(serving(settings(), echo));
    run(async {
        let mut requests = open(&server).await;
        let post = || {
            let mut request = get(&server, "/q/echo%20%26%20co/a?b=c");
            *request.method_mut() = Method::POST;
            request
        };
        let (status, body) = ask(&mut requests, post(), "text").await;
        assert_eq!(status, 203, "{body}");
        let got: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(got["method"], "POST");
        assert_eq!(got["segment"], "a");
        assert_eq!(got["query"], json!([["b", "c"]]));
        assert_eq!(got["body"], "text");
        let host = json!(["host", server.local_address().to_string()]);
        let headers = got["headers"].as_array().unwrap();
        assert!(headers.contains(&host), "{headers:?}");
        let large = "x".repeat(2_000).leak();
        let (status, body) = ask(&mut requests, post(), large).await;
        assert_eq!(status, 413, "{body}");
    });
}

#[test]
fn a_streamed_response_arrives_piece_by_piece_and_an_aborted_one_has_no_end() {
    let (content, chunks) = streaming();
    let server = start_with(content);
    run(async {
        let mut requests = open(&server).await;
        for is_whole in [true, false] {
            let request = get(&server, "/q/echo%20%26%20co/");
            let (response, _) = requests.send_request(request, true).unwrap();
            let mut pieces = response.await.unwrap().into_body();
            let body = chunks.recv_timeout(ANSWER_TIME_MAX).unwrap();
            for piece in ["one", "two"] {
                body.send(piece).unwrap();
                assert_eq!(pieces.data().await.unwrap().unwrap(), piece);
            }
            match is_whole {
                true => drop(body),
                false => body.abort(),
            }
            let end = pieces.data().await.transpose();
            assert_eq!(end.is_ok(), is_whole);
            assert_eq!(end.ok().flatten().unwrap_or_default(), "");
        }
    });
}

#[test]
fn a_watch_sends_its_changes_and_its_end() {
    let server = node();
    run(async {
        let mut requests = open(&server).await;
        let (status, body) = ask(&mut requests, get(&server, "/kv/t?watch"), "").await;
        assert_eq!(status, 200, "{body}");
        let lines = body.lines().filter(|line| !line.starts_with("id: "));
        let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 4, "{body}");
        assert_eq!((lines[0], lines[2]), ("event: change", "event: end"));
        assert!(lines[1].contains("\"key\":\"k\""), "{body}");
        let (status, body) = ask(&mut requests, get(&server, "/kv/none?watch"), "").await;
        assert_eq!(status, 404, "{body}");
    });
}

#[test]
fn oversized_heads_are_refused() {
    let server = start();
    run(async {
        let mut requests = open(&server).await;
        let mut request = get(&server, "/healthz");
        let long = "x".repeat(20_000).parse().unwrap();
        request.headers_mut().insert("x-long", long);
        let (status, _) = ask(&mut requests, request, "").await;
        assert_eq!(status, 431);
    });
}

#[test]
fn a_connection_without_a_request_is_closed() {
    let server = start();
    let began_at = Instant::now();
    run(async {
        let stream = TcpStream::connect(server.local_address()).await.unwrap();
        let (requests, connection) = client::handshake(stream).await.unwrap();
        // An error says that the server has closed it.
        let _ = connection.await;
        drop(requests);
    });
    let held = began_at.elapsed();
    assert!(held > Duration::from_secs(1), "{held:?}");
    assert!(held < Duration::from_secs(10), "{held:?}");
}
