//! Writes of keys.

use std::collections::BTreeMap;
use std::future::{Future, pending, ready};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream_base::{
    Credentials, KeyRange, Offset, TcpNetwork, Timestamp, WatchPosition, WatchPositions,
};
use millstream_flow::Running;
use millstream_serve::{
    Admission, Content, FoundPage, FoundPlace, Gate, KeyChange, KeyChanged, KeyCondition, KeyEvent,
    KeyPage, KeyWatch, KeyWrite, KeyedError, KeyedFuture, KeyedHistory, KeyedStreams, KeyedValue,
    KeyedVersion, Metric, Options, PastVersion, Server, Visited, Visitor, WatchFrom,
};
use serde_json::{Value, json};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::support::{ANSWER_TIME_MAX, Answer, connect, exchange, request, start, start_with};

/// The largest value of a stream.
const VALUE_BYTES_MAX: usize = 100_000;

/// The keyed stream `t` in memory, beside `plain`, which is not keyed, `full`, whose disk is full, and `slow`, whose changes do not
/// end.
#[derive(Default)]
struct Streams(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    next: u64,
    values: BTreeMap<Vec<u8>, (u64, Bytes)>,
    /// Whether the next change comes after that of another writer.
    is_overtaken: bool,
    /// How long the last value lives.
    ttl: Option<Duration>,
    /// The secondary keys of the last value.
    secondary: Vec<(String, Vec<u8>)>,
    /// Whether look-ups see no version yet, as behind an open transaction.
    is_behind: bool,
    /// The lists of changes of `slow`.
    waiting: usize,
}

impl Stored {
    fn change(&mut self, key: Vec<u8>, write: KeyWrite) -> Result<KeyChanged, KeyedError> {
        let KeyWrite {
            condition,
            change,
            ttl,
            secondary,
        } = write;
        self.ttl = ttl;
        self.secondary = secondary;
        // Another writer comes before this change.
        if std::mem::take(&mut self.is_overtaken) {
            let offset = self.offset();
            self.values
                .insert(key.clone(), (offset, "overtaken".into()));
        }
        let present = self.values.get(&key);
        let newest = present.map(|(offset, _)| version(*offset));
        let holds = match condition {
            KeyCondition::Any => true,
            KeyCondition::Absent => newest.is_none(),
            KeyCondition::Present => newest.is_some(),
            KeyCondition::Version(offset) => newest == Some(version(offset.0)),
        };
        if !holds {
            return Err(KeyedError::OtherVersion { newest });
        }
        let mut sum = None;
        let value = match change {
            KeyChange::Put(value) => Some(value),
            KeyChange::Delete => None,
            KeyChange::Add(number) => {
                let text = present.map_or("0", |(_, value)| std::str::from_utf8(value).unwrap());
                let value: i64 = text.parse().map_err(|_| {
                    KeyedError::NotChangeable(format!("{text:?} is not a whole number"))
                })?;
                sum = Some(value + number);
                Some((value + number).to_string().into())
            }
        };
        let offset = self.offset();
        match value {
            Some(value) => drop(self.values.insert(key, (offset, value))),
            None => drop(self.values.remove(&key)),
        }
        Ok(KeyChanged {
            version: version(offset),
            sum,
        })
    }

    fn offset(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

fn version(offset: u64) -> KeyedVersion {
    KeyedVersion {
        partition: 3,
        version: Offset(offset),
    }
}

impl KeyedStreams for Streams {
    fn get(&self, _: &str, key: Vec<u8>) -> KeyedFuture<Option<KeyedValue>> {
        let stored = self.0.lock().unwrap();
        let found = stored.values.get(&key).filter(|_| !stored.is_behind);
        let found = found.cloned();
        Box::pin(ready(Ok(found.map(|(offset, value)| KeyedValue {
            version: version(offset),
            timestamp: Timestamp(0),
            value,
            expires_at: None,
        }))))
    }

    fn get_at(&self, _: &str, _: Vec<u8>, at: Offset) -> KeyedFuture<Option<KeyedValue>> {
        Box::pin(ready(match at.0 {
            0 => Err(KeyedError::NotKept("version 0 is not kept".to_owned())),
            1 => Ok(None),
            at => Ok(Some(KeyedValue {
                version: version(at),
                timestamp: Timestamp(0),
                value: "old".into(),
                expires_at: None,
            })),
        }))
    }

    fn get_at_hold(
        &self,
        stream: &str,
        key: Vec<u8>,
        hold: String,
    ) -> KeyedFuture<Option<KeyedValue>> {
        match hold.parse() {
            Ok(at) => self.get_at(stream, key, Offset(at)),
            Err(_) => Box::pin(ready(Err(KeyedError::UnknownHold(hold)))),
        }
    }

    fn history(
        &self,
        _: &str,
        _: Vec<u8>,
        before: Offset,
        limit: usize,
    ) -> KeyedFuture<KeyedHistory> {
        let versions = (0..before.0.min(5)).rev().map(|offset| PastVersion {
            version: version(offset),
            timestamp: Timestamp(7),
            value: (offset != 3).then(|| offset.to_string().into()),
            expires_at: None,
        });
        let mut versions: Vec<PastVersion> = versions.collect();
        let is_whole = versions.len() <= limit;
        versions.truncate(limit);
        Box::pin(ready(Ok(KeyedHistory {
            next: versions
                .last()
                .map(|it| it.version.version)
                .filter(|_| !is_whole),
            versions,
            lacks_older: true,
        })))
    }

    fn scan(&self, _: &str, _: KeyRange, _: usize) -> KeyedFuture<KeyPage> {
        Box::pin(ready(Err(KeyedError::Failed("no test scans".to_owned()))))
    }

    fn find(
        &self,
        _: &str,
        _: String,
        _: Vec<KeyRange>,
        _: Option<FoundPlace>,
        _: usize,
    ) -> KeyedFuture<FoundPage> {
        Box::pin(ready(Err(KeyedError::Failed("no test finds".to_owned()))))
    }

    fn value_bytes_max(&self, stream: &str) -> Result<usize, KeyedError> {
        match stream {
            "t" | "full" | "slow" => Ok(VALUE_BYTES_MAX),
            "plain" => Err(KeyedError::NotKeyed("it is not keyed".to_owned())),
            _ => Err(KeyedError::UnknownStream(stream.to_owned())),
        }
    }

    fn change(&self, stream: &str, key: Vec<u8>, write: KeyWrite) -> KeyedFuture<KeyChanged> {
        if stream == "full" {
            return Box::pin(ready(Err(KeyedError::DiskFull("disk is full".to_owned()))));
        }
        Box::pin(ready(self.0.lock().unwrap().change(key, write)))
    }

    fn change_together(
        &self,
        stream: &str,
        changes: Vec<(Vec<u8>, KeyWrite)>,
    ) -> KeyedFuture<Vec<KeyChanged>> {
        let mut stored = self.0.lock().unwrap();
        if stream == "slow" {
            stored.waiting += 1;
            return Box::pin(pending());
        }
        let before = stored.values.clone();
        let mut all = Vec::new();
        for (number, (key, write)) in changes.into_iter().enumerate() {
            match stored.change(key, write) {
                Ok(changed) => all.push(changed),
                Err(why) => {
                    stored.values = before;
                    let why = Box::new(why);
                    return Box::pin(ready(Err(KeyedError::NotTogether { number, why })));
                }
            }
        }
        Box::pin(ready(Ok(all)))
    }

    fn watch(&self, stream: &str, _: KeyRange, from: WatchFrom) -> KeyedFuture<Box<dyn KeyWatch>> {
        let watch: Result<Box<dyn KeyWatch>, _> = match (stream, from) {
            ("t", WatchFrom::After(_)) => Err(KeyedError::MadeAgain("t".to_owned())),
            ("t", _) => Ok(Box::new(OneChange(1))),
            _ => Err(KeyedError::UnknownStream(stream.to_owned())),
        };
        Box::pin(ready(watch))
    }

    fn misplaced(&self, _: &str) -> u64 {
        0
    }
}

/// A watch that sees one change, and then an error.
struct OneChange(u64);

impl KeyWatch for OneChange {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<KeyEvent, KeyedError>> + Send + '_>> {
        self.0 += 1;
        Box::pin(ready(match self.0 {
            2 => Ok(KeyEvent::Change {
                key: "k".into(),
                version: version(1),
                timestamp: Timestamp(5),
                value: None,
                expires_at: None,
            }),
            _ => Err(KeyedError::UnknownStream("t".to_owned())),
        }))
    }

    fn positions(&self) -> WatchPositions {
        let position = WatchPosition {
            partition: 3,
            next: Offset(self.0),
            epoch: 0,
        };
        WatchPositions {
            stream: [0; 16],
            partitions: vec![position],
        }
    }

    fn is_in_snapshot(&self) -> bool {
        false
    }
}

#[test]
fn a_watch_sends_its_position_its_changes_and_the_reason_of_its_end() {
    let server = node();
    let id = |next| {
        let mut watch = OneChange(1);
        watch.0 = next;
        watch.positions().to_string()
    };
    for path in [
        "/kv/t?watch",
        "/kv/t/k?watch",
        "/kv/t?prefix=k&watch=snapshot",
    ] {
        let answer = get(&server, path);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.head.contains("content-type: text/event-stream"));
        // In chunks, each with its size.
        let lines = answer.body.split("\r\n").skip(1).step_by(2);
        let body: String = lines.collect();
        let change =
            "{\"key\":\"k\",\"partition\":3,\"version\":1,\"timestamp\":5,\"deleted\":true}";
        let reason = json!({ "reason": KeyedError::UnknownStream("t".to_owned()).to_string() });
        let expected = format!(
            "id: {}\n\nevent: change\nid: {}\ndata: {change}\n\nevent: end\ndata: {reason}\n\n",
            id(1),
            id(2)
        );
        assert_eq!(body, expected);
    }
    get(&server, "/kv/none?watch").check_error(404, "unknown stream \"none\"");
    get(&server, "/kv/t?watch&limit=1").check_error(400, "a watch may have");
    get(&server, "/kv/t?watch&after=1").check_error(400, "Last-Event-ID");
    get(&server, &format!("/kv/t?watch&after={}", id(1))).check_error(410, "made again");
    let header = format!("Last-Event-ID: {}\r\n", id(1));
    let gone = send(&server, "GET", "/kv/t?watch=snapshot", &header, "");
    gone.check_error(410, "made again");
    let metrics = get(&server, "/metrics");
    assert!(
        metrics.body.contains("\nmillstream_http_watches 0\n"),
        "{metrics:?}"
    );
    let head = send(&server, "HEAD", "/kv/t?watch", "", "");
    assert_eq!((head.status, &*head.body), (200, ""));
}

#[derive(Default)]
struct Node(Arc<Mutex<Stored>>);

impl Content for Node {
    fn flows(&self) -> Vec<Arc<Running>> {
        Vec::new()
    }

    fn overview(&self) -> Value {
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    fn keyed(&self) -> Option<Arc<dyn KeyedStreams>> {
        Some(Arc::new(Streams(Arc::clone(&self.0))))
    }
}

pub fn node() -> Server {
    start_with(Arc::new(Node::default()))
}

/// Sends a request with headers, each with its line break, and a body.
fn send(server: &Server, method: &str, path: &str, headers: &str, body: &str) -> Answer {
    let bytes = body.len();
    exchange(
        server,
        &format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {bytes}\r\n{headers}\r\n{body}"
        ),
    )
}

fn get(server: &Server, path: &str) -> Answer {
    send(server, "GET", path, "", "")
}

#[test]
fn put_stores_the_body_and_delete_removes_it() {
    let server = node();
    let stored = send(&server, "PUT", "/kv/t/a%2Fb", "", "{\"n\": 1.50}");
    assert_eq!((stored.status, &*stored.body), (204, ""), "{stored:?}");
    assert!(stored.head.contains("etag: \"3-0\"\r\n"), "{stored:?}");
    let found = get(&server, "/kv/t/a/b");
    assert_eq!((found.status, &*found.body), (200, "{\"n\": 1.50}"));
    assert!(found.head.contains("etag: \"3-0\"\r\n"), "{found:?}");

    let pieces = "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nfirst\r\n3\r\nand\r\n0\r\n\r\n";
    let put = "PUT /kv/t/a%2Fb HTTP/1.1\r\nHost: localhost\r\n";
    let stored = exchange(&server, &format!("{put}{pieces}"));
    assert_eq!(stored.status, 204, "{stored:?}");
    assert_eq!(get(&server, "/kv/t/a/b").body, "firstand");
    // An empty value is one, too.
    assert_eq!(send(&server, "PUT", "/kv/t/", "", "").status, 204);
    assert_eq!(get(&server, "/kv/t/").status, 200);

    let deleted = send(&server, "DELETE", "/kv/t/a%2Fb", "", "");
    assert_eq!((deleted.status, &*deleted.body), (204, ""), "{deleted:?}");
    get(&server, "/kv/t/a/b").check_error(404, "unknown key");
    assert_eq!(send(&server, "DELETE", "/kv/t/a%2Fb", "", "").status, 204);
}

#[test]
fn a_value_that_the_client_already_has_is_not_sent_again() {
    let server = node();
    assert_eq!(send(&server, "PUT", "/kv/t/a", "", "v").status, 204);
    for (tags, status) in [
        ("\"3-0\"", 304),
        ("\"1-0\", W/\"3-0\"", 304),
        ("*", 304),
        ("\"3-1\"", 200),
        // Without quotes it is no tag.
        ("3-0", 200),
    ] {
        let header = format!("If-None-Match: {tags}\r\n");
        for method in ["GET", "HEAD"] {
            let answer = send(&server, method, "/kv/t/a", &header, "");
            assert_eq!(answer.status, status, "{method} {tags}");
            assert!(answer.head.contains("etag: \"3-0\"\r\n"), "{answer:?}");
            assert!(answer.head.contains("last-modified: "), "{answer:?}");
            let body = if (method, status) == ("GET", 200) {
                "v"
            } else {
                ""
            };
            assert_eq!(answer.body, body, "{method} {tags}");
        }
        send(&server, "GET", "/kv/t/none", &header, "").check_error(404, "unknown key");
    }
}

#[test]
fn an_impossible_write_says_why() {
    let server = node();
    for (method, path, headers, status, part) in [
        ("PUT", "/kv/none/a", "", 404, "unknown stream \"none\""),
        ("PUT", "/kv/plain/a", "", 409, "not keyed"),
        ("PUT", "/kv/full/a", "", 507, "disk is full"),
        ("DELETE", "/kv/full/a", "", 507, "disk is full"),
        ("DELETE", "/kv/none/a", "", 404, "unknown stream"),
        ("PUT", "/kv/%FF/a", "", 400, "UTF-8"),
        ("PUT", "/kv//a", "", 404, "there is no page"),
        ("PUT", "/kv/t/a?version=1", "", 400, "\"version=1\""),
        ("PUT", "/kv/t/a", "If-Match: 3-0\r\n", 400, "if-match"),
        (
            "PUT",
            "/kv/t/a",
            "If-None-Match: \"3-0\"\r\n",
            400,
            "if-none-match",
        ),
        (
            "PUT",
            "/kv/t/a",
            "If-Match: *\r\nIf-None-Match: *\r\n",
            400,
            "if-none-match",
        ),
        (
            "PUT",
            "/kv/t/a",
            "If-Unmodified-Since: x\r\n",
            501,
            "if-unmodified-since",
        ),
        ("PATCH", "/kv/t/a", "", 400, "whole number"),
        ("PATCH", "/kv/none/a", "", 404, "unknown stream"),
        (
            "PUT",
            "/kv/t/a",
            "Content-Encoding: gzip\r\n",
            501,
            "content-encoding",
        ),
        (
            "PUT",
            "/kv/t/a",
            "Content-Range: bytes 0-1/2\r\n",
            501,
            "content-range",
        ),
    ] {
        send(&server, method, path, headers, "v").check_error(status, part);
    }
    assert_eq!(get(&server, "/kv/t/a").status, 404);
    // A value of exactly the stream's bound, and a larger one with and without a `Content-Length`.
    let largest = "x".repeat(VALUE_BYTES_MAX);
    assert_eq!(send(&server, "PUT", "/kv/t/a", "", &largest).status, 204);
    let larger = "y".repeat(40 * VALUE_BYTES_MAX);
    send(&server, "PUT", "/kv/t/a", "", &larger).check_error(413, "max.message.bytes");
    let put = "PUT /kv/t/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let piece = format!(
        "Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{larger}",
        larger.len()
    );
    let pieces = format!("{put}{piece}\r\n0\r\n\r\n");
    exchange(&server, &pieces).check_error(413, "max.message.bytes");
    assert_eq!(get(&server, "/kv/t/a").body, largest);
}

#[test]
fn a_write_whose_condition_does_not_hold_changes_nothing() {
    let server = node();
    let put = |condition: &str, value: &str| {
        send(
            &server,
            "PUT",
            "/kv/t/a",
            &format!("{condition}\r\n"),
            value,
        )
    };
    let refused = |answer: Answer, tag: Option<&str>| {
        answer.check_error(412, "another version than expected");
        let found = answer.head.lines().find(|line| line.starts_with("etag: "));
        assert_eq!(found, tag.map(|tag| format!("etag: \"{tag}\"")).as_deref());
    };
    // An absent key.
    refused(put("If-Match: *", "v"), None);
    refused(put("If-Match: \"3-0\"", "v"), None);
    assert_eq!(put("If-None-Match: *", "first").status, 201);
    // One that has version 0.
    refused(put("If-None-Match: *", "v"), Some("3-0"));
    for tags in ["\"3-1\"", "\"2-0\"", "W/\"3-0\"", "\"x\", \"y\"", ""] {
        refused(put(&format!("If-Match: {tags}"), "v"), Some("3-0"));
    }
    assert_eq!(get(&server, "/kv/t/a").body, "first");
    let stored = put("If-Match: \"3-7\", \"3-0\"", "second");
    assert_eq!(stored.status, 204);
    assert!(stored.head.contains("etag: \"3-1\"\r\n"), "{stored:?}");
    assert_eq!(put("If-Match: *", "third").status, 204);

    let delete = |tag: &str| {
        let header = format!("If-Match: {tag}\r\n");
        send(&server, "DELETE", "/kv/t/a", &header, "")
    };
    refused(delete("\"3-1\""), Some("3-2"));
    assert_eq!(delete("\"3-2\"").status, 204);
    refused(delete("*"), None);
}

/// A node whose key `a` has version 0, and its memory.
fn node_with_version_0() -> (Server, Arc<Mutex<Stored>>) {
    let node = Node::default();
    let stored = Arc::clone(&node.0);
    let server = start_with(Arc::new(node));
    assert_eq!(send(&server, "PUT", "/kv/t/a", "", "v").status, 204);
    (server, stored)
}

fn put_if_match(server: &Server, tags: &str) -> Answer {
    let header = format!("If-Match: {tags}\r\n");
    send(server, "PUT", "/kv/t/a", &header, "v")
}

#[test]
fn a_write_sees_versions_that_look_ups_do_not_see_yet() {
    let (server, stored) = node_with_version_0();
    let put = |tags| put_if_match(&server, tags);
    stored.lock().unwrap().is_behind = true;
    put("\"3-1\"").check_error(412, "version 0");
    let written = put("\"3-7\", \"3-0\"");
    assert_eq!(written.status, 204, "{written:?}");
    assert!(written.head.contains("etag: \"3-1\""), "{written:?}");
}

#[test]
fn a_conditional_write_overtaken_by_another_is_refused_unless_its_tags_match_again() {
    let (server, stored) = node_with_version_0();
    let put = |tags| put_if_match(&server, tags);
    stored.lock().unwrap().is_overtaken = true;
    put("\"3-0\"").check_error(412, "version 1");
    // One of the listed versions comes.
    stored.lock().unwrap().is_overtaken = true;
    let written = put("\"3-1\", \"3-2\"");
    assert!(written.head.contains("etag: \"3-3\""), "{written:?}");
    stored.lock().unwrap().is_overtaken = true;
    let written = put("*");
    assert_eq!(written.status, 204);
    assert!(written.head.contains("etag: \"3-5\"\r\n"), "{written:?}");
}

#[test]
fn patch_adds_to_a_number() {
    let server = node();
    let add = |headers: &str, number: &str| send(&server, "PATCH", "/kv/t/n", headers, number);
    let sum = add("", "42\n");
    assert_eq!((sum.status, &*sum.body), (200, "42"), "{sum:?}");
    assert!(sum.head.contains("etag: \"3-0\"\r\n"), "{sum:?}");
    assert_eq!(sum.json(), 42);
    let sum = add("If-Match: \"3-0\"\r\n", "-50");
    assert_eq!((sum.status, &*sum.body), (200, "-8"), "{sum:?}");
    assert_eq!(get(&server, "/kv/t/n").body, "-8");
    add("If-Match: \"3-0\"\r\n", "1").check_error(412, "version 1");
    for wrong in ["", "1.5", "one", "9223372036854775808", &"1".repeat(100)] {
        add("", wrong).check_error(400, "whole number");
    }
    assert_eq!(send(&server, "PUT", "/kv/t/n", "", "word").status, 204);
    add("", "1").check_error(409, "\"word\" is not a whole number");
}

#[test]
fn a_write_may_set_the_time_to_live_of_its_value() {
    let (server, stored) = node_with_version_0();
    let ttl = || stored.lock().unwrap().ttl.map(|ttl| ttl.as_millis());
    for (method, path, status, expected) in [
        ("PUT", "/kv/t/n", 204, None),
        ("PUT", "/kv/t/n?ttl_ms=60000", 204, Some(60_000)),
        ("PATCH", "/kv/t/n?ttl_ms=1", 200, Some(1)),
        ("PATCH", "/kv/t/n?", 200, None),
    ] {
        let written = send(&server, method, path, "", "5");
        assert_eq!((written.status, ttl()), (status, expected), "{path}");
    }
    for query in [
        "ttl_ms=0",
        "ttl_ms=-1",
        "ttl_ms=1h",
        "ttl_ms",
        "ttl_ms=1&ttl_ms=1",
        "ttl=5",
    ] {
        let written = send(&server, "PUT", &format!("/kv/t/n?{query}"), "", "5");
        written.check_error(400, "ttl_ms=<n>");
    }
    send(&server, "DELETE", "/kv/t/n?ttl_ms=5", "", "").check_error(400, "a deletion has none");
}

#[test]
fn a_body_that_ends_early_stores_nothing() {
    let server = node();
    let mut stream = connect(&server);
    let torn = "PUT /kv/t/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhalf";
    stream.write_all(torn.as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(get(&server, "/kv/t/a").status, 404);
}

/// A client that sends `Expect: 100-continue` sends its body only after the server's consent.
#[test]
fn a_client_that_expects_100_continue_does_not_send_a_refused_body() {
    let server = node();
    let ask = |path: &str| {
        let mut stream = connect(&server);
        let head = format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1\r\n\
             Expect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        (stream, String::from_utf8(first.to_vec()).unwrap())
    };
    assert_eq!(ask("/kv/none/a").1, "HTTP/1.1 404");
    let (mut stream, first) = ask("/kv/t/a");
    assert_eq!(first, "HTTP/1.1 100");
    stream.write_all(b"v").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("HTTP/1.1 204"), "{answer}");
}

#[test]
fn older_versions_of_a_key_are_shown_or_reported_as_removed() {
    let server = node();
    let get = |path: &str| request(&server, "GET", path, "localhost");
    let found = get("/kv/t/a?version=2");
    assert_eq!(found.status, 200);
    assert_eq!(found.body, "old");
    assert!(found.head.contains("etag: \"3-2\"\r\n"), "{}", found.head);
    get("/kv/t/a?version=1").check_error(404, "no value");
    get("/kv/t/a?version=0").check_error(410, "not kept");
    let found = get("/kv/t/a?hold=2");
    assert_eq!(found.status, 200);
    get("/kv/t/a?hold=none").check_error(404, "none");
    get("/kv/t/a?hold=2&version=2").check_error(400, "hold=<name>");
    get("/kv/t/a?version=x").check_error(400, "version=<n>");
    let page = get("/kv/t/a?history&limit=2");
    assert_eq!(page.status, 200);
    let page: Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!(page["versions"][0]["value"], 4);
    assert_eq!(page["versions"][1]["deleted"], true);
    assert_eq!(
        (&page["next"], &page["lacks_older"]),
        (&json!(3), &Value::Null)
    );
    let rest = get("/kv/t/a?history&before=3");
    let rest: Value = serde_json::from_str(&rest.body).unwrap();
    assert_eq!(rest["versions"].as_array().unwrap().len(), 3);
    assert_eq!(
        (&rest["next"], &rest["lacks_older"]),
        (&Value::Null, &json!(true))
    );
}

#[test]
fn each_path_names_the_methods_that_it_has() {
    let server = node();
    for method in ["POST", "OPTIONS", "BREW"] {
        let answer = request(&server, method, "/kv/t/a", "localhost");
        answer.check_error(405, method);
        assert!(
            answer
                .head
                .contains("allow: get, head, put, patch, delete\r\n")
        );
    }
    for (path, allowed) in [("/kv/t", "get, head, post"), ("/metrics", "get, head")] {
        let answer = request(&server, "PUT", path, "localhost");
        answer.check_error(405, "PUT");
        let allowed = format!("allow: {allowed}\r\n");
        assert!(answer.head.contains(&allowed), "{path}: {}", answer.head);
    }
    // A node without keyed streams has no keys to write.
    let without = start();
    for method in ["GET", "PUT", "PATCH", "DELETE", "POST"] {
        let answer = request(&without, method, "/kv/t/a", "localhost");
        answer.check_error(404, "there is no page");
    }
}

/// The largest bodies, as many as there is memory for.
#[test]
fn changes_hold_the_memory_of_their_body_until_they_are_answered() {
    const BODY_BYTES: usize = 4 << 20;
    const BODIES: usize = 16;
    let node = Node::default();
    let stored = Arc::clone(&node.0);
    let server = start_with(Arc::new(node));
    let [begin, end] = [r#"[{"key":"a","text":""#, r#""}]"#];
    let text = "x".repeat(BODY_BYTES - begin.len() - end.len());
    let request = format!(
        "POST /kv/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n\r\n\
         {begin}{text}{end}"
    );
    let send_slow = |_| {
        let mut stream = connect(&server);
        stream.write_all(request.as_bytes()).unwrap();
        stream
    };
    let waiting: Vec<TcpStream> = (0..BODIES).map(send_slow).collect();
    let until = Instant::now() + ANSWER_TIME_MAX;
    while stored.lock().unwrap().waiting < BODIES {
        assert!(Instant::now() < until, "the changes do not begin");
        sleep(Duration::from_millis(1));
    }
    let post = || send(&server, "POST", "/kv/t", "", "[]");
    let busy = post();
    busy.check_error(503, "too many bytes of requests");
    assert!(busy.head.contains("retry-after: 1\r\n"), "{busy:?}");
    // The memory is free again when the clients have gone.
    drop(waiting);
    let until = Instant::now() + ANSWER_TIME_MAX;
    while post().status != 200 {
        assert!(Instant::now() < until, "the memory stays in use");
        sleep(Duration::from_millis(1));
    }
}

#[test]
fn other_sites_cannot_write_through_a_browser() {
    let server = node();
    for headers in [
        "Origin: http://evil.example\r\n",
        "Origin: null\r\n",
        // Another server of the same name.
        "Origin: http://localhost:8081\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\nOrigin: http://localhost\r\n",
    ] {
        for method in ["PUT", "DELETE", "PATCH", "POST"] {
            let refused = send(&server, method, "/kv/t/a", headers, "v");
            refused.check_error(403, "another site");
        }
    }
    // The question that a browser asks before a page of another site may send PUT.
    let ask = "Origin: http://evil.example\r\nAccess-Control-Request-Method: PUT\r\n";
    let answer = send(&server, "OPTIONS", "/kv/t/a", ask, "");
    answer.check_error(403, "another site");
    assert!(!answer.head.contains("access-control"), "{answer:?}");
    request(&server, "PUT", "/kv/t/a", "evil.example").check_error(403, "Host");
    assert_eq!(get(&server, "/kv/t/a").status, 404);

    let own = "Sec-Fetch-Site: same-origin\r\nOrigin: http://localhost\r\n";
    assert_eq!(send(&server, "PUT", "/kv/t/a", own, "v").status, 204);
}

/// A gate that admits readers, and notes all visits.
#[derive(Default)]
struct Readers(Arc<Mutex<Vec<Visited>>>);

impl Gate for Readers {
    fn tls(&self) -> Option<Arc<ServerConfig>> {
        None
    }

    fn visitor(&self, _: SocketAddr, _: Option<&CertificateDer<'_>>) -> Arc<dyn Visitor> {
        Arc::new(Readers(Arc::clone(&self.0)))
    }
}

impl Visitor for Readers {
    fn admit(
        self: Arc<Self>,
        visited: Visited,
        _: Option<Credentials>,
    ) -> Pin<Box<dyn Future<Output = Admission> + Send>> {
        let admission = match visited {
            Visited::Write(_) => Admission::Denied,
            _ => Admission::Allowed,
        };
        self.0.lock().unwrap().push(visited);
        Box::pin(ready(admission))
    }
}

#[test]
fn a_write_may_have_secondary_keys_in_its_query() {
    let node = Node::default();
    let stored = Arc::clone(&node.0);
    let server = start_with(Arc::new(node));
    let path = "/kv/t/a?k.city=La+Paz&ttl_ms=9&k.city=%FF";
    assert_eq!(send(&server, "PUT", path, "", "1").status, 204);
    let key = |key: &[u8]| ("city".to_owned(), key.to_vec());
    let stored = stored.lock().unwrap();
    assert_eq!(stored.secondary, [key(b"La Paz"), key(b"\xff")]);
    assert_eq!(stored.ttl, Some(Duration::from_millis(9)));
    drop(stored);
    for query in ["k.city", "city=a", "k.city=a&ttl_ms=0"] {
        let refused = send(&server, "PUT", &format!("/kv/t/a?{query}"), "", "1");
        refused.check_error(400, "k.<name>=<secondary key>");
    }
    let refused = send(&server, "DELETE", "/kv/t/a?k.city=a", "", "");
    refused.check_error(400, "a deletion has none");
    let refused = get(&server, "/kv/t?by=city&key=a&from=b");
    refused.check_error(400, "by=<name>");
}

#[test]
fn a_write_needs_the_right_to_write() {
    let visits: Arc<Mutex<Vec<Visited>>> = Arc::default();
    let options = Options {
        gate: Some(Arc::new(Readers(Arc::clone(&visits)))),
        ..Options::default()
    };
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(TcpNetwork, address, Arc::new(Node::default()), options).unwrap();
    assert_eq!(get(&server, "/kv/t/a").status, 404);
    for method in ["PUT", "DELETE", "PATCH", "POST"] {
        // The body of a refused request is read, so that the client reads the answer.
        let refused = send(&server, method, "/kv/a%2Fb/c", "", &"x".repeat(4 << 20));
        refused.check_error(403, "Write on the stream \"a/b\"");
    }
    let visits = visits.lock().unwrap();
    assert_eq!(visits[0], Visited::Read("t".to_owned()));
    assert_eq!(
        visits[1..],
        [const { Visited::Node }; 4].map(|_| Visited::Write("a/b".to_owned()))
    );
}
