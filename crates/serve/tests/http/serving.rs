//! State that is read while it changes: ranges, several ranks, committed values, and the headers of answers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Output, PartialState, Position,
    Positions, Resume, Running, ShardKey, Source, SourcePartitions, SourceStatus, Watermarks,
};
use millstream_serve::{Content, Metric, Server};
use serde_json::{Value, json};

use crate::support::{ANSWER_TIME_MAX, Answer, get, start, start_with};

/// A store of checkpoints in memory; it may be full.
#[derive(Default)]
pub struct MemoryStore(
    Mutex<BTreeMap<(u64, u32), Vec<u8>>>,
    /// Whether it is full.
    pub AtomicBool,
);

impl Checkpoints for MemoryStore {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        if self.1.load(Ordering::SeqCst) {
            return Err("it is full".into());
        }
        let mut shards = self.0.lock().unwrap();
        shards.insert((key.checkpoint, key.rank), shard.to_vec());
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let shards = self.0.lock().unwrap();
        let shard = shards.get(&(key.checkpoint, key.rank)).cloned();
        shard.ok_or_else(|| "it is not there".into())
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        let shards = self.0.lock().unwrap();
        let keys = shards.keys().map(|(checkpoint, rank)| ShardKey {
            checkpoint: *checkpoint,
            rank: *rank,
            run: 0,
        });
        Ok(keys.collect())
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        self.0.lock().unwrap().remove(&(key.checkpoint, key.rank));
        Ok(())
    }
}

/// The ranks of flows.
pub struct Flows(pub Vec<Arc<Running>>);

impl Content for Flows {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.0.clone()
    }

    fn overview(&self) -> Value {
        json!({})
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// The names of users: strings that sort otherwise than their numbers.
fn user(number: u64) -> String {
    format!("user/{}", number % 100)
}

/// Counts 1,000 numbers by key, as strings and as numbers, on some ranks, each of which has a tenth of them again.
fn count(ranks: u32, store: Option<Arc<MemoryStore>>) -> Vec<Arc<Running>> {
    on_ranks(ranks, |ranks| {
        let settings = FlowSettings {
            checkpoints: store.clone().map(|store| Checkpointing {
                store,
                interval: Some(Duration::from_millis(1)),
                resume: Resume::Never,
            }),
            ranks,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("count", settings);
        let users = flow.values::<String, u64>("users");
        let numbers = flow.values::<u64, u64>("numbers");
        let sums = flow.partial::<u64>("sums");
        let channels = ["users", "numbers", "sums"].map(|name| flow.channel::<u64>(name));
        let time = |number: &u64| Timestamp(*number as i64);
        flow.source("source", Generator::new(|number| number).limit(1000))
            .watermarks(time, Watermarks::bounded(Duration::ZERO))
            .to_all(&channels);
        flow.stage("of users", &channels[0])
            .key_by(|number| user(*number))
            .count("count users", &users);
        flow.stage("of numbers", &channels[1])
            .key_by(|number| number % 100)
            .count("count numbers", &numbers);
        flow.stage("of sums", &channels[2])
            .fold_local(&sums, |sum, number| *sum += number);
        flow
    })
}

/// Runs a flow on some ranks until it has ended.
pub fn on_ranks(ranks: u32, flow: impl Fn(Ranks) -> Flow + Sync) -> Vec<Arc<Running>> {
    let run = |ranks: Ranks| {
        let running = Arc::new(flow(ranks).run().expect("threads"));
        running.join().expect("the end");
        running
    };
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(ranks)
            .into_iter()
            .map(|ranks| scope.spawn(|| run(ranks)))
            .collect();
        let running = threads.into_iter().map(|thread| thread.join().unwrap());
        running.collect()
    })
}

pub fn header(answer: &Answer, name: &str) -> Option<String> {
    let mut lines = answer.head.lines();
    let value = lines.find_map(|line| line.strip_prefix(&format!("{name}: ")));
    value.map(str::to_owned)
}

fn keys(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let entries = json.as_array().expect("a list").iter();
    entries
        .map(|entry| entry["key"].as_str().expect("a key").to_owned())
        .collect()
}

#[track_caller]
fn check_keys(server: &Server, query: &str, expected: &[&str]) {
    let answer = get(server, &format!("/state/count/{query}"));
    assert_eq!(keys(&answer), expected, "{query}");
}

#[test]
fn answers_over_all_ranks_are_in_the_order_of_canonical_keys() {
    for ranks in [1, 3] {
        let server = start_with(Arc::new(Flows(count(ranks, None))));
        let each = 10 * u64::from(ranks);
        assert_eq!(get(&server, "/state/count/numbers/7").json(), each);
        let answer = get(
            &server,
            "/state/count/users?keys=user/3&keys=none&keys=user%2F1",
        );
        let expected =
            json!([{ "key": "user/3", "value": each }, { "key": "user/1", "value": each }]);
        assert_eq!(answer.json(), expected);
        check_keys(&server, "numbers?from=9&to=12", &["9", "10", "11"]);
        check_keys(&server, "numbers?to=2", &["0", "1"]);
        check_keys(&server, "numbers?from=98", &["98", "99"]);
        check_keys(
            &server,
            "users?prefix=user/9&limit=3",
            &["user/9", "user/90", "user/91"],
        );
        check_keys(
            &server,
            "users?from=user/98&limit=2",
            &["user/98", "user/99"],
        );
        check_keys(&server, "users?prefix=none", &[]);
        let all = get(&server, "/state/count/numbers");
        assert_eq!(
            keys(&all),
            (0..100).map(|key| key.to_string()).collect::<Vec<_>>()
        );
        assert_eq!(header(&all, "millstream-next"), None);
        let page = get(&server, "/state/count/users?limit=2");
        assert_eq!(
            header(&page, "millstream-next").as_deref(),
            Some("user%2f1")
        );
        assert_eq!(
            header(&page, "millstream-committed").as_deref(),
            Some("false")
        );
    }
}

#[test]
fn a_list_of_large_values_goes_on_in_further_pages() {
    const KEYS: u64 = 60;
    for ranks in [1, 3] {
        let flows = on_ranks(ranks, |ranks| {
            let settings = FlowSettings {
                ranks,
                ..FlowSettings::default()
            };
            let flow = Flow::with_settings("large", settings);
            let texts = flow.values::<u64, String>("texts");
            flow.source("source", Generator::new(|number| number).limit(KEYS))
                .key_by(|number| *number)
                .fold("keep texts", &texts, |kept, _| {
                    *kept = "x".repeat(256 << 10);
                });
            flow
        });
        let server = start_with(Arc::new(Flows(flows)));
        let (mut found, mut pages, mut from) = (Vec::new(), 0, "0".to_owned());
        loop {
            let answer = get(
                &server,
                &format!("/state/large/texts?limit=100&from={from}"),
            );
            let page = keys(&answer);
            assert!(page.len() >= 2, "{page:?}");
            assert!(answer.body.len() < ranks as usize * (3 << 20), "{page:?}");
            pages += 1;
            // The first entry is the last one of the page before.
            found.pop();
            found.extend(page);
            match header(&answer, "millstream-next") {
                Some(next) => from = next,
                None => break,
            }
        }
        let expected = (0..KEYS).map(|key| key.to_string());
        assert_eq!(found, expected.collect::<Vec<_>>());
        assert!(pages > 1);
    }
}

#[test]
fn ranges_that_an_element_does_not_have_are_refused() {
    let server = start_with(Arc::new(Flows(count(1, None))));
    let check = |query: &str, status, text: &str| {
        get(&server, &format!("/state/count/{query}")).check_error(status, text);
    };
    check("numbers?prefix=1", 400, "not strings");
    check("numbers?from=x", 400, "does not fit the type");
    check("sums?prefix=a", 409, "have no order");
    check("sums?committed", 409, "takes no checkpoints");
    check("users/user%2F1?limit=3", 400, "for one key");
    check("users?prefix=a&from=b", 400, "is refused");
    check("users?prefix=%FF", 400, "is refused");
    check("users?rank=1", 404, "unknown rank 1");
    check("users?rank=x", 400, "is refused");
    let broken = get(&start(), "/state/ads/campaign_counts?from=a");
    broken.check_error(409, "have no order");
}

#[test]
fn committed_values_and_headers_show_the_last_checkpoint() {
    for ranks in [1, 2] {
        let flows = Flows(count(ranks, Some(Arc::default())));
        let server = start_with(Arc::new(flows));
        let each = 10 * u64::from(ranks);
        let started_at = Instant::now();
        // The flow has ended with a checkpoint of all.
        for query in ["", "?committed", "?committed=true"] {
            let answer = get(&server, &format!("/state/count/numbers/7{query}"));
            assert_eq!(answer.json(), each, "{query}");
            let committed = header(&answer, "millstream-committed");
            assert_eq!(committed.as_deref(), Some("true"), "{answer:?}");
            let age = header(&answer, "millstream-checkpoint-age").expect("an age");
            let age: f64 = age.parse().expect("a number");
            assert!((0.0..60.0).contains(&age));
        }
        assert!(started_at.elapsed() < ANSWER_TIME_MAX);
        let list = get(
            &server,
            "/state/count/users?prefix=user/5&limit=100&committed",
        );
        assert_eq!(list.json().as_array().expect("a list").len(), 11);
        assert_eq!(
            header(&list, "millstream-committed").as_deref(),
            Some("true")
        );
        let absent = get(&server, "/state/count/numbers/777?committed");
        absent.check_error(404, "unknown key");
        assert_eq!(
            header(&absent, "millstream-committed").as_deref(),
            Some("true")
        );
        get(&server, "/state/count/sums?committed").check_error(409, "only as it is now");
    }
}

#[test]
fn a_key_without_an_owner_does_not_keep_committed_values_of_others() {
    let server = start_with(Arc::new(Flows(count(2, Some(Arc::default())))));
    let get = |query: &str| get(&server, &format!("/state/count/numbers?{query}&committed"));
    let answer = get("keys=7&keys=abc");
    assert_eq!(answer.json(), json!([{ "key": "7", "value": 20 }]));
    let committed = header(&answer, "millstream-committed");
    assert_eq!(committed.as_deref(), Some("true"));
    // An answer about no value that any rank could have says nothing of a checkpoint.
    for query in ["keys=abc&keys=def", "keys=abc"] {
        let answer = get(query);
        assert_eq!(answer.json(), json!([]));
        let committed = header(&answer, "millstream-committed");
        assert_eq!(committed.as_deref(), Some("false"));
    }
}

#[test]
fn requests_reach_ranks_in_other_processes() {
    let ranks = count(3, Some(Arc::default()));
    let all = start_with(Arc::new(Flows(ranks.clone())));
    // Two servers stand for the processes of the other ranks.
    let parts = [
        start_with(Arc::new(Flows(ranks[..1].to_vec()))),
        start_with(Arc::new(Flows(ranks[1..].to_vec()))),
    ];
    let mut paths: Vec<String> = (0..100)
        .map(|key| format!("/state/count/numbers/{key}?committed"))
        .collect();
    paths.extend(
        [
            "numbers",
            "numbers?limit=1000&committed",
            "numbers?from=9&to=12",
            "numbers?keys=1&keys=2&keys=abc&keys=3&committed",
            "users?prefix=user/9&limit=3&committed",
            "users?limit=7&rank=0",
            "users?limit=7&rank=2&committed",
            "users/user%2F1",
            "users/none?committed",
            "sums",
            "sums/count",
            "sums/count?rank=1",
            "sums?keys=count",
            "numbers?rank=3",
            "numbers?from=x",
        ]
        .map(|path| format!("/state/count/{path}")),
    );
    for path in &paths {
        let expected = get(&all, path);
        for server in &parts {
            let answer = get(server, path);
            assert_eq!(
                (answer.status, &answer.body),
                (expected.status, &expected.body)
            );
            for name in ["committed", "position", "watermark", "next"] {
                let name = format!("millstream-{name}");
                assert_eq!(header(&answer, &name), header(&expected, &name), "{path}");
            }
        }
    }
}

/// A share of state that rank 1 does not read while the gate is shut.
#[derive(Default)]
struct Stuck {
    rank: u32,
}

static GATE: Mutex<()> = Mutex::new(());

/// The requests that have read the share of rank 0, which they do after they have asked rank 1.
static ASKED: AtomicU64 = AtomicU64::new(0);

impl PartialState for Stuck {
    fn merge(&mut self, part: &Self) {
        self.rank = part.rank;
    }

    fn get(parts: &[&Self], _: &str) -> Option<Value> {
        match parts.iter().any(|part| part.rank == 1) {
            true => drop(GATE.lock()),
            false => drop(ASKED.fetch_add(1, Ordering::SeqCst)),
        }
        None
    }

    fn keys(_: &[&Self], _: usize) -> Vec<String> {
        Vec::new()
    }
}

#[test]
fn an_error_names_a_silent_rank_and_other_pages_are_not_delayed() {
    let ranks = on_ranks(2, |ranks| {
        let rank = ranks.rank();
        let settings = FlowSettings {
            ranks,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("stuck", settings);
        let share = flow.partial::<Stuck>("share");
        flow.source("source", Generator::new(|number| number).limit(1))
            .fold_local(&share, move |share, _| share.rank = rank);
        flow
    });
    let server = start_with(Arc::new(Flows(ranks[..1].to_vec())));
    let page = "/state/stuck/share/key";
    get(&server, page).check_error(404, "unknown key");
    let shut = GATE.lock().unwrap();
    let silent = get(&server, page);
    silent.check_error(503, "rank 1 of the flow does not answer");
    assert_eq!(header(&silent, "retry-after").as_deref(), Some("1"));
    get(&server, &format!("{page}?rank=0")).check_error(404, "unknown key");
    ASKED.store(0, Ordering::SeqCst);
    thread::scope(|scope| {
        // More than the server has threads.
        let asking: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| get(&server, page)))
            .collect();
        let started_at = Instant::now();
        while ASKED.load(Ordering::SeqCst) < 6 {
            assert!(started_at.elapsed() < ANSWER_TIME_MAX, "few have asked");
            thread::yield_now();
        }
        get(&server, "/metrics");
        let are_waiting = asking.iter().all(|asking| !asking.is_finished());
        assert!(are_waiting, "the metrics waited");
        drop(shut);
    });
    get(&server, page).check_error(404, "unknown key");
}

#[test]
fn an_error_names_an_ended_rank_at_once() {
    let mut ranks = count(2, None);
    drop(ranks.pop());
    let server = start_with(Arc::new(Flows(ranks)));
    let answer = get(&server, "/state/count/numbers/7");
    answer.check_error(503, "rank 1: it ended without a word");
}

#[test]
fn ranks_of_a_flow_have_separate_metrics_under_one_name() {
    let server = start_with(Arc::new(Flows(count(2, None))));
    assert_eq!(get(&server, "/api/v1/flows").json(), json!(["count"]));
    let elements = json!({ "flow": "count", "elements": ["numbers", "sums", "users"] });
    assert_eq!(get(&server, "/state").json(), json!([elements]));
    let body = get(&server, "/metrics").body;
    for rank in 0..2 {
        let line = format!("millstream_flow_finished{{flow=\"count\",rank=\"{rank}\"}} 1");
        assert_eq!(body.lines().filter(|it| **it == line).count(), 1, "{line}");
        let metrics = get(&server, &format!("/api/v1/flows/count/metrics?rank={rank}")).json();
        assert_eq!(metrics["rank"], rank);
        assert_eq!(metrics["ranks"], json!([0, 1]));
    }
    assert_eq!(
        get(&server, "/api/v1/flows/count/metrics").json()["rank"],
        0
    );
    let unknown = get(&server, "/api/v1/flows/count/metrics?rank=2");
    unknown.check_error(404, "unknown rank 2");
    get(&server, "/api/v1/flows/count/metrics?rank=x").check_error(400, "rank=<n>");
    // Each rank has a share of the sum.
    let shares = get(&server, "/state/count/sums/count");
    shares.check_error(409, "add rank=<n>");
    let sums =
        [0, 1].map(|rank| get(&server, &format!("/state/count/sums/count?rank={rank}")).json());
    assert_eq!(sums, [json!(499_500), json!(499_500)]);
}

/// Gives the numbers below a limit that rises.
#[derive(Clone, Default)]
pub struct Numbers(Arc<NumbersState>);

#[derive(Default)]
struct NumbersState {
    partition: u32,
    limit: AtomicU64,
    next: AtomicU64,
    waker: Mutex<Option<Waker>>,
}

impl Numbers {
    /// Returns the numbers of a partition.
    pub fn of(partition: u32) -> Numbers {
        Numbers(Arc::new(NumbersState {
            partition,
            ..NumbersState::default()
        }))
    }

    pub fn raise(&self, limit: u64) {
        self.0.limit.store(limit, Ordering::SeqCst);
        let waker = self.0.waker.lock().unwrap().clone();
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Positions for NumbersState {
    fn read(&self) -> Vec<Position> {
        vec![Position {
            stream: "numbers".to_owned(),
            partition: self.partition,
            next: self.next.load(Ordering::SeqCst),
            end: None,
        }]
    }
}

impl Source for Numbers {
    type Item = u64;

    fn poll(
        &mut self,
        out: &mut Output<u64>,
        _: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        *self.0.waker.lock().unwrap() = Some(waker.clone());
        let limit = self.0.limit.load(Ordering::SeqCst);
        let next = self.0.next.swap(limit, Ordering::SeqCst);
        out.extend(next..limit);
        Ok(match next < limit {
            true => SourceStatus::Ready,
            false => SourceStatus::Idle,
        })
    }

    fn partitions(&self) -> SourcePartitions<'_, u64> {
        SourcePartitions::One
    }

    fn positions(&self) -> Option<Arc<dyn Positions>> {
        Some(Arc::clone(&self.0) as _)
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.next.load(Ordering::SeqCst).to_le_bytes().to_vec())
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let next = u64::from_le_bytes(saved.try_into()?);
        self.0.next.store(next, Ordering::SeqCst);
        self.0.limit.store(next, Ordering::SeqCst);
        Ok(())
    }
}

#[test]
fn a_flow_shows_its_checkpoints_and_its_state_elements() {
    let server = start_with(Arc::new(Flows(count(1, Some(Arc::default())))));
    let metrics = get(&server, "/api/v1/flows/count/metrics").json();
    let elements = metrics["elements"].as_array().expect("a list");
    let found = elements.iter().map(|it| {
        let memory = it["memory_bytes"].as_u64().expect("a number");
        assert!((8..100_000).contains(&memory), "{it}");
        json!([it["name"], it["kind"], it["stored"]])
    });
    let expected = [
        json!(["users", "values", "whole"]),
        json!(["numbers", "values", "whole"]),
        json!(["sums", "partial", "whole"]),
    ];
    assert!(found.eq(expected), "{elements:?}");
    let checkpoints = &metrics["checkpoints"];
    assert_eq!(checkpoints["failed"], 0);
    assert_eq!(checkpoints["interval_seconds"], 0.001);
    let last = &checkpoints["last"];
    assert!(last["number"].as_u64() >= Some(2), "{last}");
    assert!(last["pause_seconds"].as_f64() >= Some(0.0), "{last}");
    assert_eq!(last["changes"], 0, "the store has no changelogs");
    let body = get(&server, "/metrics").body;
    let value = |series: &str| {
        let line = body.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series}"))
            .trim()
            .to_owned()
    };
    let entries = |state: &str| {
        value(&format!(
            "millstream_flow_state_entries{{flow=\"count\",state=\"{state}\",kind=\"values\",stored=\"whole\"}}"
        ))
    };
    assert_eq!([entries("users"), entries("numbers")], ["100", "100"]);
    let of_flow = |name: &str| value(&format!("millstream_flow_{name}{{flow=\"count\"}}"));
    assert_eq!(of_flow("checkpoint_interval_seconds"), "0.001");
    assert_eq!(of_flow("checkpoint_last_changes"), "0");
    assert_eq!(of_flow("checkpoint_last_change_bytes"), "0");
    assert!(
        of_flow("checkpoint_last_pause_seconds")
            .parse::<f64>()
            .is_ok()
    );
}

#[test]
fn live_and_committed_values_and_headers_differ_between_checkpoints() {
    let store = Arc::new(MemoryStore::default());
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store: Arc::clone(&store) as _,
            interval: Some(Duration::from_millis(1)),
            resume: Resume::Never,
        }),
        ..FlowSettings::default()
    };
    let numbers = Numbers::default();
    let flow = Flow::with_settings("count", settings);
    let counts = flow.values::<u64, u64>("numbers");
    let time = |number: &u64| Timestamp(*number as i64);
    flow.source("source", numbers.clone())
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|number| number % 2)
        .count("count", &counts);
    let running = Arc::new(flow.run().expect("threads"));
    let server = start_with(Arc::new(Flows(vec![running])));
    let wait_for = |path: &str, value: u64, committed: &str| {
        let started_at = Instant::now();
        loop {
            let answer = get(&server, path);
            let found = header(&answer, "millstream-committed");
            if answer.status == 200 && answer.json() == value && found.as_deref() == Some(committed)
            {
                return answer;
            }
            assert!(started_at.elapsed() < ANSWER_TIME_MAX, "{path}: {answer:?}");
            thread::sleep(Duration::from_millis(2));
        }
    };
    numbers.raise(5);
    let answer = wait_for("/state/count/numbers/0", 3, "true");
    let position = |answer: &Answer| header(answer, "millstream-position");
    assert_eq!(position(&answer).as_deref(), Some("numbers/0=5"));
    store.1.store(true, Ordering::SeqCst);
    numbers.raise(11);
    let answer = wait_for("/state/count/numbers/0", 6, "false");
    assert_eq!(position(&answer).as_deref(), Some("numbers/0=11"));
    let answer = wait_for("/state/count/numbers/0?committed", 3, "true");
    assert_eq!(position(&answer).as_deref(), Some("numbers/0=5"));
    assert_eq!(
        header(&answer, "millstream-watermark").as_deref(),
        Some("4")
    );
    store.1.store(false, Ordering::SeqCst);
    numbers.raise(12);
    wait_for("/state/count/numbers/0", 6, "true");
}
