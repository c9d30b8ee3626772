//! Watches of keys, from the command line.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{Server, finish, send_signal, start};

fn done(server: &Server, args: &[&str]) -> crate::support::Run {
    server.run(args).assert_done()
}

#[test]
fn a_watch_prints_changes_until_it_is_stopped_and_goes_on_from_its_position() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    done(
        &server,
        &["stream", "create", "t", "--keyed", "--lanes", "2"],
    );
    done(&server, &["kv", "put", "t", "a1", "before"]);
    let watch = ["kv", "watch", "t", "--prefix", "a", "--snapshot"];
    let mut child = start(&mut server.command(&watch));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = || {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(line(), "a1\tbefore\n");
    for (args, expected) in [
        (&["put", "t", "a2", "two words"][..], "a2\ttwo words\n"),
        (&["put", "t", "b", "not seen"], ""),
        (&["put", "t", "a1", ""], "a1\t\n"),
        (&["delete", "t", "a2"], "a2\n"),
    ] {
        done(&server, &[&["kv"], args].concat());
        if !expected.is_empty() {
            assert_eq!(line(), expected);
        }
    }
    child.stdout = Some(stdout.into_inner());
    send_signal(&child, Signal::INT);
    let told = finish(child).assert_done().stderr;
    let told = told.trim().strip_prefix("--after ").expect(&told);
    let position = told.strip_suffix(" goes on here").expect(told).to_owned();

    done(&server, &["kv", "put", "t", "a3", "x"]);
    done(&server, &["kv", "delete", "t", "a1"]);
    let watch = ["kv", "watch", "t", "--prefix", "a", "--after"];
    let again = [&watch[..], &[&position, "--limit", "2", "--json"]].concat();
    let mut seen = done(&server, &again).json();
    let mut events = seen["events"].as_array().unwrap().clone();
    events.sort_by_key(|event| event["key"].to_string());
    assert_eq!(
        (&events[0]["key"], &events[0]["value"]),
        (&json!("a1"), &Value::Null)
    );
    assert_eq!(
        (&events[1]["key"], &events[1]["value"]),
        (&json!("a3"), &json!("x"))
    );
    assert_eq!(events[0]["event"], "change");
    assert!(events[0]["version"].is_u64() && events[0]["timestamp"].is_u64());
    // The last position is behind both.
    let position = seen["position"].take();
    done(&server, &["kv", "put", "t", "a1", "y"]);
    let again = [&watch[..], &[position.as_str().unwrap(), "--limit", "1"]].concat();
    assert_eq!(done(&server, &again).text(), "a1\ty\n");
    let snapshot = [
        "kv",
        "watch",
        "t",
        "a3",
        "--snapshot",
        "--limit",
        "1",
        "--json",
    ];
    let snapshot = done(&server, &snapshot).json();
    assert_eq!(snapshot["events"][0]["event"], "snapshot");
    assert_eq!(snapshot["events"][1]["key"], "a3");
    assert_eq!(snapshot["position"], Value::Null);

    let fails = |args: &[&str], code, parts: &[&str]| {
        server
            .run(&[&["kv", "watch"], args].concat())
            .assert_fails(code, parts);
    };
    fails(&["t", "--after", "0123"], 2, &["position of a watch"]);
    fails(&["t", "k", "--prefix", "k"], 2, &["--prefix"]);
    fails(&["tt"], 1, &["unknown stream tt", "did you mean t?"]);
    done(&server, &["stream", "create", "plain"]);
    fails(&["plain"], 1, &["cleanup.policy=compact"]);
    done(&server, &["stream", "delete", "t"]);
    done(
        &server,
        &["stream", "create", "t", "--keyed", "--lanes", "2"],
    );
    let position = position.as_str().unwrap();
    fails(&["t", "--after", position], 1, &["deleted and made again"]);
    server.stop();
}

/// Both commands printed nothing before their buffers of 8 KiB were full.
#[test]
fn watches_and_followers_print_at_once_while_more_changes_come() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    done(&server, &["stream", "create", "t", "--keyed"]);
    done(&server, &["kv", "put", "t", "k", "first"]);
    let watch = ["kv", "watch", "t", "--snapshot"];
    let follow = ["consume", "t", "--follow"];
    let mut readers = [(&watch[..], "k\t"), (&follow[..], "")].map(|(args, key)| {
        let mut child = start(&mut server.command(args));
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (child, stdout, key)
    });
    let next = |stdout: &mut BufReader<ChildStdout>| {
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        line
    };
    for (_, stdout, key) in &mut readers {
        assert_eq!(next(stdout), format!("{key}first\n"));
    }
    let produce = ["produce", "t", "--key-separator", "="];
    let mut producer = start(server.command(&produce).stdin(Stdio::piped()));
    let mut stdin = producer.stdin.take().unwrap();
    let (stop, stopped) = mpsc::channel::<()>();
    // The commands never wait for long, and all lines of this test fit in a buffer.
    let feeder = thread::spawn(move || {
        while stopped.try_recv() == Err(TryRecvError::Empty) {
            stdin.write_all(b"k=v\n").unwrap();
            thread::sleep(Duration::from_millis(10));
        }
    });
    let started_at = Instant::now();
    for (_, stdout, key) in &mut readers {
        assert_eq!(next(stdout), format!("{key}v\n"));
    }
    let took = started_at.elapsed();
    drop(stop);
    feeder.join().unwrap();
    assert!(took < Duration::from_secs(5), "{took:?}");
    finish(producer).assert_done();
    for (mut child, stdout, _) in readers {
        child.stdout = Some(stdout.into_inner());
        send_signal(&child, Signal::INT);
        finish(child).assert_done();
    }
    server.stop();
}
