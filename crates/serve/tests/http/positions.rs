//! Reads that wait until a flow has all records before a position.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use millstream_exchange::Ranks;
use millstream_flow::{Checkpointing, Flow, FlowSettings, Resume, Running};
use millstream_serve::Server;
use serde_json::json;

use crate::serving::{Flows, MemoryStore, Numbers, header};
use crate::support::{Answer, get, start_with};

/// Counts the numbers of a source by their last bit.
fn count(
    ranks: Ranks,
    numbers: &Numbers,
    store: Option<Arc<MemoryStore>>,
    resume: Resume,
) -> Arc<Running> {
    let settings = FlowSettings {
        checkpoints: store.map(|store| Checkpointing {
            store,
            interval: Some(Duration::from_millis(1)),
            resume,
        }),
        ranks,
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("count", settings);
    let counts = flow.values::<u64, u64>("numbers");
    let sums = flow.partial::<u64>("sums");
    let channels = ["counts", "sums"].map(|name| flow.channel::<u64>(name));
    flow.source("source", numbers.clone()).to_all(&channels);
    flow.stage("of counts", &channels[0])
        .key_by(|number| number % 2)
        .count("count", &counts);
    flow.stage("of sums", &channels[1])
        .fold_local(&sums, |sum, number| *sum += number);
    Arc::new(flow.run().expect("threads"))
}

/// Starts the flow on one rank.
fn one(numbers: &Numbers, store: &Arc<MemoryStore>, resume: Resume) -> (Arc<Running>, Server) {
    let running = count(Ranks::alone(), numbers, Some(Arc::clone(store)), resume);
    let server = start_with(Arc::new(Flows(vec![Arc::clone(&running)])));
    (running, server)
}

fn read(server: &Server, query: &str) -> Answer {
    get(server, &format!("/state/count/{query}"))
}

#[test]
fn a_read_has_all_records_before_its_position() {
    let numbers = Numbers::default();
    let (_running, server) = one(&numbers, &Arc::default(), Resume::Never);
    for round in 1..=60 {
        numbers.raise(round * 10);
        let query = match round % 3 {
            0 => format!("numbers/1?at-least=numbers/0={}", round * 10),
            1 => format!("numbers/1?committed&at-least=numbers/0={}", round * 10),
            _ => format!("numbers/1?at-least=numbers%2F0%3D{}&committed", round * 10),
        };
        let answer = read(&server, &query);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.json(), round * 5, "{query}");
        // The position of an answer is one to read from.
        let position = header(&answer, "millstream-position").expect("a position");
        assert_eq!(position, format!("numbers/0={}", round * 10));
        let list = read(&server, &format!("numbers?top=2&at-least={position}"));
        let each = |key: &str| json!({ "key": key, "value": round * 5 });
        assert_eq!(list.json(), json!([each("0"), each("1")]));
    }
}

#[test]
fn reads_that_wait_do_not_delay_others_and_end_in_time() {
    let numbers = Numbers::default();
    let store = Arc::<MemoryStore>::default();
    let (_running, server) = one(&numbers, &store, Resume::Never);
    numbers.raise(10);
    assert_eq!(read(&server, "numbers/0?at-least=numbers/0=10").json(), 5);
    let committed = "numbers/0?committed&at-least=numbers/0=";
    assert_eq!(read(&server, &format!("{committed}10")).json(), 5);
    // Without complete checkpoints, committed values stand still.
    store.1.store(true, Ordering::SeqCst);
    numbers.raise(20);
    assert_eq!(read(&server, "numbers/0?at-least=numbers/0=20").json(), 10);
    thread::scope(|scope| {
        // More than the server has threads.
        let waiting: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| read(&server, &format!("{committed}20"))))
            .collect();
        thread::sleep(Duration::from_millis(200));
        assert_eq!(read(&server, "numbers/0").json(), 10);
        assert!(
            waiting.iter().all(|it| !it.is_finished()),
            "a read has not waited"
        );
        store.1.store(false, Ordering::SeqCst);
        for answer in waiting {
            assert_eq!(answer.join().unwrap().json(), 10);
        }
    });
    let began_at = Instant::now();
    let late = read(&server, "numbers/0?at-least=numbers/0=21");
    late.check_error(504, "has not reached numbers/0=21 within 10 s");
    late.check_error(504, "its last checkpoint is at numbers/0=20");
    assert_eq!(header(&late, "retry-after").as_deref(), Some("1"));
    assert!(began_at.elapsed() < Duration::from_secs(19));
}

#[test]
fn positions_that_a_flow_cannot_reach_are_refused() {
    let numbers = Numbers::default();
    let (running, server) = one(&numbers, &Arc::default(), Resume::Never);
    numbers.raise(10);
    let check = |query: &str, status, text: &str| {
        read(&server, query).check_error(status, text);
    };
    for position in [
        "",
        "x",
        "numbers",
        "numbers/0",
        "numbers/0=x",
        "numbers/0=-1",
        "%FF/0=1",
    ] {
        let error = "at-least=<stream>/<partition>=<offset>";
        check(&format!("numbers?at-least={position}"), 400, error);
        check(&format!("numbers/0?at-least={position}"), 400, error);
    }
    let other = "numbers?at-least=numbers/0=1,numbers/7=1,others/0=2";
    check(other, 400, "does not read numbers/7=1, others/0=2,");
    check(other, 400, "is at numbers/0=");
    // It does not wait to find out that there is no such element.
    check("numbrs?at-least=numbers/0=1000", 404, "unknown element");
    check("numbers?by=numbrs&at-least=numbers/0=1000", 404, "in by");
    check(
        "sums?committed&at-least=numbers/0=1000",
        409,
        "only as it is now",
    );
    assert_eq!(read(&server, "sums/count?at-least=numbers/0=10").json(), 45);
    running.stop();
    running.join().unwrap();
    for level in ["", "&committed"] {
        let query = format!("numbers/0?at-least=numbers/0=10{level}");
        assert_eq!(read(&server, &query).json(), 5);
        let query = format!("numbers/0?at-least=numbers/0=11{level}");
        let began_at = Instant::now();
        check(
            &query,
            503,
            "the flow \"count\" has ended before numbers/0=11",
        );
        assert!(began_at.elapsed() < Duration::from_secs(5));
    }
    let none = count(Ranks::alone(), &Numbers::default(), None, Resume::Never);
    let server = start_with(Arc::new(Flows(vec![none])));
    let refused = read(&server, "numbers?at-least=numbers/0=1");
    refused.check_error(409, "takes no checkpoints");
}

#[test]
fn a_flow_that_has_resumed_and_is_idle_answers() {
    let store = Arc::default();
    let numbers = Numbers::default();
    let (running, server) = one(&numbers, &store, Resume::Never);
    numbers.raise(10);
    assert_eq!(
        read(&server, "numbers/0?committed&at-least=numbers/0=10").json(),
        5
    );
    drop(server);
    running.stop();
    running.join().unwrap();
    let (_running, server) = one(&Numbers::default(), &store, Resume::Always);
    for level in ["", "&committed"] {
        let query = format!("numbers/0?at-least=numbers/0=10{level}");
        assert_eq!(read(&server, &query).json(), 5);
    }
}

#[test]
fn positions_of_all_ranks_are_reached() {
    let store = Arc::<MemoryStore>::default();
    let numbers = [0, 1, 2].map(Numbers::of);
    let running: Vec<_> = thread::scope(|scope| {
        let ranks = Ranks::threads(3).into_iter().zip(&numbers);
        let start = |(ranks, numbers)| {
            let store = Some(Arc::clone(&store));
            scope.spawn(move || count(ranks, numbers, store, Resume::Never))
        };
        let threads: Vec<_> = ranks.map(start).collect();
        let running = threads.into_iter().map(|it| it.join().unwrap());
        running.collect()
    });
    // The other ranks are in other processes for one of the servers.
    let servers = [
        start_with(Arc::new(Flows(running.clone()))),
        start_with(Arc::new(Flows(running[..1].to_vec()))),
    ];
    for round in 1..=20 {
        for numbers in &numbers {
            numbers.raise(round * 10);
        }
        let at = round * 10;
        let all = format!("at-least=numbers/0={at},numbers/1={at},numbers/2={at}");
        for server in &servers {
            for level in ["", "&committed"] {
                for key in [0, 1] {
                    let answer = read(server, &format!("numbers/{key}?{all}{level}"));
                    assert_eq!(answer.json(), round * 15, "{level}");
                }
                let list = read(server, &format!("numbers?{all}{level}")).json();
                assert_eq!(list[1], json!({ "key": "1", "value": round * 15 }));
            }
        }
    }
    let beyond = read(&servers[1], "numbers?at-least=numbers/3=1");
    beyond.check_error(400, "does not read numbers/3=1");
    running.iter().for_each(|rank| rank.stop());
    running.iter().for_each(|rank| drop(rank.join()));
}
