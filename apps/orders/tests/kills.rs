//! The application on a data directory of its own, killed again and again: each result is written once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use millstream::{Error, Node};
use millstream_testing::start;
use serde_json::{Value, json};

/// One order every 5 ms of event time: the windows of 200 seconds.
const ORDERS: u64 = 40_000;
const USERS: u64 = 25;
const WINDOW_MS: u64 = 10_000;

/// The time after which each run is killed, in milliseconds.
const KILLED_AFTER_MS: [u64; 4] = [300, 1_200, 1_700, 600];

/// The longest time that one run may take.
const LIMIT: Duration = Duration::from_secs(60);

fn order(id: u64) -> Value {
    json!({ "id": id, "user": format!("user {}", id % USERS), "price": id % 11, "time": id * 5 })
}

fn command(data: &Path) -> Command {
    let mut command = millstream_testing::command(env!("CARGO_BIN_EXE_orders"));
    command.arg("--data").arg(data).stdout(Stdio::null());
    command
}

fn read(node: &Node, topic: &str) -> Result<Vec<Value>, Error> {
    node.topic(topic).json::<Value>().read_all()
}

#[test]
fn each_result_is_written_once_however_often_the_application_is_killed() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    let orders = node
        .topic("orders")
        .json::<Value>()
        .partitions(3)
        .create()?;
    orders.send((0..ORDERS).map(order))?;
    let payments = node.topic("payments").json::<Value>().create()?;
    let paid = |id: &u64| id.is_multiple_of(4);
    payments.send(
        (0..ORDERS)
            .filter(paid)
            .map(|id| json!({ "order": id, "time": id * 5 })),
    )?;
    drop((node, orders, payments));
    for after_ms in KILLED_AFTER_MS {
        let mut run = start(&mut command(dir.path()), LIMIT)?;
        thread::sleep(Duration::from_millis(after_ms));
        run.kill()?;
        run.wait()?;
    }
    let status = start(command(dir.path()).arg("--until-now"), LIMIT)?.wait()?;
    assert!(status.success(), "{status}");

    let node = Node::embedded(dir.path())?;
    let mut expected = BTreeMap::new();
    for id in 0..ORDERS {
        let window = id * 5 / WINDOW_MS * WINDOW_MS;
        *expected.entry((id % USERS, window)).or_insert(0) += id % 11;
    }
    let totals = read(&node, "totals")?;
    assert_eq!(totals.len(), expected.len());
    for total in &totals {
        let user = total["key"]
            .as_str()
            .and_then(|key| key.strip_prefix("user "));
        let user: u64 = user.and_then(|user| user.parse().ok()).unwrap_or(u64::MAX);
        let window = total["start"].as_u64().unwrap_or(u64::MAX);
        assert_eq!(
            total["value"].as_u64(),
            expected.remove(&(user, window)),
            "{total}"
        );
    }
    let best = read(&node, "best")?;
    assert_eq!(best.len() as u64, ORDERS * 5 / WINDOW_MS);
    assert!(
        best.iter()
            .all(|best| best["value"].as_array().map(Vec::len) == Some(10))
    );
    let ids: Vec<u64> = read(&node, "paid")?
        .iter()
        .filter_map(|paid| paid["id"].as_u64())
        .collect();
    assert_eq!(ids.len() as u64, ORDERS / 4);
    assert_eq!(
        ids.into_iter().collect::<BTreeSet<_>>(),
        (0..ORDERS).filter(paid).collect()
    );
    Ok(())
}
