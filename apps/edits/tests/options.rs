//! The options that every application of the library has.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
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

/// Starts an application that serves, and reads a line on stderr for each of these prefixes. Returns the rests of the lines.
fn start_with<const N: usize>(
    data: &Path,
    options: &[&str],
    prefixes: [&str; N],
) -> (Child, [String; N]) {
    let mut run = start(&mut command(data, options), LIMIT).unwrap();
    let mut stderr = BufReader::new(run.stderr.take().unwrap());
    let rests = prefixes.map(|prefix| {
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        let rest = line.trim().strip_prefix(prefix);
        rest.unwrap_or_else(|| panic!("{line}")).to_owned()
    });
    // It may write more lines.
    thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    (run, rests)
}

/// Starts an application that serves HTTP. Returns its address, too.
fn start_serving(data: &Path, options: &[&str]) -> (Child, String) {
    let mut options = options.to_vec();
    options.extend(["--http", "127.0.0.1:0"]);
    let (run, [address]) = start_with(data, &options, ["watch it at http://"]);
    (run, address.trim_end_matches('/').to_owned())
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

/// Returns the committed counts of the users, as clients of a server see them.
fn counts_at(server: &Node) -> BTreeMap<String, u64> {
    let state = server.topic("edits.state.by_user").json::<u64>();
    let counts = state.read_keys::<String>().unwrap();
    counts.into_iter().collect()
}

#[test]
fn an_application_serves_kafkas_clients_beside_its_flow() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    send_edits(dir.path(), 0..0)?;
    let options = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    let prefixes = ["listening on ", "watch it at http://"];
    for turn in 1..=2_u64 {
        let (mut serving, [listen, http]) = start_with(dir.path(), &options, prefixes);
        let http = http.trim_end_matches('/');
        let server = Node::connect(&listen)?;
        let edits = server.topic("edits").json::<Value>();
        let edit = |number| json!({ "user": format!("u{}", number % 7), "page": "p" });
        edits.send((0..700).map(edit))?;
        // The second run also counts the edits that came while the first one ended.
        let late = (turn == 2).then(|| ("late".to_owned(), 7));
        let users = (0..7).map(|user| (format!("u{user}"), turn * 100));
        let expected: BTreeMap<String, u64> = users.chain(late).collect();
        wait_until("clients read the committed counts", || {
            counts_at(&server) == expected
        });
        let count = get(http, "/kv/edits.state.by_user/u3");
        assert!(count.ends_with(&(turn * 100).to_string()), "{count}");
        let streams = get(http, "/api/v1/streams");
        assert!(streams.contains("\"stream\":\"edits\""), "{streams}");
        let overview = get(http, "/api/v1/overview");
        assert!(overview.contains("\"flow\":\"edits\""), "{overview}");
        assert!(overview.contains("\"connections\":"), "{overview}");
        let ready = get(http, "/readyz");
        assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
        edits.send((0..7).map(|_| json!({ "user": "late", "page": "p" })))?;
        kill_process(Pid::from_child(&serving), Signal::INT).unwrap();
        assert!(serving.wait()?.success(), "run {turn}");
    }
    Ok(())
}

#[test]
fn listeners_that_cannot_be_are_refused_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cases: [(&[&str], &str); 7] = [
        (&["--listen", &taken], "in use"),
        (&["--listen", "0.0.0.0:0"], "turn authentication on"),
        (
            &["--listen", "127.0.0.1:0", "--http", "0.0.0.0:0"],
            "turn authentication on",
        ),
        (&["--listen", "SSL://127.0.0.1:0"], "no certificate"),
        (
            &["--listen", "no-such-host.invalid:1"],
            "no-such-host.invalid",
        ),
        (&["--listen", "9092"], "must be a host and a port"),
        (&["--authentication"], "--listen"),
    ];
    for (options, told) in cases {
        let (succeeds, error) = run(&data, options);
        assert!(!succeeds && error.contains(told), "{options:?}: {error}");
        assert!(!data.exists(), "{options:?}");
    }
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_edits"));
    command.args(["--listen", "127.0.0.1:0", "--server", "127.0.0.1:1"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let (succeeds, error) = run_to_end(&mut command);
    assert!(
        !succeeds && error.contains("cannot be used with"),
        "{error}"
    );
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
