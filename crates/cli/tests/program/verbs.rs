//! Streams and objects from the command line.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{run, run_with_input};

#[test]
fn streams_are_created_listed_described_altered_and_deleted() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(
        data,
        &[
            "stream",
            "create",
            "clicks",
            "--streamlets",
            "2",
            "--lanes",
            "3",
        ],
    )
    .assert_done();
    run(
        data,
        &[
            "stream",
            "create",
            "views",
            "--durability",
            "async",
            "--retain-for",
            "7days",
        ],
    )
    .assert_done();
    let list = run(data, &["stream", "list"]).assert_done().text();
    let cells: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        cells[0],
        ["stream", "partitions", "offsets", "bytes", "durability"]
    );
    assert_eq!(cells[1], ["clicks", "6", "0", "0", "B", "sync"]);
    assert_eq!(cells[2], ["views", "1", "0", "0", "B", "async"]);

    let alter = [
        "stream",
        "alter",
        "clicks",
        "--lanes",
        "4",
        "--retain-bytes",
        "10GiB",
    ];
    run(data, &alter).assert_done();
    run(data, &["stream", "alter", "views", "--retain-for", "none"]).assert_done();
    let info = run(data, &["stream", "describe", "clicks", "--json"])
        .assert_done()
        .json();
    assert_eq!(info["lanes"].as_array().unwrap().len(), 8);
    assert_eq!(info["config"]["retain_bytes"], 10_u64 << 30);
    let text = run(data, &["stream", "describe", "views"])
        .assert_done()
        .text();
    assert!(
        text.contains("durability    async\nretain for    none\n"),
        "{text}"
    );

    run(data, &["stream", "delete", "clicks"]).assert_done();
    let list = run(data, &["stream", "list", "--json"])
        .assert_done()
        .json();
    assert_eq!(list["streams"].as_array().unwrap().len(), 1);
    assert_eq!(list["streams"][0]["name"], "views");
}

#[test]
fn streams_get_a_number_of_partitions_under_both_names_of_the_command() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    let partitions = |name: &str| {
        let info = run(data, &["topic", "describe", name, "--json"]);
        let info = info.assert_done().json();
        info["lanes"].as_array().unwrap().len()
    };
    run(data, &["topic", "create", "t", "--partitions", "4"]).assert_done();
    assert_eq!(partitions("t"), 4);
    run(data, &["stream", "alter", "t", "--partitions", "7"]).assert_done();
    assert_eq!(partitions("t"), 7);
    let text = run(data, &["stream", "describe", "t"]).assert_done().text();
    assert!(text.contains("partitions    7\n"), "{text}");
    // The name of earlier versions.
    run(data, &["stream", "create", "u", "--lanes", "4"]).assert_done();
    assert_eq!(partitions("u"), 4);
    run(data, &["stream", "alter", "u", "--partitions", "5"]).assert_done();
    assert_eq!(partitions("u"), 5);
    let wide = ["--streamlets", "2", "--lanes", "3"];
    run(data, &[&["stream", "create", "v"], &wide[..]].concat()).assert_done();
    run(data, &["stream", "alter", "v", "--partitions", "8"]).assert_done();
    assert_eq!(partitions("v"), 8);
    let text = run(data, &["stream", "describe", "v"]).assert_done().text();
    assert!(
        text.contains("partitions    8 (2 streamlets of 4)"),
        "{text}"
    );
    let odd = ["stream", "alter", "v", "--partitions", "9"];
    run(data, &odd).assert_fails(1, &["must be a multiple of 4 or of 2"]);
    let fewer = ["stream", "alter", "t", "--partitions", "6"];
    run(data, &fewer).assert_fails(1, &["has 7 partitions, and cannot have fewer"]);
    let both = ["stream", "create", "w", "--partitions", "2", "--lanes", "2"];
    run(data, &both).assert_fails(2, &["--partitions", "--lanes"]);
    let help = run(data, &["stream", "create", "--help"])
        .assert_done()
        .text();
    assert!(
        help.contains("--partitions") && !help.contains("--lanes"),
        "{help}"
    );
}

fn lines(data: &Path, args: &[&str]) -> Vec<String> {
    let text = run(data, &[&["consume", "s"], args].concat())
        .assert_done()
        .text();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn consumers_get_the_produced_records() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s"]).assert_done();
    let input: String = (0..1000).map(|number| format!("line {number}\n")).collect();
    let report = run_with_input(data, &["produce", "s", "--json"], input.into_bytes());
    assert_eq!(
        report.assert_done().json(),
        json!({ "appended_records": 1000, "known_records": 0, "durable_records": 1000 })
    );
    assert_eq!(lines(data, &["--limit", "2"]), ["line 0", "line 1"]);
    assert_eq!(lines(data, &["--from", "998"]), ["line 998", "line 999"]);
    assert_eq!(lines(data, &["--from", "1000"]), [""; 0]);
    assert_eq!(lines(data, &["--from", "latest"]), [""; 0]);
    assert_eq!(lines(data, &[]).len(), 1000);
    run(data, &["consume", "s", "--from", "1001"]).assert_fails(1, &["offset 1001", "1000"]);
    let wanted = lines(
        data,
        &["--where", "value contains \"e 99\"", "--from", "100"],
    );
    assert_eq!(wanted.len(), 10);
    assert!(wanted.iter().all(|line| line.starts_with("line 99")));

    let file = dir.path().with_extension("txt");
    fs::write(&file, "a=b=c\nno key\n").unwrap();
    let file = file.to_str().unwrap();
    run(
        data,
        &["produce", "s", "--file", file, "--key-separator", "="],
    )
    .assert_done();
    let lines = lines(data, &["--from", "1000", "--format", "json"]);
    let first: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(
        (&first["key"], &first["value"]),
        (&json!("a"), &json!("b=c"))
    );
    assert_eq!(
        (&first["offset"], &first["partition"]),
        (&json!(1000), &json!(0))
    );
    let document = run(data, &["consume", "s", "--from", "1000", "--json"])
        .assert_done()
        .json();
    assert_eq!(document["records"][0], first);
    assert_eq!(document["records"][1]["key"], Value::Null);
    fs::remove_file(file).unwrap();
}

#[test]
fn json_distinguishes_bytes_from_text() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s"]).assert_done();
    let args = ["produce", "s", "--key-separator", "="];
    run_with_input(data, &args, b"k\xff=v\nk=v\xff".to_vec()).assert_done();
    let document = run(data, &["consume", "s", "--json"]).assert_done().json();
    let [first, second] = [0, 1].map(|index| document["records"][index].clone());
    assert_eq!(first["key_base64"], "a/8=");
    assert_eq!((first.get("key"), &first["value"]), (None, &json!("v")));
    assert_eq!(second["value_base64"], "dv8=");
    assert_eq!((&second["key"], second.get("value")), (&json!("k"), None));
}

#[test]
fn streamlets_share_the_records_and_keep_keys_together() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s", "--streamlets", "3"]).assert_done();
    let input: String = (0..300)
        .map(|number| format!("{}:{number}\n", number % 10))
        .collect();
    let args = ["produce", "s", "--key-separator", ":"];
    run_with_input(data, &args, input.into_bytes()).assert_done();
    run(data, &["consume", "s", "--from", "5"]).assert_fails(1, &["--partition"]);
    let mut partitions = std::collections::HashMap::new();
    let mut count = 0;
    for line in lines(data, &["--format", "json"]) {
        let record: Value = serde_json::from_str(&line).unwrap();
        let partition = record["partition"].as_u64().unwrap();
        let key = record["key"].as_str().unwrap().to_owned();
        assert_eq!(*partitions.entry(key).or_insert(partition), partition);
        count += 1;
    }
    assert_eq!(count, 300);
    let only = lines(
        data,
        &["--partition", "0", "--from", "5", "--format", "json"],
    );
    assert!(only.iter().all(|line| line.contains("\"partition\":0")));
}

#[test]
fn a_numbered_producer_stores_each_line_once() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s"]).assert_done();
    let input = |lines: u32| {
        (0..lines)
            .map(|line| format!("{line}\n"))
            .collect::<String>()
            .into_bytes()
    };
    let args = ["produce", "s", "--producer", "7", "--json"];
    for (count, known) in [
        (1000, 0),
        (1000, 1000),
        (50_000, 1000),
        (70_000, 50_000),
        (10, 10),
    ] {
        let report = run_with_input(data, &args, input(count))
            .assert_done()
            .json();
        assert_eq!(report["known_records"], known);
        assert_eq!(report["durable_records"], count);
    }
    let stored = run(data, &["consume", "s"]).assert_done().stdout;
    assert!(stored == input(70_000));
}

#[test]
fn objects_are_put_got_listed_and_deleted() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let content: Vec<u8> = (0..1_000_000_u32)
        .flat_map(|n| (n % 65_521).to_le_bytes())
        .collect();
    let file = dir.path().join("content");
    fs::write(&file, &content).unwrap();
    let info = run(
        &data,
        &["object", "put", "a/b", file.to_str().unwrap(), "--json"],
    );
    assert_eq!(info.assert_done().json()["bytes"], content.len());
    run_with_input(&data, &["object", "put", "c"], b"small".to_vec()).assert_done();
    run(&data, &["object", "put", "c"]).assert_fails(1, &["object c", "exists"]);

    assert!(run(&data, &["object", "get", "a/b"]).assert_done().stdout == content);
    let part = run(
        &data,
        &["object", "get", "a/b", "--range", "1000000-1000099"],
    )
    .assert_done();
    assert!(part.stdout == content[1_000_000..1_000_100]);
    let end = run(&data, &["object", "get", "a/b", "--range", "3999990-"]).assert_done();
    assert!(end.stdout == content[3_999_990..]);
    run(&data, &["object", "get", "c", "--range", "9-"]).assert_fails(1, &["range", "c"]);
    let copy = dir.path().join("copy");
    run(
        &data,
        &["object", "get", "a/b", "-o", copy.to_str().unwrap()],
    )
    .assert_done();
    assert!(fs::read(&copy).unwrap() == content);

    let get = ["object", "get", "c", "--json"];
    let document = run(&data, &get).assert_done().json();
    assert_eq!(document["content_base64"], "c21hbGw=");
    let part = run(&data, &[&get[..], &["--range", "1-2"]].concat());
    assert_eq!(part.assert_done().json()["content_base64"], "bWE=");
    let to_file = [&get[..], &["-o", copy.to_str().unwrap()]].concat();
    let written = run(&data, &to_file).assert_done().json();
    assert_eq!(
        (&written["name"], &written["bytes"]),
        (&json!("c"), &json!(5))
    );
    assert_eq!(written.get("content_base64"), None);

    let list = run(&data, &["object", "list", "a/", "--json"])
        .assert_done()
        .json();
    assert_eq!(list["objects"].as_array().unwrap().len(), 1);
    run(&data, &["object", "delete", "a/b"]).assert_done();
    let list = run(&data, &["object", "list"]).assert_done().text();
    assert!(list.lines().count() == 2 && list.contains("\nc "), "{list}");
    run(&data, &["object", "get", "a/b"]).assert_fails(1, &["unknown object a/b"]);
}
