//! TLS with certificates that users make.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;

use crate::support::{Server, finish, prepared};

/// The commands of the guide.
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

#[track_caller]
fn sh(folder: &Path, script: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_millstream"));
    let mut path = std::ffi::OsString::from(program.parent().unwrap());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = millstream_testing::command("sh");
    shell.args(["-euc", script]).current_dir(folder);
    let child = prepared(shell).env("PATH", path).spawn().unwrap();
    finish(child).assert_done();
}

/// A certificate and its key by `openssl req -x509`, with more arguments.
fn certificate(folder: &Path, more: &str) -> (PathBuf, PathBuf) {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2";
    sh(folder, &format!("{script} {more}"));
    (folder.join("cert.pem"), folder.join("key.pem"))
}

fn start(data: &Path, (certificate, key): &(PathBuf, PathBuf)) -> (Server, String) {
    let files = ["--tls-certificate", certificate.to_str().unwrap()];
    let key = ["--tls-key", key.to_str().unwrap()];
    let mut child = Server::spawn(data, &[files, key].concat());
    let mut stderr = String::new();
    // A warning may come before it listens.
    let address = loop {
        let line = crate::support::line_of(&mut child);
        if let Some(told) = line.strip_prefix("listening on ") {
            break told.split_once(',').unwrap().0.to_owned();
        }
        stderr.push_str(&line);
    };
    (Server::of(child, address), stderr)
}

#[test]
fn the_recipe_for_a_self_signed_certificate_works() {
    let (_, recipe) = OPERATIONS
        .split_once("### A self-signed certificate")
        .expect("the recipe has a heading");
    let (_, recipe) = recipe.split_once("```sh\n").unwrap();
    let (recipe, _) = recipe.split_once("```").unwrap();
    sh(tempdir().unwrap().path(), recipe);
}

#[test]
fn a_certificate_that_signs_itself_is_refused_with_the_remedy() {
    let dir = tempdir().unwrap();
    let name = "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1";
    let files = certificate(dir.path(), name);
    let (server, warned) = start(&dir.path().join("data"), &files);
    assert!(warned.contains("CA:FALSE"), "{warned}");
    let believed = ["--tls-authorities", files.0.to_str().unwrap()];
    let list = [&["stream", "list"], &believed[..]].concat();
    let refused = server.run(&list);
    refused.assert_fails(1, &["CA:TRUE", "basicConstraints=critical,CA:FALSE"]);
    server.stop();
}

#[test]
fn other_refused_certificates_are_reported_with_the_remedy() {
    let dir = tempdir().unwrap();
    let name = "-subj /CN=elsewhere -addext basicConstraints=critical,CA:FALSE \
                -addext subjectAltName=DNS:elsewhere";
    let files = certificate(dir.path(), name);
    let (server, warned) = start(&dir.path().join("data"), &files);
    assert_eq!(warned, "");
    let list = |authorities: &Path| {
        let believed = ["--tls-authorities", authorities.to_str().unwrap()];
        server.run(&[&["stream", "list"], &believed[..]].concat())
    };
    list(&files.0).assert_fails(1, &["not for 127.0.0.1", "subjectAltName"]);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let (other, _) = certificate(&other, name);
    list(&other).assert_fails(1, &["authorit", "self-signed"]);
    server.stop();
}
