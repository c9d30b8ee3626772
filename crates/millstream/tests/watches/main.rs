//! Watches of state over HTTP: snapshots, changes and progress, on a log and on a server, also when the job is killed.

#[path = "../servers/mod.rs"]
mod servers;

mod events;
mod histories;
mod killed;
mod many;

use std::net::SocketAddr;
use std::time::Duration;

use millstream::{Error, Flow, Node, RunningFlow, Timestamp, out_of_order, secs, tumbling};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use events::{Events, line_of, status_of};

/// An order of a user.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    user: String,
    price: u64,
    time: Timestamp,
}

/// Sums the orders of each user, in all and in windows. An order of price 0 removes a sum.
fn start(node: &Node) -> Result<RunningFlow, Error> {
    let flow = Flow::new("shop")
        .checkpoint_interval(Duration::from_millis(5))
        .http(SocketAddr::from(([127, 0, 0, 1], 0)));
    let orders = flow
        .read(node.topic("orders").json::<Order>())
        .event_time(|order| order.time, out_of_order(secs(0)));
    flow.engine()
        .partial_map::<String, u64>("shares", |sum, share| *sum += share);
    let [summed, windowed] = orders.fork();
    summed
        .key_by(|order| order.user.clone())
        .state::<u64>("sums")
        .update(|_, sum, order, emit| {
            *sum = (order.price > 0).then(|| sum.unwrap_or(0) + order.price);
            emit(&order.price);
        })
        .write(node.topic("prices").json());
    windowed
        .key_by(|order| order.user.clone())
        .window(tumbling(secs(10)))
        .sum(|order| order.price)
        .serve_as("windows")
        .write(node.topic("windows").json());
    flow.start()
}

fn check(node: &Node) -> Result<(), Error> {
    let orders = node.topic("orders").json::<Order>().create()?;
    let order = |user: &str, price, time| Order {
        user: user.to_owned(),
        price,
        time: Timestamp(time),
    };
    let running = start(node)?;
    let address = running.http_address().expect("it serves HTTP");
    let sums = |query: &str| Events::open(address, &format!("/state/shop/sums{query}"), "");
    let mut all = sums("?watch");
    orders.send([order("ada", 1, 1_000), order("bob", 2, 2_000)])?;
    let mut seen =
        [all.change(), all.change()].map(|change| (change["key"].clone(), change["value"].clone()));
    seen.sort_by_key(|(key, _)| key.to_string());
    assert_eq!(seen, [(json!("ada"), json!(1)), (json!("bob"), json!(2))]);
    // It comes behind the changes.
    let mut progress = all.progress();
    while progress["position"] != "orders/0=2" {
        progress = all.progress();
    }
    let watermark = progress["watermark"].as_i64();
    assert!(watermark >= Some(1_000), "{progress}");
    let known = all.id.clone();

    let mut later = sums("?watch=snapshot");
    assert_eq!(later.event().0, "snapshot");
    let mut keys = [later.change(), later.change()].map(|change| change["key"].clone());
    keys.sort_by_key(Value::to_string);
    assert_eq!(keys, [json!("ada"), json!("bob")]);
    assert_eq!(later.event().0, "current");
    let mut one = sums("/bob?watch");
    let mut prefix = sums("?prefix=b&watch=snapshot");
    let is_end = |(name, _): (String, Value)| name == "current";
    while !is_end(prefix.event()) {}
    orders.send([order("ada", 5, 3_000), order("bob", 0, 12_000)])?;
    for events in [&mut one, &mut prefix] {
        let change = events.change();
        assert_eq!(
            (&change["key"], &change["deleted"]),
            (&json!("bob"), &json!(true))
        );
    }
    let mut again = Events::open(address, "/state/shop/sums?watch", &known);
    for events in [&mut all, &mut later, &mut again] {
        let mut seen =
            [events.change(), events.change()].map(|it| (it["key"].clone(), it["value"].clone()));
        seen.sort_by_key(|(key, _)| key.to_string());
        assert_eq!(
            seen,
            [(json!("ada"), json!(6)), (json!("bob"), Value::Null)]
        );
    }

    let open = line_of(address, "/metrics", "millstream_http_watches ");
    assert_eq!(open, "millstream_http_watches 5");

    // A window ends: its sum is the last one of its user.
    let mut windows = Events::open(address, "/state/shop/windows/ada?watch=snapshot", "");
    let last = windows.change_of(&json!({ "kind": "last" }));
    assert_eq!(last["key"], "ada");
    let expected = json!({ "window_start": 0, "window_end": 10_000, "value": 6, "events": 2 });
    assert_eq!(last["value"], expected);
    let mut windows = Events::open(address, "/state/shop/windows?watch", "");
    orders.send([order("eve", 7, 13_000)])?;
    let open = windows.change_of(&json!({ "kind": "open", "start": 10_000, "end": 20_000 }));
    assert_eq!(open["key"], "eve");
    assert_eq!(open["value"]["value"], 7);
    let (status, body) = status_of(address, "/state/shop/windows?prefix=a&watch", "");
    assert_eq!(status, 409, "{body}");

    check_refusals(address, &known);
    // The flow goes on where it was: so does a reader.
    let id = all.id.clone();
    running.stop();
    running.join()?;
    drop(running);
    let running = start(node)?;
    let address = running.http_address().expect("it serves HTTP");
    orders.send([order("ada", 1, 14_000)])?;
    let mut again = Events::open(address, "/state/shop/sums?watch", &id);
    let changes = [again.change(), again.change()];
    assert_eq!(changes.map(|it| it["value"].clone()), [json!(7), json!(7)]);
    running.stop();
    running.join()?;
    Ok(())
}

fn check_refusals(address: SocketAddr, known: &str) {
    let check = |path: &str, id: &str, expected: u16, why: &str| {
        let (status, body) = status_of(address, path, id);
        assert_eq!(status, expected, "{path}: {body}");
        assert!(body.contains(why), "{path}: {body}");
    };
    check(
        "/state/shop/shares?watch",
        "",
        409,
        "have shares of its values",
    );
    check("/state/shop/none?watch", "", 404, "unknown element");
    check("/state/none/sums?watch", "", 404, "unknown flow");
    check(
        "/state/shop/sums?watch&limit=1",
        "",
        400,
        "a watch of state may have",
    );
    check(
        "/state/shop/sums?watch=later",
        "",
        400,
        "a watch of state may have",
    );
    check(
        "/state/shop/sums/ada?watch&prefix=a",
        "",
        400,
        "a watch of state may have",
    );
    check("/state/shop/sums?watch", "1", 400, "Last-Event-ID");
    // Of other keys: it begins with a snapshot.
    let mut one = Events::open(address, "/state/shop/sums/ada?watch", known);
    assert_eq!(one.event().0, "reset");
    assert_eq!(one.event().0, "snapshot");
    let mut other = known.to_owned();
    other.replace_range(2..4, if &known[2..4] == "00" { "01" } else { "00" });
    check("/state/shop/sums?watch", &other, 400, "Last-Event-ID");
}

#[test]
fn readers_of_state_in_a_data_directory_see_each_change() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?)
}

#[test]
fn readers_of_state_on_a_server_see_each_change() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?)
}

#[test]
fn many_readers_of_state_in_a_data_directory_share_its_changes() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    many::check(&Node::embedded(dir.path())?)
}

#[test]
fn many_readers_of_state_on_a_server_share_its_changes() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    many::check(&Node::connect(&server.local_address().to_string())?)
}
