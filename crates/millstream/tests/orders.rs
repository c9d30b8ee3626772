//! The orders program of the guide: sums in windows, a top list and a join, in the process and over a server.

mod servers;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use millstream::flow::FlowSettings;
use millstream::flow::windows::WindowResult;
use millstream::{Error, Flow, Node, Timestamp, out_of_order, secs, tumbling};
use millstream_exchange::Ranks;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Order {
    id: u64,
    user: String,
    price: u64,
    time: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Payment {
    order: u64,
    time: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Paid {
    id: u64,
    user: String,
}

/// Ten orders of each of 20 users in each of three windows of ten seconds.
fn orders() -> impl Iterator<Item = Order> {
    (0..600).map(|id| Order {
        id,
        user: format!("user {}", id % 20),
        price: id % 7,
        time: Timestamp((id * 50).cast_signed()),
    })
}

/// The sums by user and window, by a plain computation.
fn expected() -> BTreeMap<(String, i64), u64> {
    let mut sums = BTreeMap::new();
    for order in orders() {
        let window = order.time.0 / 10_000 * 10_000;
        *sums.entry((order.user, window)).or_default() += order.price;
    }
    sums
}

/// The program: windowed sums, a top 3, and a join with payments.
fn program(node: &Node, settings: FlowSettings) -> Result<Flow, Error> {
    let flow = Flow::with_settings("shop", settings);
    let orders = flow
        .read(node.topic("orders").json::<Order>().until_now())
        .event_time(|order| order.time, out_of_order(secs(5)));
    orders
        .key_by(|order| order.user.clone())
        .window(tumbling(secs(10)))
        .sum(|order| order.price)
        .serve_as("totals")
        .write(node.topic("totals").json());
    flow.read(node.topic("orders").json::<Order>().until_now())
        .event_time(|order| order.time, out_of_order(secs(5)))
        .key_by(|order| order.user.clone())
        .window(tumbling(secs(10)))
        .count()
        .serve_as("counts")
        .top("busiest", 3, |count| count.value)
        .write(node.topic("busiest").json());
    let payments = flow
        .read(node.topic("payments").json::<Payment>().until_now())
        .event_time(|payment| payment.time, out_of_order(secs(5)))
        .key_by(|payment| payment.order);
    flow.read(node.topic("orders").json::<Order>().until_now())
        .event_time(|order| order.time, out_of_order(secs(5)))
        .key_by(|order| order.id)
        .window(tumbling(secs(10)))
        .join("paid", payments, |order, _| Paid {
            id: order.id,
            user: order.user.clone(),
        })
        .write(node.topic("paid").json());
    Ok(flow)
}

/// Runs the program on some ranks, and returns the newest windows of a user that they have.
fn run(node: &Node, ranks: u32) -> Result<Vec<Value>, Error> {
    let run_rank = |ranks: Ranks| {
        let settings = FlowSettings {
            ranks: ranks.clone(),
            ..FlowSettings::default()
        };
        let ran = program(node, settings).and_then(|flow| {
            let running = flow.start()?;
            running.join()?;
            let totals = running.state("totals");
            Ok(totals.and_then(|totals| totals.get("user 3")))
        });
        let ran = ran.inspect_err(|error| ranks.fail(&error.to_string()));
        ranks.leave()?;
        ran
    };
    thread::scope(|scope| {
        let ranks = Ranks::threads(ranks).into_iter();
        let threads: Vec<_> = ranks
            .map(|ranks| scope.spawn(move || run_rank(ranks)))
            .collect();
        let newest = threads.into_iter().map(|thread| thread.join().unwrap());
        Ok(newest
            .collect::<Result<Vec<_>, Error>>()?
            .into_iter()
            .flatten()
            .collect())
    })
}

fn check(node: &Node, ranks: u32) -> Result<(), Error> {
    let orders_topic = node
        .topic("orders")
        .json::<Order>()
        .partitions(4)
        .create()?;
    orders_topic.send(orders())?;
    let payments = node
        .topic("payments")
        .json::<Payment>()
        .partitions(2)
        .create()?;
    let third = |order: &Order| order.id.is_multiple_of(3);
    payments.send(orders().filter(third).map(|order| Payment {
        order: order.id,
        time: order.time,
    }))?;
    let newest = run(node, ranks)?;
    assert_eq!(newest.len(), 1, "one rank owns the user");
    assert_eq!(newest[0]["window_start"], 20_000);

    let totals = committed::<WindowResult<String, u64>>(node, "totals", 60)?;
    let found: BTreeMap<(String, i64), u64> = totals
        .into_iter()
        .map(|window| ((window.key, window.start.0), window.value))
        .collect();
    assert_eq!(found, expected());
    let busiest = committed::<Value>(node, "busiest", 3)?;
    assert_eq!(busiest.len(), 3);
    assert_eq!(busiest[0]["value"].as_array().map(Vec::len), Some(3));
    let paid = committed::<Paid>(node, "paid", 200)?;
    assert_eq!(paid.len(), 200);
    assert!(
        paid.iter()
            .all(|paid| paid.id % 3 == 0 && paid.user == format!("user {}", paid.id % 20))
    );
    Ok(())
}

/// Reads a topic until it has `count` values: a server makes them visible soon after the commit.
fn committed<T>(node: &Node, topic: &str, count: usize) -> Result<Vec<T>, Error>
where
    T: DeserializeOwned + Debug + Clone + Send + 'static,
{
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        let values = node.topic(topic).json::<T>().read_all()?;
        if values.len() >= count || Instant::now() > until {
            return Ok(values);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_orders_program_runs_in_the_process() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?, 1)
}

#[test]
fn the_orders_program_runs_over_a_server() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?, 1)
}

#[test]
fn two_ranks_share_the_partitions_and_the_keys() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?, 2)?;
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?, 2)
}

#[test]
fn the_error_for_a_missing_topic_says_how_to_create_it() -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    reads_nothing(&Node::embedded(dir.path())?);
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    reads_nothing(&Node::connect(&server.local_address().to_string())?);
    Ok(())
}

fn reads_nothing(node: &Node) {
    let started = Flow::new("none")
        .read(node.topic("nothing").text())
        .write(node.topic("copy").text())
        .run();
    let error = started.expect_err("there is no such topic").to_string();
    let expected = "topic nothing: it does not exist: send its first record, or make it with `millstream stream create nothing`";
    assert_eq!(error, expected);
}
