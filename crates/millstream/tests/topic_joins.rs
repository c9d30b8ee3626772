//! Joins of keyed topics, against a plain model, on a log and on a server.

mod servers;

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use millstream::base::{ProducerId, Timestamp, partition_of_key};
use millstream::connect::StreamProducer;
use millstream::log::{Log, LogConfig};
use millstream::record::Header;
use millstream::{Error, Flow, Node, Text, Topic};

/// The partitions of each topic.
const PARTITIONS: u32 = 2;

/// Orders and users, as programs change them, and as a model has them.
#[derive(Default)]
struct Model {
    /// By order: the user, if it has one, and the number of the change.
    orders: BTreeMap<String, (Option<String>, u64)>,
    /// By user: the number of the change.
    users: BTreeMap<String, u64>,
    changes: u64,
}

/// A change of a key.
struct Change {
    key: String,
    /// The new value, and the secondary key; `None` if the key is deleted.
    value: Option<(String, Option<String>)>,
}

impl Model {
    /// Draws a change of an order.
    fn change_order(&mut self, rng: &mut Rng) -> Change {
        self.changes += 1;
        let order = format!("order {}", rng.u32(..60));
        if rng.u32(..5) == 0 {
            self.orders.remove(&order);
            return Change {
                key: order,
                value: None,
            };
        }
        let user = (rng.u32(..8) > 0).then(|| format!("user {}", rng.u32(..9)));
        let row = (user.clone(), self.changes);
        self.orders.insert(order.clone(), row);
        Change {
            key: order,
            value: Some((self.changes.to_string(), user)),
        }
    }

    /// Draws a change of a user.
    fn change_user(&mut self, rng: &mut Rng) -> Change {
        self.changes += 1;
        let user = format!("user {}", rng.u32(..9));
        if rng.u32(..3) == 0 {
            self.users.remove(&user);
            return Change {
                key: user,
                value: None,
            };
        }
        self.users.insert(user.clone(), self.changes);
        Change {
            key: user,
            value: Some((self.changes.to_string(), None)),
        }
    }

    /// The join of both.
    fn rows(&self, is_left_outer: bool) -> HashMap<String, String> {
        let rows = self.orders.iter().filter_map(|(order, (user, change))| {
            let user = user.as_ref().and_then(|user| self.users.get(user));
            let row = format!("{change} {user:?}");
            (user.is_some() || is_left_outer).then(|| (order.clone(), row))
        });
        rows.collect()
    }
}

/// Appends changes to a topic.
fn put(log: &Log, topic: &str, changes: &[Change]) {
    let stream = log.stream(topic).unwrap();
    for partition in 0..PARTITIONS {
        let mut producer =
            StreamProducer::for_partition(&stream, partition, ProducerId::NONE).unwrap();
        for Change { key, value } in changes {
            let key = key.as_bytes();
            if partition_of_key(key, PARTITIONS as usize) != partition as usize {
                continue;
            }
            let secondary = value.as_ref().and_then(|(_, secondary)| secondary.as_ref());
            let header = secondary.map(|secondary| Header {
                name: b"k.user",
                value: Some(secondary.as_bytes()),
            });
            let value = value.as_ref().map(|(value, _)| value.as_bytes());
            let pushed = producer.push(Timestamp(0), Some(key), value, header.as_slice());
            pushed.unwrap();
        }
        producer.flush().unwrap();
    }
}

/// Returns the flow that keeps a topic equal to the join.
fn flow(node: &Node, is_left_outer: bool, is_last: bool) -> (Flow, Topic<Text>) {
    let flow = Flow::new("join").checkpoint_interval(Duration::from_millis(5));
    let flow = match is_last {
        true => flow.until_now(),
        false => flow,
    };
    let [orders, users] = ["orders", "users"].map(|name| node.topic(name).json::<u64>());
    let rows = node.topic("rows").text().partitions(PARTITIONS);
    let flow = match is_left_outer {
        true => flow
            .left_outer_join_topics("join", orders, "user", users, |change, user| {
                format!("{change} {user:?}")
            })
            .write_keys(rows.clone()),
        false => flow
            .join_topics("join", orders, "user", users, |change, user| {
                format!("{change} {:?}", Some(user))
            })
            .write_keys(rows.clone()),
    };
    (flow, rows)
}

fn create(node: &Node) -> Result<(), Error> {
    let keyed = |name: &str| {
        let topic = node.topic(name).partitions(PARTITIONS);
        topic.setting("cleanup.policy", "compact")
    };
    let orders = keyed("orders").setting("millstream.keyed.secondary", "user");
    orders.create()?;
    keyed("users").create()?;
    Ok(())
}

/// Starts the flow again and again, and drops each run at a random moment, while programs change both topics. Then compares the rows
/// with those of the model.
fn check(node: &Node, log: &Log, is_left_outer: bool) -> Result<(), Error> {
    create(node)?;
    let mut model = Model::default();
    let mut rng = Rng::with_seed(7);
    for _ in 0..8 {
        let running = flow(node, is_left_outer, false).0.start()?;
        for _ in 0..rng.u32(1..12) {
            let orders = (0..rng.u32(..20)).map(|_| model.change_order(&mut rng));
            put(log, "orders", &orders.collect::<Vec<_>>());
            let users = (0..rng.u32(..4)).map(|_| model.change_user(&mut rng));
            put(log, "users", &users.collect::<Vec<_>>());
            thread::sleep(Duration::from_millis(rng.u64(..8)));
        }
        drop(running);
    }
    let (flow, rows) = flow(node, is_left_outer, true);
    flow.run()?;
    // A server answers a commit before readers see it.
    let started_at = Instant::now();
    let expected = model.rows(is_left_outer);
    while rows.read_keys::<String>()? != expected {
        if started_at.elapsed() > Duration::from_secs(20) {
            assert_eq!(rows.read_keys::<String>()?, expected);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn an_inner_join_that_is_dropped_and_resumed_equals_the_model_on_a_log() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let log = Log::open(LogConfig::new(dir.path())).unwrap();
    check(&Node::of_log(&log), &log, false)
}

#[test]
fn a_left_outer_join_that_is_dropped_and_resumed_equals_the_model_on_a_server() -> Result<(), Error>
{
    let dir = tempfile::tempdir()?;
    let (log, server) = servers::start(dir.path(), |_, _| {});
    let node = Node::connect(&server.local_address().to_string())?;
    check(&node, &log, true)
}

#[test]
fn a_join_of_a_topic_without_keys_or_without_the_index_does_not_start() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    create(&node)?;
    node.topic("plain").create()?;
    let error = |left: &str, index: &str, right: &str| {
        let [left, right] = [left, right].map(|name| node.topic(name).text());
        let joined =
            Flow::new("join").join_topics("join", left, index, right, |one, _| one.clone());
        let running = joined.write_keys(node.topic("rows").text()).start();
        running.map(drop).unwrap_err().to_string()
    };
    let plain = "topic plain: its setting cleanup.policy is \"delete\", so its values are not found by key: set it to \"compact\"";
    assert_eq!(error("plain", "user", "users"), plain);
    assert_eq!(error("orders", "user", "plain"), plain);
    assert_eq!(
        error("orders", "city", "users"),
        "topic orders: its setting millstream.keyed.secondary is \"user\", so it has no index of secondary keys named \"city\": add it there"
    );
    let missing = error("orders", "user", "none");
    assert!(
        missing.starts_with("topic none: it does not exist"),
        "{missing}"
    );
    Ok(())
}
