//! Windows by number and by the wall clock, of applications on a log and on a server.

mod servers;

use std::collections::BTreeMap;

use millstream::flow::windows::{Count, Sum};
use millstream::{CountWindow, Error, Flow, Node, secs, session};

/// A user and an amount.
type Order = (String, u64);

/// A log and a server.
fn on_all_nodes(check: impl Fn(&Node) -> Result<(), Error>) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    check(&Node::embedded(dir.path())?)?;
    let dir = tempfile::tempdir()?;
    let (_, server) = servers::start(dir.path(), |_, _| {});
    check(&Node::connect(&server.local_address().to_string())?)
}

fn orders(numbers: std::ops::Range<u64>) -> Vec<Order> {
    let order = |number| (format!("user {}", number % 3), number * number % 23);
    numbers.map(order).collect()
}

#[test]
fn count_windows_have_the_last_items_of_each_key() -> Result<(), Error> {
    on_all_nodes(|node| {
        let topic = node.topic("orders").json::<Order>().create()?;
        topic.send(orders(0..300))?;
        let sums = node.topic("sums").json::<CountWindow<String, u64>>();
        Flow::new("recent")
            .read(topic.until_now())
            .key_by(|(user, _)| user.clone())
            .count_windows("last_seven", 7, 3, Sum::of(|(_, amount): &Order| *amount))
            .write(sums.clone())
            .run()?;
        let mut found: BTreeMap<String, Vec<(u64, u64, u64)>> = BTreeMap::new();
        for window in sums.read_all()? {
            let of_key = found.entry(window.key).or_default();
            of_key.push((window.last, window.events, window.value));
        }
        let mut amounts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (user, amount) in orders(0..300) {
            amounts.entry(user).or_default().push(amount);
        }
        assert_eq!(found.len(), 3);
        for (user, amounts) in amounts {
            let ends = (3..=amounts.len()).step_by(3);
            let expected: Vec<_> = ends
                .map(|end| {
                    let window = &amounts[end.saturating_sub(7)..end];
                    (end as u64, window.len() as u64, window.iter().sum())
                })
                .collect();
            assert_eq!(found[&user], expected);
        }
        Ok(())
    })
}

#[test]
fn windows_of_the_clock_have_each_item_once() -> Result<(), Error> {
    on_all_nodes(|node| {
        let topic = node.topic("orders").json::<Order>().create()?;
        topic.send(orders(0..300))?;
        let counts = node.topic("counts").json::<(String, u64)>();
        Flow::new("busy")
            .read(topic.clone().until_now())
            .key_by(|(user, _)| user.clone())
            .clock_windows("sessions", session(secs(3_600)), Count)
            .map(|window| (window.key.clone(), window.value))
            .write(counts.clone())
            .run()?;
        let mut counts = counts.read_all()?;
        counts.sort_unstable();
        let expected = (0..3).map(|user| (format!("user {user}"), 100));
        assert_eq!(counts, expected.collect::<Vec<_>>());
        Ok(())
    })
}

#[test]
fn windows_of_no_items_are_refused() -> Result<(), Error> {
    on_all_nodes(|node| {
        let topic = node.topic("orders").json::<Order>().create()?;
        let error = Flow::new("recent")
            .read(topic.clone().until_now())
            .key_by(|(user, _)| user.clone())
            .count_windows("last", 0, 3, Count)
            .map(|window| window.value)
            .write(node.topic("counts").json())
            .run()
            .unwrap_err();
        let expected = "flow \"recent\": \"last\" cannot have these windows: their size and slide are at least one item";
        assert_eq!(error.to_string(), expected);
        Ok(())
    })
}
