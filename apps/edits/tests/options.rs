//! The options that every application of the library has.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millstream::{Error, Node};
use millstream_testing::start;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The longest time that one run may take.
const LIMIT: Duration = Duration::from_secs(60);

fn send_edits(data: &Path, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    let node = Node::embedded(data)?;
    let edits = node.topic("edits").json::<Value>().create()?;
    edits.send(numbers.map(|number| json!({ "user": format!("u{}", number % 7), "page": "p" })))
}

fn command(data: &Path, options: &[&str]) -> Command {
    // Its parent is the program, and not a shell: signals reach it.
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_edits"));
    command.arg("--data").arg(data).args(options);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    // Removes the settings of the user that runs the tests.
    command.env_remove("MILLSTREAM_LOG");
    command
}

/// Runs to the end. Returns whether it succeeded, and the lines on stderr.
fn run(data: &Path, options: &[&str]) -> (bool, String) {
    run_to_end(&mut command(data, options))
}

fn run_to_end(command: &mut Command) -> (bool, String) {
    let mut run = start(command, LIMIT).unwrap();
    let mut lines = String::new();
    let mut stderr = run.stderr.take().unwrap();
    stderr.read_to_string(&mut lines).unwrap();
    (run.wait().unwrap().success(), lines)
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let started_at = Instant::now();
    while !condition() {
        assert!(started_at.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Starts an application that serves. Returns its address, too.
fn start_serving(data: &Path, options: &[&str]) -> (Child, String) {
    let mut options = options.to_vec();
    options.extend(["--http", "127.0.0.1:0"]);
    let mut run = start(&mut command(data, &options), LIMIT).unwrap();
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("watch it at http://");
    let address = address.and_then(|rest| rest.strip_suffix('/'));
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    // It may write more lines.
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (run, address)
}

#[test]
fn an_application_serves_its_state_and_metrics_and_ends_with_a_signal() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    send_edits(dir.path(), 0..700)?;
    let (mut serving, address) = start_serving(dir.path(), &["--ranks", "2"]);
    let count = || get(&address, "/state/edits/by_user/u3");
    wait_until("the edits are counted", || {
        count().trim_end().ends_with("100")
    });
    let metrics = get(&address, "/metrics");
    assert!(metrics.contains("millstream_flow_"), "{metrics}");
    let process = Pid::from_child(&serving);
    kill_process(process, Signal::INT).unwrap();
    assert!(serving.wait()?.success(), "Ctrl-C ends it without an error");

    // It has a checkpoint of all that it had counted.
    send_edits(dir.path(), 700..770)?;
    let to_end = ["--until-now", "--resume", "always", "--ranks", "2"];
    assert_eq!(run(dir.path(), &to_end), (true, String::new()));
    let node = Node::embedded(dir.path())?;
    let state = node.topic("edits.state.by_user").json::<u64>();
    let mut counts: Vec<(String, u64)> = state.read_keys::<String>()?.into_iter().collect();
    counts.sort();
    let expected = (0..7).map(|user| (format!("u{user}"), 110));
    assert_eq!(counts, expected.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn the_resume_option_decides_where_an_application_begins() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    send_edits(dir.path(), 0..7)?;
    let run_to_end = |resume| run(dir.path(), &["--until-now", "--resume", resume]);
    let (succeeds, error) = run_to_end("always");
    assert!(!succeeds);
    let expected = "error: flow \"edits\": there is no checkpoint to resume from";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(run_to_end("never"), (true, String::new()));
    let (succeeds, error) = run_to_end("never");
    assert!(!succeeds);
    let expected = "error: flow \"edits\": there is a checkpoint, number ";
    assert!(error.starts_with(expected), "{error}");
    // A source that was read to its end gives nothing more.
    let (succeeds, warning) = run_to_end("if-any");
    assert!(succeeds && !warning.is_empty());
    let told = "an earlier run has read this source to its end";
    assert!(warning.lines().all(|line| line.contains(told)), "{warning}");
    Ok(())
}

#[test]
fn an_unknown_log_level_is_reported() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let mut command = command(dir.path(), &["--until-now"]);
    let (succeeds, error) = run_to_end(command.env("MILLSTREAM_LOG", "loud"));
    assert!(!succeeds);
    let expected = "error: MILLSTREAM_LOG is \"loud\", which is no level: set it to off, ";
    assert!(error.starts_with(expected), "{error}");
    Ok(())
}
