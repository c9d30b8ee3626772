//! The message names the wrong input, and the program does not panic.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::{TempDir, tempdir};

use crate::support::{finish, program, run, run_with_input, send_signal, spawn};

#[test]
fn wrong_usage_exits_with_status_2() {
    let dir = tempdir().unwrap();
    for (args, part) in [
        (&["quickstrat"][..], "quickstart"),
        (&["quickstart", "--fiel", "x"], "--file"),
        (&["quickstart", "--rate", "0"], "a number from 1, or max"),
        (&["quickstart", "--for", "banana"], "for instance 20s"),
        (&["quickstart", "--prefix", "x"], "--file"),
        (&["quickstart", "--http", "8080"], "127.0.0.1:8080"),
        (&["quickstart", "--workers", "0"], "from 1 to 1024"),
        (
            &["quickstart", "--super-users", "User:a"],
            "does not use --super-users",
        ),
        (&["consume", "s", "--from", "yesterday"], "earliest, latest"),
        (&["consume", "s", "--partition", "-1"], "a number from 0"),
        (&["consume", "s", "--where", "value is red"], "column 7"),
        (&["object", "get", "o", "--range", "9-1"], "--range"),
        (&["object", "put", "a b"], "ASCII letters"),
        (&["stream", "create", "."], "folders"),
        (&["stream", "create", "__groups"], "node's own streams"),
        (&["stream", "create", "s", "--streamlets", "0"], "from 1 to"),
        (
            &["stream", "create", "s", "--lanes", "0"],
            "from 1 to 65536",
        ),
        (
            &["stream", "create", "s", "--lanes", "-1"],
            "'-1' for '--lanes",
        ),
        (&["stream", "create", "s", "--retain-for", "x"], "or none"),
        (&["stream", "list", "--pool", "much"], "256MiB"),
        (&["stream", "list", "--pool", "999TiB"], "memory, which is"),
        (&["stream", "alter", "s"], "--retain-for"),
        (&["stream", "create", "s", "--retain-for", "0s"], "no time"),
        (&["stream", "alter", "s", "--retain-bytes", "0"], "nothing"),
        (&["consume", "s", "--group", ""], "not be empty"),
        (&["consume", "s", "--group", "g"], "--server"),
        (&["group", "delete", ""], "not be empty"),
        (&["group", "list"], "--server"),
        (&["acl", "list"], "--server"),
        (&["acl", "list", "--principal", "bob"], "User:alice"),
        (&["acl", "list", "--host", "here"], "192.0.2.7"),
        (&["bench", "consume", "s"], "--server"),
    ] {
        let data = dir.path().join("data");
        run(&data, args).assert_fails(2, &[part]);
        assert!(!data.exists(), "{args:?}");
    }
    for (args, part) in [
        (&["repair"][..], "--data"),
        (&["repair", "--server", "localhost:1"], "--data"),
        (&["completion", "bash", "--json"], "leave out --json"),
    ] {
        let child = program().args(args).spawn().unwrap();
        let refused = finish(child);
        refused.assert_fails(2, &[part]);
        assert_eq!(refused.text(), "", "{args:?}");
    }
}

#[test]
fn values_outside_the_bounds_of_the_log_are_wrong_usage() {
    let dir = tempdir().unwrap();
    let wide = ["--lanes", "65536", "--streamlets", "2"];
    let create = [&["stream", "create", "s"], &wide[..]].concat();
    run(dir.path(), &create).assert_fails(2, &["lanes", "65536"]);
    for (flag, value) in [("--pool", "0"), ("--journal", "1KiB")] {
        run(dir.path(), &["stream", "list", flag, value]).assert_fails(2, &[&flag[2..]]);
    }
}

#[test]
fn a_missing_certificate_is_reported_once() {
    let dir = tempdir().unwrap();
    let start = ["start", "--listen", "127.0.0.1:0"];
    let tls = ["--tls-certificate", "no-such-file", "--tls-key", "key"];
    let failed = run(dir.path(), &[&start[..], &tls].concat());
    failed.assert_fails(1, &["cannot read no-such-file"]);
    let causes = failed.stderr.matches("No such file").count();
    assert_eq!(causes, 1, "{}", failed.stderr);
}

#[test]
fn a_missing_token_file_is_not_reported_as_a_server_out_of_reach() {
    let mut command = program();
    command.args(["stream", "list", "--token-file", "no-such-file"]);
    let failed = finish(command.spawn().unwrap());
    failed.assert_fails(1, &["cannot read no-such-file"]);
    assert!(!failed.stderr.contains("reach"), "{}", failed.stderr);
}

/// An attempt to start this many threads aborts the process, and no handler can catch that.
#[test]
fn a_hundred_thousand_workers_are_refused_from_every_source_of_settings() {
    let dir = tempdir().unwrap();
    let config = dir.path().join("millstream.toml");
    fs::write(&config, "workers = 100000\n").unwrap();
    for set in [
        &["--workers", "100000"][..],
        &["--config", config.to_str().unwrap()],
    ] {
        let args = [&["quickstart", "--file", "/dev/null"], set].concat();
        run(dir.path(), &args).assert_fails(2, &["workers", "from 1 to 1024"]);
    }
    let mut command = program();
    command
        .arg("quickstart")
        .env("MILLSTREAM_WORKERS", "100000");
    finish(command.spawn().unwrap()).assert_fails(2, &["workers", "from 1 to 1024"]);
}

#[test]
fn unknown_settings_are_named_with_the_nearest() {
    let dir = tempdir().unwrap();
    let config = dir.path().join("millstream.toml");
    fs::write(&config, "jurnal = \"1GiB\"\n").unwrap();
    let config = config.to_str().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "list", "--config", config])
        .assert_fails(2, &["jurnal", config, "did you mean journal?"]);
    run(&data, &["stream", "list", "--config", "no-such-file"]).assert_fails(2, &["no-such-file"]);
    let mut command = program();
    command
        .args(["stream", "list"])
        .env("MILLSTREAM_POLL", "1MiB");
    finish(command.spawn().unwrap()).assert_fails(2, &["MILLSTREAM_POLL", "MILLSTREAM_POOL"]);
    run(&data, &["stream", "create", "s", "--pool", "1KiB"]).assert_fails(2, &["pool", "1 MiB"]);
}

const LINES: u32 = 20_000;

/// A data directory with a stream of some size, written cleanly.
fn stored() -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "create", "s"]).assert_done();
    let input: String = (0..LINES)
        .map(|number| format!("line {number}\n"))
        .collect();
    run_with_input(&data, &["produce", "s"], input.into_bytes()).assert_done();
    (dir, data)
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let (_dir, data) = stored();
    let mut child = spawn(&data, &["produce", "s", "--acks"]);
    child.stdin.as_mut().unwrap().write_all(b"line\n").unwrap();
    // It has the directory when it acknowledges the line.
    let mut ack = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut ack).unwrap();
    assert_eq!(&ack, b"1\n");
    run(&data, &["stream", "list"]).assert_fails(1, &[data.to_str().unwrap(), "in use"]);
    send_signal(&child, Signal::TERM);
    finish(child).assert_done();
    run(&data, &["stream", "list"]).assert_done();
}

#[test]
fn unusable_directories_are_named() {
    let dir = tempdir().unwrap();
    let missing = dir.path().join("missing");
    run(&missing, &["stream", "list"]).assert_fails(1, &[missing.to_str().unwrap()]);
    assert!(!missing.exists());

    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for verb in [&["stream", "create", "s"][..], &["quickstart"]] {
        run(&file, verb).assert_fails(1, &[file.to_str().unwrap(), "no folder"]);
    }
    let nowhere = Path::new("/proc/no-such-folder");
    run(nowhere, &["quickstart", "--for", "1s"]).assert_fails(1, &["/proc/no-such-folder"]);

    let foreign = dir.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "Dear").unwrap();
    run(&foreign, &["stream", "create", "s"]).assert_fails(1, &["letter.txt"]);
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);

    let (_dir, newer) = stored();
    fs::write(
        newer.join("millstream.data"),
        "millstream data, format 99\n",
    )
    .unwrap();
    run(&newer, &["stream", "list"]).assert_fails(1, &[newer.to_str().unwrap(), "99", "newer"]);
}

/// All files of a directory, with their content.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), fs::read(&path).unwrap())),
        }
    }
    found
}

/// After any damage to a file, all records are unchanged, or an error names a file.
fn check_damaged(
    data: &Path,
    whole: &[(PathBuf, Vec<u8>)],
    path: &Path,
    damaged: &[u8],
    damage: &str,
) {
    fs::remove_dir_all(data).unwrap();
    for (path, content) in whole {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    fs::write(path, damaged).unwrap();
    let expected: String = (0..LINES)
        .map(|number| format!("line {number}\n"))
        .collect();
    let run = run(data, &["consume", "s"]);
    match run.status.code() {
        Some(0) => assert!(
            expected.as_bytes() == run.stdout,
            "{} {damage}: {} of {} bytes",
            path.display(),
            run.stdout.len(),
            expected.len()
        ),
        _ => run.assert_fails(1, &["error: ", data.to_str().unwrap()]),
    }
}

#[test]
fn flipped_bits_and_truncated_files_are_errors_that_name_the_file() {
    let (_dir, data) = stored();
    let whole = files(&data);
    for (path, content) in &whole {
        if content.is_empty() {
            continue;
        }
        for place in [0, content.len() / 3, content.len() - 1] {
            let mut damaged = content.clone();
            damaged[place] ^= 0x10;
            check_damaged(
                &data,
                &whole,
                path,
                &damaged,
                &format!("flipped at {place}"),
            );
        }
        check_damaged(
            &data,
            &whole,
            path,
            &content[..content.len() / 2],
            "truncated",
        );
    }
}

#[test]
fn files_that_cannot_be_read_as_text_are_named() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["quickstart", "--file", "no-such-file"]).assert_fails(1, &["no-such-file"]);
    let folder = dir.path().to_str().unwrap();
    run(&data, &["quickstart", "--file", folder]).assert_fails(1, &[folder, "folder"]);
    run(&data, &["stream", "create", "s"]).assert_done();
    run(&data, &["produce", "s", "--file", folder]).assert_fails(1, &[folder, "folder"]);
    run(&data, &["object", "put", "o", "no-such-file"]).assert_fails(1, &["no-such-file"]);
    run(&data, &["object", "put", "o", folder]).assert_fails(1, &[folder, "folder"]);
    let empty = run(&data, &["quickstart", "--json", "--file", "/dev/null"])
        .assert_done()
        .json();
    assert_eq!(
        (&empty["words"], &empty["top"]),
        (&0.into(), &serde_json::json!([]))
    );
}

#[test]
fn a_line_of_100_mb_is_refused_and_earlier_lines_are_stored() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let path = dir.path().join("long.txt");
    let mut text = b"first\nsecond\n".to_vec();
    text.resize(100_000_000, b'x');
    fs::write(&path, &text).unwrap();
    let name = path.to_str().unwrap();
    run(&data, &["quickstart", "--json", "--file", name])
        .assert_fails(1, &[name, "line 3", "8 MiB"]);
    assert_eq!(
        run(&data, &["consume", "lines"]).assert_done().text(),
        "first\nsecond\n"
    );
}

#[test]
fn the_longest_line_is_as_long_as_the_message_says() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "create", "s"]).assert_done();
    let longest = "x".repeat((8 << 20) - 74);
    let produce = |line: String| run_with_input(&data, &["produce", "s"], line.into_bytes());
    produce(format!("{longest}\n")).assert_done();
    produce(format!("{longest}x\n")).assert_fails(1, &["stdin", "line 1", "8 MiB", "74 bytes"]);
}

#[test]
fn unknown_streams_come_with_a_near_one() {
    let (_dir, data) = stored();
    run(&data, &["stream", "create", "lines"]).assert_done();
    run(&data, &["consume", "line"]).assert_fails(1, &["unknown stream line;", "mean lines?"]);
    run(&data, &["consume", "zzzzz"]).assert_fails(1, &["unknown stream zzzzz;", "stream list"]);
    run(&data, &["stream", "create", "lines"]).assert_fails(1, &["lines", "exists"]);
    run(&data, &["consume", "s", "--partition", "3"]).assert_fails(1, &["partition 3"]);
}

#[test]
fn records_that_are_not_events_become_dead_letters_and_are_reported() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["stream", "create", "ads"]).assert_done();
    run_with_input(dir.path(), &["produce", "ads"], b"buy!\nnow\n".to_vec()).assert_done();
    let quickstart = ["quickstart", "--for", "200ms", "--http", "127.0.0.1:0"];
    let text = run(dir.path(), &quickstart).assert_done().text();
    let told = "2 records of the stream were refused: see millstream flow dead-letters list ads";
    assert!(text.contains(told), "{text}");
    let json = [&quickstart[..], &["--json"]].concat();
    let report = run(dir.path(), &json).assert_done().json();
    assert_eq!(report["dead_letters"], 2);
    let stored = report["durable_records"].as_u64().unwrap();
    assert_eq!(report["events"], stored - 2);
    // The records themselves, and their metadata.
    let letters = ["consume", "ads.dead_letters", "--format", "json"];
    let letters = run(dir.path(), &letters).assert_done().text();
    assert_eq!(letters.lines().count(), 2, "{letters}");
    assert!(letters.contains("136 bytes"), "{letters}");
}

#[test]
fn late_events_become_dead_letters_and_are_reported() {
    let dir = tempdir().unwrap();
    let quickstart = ["quickstart", "--for", "300ms", "--http", "127.0.0.1:0"];
    // Long enough to release a window beside other programs.
    run(
        dir.path(),
        &["quickstart", "--for", "2s", "--http", "127.0.0.1:0"],
    )
    .assert_done();
    // A view in the year 1970. The next run goes on behind the windows of the first one.
    let event = [&[0; 136][..], b"\n"].concat();
    run_with_input(dir.path(), &["produce", "ads"], event).assert_done();
    let text = run(dir.path(), &quickstart).assert_done().text();
    let told = "1 record came too late for a window: see millstream flow dead-letters list ads";
    assert!(text.contains(told), "{text}");
    let json = [&quickstart[..], &["--json"]].concat();
    let report = run(dir.path(), &json).assert_done().json();
    let late = ["late", "dead_letters", "late_dead_letters"].map(|field| report[field].clone());
    assert_eq!(late, [1, 1, 1]);
    let list = ["flow", "dead-letters", "list", "ads"];
    let list = run(dir.path(), &list).assert_done().text();
    assert!(list.contains("late: event time 0 ms, watermark "), "{list}");
}

#[test]
fn a_busy_address_is_named() {
    let dir = tempdir().unwrap();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    run(
        dir.path(),
        &["quickstart", "--for", "1s", "--http", &address],
    )
    .assert_fails(1, &[&address, "--http"]);
}
