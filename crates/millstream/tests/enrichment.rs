//! Streams that are enriched by a keyed topic, on a log and on a server.

mod servers;

use std::thread;
use std::time::{Duration, Instant};

use millstream::base::{ProducerId, Timestamp};
use millstream::connect::StreamProducer;
use millstream::log::{Log, LogConfig};
use millstream::{Error, Flow, Node, Topic, secs};

/// A node of a log, and of a server, each with the log.
fn on_all_nodes(check: impl Fn(&Node, &Log) -> Result<(), Error>) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let log = Log::open(LogConfig::new(dir.path())).unwrap();
    check(&Node::of_log(&log), &log)?;
    let dir = tempfile::tempdir()?;
    let (log, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?, &log)
}

/// Puts the price of an item, or deletes it.
fn set(log: &Log, item: &str, price: Option<&str>) {
    let prices = log.stream("prices").unwrap();
    let mut producer = StreamProducer::new(&prices, ProducerId::NONE).unwrap();
    let price = price.map(str::as_bytes);
    let pushed = producer.push(Timestamp(0), Some(item.as_bytes()), price, &[]);
    pushed.unwrap();
    producer.flush().unwrap();
}

fn prices(node: &Node) -> Result<Topic<impl millstream::Codec<Item = u64>>, Error> {
    let prices = node.topic("prices").json::<u64>();
    prices.setting("cleanup.policy", "compact").create()
}

#[test]
fn each_item_sees_the_newest_value_of_its_key() -> Result<(), Error> {
    on_all_nodes(|node, log| {
        let prices = prices(node)?;
        for (item, price) in [("tea", "3"), ("ink", "8"), ("tea", "4"), ("pen", "1")] {
            set(log, item, Some(price));
        }
        set(log, "ink", None);
        let orders = node.topic("orders").json::<(String, u64)>().create()?;
        let items = ["tea", "ink", "pen", "cup"];
        let order = |number: usize| (items[number % 4].to_owned(), number as u64);
        orders.send((0..400).map(order))?;
        let sums = node.topic("sums").json::<(u64, Option<u64>)>();
        Flow::new("orders")
            .read(orders.until_now())
            .key_by(|(item, _)| item.clone())
            .enrich("price", prices, |(_, number), price| {
                (*number, price.copied())
            })
            .write(sums.clone())
            .run()?;
        let mut found = sums.read_all()?;
        found.sort_unstable();
        let expected = [Some(4), None, Some(1), None];
        let expected = (0..400).map(|number| (number, expected[number as usize % 4]));
        assert_eq!(found, expected.collect::<Vec<_>>());
        Ok(())
    })
}

#[test]
fn a_running_flow_sees_a_change_when_the_value_is_too_old() -> Result<(), Error> {
    on_all_nodes(|node, log| {
        let prices = prices(node)?;
        set(log, "tea", Some("3"));
        let orders = node.topic("orders").json::<u64>().create()?;
        let seen = node.topic("seen").json::<Option<u64>>().create()?;
        let running = Flow::new("orders")
            .checkpoint_interval(Duration::from_millis(10))
            .read(orders.clone())
            .key_by(|_| "tea".to_owned())
            .enrich_within("price", prices, Duration::from_millis(20), |_, price| {
                price.copied()
            })
            .write(seen.clone())
            .start()?;
        let started_at = Instant::now();
        let see = |price: Option<u64>| -> Result<(), Error> {
            while seen.read_all()?.last() != Some(&price) {
                assert!(started_at.elapsed() < Duration::from_secs(60), "{price:?}");
                orders.send([1])?;
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        };
        see(Some(3))?;
        set(log, "tea", Some("4"));
        see(Some(4))?;
        set(log, "tea", None);
        see(None)?;
        drop(running);
        Ok(())
    })
}

#[test]
fn a_topic_that_is_missing_or_not_keyed_is_refused() -> Result<(), Error> {
    on_all_nodes(|node, _| {
        let orders = node.topic("orders").json::<u64>().create()?;
        node.topic("prices").create()?;
        let error = |topic: &str| {
            let flow = Flow::new("orders")
                .read(orders.clone())
                .key_by(|order| *order)
                .enrich("price", node.topic(topic).json::<u64>(), |order, _| *order)
                .write(node.topic("never").json());
            flow.start().map(drop).unwrap_err().to_string()
        };
        assert_eq!(
            error("prices"),
            "topic prices: its setting cleanup.policy is \"delete\", so its values are not found by key: set it to \"compact\""
        );
        let missing = error("costs");
        assert!(
            missing.starts_with("topic costs: it does not exist"),
            "{missing}"
        );
        Ok(())
    })
}

#[test]
fn a_value_that_the_codec_cannot_read_ends_the_flow_and_names_topic_and_key() -> Result<(), Error> {
    on_all_nodes(|node, log| {
        let prices = prices(node)?;
        set(log, "tea", Some("cheap"));
        let orders = node.topic("orders").json::<u64>().create()?;
        orders.send([1])?;
        let flow = Flow::new("orders")
            .read(orders.until_now())
            .key_by(|_| "tea".to_owned())
            .enrich_within("price", prices, secs(60), |_, price| price.copied())
            .write(node.topic("seen").json());
        let error = flow.run().unwrap_err().to_string();
        let expected =
            "flow \"orders\": \"price\" failed: stream prices: key \"tea\": expected value";
        assert!(error.starts_with(expected), "{error}");
        Ok(())
    })
}
