//! `millstream flow dead-letters` lists the records that a flow could not process, and writes them to their stream
//! again.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{Run, Server, run, run_with_input};

/// The flow `ads` has read two records that are no events, one of them with a key.
fn with_letters(data: &Path) {
    run(data, &["stream", "create", "ads"]).assert_done();
    let produce = ["produce", "ads", "--key-separator", ":"];
    run_with_input(data, &produce, b"buy!\nkey:now\n".to_vec()).assert_done();
    read_by_the_flow(data);
}

/// Runs the flow until it has read all stored records; returns the number of letters afterwards.
fn read_by_the_flow(data: &Path) -> Value {
    let quickstart = ["quickstart", "--for", "200ms", "--http", "127.0.0.1:0"];
    let json = [&quickstart[..], &["--json"]].concat();
    run(data, &json).assert_done().json()["dead_letters"].clone()
}

fn list(run: Run) -> Vec<Value> {
    let found = run.assert_done().json();
    found["dead_letters"].as_array().unwrap().clone()
}

/// The records of `ads` that are no events: value, key, and how often they were replayed.
fn no_events(run: Run) -> Vec<(String, Option<String>, Option<String>)> {
    let text = run.assert_done().text();
    let records = text.lines().filter_map(|line| {
        let record: Value = serde_json::from_str(line).unwrap();
        // Events are bytes that are no text, or long.
        let value = record["value"].as_str().filter(|value| value.len() < 10)?;
        let headers = record["headers"].as_array().unwrap();
        let times = headers.iter().find(|it| it["name"] == "replay.times");
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let times = times.and_then(|it| text(&it["value"]));
        Some((value.to_owned(), text(&record["key"]), times))
    });
    records.collect()
}

#[test]
fn dead_letters_are_listed_and_replayed_once_from_a_data_directory() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    with_letters(data);
    let all = ["flow", "dead-letters", "list"];
    let text = run(data, &all).assert_done().text();
    let [heading, first, second] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    assert!(
        heading.contains("operator") && heading.contains("replayed"),
        "{text}"
    );
    for part in [
        "ads",
        "events/1.each",
        "136 bytes",
        "partition 0, offset 0",
        "no",
    ] {
        assert!(first.contains(part), "{part:?}: {text}");
    }
    assert!(second.contains("partition 0, offset 1"), "{text}");
    let json = [
        "flow",
        "dead-letters",
        "list",
        "ads",
        "--limit",
        "1",
        "--json",
    ];
    let found = list(run(data, &json));
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["origin"]["stream"], "ads");
    assert_eq!(found[0]["origin"]["offset"], 0);
    assert_eq!(found[0]["can_be_replayed"], true);
    assert_eq!(found[0]["is_replayed"], false);

    let replay = ["flow", "dead-letters", "replay", "ads"];
    let first = run(data, &[&replay[..], &["--limit", "1"]].concat()).assert_done();
    assert!(
        first.text().contains("wrote 1 record to ads again"),
        "{first:?}"
    );
    let second = run(data, &[&replay[..], &["--json"]].concat()).assert_done();
    assert_eq!(second.json()["replayed"], 1);
    let third = run(data, &replay).assert_done().text();
    assert!(
        third.contains("no dead letters that were not replayed"),
        "{third}"
    );
    let consume = ["consume", "ads", "--format", "json"];
    let once = |text: &str, key: Option<&str>, times: Option<&str>| {
        (
            text.to_owned(),
            key.map(str::to_owned),
            times.map(str::to_owned),
        )
    };
    let mut expected = vec![
        once("buy!", None, None),
        once("now", Some("key"), None),
        once("buy!", None, Some("1")),
        once("now", Some("key"), Some("1")),
    ];
    assert_eq!(no_events(run(data, &consume)), expected);
    assert!(
        list(run(data, &json))
            .iter()
            .all(|it| it["is_replayed"] == true)
    );

    // The flow reads them, and cannot process them either.
    assert_eq!(read_by_the_flow(data), 4);
    let again = run(data, &replay).assert_done().text();
    assert!(again.contains("wrote 2 records"), "{again}");
    expected.push(once("buy!", None, Some("2")));
    expected.push(once("now", Some("key"), Some("2")));
    assert_eq!(no_events(run(data, &consume)), expected);

    let from_the_start = run(data, &[&replay[..], &["--again", "--json"]].concat());
    assert_eq!(from_the_start.assert_done().json()["streams"]["ads"], 4);
    assert_eq!(no_events(run(data, &consume)).len(), 10);
}

#[test]
fn dead_letters_are_listed_and_replayed_once_at_a_server() {
    let dir = tempdir().unwrap();
    with_letters(dir.path());
    let server = Server::start(dir.path(), &[]);
    // The stream's name is as good as the flow's.
    let json = ["flow", "dead-letters", "list", "ads.dead_letters", "--json"];
    assert_eq!(list(server.run(&json)).len(), 2);
    let replay = ["flow", "dead-letters", "replay", "ads", "--json"];
    for expected in [2, 0] {
        assert_eq!(
            server.run(&replay).assert_done().json()["replayed"],
            expected
        );
    }
    let found = no_events(server.run(&["consume", "ads", "--format", "json"]));
    assert_eq!(found.len(), 4, "{found:?}");
    let groups = server.run(&["group", "describe", "ads.dead_letters.replay"]);
    let groups = groups.assert_done().text();
    assert!(groups.contains("ads.dead_letters"), "{groups}");
    server.stop();
}

#[test]
fn a_flow_is_listed_among_groups_with_its_lag() {
    let dir = tempdir().unwrap();
    with_letters(dir.path());
    run_with_input(dir.path(), &["produce", "ads"], b"later\n".to_vec()).assert_done();
    let server = Server::start(dir.path(), &[]);
    let list = server
        .run(&["group", "list", "--json"])
        .assert_done()
        .json();
    let flow = json!({ "group": "ads", "kind": "flow", "state": "Empty", "members": 0, "lag": 1 });
    assert_eq!(list["groups"], json!([flow]));
    let text = server.run(&["group", "describe", "ads"]).assert_done();
    assert!(text.text().contains("kind     flow"), "{text:?}");
    let reset = server.run(&["group", "reset", "ads", "ads", "--to", "earliest"]);
    reset.assert_fails(1, &["how far flow ads is", "checkpoints"]);
    for delivery in ["push", "pull"] {
        let join = ["consume", "ads", "--group", "ads", "--delivery", delivery];
        server
            .run(&join)
            .assert_fails(1, &["group ads", "how far the flow"]);
    }
    server.run(&["group", "delete", "ads"]).assert_done();
    server.stop();
}

#[test]
fn a_replay_that_is_impossible_says_why() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    let replay = ["flow", "dead-letters", "replay", "ads"];
    let missing = data.join("none");
    run(&missing, &replay).assert_fails(1, &["there is no data directory"]);
    run(data, &["stream", "create", "ads"]).assert_done();
    run(data, &replay).assert_fails(1, &["flow ads has no dead letters", "ads.dead_letters"]);
    let none = run(data, &["flow", "dead-letters", "list"])
        .assert_done()
        .text();
    assert_eq!(none.lines().count(), 1, "the heading: {none}");

    // Records that no flow has written: there is nothing to replay of them.
    run(data, &["stream", "create", "ads.dead_letters"]).assert_done();
    run_with_input(data, &["produce", "ads.dead_letters"], b"old\n".to_vec()).assert_done();
    run(data, &["flow", "dead-letters", "replay", "add"]).assert_fails(1, &["did you mean ads?"]);
    let done = run(data, &replay).assert_done();
    assert!(
        done.stderr.contains("1 letter cannot be replayed"),
        "{}",
        done.stderr
    );
    run(data, &["stream", "delete", "ads.dead_letters"]).assert_done();
    run(data, &["stream", "delete", "ads"]).assert_done();

    with_letters(data);
    run(data, &["stream", "delete", "ads"]).assert_done();
    let gone = [
        "stream ads is gone",
        "stream create ads",
        "offset 0 of ads.dead_letters",
    ];
    run(data, &replay).assert_fails(1, &gone);
    run(data, &["stream", "create", "ads"]).assert_done();
    let done = run(data, &replay).assert_done().text();
    assert!(done.contains("wrote 2 records"), "{done}");

    let server = Server::start(data, &[]);
    run(data, &replay).assert_fails(1, &["in use"]);
    server.stop();
}

#[test]
fn dead_letters_of_two_flows_in_one_stream_are_listed_and_replayed_by_flow() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    with_letters(data);
    let server = Server::start(data, &[]);
    // As two flows write them that name this stream: the letters of one, and copies under another flow's name.
    let exported = server.run(&["stream", "export", "ads.dead_letters", "-"]);
    let letters = exported.assert_done().text();
    let of = |flow: &str| format!(r#"{{"name":"flow","value":"{flow}"}}"#);
    let others = letters.replace(&of("ads"), &of("copied"));
    assert_ne!(letters, others);
    let file = data.join("letters.jsonl");
    std::fs::write(&file, [letters, others].concat()).unwrap();
    server.run(&["stream", "create", "shared"]).assert_done();
    let import = ["stream", "import", "shared", file.to_str().unwrap()];
    server.run(&import).assert_done();
    let delete = ["stream", "delete", "ads.dead_letters"];
    server.run(&delete).assert_done();

    let dead_letters = |more: &[&str]| server.run(&[&["flow", "dead-letters"], more].concat());
    let told = [
        "flow copied has no dead letters: there is no stream copied.dead_letters",
        "--stream NAME",
    ];
    dead_letters(&["replay", "copied"]).assert_fails(1, &told);
    dead_letters(&["list", "copied"]).assert_fails(1, &told);
    let none = ["list", "--stream", "none"];
    dead_letters(&none).assert_fails(1, &["none", "there is no such stream"]);

    let shared = ["--stream", "shared"];
    let list_shared = |more: &[&str]| {
        let args = [&["list", "--json"], &shared[..], more].concat();
        let found = list(dead_letters(&args));
        let flows = found.iter().map(|letter| {
            assert_eq!(letter["stream"], "shared");
            let flow = letter["flow"].as_str().unwrap();
            format!("{flow} {}", letter["is_replayed"])
        });
        flows.collect::<Vec<_>>()
    };
    let all = ["ads false", "ads false", "copied false", "copied false"];
    assert_eq!(list_shared(&[]), all);
    assert_eq!(list_shared(&["copied", "--limit", "1"]), ["copied false"]);

    let replay = |more: &[&str]| {
        let args = [&["replay", "copied", "--json"], &shared[..], more].concat();
        dead_letters(&args).assert_done().json()["replayed"].clone()
    };
    assert_eq!(replay(&["--limit", "1"]), 1);
    let all = ["ads false", "ads false", "copied true", "copied false"];
    assert_eq!(list_shared(&[]), all);
    assert_eq!(replay(&[]), 1);
    assert_eq!(replay(&[]), 0);
    let consume = ["consume", "ads", "--format", "json"];
    assert_eq!(no_events(server.run(&consume)).len(), 4);
    server.stop();
}
