//! HTTP of `millstream start` and of flows.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::support::{
    Server, address_of, finish, get, get_json, program, run, run_with_input, send_signal,
    wait_until,
};
use crate::tokens::{CLAIMS, TokenSigner};

/// The password `a secret` of the user `admin`, and `another` of `bob`, as HTTP sends them.
const ADMIN: &str = "Authorization: Basic YWRtaW46YSBzZWNyZXQ=\r\n";
pub const BOB: &str = "Authorization: Basic Ym9iOmFub3RoZXI=\r\n";
const WRONG: &str = "Authorization: Basic YWRtaW46d3Jvbmc=\r\n";

/// A node with HTTP, and where that is.
pub fn start(data: &Path, args: &[&str]) -> (Server, String) {
    let mut server = Server::start(data, &[args, &["--http", "127.0.0.1:0"]].concat());
    let http = server.line();
    let http = http.trim().trim_end_matches('/');
    let (_, address) = http.rsplit_once('/').expect(http);
    (server, address.to_owned())
}

/// Makes a user of the node that stores its data below `dir`, before the node starts.
pub fn init_user(dir: &Path, user: &str, password: &str) {
    let password = format!("{password}\n").into_bytes();
    run_with_input(&dir.join("data"), &["user", "init", user], password).assert_done();
}

/// Starts a node with authentication that stores its data below `dir`. Its superuser logs in as [`ADMIN`] does.
pub fn start_with_admin(dir: &Path) -> (Server, String) {
    init_user(dir, "admin", "a secret");
    let args = ["--authentication", "--super-users", "admin"];
    start(&dir.join("data"), &args)
}

/// Runs a command on a node of [`start_with_admin`] as its superuser.
pub fn run_as_admin(server: &Server, dir: &Path, args: &[&str], input: &str) {
    let password = dir.join("password");
    fs::write(&password, "a secret\n").unwrap();
    let login = ["--user", "admin", "--password-file"];
    let args = [args, &login, &[password.to_str().unwrap()]].concat();
    server
        .run_with_input(&args, input.as_bytes().to_vec())
        .assert_done();
}

/// Returns the answer to a request with these headers.
pub fn get_with(address: &str, path: &str, headers: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    exchange(&mut connection, address, path, headers)
}

/// Sends a request with a body, and returns its answer.
pub fn send_with(address: &str, method: &str, path: &str, headers: &str, body: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    connection.write_all(head.as_bytes()).unwrap();
    connection.write_all(body).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

fn exchange(connection: &mut (impl Read + Write), host: &str, path: &str, headers: &str) -> String {
    write!(
        connection,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    // A server may close without a farewell of TLS.
    let _ = connection.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[track_caller]
pub fn assert_status(answer: &str, status: u16) {
    let expected = format!("HTTP/1.1 {status} ");
    assert!(answer.starts_with(&expected), "{status}: {answer}");
}

#[test]
fn start_serves_metrics_health_api_and_page_over_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    for path in ["/healthz", "/readyz"] {
        assert!(get(&http, path).ends_with("\r\n\r\nok"), "{path}");
    }
    assert!(get(&http, "/").contains("<title>Millstream</title>"));
    assert_eq!(get_json(&http, "/api/v1/flows"), Value::Array(Vec::new()));

    let create = ["stream", "create", "orders", "--lanes", "2"];
    server.run(&create).assert_done();
    let input = b"one\ntwo\nthree\n".to_vec();
    let produced = server.run_with_input(&["produce", "orders"], input);
    produced.assert_done();
    let consume = ["consume", "orders", "--group", "shop", "--limit", "1"];
    server.run(&consume).assert_done();

    wait_until("all is seen", || {
        let overview = get_json(&http, "/api/v1/overview");
        overview["durable_records"] == 3 && overview["groups"] == 1
    });
    let streams = get_json(&http, "/api/v1/streams");
    assert_eq!(streams.as_array().unwrap().len(), 1, "{streams}");
    assert_eq!(streams[0]["stream"], "orders");
    assert_eq!(streams[0]["partitions"], 2);
    assert_eq!(streams[0]["records"], 3);
    let groups = get_json(&http, "/api/v1/groups");
    assert_eq!(groups[0]["group"], "shop");
    assert_eq!(groups[0]["streams"][0]["stream"], "orders");
    let lag = groups[0]["streams"][0]["lag_records"].as_u64();

    let metrics = get(&http, "/metrics");
    let value = |name: &str| -> f64 {
        let name = format!("millstream_{name} ");
        let mut lines = metrics.lines();
        let value = lines.find_map(|line| line.strip_prefix(&name));
        value.expect(&name).parse().expect(&name)
    };
    assert_eq!(value("streams"), 1.0);
    assert_eq!(value("partitions"), 2.0);
    assert_eq!(value("disk_full"), 0.0);
    let of_partition = |name: &str, partition: u32| {
        value(&format!(
            "{name}{{stream=\"orders\",partition=\"{partition}\"}}"
        ))
    };
    let records = [0, 1].map(|partition| of_partition("partition_records", partition));
    assert_eq!(records[0] + records[1], 3.0);
    assert_eq!(of_partition("partition_faulted", 1), 0.0);
    let lag_metric = value("group_lag_records{group=\"shop\",stream=\"orders\"}");
    assert_eq!(Some(lag_metric as u64), lag);
    let produces = value("request_seconds_count{request=\"Produce\"}");
    assert!(produces >= 1.0);
    let in_buckets = value("request_seconds_bucket{request=\"Produce\",le=\"+Inf\"}");
    assert_eq!(in_buckets, produces);
    for name in [
        "connections_accepted_total",
        "pool_bytes",
        "journal_files",
        "disk_bytes",
        "disk_free_bytes",
        "resident_bytes",
    ] {
        assert!(value(name) > 0.0, "{name}");
    }
    for name in [
        "connections",
        "journal_bytes_total",
        "log_lines_total{level=\"error\"}",
    ] {
        assert!(value(name) >= 0.0, "{name}");
    }
    server.stop();
}

#[test]
fn the_sparkline_shows_the_seconds_before_the_page_was_opened() {
    let dir = tempdir().unwrap();
    let (server, http) = start(&dir.path().join("node"), &[]);
    let data = dir.path().join("quickstart");
    let args = ["quickstart", "--rate", "1000", "--http", "127.0.0.1:0"];
    let mut quickstart = crate::support::spawn(&data, &args);
    let other = address_of(&mut quickstart);
    for http in [&http, &other] {
        wait_until("there are rates", || {
            let overview = get_json(http, "/api/v1/overview");
            let rates = overview["last_records_per_second"].as_array().unwrap();
            rates.len() >= 2
        });
    }
    let rates = get_json(&other, "/api/v1/overview")["last_records_per_second"].take();
    let is_positive = |rate: &Value| rate.as_f64() > Some(0.0);
    assert!(rates.as_array().unwrap().iter().any(is_positive), "{rates}");
    send_signal(&quickstart, Signal::TERM);
    finish(quickstart).assert_done();
    server.stop();
}

#[test]
fn the_environment_sets_the_http_address_of_start() {
    let dir = tempdir().unwrap();
    let mut child = program()
        .env("MILLSTREAM_HTTP", "127.0.0.1:0")
        .env("MILLSTREAM_LISTEN", "127.0.0.1:0")
        .args(["start", "--data"])
        .arg(dir.path())
        .spawn()
        .unwrap();
    let http = address_of(&mut child);
    assert_status(&get(&http, "/metrics"), 200);
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
}

#[test]
fn http_uses_the_users_and_access_rules_of_the_network_listener() {
    let dir = tempdir().unwrap();
    init_user(dir.path(), "bob", "another");
    let (server, http) = start_with_admin(dir.path());
    for path in ["/healthz", "/readyz"] {
        assert_status(&get(&http, path), 200);
    }
    for path in [
        "/",
        "/metrics",
        "/api/v1/overview",
        "/api/v1/streams",
        "/nosuch",
    ] {
        let refused = get(&http, path);
        assert_status(&refused, 401);
        assert!(refused.contains("www-authenticate: Basic"), "{refused}");
        assert_status(&get_with(&http, path, WRONG), 401);
        let denied = get_with(&http, path, BOB);
        assert_status(&denied, 403);
        assert!(denied.contains("Describe on the cluster"), "{denied}");
    }
    let metrics = get_with(&http, "/metrics", ADMIN);
    assert_status(&metrics, 200);
    // They may be those of a second ago.
    wait_until("refused logins are counted", || {
        let metrics = get_with(&http, "/metrics", ADMIN);
        metrics.contains("\nmillstream_logins_refused_total 5\n")
            && metrics.contains("\nmillstream_denied_total 5\n")
    });

    let add = [
        "acl",
        "add",
        "allow",
        "--principal",
        "User:bob",
        "--operation",
        "describe",
        "--resource",
        "cluster",
    ];
    run_as_admin(&server, dir.path(), &add, "");
    assert_status(&get_with(&http, "/metrics", BOB), 200);
    let ended = server.stop();
    assert!(
        ended.stderr.contains("denied unverified \"admin\""),
        "{}",
        ended.stderr
    );
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
}

#[test]
fn wrong_passwords_over_http_delay_later_ones() {
    let dir = tempdir().unwrap();
    let (server, http) = start_with_admin(dir.path());
    let began = Instant::now();
    for _ in 0..6 {
        assert_status(&get_with(&http, "/metrics", WRONG), 401);
    }
    // The wait is 100 ms after the first, and twice as long after each further one.
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(3_100), "{waited:?}");
    // The correct password is delayed too, with and without HTTP: otherwise the time would show a wrong guess.
    run_as_admin(&server, dir.path(), &["stream", "list"], "");
    let waited = began.elapsed();
    assert!(waited >= Duration::from_millis(6_300), "{waited:?}");
    assert_status(&get_with(&http, "/metrics", ADMIN), 200);
    server.stop();
}

#[test]
fn http_accepts_tokens_of_the_network_listener() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let [signer, other] = ["k", "other"].map(TokenSigner::new);
    let keys = dir.path().join("keys.json");
    signer.write_keys(&keys);
    let args = ["--authentication", "--super-users", "alice", "--token-keys"];
    let args = [&args[..], &[keys.to_str().unwrap()], &CLAIMS].concat();
    let (server, http) = start(&data, &args);
    let ask = |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        get_with(&http, "/metrics", &header)
    };
    let alice = signer.token("alice", 600);
    assert_status(&ask(&alice), 200);
    let bob = signer.token("bob", 600);
    assert_status(&ask(&bob), 403);
    for refused in [
        "x",
        &signer.token("alice", -600),
        &other.token("alice", 600),
    ] {
        let answer = ask(refused);
        assert_status(&answer, 401);
        for scheme in ["Basic", "Bearer"] {
            let header = format!("www-authenticate: {scheme} realm=\"millstream\"");
            assert!(answer.contains(&header), "{answer}");
        }
    }
    wait_until("refused tokens are counted", || {
        ask(&alice).contains("\nmillstream_logins_refused_total 3\n")
    });
    let stderr = server.stop().stderr;
    assert!(!stderr.contains(&alice), "{stderr}");
    assert!(stderr.contains("\"User:alice\""), "{stderr}");
}

#[test]
fn http_offers_no_tokens_without_keys() {
    let dir = tempdir().unwrap();
    let (server, http) = start_with_admin(dir.path());
    let token = TokenSigner::new("k").token("admin", 600);
    let header = format!("Authorization: Bearer {token}\r\n");
    for headers in ["", &header] {
        let answer = get_with(&http, "/metrics", headers);
        assert_status(&answer, 401);
        assert!(answer.contains("www-authenticate: Basic"), "{answer}");
        assert!(!answer.contains("Bearer"), "{answer}");
    }
    server.stop();
}

#[test]
fn a_starting_node_is_alive_but_not_ready() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "orders"]).assert_done();
    // Opening it waits for a writer that never comes, as a disk that does not answer would.
    let index = data.join("streams/0/0-0-0000000001-00000000000000000000-0001.index");
    fs::remove_file(&index).unwrap();
    let made = Command::new("mkfifo").arg(&index).status().unwrap();
    assert!(made.success());
    let http = free_address();
    let child = Server::spawn(data, &["--http", &http]);
    wait_until("it answers", || TcpStream::connect(&http).is_ok());
    assert_status(&get(&http, "/healthz"), 200);
    let answer = get(&http, "/readyz");
    assert_status(&answer, 503);
    assert!(answer.contains("starts"), "{answer}");
    send_signal(&child, Signal::TERM);
    finish(child);
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The status that a request for the flows gets on an open connection, with these lines of a header.
fn status_of_flows(connection: &mut TcpStream, http: &str, login: &str) -> String {
    write!(
        connection,
        "GET /api/v1/flows HTTP/1.1\r\nHost: {http}\r\n{login}\r\n"
    )
    .unwrap();
    let mut answer = [0; 4096];
    let bytes = connection.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[9..bytes.min(12)]).into_owned()
}

#[test]
fn a_token_over_http_ends_on_open_connections() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let signer = TokenSigner::new("k");
    let keys = dir.path().join("keys.json");
    signer.write_keys(&keys);
    let args = ["--authentication", "--super-users", "alice", "--token-keys"];
    let args = [&args[..], &[keys.to_str().unwrap()], &CLAIMS].concat();
    let (server, http) = start(&data, &args);
    // Clocks may differ by 30 seconds.
    let token = signer.token("alice", -15);
    let mut connection = TcpStream::connect(&http).unwrap();
    let bearer = format!("Authorization: Bearer {token}\r\n");
    let mut status = || status_of_flows(&mut connection, &http, &bearer);
    assert_eq!(status(), "200");
    wait_until("the token has ended", || status() == "401");
    server.stop();
}

#[test]
fn a_changed_password_applies_to_open_http_connections() {
    let dir = tempdir().unwrap();
    let (server, http) = start_with_admin(dir.path());
    let mut connection = TcpStream::connect(&http).unwrap();
    let mut status = || status_of_flows(&mut connection, &http, ADMIN);
    assert_eq!(status(), "200");
    assert_eq!(status(), "200");
    let set = ["user", "set", "admin"];
    run_as_admin(&server, dir.path(), &set, "a new one\n");
    assert_eq!(status(), "401");
    server.stop();
}

#[test]
fn http_for_other_machines_is_refused_without_authentication() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let text = dir.path().join("text");
    fs::write(&text, "a b\n").unwrap();
    let text = text.to_str().unwrap();
    let http = ["--http", "0.0.0.0:0"];
    let start = [&["start", "--listen", "127.0.0.1:0"], &http[..]].concat();
    run(&data, &start).assert_fails(2, &["0.0.0.0:0", "authentication"]);
    let quickstart = [&["quickstart", "--for", "100ms"], &http[..]].concat();
    run(&dir.path().join("other"), &quickstart).assert_fails(2, &["0.0.0.0:0", "--http"]);
    for flow in [
        &["logparser", "--file", text][..],
        &["words", "--file", text],
        &["swa", "--for", "100ms"],
        &["ysb", "--for", "100ms"],
    ] {
        let args = [&["flow", "run"], flow, &http].concat();
        let run = finish(program().args(args).spawn().unwrap());
        run.assert_fails(2, &["0.0.0.0:0", "--http"]);
    }
    assert!(!data.exists());
}

#[test]
fn pages_of_other_sites_cannot_read_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &["--http-hosts", "node1.example;node2.example"]);
    let with_host = |host: &str| {
        let mut connection = TcpStream::connect(&http).unwrap();
        exchange(&mut connection, host, "/metrics", "")
    };
    for host in ["node1.example", "NODE2.example:8080", "localhost", &http] {
        assert_status(&with_host(host), 200);
    }
    for host in ["evil.example", "node1.example.evil.example", ""] {
        assert_status(&with_host(host), 403);
    }
    let own = format!("Origin: http://{http}\r\n");
    assert_status(&get_with(&http, "/metrics", &own), 200);
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        let origin = format!("Origin: {origin}\r\n");
        assert_status(&get_with(&http, "/metrics", &origin), 403);
    }
    server.stop();
}

#[test]
fn http_uses_the_tls_of_the_network_listener() {
    let dir = tempdir().unwrap();
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let names = vec!["localhost".to_owned()];
    let params = CertificateParams::new(names).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let (pem, key_pem) = (dir.path().join("server.pem"), dir.path().join("server.key"));
    fs::write(&pem, certificate.pem()).unwrap();
    fs::write(&key_pem, key.serialize_pem()).unwrap();
    let data = dir.path().join("data");
    let files = [
        "--tls-certificate",
        pem.to_str().unwrap(),
        "--tls-key",
        key_pem.to_str().unwrap(),
    ];
    let (server, http) = start(&data, &files);

    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(connection, TcpStream::connect(&http).unwrap());
    assert_status(&exchange(&mut stream, "localhost", "/metrics", ""), 200);
    // Without TLS nothing is answered that could be read on the way.
    let plain = get_bytes(&http);
    assert!(!plain.starts_with(b"HTTP"), "{plain:?}");
    server.stop();
}

/// Returns the answer to a request without TLS.
fn get_bytes(address: &str) -> Vec<u8> {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(connection, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let _ = connection.read_to_end(&mut bytes);
    bytes
}

fn spawn_flow(args: &[&str]) -> Child {
    let http = ["--http", "127.0.0.1:0"];
    let args = [&["flow", "run"], args, &http].concat();
    crate::support::start(program().args(args))
}

#[test]
fn a_flow_of_generated_events_serves_http() {
    for flow in ["swa", "ysb", "ysb-star"] {
        let args = [flow, "--for", "10min", "--rate", "1000", "--ranks", "2"];
        let mut child = spawn_flow(&args);
        let http = address_of(&mut child);
        let flows = get_json(&http, "/api/v1/flows");
        assert_eq!(flows, serde_json::json!([flow]));
        let metrics = get(&http, "/metrics");
        let workers = format!("millstream_flow_workers{{flow=\"{flow}\"}}");
        assert!(metrics.contains(&workers), "{metrics}");
        send_signal(&child, Signal::TERM);
        finish(child).assert_fails(1, &["stopped before the end"]);
    }
}

#[test]
fn a_flow_of_words_serves_http() {
    let dir = tempdir().unwrap();
    let text = dir.path().join("text");
    fs::write(&text, "an apple and a pear\n".repeat(100_000)).unwrap();
    let args = ["--file", text.to_str().unwrap()].repeat(50);
    let mut child = spawn_flow(&[&["words"], &args[..]].concat());
    let http = address_of(&mut child);
    // It may be over by now.
    drop(TcpStream::connect(&http));
    finish(child).assert_done();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let args = [
        "flow",
        "run",
        "words",
        "--file",
        text.to_str().unwrap(),
        "--http",
        &address,
    ];
    let run = finish(program().args(args).spawn().unwrap());
    run.assert_fails(1, &[&address, "--http"]);
}

#[test]
fn settings_that_a_command_does_not_use_are_refused_on_the_command_line() {
    let dir = tempdir().unwrap();
    for (args, flag) in [
        (&["stream", "list", "--http", "127.0.0.1:0"][..], "--http"),
        (&["--http", "127.0.0.1:0", "stream", "list"], "--http"),
        (&["group", "list", "--listen", "127.0.0.1:0"], "--listen"),
        (&["flow", "list", "--http", "127.0.0.1:0"], "--http"),
        (&["start", "--workers", "2"], "--workers"),
    ] {
        run(dir.path(), args).assert_fails(2, &[flag, "not use"]);
    }
    // In the environment it may be meant for other commands.
    let mut command = program();
    command.env("MILLSTREAM_HTTP", "127.0.0.1:0");
    command.args(["stream", "list", "--data"]).arg(dir.path());
    finish(command.spawn().unwrap()).assert_done();
}
