//! Who may come to `millstream start`.

use std::net::TcpListener;

use tempfile::tempdir;

use crate::support::{finish, run, run_with_input, send_signal, spawn};

/// Starts it on a free port, and returns where it listens.
fn start(data: &std::path::Path, more: &[&str]) -> (std::process::Child, String) {
    let listen = ["start", "--listen", "127.0.0.1:0", "--json"];
    let mut child = spawn(data, &[&listen, more].concat());
    let mut stdout = child.stdout.take().unwrap();
    let mut stream = serde_json::Deserializer::from_reader(&mut stdout).into_iter();
    let started: serde_json::Value = stream.next().unwrap().unwrap();
    drop(stream);
    child.stdout = Some(stdout);
    (child, started["listen"].as_str().unwrap().to_owned())
}

#[test]
fn it_says_where_it_listens_and_ends_in_good_order() {
    let data = tempdir().unwrap();
    let (child, address) = start(data.path(), &[]);
    std::net::TcpStream::connect(address).unwrap();
    send_signal(&child, rustix::process::Signal::TERM);
    finish(child).assert_done();
}

#[test]
fn an_address_that_is_taken_is_named() {
    let data = tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = run(data.path(), &["start", "--listen", &address]);
    refused.assert_fails(1, &["cannot listen on", &address]);
    run(data.path(), &["start", "--listen", "nowhere"]).assert_fails(2, &["nowhere", "port"]);
}

#[test]
fn others_come_in_only_if_they_have_to_log_in_or_if_that_is_wanted() {
    let data = tempdir().unwrap();
    let everywhere = ["start", "--listen", "0.0.0.0:0"];
    run(data.path(), &everywhere).assert_fails(2, &["0.0.0.0:0", "--insecure"]);
    for more in ["--insecure", "--authentication"] {
        let mut child = spawn(data.path(), &[&everywhere[..], &["--json", more]].concat());
        let mut byte = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut byte).unwrap();
        send_signal(&child, rustix::process::Signal::TERM);
        finish(child).assert_done();
    }
}

#[test]
fn the_first_user_is_made_where_nothing_runs() {
    let data = tempdir().unwrap();
    let init = ["user", "init", "admin"];
    run(data.path(), &init).assert_fails(1, &["no password on stdin"]);
    let made = run_with_input(data.path(), &init, b"a secret\n".to_vec());
    made.assert_done();
    let (child, _) = start(data.path(), &["--authentication"]);
    let refused = run_with_input(data.path(), &init, b"another\n".to_vec());
    refused.assert_fails(1, &["in use"]);
    send_signal(&child, rustix::process::Signal::TERM);
    let ended = finish(child).assert_done();
    assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
}

#[test]
fn a_certificate_needs_its_key() {
    let data = tempdir().unwrap();
    let missing = ["start", "--tls-certificate", "none.pem"];
    run(data.path(), &missing).assert_fails(2, &["tls_certificate", "tls_key"]);
    let unread = [&missing[..], &["--tls-key", "none.key"]].concat();
    run(data.path(), &unread).assert_fails(1, &["none.pem", "No such file"]);
}
