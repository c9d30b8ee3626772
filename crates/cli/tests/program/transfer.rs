//! Records are removed, copied, exported and imported.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, symlink};

use rustix::fs::OFlags;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::signals::fifo;
use crate::support::{Server, finish, program, run, send_signal, start, wait_until};

/// Records with and without keys, values and headers, and with bytes that are not UTF-8.
const LINES: &str = r#"{"key":"a","value":"1","headers":[{"name":"h","value":"x"},{"name":"h","value":null}],"timestamp":1000,"partition":1}
{"key":null,"value":"2","timestamp":2000,"partition":0}
{"key":"b","value":null,"timestamp":3000,"partition":1}
{"key_base64":"/w==","value_base64":"/v8=","headers":[{"name_base64":"/w==","value_base64":"/w=="}],"timestamp":4000,"partition":1}
"#;

/// A server with the records of [`LINES`] in the stream `s` of two partitions.
fn server_with_records(data: &std::path::Path) -> Server {
    let server = Server::start(data, &[]);
    let create = ["stream", "create", "s", "--streamlets", "2"];
    server.run(&create).assert_done();
    let import = ["stream", "import", "s", "-", "--keep-partitions"];
    let done = server.run_with_input(&import, LINES.into()).assert_done();
    assert_eq!(done.text(), "appended 4 records to s\n");
    server
}

/// The records of a stream, partition by partition.
fn records(server: &Server, stream: &str) -> Vec<Value> {
    let lines = server.run(&["stream", "export", stream, "-"]).assert_done();
    let parse = |line| serde_json::from_str(line).unwrap();
    let mut records: Vec<Value> = lines.text().lines().map(parse).collect();
    records.sort_by_key(|it| (it["partition"].as_u64(), it["offset"].as_u64()));
    records
}

#[test]
fn exported_records_come_back_with_headers_nulls_bytes_and_times() {
    let dir = tempdir().unwrap();
    let server = server_with_records(&dir.path().join("data"));
    let found = records(&server, "s");
    assert_eq!(found.len(), 4);
    assert_eq!(found[0]["value"], "2");
    assert!(found[0]["key"].is_null() && found[2]["value"].is_null());
    assert_eq!(found[1]["headers"][0]["value"], "x");
    assert!(found[1]["headers"][1]["value"].is_null());
    assert_eq!(found[3]["key_base64"], "/w==");
    assert_eq!(found[3]["headers"][0]["name_base64"], "/w==");
    assert_eq!(found[3]["timestamp"], 4000);

    let file = dir.path().join("s.jsonl");
    let file = file.to_str().unwrap();
    let export = server.run(&["stream", "export", "s", file]).assert_done();
    assert_eq!(export.text(), format!("wrote 4 records of s to {file}\n"));
    server
        .run(&["stream", "create", "again", "--streamlets", "2"])
        .assert_done();
    server
        .run(&["stream", "import", "again", file, "--keep-partitions"])
        .assert_done();
    assert_eq!(records(&server, "again"), found);
    let recent = server.run(&[
        "stream",
        "export",
        "s",
        "-",
        "--from",
        "1970-01-01T00:00:03Z",
    ]);
    assert_eq!(recent.assert_done().text().lines().count(), 2);
    server.stop();
}

#[test]
fn an_export_writes_into_pipes_and_through_links() {
    let dir = tempdir().unwrap();
    let server = server_with_records(&dir.path().join("data"));
    let export = |path: &std::path::Path| {
        let export = ["stream", "export", "s", path.to_str().unwrap()];
        server.run(&export).assert_done();
    };
    let fifo = fifo(dir.path(), "fifo");
    // A blocking open would wait for the writer. The lines fit into the pipe.
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(&fifo)
        .unwrap();
    export(&fifo);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text.lines().count(), 4);
    assert!(fifo.metadata().unwrap().file_type().is_fifo());

    let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
    symlink(&file, &link).unwrap();
    fs::write(&file, "before").unwrap();
    export(&link);
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    assert!(link.is_symlink());
    server.stop();
}

#[test]
fn an_interrupted_export_leaves_the_old_file_and_no_temporary_one() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let lines = format!("{}\n", "x".repeat(1 << 20)).repeat(64);
    let produced = server.run_with_input(&["produce", "s"], lines.into_bytes());
    produced.assert_done();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let file = folder.join("s.jsonl");
    fs::write(&file, "before").unwrap();
    let export = ["stream", "export", "s", file.to_str().unwrap()];
    let child = start(&mut server.command(&export));
    let files = || fs::read_dir(&folder).unwrap().count();
    wait_until("it writes", || files() == 2);
    // It gets both signals when it continues.
    for signal in [Signal::STOP, Signal::INT, Signal::CONT] {
        send_signal(&child, signal);
    }
    finish(child).assert_fails(1, &["a signal stopped the command"]);
    assert_eq!(fs::read(&file).unwrap(), b"before");
    assert_eq!(files(), 1);
    server.stop();
}

#[test]
fn an_import_names_its_first_wrong_line_and_stores_the_lines_before_it() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    let import = |lines: &str| server.run_with_input(&["stream", "import", "s", "-"], lines.into());
    import("{\"value\":\"1\"}\nnonsense\n").assert_fails(1, &["line 2 of -", "JSON object"]);
    import("{\"value_base64\":\"%\"}\n").assert_fails(1, &["line 1 of -", "base64"]);
    import("{\"headers\":[{}]}\n").assert_fails(1, &["line 1 of -", "header has no name"]);
    assert_eq!(records(&server, "s").len(), 1);
    let missing = dir.path().join("missing");
    server
        .run(&["stream", "import", "s", missing.to_str().unwrap()])
        .assert_fails(1, &["cannot open"]);
    server.stop();
}

#[test]
fn an_import_names_the_first_line_that_the_server_refuses_and_stores_the_lines_before_it() {
    let dir = tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"), &[]);
    let create = ["stream", "create", "s", "--keyed"];
    server.run(&create).assert_done();
    // Each value fills a chunk, so that the server refuses the line without a key alone.
    let value = "x".repeat(20_000);
    let line = |key: &str| format!("{{\"key\":{key},\"value\":\"{value}\"}}\n");
    let keyed = |numbers: std::ops::Range<u32>| -> String {
        numbers
            .map(|number| line(&format!("\"{number}\"")))
            .collect()
    };
    let import = |lines: String| {
        let import = ["stream", "import", "s", "-"];
        server.run_with_input(&import, lines.into_bytes())
    };
    let refused = ["line 4 of - is the first that is not stored", "key"];
    let lines = keyed(0..3) + &line("null") + &keyed(3..500);
    import(lines).assert_fails(1, &refused);
    let stored = records(&server, "s");
    let keys: Vec<_> = stored.iter().take(3).map(|it| it["key"].clone()).collect();
    assert_eq!(keys, ["0", "1", "2"]);
    // The refused line comes before the wrong one.
    let lines = keyed(0..3) + &line("null") + "nonsense\n";
    import(lines).assert_fails(1, &refused);
    server.stop();
}

#[test]
fn streams_are_copied_within_a_server_and_to_another() {
    let dir = tempdir().unwrap();
    let server = server_with_records(&dir.path().join("data"));
    let found = records(&server, "s");
    let copy = ["stream", "copy", "s", "t", "--create", "--keep-partitions"];
    let done = server.run(&copy).assert_done();
    assert_eq!(done.text(), "copied 4 records of s to t\n");
    assert_eq!(records(&server, "t"), found);

    let other = Server::start(&dir.path().join("other"), &[]);
    let copy = ["stream", "copy", "s", "s", "--create", "--keep-partitions"];
    server
        .run(&[&copy[..], &["--to-server", other.address()]].concat())
        .assert_done();
    assert_eq!(records(&other, "s"), found);
    // To the server of a profile.
    let config = dir.path().join("config");
    let add = ["profile", "add", "other", "--server", other.address()];
    let add = program().args(add).env("XDG_CONFIG_HOME", &config).spawn();
    finish(add.unwrap()).assert_done();
    let copy = [
        "stream",
        "copy",
        "s",
        "u",
        "--create",
        "--to-profile",
        "other",
    ];
    let copy = server
        .command(&copy)
        .env("XDG_CONFIG_HOME", &config)
        .spawn();
    finish(copy.unwrap()).assert_done();
    assert_eq!(records(&other, "u").len(), 4);

    other.run(&["stream", "create", "narrow"]).assert_done();
    let narrow = ["stream", "copy", "s", "narrow", "--keep-partitions"];
    server
        .run(&[&narrow[..], &["--to-server", other.address()]].concat())
        .assert_fails(1, &["narrow has 1 partition, fewer than s with 2"]);
    let itself = server.run(&["stream", "copy", "s", "s"]);
    itself.assert_fails(2, &["--to-server"]);
    let missing = server.run(&["stream", "copy", "s", "missing"]);
    missing.assert_fails(1, &["unknown stream missing"]);
    other.stop();
    server.stop();
}

#[test]
fn purged_records_are_gone_for_all_readers() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let server = server_with_records(&data);
    let purge = |args: &[&str]| server.run(&[&["stream", "purge", "s"], args].concat());
    let by_time = purge(&["--before", "1970-01-01T00:00:03Z", "--json"]).assert_done();
    assert_eq!(by_time.json()["removed_records"], 2);
    assert_eq!(records(&server, "s").len(), 2);
    let by_offset = purge(&["--before", "2", "--partition", "1"]).assert_done();
    assert_eq!(by_offset.text(), "removed 1 record of s\n");
    assert_eq!(records(&server, "s").len(), 1);
    purge(&["--before", "2"]).assert_fails(1, &["--partition"]);
    purge(&["--before", "99", "--partition", "0"]).assert_fails(1, &["partition 0 of s"]);
    purge(&["--before", "1", "--partition", "7"]).assert_fails(1, &["no partition 7"]);
    purge(&[]).assert_fails(2, &["--before"]);
    purge(&["--before", "end"]).assert_done();
    assert_eq!(records(&server, "s").len(), 0);
    server.stop();
    run(&data, &["stream", "purge", "s", "--before", "end"]).assert_fails(2, &["--server"]);
}
