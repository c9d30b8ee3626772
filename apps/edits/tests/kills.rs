//! The application on a data directory of its own, killed again and again.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream::base::{ByteSize, Offset};
use millstream::log::{Log, LogConfig};
use millstream::{Error, Node, Raw, Topic};
use millstream_testing::start;
use serde_json::{Value, json};

const EDITS: u64 = 30_000;
const USERS: u64 = 500;
const PAGES: u64 = 3_000;

/// The elements of the state.
const STATES: [&str; 2] = ["by_user", "by_page"];

/// The time after which each run is killed, in milliseconds: some before the first checkpoint, some behind several.
const KILLED_AFTER_MS: [u64; 5] = [50, 400, 1_300, 2_300, 700];

/// Returns the times of all kills. `MILLSTREAM_CASES` sets their number; those beyond five come at other moments.
fn kills() -> impl Iterator<Item = Duration> {
    let count = env::var("MILLSTREAM_CASES").map(|count| count.parse().expect("it is a number"));
    let all = (0..).zip(KILLED_AFTER_MS.into_iter().cycle());
    all.map(|(kill, after_ms)| Duration::from_millis(after_ms + kill / 5 * 37))
        .take(count.unwrap_or(KILLED_AFTER_MS.len()))
}

fn edit(number: u64) -> Value {
    let (user, page) = (number * number % USERS, number * 7 % PAGES);
    json!({ "user": format!("user {user}"), "page": format!("page {page}"), "added": number })
}

/// The longest time that one run may take.
const LIMIT: Duration = Duration::from_secs(60);

fn command(data: &Path, ranks: u32) -> Command {
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_edits"));
    command.arg("--data").arg(data);
    command.args(["--ranks", &ranks.to_string()]);
    command.stdout(Stdio::null());
    command
}

/// Returns the records of a state's topic, the last of each key.
fn state(node: &Node, name: &str) -> Result<BTreeMap<String, u64>, Error> {
    let topic = node.topic(&format!("edits.state.{name}"));
    let records = topic.json::<u64>().read_keys::<String>()?;
    Ok(records.into_iter().collect())
}

/// Creates the topics of the state with settings under which Kafka compacts them often, including their open files.
fn compact_soon(node: &Node) -> Result<(), Error> {
    for name in STATES {
        let topic = node.topic(&format!("edits.state.{name}")).partitions(4);
        let settings = [
            ("cleanup.policy", "compact"),
            ("max.compaction.lag.ms", "100"),
            ("min.cleanable.dirty.ratio", "0.01"),
            ("file.delete.delay.ms", "0"),
        ];
        let set = |topic: Topic<Raw>, (name, value)| topic.setting(name, value);
        settings.into_iter().fold(topic, set).create()?;
    }
    Ok(())
}

/// Waits until all partitions of the state have been compacted.
fn wait_for_compaction(dir: &Path) {
    let log = Log::open(LogConfig::with_pool(dir, ByteSize(64 << 20))).expect("it is free");
    let is_compacted = |name: &str| {
        let stream = log.stream(&format!("edits.state.{name}"));
        let info = stream.expect("the flow has made it").info();
        let stats = info.partitions.iter().map(|it| it.compaction.as_ref());
        stats
            .clone()
            .all(|it| it.is_some_and(|it| it.compacted_to > Offset(0)))
    };
    let started_at = Instant::now();
    while !STATES.into_iter().all(is_compacted) {
        assert!(started_at.elapsed() < LIMIT, "the state is not compacted");
        thread::sleep(Duration::from_millis(50));
    }
}

fn check(ranks: u32) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    compact_soon(&node)?;
    let edits = node.topic("edits").json::<Value>().partitions(4).create()?;
    edits.send((0..EDITS / 2).map(edit))?;
    drop((node, edits));
    for after in kills() {
        let mut run = start(&mut command(dir.path(), ranks), LIMIT)?;
        thread::sleep(after);
        run.kill()?;
        run.wait()?;
    }
    let node = Node::embedded(dir.path())?;
    let edits = node.topic("edits").json::<Value>();
    edits.send((EDITS / 2..EDITS).map(edit))?;
    drop((node, edits));
    let mut last = command(dir.path(), ranks);
    let status = start(last.arg("--until-now"), LIMIT)?.wait()?;
    assert!(status.success(), "{status}");
    wait_for_compaction(dir.path());

    let node = Node::embedded(dir.path())?;
    let mut expected = [BTreeMap::new(), BTreeMap::new()];
    for number in 0..EDITS {
        for (counts, field) in expected.iter_mut().zip(["user", "page"]) {
            let key = edit(number)[field].as_str().unwrap_or_default().to_owned();
            *counts.entry(key).or_insert(0) += 1;
        }
    }
    assert_eq!(state(&node, "by_user")?, expected[0]);
    assert_eq!(state(&node, "by_page")?, expected[1]);
    Ok(())
}

#[test]
fn each_edit_counts_once_however_often_the_application_is_killed() -> Result<(), Error> {
    check(1)
}

#[test]
fn each_edit_counts_once_on_two_ranks() -> Result<(), Error> {
    check(2)
}

/// Sends edits to a server, ten at a time, until this fails, and counts those that the server has acknowledged.
fn produce(server: &Node, acknowledged: &AtomicU64) {
    let edits = server.topic("edits").json::<Value>();
    let mut first = acknowledged.load(Ordering::Relaxed);
    while edits.send((first..first + 10).map(edit)).is_ok() {
        first += 10;
        acknowledged.fetch_add(10, Ordering::Relaxed);
    }
}

#[test]
fn edits_of_kafkas_clients_count_once_however_often_the_process_is_killed() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let edits = node.topic("edits").json::<Value>().partitions(4);
    drop((edits.create()?, node));
    let acknowledged = Arc::new(AtomicU64::new(0));
    for after in kills() {
        let mut command = command(dir.path(), 1);
        command.args(["--listen", "127.0.0.1:0"]);
        command.stderr(Stdio::piped());
        let mut run = start(&mut command, LIMIT)?;
        let mut stderr = BufReader::new(run.stderr.take().expect("it is piped"));
        let mut line = String::new();
        stderr.read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on ");
        let server = Node::connect(address.unwrap_or_else(|| panic!("{line}")))?;
        let counted = Arc::clone(&acknowledged);
        // A client goes on trying for long after the kill, so it is not waited for.
        thread::spawn(move || produce(&server, &counted));
        thread::sleep(after);
        run.kill()?;
        run.wait()?;
    }
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    let mut last = command(dir.path(), 1);
    let status = start(last.arg("--until-now"), LIMIT)?.wait()?;
    assert!(status.success(), "{status}");

    let node = Node::embedded(dir.path())?;
    let stored = node.topic("edits").json::<Value>().read_all()?;
    let count = stored.len() as u64;
    assert!(
        acknowledged > 0 && count >= acknowledged,
        "{count} of {acknowledged}"
    );
    for (name, field) in [("by_user", "user"), ("by_page", "page")] {
        let mut expected = BTreeMap::new();
        for edit in &stored {
            let key = edit[field].as_str().unwrap_or_default().to_owned();
            *expected.entry(key).or_insert(0) += 1;
        }
        assert_eq!(state(&node, name)?, expected, "{name}");
    }
    Ok(())
}
