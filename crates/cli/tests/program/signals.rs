//! Signals end the program cleanly during any wait.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::process::Signal;
use tempfile::tempdir;

use crate::support::{finish, program_with_hangup, run, send_signal, spawn, wait_until};

fn fifo(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    path
}

/// Opens a FIFO for writing once a reader has opened it.
fn open_writer(fifo: &Path) -> File {
    let mut writer = None;
    wait_until("the FIFO has a reader", || {
        let mut options = OpenOptions::new();
        options
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits() as i32);
        writer = options.open(fifo).ok();
        writer.is_some()
    });
    writer.unwrap()
}

/// Starts to count words, with a temporary folder for the data in `folder`, and waits for that.
fn spawn_words(mut command: Command, folder: &Path, file: &Path) -> Child {
    command.args(["quickstart", "--file"]).arg(file);
    let mut child = command.env("TMPDIR", folder).spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains(folder.to_str().unwrap()), "{line}");
    child.stderr = Some(stderr.into_inner());
    child
}

#[test]
fn a_signal_ends_a_command_that_waits_for_a_fifo() {
    // A closed terminal sends SIGHUP.
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let dir = tempdir().unwrap();
        let temporary = tempdir().unwrap();
        let fifo = fifo(dir.path(), "fifo");
        let child = spawn_words(program_with_hangup(false), temporary.path(), &fifo);
        send_signal(&child, signal);
        let run = finish(child).assert_done();
        assert!(run.text().contains("0 words"), "{}", run.text());
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_signal_aborts_an_object_put_and_nothing_is_stored() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    let fifo = fifo(dir.path(), "fifo");
    let child = spawn(&data, &["object", "put", "o", fifo.to_str().unwrap()]);
    let mut writer = open_writer(&fifo);
    writer.write_all(b"half").unwrap();
    send_signal(&child, Signal::TERM);
    finish(child).assert_fails(1, &["signal"]);
    run(&data, &["object", "get", "o"]).assert_fails(1, &["unknown object o"]);
}

#[test]
fn all_lines_of_a_fifo_are_read_while_writers_come_and_go() {
    let dir = tempdir().unwrap();
    let [first, second] = ["first", "second"].map(|name| fifo(dir.path(), name));
    let data = dir.path().join("data");
    let mut args = vec!["quickstart", "--json"];
    for fifo in [&first, &second] {
        args.extend(["--file", fifo.to_str().unwrap()]);
    }
    let child = spawn(&data, &args);
    // Gone before the program comes to read it.
    open_writer(&second).write_all(b"z z\n").unwrap();
    let mut writer = open_writer(&first);
    for part in ["a b", "\nc", "d"] {
        writer.write_all(part.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    drop(writer);
    finish(child).assert_done();
    let lines = run(&data, &["consume", "lines"]).assert_done().text();
    assert_eq!(lines, "a b\ncd\nz z\n");
}

#[test]
fn a_closed_terminal_does_not_end_a_program_under_nohup() {
    let dir = tempdir().unwrap();
    let temporary = tempdir().unwrap();
    let fifo = fifo(dir.path(), "fifo");
    let child = spawn_words(program_with_hangup(true), temporary.path(), &fifo);
    send_signal(&child, Signal::HUP);
    open_writer(&fifo).write_all(b"still here\n").unwrap();
    let text = finish(child).assert_done().text();
    assert!(text.contains("2 words"), "{text}");
}
