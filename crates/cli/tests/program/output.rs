//! A full stdout is an error that names it. A reader that closes stdout early is no error, and neither is a full
//! stderr.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;

use tempfile::tempdir;

use crate::support::{Run, Server, program, run, run_with_input, start};

const SOME_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Runs the program with a stdout that is always full.
fn run_on_full_stdout(data: &Path, args: &[&str], input: &[u8]) -> Run {
    let mut command = program();
    command
        .args(args)
        .arg("--data")
        .arg(data)
        .stdin(Stdio::piped())
        .stdout(File::create("/dev/full").unwrap());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    Run::from(output)
}

#[test]
fn a_full_stdout_is_an_error_that_names_it() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s"]).assert_done();
    run_with_input(data, &["produce", "s"], b"line\n".to_vec()).assert_done();
    run_with_input(data, &["object", "put", "o"], b"content".to_vec()).assert_done();
    for args in [
        &["consume", "s"][..],
        &["consume", "s", "--json"],
        &["stream", "list"],
        &["stream", "list", "--json"],
        &["stream", "describe", "s"],
        &["object", "get", "o"],
        &["object", "get", "o", "--json"],
        &["object", "list"],
        &["quickstart", "--file", "/dev/null"],
        &["quickstart", "--file", "/dev/null", "--json"],
        &["flow", "list"],
        &["flow", "run", "logparser", "--file", SOME_FILE],
        &["flow", "run", "logparser", "--file", SOME_FILE, "--json"],
    ] {
        run_on_full_stdout(data, args, b"").assert_fails(1, &["error: cannot write to stdout"]);
    }
}

#[test]
fn help_that_cannot_be_printed_is_an_error() {
    let dir = tempdir().unwrap();
    for args in [&["--help"][..], &["--version"], &["stream", "--help"]] {
        let run = run_on_full_stdout(dir.path(), args, b"");
        run.assert_fails(1, &["error: cannot write to stdout"]);
    }
}

#[test]
fn a_full_stdout_does_not_undo_a_change() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run_on_full_stdout(data, &["stream", "create", "s"], b"").assert_fails(1, &["done", "stdout"]);
    for flag in ["--json", "--acks"] {
        run_on_full_stdout(data, &["produce", "s", flag], b"line\n").assert_fails(1, &["stdout"]);
    }
    let stored = run(data, &["consume", "s"]).assert_done().text();
    assert_eq!(stored, "line\nline\n");
}

#[test]
fn a_full_stderr_does_not_fail_a_command() {
    let dir = tempdir().unwrap();
    let mut command = program();
    command
        .args(["quickstart", "--file", "/dev/null"])
        .env("TMPDIR", dir.path())
        .stderr(File::create("/dev/full").unwrap());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let text = Run::from(output).assert_done().text();
    assert!(text.contains("0 words"), "{text}");
}

#[test]
fn a_reader_that_closes_stdout_early_does_not_fail_a_command() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    run(data, &["stream", "create", "s"]).assert_done();
    let lines: String = (0..20_000).map(|number| format!("{number}\n")).collect();
    let input = dir.path().with_extension("txt");
    std::fs::write(&input, &lines).unwrap();
    for verb in [
        &["produce", "s", "--acks", "--file", input.to_str().unwrap()][..],
        &["consume", "s"],
    ] {
        let mut command = program();
        let command = command.args(verb).arg("--data").arg(data);
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(Run::from(output).assert_done().stderr, "");
    }
    std::fs::remove_file(input).unwrap();
    assert!(run(data, &["consume", "s"]).assert_done().text() == lines);
}

/// With 10,000 records a write fails in the middle of the records that arrive together.
#[test]
fn a_group_does_not_commit_records_that_cannot_be_printed() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    for (group, count) in [("few", 3), ("many", 10_000)] {
        let stream = format!("s{count}");
        server.run(&["stream", "create", &stream]).assert_done();
        let lines: String = (0..count).map(|number| format!("{number}\n")).collect();
        let produce = ["produce", &stream];
        let produced = server.run_with_input(&produce, lines.clone().into_bytes());
        produced.assert_done();
        let consume = ["consume", &stream, "--group", group];
        for format in [&[][..], &["--json"]] {
            let mut command = server.command(&[&consume[..], format].concat());
            command.stdout(File::create("/dev/full").unwrap());
            let output = command.spawn().unwrap().wait_with_output().unwrap();
            Run::from(output).assert_fails(1, &["error: cannot write to stdout"]);
        }
        let mut closed = start(&mut server.command(&consume));
        drop(closed.stdout.take());
        let output = closed.wait_with_output().unwrap();
        assert_eq!(Run::from(output).assert_done().stderr, "");
        assert!(server.run(&consume).assert_done().text() == lines);
        assert_eq!(server.run(&consume).assert_done().text(), "");
    }
    server.stop();
}

#[test]
fn a_reader_that_closes_stdout_turns_no_failed_check_into_success() {
    for format in [&[][..], &["--json"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        let command = command.args(["health", "--server", "127.0.0.1:1"]);
        let child = command.args(format).stdout(writer).spawn().unwrap();
        let output = child.wait_with_output().unwrap();
        Run::from(output).assert_fails(1, &["1 of 1 check failed"]);
    }
}

#[test]
fn a_reader_that_closes_the_pipe_of_an_export_does_not_fail_it() {
    let dir = tempdir().unwrap();
    let server = Server::start(dir.path(), &[]);
    server.run(&["stream", "create", "s"]).assert_done();
    // More than a pipe holds.
    let lines = format!("{}\n", "x".repeat(100)).repeat(5_000);
    let produced = server.run_with_input(&["produce", "s"], lines.into_bytes());
    produced.assert_done();
    let mut child = start(&mut server.command(&["stream", "export", "s", "-"]));
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.contains("\"offset\":0"), "{line}");
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(Run::from(output).assert_done().stderr, "");
    server.stop();
}
