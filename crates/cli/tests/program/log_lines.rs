//! Log lines on stderr.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::thread;

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
    for part in ["WARN", "INFO audit: denied unverified \"eve\""] {
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
fn with_json_log_lines_all_of_stderr_is_json() {
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

/// A request of Kafka's protocol, with a number and no client id.
fn frame(api: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let head = [
        &api.to_be_bytes()[..],
        &version.to_be_bytes(),
        &[0, 0, 0, 1, 0xff, 0xff],
    ]
    .concat();
    let bytes = (head.len() + body.len()) as u32;
    [&bytes.to_be_bytes()[..], &head, body].concat()
}

#[test]
fn a_flood_of_bad_connections_does_not_fill_the_log() {
    const ROUNDS: usize = 125;
    const CONNECTIONS: usize = 8 * ROUNDS;
    let data = tempdir().unwrap();
    let server = Server::start(data.path(), &["--authentication"]);
    let address = server.address().to_owned();
    let child = server.into_child();
    let process = rustix::process::Pid::from_child(&child);
    // All of stderr is read meanwhile, however much it is.
    let ending = thread::spawn(move || finish(child));
    let bad_login = [
        frame(17, 1, b"\0\x05PLAIN"),
        frame(36, 0, b"\0\0\0\x04evil"),
    ];
    thread::scope(|scope| {
        for number in 0..8 {
            let (address, bad_login) = (&address, &bad_login);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let mut connection = TcpStream::connect(address).unwrap();
                    let bytes = match number % 2 {
                        0 => b"GET / HTTP/1.1\r\n\r\n".to_vec(),
                        _ => bad_login.concat(),
                    };
                    connection.write_all(&bytes).unwrap();
                    // Until the server closes it, which a reset may cut short.
                    let _ = connection.read_to_end(&mut Vec::new());
                }
            });
        }
    });
    rustix::process::kill_process(process, Signal::TERM).unwrap();
    let stderr = ending.join().unwrap().assert_done().stderr;
    let count = |part: &str| {
        let lines = stderr.lines().filter(|line| line.contains(part));
        lines.count()
    };
    let left_out = |part: &str| -> usize {
        let lines = stderr.lines().filter(|line| line.contains(part));
        let counts = lines.filter_map(|line| line.split_once("left_out=")?.1.split(' ').next());
        counts.map(|count| count.parse::<usize>().unwrap()).sum()
    };
    let closed = count("connection closed");
    assert_eq!(closed + left_out("WARN"), CONNECTIONS, "{stderr}");
    let denied = count("log in by PLAIN");
    assert_eq!(denied + left_out("audit:"), CONNECTIONS / 2, "{stderr}");
    // 20 and 100 in each 10 seconds.
    assert!(
        closed <= CONNECTIONS / 4 && denied < CONNECTIONS / 2,
        "{stderr}"
    );
}
