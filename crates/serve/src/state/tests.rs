use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::HeaderMap;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::{
    BoxError, Checkpointing, Checkpoints, Flow, FlowSettings, Resume, Running, ShardKey,
};
use serde_json::Value;

use super::*;
use crate::Metric;

/// A store of checkpoints in memory.
#[derive(Default)]
struct MemoryStore(Mutex<BTreeMap<(u64, u32), Vec<u8>>>);

impl Checkpoints for MemoryStore {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
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

struct Flows(Vec<Arc<Running>>);

impl Content for Flows {
    fn flows(&self) -> Vec<Arc<Running>> {
        self.0.clone()
    }

    fn overview(&self) -> Value {
        Value::Null
    }

    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }
}

/// Counts 1,000 numbers on each rank, until all are counted. Of several ranks, this process has the first `here`.
fn count(ranks: u32, here: usize, takes_checkpoints: bool) -> Flows {
    let store = Arc::new(MemoryStore::default());
    let run = |ranks: Ranks| {
        let checkpoints = takes_checkpoints.then(|| Checkpointing {
            store: store.clone(),
            interval: Some(Duration::from_millis(1)),
            resume: Resume::Never,
        });
        let settings = FlowSettings {
            checkpoints,
            ranks,
            ..FlowSettings::default()
        };
        let flow = Flow::with_settings("count", settings);
        let numbers = flow.values::<u64, u64>("numbers");
        let names = flow.values::<String, Vec<String>>("names");
        let sums = flow.partial::<u64>("sums");
        let channels = ["numbers", "names", "sums"].map(|name| flow.channel::<u64>(name));
        flow.source("source", Generator::new(|number| number).limit(1000))
            .to_all(&channels);
        flow.stage("of numbers", &channels[0])
            .key_by(|number| number % 100)
            .count("count numbers", &numbers);
        flow.stage("of names", &channels[1])
            .key_by(|number| format!("name/{}", number % 100))
            .fold("keep names", &names, |kept, number| {
                // One of them is more than a reader gets at once.
                kept.extend((0..5 * (number % 100)).map(|it| format!("{it}. of {number}")));
            });
        flow.stage("of sums", &channels[2])
            .fold_local(&sums, |sum, number| *sum += number);
        let running = Arc::new(flow.run().expect("threads"));
        running.join().expect("the end");
        running
    };
    let mut running: Vec<_> = thread::scope(|scope| {
        let threads = Ranks::threads(ranks).into_iter();
        let threads: Vec<_> = threads.map(|it| scope.spawn(|| run(it))).collect();
        let running = threads.into_iter().map(|it| it.join().unwrap());
        running.collect()
    });
    running.truncate(here);
    Flows(running)
}

/// The status, the headers that do not depend on the time, and the body of an answer.
async fn parts(read: Result<Response, RequestError>) -> (u16, HeaderMap, String) {
    let (mut head, body) = read.into_response().into_parts();
    if let Some(age) = head.headers.get_mut("millstream-checkpoint-age") {
        *age = "some".parse().unwrap();
    }
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (head.status.as_u16(), head.headers, body)
}

/// Reads at once and in the other way. Returns the number of reads that had an answer at once.
async fn compare(flows: &Flows, elements: &[&str], queries: &[&str]) -> usize {
    let mut answered = 0;
    let numbers = (0..110).map(|number| number.to_string());
    let names = (0..110).map(|number| format!("name/{number}"));
    let keys: Vec<String> = numbers.chain(names).chain(["count".to_owned()]).collect();
    for (flow, element) in elements
        .iter()
        .map(|name| ("count", *name))
        .chain([("none", "numbers")])
    {
        for query in queries {
            for key in &keys {
                let reading = || Reading {
                    flow: flow.to_owned(),
                    element: element.to_owned(),
                    query: StateQuery::parse_of_key(query).unwrap(),
                };
                let Some(read) = at_once(flows, &reading(), key) else {
                    continue;
                };
                answered += 1;
                let ranks = FlowRanks::find(flows, flow);
                let element = ranks.and_then(|it| Element::find(&it, element, &reading().query));
                let other = element.and_then(|element| value_in(&element, key));
                let place = format!("{flow}/{}/{key}?{query}", reading().element);
                assert_eq!(parts(read).await, parts(other).await, "{place}");
            }
        }
    }
    answered
}

const KEYS: usize = 2 * 110 + 1;

#[tokio::test]
async fn reads_at_once_have_the_answers_of_other_reads() {
    let queries = ["", "committed", "committed=false", "rank=0", "rank=7"];
    for takes_checkpoints in [false, true] {
        let flows = count(1, 1, takes_checkpoints);
        let numbers = compare(&flows, &["numbers"], &queries).await;
        // Beside those of a flow that does not exist.
        assert_eq!(numbers, 2 * queries.len() * KEYS);
        let names = compare(&flows, &["names"], &queries).await;
        // Half of the values are large.
        assert!(names < numbers - 60 && names > numbers / 2, "{names}");
        // All of it waits for a lock; but there is no rank 7, and nothing is committed.
        let sums = compare(&flows, &["sums"], &queries).await;
        assert_eq!(sums, (queries.len() + 2) * KEYS);
    }
}

#[tokio::test]
async fn ranks_in_this_process_are_read_at_once_and_no_others() {
    let queries = ["", "committed"];
    let here = count(2, 2, true);
    let answered = compare(&here, &["numbers"], &queries).await;
    assert_eq!(answered, 2 * queries.len() * KEYS);
    let away = count(2, 1, true);
    let answered = compare(&away, &["numbers"], &queries).await;
    // Only the flow that does not exist has answers at once.
    assert_eq!(answered, queries.len() * KEYS);
    let answered = compare(&away, &["numbers"], &["rank=0"]).await;
    assert_eq!(answered, 2 * KEYS);
}

#[test]
fn reads_that_wait_for_a_position_are_not_done_at_once() {
    let flows = count(1, 1, true);
    let reading = Reading {
        flow: "count".to_owned(),
        element: "numbers".to_owned(),
        query: StateQuery::parse_of_key("at-least=a/0=1").unwrap(),
    };
    assert!(at_once(&flows, &reading, "1").is_none());
}
