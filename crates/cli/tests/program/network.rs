//! The commands that ask a server.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{Server, finish, program, run, send_signal, start, wait_until};

/// A server with an empty stream `s`.
fn server(dir: &tempfile::TempDir, streamlets: &str) -> Server {
    let server = Server::start(dir.path(), &[]);
    let create = ["stream", "create", "s", "--streamlets", streamlets];
    server.run(&create).assert_done();
    server
}

fn numbers(count: usize) -> Vec<u8> {
    let lines = (0..count).map(|number| format!("{number}\n"));
    lines.collect::<String>().into_bytes()
}

#[test]
fn streams_are_created_listed_described_altered_and_deleted() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "2");
    let views = ["stream", "create", "views", "--durability", "async"];
    let views = [&views[..], &["--retain-for", "7days"]].concat();
    server.run(&views).assert_done();
    let list = server.run(&["stream", "list"]).assert_done().text();
    let cells: Vec<Vec<&str>> = list
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(cells[1], ["s", "2", "0", "0", "B", "sync"]);
    assert_eq!(cells[2], ["views", "1", "0", "0", "B", "async"]);
    let alter = [
        "stream",
        "alter",
        "s",
        "--lanes",
        "4",
        "--retain-bytes",
        "10GiB",
    ];
    server.run(&alter).assert_done();
    let alter = ["stream", "alter", "views", "--retain-for", "none"];
    server.run(&alter).assert_done();
    let info = server
        .run(&["stream", "describe", "s", "--json"])
        .assert_done()
        .json();
    assert_eq!(info["partitions"].as_array().unwrap().len(), 8);
    assert_eq!(info["lanes"], info["partitions"]);
    assert_eq!(info["config"]["retain_bytes"], 10_u64 << 30);
    let info = server
        .run(&["stream", "describe", "views", "--json"])
        .assert_done()
        .json();
    assert_eq!(info["config"]["retain_for_ms"], Value::Null);
    let twice = server.run(&["stream", "create", "s"]);
    twice.assert_fails(1, &["error: stream s exists"]);
    server.run(&["stream", "delete", "s"]).assert_done();
    server
        .run(&["stream", "describe", "view"])
        .assert_fails(1, &["did you mean views?"]);
    server.stop();
}

#[test]
fn consumers_get_the_produced_records() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    let report = server.run_with_input(&["produce", "s", "--json"], numbers(10_000));
    assert_eq!(
        report.assert_done().json(),
        json!({ "appended_records": 10_000, "known_records": 0, "durable_records": 10_000 })
    );
    assert!(server.run(&["consume", "s"]).assert_done().stdout == numbers(10_000));
    let text = |args: &[&str]| {
        server
            .run(&[&["consume", "s"], args].concat())
            .assert_done()
            .text()
    };
    assert_eq!(text(&["--limit", "2"]), "0\n1\n");
    assert_eq!(text(&["--from", "9998"]), "9998\n9999\n");
    assert_eq!(text(&["--from", "latest"]), "");
    assert_eq!(text(&["--from", "10000"]), "");
    let behind = server.run(&["consume", "s", "--from", "10001"]);
    behind.assert_fails(1, &["offset 10001", "10000"]);
    let file = dir.path().join("lines");
    fs::write(&file, "a=b=c\nno key\n").unwrap();
    let produce = ["produce", "s", "--key-separator", "=", "--file"];
    let produce = [&produce[..], &[file.to_str().unwrap()]].concat();
    server.run(&produce).assert_done();
    let document = server.run(&["consume", "s", "--from", "10000", "--json"]);
    let document = document.assert_done().json();
    assert_eq!(document["records"][0]["key"], "a");
    assert_eq!(document["records"][0]["value"], "b=c");
    assert_eq!(document["records"][1]["key"], Value::Null);
    server
        .run(&["consume", "s", "--partition", "1"])
        .assert_fails(1, &["1 partition,"]);
    server
        .run(&["consume", "u"])
        .assert_fails(1, &["unknown stream u"]);
    server
        .run(&["produce", "u"])
        .assert_fails(1, &["unknown stream u"]);
    server
        .run(&["produce", "s", "--producer", "1"])
        .assert_fails(2, &["--data"]);
    server.stop();
}

#[test]
fn pushed_and_pulled_records_are_the_same_with_a_filter_too() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    server
        .run_with_input(&["produce", "s"], numbers(10_000))
        .assert_done();
    let consume = |args: &[&str]| {
        let consumed = server.run(&[&["consume", "s", "--format", "json"], args].concat());
        consumed.assert_done().text()
    };
    let all = consume(&["--delivery", "push"]);
    assert_eq!(all.lines().count(), 10_000);
    assert_eq!(consume(&["--delivery", "pull"]), all);
    let filter = ["--where", "value starts with \"99\" and time > 1000"];
    let wanted = consume(&filter);
    assert_eq!(wanted.lines().count(), 111);
    assert!(wanted.lines().all(|line| all.contains(line)));
    assert_eq!(
        consume(&[&filter[..], &["--delivery", "pull"]].concat()),
        wanted
    );
    let started_at = Instant::now();
    assert_eq!(consume(&["--where", "key = \"none\""]), "");
    assert!(started_at.elapsed() < Duration::from_secs(10));
    server.stop();
}

#[test]
fn a_line_that_fits_no_chunk_is_refused_with_its_number() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    let mut input = b"first\n".to_vec();
    input.resize(input.len() + (8 << 20), b'x');
    let run = server.run_with_input(&["produce", "s"], input);
    run.assert_fails(1, &["line 2 is too long", "8 MiB"]);
    assert_eq!(
        server.run(&["consume", "s"]).assert_done().text(),
        "first\n"
    );
    server.stop();
}

#[test]
fn acknowledged_lines_are_counted_as_they_come() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    let mut command = server.command(&["produce", "s", "--acks"]);
    let mut child = start(command.stdin(Stdio::piped()));
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for expected in ["1\n", "3\n"] {
        let lines = if expected == "1\n" { "a\n" } else { "b\nc\n" };
        stdin.write_all(lines.as_bytes()).unwrap();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, expected);
    }
    drop(stdin);
    child.stdout = Some(stdout.into_inner());
    finish(child).assert_done();
    server.stop();
}

#[test]
fn a_follower_reads_new_records_until_it_is_stopped() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "2");
    let mut command = server.command(&["consume", "s", "--follow"]);
    let mut child = start(&mut command);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for number in 0..3 {
        let input = format!("{number}\n");
        server
            .run_with_input(&["produce", "s"], input.clone().into_bytes())
            .assert_done();
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, input);
    }
    child.stdout = Some(stdout.into_inner());
    send_signal(&child, Signal::INT);
    finish(child).assert_done();
    server.stop();
}

/// A follower read on in the first partition alone, and a member of a group ended with
/// "partition 1 of s: there are only 1".
#[test]
fn followers_and_members_read_partitions_that_are_added() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    let produce = |numbers: std::ops::Range<u32>| {
        let lines: String = numbers
            .map(|number| format!("key {number}={number}\n"))
            .collect();
        let args = ["produce", "s", "--key-separator", "="];
        server
            .run_with_input(&args, lines.into_bytes())
            .assert_done();
    };
    produce(0..10);
    let follow = |args: &[&str]| {
        let mut command = server.command(&[&["consume", "s", "--follow"], args].concat());
        let mut child = start(&mut command);
        let stdout = child.stdout.take().unwrap();
        (child, BufReader::new(stdout))
    };
    let read = |stdout: &mut BufReader<ChildStdout>, due: std::ops::Range<u32>| {
        let mut numbers: Vec<u32> = due
            .clone()
            .map(|_| {
                let mut line = String::new();
                stdout.read_line(&mut line).unwrap();
                line.trim_end().parse().expect("a number")
            })
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, Vec::from_iter(due));
    };
    let mut consumers = [
        follow(&[]),
        follow(&["--delivery", "pull"]),
        follow(&["--group", "g"]),
        follow(&["--group", "h", "--delivery", "pull"]),
    ];
    for (_, stdout) in &mut consumers {
        read(stdout, 0..10);
    }
    for (grow, numbers) in [("--lanes", 10..60), ("--streamlets", 60..110)] {
        server
            .run(&["stream", "alter", "s", grow, "4"])
            .assert_done();
        produce(numbers.clone());
        for (_, stdout) in &mut consumers {
            read(stdout, numbers.clone());
        }
    }
    for (mut child, stdout) in consumers {
        child.stdout = Some(stdout.into_inner());
        send_signal(&child, Signal::INT);
        finish(child).assert_done();
    }
    let group = ["group", "describe", "g", "--json"];
    let positions = server.run(&group).assert_done().json()["positions"].clone();
    let lags = positions
        .as_array()
        .unwrap()
        .iter()
        .map(|place| &place["lag"]);
    assert!(
        lags.clone().count() > 4 && lags.clone().all(|lag| *lag == 0),
        "{positions}"
    );
    server.stop();
}

#[test]
fn followers_members_and_producers_end_soon_when_the_stream_is_deleted() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    server
        .run_with_input(&["produce", "s"], numbers(1))
        .assert_done();
    let follow = |args: &[&str]| {
        let mut command = server.command(&[&["consume", "s", "--follow"], args].concat());
        let mut child = start(&mut command);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut String::new()).unwrap();
        child.stdout = Some(stdout.into_inner());
        child
    };
    let mut command = server.command(&["produce", "s", "--acks"]);
    let mut producer = start(command.stdin(Stdio::piped()));
    let mut stdin = producer.stdin.take().unwrap();
    let mut acks = BufReader::new(producer.stdout.take().unwrap());
    stdin.write_all(b"line\n").unwrap();
    acks.read_line(&mut String::new()).unwrap();
    producer.stdout = Some(acks.into_inner());
    let consumers = [follow(&[]), follow(&["--group", "g"])];
    server.run(&["stream", "delete", "s"]).assert_done();
    let started_at = Instant::now();
    stdin.write_all(b"lost\n").unwrap();
    let [reader, member] = consumers.map(finish);
    reader.assert_fails(1, &["topic s", "no such stream"]);
    member.assert_fails(1, &["unknown stream s"]);
    let producer = finish(producer);
    producer.assert_fails(1, &["topic s", "no such stream"]);
    assert_eq!(
        producer.text(),
        "",
        "a line that is lost is not acknowledged"
    );
    // Less than the time for which a server that is away is waited for.
    assert!(started_at.elapsed() < Duration::from_secs(25));
    server.stop();
}

#[test]
fn groups_resume_at_their_offsets_and_are_described_reset_and_deleted() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    server
        .run_with_input(&["produce", "s"], numbers(10))
        .assert_done();
    let consume = |args: &[&str]| {
        let all = [&["consume", "s", "--group", "g"], args].concat();
        server.run(&all).assert_done().text()
    };
    assert_eq!(consume(&["--limit", "3"]), "0\n1\n2\n");
    assert_eq!(consume(&["--limit", "1"]), "3\n");
    let description = server
        .run(&["group", "describe", "g", "--json"])
        .assert_done()
        .json();
    assert_eq!(description["state"], "Empty");
    let expected = json!([{
        "stream": "s", "partition": 0, "offset": 4, "end": 10, "lag": 6, "member": null
    }]);
    assert_eq!(description["positions"], expected);
    assert_eq!(consume(&[]), "4\n5\n6\n7\n8\n9\n");
    let list = server.run(&["group", "list"]).assert_done().text();
    assert!(
        list.contains("g      consumer  Empty        0    0"),
        "{list}"
    );
    server
        .run(&["group", "reset", "g", "s", "--to", "8"])
        .assert_done();
    assert_eq!(consume(&[]), "8\n9\n");
    // Beyond the end everything would be read again.
    let beyond = server.run(&["group", "reset", "g", "s", "--to", "11"]);
    beyond.assert_fails(1, &["partition 0 of stream s", "offsets 0 to 10", "11"]);
    assert_eq!(consume(&[]), "");
    server
        .run(&["group", "reset", "g", "s", "--to", "earliest"])
        .assert_done();
    assert_eq!(consume(&["--limit", "1"]), "0\n");
    server.run(&["group", "delete", "g"]).assert_done();
    server
        .run(&["group", "describe", "g"])
        .assert_fails(1, &["group g"]);
    for verb in ["delete", "describe"] {
        let run = server.run(&["group", verb, "g"]);
        run.assert_fails(1, &["group g", "no such group"]);
    }
    let from = server.run(&["consume", "s", "--group", "g", "--from", "7"]);
    from.assert_fails(2, &["earliest or latest"]);
    server.stop();
}

#[test]
fn a_group_is_reset_in_partitions_that_were_added() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    let produce = |count| {
        let run = server.run_with_input(&["produce", "s"], numbers(count));
        run.assert_done();
    };
    produce(3);
    let consume = || {
        let run = server.run(&["consume", "s", "--group", "g"]).assert_done();
        run.text().lines().count()
    };
    assert_eq!(consume(), 3);
    let alter = ["stream", "alter", "s", "--streamlets", "2", "--lanes", "2"];
    server.run(&alter).assert_done();
    produce(1000);
    let describe = ["stream", "describe", "s", "--json"];
    let info = server.run(&describe).assert_done().json();
    let added = |partition: usize| info["lanes"][partition]["durable"].as_u64().unwrap();
    assert_eq!((0..4).map(added).sum::<u64>(), 1003);
    let reset = |to: &[&str]| {
        let all = [&["group", "reset", "g", "s", "--to"], to].concat();
        server.run(&all).assert_done().text()
    };
    // The reset skips the records that the group has not read yet.
    let text = reset(&["latest"]);
    assert!(text.contains("in 4 partitions of s"), "{text}");
    assert_eq!(consume(), 0);
    for partition in 1..4 {
        reset(&["0", "--partition", &partition.to_string()]);
        assert_eq!(consume() as u64, added(partition));
    }
    reset(&["earliest"]);
    assert_eq!(consume(), 1003);
    server.stop();
}

#[test]
fn a_group_with_members_is_not_reset() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "1");
    server
        .run_with_input(&["produce", "s"], numbers(1))
        .assert_done();
    let mut command = server.command(&["consume", "s", "--group", "g", "--follow"]);
    let mut child = start(&mut command);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut String::new()).unwrap();
    let reset = server.run(&["group", "reset", "g", "s", "--to", "earliest"]);
    reset.assert_fails(1, &["group g", "members"]);
    let text = server.run(&["group", "describe", "g"]).assert_done().text();
    assert!(text.contains("members  1"), "{text}");
    let delete = server.run(&["group", "delete", "g"]);
    delete.assert_fails(1, &["group g", "members"]);
    child.stdout = Some(stdout.into_inner());
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
    server
        .run(&["group", "reset", "g", "s", "--to", "earliest"])
        .assert_done();
    server.stop();
}

#[test]
fn objects_are_put_got_listed_and_deleted() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let content: Vec<u8> = (0..1_500_000_u32)
        .flat_map(|n| (n % 65_521).to_le_bytes())
        .collect();
    let file = dir.path().join("content");
    fs::write(&file, &content).unwrap();
    let info = server.run(&["object", "put", "a/b", file.to_str().unwrap(), "--json"]);
    assert_eq!(info.assert_done().json()["bytes"], content.len());
    server
        .run_with_input(&["object", "put", "c"], b"small".to_vec())
        .assert_done();
    server
        .run(&["object", "put", "c"])
        .assert_fails(1, &["object c", "exists"]);
    assert!(server.run(&["object", "get", "a/b"]).assert_done().stdout == content);
    let part = server.run(&["object", "get", "a/b", "--range", "1000000-1000099"]);
    assert!(part.assert_done().stdout == content[1_000_000..1_000_100]);
    let behind = server.run(&["object", "get", "c", "--range", "9-"]);
    behind.assert_fails(1, &["object c", "5 bytes"]);
    let document = server
        .run(&["object", "get", "c", "--json"])
        .assert_done()
        .json();
    assert_eq!(document["content_base64"], "c21hbGw=");
    let list = server
        .run(&["object", "list", "a/", "--json"])
        .assert_done()
        .json();
    assert_eq!(list["objects"].as_array().unwrap().len(), 1);
    server.run(&["object", "delete", "a/b"]).assert_done();
    server
        .run(&["object", "get", "a/b"])
        .assert_fails(1, &["unknown object a/b"]);
    server.stop();
}

/// A file that is cut off would pass for the object.
#[test]
fn an_interrupted_get_of_an_object_leaves_the_old_file() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let content = vec![7; 64 << 20];
    server
        .run_with_input(&["object", "put", "o"], content)
        .assert_done();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("file");
    fs::write(&file, "before").unwrap();
    let get = ["object", "get", "o", "--output", file.to_str().unwrap()];
    let child = start(&mut server.command(&get));
    let files = || fs::read_dir(&folder).unwrap().count();
    wait_until("it writes", || files() == 2);
    send_signal(&child, Signal::STOP);
    let mut served = server.into_child();
    served.kill().unwrap();
    served.wait().unwrap();
    send_signal(&child, Signal::CONT);
    finish(child).assert_fails(1, &["error: "]);
    assert_eq!(fs::read(&file).unwrap(), b"before");
    assert_eq!(files(), 1);
}

#[test]
fn objects_are_written_to_files_pipes_and_through_links() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let put = server.run_with_input(&["object", "put", "o"], b"content".to_vec());
    put.assert_done();
    let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    fs::write(&file, "before").unwrap();
    for output in [&link, &file] {
        let get = ["object", "get", "o", "-o", output.to_str().unwrap()];
        server.run(&get).assert_done();
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert!(link.is_symlink());
    }
    // A pipe, by a name that no other file can replace.
    let get = ["object", "get", "o", "-o", "/proc/self/fd/1"];
    let out = server.run(&get).assert_done().text();
    assert!(out.starts_with("content"), "{out}");
    let get = ["object", "get", "o", "-o", "/no/such/folder/file"];
    server.run(&get).assert_fails(1, &["/no/such/folder/file"]);
    server.stop();
}

#[test]
fn commands_without_a_reachable_server_name_the_remedy() {
    let nobody = ["--server", "127.0.0.1:1"];
    for verb in [
        &["stream", "list"][..],
        &["produce", "s"],
        &["consume", "s"],
        &["object", "list"],
        &["group", "list"],
        &["user", "list"],
        &["acl", "list"],
    ] {
        let mut command = program();
        command.args([verb, &nobody].concat());
        let run = finish(start(&mut command));
        run.assert_fails(1, &["127.0.0.1:1", "millstream start", "--server"]);
    }
    let mut command = program();
    command.args(["stream", "list", "--server", "nobody"]);
    finish(start(&mut command)).assert_fails(2, &["--server", "a host and a port"]);
}

#[test]
fn commands_that_need_a_server_are_refused_on_a_data_directory() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["stream", "create", "s"]).assert_done();
    let consume = run(dir.path(), &["consume", "s", "--group", "g"]);
    consume.assert_fails(2, &["groups", "--server"]);
    run(dir.path(), &["group", "list"]).assert_fails(2, &["groups", "--server"]);
    run(dir.path(), &["user", "list"]).assert_fails(2, &["--server"]);
    run(dir.path(), &["acl", "list"]).assert_fails(2, &["--server"]);
}

#[test]
fn figures_are_printed_in_the_format_of_kafka_tools() {
    let dir = tempdir().unwrap();
    let server = server(&dir, "2");
    let produce = [
        "bench",
        "produce",
        "s",
        "--records",
        "5000",
        "--record-bytes",
        "100",
    ];
    let line = server.run(&produce).assert_done().text();
    let parts = [
        "5000 records sent, ",
        " records/sec (",
        " MB/sec), ",
        " ms 99.9th.",
    ];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    let slow = [
        &produce[..],
        &["--rate", "20000", "--compression", "zstd", "--json"],
    ]
    .concat();
    let report = server.run(&slow).assert_done().json();
    assert_eq!(report["records"], 5000);
    assert!(report["seconds"].as_f64().unwrap() > 0.2, "{report}");
    assert!(
        report["latency_ms"]["p99"].as_f64().unwrap() > 0.0,
        "{report}"
    );
    let consume = ["bench", "consume", "s", "--records", "10000"];
    let table = server.run(&consume).assert_done().text();
    let cells: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split(", ").collect())
        .collect();
    assert_eq!((cells[0].len(), cells[1].len()), (10, 10), "{table}");
    assert_eq!(
        (cells[0][4], cells[1][4]),
        ("data.consumed.in.nMsg", "10000")
    );
    let latency = ["bench", "latency", "s", "--records", "20"];
    let text = server.run(&latency).assert_done().text();
    assert!(text.contains("Percentiles: 50th = "), "{text}");
    let zero = server.run(&["bench", "latency", "s", "--record-bytes", "0"]);
    zero.assert_fails(2, &["--record-bytes", "from 1"]);
    server.stop();
}
