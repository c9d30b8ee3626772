//! Change streams of applications, in keyed and in plain topics, on a log and on a server.

mod servers;

use std::collections::{BTreeMap, HashMap};

use millstream::flow::windows::{Count, Sum};
use millstream::{Error, Flow, Node, RowChange};
use serde_json::json;

/// A user and an amount, which may be negative.
type Order = (String, i64);

/// A log and a server, each with the orders of some users.
fn on_all_nodes(check: impl Fn(&Node) -> Result<(), Error>) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?)?;
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?)
}

fn orders() -> Vec<Order> {
    let order = |number: i64| (format!("user {}", number % 7), number * number % 23 - 9);
    (0..500).map(order).collect()
}

/// The sum of each user.
fn totals() -> HashMap<String, i64> {
    let mut totals = HashMap::new();
    for (user, amount) in orders() {
        *totals.entry(user).or_default() += amount;
    }
    totals
}

fn user((user, _): &Order) -> String {
    user.clone()
}

fn amount((_, amount): &Order) -> i64 {
    *amount
}

#[test]
fn a_keyed_topic_has_the_rows_that_changes_leave() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders_topic = node.topic("orders").json::<Order>().create()?;
        orders_topic.send(orders())?;
        let sums = node.topic("sums").json::<i64>();
        // Users by their sums: a user leaves the former sum when the sum changes.
        let users = node.topic("users").json::<u64>();
        let flow = Flow::new("totals");
        let [of_sums, of_users] = flow
            .read(orders_topic.until_now())
            .key_by(user)
            .running("totals", Sum::of(amount))
            .fork();
        of_sums.write_rows(sums.clone(), |(user, sum)| (user.clone(), *sum));
        of_users
            .key_rows(|(_, sum)| *sum)
            .running("users", Count)
            .write_rows(users.clone(), |row| *row)
            .run()?;
        assert_eq!(sums.read_keys::<String>()?, totals());
        let mut expected: HashMap<i64, u64> = HashMap::new();
        totals()
            .values()
            .for_each(|sum| *expected.entry(*sum).or_default() += 1);
        assert_eq!(users.read_keys::<i64>()?, expected);
        Ok(())
    })
}

#[test]
fn a_plain_topic_has_each_change_with_its_kind() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders = node.topic("orders").json::<Order>().create()?;
        orders.send([("ada".to_owned(), 3), ("ada".to_owned(), 4)])?;
        let changes = node.topic("changes").json::<RowChange<(String, i64)>>();
        Flow::new("totals")
            .read(orders.until_now())
            .key_by(user)
            .running("totals", Sum::of(amount))
            .write(changes.clone())
            .run()?;
        let found = node
            .topic("changes")
            .json::<serde_json::Value>()
            .read_all()?;
        let expected = [
            json!({"op": "+I", "row": ["ada", 3]}),
            json!({"op": "-U", "row": ["ada", 3]}),
            json!({"op": "+U", "row": ["ada", 7]}),
        ];
        assert_eq!(found, expected);
        assert_eq!(
            changes.read_all()?[2],
            RowChange::UpdateAfter(("ada".to_owned(), 7))
        );
        Ok(())
    })
}

#[test]
fn a_topic_that_is_not_keyed_takes_no_rows() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders = node.topic("orders").json::<Order>().create()?;
        orders.send([("ada".to_owned(), 3)])?;
        let plain = node.topic("plain").json::<i64>().create()?;
        let written = Flow::new("totals")
            .read(orders.until_now())
            .key_by(user)
            .running("totals", Sum::of(amount))
            .write_rows(plain, |row| row.clone())
            .run();
        let error = written.expect_err("the topic is not keyed").to_string();
        let begin =
            "topic plain: its setting cleanup.policy is \"delete\", so it cannot take rows by key";
        assert!(error.starts_with(begin), "{error}");
        Ok(())
    })
}

#[test]
fn a_keyed_topic_takes_no_changes_in_place_of_rows() -> Result<(), Error> {
    on_all_nodes(|node| {
        let orders = node.topic("orders").json::<Order>().create()?;
        orders.send([("ada".to_owned(), 3)])?;
        for policy in ["compact", "compact,delete"] {
            let keyed = node.topic(&policy.replace(',', "-"));
            let keyed = keyed.setting("cleanup.policy", policy).json().create()?;
            // The handle's own settings do not count: the topic is there.
            for keyed in [keyed.clone(), keyed.setting("cleanup.policy", "delete")] {
                let name = keyed.name().to_owned();
                let written = Flow::new("totals")
                    .read(orders.clone().until_now())
                    .key_by(user)
                    .running("totals", Sum::of(amount))
                    .filter(|_| true)
                    .write(keyed)
                    .run();
                let error = written.expect_err("the topic is keyed").to_string();
                let begin = format!(
                    "topic {name}: its setting cleanup.policy is {policy:?}, so it keeps the newest change"
                );
                assert!(error.starts_with(&begin), "{error}");
                assert!(error.contains("with `write_rows`"), "{error}");
            }
        }
        Ok(())
    })
}

#[test]
fn a_change_stream_is_read_from_a_topic_and_followed() -> Result<(), Error> {
    on_all_nodes(|node| {
        let changes = node.topic("changes").json::<RowChange<Order>>().create()?;
        let row = |user: &str, amount| (user.to_owned(), amount);
        changes.send([
            RowChange::Insert(row("ada", 5)),
            RowChange::Insert(row("bob", 9)),
            RowChange::Insert(row("cat", 7)),
            RowChange::Insert(row("bob", 2)),
            RowChange::Delete(row("bob", 9)),
            RowChange::Delete(row("dan", 1)),
            RowChange::UpdateBefore(row("bob", 2)),
            RowChange::UpdateAfter(row("bob", 3)),
        ])?;
        let best = node.topic("best").json::<i64>();
        let seen = node.topic("seen").json::<u64>();
        let flow = Flow::new("best");
        let [of_best, of_seen] = flow.read(changes.until_now()).fork();
        of_best
            .key_rows(|_| 1)
            .top("top", 2, amount)
            .write_rows(best.clone(), |row| row.clone());
        of_seen
            .key_rows(user)
            .distinct("seen")
            .write_rows(seen.clone(), |user| (user.clone(), 1))
            .run()?;
        let found: BTreeMap<_, _> = best.read_keys::<String>()?.into_iter().collect();
        assert_eq!(found, BTreeMap::from([row("ada", 5), row("cat", 7)]));
        let mut users: Vec<_> = seen.read_keys::<String>()?.into_keys().collect();
        users.sort_unstable();
        assert_eq!(users, ["ada", "bob", "cat"]);
        Ok(())
    })
}

#[test]
fn the_last_and_the_highest_items_of_each_key_are_kept_in_a_topic() -> Result<(), Error> {
    on_all_nodes(|node| {
        let numbers = node.topic("numbers").json::<(u64, u64)>().create()?;
        let item = |number: u64| (number, number * 7 % 31);
        numbers.send((0..100).map(item))?;
        let last = node.topic("last").json::<u64>();
        let highest = node.topic("highest").json::<u64>();
        let flow = Flow::new("numbers");
        let [of_last, of_highest] = flow.read(numbers.until_now()).fork();
        of_last
            .key_by(|(number, _)| number % 2)
            .last("recent", 3)
            .write_rows(last.clone(), |row| *row);
        of_highest
            .key_by(|(number, _)| number % 2)
            .top("best", 2, |(number, points)| (*points, *number))
            .write_rows(highest.clone(), |row| *row)
            .run()?;
        let expected: HashMap<u64, u64> = (94..100).map(item).collect();
        assert_eq!(last.read_keys::<u64>()?, expected);
        let mut expected = HashMap::new();
        for rest in 0..2 {
            let mut items: Vec<_> = (0..100).map(item).filter(|it| it.0 % 2 == rest).collect();
            items.sort_unstable_by_key(|(number, points)| (*points, *number));
            expected.extend(items.into_iter().rev().take(2));
        }
        assert_eq!(highest.read_keys::<u64>()?, expected);
        Ok(())
    })
}
