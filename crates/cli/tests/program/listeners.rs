//! Listeners of `millstream start`: several addresses, and the addresses that clients get.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;

use serde_json::Value;
use tempfile::tempdir;

use crate::support::{Run, Server, finish, line_of, program, run, send_signal};

/// A node with more than one listener, and the JSON that it prints at its start.
struct Node {
    child: Option<Child>,
    told: Value,
}

impl Node {
    fn start(data: &Path, listen: &str, more: &[&str]) -> Node {
        let args = [&["--json", "--listen", listen], more].concat();
        let mut child = Server::spawn(data, &args);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        child.stdout = Some(stdout.into_inner());
        Node {
            told: serde_json::from_str(&line).expect(&line),
            child: Some(child),
        }
    }

    fn listener(&self, index: usize) -> &str {
        self.told["listeners"][index].as_str().unwrap()
    }

    fn port(&self, index: usize) -> &str {
        self.listener(index).rsplit_once(':').unwrap().1
    }

    fn stop(mut self) -> Run {
        let child = self.child.take().unwrap();
        send_signal(&child, rustix::process::Signal::TERM);
        finish(child).assert_done()
    }
}

/// Of a test that has failed.
impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn ask(server: &str, args: &[&str]) -> Run {
    let mut command = program();
    command.args(args).args(["--server", server]);
    finish(command.spawn().unwrap())
}

/// A certificate for the name `localhost` alone, which is its own authority, and its key.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let files = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&files.0, certificate.pem()).unwrap();
    std::fs::write(&files.1, key.serialize_pem()).unwrap();
    files
}

#[test]
fn a_node_serves_each_address_with_its_protocol() {
    let dir = tempdir().unwrap();
    let (certificate, key) = certificate(dir.path());
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let files = ["--tls-certificate", certificate, "--tls-key", key];
    let listen = "PLAINTEXT://127.0.0.1:0; ssl://localhost:0";
    let node = Node::start(&dir.path().join("data"), listen, &files);
    assert_eq!(node.told["listen"], node.told["listeners"][0]);
    let plain = node.listener(0);
    ask(plain, &["stream", "create", "s"]).assert_done();
    let encrypted = format!("localhost:{}", node.port(1));
    let believed = ["stream", "list", "--tls-authorities", certificate];
    let listed = ask(&encrypted, &believed).assert_done();
    assert!(listed.text().contains('s'), "{}", listed.text());
    // Each listener has its own protocol only.
    ask(plain, &believed).assert_fails(1, &[]);
    node.stop();
}

/// Clients that verify the name in a certificate failed after the first answer, which named an IP address.
#[test]
fn a_listener_with_a_name_sends_clients_to_the_name() {
    let dir = tempdir().unwrap();
    let (certificate, key) = certificate(dir.path());
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let files = ["--tls-certificate", certificate, "--tls-key", key];
    let node = Node::start(&dir.path().join("data"), "localhost:0", &files);
    let server = format!("localhost:{}", node.port(0));
    let believing = |args: &[&str]| {
        let believed = ["--tls-authorities", certificate];
        ask(&server, &[args, &believed].concat()).assert_done()
    };
    believing(&["stream", "create", "s"]);
    assert_eq!(believing(&["consume", "s"]).text(), "");
    node.stop();
}

#[test]
fn a_name_that_is_not_found_is_advertised_with_a_warning() {
    let dir = tempdir().unwrap();
    let args = ["--advertise", "no-such-host.invalid:9092"];
    let mut child = Server::spawn(dir.path(), &args);
    let lines = [line_of(&mut child), line_of(&mut child)].concat();
    assert!(lines.contains("no-such-host.invalid"), "{lines}");
    assert!(lines.contains("listening on"), "{lines}");
    send_signal(&child, rustix::process::Signal::TERM);
    finish(child).assert_done();
}

#[track_caller]
fn check_refused(args: &[&str], code: i32, parts: &[&str]) {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &[&["start"], args].concat()).assert_fails(code, parts);
    assert!(
        !data.exists(),
        "nothing is made before the listeners are there"
    );
}

#[test]
fn invalid_listeners_are_refused_before_the_start_creates_files() {
    check_refused(
        &["--listen", "127.0.0.1:0;127.0.0.1:0", "--advertise", "a:1"],
        2,
        &["1 addresses are advertised for 2 listeners"],
    );
    check_refused(
        &["--listen", "SSL://127.0.0.1:0"],
        2,
        &["SSL", "tls_certificate"],
    );
    check_refused(
        &["--listen", "no-such-host.invalid:9092"],
        2,
        &["cannot listen on no-such-host.invalid"],
    );
    check_refused(&["--listen", "HTTP://127.0.0.1:0"], 2, &["SASL_PLAINTEXT"]);
    check_refused(
        &["--advertise", "0.0.0.0:9092"],
        2,
        &["clients cannot connect to 0.0.0.0"],
    );
    // Each listener enforces its own protocol.
    check_refused(
        &[
            "--listen",
            "SASL_PLAINTEXT://127.0.0.1:0;PLAINTEXT://0.0.0.0:0",
        ],
        2,
        &["0.0.0.0:0", "--insecure"],
    );
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let same = format!("127.0.0.1:{port};0.0.0.0:{port}");
    check_refused(
        &["--insecure", "--listen", &same],
        1,
        &["same port", &port.to_string()],
    );
}

#[test]
fn quickstart_has_one_listener_without_login() {
    let dir = tempdir().unwrap();
    for listen in [
        "127.0.0.1:0;127.0.0.1:0",
        "SASL_PLAINTEXT://127.0.0.1:0",
        "SSL://127.0.0.1:0",
    ] {
        let args = ["quickstart", "--for", "1s", "--listen", listen];
        run(dir.path(), &args).assert_fails(1, &["quickstart", "`millstream start`"]);
    }
}

#[test]
fn settings_of_groups_and_topics_are_bounded() {
    check_refused(&["--node-id", "-1"], 2, &["node-id"]);
    check_refused(&["--group-min-session-timeout", "0s"], 2, &["1ms to 30m"]);
    check_refused(
        &["--group-initial-rebalance-delay", "1h"],
        2,
        &["0s to 10m"],
    );
}
