//! The application on a data directory of its own, killed again and again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use millstream::{Error, Node};
use millstream_testing::start;
use serde_json::{Value, json};

const EDITS: u64 = 30_000;
const USERS: u64 = 500;
const PAGES: u64 = 3_000;

/// The time after which each run is killed, in milliseconds: some before the first checkpoint, some behind several.
const KILLED_AFTER_MS: [u64; 5] = [50, 400, 1_300, 2_300, 700];

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

fn check(ranks: u32) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let edits = node.topic("edits").json::<Value>().partitions(4).create()?;
    edits.send((0..EDITS / 2).map(edit))?;
    drop((node, edits));
    for after_ms in KILLED_AFTER_MS {
        let mut run = start(&mut command(dir.path(), ranks), LIMIT)?;
        thread::sleep(Duration::from_millis(after_ms));
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
