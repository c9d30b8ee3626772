//! The server as its clients see it, byte for byte over TCP.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use millstream_base::{TcpNetwork, Timestamp};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Flow, FlowSettings, PartialState, Running, Watermarks};
use millstream_serve::{Content, Metric, MetricKind, Options, Server};
use serde_json::{Value, json};

/// Far more than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Entries that one instance of a stage has put there.
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

/// A state element whose reading is broken.
#[derive(Default)]
struct Broken;

impl PartialState for Broken {
    fn merge(&mut self, _: &Self) {}

    fn get(_: &[&Self], _: &str) -> Option<Value> {
        panic!("a test of what a broken state element does to its server")
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

/// Lets a flow fill a state element with some entries.
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

fn run(flow: Flow) -> Arc<Running> {
    let running = flow.run().expect("threads");
    running.join().expect("the end");
    Arc::new(running)
}

/// Two flows that have done their work.
struct Sample(Vec<Arc<Running>>);

impl Sample {
    fn new() -> Arc<Sample> {
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

fn start() -> Server {
    start_with(Sample::new())
}

fn start_with(content: Arc<dyn Content>) -> Server {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    Server::start(TcpNetwork, address, content, Options::default()).expect("a free port")
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_address()).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream
}

#[derive(Debug)]
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.head.contains("content-type: application/json"));
        serde_json::from_str(&self.body).expect("JSON")
    }

    #[track_caller]
    fn check_error(&self, status: u16, says: &str) {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        let message = json["error"].as_str().expect("a message");
        assert!(message.contains(says), "{message}");
    }
}

/// Sends `request` and reads until the server closes.
fn exchange(server: &Server, request: &str) -> Answer {
    let mut stream = connect(server);
    stream.write_all(request.as_bytes()).expect("send");
    let mut answer = Vec::new();
    // A server that closes before it has read everything makes the system report a reset.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    Answer {
        status: head[9..12].parse().expect("a status"),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

fn request(server: &Server, method: &str, path: &str, host: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    exchange(server, &request)
}

fn get(server: &Server, path: &str) -> Answer {
    request(server, "GET", path, &server.local_address().to_string())
}

#[test]
fn the_page_comes_with_a_policy_that_lets_it_talk_to_this_server_only() {
    let answer = get(&start(), "/");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/html"));
    assert!(answer.head.contains("default-src 'none'"));
    assert!(!answer.head.contains("unsafe"));
    assert!(answer.body.starts_with("<!doctype html>"));
}

#[test]
fn health_overview_flows_and_metrics() {
    let server = start();
    let health = get(&server, "/healthz");
    assert_eq!((health.status, health.body.as_str()), (200, "ok"));
    let overview = get(&server, "/api/v1/overview").json();
    assert_eq!(overview, Sample::new().overview());
    let flows = get(&server, "/api/v1/flows").json();
    assert_eq!(flows, json!(["ads", "two \"words\""]));
    let metrics = get(&server, "/metrics");
    let first = "# HELP millstream_events_total Events so far.\n\
                 # TYPE millstream_events_total counter\n\
                 millstream_events_total 5\n";
    assert!(metrics.body.starts_with(first), "{}", metrics.body);
    let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(metrics.head.contains(content_type));
    assert!(metrics.head.contains("cache-control: no-store"));
    assert!(metrics.head.contains("x-content-type-options: nosniff"));
}

/// Prometheus takes nothing of a page on which it does not understand a line.
#[test]
fn prometheus_gets_every_figure_of_every_stage_with_its_kind() {
    let body = get(&start(), "/metrics").body;
    let mut kinds = BTreeMap::new();
    let mut values = BTreeMap::new();
    let mut current = "";
    for line in body.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a kind");
            assert!(kinds.insert(name, kind).is_none(), "{name} comes twice");
            assert_eq!(current, name, "the help comes first");
        } else if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split_once(' ').expect("a help").0;
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let value: f64 = value.parse().expect("a number");
            assert!(value.is_finite() && value >= 0.0, "{line}");
            assert!(series.starts_with(current), "{series} is among {current}");
            assert!(
                values.insert(series, value).is_none(),
                "{series} comes twice"
            );
        }
    }
    assert_eq!(kinds["millstream_stage_items_in_total"], "counter");
    assert_eq!(kinds["millstream_stage_readable_items"], "gauge");
    assert_eq!(kinds["millstream_flow_latency_seconds"], "histogram");
    let of_stage = |name: &str, flow: &str, stage: &str| {
        values[format!("millstream_stage_{name}{{flow=\"{flow}\",stage=\"{stage}\"}}").as_str()]
    };
    assert_eq!(of_stage("items_in_total", "ads", "large"), 20_000.0);
    assert_eq!(of_stage("items_out_total", "ads", "read large"), 20_000.0);
    assert_eq!(of_stage("readable_items", "ads", "large"), 0.0);
    assert!(of_stage("busy_seconds_total", "ads", "large") > 0.0);
    assert!(of_stage("item_seconds", "ads", "large") < 1.0);
    assert_eq!(of_stage("items_in_total", r#"two \"words\""#, "a/b"), 2.0);
    let latency = |part: &str| values[format!("millstream_flow_latency_seconds_{part}").as_str()];
    let count = latency(r#"count{flow="ads"}"#);
    assert!(count >= 200.0, "{count}");
    assert_eq!(latency(r#"bucket{flow="ads",le="+Inf"}"#), count);
    assert_eq!(latency(r#"bucket{flow="ads",le="100"}"#), count);
    assert!(latency(r#"sum{flow="ads"}"#) > 0.0);
    assert_eq!(values[r#"millstream_flow_finished{flow="ads"}"#], 1.0);
}

#[test]
fn the_metrics_of_one_flow_are_json() {
    let server = start();
    let metrics = get(&server, "/api/v1/flows/ads/metrics").json();
    assert_eq!(metrics["flow"], "ads");
    assert_eq!(metrics["is_finished"], true);
    assert_eq!(metrics["workers_replaced"], 0);
    let stages = metrics["stages"].as_array().expect("a list");
    let names = stages.iter().map(|stage| stage["stage"].as_str());
    let expected = [
        "read campaign_counts",
        "campaign_counts",
        "read large",
        "large",
    ];
    assert!(names.eq(expected.map(Some)), "{stages:?}");
    assert_eq!(stages[3]["items_in"], 20_000);
    assert_eq!(stages[3]["readable"], 0);
    let latency = &metrics["latency"];
    let steps = latency["histogram"].as_array().expect("a list");
    let samples: u64 = steps.iter().filter_map(|step| step[1].as_u64()).sum();
    assert_eq!(latency["samples"], samples);
    assert!(latency["p50_us"].as_f64() <= latency["p99_us"].as_f64());
    let metrics = get(&server, "/api/v1/flows/two%20%22words%22/metrics").json();
    assert_eq!(metrics["flow"], "two \"words\"");
    get(&server, "/api/v1/flows/adds/metrics").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/api/v1/flows/%FF/metrics").check_error(400, "UTF-8");
    let answer = get(&server, "/api/v1/flows/ads");
    answer.check_error(404, "/api/v1/flows/<flow>/metrics");
}

/// A flow that works while it is looked at.
struct Steady(Arc<Running>);

impl Content for Steady {
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

#[test]
fn throughput_is_kept_for_every_second() {
    let settings = FlowSettings::default();
    let clock = Arc::clone(&settings.clock);
    let flow = Flow::with_settings("steady", settings);
    let count = flow.partial::<u64>("count");
    let numbers = Generator::new(|number| number).rate(10_000.0, clock);
    flow.source("numbers", numbers)
        .boundary("count")
        .fold_local(&count, |count, _| *count += 1);
    let running = Arc::new(flow.run().expect("threads"));
    let server = start_with(Arc::new(Steady(Arc::clone(&running))));
    let started_at = Instant::now();
    let metrics = loop {
        let metrics = get(&server, "/api/v1/flows/steady/metrics").json();
        if metrics["throughput"]
            .as_array()
            .is_some_and(|samples| samples.len() >= 2)
        {
            break metrics;
        }
        assert!(started_at.elapsed() < PATIENCE, "{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(metrics["is_finished"], false);
    assert!(metrics["workers"].as_u64() >= Some(1));
    let samples = metrics["throughput"].as_array().expect("a list");
    let seconds = |sample: &Value| sample["seconds"].as_f64().expect("a number");
    assert!(seconds(&samples[0]) >= 0.9, "{samples:?}");
    assert!(
        seconds(&samples[1]) >= seconds(&samples[0]) + 0.9,
        "{samples:?}"
    );
    assert!(metrics["watched_seconds"].as_f64() >= Some(seconds(&samples[1])));
    for sample in samples {
        let rates = sample["items_per_second"].as_array().expect("a list");
        assert_eq!(rates.len(), 2);
        for rate in rates {
            let rate = rate.as_f64().expect("a number");
            assert!((5_000.0..20_000.0).contains(&rate), "{samples:?}");
        }
    }
    running.stop();
    running.join().expect("the end");
    server.stop();
}

#[test]
fn one_value_by_its_key() {
    let server = start();
    let answer = get(&server, "/state/ads/campaign_counts/campaign-00042");
    assert_eq!(answer.json(), json!({ "views": 42 }));
}

#[test]
fn names_and_keys_hold_any_percent_encoded_text() {
    let server = start();
    let path = "/state/two%20%22words%22/a%2Fb/gr%C3%BC%C3%9Fe%2F%E2%98%83%20100%25";
    assert_eq!(get(&server, path).json(), json!(7));
    let path = "/state/two%20%22words%22/a%2Fb/plus+plus";
    assert_eq!(get(&server, path).json(), json!(8));
    get(&server, "/state/two%20%22words%22/a%2Fb/%FF").check_error(400, "UTF-8");
}

#[test]
fn entries_are_ordered_and_bounded() {
    let server = start();
    let count = |path| {
        let list = get(&server, path).json();
        let list = list.as_array().expect("a list").clone();
        assert!(list.is_sorted_by_key(|entry| entry["key"].to_string()));
        list.len()
    };
    assert_eq!(count("/state/ads/campaign_counts"), 100);
    assert_eq!(count("/state/ads/campaign_counts?limit=3"), 3);
    assert_eq!(count("/state/ads/campaign_counts?limit=10000"), 150);
    assert_eq!(count("/state/ads/large?limit=10000"), 10_000);
    let last = get(&server, "/state/ads/campaign_counts?limit=1").json();
    let entry = json!([{ "key": "campaign-00149", "value": { "views": 149 } }]);
    assert_eq!(last, entry);
}

#[test]
fn a_query_that_makes_no_sense_is_refused() {
    let server = start();
    let list = |query: &str| get(&server, &format!("/state/ads/campaign_counts?{query}"));
    for query in ["limit=0", "limit=10001", "limit=many", "limit=-1", "limt=3"] {
        let answer = list(query);
        answer.check_error(400, &format!("the query \"{query}\" is refused"));
        answer.check_error(400, "limit=<n>, a number from 1 to 10000");
        // The words of a library would mean nothing to whoever asks.
        assert!(!answer.body.contains("deserialize"), "{}", answer.body);
    }
}

#[test]
fn what_is_unknown_is_named() {
    let server = start();
    get(&server, "/state/adds/campaign_counts").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/adds/x/y").check_error(404, r#"unknown flow "adds""#);
    get(&server, "/state/ads/counts/x").check_error(404, r#"unknown element "counts""#);
    let answer = get(&server, "/state/ads/campaign_counts/x%20y");
    answer.check_error(404, r#"unknown key "x y""#);
    get(&server, "/state").check_error(404, "nothing at \"/state\"");
    get(&server, "/api/v2/overview").check_error(404, "/api/v1/overview");
}

#[test]
fn a_broken_state_element_breaks_one_request() {
    let server = start();
    get(&server, "/state/ads/broken/x").check_error(500, "report it");
    assert_eq!(get(&server, "/api/v1/overview").status, 200);
}

#[test]
fn all_methods_but_get_and_head_are_refused() {
    let server = start();
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let answer = request(&server, method, "/healthz", "localhost");
        answer.check_error(405, method);
        assert!(answer.head.contains("allow: get, head"));
    }
    let head = request(&server, "HEAD", "/api/v1/overview", "localhost");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn other_hosts_are_refused() {
    let server = start();
    let with_host = |host: &str| request(&server, "GET", "/metrics", host);
    for host in ["127.0.0.1", "localhost:8080", "[::1]:8080", "10.1.2.3"] {
        assert_eq!(with_host(host).status, 200, "{host}");
    }
    for host in ["example.com", "localhost.example.com", ""] {
        with_host(host).check_error(403, "Host");
    }
    let none = "GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n";
    exchange(&server, none).check_error(403, "Host");
    let two = "GET / HTTP/1.1\r\nHost: localhost\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    exchange(&server, two).check_error(403, "Host");
    let in_uri = "GET http://a.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    exchange(&server, in_uri).check_error(403, "Host");
}

#[test]
fn oversized_heads_are_refused() {
    let server = start();
    let long = "x".repeat(20_000);
    assert_eq!(get(&server, &format!("/{long}")).status, 431);
    let header = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {long}\r\n\r\n");
    assert_eq!(exchange(&server, &header).status, 431);
    let many = "X-Many: 1\r\n".repeat(1_000);
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    assert_eq!(exchange(&server, &many).status, 431);
}

/// How long the server keeps a connection on which the client sent `sent` and no more.
fn time_kept(server: &Server, sent: &str) -> Duration {
    let mut stream = connect(server);
    stream.write_all(sent.as_bytes()).expect("send");
    let start = Instant::now();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("the server closes");
    start.elapsed()
}

#[test]
fn clients_that_say_nothing_or_stop_halfway_are_let_go() {
    let server = start();
    std::thread::scope(|scope| {
        for sent in [
            "",
            "GET / HT",
            "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let server = &server;
            scope.spawn(move || {
                let kept = time_kept(server, sent);
                assert!(kept > Duration::from_secs(1), "{sent:?} {kept:?}");
                assert!(kept < Duration::from_secs(10), "{sent:?} {kept:?}");
            });
        }
    });
}

/// 1,100 connections need 2,200 files in this process.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to the hard limit");
}

/// A node that answers only as long as the gate is not held.
#[derive(Default)]
struct Gated(Mutex<()>);

impl Content for Gated {
    fn flows(&self) -> Vec<Arc<Running>> {
        Vec::new()
    }

    fn overview(&self) -> Value {
        let _open = self.0.lock();
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

#[test]
fn connections_beyond_the_bound_wait_for_a_place() {
    allow_many_files();
    let gated = Arc::new(Gated::default());
    let server = start_with(gated.clone());
    let ask = |path: &str| {
        let mut stream = connect(&server);
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("send");
        stream
    };
    let is_answered = |stream: &mut TcpStream, patience| -> bool {
        stream.set_read_timeout(Some(patience)).expect("timeout");
        stream.read(&mut [0; 1_024]).is_ok_and(|bytes| bytes > 0)
    };
    let gate = gated.0.lock();
    let mut streams: Vec<TcpStream> = (0..1_024).map(|_| ask("/api/v1/overview")).collect();
    let mut waiting: Vec<TcpStream> = (1_024..1_100).map(|_| ask("/healthz")).collect();
    assert!(!is_answered(&mut waiting[0], Duration::from_millis(200)));
    drop(gate);
    for stream in streams.iter_mut().chain(&mut waiting) {
        assert!(is_answered(stream, PATIENCE));
    }
}

#[test]
fn stopping_is_prompt_and_frees_the_port() {
    let server = start();
    let address = server.local_address();
    let mut silent = connect(&server);
    let mut idle = connect(&server);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .expect("send");
    let bytes = idle.read(&mut [0; 1_024]).expect("an answer");
    assert!(bytes > 0);
    let start = Instant::now();
    server.stop();
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(silent.read(&mut [0; 16]).unwrap_or(0), 0);
    assert_eq!(idle.read(&mut [0; 16]).unwrap_or(0), 0);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_in_use_is_an_error() {
    let server = start();
    let second = Server::start(
        TcpNetwork,
        server.local_address(),
        Sample::new(),
        Options::default(),
    );
    let error = second.err().expect("it is in use");
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

/// A flow whose windows have keys that are no strings.
struct Pairs(Arc<Running>);

impl Content for Pairs {
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

#[test]
fn keys_in_addresses_are_strings_and_numbers_as_they_are_and_else_json() {
    let flow = Flow::new("shop");
    let windows = Windows::tumbling(10);
    let all = flow.windowed("all items", windows, Count);
    let numbers = flow.windowed("numbers", windows, Count);
    let pairs = flow.windowed("pairs", windows, Count);
    let channels = ["all", "numbers", "pairs"].map(|name| flow.channel::<u64>(name));
    let time = |number: &u64| Timestamp(*number as i64);
    flow.source("orders", Generator::new(|number| number).limit(10))
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .to_all(&channels);
    let kept = flow.partial::<u64>("kept");
    flow.stage("of all", &channels[0])
        .aggregate("count all", &all, time)
        .fold_local(&kept, |sum, window| *sum += window.value);
    flow.stage("of numbers", &channels[1])
        .key_by(|number| number % 5)
        .aggregate("count numbers", &numbers, time)
        .fold_local(&kept, |sum, window| *sum += window.value);
    flow.stage("of pairs", &channels[2])
        .key_by(|number| (["a", "b/c"][*number as usize % 2].to_owned(), number % 2))
        .aggregate("count pairs", &pairs, time)
        .fold_local(&kept, |sum, window| *sum += window.value);
    let server = start_with(Arc::new(Pairs(run(flow))));
    let value = |path: &str| get(&server, path).json()["value"].clone();
    assert_eq!(value("/state/shop/all%20items/all"), 10);
    assert_eq!(value("/state/shop/numbers/3"), 2);
    assert_eq!(value("/state/shop/pairs/%5B%22a%22,0%5D"), 5);
    assert_eq!(value("/state/shop/pairs/%5B%22b%2Fc%22,1%5D"), 5);
    let entries = get(&server, "/state/shop/pairs").json();
    assert_eq!(entries[0]["key"], r#"["a",0]"#);
    assert_eq!(entries[1]["key"], r#"["b/c",1]"#);
    let unknown = get(&server, "/state/shop/pairs/%5B%22a%22%5D");
    assert_eq!(unknown.status, 404);
}
