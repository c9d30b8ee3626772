//! Many readers of one element: they share a feed.

use std::collections::BTreeMap;

use millstream::{Error, Node, Timestamp};

use super::{Order, start};
use crate::events::Events;

const USERS: u64 = 20;
const ROUNDS: u64 = 30;

/// A change: its key, its partition and version, and the sum.
type Change = (String, u64, u64, u64);

struct Reader {
    path: String,
    prefix: String,
    events: Events,
    seen: Vec<Change>,
}

impl Reader {
    /// Reads until each of its users has this sum.
    fn read_to(&mut self, sum: u64) {
        let users = (0..USERS).map(user);
        let users: Vec<String> = users.filter(|it| it.starts_with(&self.prefix)).collect();
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        let seen = self.seen.iter();
        sums.extend(seen.map(|(key, _, _, sum)| (key.clone(), *sum)));
        while users.iter().any(|user| sums.get(user) != Some(&sum)) {
            let change = self.events.change();
            let number = |name: &str| change[name].as_u64().expect("a number");
            let key = change["key"].as_str().expect("a text").to_owned();
            assert!(key.starts_with(&self.prefix), "{}: {change}", self.path);
            sums.insert(key.clone(), number("value"));
            let (partition, version) = (number("partition"), number("version"));
            self.seen.push((key, partition, version, number("value")));
        }
    }
}

fn user(number: u64) -> String {
    format!("u{number:02}")
}

/// Sends orders to a flow with its state on a node, while readers of keys and of ranges come back behind their last events.
pub fn check(node: &Node) -> Result<(), Error> {
    let orders = node.topic("orders").json::<Order>().create()?;
    let running = start(node)?;
    let address = running.http_address().expect("it serves HTTP");
    let open = |(path, prefix): (String, String)| Reader {
        events: Events::open(address, &path, ""),
        path,
        prefix,
        seen: Vec::new(),
    };
    let of_keys = (0..USERS).map(|it| (format!("/state/shop/sums/{}?watch", user(it)), user(it)));
    let of_ranges = ["", "u", "u1", "u0"].iter().cycle().take(12);
    let of_ranges = of_ranges.map(|prefix| {
        let path = format!("/state/shop/sums?prefix={prefix}&watch");
        (path, (*prefix).to_owned())
    });
    let mut readers: Vec<Reader> = of_keys.chain(of_ranges).map(open).collect();
    let send = |rounds: u64| {
        let order = |number| Order {
            user: user(number),
            price: 1,
            time: Timestamp(0),
        };
        (0..rounds).try_for_each(|_| orders.send((0..USERS).map(order)))
    };
    let mut sum = 0;
    for rounds in [ROUNDS, 1, ROUNDS] {
        send(rounds)?;
        sum += rounds;
        for (number, reader) in readers.iter_mut().enumerate() {
            reader.read_to(sum);
            // Some come back, others go on.
            if number % 3 == 0 {
                let id = reader.events.id.clone();
                reader.events = Events::open(address, &reader.path, &id);
            }
        }
    }
    // Each reader has seen the same changes of its keys.
    let all = readers.iter().find(|it| it.prefix.is_empty());
    let all = all.expect("one of all keys").seen.clone();
    for reader in &readers {
        let mut by_key: BTreeMap<&str, Vec<&Change>> = BTreeMap::new();
        for change in &reader.seen {
            by_key.entry(&change.0).or_default().push(change);
        }
        for (key, seen) in by_key {
            let expected: Vec<&Change> = all.iter().filter(|it| it.0 == key).collect();
            assert_eq!(seen, expected, "{}", reader.path);
            assert!(seen.is_sorted_by(|one, next| one.2 < next.2), "{seen:?}");
        }
    }
    // All readers learn of the end, and get no change twice before it.
    running.stop();
    running.join()?;
    drop(running);
    for reader in &mut readers {
        let mut last = String::new();
        while let Some(event) = reader.events.try_frame() {
            if let Some((name, data)) = event {
                assert_ne!(name, "change", "{data}");
                last = name;
            }
        }
        assert_eq!(last, "end", "{}", reader.path);
    }
    Ok(())
}
