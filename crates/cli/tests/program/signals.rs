//! Signals end the program cleanly during any wait.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use tempfile::tempdir;

use crate::http;
use crate::http_watch::Watch;
use crate::support::{
    Server, finish, program_with_hangup, run, send_signal, spawn, start, wait_until,
};

pub fn fifo(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    path
}

/// Opens a FIFO for writing once a reader has opened it.
fn open_writer(fifo: &Path) -> File {
    let mut writer = None;
    wait_until("the FIFO has a reader", || {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32);
        writer = options.open(fifo).ok();
        writer.is_some()
    });
    writer.unwrap()
}

/// Starts to count words, with a temporary folder for the data in `folder`, and waits for that.
fn spawn_words(mut command: Command, folder: &Path, file: &Path) -> Child {
    command.args(["quickstart", "--file"]).arg(file);
    let mut child = command.env("TMPDIR", folder).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains(folder.to_str().unwrap()), "{line}");
    child.stderr = Some(stderr.into_inner());
    child
}

#[test]
fn a_signal_ends_a_command_that_waits_for_a_fifo() {
    // A closed terminal sends SIGHUP.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let dir = tempdir().unwrap();
        let temporary = tempdir().unwrap();
        let fifo = fifo(dir.path(), "fifo");
        let child = spawn_words(program_with_hangup(false), temporary.path(), &fifo);
        send_signal(&child, signal);
        let run = finish(child).assert_done();
        assert!(run.text().contains("0 words"), "{}", run.text());
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_signal_aborts_an_object_put_and_nothing_is_stored() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let fifo = fifo(dir.path(), "fifo");
    let child = spawn(&data, &["object", "put", "o", fifo.to_str().unwrap()]);
    let mut writer = open_writer(&fifo);
    writer.write_all(b"half").unwrap();
    send_signal(&child, Signal::TERM);
    finish(child).assert_fails(1, &["signal"]);
    run(&data, &["object", "get", "o"]).assert_fails(1, &["unknown object o"]);
}

#[test]
fn all_lines_of_a_fifo_are_read_while_writers_come_and_go() {
    let dir = tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| fifo(dir.path(), name));
    let data = dir.path().join("data");
    let mut args = vec!["quickstart", "--json"];
    for fifo in [&first, &second] {
        args.extend(["--file", fifo.to_str().unwrap()]);
    }
    let child = spawn(&data, &args);
    // Gone before the program comes to read it.
    open_writer(&second).write_all(b"z z\n").unwrap();
    let mut writer = open_writer(&first);
    for part in ["a b", "\nc", "d"] {
        writer.write_all(part.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    drop(writer);
    finish(child).assert_done();
    let lines = run(&data, &["consume", "lines"]).assert_done().text();
    assert_eq!(lines, "a b\ncd\nz z\n");
}

#[test]
fn a_closed_terminal_does_not_end_a_program_under_nohup() {
    let dir = tempdir().unwrap();
    let temporary = tempdir().unwrap();
    let fifo = fifo(dir.path(), "fifo");
    let child = spawn_words(program_with_hangup(true), temporary.path(), &fifo);
    send_signal(&child, Signal::HUP);
    open_writer(&fifo).write_all(b"still here\n").unwrap();
    let text = finish(child).assert_done().text();
    assert!(text.contains("2 words"), "{text}");
}

/// Returns connections that have got an answer, one of Kafka's protocol and one of HTTP, and one of each kind without a
/// request.
fn idle_connections(server: &Server, http: &str) -> [TcpStream; 4] {
    let open = |address: &str, request: &[u8]| {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request).unwrap();
        if !request.is_empty() {
            assert!(connection.read(&mut [0; 4096]).unwrap() > 0);
        }
        connection
    };
    // ApiVersions 0, with correlation id 1 and an empty client id.
    let versions = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0, 0];
    let health = format!("GET /healthz HTTP/1.1\r\nHost: {http}\r\n\r\n");
    [
        open(server.address(), &versions),
        open(server.address(), &[]),
        open(http, health.as_bytes()),
        open(http, &[]),
    ]
}

/// Starts a consumer, and returns it when it has the only record and waits for more.
fn waiting_consumer(server: &Server, args: &[&str]) -> Child {
    let follow = [&["consume", "s", "--follow"], args].concat();
    let mut child = start(&mut server.command(&follow));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "value\n");
    child.stdout = Some(stdout.into_inner());
    child
}

/// Returns the time from SIGTERM to the exit of a server with idle connections, and maybe with clients that wait for
/// records and changes.
fn time_to_exit(has_waiting_clients: bool) -> Duration {
    let dir = tempdir().unwrap();
    let (server, http) = http::start(dir.path(), &[]);
    let create = ["stream", "create", "s", "--keyed"];
    server.run(&create).assert_done();
    let produce = ["produce", "s", "--key-separator", "="];
    let produced = server.run_with_input(&produce, b"key=value\n".to_vec());
    produced.assert_done();
    let idle = idle_connections(&server, &http);
    let waiting = has_waiting_clients.then(|| {
        let consumers = [&["--delivery", "pull"][..], &[], &["--group", "g"]];
        let consumers = consumers.map(|args| waiting_consumer(&server, args));
        (consumers, Watch::open(&http, "/kv/s?watch", ""))
    });
    let signalled_at = Instant::now();
    server.stop();
    let taken = signalled_at.elapsed();
    drop(idle);
    for mut consumer in waiting.into_iter().flat_map(|(consumers, _)| consumers) {
        consumer.kill().unwrap();
        consumer.wait().unwrap();
    }
    taken
}

#[test]
fn a_signal_ends_a_server_at_once_whether_clients_are_idle_or_wait() {
    for (has_waiting_clients, time_max) in [
        (false, Duration::from_millis(500)),
        (true, Duration::from_secs(2)),
    ] {
        // A busy machine may delay most of them.
        let mut times = (0..10).map(|_| time_to_exit(has_waiting_clients));
        let is_prompt = times.any(|time| {
            println!("the server has ended after {time:?}");
            time < time_max
        });
        assert!(is_prompt, "none has ended within {time_max:?}");
    }
}
