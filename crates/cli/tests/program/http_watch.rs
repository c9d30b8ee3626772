//! Watches of keys over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::http::{assert_status, get_with, init_user, run_as_admin, start, start_with_admin};
use crate::support::{Server, get};

/// A watch, as a browser has it.
pub struct Watch {
    connection: BufReader<TcpStream>,
    /// The bytes that were read after the last frame.
    rest: String,
    /// The id of the last event.
    id: String,
}

impl Watch {
    pub fn open(address: &str, path: &str, id: &str) -> Watch {
        let mut connection = TcpStream::connect(address).unwrap();
        connection
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let last = match id {
            "" => String::new(),
            id => format!("Last-Event-ID: {id}\r\n"),
        };
        write!(
            connection,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\n{last}\r\n"
        )
        .unwrap();
        let mut connection = BufReader::new(connection);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(connection.read_line(&mut head).unwrap() > 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let mut watch = Watch {
            connection,
            rest: String::new(),
            id: id.to_owned(),
        };
        // Its position comes at once, unless a snapshot does.
        while watch.id.is_empty() && !path.contains("snapshot") {
            let frame = watch.frame().unwrap();
            watch.note_id(&frame);
        }
        watch
    }

    /// Returns the next frame; `None` at the end.
    fn frame(&mut self) -> Option<String> {
        loop {
            if let Some((frame, rest)) = self.rest.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.rest = rest;
                return Some(frame);
            }
            let mut size = String::new();
            self.connection.read_line(&mut size).unwrap();
            let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
            if size == 0 {
                return None;
            }
            let mut chunk = vec![0; size + 2];
            self.connection.read_exact(&mut chunk).unwrap();
            self.rest
                .push_str(std::str::from_utf8(&chunk[..size]).unwrap());
        }
    }

    fn note_id(&mut self, frame: &str) {
        let mut lines = frame.lines();
        if let Some(id) = lines.find_map(|line| line.strip_prefix("id: ")) {
            id.clone_into(&mut self.id);
        }
    }

    /// Returns the name and the data of the next event; `None` at the end.
    fn event(&mut self) -> Option<(String, Value)> {
        loop {
            let frame = self.frame()?;
            self.note_id(&frame);
            let field = |name: &str| -> Vec<&str> {
                frame
                    .lines()
                    .filter_map(|line| line.strip_prefix(name))
                    .collect()
            };
            if let [name] = field("event: ")[..] {
                let data = field("data: ").join("\n");
                return Some((name.to_owned(), serde_json::from_str(&data).unwrap()));
            }
        }
    }

    /// Returns the key and the value of the next event, which is a change.
    fn change(&mut self) -> (String, Value) {
        let (name, data) = self.event().unwrap();
        assert_eq!(name, "change", "{data}");
        let value = match data["deleted"] == true {
            true => Value::Null,
            false => data["value"].clone(),
        };
        (data["key"].as_str().unwrap().to_owned(), value)
    }

    #[track_caller]
    fn check(&mut self, key: &str, value: Value) {
        assert_eq!(self.change(), (key.to_owned(), value));
    }

    #[track_caller]
    fn check_named(&mut self, name: &str) -> Value {
        let (found, data) = self.event().unwrap();
        assert_eq!(found, name, "{data}");
        data
    }
}

fn done(server: &Server, args: &[&str]) {
    server.run(args).assert_done();
}

#[test]
fn a_watch_resumes_after_its_last_event_id_across_a_restart() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    done(
        &server,
        &["stream", "create", "t", "--keyed", "--lanes", "3"],
    );
    done(&server, &["kv", "put", "t", "a/1", "{\"n\": 1.50}"]);
    let mut all = Watch::open(&http, "/kv/t?prefix=a&watch=snapshot", "");
    all.check_named("snapshot");
    // A client that comes back now begins the snapshot again.
    Watch::open(&http, "/kv/t?watch", &all.id).check_named("snapshot");
    all.check("a/1", json!({ "n": 1.5 }));
    assert_eq!(all.id, "snapshot");
    all.check_named("current");
    assert_ne!(all.id, "snapshot");
    let mut one = Watch::open(&http, "/kv/t/a/1?watch", "");
    done(&server, &["kv", "put", "t", "a/2", "two\nlines"]);
    done(&server, &["kv", "put", "t", "b", "not seen"]);
    all.check("a/2", json!("two\nlines"));
    done(&server, &["kv", "delete", "t", "a/1"]);
    all.check("a/1", Value::Null);
    one.check("a/1", Value::Null);
    let (all_id, one_id) = (all.id.clone(), one.id.clone());

    // The server reports its stop to watches.
    let stopping = std::thread::spawn(move || server.stop());
    for watch in [&mut all, &mut one] {
        let reason = watch.check_named("end");
        assert!(reason["reason"].as_str().unwrap().contains("stops"));
        assert_eq!(watch.event(), None);
    }
    stopping.join().unwrap();
    let (server, http) = start(dir.path(), &[]);
    done(&server, &["kv", "put", "t", "a/1", "3"]);
    let mut all = Watch::open(&http, "/kv/t?prefix=a&watch=snapshot", &all_id);
    all.check("a/1", json!(3));
    let path = format!("/kv/t/a/1?watch&after={one_id}");
    Watch::open(&http, &path, "").check("a/1", json!(3));

    // Where changes are missing, a snapshot follows.
    done(&server, &["kv", "put", "t", "a/2", "4"]);
    let policy = "cleanup.policy=compact,delete";
    done(&server, &["config", "set", "stream/t", policy]);
    done(&server, &["stream", "purge", "t", "--before", "end"]);
    done(&server, &["kv", "put", "t", "a/3", "5"]);
    let mut again = Watch::open(&http, "/kv/t?watch", &all_id);
    let reason = again.check_named("reset");
    assert!(reason["reason"].as_str().unwrap().contains("snapshot"));
    again.check_named("snapshot");
    again.check("a/3", json!(5));
    again.check_named("current");

    // A stream that is deleted ends them, and voids their ids.
    done(&server, &["stream", "delete", "t"]);
    let reason = again.check_named("end");
    assert!(
        reason["reason"]
            .as_str()
            .unwrap()
            .contains("unknown stream")
    );
    assert_eq!(again.event(), None);
    assert_status(&get(&http, "/kv/t?watch"), 404);
    done(
        &server,
        &["stream", "create", "t", "--keyed", "--lanes", "3"],
    );
    let answer = get_with(
        &http,
        "/kv/t?watch",
        &format!("Last-Event-ID: {}\r\n", again.id),
    );
    assert_status(&answer, 410);
    assert!(answer.contains("deleted and made again"), "{answer}");
    done(&server, &["stream", "create", "plain"]);
    assert_status(&get(&http, "/kv/plain?watch"), 409);
    server.stop();
}

#[test]
fn a_large_snapshot_beside_writes_is_complete() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    done(
        &server,
        &["stream", "create", "t", "--keyed", "--lanes", "2"],
    );
    let lines = |from: u32, value: &str| -> Vec<u8> {
        let lines = (from..5_000).map(|number| format!("{number}:{value}{number}\n"));
        lines.collect::<String>().into_bytes()
    };
    let produce = ["produce", "t", "--key-separator", ":"];
    server.run_with_input(&produce, lines(0, "1")).assert_done();
    let mut watch = Watch::open(&http, "/kv/t?watch=snapshot", "");
    watch.check_named("snapshot");
    server
        .run_with_input(&produce, lines(2_500, "2"))
        .assert_done();
    done(&server, &["kv", "delete", "t", "0"]);
    let mut table = std::collections::BTreeMap::new();
    let expected: std::collections::BTreeMap<String, Value> = (1..5_000_u32)
        .map(|number| {
            let new = if number < 2_500 { 1 } else { 2 };
            (
                number.to_string(),
                json!(format!("{new}{number}").parse::<u64>().unwrap()),
            )
        })
        .collect();
    while table != expected {
        let (name, data) = watch.event().unwrap();
        if name == "change" {
            let key = data["key"].as_str().unwrap().to_owned();
            match data["deleted"] == true {
                true => table.remove(&key),
                false => table.insert(key, data["value"].clone()),
            };
        }
    }
    drop(watch);
    server.stop();
}

#[test]
fn a_watch_needs_the_right_to_read() {
    let dir = tempdir().unwrap();
    init_user(dir.path(), "bob", "another");
    let (server, http) = start_with_admin(dir.path());
    let create = ["stream", "create", "t", "--keyed"];
    run_as_admin(&server, dir.path(), &create, "");
    assert_status(&get(&http, "/kv/t?watch"), 401);
    assert_status(&get_with(&http, "/kv/t?watch", crate::http::BOB), 403);
}
