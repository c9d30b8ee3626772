//! Transactions that nothing decides: they outlast everything, are listed, and are decided by force.

use std::path::Path;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_client::{
    Client, ClientConfig, ProducerConfig, ProducerRecord, TransactionConfig, TransactionalProducer,
};
use millstream_connect::{EncodedRecord, StreamSink};
use millstream_flow::{Sink, SinkStart};
use millstream_log::{Log, LogConfig, StreamConfig};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::http::start;
use crate::support::{Server, get, get_json, run, send_signal, wait_until};

/// Returns a producer with the transactional id `payments`, whose transactions may stay open for ten minutes.
pub async fn payments(client: &Client) -> TransactionalProducer {
    let config = TransactionConfig {
        id: "payments".to_owned(),
        timeout: Duration::from_secs(600),
        two_phase: false,
    };
    let producer = TransactionalProducer::new(client, ProducerConfig::default(), config);
    producer.await.unwrap()
}

/// Leaves a prepared transaction with a value of this name, as a killed flow does.
async fn leave_prepared(address: &str, id: &str, value: &str) {
    let client = Client::new(ClientConfig::new(address));
    let config = TransactionConfig {
        id: id.to_owned(),
        timeout: Duration::from_millis(1),
        two_phase: true,
    };
    let producer = TransactionalProducer::new(&client, ProducerConfig::default(), config);
    let producer = producer.await.unwrap();
    producer.begin().unwrap();
    let record = ProducerRecord {
        topic: "s",
        value: Some(value.as_bytes()),
        ..ProducerRecord::default()
    };
    producer.send(record).await.unwrap();
    producer.flush().await.unwrap();
    assert!(producer.prepared().unwrap().is_some());
}

/// Leaves a prepared transaction in each stream, with its name as a value, as a killed flow in the process of its log
/// does.
fn leave_in_process(dir: &Path, streams: [&str; 2]) {
    let log = Log::open(LogConfig::new(dir)).unwrap();
    for name in streams {
        let stream = log.create_stream(name, StreamConfig::default()).unwrap();
        let encode = |value: &String, record: &mut EncodedRecord| {
            record.value.extend_from_slice(value.as_bytes());
        };
        let mut sink = StreamSink::new(&stream, encode).unwrap();
        let start = SinkStart {
            flow: "words",
            sink: name,
            rank: 0,
            ranks: 1,
            takes_checkpoints: true,
            prepared: None,
        };
        Sink::<String>::recover(&mut sink, &start).unwrap();
        assert_eq!(sink.push(&[name.to_owned()], Waker::noop()).unwrap(), 1);
        let started_at = Instant::now();
        while !Sink::<String>::flush(&mut sink, Waker::noop()).unwrap() {
            assert!(started_at.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        Sink::<String>::prepare(&mut sink, 1).unwrap();
    }
    log.close().unwrap();
}

#[test]
fn orphaned_transactions_of_flows_on_their_own_log_are_decided_by_force() {
    let dir = tempdir().unwrap();
    leave_in_process(dir.path(), ["kept", "lost"]);
    let id_of = |found: &Value, stream: &str| {
        let found = found["transactions"].as_array().unwrap().clone();
        let mut found = found.into_iter();
        let found = found.find(|it| it["partitions"][0]["stream"] == stream);
        found.map(|it| it["id"].as_str().unwrap().to_owned())
    };

    // The directory, while no server has it open.
    let list = ["transaction", "list", "--json"];
    let found = run(dir.path(), &list).assert_done().json();
    let [kept, lost] = ["kept", "lost"].map(|stream| id_of(&found, stream).unwrap());
    assert!(kept.starts_with("producer/"), "{kept}");
    let commit = ["transaction", "commit", &kept];
    let unforced = run(dir.path(), &commit);
    unforced.assert_fails(2, &["in its own process", "may come twice", "add --force"]);
    run(dir.path(), &[&commit[..], &["--force"]].concat()).assert_done();

    // Both ways show where readers wait.
    let waits = "a transaction has been open for";
    let describe = |stream| ["stream", "describe", stream];
    let described = run(dir.path(), &describe("lost")).assert_done().text();
    assert!(described.contains(waits), "{described}");
    let (server, http) = start(dir.path(), &[]);
    for (stream, is_open) in [("lost", true), ("kept", false)] {
        let described = server.run(&describe(stream)).assert_done().text();
        assert_eq!(described.contains(waits), is_open, "{described}");
        let lane = &server
            .run(&[&describe(stream)[..], &["--json"]].concat())
            .json()["lanes"][0];
        assert_eq!(lane["stable"] == lane["durable"], !is_open, "{lane}");
        assert_eq!(lane["oldest_transaction"].is_u64(), is_open, "{lane}");
    }
    let metrics = get(&http, "/metrics");
    let oldest = |stream| {
        let sample = format!(
            "partition_oldest_transaction_timestamp_seconds{{stream=\"{stream}\",partition=\"0\"}}"
        );
        metrics.contains(&sample)
    };
    assert_eq!([oldest("lost"), oldest("kept")], [true, false], "{metrics}");
    assert!(metrics.contains("partition_stable_offset{stream=\"lost\",partition=\"0\"} 0\n"));

    let found = server.run(&list).assert_done().json();
    assert_eq!(id_of(&found, "kept"), None);
    let described = server.run(&["transaction", "describe", &lost]);
    assert!(described.assert_done().text().contains("lost"));
    let abort = ["transaction", "abort", &lost, "--force"];
    server.run(&abort).assert_done();
    server
        .run(&abort)
        .assert_fails(1, &["there is no transaction"]);
    let consumed = ["kept", "lost"].map(|it| server.run(&["consume", it]).assert_done().text());
    assert_eq!(consumed, ["kept\n", ""]);
    server.stop();
}

#[test]
fn a_group_that_has_read_all_transactions_has_no_lag() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::new(ClientConfig::new(server.address()));
        let producer = payments(&client).await;
        for (values, is_kept) in [("one two", true), ("three", false), ("four", true)] {
            producer.begin().unwrap();
            for value in values.split(' ') {
                let record = ProducerRecord {
                    topic: "s",
                    value: Some(value.as_bytes()),
                    ..ProducerRecord::default()
                };
                producer.send(record).await.unwrap();
            }
            match is_kept {
                true => producer.commit().await.unwrap(),
                false => {
                    producer.flush().await.unwrap();
                    producer.abort().await.unwrap();
                }
            }
        }
    });
    let consume = |group, delivery, limit| {
        let consume = ["consume", "s", "--group", group, "--delivery", delivery];
        let all = [&consume[..], &["--limit", limit]].concat();
        server.run(&all).assert_done().text()
    };
    for (group, delivery) in [("pulled", "pull"), ("pushed", "push")] {
        assert_eq!(consume(group, delivery, "10"), "one\ntwo\nfour\n");
    }
    // It leaves a record and its marker.
    assert_eq!(consume("stopped", "pull", "2"), "one\ntwo\n");
    let list = server.run(&["group", "list", "--json"]).assert_done();
    let lags = |groups: &Value, lag: fn(&Value) -> &Value| {
        let groups = groups.as_array().unwrap().iter();
        groups.map(|group| lag(group).clone()).collect::<Vec<_>>()
    };
    let expected = [0, 0, 2];
    assert_eq!(lags(&list.json()["groups"], |it| &it["lag"]), expected);
    wait_until("the page has the same lags", || {
        let groups = get_json(&http, "/api/v1/groups");
        lags(&groups, |it| &it["streams"][0]["lag_records"]) == expected
    });
    let metrics = get(&http, "/metrics");
    let sample = "group_lag_records{group=\"stopped\",stream=\"s\"} 2\n";
    assert!(metrics.contains(sample), "{metrics}");
    server.stop();
}

#[test]
fn orphaned_transactions_survive_a_kill_of_the_server_and_are_decided_by_force() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let [kept, lost] = ["flow/words/counts/0/0", "flow/words/counts/0/1"];
    runtime.block_on(async {
        leave_prepared(server.address(), kept, "kept").await;
        leave_prepared(server.address(), lost, "lost").await;
    });
    let mut child = server.into_child();
    send_signal(&child, Signal::KILL);
    child.wait().unwrap();

    let server = Server::start(dir.path(), &[]);
    let list = || {
        server
            .run(&["transaction", "list", "--json"])
            .assert_done()
            .json()
    };
    let found = list();
    let found = found["transactions"].as_array().unwrap();
    assert_eq!(found.len(), 2);
    for (found, id) in found.iter().zip([kept, lost]) {
        assert_eq!(found["id"], id);
        assert_eq!(
            (&found["flow"], &found["sink"]),
            (&"words".into(), &"counts".into())
        );
        assert_eq!(found["state"], "Ongoing");
        assert!(found["timeout_ms"].is_null() && found["age_ms"].is_u64());
        assert_eq!(found["partitions"][0]["stream"], "s");
    }
    let text = server.run(&["transaction", "list"]).assert_done().text();
    assert!(
        text.contains("flow/words/counts/0/0  Ongoing  words"),
        "{text}"
    );
    assert_eq!(server.run(&["consume", "s"]).assert_done().text(), "");

    let unforced = server.run(&["transaction", "commit", kept]);
    unforced.assert_fails(2, &["flow \"words\"", "may come twice", "add --force"]);
    let commit = server
        .run(&["transaction", "commit", kept, "--force"])
        .assert_done();
    assert!(commit.stderr.contains("warning: transaction flow/words"));
    let abort = ["transaction", "abort", lost, "--force"];
    server.run(&abort).assert_done();
    server.run(&abort).assert_fails(1, &["is not open"]);
    let none = server.run(&["transaction", "abort", "none", "--force"]);
    none.assert_fails(1, &["there is no transaction none"]);
    assert!(list()["transactions"].as_array().unwrap().is_empty());
    let all = server
        .run(&["transaction", "list", "--all"])
        .assert_done()
        .text();
    assert!(
        all.contains("CompleteCommit") && all.contains("CompleteAbort"),
        "{all}"
    );
    assert_eq!(server.run(&["consume", "s"]).assert_done().text(), "kept\n");
    server.stop();
}
