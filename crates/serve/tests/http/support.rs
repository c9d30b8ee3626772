//! Nodes to test against, and a plain HTTP client.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use millstream_base::TcpNetwork;
use millstream_flow::sources::Generator;
use millstream_flow::{Flow, PartialState, Running};
use millstream_serve::{Content, Metric, MetricKind, Options, Server};
use serde_json::{Value, json};

/// A bound far above the time of any answer on a busy machine.
pub const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

/// Entries that one instance of a stage has inserted.
#[derive(Default)]
struct Known(BTreeMap<String, Value>);

impl PartialState for Known {
    fn merge(&mut self, part: &Self) {
        self.0.extend(part.0.clone());
    }

    fn get(parts: &[&Self], key: &str) -> Option<Value> {
        parts.iter().find_map(|part| part.0.get(key)).cloned()
    }

    fn keys(parts: &[&Self], limit: usize) -> Vec<String> {
        let mut keys: Vec<&String> = parts.iter().flat_map(|part| part.0.keys()).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys.into_iter().take(limit).cloned().collect()
    }
}

/// A state element that panics when read.
#[derive(Default)]
struct Broken;

impl PartialState for Broken {
    fn merge(&mut self, _: &Self) {}

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        panic!("a test of a broken state element")
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

/// Adds a source to a flow that fills a state element with some entries.
fn add_known(flow: &Flow, element: &str, entries: Vec<(String, Value)>) {
    let known = flow.partial::<Known>(element);
    let count = entries.len() as u64;
    let entries = Generator::new(move |number| entries[number as usize].clone()).limit(count);
    flow.source(&format!("read {element}"), entries)
        .boundary(element)
        .fold_local(&known, |known, (key, value)| {
            known.0.insert(key.clone(), value.clone());
        });
}

pub fn run(flow: Flow) -> Arc<Running> {
    let running = flow.run().expect("threads");
    running.join().expect("the end");
    Arc::new(running)
}

/// A node with two flows that have ended.
pub struct Sample(Vec<Arc<Running>>);

impl Sample {
    pub fn new() -> Arc<Sample> {
        let counts = |count| {
            let entries = (0..count).map(|n| (format!("campaign-{n:05}"), json!({ "views": n })));
            entries.collect()
        };
        let ads = Flow::new("ads");
        add_known(&ads, "campaign_counts", counts(150));
        add_known(&ads, "large", counts(20_000));
        ads.partial::<Broken>("broken");
        let words = Flow::new("two \"words\"");
        let odd = [("grüße/☃ 100%", 7), ("plus+plus", 8)];
        let odd = odd.map(|(key, value)| (key.to_owned(), json!(value)));
        add_known(&words, "a/b", odd.to_vec());
        Arc::new(Sample(vec![run(ads), run(words)]))
    }
}

impl Content for Sample {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.0.clone()
    }

    fn overview(&self) -> Value {
        json!({ "name": "millstream", "flow": "ads", "events": 5 })
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![Metric::new(
            "events_total",
            MetricKind::Counter,
            5,
            "Events so far.",
        )]
    }
}

pub fn start() -> Server {
    start_with(Sample::new())
}

pub fn start_with(content: Arc<dyn Content>) -> Server {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::start(TcpNetwork, address, content, Options::default()).expect("a free port")
}

pub fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_address()).expect("connect");
    stream
        .set_read_timeout(Some(ANSWER_TIME_MAX))
        .expect("timeout");
    stream
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        assert!(self.head.contains("content-type: application/json"));
        serde_json::from_str(&self.body).expect("JSON")
    }

    #[track_caller]
    pub fn check_error(&self, status: u16, expected: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        let message = json["error"].as_str().expect("a message");
        assert!(message.contains(expected), "{message}");
    }
}

/// Sends `request` and reads until the server closes.
pub fn exchange(server: &Server, request: &str) -> Answer {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = Vec::new();
    // If the server closes before it has read everything, the system reports a reset.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    Answer {
        status: head[9..12].parse().expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

pub fn request(server: &Server, method: &str, path: &str, host: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(server, &request)
}

pub fn get(server: &Server, path: &str) -> Answer {
    request(server, "GET", path, &server.local_address().to_string())
}

/// A node with one flow.
pub struct OneFlow(pub Arc<Running>);

impl Content for OneFlow {
    fn flows(&self) -> Vec<Arc<Running>> {
        vec![Arc::clone(&self.0)]
    }

    fn overview(&self) -> Value {
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}
