//! Records by key, from the command line and over HTTP.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::http::{
    BOB, assert_status, get_with, init_user, run_as_admin, send_with, start, start_with_admin,
};
use crate::support::{
    Server, finish, get, get_json, run, run_with_input, start as start_program, wait_until,
};

/// Returns the body of an answer with this status, and checks a header.
#[track_caller]
fn body(answer: &str, status: u16, header: &str) -> String {
    assert_status(answer, status);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    assert!(
        head.contains(&header.to_ascii_lowercase()),
        "{header}: {head}"
    );
    body.to_owned()
}

/// The commands of a node, on a server or on a data directory.
trait Node {
    fn run(&self, args: &[&str], input: &[u8]) -> crate::support::Run;
}

impl Node for Server {
    fn run(&self, args: &[&str], input: &[u8]) -> crate::support::Run {
        self.run_with_input(args, input.to_vec())
    }
}

impl Node for &Path {
    fn run(&self, args: &[&str], input: &[u8]) -> crate::support::Run {
        run_with_input(self, args, input.to_vec())
    }
}

/// Puts, gets, deletes and scans keys.
fn use_keys(node: &impl Node) {
    let done = |args: &[&str], input: &[u8]| node.run(args, input).assert_done();
    done(&["stream", "create", "t", "--keyed", "--lanes", "3"], b"");
    done(&["stream", "create", "plain"], b"");
    let stored = done(&["kv", "put", "t", "ann", "1"], b"").text();
    assert!(
        stored.starts_with("stored key \"ann\": partition "),
        "{stored}"
    );
    assert!(stored.ends_with(", version 0\n"), "{stored}");
    // The value is printed as it is, so that scripts get its bytes.
    assert_eq!(done(&["kv", "get", "t", "ann"], b"").stdout, b"1");
    let bytes = b"\xff\x00two lines\n\n";
    done(&["kv", "put", "t", "bytes", "-"], bytes);
    assert_eq!(done(&["kv", "get", "t", "bytes"], b"").stdout, bytes);
    done(&["kv", "put", "t", "-1", "-2"], b"");
    done(&["kv", "put", "t", "", "empty key"], b"");
    done(&["kv", "put", "t", "empty value", ""], b"");
    assert_eq!(done(&["kv", "get", "t", ""], b"").stdout, b"empty key");
    assert_eq!(done(&["kv", "get", "t", "empty value"], b"").stdout, b"");
    let got = done(&["kv", "get", "t", "bytes", "--json"], b"").json();
    assert_eq!(got["key"], "bytes");
    assert_eq!(got["value_base64"], "/wB0d28gbGluZXMKCg==");
    assert!(
        got["timestamp"].is_u64() && got["version"].is_u64(),
        "{got}"
    );

    // Changes under conditions.
    let put = ["kv", "put", "t", "dan"];
    let stored = done(&[&put[..], &["1", "--if-absent", "--json"]].concat(), b"").json();
    let version = stored["version"].to_string();
    let taken = [&put[..], &["2", "--if-absent"]].concat();
    node.run(&taken, b"")
        .assert_fails(1, &["another version", &format!("newest one is {version}")]);
    done(&[&put[..], &["3", "--if-version", &version]].concat(), b"");
    let late = [&put[..], &["4", "--if-version", &version]].concat();
    node.run(&late, b"").assert_fails(1, &["another version"]);
    assert_eq!(done(&["kv", "incr", "t", "dan"], b"").text(), "4\n");
    assert_eq!(done(&["kv", "incr", "t", "dan", "-10"], b"").text(), "-6\n");
    let sum = done(&["kv", "incr", "t", "dan", "5", "--json"], b"").json();
    assert_eq!((&sum["key"], &sum["value"]), (&json!("dan"), &json!(-1)));
    let delete = ["kv", "delete", "t", "dan", "--if-version"];
    node.run(&[&delete[..], &[&version]].concat(), b"")
        .assert_fails(1, &["another version"]);
    let version = sum["version"].to_string();
    done(&[&delete[..], &[&version]].concat(), b"");
    node.run(&["kv", "incr", "t", "empty value"], b"")
        .assert_fails(1, &["stream t"]);
    let both = [
        "kv",
        "put",
        "t",
        "a",
        "b",
        "--if-absent",
        "--if-version",
        "1",
    ];
    node.run(&both, b"").assert_fails(2, &["--if-absent"]);

    // Older versions.
    let first = done(&["kv", "put", "t", "old", "1", "--json"], b"").json()["version"].take();
    done(&["kv", "put", "t", "old", "2"], b"");
    done(&["kv", "delete", "t", "old"], b"");
    let at = ["kv", "get", "t", "old", "--version", &first.to_string()];
    assert_eq!(done(&at, b"").text(), "1");
    node.run(&["kv", "get", "t", "old"], b"")
        .assert_fails(1, &["no key \"old\""]);
    let listed = done(&["kv", "history", "t", "old"], b"").text();
    let values = listed.lines().map(|line| line.split('\t').nth(2).unwrap());
    assert_eq!(
        values.collect::<Vec<_>>(),
        ["deleted", "2", "1"],
        "{listed}"
    );
    let listed = done(&["kv", "history", "t", "old", "--json"], b"").json();
    assert_eq!(listed["lacks_older"], false, "{listed}");
    assert_eq!(listed["versions"][0]["value"], Value::Null);
    assert_eq!(listed["versions"][2]["version"], first);
    let listed = done(
        &["kv", "history", "t", "old", "--limit", "1", "--json"],
        b"",
    )
    .json();
    assert_eq!(listed["versions"].as_array().unwrap().len(), 1);
    assert_eq!(listed["lacks_older"], Value::Null);
    assert_eq!(done(&["kv", "history", "t", "none"], b"").text(), "");
    node.run(&["kv", "history", "none", "a"], b"")
        .assert_fails(1, &["none"]);

    // Several keys at once: all of them, or none.
    let put = ["kv", "put", "t", "k1", "1", "k2", "-2", "k3", "x"];
    let stored = done(&put, b"").text();
    let keys: Vec<&str> = stored
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert_eq!(keys, ["k1", "k2", "k3"], "{stored}");
    assert_eq!(done(&["kv", "get", "t", "k2"], b"").text(), "-2");
    let again = ["kv", "put", "t", "k4", "4", "k2", "5", "--if-absent"];
    node.run(&again, b"")
        .assert_fails(1, &["nothing was changed", "\"k2\"", "another version"]);
    node.run(&["kv", "get", "t", "k4"], b"")
        .assert_fails(1, &["no key"]);
    let stored = done(&["kv", "put", "t", "k4", "4", "k5", "5", "--json"], b"").json();
    assert_eq!(stored["entries"][1]["key"], "k5");
    assert!(stored["entries"][0]["version"].is_u64(), "{stored}");
    node.run(&["kv", "put", "t", "a", "1", "b"], b"")
        .assert_fails(2, &["[KEY] [VALUE]"]);
    node.run(&["kv", "put", "t", "a", "1", "b", "2", "c"], b"")
        .assert_fails(1, &["key \"c\" has no value"]);
    node.run(&["kv", "put", "t", "a", "1", "b", "-"], b"x")
        .assert_fails(1, &["\"b\"", "stdin"]);
    node.run(&["kv", "put", "t", "a", "1", "a", "2"], b"")
        .assert_fails(1, &["of the same key"]);
    for key in ["k1", "k2", "k3", "k4", "k5"] {
        done(&["kv", "delete", "t", key], b"");
    }

    // Values that end.
    done(&["kv", "put", "t", "gone", "1", "--ttl", "1ms"], b"");
    let put = ["kv", "put", "t", "eve", "1", "--if-absent", "--ttl", "90s"];
    let stored = done(&[&put[..], &["--json"]].concat(), b"").json();
    assert_eq!(stored["key"], "eve");
    let got = done(&["kv", "get", "t", "eve", "--json"], b"").json();
    let lives = got["expires_at"].as_i64().unwrap() - got["timestamp"].as_i64().unwrap();
    assert_eq!(lives, 90_000);
    done(&["kv", "incr", "t", "eve", "--ttl", "1ms"], b"");
    let sum = done(&["kv", "get", "t", "eve", "--json"], b"").json();
    assert_eq!(
        (&sum["value"], &sum["expires_at"]),
        (&json!("2"), &got["expires_at"])
    );
    node.run(&["kv", "get", "t", "gone"], b"")
        .assert_fails(1, &["no key \"gone\""]);
    node.run(&["kv", "put", "t", "a", "1", "--ttl", "0s"], b"")
        .assert_fails(1, &["1 ms or more"]);
    node.run(&["kv", "put", "t", "a", "1", "--ttl", "9"], b"")
        .assert_fails(2, &["--ttl"]);
    done(&["kv", "delete", "t", "eve"], b"");

    // A producer of records with the same partitioner.
    let produce = ["produce", "t", "--key-separator", ":"];
    done(&produce, b"ann:2\nbob:3\ncid:4\n");
    done(&["kv", "delete", "t", "bob"], b"");
    node.run(&["kv", "get", "t", "bob"], b"")
        .assert_fails(1, &["stream t has no key \"bob\""]);
    done(&["kv", "delete", "t", "bytes"], b"");
    let scanned = done(&["kv", "scan", "t"], b"").text();
    let lines = ["\tempty key", "-1\t-2", "ann\t2", "cid\t4", "empty value\t"];
    assert_eq!(scanned.lines().collect::<Vec<_>>(), lines);
    let scan = |args: &[&str]| -> Vec<String> {
        let args = [&["kv", "scan", "t", "--json"], args].concat();
        let scanned = done(&args, b"").json();
        let entries = scanned["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(scan(&["--prefix", "a"]), ["ann"]);
    assert_eq!(scan(&["--from", "ann", "--to", "e"]), ["ann", "cid"]);
    assert_eq!(scan(&["--from", "ann", "--limit", "1"]), ["ann"]);
    assert_eq!(scan(&["--prefix", "x"]), [""; 0]);

    // The number of partitions decides which one owns a key.
    let alter = ["stream", "alter", "t", "--lanes", "4"];
    node.run(&alter, b"")
        .assert_fails(1, &["owns a key", "`millstream stream copy t NEW`"]);
    node.run(&["kv", "get", "plain", "a"], b"")
        .assert_fails(1, &["stream plain", "cleanup.policy=compact"]);
    node.run(&["kv", "scan", "tt"], b"")
        .assert_fails(1, &["unknown stream tt", "did you mean t?"]);
    let both = ["kv", "scan", "t", "--prefix", "a", "--from", "b"];
    node.run(&both, b"").assert_fails(2, &["--prefix"]);
    node.run(&["kv", "scan", "t", "--limit", "0"], b"")
        .assert_fails(2, &["from 1"]);
}

/// Puts keys with secondary keys, and finds them.
fn use_secondary_keys(node: &Server) {
    let done = |args: &[&str]| node.run(args).assert_done();
    done(&["stream", "create", "u", "--keyed", "--lanes", "3"]);
    let put = |key: &str, value: &str, secondary: &str| {
        done(&["kv", "put", "u", key, value, "--secondary", secondary]);
    };
    put("ann", "1", "city=Namur");
    node.run(&["kv", "find", "u", "city", "Namur"])
        .assert_fails(
            1,
            &[
                "no index of secondary keys named \"city\"",
                "millstream.keyed.secondary",
            ],
        );
    done(&[
        "config",
        "set",
        "stream/u",
        "millstream.keyed.secondary=city",
    ]);
    put("bob", "2", "city=Turin");
    put("cid", "3", "city=Namur");
    put("dan", "4", "city=Accra=1");
    let find = |args: &[&str]| done(&[&["kv", "find", "u", "city"], args].concat()).text();
    assert_eq!(find(&["Namur"]), "Namur\tann\t1\nNamur\tcid\t3\n");
    put("ann", "5", "city=Turin");
    assert_eq!(
        find(&["Turin", "Namur", "x"]),
        "Namur\tcid\t3\nTurin\tann\t5\nTurin\tbob\t2\n"
    );
    assert_eq!(find(&["--prefix", "A"]), "Accra=1\tdan\t4\n");
    assert_eq!(
        find(&["--from", "B", "--to", "O", "--limit", "1"]),
        "Namur\tcid\t3\n"
    );
    assert_eq!(find(&[]).lines().count(), 4);
    let found = done(&["kv", "find", "u", "city", "Namur", "--json"]).json();
    let entry = &found["entries"][0];
    assert_eq!(
        (&entry["secondary"], &entry["key"], &entry["value"]),
        (&json!("Namur"), &json!("cid"), &json!("3"))
    );
    let many: Vec<String> = (0..65).map(|n| format!("--secondary=n={n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    node.run(&[&["kv", "put", "u", "x", "1"], &many[..]].concat())
        .assert_fails(1, &["65 secondary keys", "at most 64"]);
    node.run(&["kv", "put", "u", "x", "1", "--secondary", "n"])
        .assert_fails(2, &["such as city=Namur"]);
    node.run(&[
        "config",
        "set",
        "stream/u",
        "millstream.keyed.secondary=a b",
    ])
    .assert_fails(1, &["no name of an index"]);
}

#[test]
fn keys_are_found_by_secondary_keys() {
    let dir = tempdir().unwrap();
    use_secondary_keys(&Server::start(dir.path(), &[]));
}

#[test]
fn keys_are_found_by_secondary_keys_over_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    server
        .run(&["stream", "create", "u", "--keyed", "--lanes", "3"])
        .assert_done();
    let names = "millstream.keyed.secondary=city";
    server
        .run(&["config", "set", "stream/u", names])
        .assert_done();
    for n in 0..9 {
        let path = format!("/kv/u/{n}?k.city=city+{}", n % 3);
        assert_status(&send_with(&http, "PUT", &path, "", b"{\"n\":1}"), 204);
    }
    let many = "k.city=x&".repeat(65);
    let refused = send_with(
        &http,
        "PUT",
        &format!("/kv/u/x?{}", many.trim_end_matches('&')),
        "",
        b"1",
    );
    assert_status(&refused, 400);
    let mut found = Vec::new();
    let mut page = String::new();
    loop {
        let answer = get_json(
            &http,
            &format!("/kv/u?by=city&key=city+2&key=city+0&limit=2{page}"),
        );
        let entries = answer["entries"].as_array().unwrap();
        assert!(entries.len() <= 2);
        found.extend(entries.iter().map(|entry| {
            assert_eq!(entry["value"], json!({"n": 1}));
            format!(
                "{} {}",
                entry["secondary"].as_str().unwrap(),
                entry["key"].as_str().unwrap()
            )
        }));
        match answer["next"].as_str() {
            Some(next) => page = format!("&page={next}"),
            None => break,
        }
    }
    assert_eq!(
        found,
        [
            "city 0 0", "city 0 3", "city 0 6", "city 2 2", "city 2 5", "city 2 8"
        ]
    );
    let prefix = get_json(&http, "/kv/u?by=city&prefix=city+1");
    assert_eq!(prefix["entries"].as_array().unwrap().len(), 3);
    assert_status(&get(&http, "/kv/u?by=zip"), 409);
    let metrics = get(&http, "/metrics");
    let all_found = "millstream_partition_partly_indexed_records{stream=\"u\",partition=\"0\"} 0\n";
    assert!(metrics.contains(all_found), "{metrics}");
}

#[test]
fn kv_commands_work_at_a_server() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    use_keys(&server);
}

#[test]
fn an_endless_value_is_refused_and_the_old_value_stays() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let create = ["stream", "create", "t", "--keyed"];
    server.run(&create).assert_done();
    server.run(&["kv", "put", "t", "ann", "1"]).assert_done();
    let zeros = fs::File::open("/dev/zero").unwrap();
    let mut put = server.command(&["kv", "put", "t", "ann", "-"]);
    finish(start_program(put.stdin(zeros))).assert_fails(
        1,
        &[
            "\"ann\" is too large",
            "8 MiB",
            "stream t",
            "max.message.bytes",
            "nothing was stored",
        ],
    );
    let got = server.run(&["kv", "get", "t", "ann"]).assert_done();
    assert_eq!(got.stdout, b"1");
}

#[test]
fn kv_commands_work_on_a_data_directory() {
    let dir = tempdir().unwrap();
    use_keys(&dir.path());
    // Another run finds the keys that the last one stored.
    let got = run(dir.path(), &["kv", "get", "t", "ann"]).assert_done();
    assert_eq!(got.stdout, b"2");
}

#[test]
fn values_and_ranges_are_served_over_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    server
        .run(&["stream", "create", "a/b", "--keyed", "--lanes", "2"])
        .assert_done();
    server.run(&["stream", "create", "plain"]).assert_done();
    let odd = "gr\u{fc}\u{df}e/\u{2603} 100%";
    for (key, value) in [
        ("ann", "{\"n\": 12345678901234567890}"),
        ("bob", "a word"),
        ("", "empty"),
        (odd, "[1]"),
    ] {
        server.run(&["kv", "put", "a/b", key, value]).assert_done();
    }
    let input = b"\xff\xfe".to_vec();
    server
        .run_with_input(&["kv", "put", "a/b", "cid", "-"], input)
        .assert_done();

    let ann = get(&http, "/kv/a%2Fb/ann");
    assert_eq!(
        body(&ann, 200, "content-type: application/json\r\n"),
        "{\"n\": 12345678901234567890}"
    );
    body(&ann, 200, "etag: \"");
    body(&ann, 200, "last-modified: ");
    let bob = get(&http, "/kv/a%2Fb/bob");
    assert_eq!(
        body(&bob, 200, "content-type: text/plain; charset=utf-8"),
        "a word"
    );
    assert_eq!(body(&get(&http, "/kv/a%2Fb/"), 200, ""), "empty");
    for path in [
        "/kv/a%2Fb/gr%C3%BC%C3%9Fe%2F%E2%98%83%20100%25",
        "/kv/a%2Fb/gr%C3%BC%C3%9Fe/%E2%98%83%20100%25",
    ] {
        assert_eq!(body(&get(&http, path), 200, ""), "[1]", "{path}");
    }

    let list = get_json(&http, "/kv/a%2Fb");
    let keys = |list: &Value| -> Vec<String> {
        let entries = list["entries"].as_array().unwrap().iter();
        entries
            .map(|entry| entry["key"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(keys(&list), ["", "ann", "bob", "cid", odd]);
    assert_eq!(list["next"], Value::Null);
    let values: Vec<&Value> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["value"])
        .collect();
    assert_eq!(*values[1], json!({ "n": 12_345_678_901_234_567_890_u64 }));
    assert_eq!(*values[2], "a word");
    assert_eq!(list["entries"][3]["value_base64"], "//4=");
    let page = get_json(&http, "/kv/a%2Fb?limit=2&from=ann");
    assert_eq!(
        (keys(&page), &page["next"]),
        (vec!["ann".to_owned(), "bob".to_owned()], &json!("cid"))
    );
    assert_eq!(keys(&get_json(&http, "/kv/a%2Fb?prefix=gr%C3%BC")), [odd]);
    assert_eq!(
        keys(&get_json(&http, "/kv/a%2Fb?from=b&to=c&limit=10000")),
        ["bob"]
    );
    assert_eq!(keys(&get_json(&http, "/kv/a%2Fb?prefix=b&from=c")), [""; 0]);

    // The metrics show the index that these look-ups have made.
    wait_until("the metrics are new", || {
        let streams = get_json(&http, "/api/v1/streams");
        streams[0]["keys"]["keys"] == 5 && streams[1]["keys"].is_null()
    });
    let metrics = get(&http, "/metrics");
    let sum = |name: &str| -> u64 {
        let name = format!("millstream_{name}{{stream=\"");
        let samples = metrics.lines().filter_map(|line| line.strip_prefix(&name));
        let of_stream = samples.map(|sample| sample.strip_prefix("a/b\"").expect(sample));
        let values = of_stream.map(|sample| sample.rsplit_once(' ').unwrap().1);
        values.map(|value| value.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum("partition_keys"), 5);
    assert!(sum("partition_keys_bytes") > 5 * 64);
    assert_eq!(sum("partition_misplaced_records"), 0);
    assert_eq!(sum("partition_keyless_records"), 0);
    // All records are in open groups.
    for name in ["", "_bytes", "_built_total", "_rebuilt_total"] {
        assert_eq!(sum(&format!("partition_key_files{name}")), 0);
    }

    for (path, status, part) in [
        ("/kv/a%2Fb/none", 404, "unknown key \\\"none\\\""),
        ("/kv/none/a", 404, "unknown stream \\\"none\\\""),
        ("/kv/__groups", 404, "unknown stream"),
        ("/kv/plain/a", 409, "cleanup.policy=compact"),
        ("/kv/plain", 409, "cleanup.policy=compact"),
        ("/kv/a%2Fb?limit=0", 400, "limit=<n>"),
        ("/kv/a%2Fb?limit=10001", 400, "limit=<n>"),
        ("/kv/a%2Fb?form=x", 400, "is refused"),
        ("/kv/%FF/a", 400, "UTF-8"),
        ("/kv/", 404, "/kv/<stream>"),
    ] {
        let answer = body(&get(&http, path), status, "");
        assert!(answer.contains(part), "{path}: {answer}");
    }
}

#[test]
fn keys_are_written_over_http() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    let run = |args: &[&str]| server.run(args).assert_done();
    run(&["stream", "create", "a/b", "--keyed", "--lanes", "2"]);
    run(&["stream", "create", "plain"]);
    let value = b"\xff\x00two lines\n\n";
    let put = |path: &str, value: &[u8]| send_with(&http, "PUT", path, "", value);
    let stored = put("/kv/a%2Fb/gr%C3%BC%2Fn", value);
    assert_eq!(body(&stored, 204, "\r\netag: \""), "");
    let got = run(&["kv", "get", "a/b", "gr\u{fc}/n", "--json"]).json();
    assert_eq!(got["value_base64"], "/wB0d28gbGluZXMKCg==");
    let etag = format!("etag: \"{}-{}\"\r\n", got["partition"], got["version"]);
    body(&stored, 204, &etag);
    body(&put("/kv/a%2Fb/ann", b"1"), 204, "");
    let ann = get(&http, "/kv/a%2Fb/ann");
    assert_eq!(body(&ann, 200, "content-type: application/json"), "1");
    // The first version in its partition, or the second one.
    let newer = put("/kv/a%2Fb/ann", b"2");
    let version = run(&["kv", "get", "a/b", "ann", "--json"]).json()["version"].take();
    body(&newer, 204, &format!("-{version}\"\r\n"));

    // Conditions, checked together with the write.
    let write = |method: &str, path: &str, headers: &str, value: &[u8]| {
        send_with(&http, method, path, headers, value)
    };
    let tag_of = |answer: &str| -> String {
        let line = answer.lines().find_map(|line| line.strip_prefix("etag: "));
        line.expect(answer).to_owned()
    };
    let tag = tag_of(&newer);
    let stale = format!("If-Match: {}\r\n", tag_of(&stored));
    let refused = write("PUT", "/kv/a%2Fb/ann", &stale, b"3");
    body(&refused, 412, &format!("etag: {tag}\r\n"));
    let present = format!("If-Match: {tag}\r\n");
    body(&write("PUT", "/kv/a%2Fb/ann", &present, b"2"), 204, "");
    body(
        &write("DELETE", "/kv/a%2Fb/ann", &present, b""),
        412,
        "etag: ",
    );
    let absent = "If-None-Match: *\r\n";
    body(&write("PUT", "/kv/a%2Fb/ann", absent, b"3"), 412, "etag: ");
    body(&write("PUT", "/kv/a%2Fb/new", absent, b"3"), 201, "");
    let sum = write("PATCH", "/kv/a%2Fb/new", "If-Match: *\r\n", b"39");
    assert_eq!(body(&sum, 200, "etag: "), "42");
    let none = write("PATCH", "/kv/a%2Fb/none", "If-Match: *\r\n", b"39");
    assert!(!body(&none, 412, "").contains("etag"), "{none}");
    body(&write("PATCH", "/kv/a%2Fb/gr%C3%BC%2Fn", "", b"1"), 409, "");

    for (path, status, part) in [
        ("/kv/none/a", 404, "unknown stream \\\"none\\\""),
        ("/kv/__groups/a", 404, "unknown stream"),
        ("/kv/plain/a", 409, "cleanup.policy=compact"),
        ("/kv/a%2Fb", 405, "GET, HEAD"),
    ] {
        for method in ["PUT", "PATCH", "DELETE"] {
            let refused = body(&send_with(&http, method, path, "", b"x"), status, "");
            assert!(refused.contains(part), "{method} {path}: {refused}");
        }
    }
    run(&["config", "set", "stream/a/b", "max.message.bytes=1000"]);
    let refused = body(&put("/kv/a%2Fb/ann", &[b'x'; 2_000]), 413, "");
    assert!(refused.contains("max.message.bytes"), "{refused}");
    // With the key and the record's other fields it is too large.
    body(&put("/kv/a%2Fb/ann", &[b'x'; 990]), 413, "");
    body(&put("/kv/a%2Fb/bob", &[b'x'; 800]), 204, "");
    let deleted = send_with(&http, "DELETE", "/kv/a%2Fb/bob", "", b"");
    assert_eq!(body(&deleted, 204, ""), "");
    body(&get(&http, "/kv/a%2Fb/bob"), 404, "");

    // Older versions.
    let version = |answer: &str| -> String {
        let tag = tag_of(answer);
        tag.trim_matches('"').split_once('-').unwrap().1.to_owned()
    };
    let first = version(&put("/kv/a%2Fb/past", b"1"));
    put("/kv/a%2Fb/past", b"2");
    let at = get(&http, &format!("/kv/a%2Fb/past?version={first}"));
    assert_eq!(body(&at, 200, "etag: "), "1");
    let listed = body(
        &get(&http, "/kv/a%2Fb/past?history"),
        200,
        "application/json",
    );
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (&listed["versions"][0]["value"], &listed["next"]),
        (&json!(2), &Value::Null)
    );
    assert_eq!(listed["lacks_older"], false);

    // Several keys at once: all of them, or none.
    let post = |body: &str| send_with(&http, "POST", "/kv/a%2Fb", "", body.as_bytes());
    let made = post(
        r#"[{"key": "t1", "value": {"n": 1}}, {"key": "t2", "text": "x", "if_absent": true}, {"key": "t3", "add": 5}]"#,
    );
    let made: Value = serde_json::from_str(&body(&made, 200, "application/json")).unwrap();
    assert_eq!(made["entries"][2]["sum"], 5);
    assert!(made["entries"][0]["version"].is_u64(), "{made}");
    assert_eq!(body(&get(&http, "/kv/a%2Fb/t1"), 200, ""), r#"{"n": 1}"#);
    assert_eq!(body(&get(&http, "/kv/a%2Fb/t2"), 200, "text/plain"), "x");
    let long = "k".repeat((1 << 20) + 1);
    let long = format!(r#"[{{"key":"t1","delete":true}},{{"key":"{long}","add":1}}]"#);
    let others = (0..8).map(|n| format!(r#"{{"key":"other {n}","add":1}},"#));
    let others: String = others.collect();
    let twice = format!(r#"[{{"key":"t1","add":1}},{others}{{"key":"t1","add":1}}]"#);
    for (changes, status, part) in [
        (
            &*long,
            413,
            "change 1 is refused: the key has 1048577 bytes, and may have at most 1048576",
        ),
        (
            &twice,
            409,
            "changes 0 and 9 for stream a/b are of the same key",
        ),
        (
            r#"[{"key":"t1","delete":true},{"key":"t2","text":"y","if_absent":true}]"#,
            412,
            "change 1",
        ),
        (
            r#"[{"key":"t1","delete":true},{"key":"t2","add":1}]"#,
            409,
            "not a whole number",
        ),
        (
            r#"[{"key":"t1","delete":true},{"key":"t2"}]"#,
            400,
            "change 1 must have",
        ),
    ] {
        let refused = body(&post(changes), status, "");
        assert!(refused.contains(part), "{changes}: {refused}");
        assert_eq!(body(&get(&http, "/kv/a%2Fb/t1"), 200, ""), r#"{"n": 1}"#);
    }
    let elsewhere = send_with(&http, "POST", "/kv/a%2Fb/t1", "", b"[]");
    body(&elsewhere, 405, "allow: GET, HEAD, PUT");
    body(&send_with(&http, "POST", "/kv/none", "", b"[]"), 404, "");

    // A write that was answered survives the process, which SIGKILL ends here.
    drop(server);
    let (_server, http) = start(dir.path(), &[]);
    assert_eq!(body(&get(&http, "/kv/a%2Fb/ann"), 200, ""), "2");
    body(&get(&http, "/kv/a%2Fb/bob"), 404, "");
}

/// Versions of the future, of another partition and beyond all numbers change nothing, and each is named.
#[test]
fn wrong_versions_change_nothing() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    let done = |args: &[&str]| server.run(args).assert_done();
    done(&["stream", "create", "t", "--keyed", "--lanes", "3"]);
    done(&["kv", "put", "t", "ann", "1"]);
    let ann = done(&["kv", "get", "t", "ann", "--json"]).json();
    let tag = format!("\"{}-{}\"", ann["partition"], ann["version"]);
    let largest = u64::MAX.to_string();

    for (version, code, part) in [
        ("7", 1, "newest one is 0"),
        (&largest, 1, "newest one is 0"),
        ("18446744073709551616", 2, "--if-version"),
        ("-1", 2, "-1"),
        ("one", 2, "--if-version"),
    ] {
        let args = ["kv", "put", "t", "ann", "2", "--if-version", version];
        server.run(&args).assert_fails(code, &[part]);
    }
    let put = |header: &str| {
        let header = format!("If-Match: {header}\r\n");
        send_with(&http, "PUT", "/kv/t/ann", &header, b"2")
    };
    let other = (ann["partition"].as_u64().unwrap() + 1) % 3;
    for (tags, status) in [
        (format!("\"{}-7\"", ann["partition"]), 412),
        (format!("\"{}-{largest}\"", ann["partition"]), 412),
        (format!("\"{other}-0\""), 412),
        (format!("W/{tag}"), 412),
        ("\"\", \"x\", \"99999999999999999999-1\"".to_owned(), 412),
        (tag.trim_matches('"').to_owned(), 400),
        (format!("*, {tag}"), 400),
        (format!("{tag} {tag}"), 400),
        ("\"".to_owned(), 400),
    ] {
        let answer = put(&tags);
        match status {
            412 => body(&answer, 412, &format!("etag: {tag}\r\n")),
            status => body(&answer, status, ""),
        };
        assert!(status == 412 || answer.contains("if-match"), "{answer}");
    }
    let post = |version: &str| {
        let change = format!("[{{\"key\":\"ann\",\"value\":2,\"if_version\":{version}}}]");
        send_with(&http, "POST", "/kv/t", "", change.as_bytes())
    };
    for (version, status, part) in [
        ("7", 412, "change 0"),
        (&*largest, 412, "change 0"),
        ("18446744073709551616", 400, "expected u64"),
        ("-1", 400, "`-1`, expected u64"),
        ("0.5", 400, "`0.5`, expected u64"),
        ("\"0\"", 400, "expected u64"),
    ] {
        let answer = body(&post(version), status, "");
        assert!(answer.contains(part), "{version}: {answer}");
    }
    for (query, status) in [
        ("version=18446744073709551615", 200),
        ("version=18446744073709551616", 400),
        ("version=-1", 400),
        ("history&before=18446744073709551615", 200),
        ("history&before=-1", 400),
    ] {
        assert_status(&get(&http, &format!("/kv/t/ann?{query}")), status);
    }
    let newest = done(&["kv", "get", "t", "ann", "--version", &largest]);
    assert_eq!(newest.text(), "1");
    assert_eq!(
        done(&["kv", "history", "t", "ann"]).text().lines().count(),
        1
    );
    // The right one among others.
    assert_status(&put(&format!("\"9-9\", {tag}")), 204);
    assert_eq!(done(&["kv", "get", "t", "ann"]).text(), "2");
}

/// A topic whose records have no keys, before it becomes keyed.
#[test]
fn records_without_keys_are_skipped_and_stay_in_the_stream() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    let done = |args: &[&str]| server.run(args).assert_done();
    done(&["stream", "create", "t"]);
    let lines = b"one\ntwo\nthree\n".to_vec();
    let produce = |lines: &[u8]| server.run_with_input(&["produce", "t"], lines.to_vec());
    produce(&lines).assert_done();
    done(&["config", "set", "stream/t", "cleanup.policy=compact"]);
    done(&["kv", "put", "t", "ann", "1"]);
    assert_eq!(done(&["kv", "get", "t", "ann"]).text(), "1");
    assert_eq!(done(&["kv", "scan", "t"]).text(), "ann\t1\n");
    let scanned = get_json(&http, "/kv/t");
    assert_eq!(scanned["entries"].as_array().unwrap().len(), 1);
    let keyless = "millstream_partition_keyless_records{stream=\"t\",partition=\"0\"} 3\n";
    let metrics = get(&http, "/metrics");
    assert!(metrics.contains(keyless), "{metrics}");
    produce(b"four\n").assert_fails(1, &["stream t", "send it with a key"]);
    let consumed = done(&["consume", "t"]).text();
    assert_eq!(consumed, "one\ntwo\nthree\n1\n");
}

#[test]
fn an_http_client_needs_the_right_to_read_the_stream() {
    let dir = tempdir().unwrap();
    init_user(dir.path(), "bob", "another");
    let (server, http) = start_with_admin(dir.path());
    let as_admin = |args: &[&str]| run_as_admin(&server, dir.path(), args, "");
    as_admin(&["stream", "create", "t", "--keyed"]);
    as_admin(&["stream", "create", "u", "--keyed"]);
    as_admin(&["kv", "put", "t", "a", "1"]);
    assert_status(&get(&http, "/kv/t/a"), 401);
    for path in ["/kv/t/a", "/kv/t", "/kv/none"] {
        let denied = get_with(&http, path, BOB);
        assert_status(&denied, 403);
        assert!(denied.contains("Read on the stream"), "{denied}");
    }
    let allow = [
        "acl",
        "add",
        "allow",
        "--principal",
        "User:bob",
        "--operation",
        "read",
    ];
    as_admin(&[&allow[..], &["--resource", "stream", "--name", "t"]].concat());
    assert_status(&get_with(&http, "/kv/t/a", BOB), 200);
    assert_status(&get_with(&http, "/kv/t", BOB), 200);
    // Neither another stream nor the state of the node.
    assert_status(&get_with(&http, "/kv/u", BOB), 403);
    // Nor does it write.
    for method in ["PUT", "PATCH", "DELETE"] {
        assert_status(&send_with(&http, method, "/kv/t/a", "", b"3"), 401);
        let denied = send_with(&http, method, "/kv/t/a", BOB, b"3");
        assert_status(&denied, 403);
        assert!(denied.contains("Write on the stream"), "{denied}");
    }
    assert!(get_with(&http, "/kv/t/a", BOB).ends_with("\r\n\r\n1"));
    assert_status(&get_with(&http, "/metrics", BOB), 403);

    let password = dir.path().join("bob");
    std::fs::write(&password, "another\n").unwrap();
    let login = [
        "--user",
        "bob",
        "--password-file",
        password.to_str().unwrap(),
    ];
    let as_bob = |args: &[&str]| server.run(&[args, &login[..]].concat());
    assert_eq!(as_bob(&["kv", "get", "t", "a"]).assert_done().stdout, b"1");
    as_bob(&["kv", "put", "t", "a", "2"]).assert_fails(1, &["acl add allow"]);
    as_bob(&["kv", "delete", "t", "a"]).assert_fails(1, &["acl add allow"]);
    as_bob(&["kv", "scan", "u"]).assert_fails(1, &["acl add allow"]);

    // The right to write is enough to write, and not to read.
    let write = ["acl", "add", "allow", "--principal", "User:bob"];
    let on_u = [
        "--operation",
        "write",
        "--resource",
        "stream",
        "--name",
        "u",
    ];
    as_admin(&[&write[..], &on_u].concat());
    assert_status(&send_with(&http, "PUT", "/kv/u/a", BOB, b"3"), 204);
    assert_status(&send_with(&http, "DELETE", "/kv/u/b", BOB, b""), 204);
    assert_status(&get_with(&http, "/kv/u/a", BOB), 403);
}

#[test]
fn a_server_describes_the_compaction_of_a_keyed_stream() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    let done = |args: &[&str]| server.run(args).assert_done();
    done(&["stream", "create", "t", "--keyed"]);
    done(&["kv", "put", "t", "ann", "1"]);
    let line = "partition 0 is compacted up to 0; 0 B of 0 B are dirty";
    wait_until("the server has looked at the stream", || {
        done(&["stream", "describe", "t"]).text().contains(line)
    });
    let described = done(&["stream", "describe", "t", "--json"]).json();
    let compaction = &described["lanes"][0]["compaction"];
    assert_eq!(compaction["compacted_at"], Value::Null, "{described}");
    assert_eq!(compaction["passes"], 0);
}

/// As those of producers that hash them in their own way, which librdkafka does by default.
#[test]
fn keys_in_foreign_partitions_are_reported() {
    let dir = tempdir().unwrap();
    let (server, http) = start(dir.path(), &[]);
    let done = |args: &[&str]| server.run(args).assert_done();
    done(&["stream", "create", "t"]);
    let lines: String = (0..20).map(|key| format!("key-{key}:{key}\n")).collect();
    let produce = ["produce", "t", "--key-separator", ":"];
    let produced = server.run_with_input(&produce, lines.into_bytes());
    produced.assert_done();
    done(&["stream", "alter", "t", "--lanes", "3"]);
    done(&["config", "set", "stream/t", "cleanup.policy=compact"]);

    let keys = || (0..20).map(|key| format!("key-{key}"));
    let found = |stream: &str, key: &str| server.run(&["kv", "get", stream, key]);
    // The first look-up in each partition counts its records.
    let lost: Vec<String> = keys()
        .filter(|key| !found("t", key).status.success())
        .collect();
    assert!(!lost.is_empty() && lost.len() < 20, "{lost:?}");
    let told = format!(
        "{} of its records are in partitions that do not own their keys",
        lost.len()
    );
    found("t", &lost[0]).assert_fails(1, &[&told, "partitioner=murmur2_random"]);
    let answer = body(&get(&http, &format!("/kv/t/{}", lost[0])), 404, "");
    assert!(answer.contains(&told), "{answer}");

    done(&["stream", "create", "u", "--keyed", "--lanes", "3"]);
    done(&["stream", "copy", "t", "u"]);
    for key in keys() {
        found("u", &key).assert_done();
    }
    // A look-up of an absent key alone prints no such warning.
    let absent = found("u", "none");
    assert!(!absent.stderr.contains("partitions"), "{}", absent.stderr);
    let events = server.stop().stderr;
    let warned = events.matches("another partition owns the keys of these records");
    assert_eq!(warned.count(), 1, "{events}");
}
