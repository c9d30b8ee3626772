//! Files of the data directory are damaged: readers of the damaged data get errors, the server serves the rest, and
//! `repair` helps.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use tempfile::tempdir;

use crate::support::{Server, finish, run, run_with_input, send_signal, spawn};

const LINES: usize = 2_000;

/// Two streams with as many lines, in files.
fn fill(data: &Path) {
    for name in ["broken", "whole"] {
        run(data, &["stream", "create", name]).assert_done();
        let lines = (0..LINES).map(|n| format!("{name} {n} {}\n", "x".repeat(100)));
        let input = lines.collect::<String>().into_bytes();
        run_with_input(data, &["produce", name], input).assert_done();
    }
}

/// The first file of a stream's only partition.
fn file_of(data: &Path, name: &str) -> PathBuf {
    let described = run(data, &["stream", "describe", name, "--json"]).json();
    let id = described["id"].as_u64().unwrap();
    let folder = data.join(format!("streams/{id}"));
    let mut files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|kind| kind == "log");
    files.find(is_log).unwrap()
}

fn lines_of(text: &str) -> usize {
    text.lines().count()
}

#[test]
fn a_flipped_bit_ends_consumers_with_an_error_and_the_next_start_truncates_it() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    let path = file_of(data, "broken");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    let name = path.file_name().unwrap().to_str().unwrap();

    let server = Server::start(data, &[]);
    for delivery in ["push", "pull"] {
        let consumed = server.run(&["consume", "broken", "--delivery", delivery]);
        assert!(!consumed.status.success(), "{delivery} ends with success");
        assert!(consumed.stderr.contains("damaged") || consumed.stderr.contains(name));
        let count = lines_of(&consumed.text());
        assert!(count < LINES, "{count} lines by {delivery}");
        let text = server.run(&["consume", "whole", "--delivery", delivery]);
        assert_eq!(lines_of(&text.assert_done().text()), LINES);

        let skipping = [
            "consume",
            "broken",
            "--skip-damaged",
            "--delivery",
            delivery,
        ];
        let skipped = server.run(&skipping).assert_done();
        let told = skipped.stderr.clone();
        let offsets = told.split("skipped offsets ").nth(1).expect(&told);
        let mut offsets = offsets.split(' ').filter_map(|word| word.parse().ok());
        let (first, last): (usize, usize) = (offsets.next().unwrap(), offsets.next().unwrap());
        let text = skipped.text();
        assert_eq!(lines_of(&text) + last + 1 - first, LINES, "{told}");
        assert!(text.contains(&format!("broken {} ", LINES - 1)), "{told}");
    }
    let described = server.run(&["stream", "describe", "broken"]).assert_done();
    assert!(described.text().contains(name), "{}", described.text());
    let child = server.into_child();
    send_signal(&child, Signal::TERM);
    let told = finish(child).stderr;
    // However often it is read; later lines, every ten seconds, count those that were left out.
    let lines = told.lines().filter(|line| line.contains(name));
    let first = lines.filter(|line| line.contains("left_out=0 "));
    assert_eq!(first.count(), 1, "{told}");

    let list = run(data, &["repair"]).assert_done().text();
    assert!(list.contains("broken") && list.contains(name), "{list}");
    assert!(!list.contains("whole"), "{list}");
    let cut = run(data, &["repair", "--cut", "broken"])
        .assert_done()
        .text();
    assert!(cut.contains("aside"), "{cut}");
    let list = run(data, &["repair"]).assert_done().text();
    assert_eq!(list, "nothing is damaged\n");
    run_with_input(data, &["produce", "broken"], b"again\n".to_vec()).assert_done();
    let text = run(data, &["consume", "broken"]).assert_done().text();
    assert!(text.ends_with("again\n") && lines_of(&text) < LINES);
}

#[test]
fn a_repair_of_a_whole_stream_or_journal_says_that_nothing_is_damaged() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    for name in ["whole", "__journal"] {
        let cut = run(data, &["repair", "--cut", name]).assert_done().text();
        assert_eq!(cut, format!("nothing in stream {name} is damaged\n"));
    }
    let cut = run(data, &["repair", "--cut", "whole", "--json"]);
    let expected = json!({ "stream": "whole", "files": [], "bytes": 0 });
    assert_eq!(cut.assert_done().json(), expected);
    let text = run(data, &["consume", "whole"]).assert_done().text();
    assert_eq!(lines_of(&text), LINES);
}

#[test]
fn a_missing_folder_of_a_stream_is_reported_and_the_stream_can_be_deleted() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    let path = file_of(data, "broken");
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
    run(data, &["consume", "broken"]).assert_fails(1, &["broken", "missing"]);
    let server = Server::start(data, &[]);
    for delivery in ["push", "pull"] {
        let consumed = server.run(&["consume", "broken", "--delivery", delivery]);
        assert!(!consumed.status.success(), "{delivery} ends with success");
        assert_eq!(consumed.text(), "");
    }
    server.stop();
    run(data, &["stream", "delete", "broken"]).assert_done();
    assert_eq!(
        run(data, &["repair"]).assert_done().text(),
        "nothing is damaged\n"
    );
    let text = run(data, &["consume", "whole"]).assert_done().text();
    assert_eq!(lines_of(&text), LINES);
}

#[test]
fn a_start_without_the_folder_of_streams_is_refused() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    let streams = data.join("streams");
    let aside = tempdir().unwrap();
    let copy = aside.path().join("streams");
    assert!(
        Command::new("mv")
            .args([&streams, &copy])
            .status()
            .unwrap()
            .success()
    );
    for _ in 0..2 {
        let start = run(data, &["start", "--listen", "127.0.0.1:0"]);
        start.assert_fails(1, &["streams", "missing", "restore"]);
    }
    assert!(
        Command::new("mv")
            .args([&copy, &streams])
            .status()
            .unwrap()
            .success()
    );
    let text = run(data, &["consume", "whole"]).assert_done().text();
    assert_eq!(lines_of(&text), LINES);
}

#[test]
fn a_server_describes_the_data_that_its_start_truncated() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    let mut file = fs::File::options()
        .append(true)
        .open(file_of(data, "broken"))
        .unwrap();
    file.write_all(&[1; 777]).unwrap();
    // After a clean stop these bytes are damage.
    let described = run(data, &["stream", "describe", "broken"]).assert_done();
    let text = described.text();
    assert!(text.contains("stopped cleanly"), "{text}");
    // Without its record the last run counts as crashed.
    fs::remove_file(data.join("clean-stop")).unwrap();
    let server = Server::start(data, &[]);
    let text = server.run(&["stream", "describe", "broken"]).assert_done();
    assert!(
        text.text().contains("777 B cut at the start"),
        "{}",
        text.text()
    );
    let text = server.run(&["stream", "describe", "whole"]).assert_done();
    assert!(!text.text().contains("cut at"), "{}", text.text());
    let text = server.run(&["consume", "broken"]).assert_done().text();
    assert_eq!(lines_of(&text), LINES);
    server.stop();
}

#[test]
fn a_start_with_a_damaged_catalog_is_refused_and_truncating_it_keeps_the_intact_streams() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    let lost = file_of(data, "broken");
    let path = fs::read_dir(data.join("streams/0"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|kind| kind == "log"))
        .unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let entry = b"stream/broken";
    let at = bytes.windows(entry.len()).position(|part| part == entry);
    bytes[at.unwrap()] ^= 1;
    fs::write(&path, bytes).unwrap();

    let advice = "repair --cut __catalog";
    for _ in 0..2 {
        let start = run(data, &["start", "--listen", "127.0.0.1:0"]);
        start.assert_fails(1, &["streams/0", advice]);
    }
    run(data, &["repair"]).assert_fails(1, &[advice]);
    let cut = run(data, &["repair", "--cut", "__catalog"]).assert_done();
    assert!(cut.text().contains("aside"), "{}", cut.text());
    for _ in 0..2 {
        let text = run(data, &["consume", "whole"]).assert_done().text();
        assert_eq!(lines_of(&text), LINES);
        run(data, &["consume", "broken"]).assert_fails(1, &["broken"]);
        let aside = fs::read_dir(data.join("aside")).unwrap();
        let mut names = aside.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let lost = lost.file_name().unwrap().to_str().unwrap();
        assert!(names.any(|name| name.starts_with("lost.") && name.ends_with(lost)));
    }
}

#[test]
fn a_start_without_the_folder_of_the_journal_is_refused() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    fs::remove_dir_all(data.join("journal")).unwrap();
    let start = run(data, &["start", "--listen", "127.0.0.1:0"]);
    start.assert_fails(1, &["journal", "missing", "empty"]);
    fs::create_dir(data.join("journal")).unwrap();
    Server::start(data, &[]).stop();
}

#[test]
fn a_start_with_damaged_users_or_rules_is_refused() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    let server = Server::start(data, &[]);
    server.stop();
    let is_ledger = |path: &Path| {
        let name = path.file_name().unwrap();
        name != "0" && name != "1"
    };
    let mut folders: Vec<PathBuf> = fs::read_dir(data.join("streams"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    folders.retain(|path| is_ledger(path));
    assert!(!folders.is_empty(), "users and rules are kept somewhere");
    for folder in folders {
        fs::remove_dir_all(folder).unwrap();
    }
    run(data, &["start", "--listen", "127.0.0.1:0"]).assert_fails(1, &["__security", "missing"]);
    run(data, &["repair", "--quarantine", "__security"]).assert_done();
    Server::start(data, &[]).stop();
}

#[test]
fn a_start_that_hangs_can_be_ended() {
    let dir = tempdir().unwrap();
    let data = dir.path();
    fill(data);
    // Opening it waits for a writer that never comes, as a disk that does not answer would.
    let index = file_of(data, "whole").with_extension("index");
    fs::remove_file(&index).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&index)
            .status()
            .unwrap()
            .success()
    );
    let child = spawn(data, &["start", "--listen", "127.0.0.1:0"]);
    // If the program caught signals this early, it would have caught this one by then.
    thread::sleep(Duration::from_secs(2));
    send_signal(&child, Signal::TERM);
    let ended = finish(child);
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()));
    fs::remove_file(&index).unwrap();
    let text = run(data, &["consume", "whole"]).assert_done().text();
    assert_eq!(lines_of(&text), LINES);
}
