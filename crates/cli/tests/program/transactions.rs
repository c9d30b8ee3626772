//! Transactions that nothing decides: they outlast everything, are listed, and are decided by force.

use std::time::Duration;

use millstream_client::{
    Client, ClientConfig, ProducerConfig, ProducerRecord, TransactionConfig, TransactionalProducer,
};
use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::{Server, send_signal};

/// What a flow leaves that dies: a prepared transaction with a value of this name.
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

#[test]
fn orphans_outlast_a_kill_of_the_server_and_are_decided_by_force() {
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
