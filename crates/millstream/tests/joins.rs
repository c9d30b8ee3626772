//! Joins of topics without windows, on a log and on a server.

mod servers;

use std::collections::HashMap;

use millstream::flow::Upsert;
use millstream::flow::windows::Sum;
use millstream::{Error, Flow, Node, RowChange, Timestamp, out_of_order, secs};

/// A log and a server.
fn on_all_nodes(check: impl Fn(&Node) -> Result<(), Error>) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?)?;
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?)
}

/// A key, a number and a time.
type Item = (u64, u64, i64);

fn items(count: u64, factor: u64) -> Vec<Item> {
    let item = |number: u64| (number * factor % 7, number, (number * factor) as i64 * 100);
    (0..count).map(item).collect()
}

#[test]
fn items_join_by_event_time() -> Result<(), Error> {
    on_all_nodes(|node| {
        let [firsts, seconds] = ["firsts", "seconds"].map(|name| node.topic(name).json::<Item>());
        let (firsts, seconds) = (firsts.create()?, seconds.create()?);
        firsts.send(items(300, 2))?;
        seconds.send(items(200, 3))?;
        let pairs = node.topic("pairs").json::<(u64, u64)>();
        let flow = Flow::new("pairs");
        let [first, second] = [firsts, seconds].map(|topic| {
            flow.read(topic.until_now())
                .event_time(|(_, _, time)| Timestamp(*time), out_of_order(secs(1)))
                .key_by(|(key, ..)| *key)
        });
        first
            .connect(second)
            .interval_join("joined", -500..=1_000, |first, second| (first.1, second.1))
            .write(pairs.clone())
            .run()?;
        let mut expected = Vec::new();
        for first in items(300, 2) {
            let distance = |second: &Item| second.2 - first.2;
            let partners = items(200, 3).into_iter();
            let partners = partners.filter(|second| second.0 == first.0);
            let partners = partners.filter(|second| (-500..=1_000).contains(&distance(second)));
            expected.extend(partners.map(|second| (first.1, second.1)));
        }
        assert!(!expected.is_empty());
        let mut found = pairs.read_all()?;
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
        Ok(())
    })
}

#[test]
fn items_join_the_versions_of_their_times() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders = node.topic("orders").json::<Item>().create()?;
        let rates = node.topic("rates").json::<Item>().create()?;
        orders.send(items(300, 2))?;
        rates.send(items(100, 5))?;
        let joined = node.topic("joined").json::<(u64, Option<u64>)>();
        let flow = Flow::new("orders");
        let [orders, rates] = [orders, rates].map(|topic| {
            flow.read(topic.until_now())
                .event_time(|(_, _, time)| Timestamp(*time), out_of_order(secs(1)))
        });
        let rates = rates
            .map(|rate| match rate.1 % 4 {
                3 => Upsert::Delete(*rate),
                _ => Upsert::Put(*rate),
            })
            .key_by(|rate| rate.row().0);
        orders
            .key_by(|(key, ..)| *key)
            .connect(rates)
            .left_outer_temporal_join("valid", |order, rate| (order.1, rate.map(|rate| rate.1)))
            .write(joined.clone())
            .run()?;
        let mut found = joined.read_all()?;
        found.sort_unstable();
        let expected: Vec<_> = (items(300, 2).into_iter())
            .map(|(key, number, time)| {
                let rates = items(100, 5).into_iter();
                let rates = rates.filter(|rate| rate.0 == key && rate.2 <= time);
                let valid = rates.max_by_key(|rate| rate.2);
                (
                    number,
                    valid.filter(|rate| rate.1 % 4 != 3).map(|rate| rate.1),
                )
            })
            .collect();
        assert_eq!(found, expected);
        Ok(())
    })
}

/// A sum of a key, and the name of the key.
type Named = ((u64, u64), (u64, String));

#[test]
fn a_keyed_topic_has_the_rows_of_a_join_of_changes() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders = node.topic("orders").json::<Item>().create()?;
        let names = node.topic("names").json::<(u64, String)>().create()?;
        orders.send(items(500, 3))?;
        // The last key has no name.
        names.send((0..6).map(|key| (key, format!("name {key}"))))?;
        let totals = node.topic("totals").json::<(u64, Option<String>)>();
        let changes = node.topic("changes").json::<RowChange<Named>>();
        let flow = Flow::new("totals");
        let [of_totals, of_changes] = flow
            .read(orders.until_now())
            .key_by(|(key, ..)| *key)
            .running("sums", Sum::of(|(_, number, _): &Item| *number))
            .fork();
        let [names, other_names] = flow.read(names.until_now()).fork();
        of_totals
            .key_rows(|(key, _)| *key)
            .connect(names.key_by(|(key, _)| *key).inserts())
            .left_outer("named")
            .write_rows(totals.clone(), |((key, sum), name)| {
                (*key, (*sum, name.as_ref().map(|(_, name)| name.clone())))
            });
        of_changes
            .key_rows(|(key, _)| *key)
            .connect(other_names.key_by(|(key, _)| *key).inserts())
            .inner("changed")
            .write(changes.clone())
            .run()?;
        let mut sums: HashMap<u64, u64> = HashMap::new();
        for (key, number, _) in items(500, 3) {
            *sums.entry(key).or_default() += number;
        }
        let found = totals.read_keys::<u64>()?;
        assert_eq!(found.len(), 7);
        for (key, (sum, name)) in found {
            let expected = (key < 6).then(|| format!("name {key}"));
            assert_eq!((sum, name), (sums[&key], expected), "key {key}");
        }
        let mut left: HashMap<Named, i64> = HashMap::new();
        for change in changes.read_all()? {
            *left.entry(change.row().clone()).or_default() += change.weight();
        }
        left.retain(|_, weight| *weight != 0);
        assert_eq!(left.len(), 6);
        for (((key, sum), (named, _)), weight) in left {
            assert_eq!((key, sum, weight), (named, sums[&key], 1));
        }
        Ok(())
    })
}
