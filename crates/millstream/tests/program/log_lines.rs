//! Log lines on stderr.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::support::{Run, Server, finish, program, run, send_signal};

/// A node that warns when it starts, and refuses a login.
fn stderr_of(prepare: impl FnOnce(&mut Command) -> &mut Command) -> String {
    let dir = tempdir().unwrap();
    let mut command = program();
    let args = ["start", "--listen", "0.0.0.0:0", "--json", "--data"];
    command.args(args).arg(dir.path().join("data"));
    command.args(["--authentication"]);
    prepare(&mut command);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    child.stdout = Some(stdout.into_inner());
    let document: Value = serde_json::from_str(&line).unwrap();
    let listen = document["listen"].as_str().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "wrong\n").unwrap();
    let mut login = program();
    let address = listen.replace("0.0.0.0", "127.0.0.1");
    login.args(["stream", "list", "--user", "eve", "--server", &address]);
    login.arg("--password-file").arg(&password);
    assert_eq!(finish(login.spawn().unwrap()).status.code(), Some(1));
    send_signal(&child, Signal::TERM);
    finish(child).assert_done().stderr
}

/// Whether it is a time as RFC 3339 writes it, in UTC.
fn is_time(text: &str) -> bool {
    let pattern = "dddd-dd-ddTdd:dd:dd.";
    let fits = |(found, wanted): (char, char)| match wanted {
        'd' => found.is_ascii_digit(),
        _ => found == wanted,
    };
    text.len() > pattern.len() && text.ends_with('Z') && text.chars().zip(pattern.chars()).all(fits)
}

#[test]
fn log_lines_and_audit_lines_have_their_time() {
    let stderr = stderr_of(|command| command);
    for part in ["WARN", "INFO audit: denied somebody as \"eve\""] {
        let line = stderr.lines().find(|line| line.contains(part));
        let time = line.expect(&stderr).split(' ').next();
        assert!(time.is_some_and(is_time), "{stderr}");
    }
}

#[test]
fn the_level_of_log_lines_can_be_set() {
    let has = |stderr: &str| [stderr.contains("WARN"), stderr.contains("audit:")];
    let stderr = stderr_of(|command| command.args(["--log-level", "error"]));
    assert_eq!(has(&stderr), [false, true], "{stderr}");
    let stderr = stderr_of(|command| command.env("MILLSTREAM_LOG", "off"));
    assert_eq!(has(&stderr), [false, false], "{stderr}");
    // The flag goes before the environment.
    let stderr = stderr_of(|command| {
        command.env("MILLSTREAM_LOG", "off");
        command.args(["--log-level", "info"])
    });
    assert_eq!(has(&stderr), [true, true], "{stderr}");
    let dir = tempdir().unwrap();
    let args = ["stream", "list", "--log-level", "loud"];
    run(dir.path(), &args).assert_fails(2, &["--log-level", "off, error, warn"]);
}

#[track_caller]
fn assert_json_lines(run: &Run) -> Vec<Value> {
    let lines = run.stderr.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect(line);
        assert!(line["timestamp"].as_str().is_some_and(is_time), "{line}");
        assert!(line["level"].is_string(), "{line}");
        assert!(line["message"].is_string(), "{line}");
        line
    });
    lines.collect()
}

#[test]
fn all_of_stderr_is_json_if_that_is_wanted() {
    let stderr = stderr_of(|command| command.args(["--log-format", "json"]));
    assert!(stderr.contains("\"target\":\"audit\""), "{stderr}");
    for line in stderr.lines() {
        let _: Value = serde_json::from_str(line).expect(line);
    }
    let dir = tempdir().unwrap();
    let args = ["stream", "describe", "nosuch", "--log-format", "json"];
    let failed = run(&dir.path().join("none"), &args);
    let lines = assert_json_lines(&failed);
    assert_eq!(lines.len(), 1, "{failed:?}");
    assert_eq!(lines[0]["level"], "ERROR");

    let mut child = program()
        .args(["start", "--listen", "127.0.0.1:0", "--log-format", "json"])
        .arg("--data")
        .arg(dir.path().join("data"))
        .spawn()
        .unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    child.stderr = Some(stderr.into_inner());
    let told: Value = serde_json::from_str(&line).expect(&line);
    let message = told["message"].as_str().unwrap();
    assert!(message.starts_with("listening on 127.0.0.1:"), "{line}");
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
}

#[test]
fn a_server_without_the_setting_writes_text() {
    let dir = tempdir().unwrap();
    // `Server::start` reads the line.
    let server = Server::start(dir.path(), &[]);
    assert_eq!(server.stop().stderr, "");
}
