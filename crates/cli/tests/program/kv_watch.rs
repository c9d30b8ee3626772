//! Watches of keys, from the command line.

use std::io::{BufRead, BufReader};

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
