//! Commands that administer a server: groups, transactions, quotas, settings, health.

use std::fs;
use std::thread;
use std::time::Duration;

use millstream_client::{Client, ClientConfig, ProducerConfig, ProducerRecord};
use millstream_wire::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use millstream_wire::messages::share_fetch_request::{FetchPartition, FetchTopic};
use millstream_wire::messages::{GroupId, ShareGroupHeartbeatRequest, TopicName};
use millstream_wire::{ShareAcknowledgeRequest, ShareFetchRequest, StrBytes};
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::http::{run_as_admin, start, start_with_admin};
use crate::support::{Server, finish, get_json, program, wait_until};
use crate::transactions::payments;

/// A server with a stream of two partitions, ten records in each, which group `g` has read.
fn server_with_group(data: &std::path::Path) -> Server {
    let server = Server::start(data, &[]);
    let create = ["stream", "create", "s", "--streamlets", "2"];
    server.run(&create).assert_done();
    for partition in 0..2 {
        produce(&server, "s", partition, 10);
    }
    server.run(&["consume", "s", "--group", "g"]).assert_done();
    server
}

/// Appends records whose times are 1000, 2000, and so on.
fn produce(server: &Server, stream: &str, partition: i32, count: i64) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::new(ClientConfig::new(server.address()));
        let producer = millstream_client::Producer::new(&client, ProducerConfig::default());
        for number in 1..=count {
            let record = ProducerRecord {
                topic: stream,
                partition: Some(partition),
                timestamp: Some(millstream_base::Timestamp(1000 * number)),
                value: Some(b"value"),
                ..ProducerRecord::default()
            };
            producer.send(record).await.unwrap();
        }
        producer.flush().await.unwrap();
    });
}

fn offsets(answer: &Value) -> Vec<u64> {
    let offsets = answer["offsets"].as_array().unwrap().iter();
    offsets.map(|it| it["offset"].as_u64().unwrap()).collect()
}

#[test]
fn groups_are_listed_with_members_and_shown_under_both_names() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let list = server.run(&["group", "list", "--json"]).assert_done();
    let expected = json!({ "groups": [
        { "group": "g", "kind": "consumer", "state": "Empty", "members": 0, "lag": 0 },
    ] });
    assert_eq!(list.json(), expected);
    let shown = server.run(&["group", "show", "g"]).assert_done().text();
    let described = server.run(&["group", "describe", "g"]).assert_done();
    assert_eq!(shown, described.text());
    server.stop();
}

/// Joins the share group `queue` of stream `s` as member `worker`, or leaves it with the epoch -1.
fn share_heartbeat(server: &Server, epoch: i32) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Client::new(ClientConfig::new(server.address()));
    runtime.block_on(heartbeat(&client, epoch));
}

async fn heartbeat(client: &Client, epoch: i32) {
    let text = StrBytes::from_static_str;
    let request = ShareGroupHeartbeatRequest::default()
        .with_group_id(GroupId(text("queue")))
        .with_member_id(text("worker"))
        .with_member_epoch(epoch)
        .with_subscribed_topic_names((epoch == 0).then(|| vec![TopicName(text("s"))]));
    let answer = client.ask(request).await.unwrap();
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
}

/// Reads both partitions of stream `s` in the share group `queue`, accepts the first four records of partition 0, and
/// leaves.
fn read_as_share_group(server: &Server) {
    let text = StrBytes::from_static_str;
    let (group_id, member_id) = (Some(GroupId(text("queue"))), Some(text("worker")));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::new(ClientConfig::new(server.address()));
        let topic_id = client.topic("s").await.unwrap().id;
        heartbeat(&client, 0).await;
        let partitions = (0..2).map(|index| FetchPartition::default().with_partition_index(index));
        let topic = FetchTopic::default()
            .with_topic_id(topic_id)
            .with_partitions(partitions.collect());
        let fetch = ShareFetchRequest {
            group_id: group_id.clone(),
            member_id: member_id.clone(),
            min_bytes: 1,
            max_bytes: 1 << 20,
            max_records: 500,
            batch_size: 500,
            topics: vec![topic],
            ..ShareFetchRequest::default()
        };
        let answer = client.ask(fetch).await.unwrap();
        assert_eq!(answer.error_code, 0, "{answer:?}");
        let batch = AcknowledgementBatch::default()
            .with_last_offset(3)
            .with_acknowledge_types(vec![1]);
        let partition = AcknowledgePartition::default().with_acknowledgement_batches(vec![batch]);
        let topic = AcknowledgeTopic::default()
            .with_topic_id(topic_id)
            .with_partitions(vec![partition]);
        let acknowledge = ShareAcknowledgeRequest {
            group_id,
            member_id,
            share_session_epoch: 1,
            topics: vec![topic],
            ..ShareAcknowledgeRequest::default()
        };
        let answer = client.ask(acknowledge).await.unwrap();
        assert_eq!(answer.error_code, 0, "{answer:?}");
        let error = answer.responses[0].partitions[0].error_code;
        assert_eq!(error, 0, "{answer:?}");
        heartbeat(&client, -1).await;
    });
}

#[test]
fn share_groups_have_positions_and_a_lag_and_are_reset() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    let create = ["stream", "create", "s", "--partitions", "2"];
    server.run(&create).assert_done();
    for partition in 0..2 {
        produce(&server, "s", partition, 10);
    }
    let config = "share.auto.offset.reset=earliest";
    let set = ["config", "set", "group/queue", config];
    server.run(&set).assert_done();
    read_as_share_group(&server);
    let list = server.run(&["group", "list", "--json"]).assert_done();
    assert_eq!(list.json()["groups"][0]["lag"], 16);
    let positions = || {
        let describe = ["group", "describe", "queue", "--json"];
        let described = server.run(&describe).assert_done().json();
        let positions = described["positions"].as_array().unwrap().iter();
        let position = |it: &Value| ["offset", "end", "lag"].map(|field| it[field].clone());
        positions.map(position).collect::<Vec<_>>()
    };
    assert_eq!(positions(), [[4, 10, 6], [0, 10, 10]]);
    wait_until("the page has the lag", || {
        let groups = get_json(&http, "/api/v1/groups");
        groups[0]["streams"] == json!([{ "stream": "s", "partitions": 2, "lag_records": 16 }])
    });

    let reset = |args: &[&str]| {
        let all = [&["group", "reset", "queue", "--json"], args].concat();
        server.run(&all)
    };
    let back = ["--by", "-3"];
    let dry = reset(&[&back[..], &["--dry-run"]].concat()).assert_done();
    assert_eq!(offsets(&dry.json()), [1, 0]);
    assert_eq!(positions(), [[4, 10, 6], [0, 10, 10]]);
    assert_eq!(offsets(&reset(&back).assert_done().json()), [1, 0]);
    assert_eq!(positions(), [[1, 10, 9], [0, 10, 10]]);
    let one = ["s", "--partition", "1", "--to", "7"];
    reset(&one).assert_done();
    assert_eq!(positions(), [[1, 10, 9], [7, 10, 3]]);
    share_heartbeat(&server, 0);
    reset(&one).assert_fails(1, &["group queue", "members"]);
    server.stop();
}

#[test]
fn share_groups_are_listed_described_and_deleted() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    share_heartbeat(&server, 0);
    let list = server.run(&["group", "list", "--json"]).assert_done();
    let queue = &list.json()["groups"][1];
    assert_eq!(queue["group"], "queue");
    assert_eq!(queue["kind"], "share");
    assert_eq!(queue["members"], 1);
    let described = server.run(&["group", "describe", "queue", "--json"]);
    let described = described.assert_done().json();
    assert_eq!(described["kind"], "share");
    assert_eq!(described["state"], "Stable");
    assert_eq!(described["members"][0]["id"], "worker");
    let positions = described["positions"].as_array().unwrap().iter();
    let members: Vec<_> = positions.map(|it| it["member"].clone()).collect();
    assert_eq!(members, ["worker", "worker"]);
    let text = server.run(&["group", "describe", "queue"]).assert_done();
    assert!(text.text().contains("kind     share"), "{text:?}");
    let delete = ["group", "delete", "queue"];
    server.run(&delete).assert_fails(1, &["has members"]);
    share_heartbeat(&server, -1);
    server.run(&delete).assert_done();
    let gone = server.run(&["group", "describe", "queue"]);
    gone.assert_fails(1, &["no such group"]);
    server.stop();
}

#[test]
fn groups_are_reset_to_times_and_by_counts_and_a_dry_run_changes_nothing() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let reset = |args: &[&str]| {
        let all = [&["group", "reset", "g", "--json"], args].concat();
        offsets(&server.run(&all).assert_done().json())
    };
    let committed = || {
        let shown = server.run(&["group", "show", "g", "--json"]).assert_done();
        let positions = shown.json()["positions"].as_array().unwrap().clone();
        let offsets = positions.iter().map(|it| it["offset"].as_u64().unwrap());
        offsets.collect::<Vec<_>>()
    };
    // The seventh record is the first that is not older.
    assert_eq!(
        reset(&["--to", "1970-01-01T00:00:06.5Z", "--dry-run"]),
        [6, 6]
    );
    assert_eq!(committed(), [10, 10]);
    assert_eq!(reset(&["--to", "1970-01-01T00:00:06.5Z"]), [6, 6]);
    assert_eq!(committed(), [6, 6]);
    assert_eq!(reset(&["s", "--partition", "1", "--by", "-2"]), [4]);
    assert_eq!(committed(), [6, 4]);
    // No further than the records go.
    assert_eq!(reset(&["--by", "-100"]), [0, 0]);
    assert_eq!(reset(&["--by", "100"]), [10, 10]);
    assert_eq!(reset(&["--to", "start"]), [0, 0]);
    // All records are older than a minute.
    assert_eq!(reset(&["--to", "-1m"]), [10, 10]);
    let text = server.run(&["group", "reset", "g", "--by", "-3", "--dry-run"]);
    let text = text.assert_done().text();
    assert!(text.contains("new offset") && text.contains(" 7"), "{text}");
    for (args, code, part) in [
        (&["group", "reset", "g"][..], 2, "--to"),
        (&["group", "reset", "g", "--to", "5"], 1, "--partition"),
        (&["group", "reset", "g", "--to", "noon"], 2, "such as -10m"),
        (
            &["group", "reset", "new", "--to", "start"],
            1,
            "name a stream",
        ),
        (&["group", "reset", "new", "s", "--by", "1"], 1, "use --to"),
        (
            &["group", "reset", "g", "s", "--to", "start", "--by", "1"],
            2,
            "--by",
        ),
    ] {
        server.run(args).assert_fails(code, &[part]);
    }
    server.stop();
}

#[test]
fn a_transaction_is_described_with_its_producer_and_partitions() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let producer = runtime.block_on(async {
        let client = Client::new(ClientConfig::new(server.address()));
        let producer = payments(&client).await;
        producer.begin().unwrap();
        let record = ProducerRecord {
            topic: "s",
            partition: Some(1),
            value: Some(b"open"),
            ..ProducerRecord::default()
        };
        producer.send(record).await.unwrap();
        producer.flush().await.unwrap();
        producer
    });
    let describe = ["transaction", "describe", "payments", "--json"];
    let found = server.run(&describe).assert_done().json();
    assert_eq!(found["state"], "Ongoing");
    assert_eq!(found["timeout_ms"], 600_000);
    assert!(found["producer_id"].is_i64() && found["producer_epoch"].is_i64());
    assert_eq!(
        found["partitions"],
        json!([{ "stream": "s", "partition": 1 }])
    );
    let text = server
        .run(&["transaction", "show", "payments"])
        .assert_done()
        .text();
    assert!(text.contains("state        Ongoing"), "{text}");
    server
        .run(&["transaction", "describe", "other"])
        .assert_fails(1, &["no transaction other", "transaction list"]);

    // Consumers of committed records wait at it.
    let health = server.run(&["health", "--transaction-age", "1ms", "--json"]);
    health.assert_fails(1, &["1 of 4 checks failed"]);
    let checks = health.json()["checks"].clone();
    let failed = checks
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["is_ok"] == false);
    assert_eq!(failed.unwrap()["check"], "transactions");
    drop(producer);
    server
        .run(&["transaction", "abort", "payments", "--force"])
        .assert_done();
    server.run(&["health", "--free", "1B"]).assert_done();
    server.stop();
}

#[test]
fn quotas_are_set_listed_and_removed() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let run = |args: &[&str]| server.run(&[&["quota"], args].concat());
    let list = || run(&["list", "--json"]).assert_done().json()["quotas"].clone();
    assert_eq!(list(), json!([]));
    let set = run(&["set", "user=alice", "client-id=app", "--produce", "1MiB"]).assert_done();
    assert_eq!(set.text(), "set the limits of user=alice client-id=app\n");
    run(&["set", "user=*", "--produce", "2MiB", "--consume", "3MiB"]).assert_done();
    run(&["set", "ip=10.0.0.1", "--connections", "20"]).assert_done();
    // The other limit stays.
    run(&["set", "user=*", "--produce", "none"]).assert_done();
    let limits = |entity: Value, [produce, consume, connections]: [Option<u64>; 3]| {
        json!({
            "entity": entity,
            "produce_bytes": produce,
            "consume_bytes": consume,
            "connections": connections,
        })
    };
    let expected = [
        limits(json!({ "user": "*" }), [None, Some(3 << 20), None]),
        limits(
            json!({ "user": "alice", "client-id": "app" }),
            [Some(1 << 20), None, None],
        ),
        limits(json!({ "ip": "10.0.0.1" }), [None, None, Some(20)]),
    ];
    assert_eq!(list(), Value::from(expected.to_vec()));
    let text = run(&["list"]).assert_done().text();
    assert!(text.contains("user=alice client-id=app"), "{text}");
    for entity in [
        &["user=*"][..],
        &["user=alice", "client-id=app"],
        &["ip=10.0.0.1"],
    ] {
        run(&[&["remove"], entity].concat()).assert_done();
    }
    assert_eq!(list(), json!([]));
    for (args, code, part) in [
        (&["set", "alice", "--produce", "1MiB"][..], 2, "user=NAME"),
        (&["set", "user=alice"], 2, "--produce"),
        (
            &["set", "user=a", "user=b", "--produce", "1MiB"],
            2,
            "at most one user",
        ),
        (
            &["set", "ip=10.0.0.1", "--produce", "1MiB"],
            1,
            "connection_creation_rate",
        ),
    ] {
        run(args).assert_fails(code, &[part]);
    }
    server.stop();
}

#[test]
fn administrators_see_the_settings_that_the_server_was_started_with() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("millstream.toml");
    let data = dir.path().join("data");
    let settings = [
        ("node_id = 7", "node.id", "7"),
        (
            "auto_create_topics = false",
            "auto.create.topics.enable",
            "false",
        ),
        (
            "group_min_session_timeout = \"100ms\"",
            "group.min.session.timeout.ms",
            "100",
        ),
        (
            "group_initial_rebalance_delay = \"0s\"",
            "group.initial.rebalance.delay.ms",
            "0",
        ),
        ("partitions = 4", "num.partitions", "4"),
        ("super_users = \"admin\"", "super.users", "User:admin"),
        (
            "compaction_rate = \"32MiB\"",
            "log.cleaner.io.max.bytes.per.second",
            "33554432",
        ),
    ];
    let lines = settings.map(|(line, ..)| line);
    fs::write(&file, lines.join("\n")).unwrap();
    let server = Server::start(&data, &["--config", file.to_str().unwrap()]);
    let shown = server.run(&["config", "show", "broker", "--json"]);
    let shown = shown.assert_done().json();
    let shown = shown["settings"].as_array().unwrap();
    let places = [
        ("", "log.dirs", data.to_str().unwrap()),
        ("", "listeners", "PLAINTEXT://127.0.0.1:0"),
    ];
    for (line, name, value) in settings.into_iter().chain(places) {
        let setting = shown.iter().find(|it| it["name"] == name);
        let setting = setting.unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(setting["value"], value, "{line}");
        assert_eq!(
            (&setting["is_default"], &setting["is_read_only"]),
            (&json!(false), &json!(true))
        );
    }
    server.stop();
}

#[test]
fn settings_of_streams_brokers_and_groups_are_shown_and_changed() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let run = |args: &[&str]| server.run(&[&["config"], args].concat());
    let value = |owner, name: &str| {
        let shown = run(&["show", owner, name, "--json"]).assert_done().json();
        let settings = shown["settings"].as_array().unwrap();
        assert_eq!(settings.len(), 1);
        assert!(settings[0]["documentation"].is_string());
        settings[0]["value"].as_str().unwrap().to_owned()
    };
    let changed = |owner| {
        let shown = run(&["show", owner, "--changed", "--json"])
            .assert_done()
            .json();
        shown["settings"].as_array().unwrap().len()
    };
    let before = value("stream/s", "retention.ms");
    run(&["set", "stream/s", "retention.ms=1000", "--dry-run"]).assert_done();
    assert_eq!(value("stream/s", "retention.ms"), before);
    run(&[
        "set",
        "stream/s",
        "retention.ms=86400000",
        "compression.type=zstd",
    ])
    .assert_done();
    assert_eq!(value("stream/s", "retention.ms"), "86400000");
    assert_eq!(changed("stream/s"), 2);
    run(&["unset", "stream/s", "retention.ms", "compression.type"]).assert_done();
    assert_eq!(value("stream/s", "retention.ms"), before);
    for (owner, name, setting) in [
        ("broker", "log.retention.ms", "log.retention.ms=3600000"),
        (
            "group/g",
            "consumer.session.timeout.ms",
            "consumer.session.timeout.ms=50000",
        ),
    ] {
        let text = run(&["set", owner, setting]).assert_done().text();
        assert!(text.starts_with("changed 1 setting of "), "{text}");
        let (_, expected) = setting.split_once('=').unwrap();
        assert_eq!(value(owner, name), expected);
    }
    for (args, code, part) in [
        (&["show", "topic/s"][..], 2, "stream/NAME"),
        (&["set", "stream/s", "retention.ms"], 2, "SETTING=VALUE"),
        (
            &["set", "stream/s", "retention.mss=1"],
            1,
            "did you mean retention.ms?",
        ),
        (&["set", "stream/s", "retention.ms=soon"], 1, "retention.ms"),
        (&["show", "stream/none"], 1, "stream none"),
    ] {
        run(args).assert_fails(code, &[part]);
    }
    server.stop();
}

#[test]
fn health_reports_each_check_and_fails_with_one_of_them() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let healthy = server.run(&["health", "--free", "1B", "--watch-groups", "1ms"]);
    let text = healthy.assert_done().text();
    for check in ["server", "streams", "disk", "transactions", "groups"] {
        let line = text.lines().find(|line| line.starts_with(check));
        assert!(line.is_some_and(|line| line.contains(" ok ")), "{text}");
    }
    // The group has read all records, then gets a lag that no member works off.
    produce(&server, "s", 0, 1);
    let args = ["health", "--free", "999999TiB", "--watch-groups", "1ms"];
    let failing = server.run(&args);
    failing.assert_fails(1, &["2 of 5 checks failed"]);
    let text = failing.text();
    assert!(
        text.contains("at least 999999 TiB should be free"),
        "{text}"
    );
    assert!(text.contains("lag stood still for 1ms: g"), "{text}");
    server.stop();
    let gone = program()
        .args(["health", "--server", "127.0.0.1:1"])
        .spawn()
        .unwrap();
    let gone = finish(gone);
    gone.assert_fails(1, &["1 of 1 check failed"]);
    assert!(
        gone.text().contains("server        failed"),
        "{}",
        gone.text()
    );
}

#[test]
fn a_lag_that_begins_during_the_watch_of_health_is_no_standstill() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    // On a busy machine the watch may begin behind the lag.
    let mut tries = (0..5).map(|_| {
        server.run(&["consume", "s", "--group", "g"]).assert_done();
        let health = ["health", "--free", "1B", "--watch-groups", "3s"];
        let child = server.command(&health).spawn().unwrap();
        thread::sleep(Duration::from_millis(1500));
        produce(&server, "s", 0, 1);
        finish(child).status.success()
    });
    assert!(tries.any(|is_healthy| is_healthy));
    server.stop();
}

#[test]
fn health_watches_share_groups_and_names_groups_whose_lag_is_unknown() {
    let dir = tempdir().unwrap();
    let server = server_with_group(dir.path());
    let config = "share.auto.offset.reset=earliest";
    let set = ["config", "set", "group/queue", config];
    server.run(&set).assert_done();
    share_heartbeat(&server, 0);
    let health = || server.run(&["health", "--free", "1B", "--watch-groups", "1ms"]);
    let text = health().assert_done().text();
    let unknown = "in 1 group that the user may describe; the lag of 1 group is unknown: queue\n";
    assert!(text.contains(unknown), "{text}");
    share_heartbeat(&server, -1);
    read_as_share_group(&server);
    let failing = health();
    failing.assert_fails(1, &["1 of 5 checks failed"]);
    let text = failing.text();
    let stuck = "1 group with a lag stood still for 1ms: queue\n";
    assert!(text.contains(stuck), "{text}");
    server.stop();
}

/// The server hides resources from a user without rights, and health must not pass for a check of all of them.
#[test]
fn health_says_that_it_covers_what_the_user_may_describe() {
    let dir = tempdir().unwrap();
    let (server, _) = start_with_admin(dir.path());
    let admin = |args: &[&str], input: &str| run_as_admin(&server, dir.path(), args, input);
    admin(&["stream", "create", "s"], "");
    admin(&["produce", "s"], "line\n");
    let bob = dir.path().join("bob");
    fs::write(&bob, "another\n").unwrap();
    admin(&["user", "set", "bob"], "another\n");
    let add = ["acl", "add", "allow", "--principal", "User:bob"];
    let allow = |args: &[&str]| admin(&[&add[..], &["--operation", "describe"], args].concat(), "");
    allow(&["--resource", "cluster"]);
    let health = || {
        let login = ["--user", "bob", "--password-file", bob.to_str().unwrap()];
        let health = ["health", "--free", "1B", "--watch-groups", "1ms"];
        let text = server
            .run(&[&health[..], &login].concat())
            .assert_done()
            .text();
        let lines = text.lines().map(|line| line[14..].trim().to_owned());
        lines.collect::<Vec<_>>()
    };
    let streams = |count| format!("ok      {count} that the user may describe accept writes");
    let found = health();
    assert_eq!(found[1], streams("0 partitions in 0 streams"));
    let none = "ok      0 open transactions that the user may describe";
    assert_eq!(found[3], none);
    let none = "ok      no standstill within 1ms in 0 groups that the user may describe";
    assert_eq!(found[4], none);
    allow(&["--resource", "stream", "--name", "s"]);
    assert_eq!(health()[1], streams("1 partition in 1 stream"));
    server.stop();
}

#[test]
fn completions_and_manual_pages_cover_all_commands() {
    let run = |args: &[&str]| finish(program().args(args).spawn().unwrap());
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completion", shell]).assert_done().text();
        assert!(script.contains("quickstart"), "{shell}");
    }
    let dir = tempdir().unwrap();
    let pages = dir.path().join("man1");
    let written = run(&["man", pages.to_str().unwrap(), "--json"])
        .assert_done()
        .json();
    assert!(written["pages"].as_array().unwrap().len() > 30, "{written}");
    let page = fs::read_to_string(pages.join("millstream-group-reset.1")).unwrap();
    assert!(page.contains("dry\\-run"), "{page}");
    // Settings that a command does not use stay hidden.
    assert!(!page.contains("journal"), "{page}");
    run(&["completion", "tcsh"]).assert_fails(2, &["bash"]);
}

#[test]
fn profiles_name_servers_and_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let config = dir.path().join("config");
    let run = |args: &[&str], profile: Option<&str>| {
        let mut command = program();
        command.args(args).env("XDG_CONFIG_HOME", &config);
        if let Some(profile) = profile {
            command.env("MILLSTREAM_PROFILE", profile);
        }
        finish(command.spawn().unwrap())
    };
    run(
        &["profile", "add", "here", "--server", server.address()],
        None,
    )
    .assert_done();
    run(&["profile", "add", "gone", "--server", "127.0.0.1:1"], None).assert_done();
    let list = ["stream", "list", "--json"];
    run(&[&list[..], &["--profile", "here"]].concat(), None).assert_done();
    run(&list, Some("here")).assert_done();
    run(&list, Some("gone")).assert_fails(1, &["127.0.0.1:1"]);
    run(&["profile", "use", "here"], None).assert_done();
    run(&list, None).assert_done();
    let shown = run(&["profile", "list", "--json"], None)
        .assert_done()
        .json();
    assert_eq!(shown["profiles"][1]["profile"], "here");
    assert_eq!(shown["profiles"][1]["is_current"], true);
    assert_eq!(shown["profiles"][1]["settings"]["server"], server.address());
    let file = config.join("millstream").join("profiles.toml");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    for (args, code, part) in [
        (
            &["stream", "list", "--profile", "hare"][..],
            2,
            "did you mean here?",
        ),
        (
            &["stream", "list", "--profile", "here", "--server", "a:1"],
            2,
            "--server",
        ),
        (&["start", "--profile", "here"], 2, "does not use --profile"),
        (
            &["profile", "add", "here", "--server", "a:1"],
            1,
            "there is a profile here",
        ),
        (&["profile", "add", "new"], 2, "--server"),
    ] {
        run(args, None).assert_fails(code, &[part]);
    }
    run(&["profile", "remove", "here"], None).assert_done();
    let shown = run(&["profile", "list", "--json"], None)
        .assert_done()
        .json();
    assert_eq!(shown["profiles"].as_array().unwrap().len(), 1);
    fs::write(
        &file,
        "[profiles.gone]\nserver = \"a:1\"\ncolour = \"red\"\n",
    )
    .unwrap();
    run(&list, Some("gone")).assert_fails(2, &["colour", "profile gone"]);
    server.stop();
}

/// A command that ignored the name would go to the default server.
#[test]
fn a_named_profile_is_refused_where_no_folder_holds_profiles() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let run = |args: &[&str], profile: Option<&str>| {
        let mut command = program();
        command
            .args(args)
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("HOME");
        if let Some(profile) = profile {
            command.env("MILLSTREAM_PROFILE", profile);
        }
        finish(command.spawn().unwrap())
    };
    let refused = ["no folder for profiles", "XDG_CONFIG_HOME or HOME"];
    let list = ["stream", "list"];
    let create = ["stream", "create", "s", "--profile", "here"];
    run(&create, None).assert_fails(2, &refused);
    run(&list, Some("here")).assert_fails(2, &refused);
    run(&["profile", "list"], None).assert_fails(2, &refused);
    let to = ["--server", server.address()];
    let copy = ["stream", "copy", "s", "t", "--to-profile", "here"];
    run(&[&copy[..], &to].concat(), None).assert_fails(2, &refused);
    // These commands name no profile, or a server that goes before it.
    run(&[&list[..], &to].concat(), None).assert_done();
    run(&[&list[..], &to].concat(), Some("here")).assert_done();
    server.stop();
}
