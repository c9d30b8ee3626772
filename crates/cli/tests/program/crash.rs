//! kill -9 of the program under load.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::{Server, finish, run, send_signal, spawn, start, wait_until};

/// The head of a group's file.
const HEAD_BYTES: u64 = 4096;

const KILLS: u64 = 50;

/// Lines that are written at once.
const BURST_LINES: u64 = 500;

/// Sends the same lines in every run: quickly up to the stored ones, then in bursts, until the reader has closed the
/// pipe.
fn feed(mut stdin: ChildStdin, stored: u64) {
    let mut number = 0;
    loop {
        let burst: String = (number..number + BURST_LINES).map(line).collect();
        if stdin.write_all(burst.as_bytes()).is_err() {
            return;
        }
        number += BURST_LINES;
        if number > stored {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

fn line(number: u64) -> String {
    format!("{number} {}\n", "x".repeat((number % 97) as usize))
}

/// Checks that the stream holds the first lines, each once, and in order; returns how many.
fn check_stored(data: &Path, from: u64) -> u64 {
    let stored = run(data, &["consume", "s", "--from", &from.to_string()])
        .assert_done()
        .text();
    let mut number = from;
    for stored in stored.split_inclusive('\n') {
        assert_eq!(stored, line(number));
        number += 1;
    }
    number
}

#[test]
fn acknowledged_records_survive_fifty_kills_once_and_in_order() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["stream", "create", "s"]).assert_done();
    let (mut stored, mut progressed) = (0, 0);
    for kill in 0..KILLS {
        let mut child = spawn(dir.path(), &["produce", "s", "--producer", "1", "--acks"]);
        let stdin = child.stdin.take().unwrap();
        let feeder = thread::spawn(move || feed(stdin, stored));
        let acks = BufReader::new(child.stdout.take().unwrap());
        let acknowledged = Arc::new(AtomicU64::new(0));
        let heard = Arc::clone(&acknowledged);
        let listener = thread::spawn(move || {
            // The last line may be cut off by the kill.
            for ack in acks.split(b'\n').map_while(Result::ok) {
                if let Ok(ack) = std::str::from_utf8(&ack).unwrap_or_default().parse() {
                    heard.store(ack, Ordering::Relaxed);
                }
            }
        });
        // The load has begun when something new is acknowledged; then at any moment.
        let started_at = Instant::now();
        while acknowledged.load(Ordering::Relaxed) <= stored
            && started_at.elapsed() < Duration::from_secs(10)
        {
            thread::sleep(Duration::from_micros(200));
        }
        thread::sleep(Duration::from_micros(kill * 733 % 20_000));
        send_signal(&child, Signal::KILL);
        assert_eq!(child.wait().unwrap().code(), None);
        listener.join().unwrap();
        feeder.join().unwrap();
        let acknowledged = acknowledged.load(Ordering::Relaxed);
        let now = check_stored(dir.path(), stored);
        assert!(
            now >= acknowledged,
            "{acknowledged} lines were acknowledged, {now} are stored"
        );
        progressed += u64::from(now > stored);
        stored = now;
    }
    assert_eq!(progressed, KILLS);
    assert_eq!(check_stored(dir.path(), 0), stored);
}

#[test]
fn a_killed_server_keeps_all_acknowledged_records_of_a_written_stream() {
    const KILLS: u64 = 10;
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    run(&data, &["stream", "create", "s", "--durability", "written"]).assert_done();
    let mut stored = 0;
    for kill in 0..KILLS {
        let server = Server::start(&data, &[]);
        let mut command = server.command(&["produce", "s", "--acks"]);
        let mut producer = start(command.stdin(Stdio::piped()));
        let mut stdin = producer.stdin.take().unwrap();
        let feeder = thread::spawn(move || {
            let mut number = stored;
            while stdin.write_all(line(number).as_bytes()).is_ok() {
                number += 1;
            }
        });
        // One number for each block of lines that the server has answered for: kill it right behind one of them.
        let mut acks = BufReader::new(producer.stdout.take().unwrap()).lines();
        let last = acks.by_ref().take(1 + kill as usize).last();
        let mut server = server.into_child();
        server.kill().unwrap();
        server.wait().unwrap();
        let acknowledged: u64 = last.unwrap().unwrap().parse().unwrap();
        producer.kill().unwrap();
        producer.wait().unwrap();
        feeder.join().unwrap();
        let now = check_stored(&data, stored);
        assert!(
            now >= stored + acknowledged,
            "{acknowledged} lines were acknowledged, {} are stored",
            now - stored
        );
        stored = now;
    }
    assert_eq!(check_stored(&data, 0), stored);
}

/// Returns the bytes in the group files of all streams but the node's own, whose ids are below 16.
fn stored_bytes(data: &Path) -> u64 {
    let streams = fs::read_dir(data.join("streams")).into_iter().flatten();
    let streams = streams.flatten().map(|stream| stream.path());
    let is_users = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.parse::<u64>().is_ok_and(|id| id >= 16))
    };
    let files = streams.filter(is_users).flat_map(fs::read_dir).flatten();
    let logs = files
        .flatten()
        .filter(|file| file.path().extension() == Some("log".as_ref()));
    logs.filter_map(|file| file.metadata().ok()?.len().checked_sub(HEAD_BYTES))
        .sum()
}

#[test]
fn a_quickstart_counts_the_records_of_a_killed_one() {
    let dir = tempdir().unwrap();
    let args = [
        "quickstart",
        "--json",
        "--rate",
        "max",
        "--http",
        "127.0.0.1:0",
    ];
    for _ in 0..3 {
        let before = stored_bytes(dir.path());
        let mut child = spawn(dir.path(), &args);
        wait_until("events are stored", || stored_bytes(dir.path()) > before);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let report = run(dir.path(), &[&args[..], &["--for", "100ms"]].concat())
        .assert_done()
        .json();
    assert_eq!(report["events"], report["durable_records"]);
    assert!(report["durable_records"].as_u64() > report["ingested_records"].as_u64());
    let counted = report["views"].as_u64().unwrap() + report["clicks"].as_u64().unwrap();
    assert_eq!(report["counted"], counted);
}

#[test]
fn sigterm_in_the_middle_of_a_file_keeps_the_lines_read_so_far() {
    let dir = tempdir().unwrap();
    let mut child = spawn(dir.path(), &["quickstart", "--json", "--file", "-"]);
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"an apple\nand a pe").unwrap();
    let lines = dir.path().join("streams/16");
    wait_until("the line is stored", || {
        let files = fs::read_dir(&lines).into_iter().flatten().flatten();
        files
            .filter(|file| file.path().extension() == Some("log".as_ref()))
            .any(|file| file.metadata().is_ok_and(|file| file.len() > HEAD_BYTES))
    });
    send_signal(&child, Signal::TERM);
    let report = finish(child).assert_done().json();
    assert_eq!(report["durable_records"], 1);
    assert_eq!(report["words"], 2);
    assert_eq!(
        run(dir.path(), &["consume", "lines"]).assert_done().text(),
        "an apple\n"
    );
}
