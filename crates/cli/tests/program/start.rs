//! `millstream start`: says where it listens, and ends in good order.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::support::{Server, finish, program, run, send_signal};

#[test]
fn a_server_prints_its_address_and_ends_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let dir = tempdir().unwrap();
        let data = dir.path().join("data");
        let server = Server::start(&data, &[]);
        TcpStream::connect(server.address()).unwrap();
        let child = server.into_child();
        send_signal(&child, signal);
        let run = finish(child).assert_done();
        assert_eq!(run.text(), "");
        assert!(data.is_dir());
    }
}

#[test]
fn json_names_address_and_data_directory_in_one_document() {
    let dir = tempdir().unwrap();
    let (server, document) = Server::start_with_json(dir.path());
    let document: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["data"], dir.path().to_str().unwrap());
    let address: SocketAddr = document["listen"].as_str().unwrap().parse().unwrap();
    TcpStream::connect(address).unwrap();
    let child = server.into_child();
    send_signal(&child, Signal::TERM);
    assert_eq!(finish(child).assert_done().text(), "");
}

#[test]
fn stored_records_survive_a_restart() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let input = b"one\ntwo\n".to_vec();
    server
        .run_with_input(&["produce", "s"], input)
        .assert_done();
    server.stop();
    let server = Server::start(dir.path(), &[]);
    let text = server.run(&["consume", "s"]).assert_done().text();
    assert_eq!(text, "one\ntwo\n");
    server.stop();
    // No process uses the folder now.
    let text = run(dir.path(), &["consume", "s"]).assert_done().text();
    assert_eq!(text, "one\ntwo\n");
}

#[test]
fn an_unavailable_address_is_reported() {
    let dir = tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let start = |args: &[&str]| run(dir.path(), &[&["start"], args].concat());
    start(&["--listen", &address]).assert_fails(1, &["cannot listen on", &address]);
    for listen in ["9092", "localhost", "127.0.0.1", "127.0.0.1:99999", ""] {
        start(&["--listen", listen]).assert_fails(2, &["--listen", "a host and a port"]);
    }
}

#[test]
fn only_one_process_may_use_a_data_directory() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let second = run(dir.path(), &["start", "--listen", "127.0.0.1:0"]);
    second.assert_fails(1, &[dir.path().to_str().unwrap()]);
    run(dir.path(), &["stream", "list"]).assert_fails(1, &[dir.path().to_str().unwrap()]);
    server.stop();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    run(&file, &["start", "--listen", "127.0.0.1:0"]).assert_fails(1, &["no folder", "--data"]);
}

#[test]
fn systemd_gets_a_report_when_the_server_is_ready_and_when_it_stops() {
    let dir = tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let received = || {
        let mut text = [0; 64];
        let size = manager.recv(&mut text).unwrap();
        String::from_utf8(text[..size].to_vec()).unwrap()
    };
    let child = program()
        .args(["start", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"))
        .env("NOTIFY_SOCKET", &socket)
        .spawn()
        .unwrap();
    assert_eq!(received(), "READY=1");
    send_signal(&child, Signal::TERM);
    assert_eq!(received(), "STOPPING=1");
    finish(child).assert_done();
}

#[test]
fn version_names_the_package_and_the_commit() {
    let output = program().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let commit = text
        .strip_prefix(concat!("millstream ", env!("CARGO_PKG_VERSION"), " ("))
        .and_then(|it| it.strip_suffix(")\n"));
    let commit = commit.unwrap_or_else(|| panic!("{text:?} has no commit"));
    let is_hex = commit.bytes().all(|it| it.is_ascii_hexdigit());
    assert!(
        commit == "unknown" || (is_hex && commit.len() >= 12),
        "{text:?}"
    );
}
