//! Reads of the greatest entries and by secondary keys.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{Checkpointing, Emit, Flow, FlowSettings, Resume, Running, Watermarks};
use millstream_serve::Server;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::serving::{Flows, MemoryStore, header, on_ranks};
use crate::support::{get, run, start, start_with};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Item {
    price: u64,
    sold: Sold,
    discount: Option<f64>,
    label: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Sold {
    count: i64,
}

/// Different ones for the items.
fn price(item: u64) -> u64 {
    item * 7 % 31
}

/// Keeps 30 items; each rank reads all of them.
fn shop(ranks: u32) -> Vec<Arc<Running>> {
    let store = Arc::new(MemoryStore::default());
    on_ranks(ranks, |ranks| shop_on(ranks, Arc::clone(&store)))
}

fn shop_on(ranks: Ranks, store: Arc<MemoryStore>) -> Flow {
    let settings = FlowSettings {
        checkpoints: Some(Checkpointing {
            store,
            interval: Some(Duration::from_millis(1)),
            resume: Resume::Never,
        }),
        ranks,
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let stock = flow.values::<u64, Item>("stock");
    let prices = flow.values::<String, u64>("prices");
    let numbers = flow.values::<String, u64>("numbers");
    let parities = flow.values::<String, Vec<u64>>("parities");
    let shelves = flow.values::<u64, Option<(String, u64)>>("shelves");
    let visits = flow.windowed("visits", Windows::tumbling(1_000), Count);
    let best = flow.tops::<u64, u64, String>("best", 2);
    let sums = flow.partial::<u64>("sums");
    let names = [
        "stock", "prices", "numbers", "parities", "shelves", "visits", "best", "sums",
    ];
    let channels = names.map(|name| flow.channel::<u64>(name));
    let time = |item: &u64| Timestamp(*item as i64);
    flow.source("source", Generator::new(|number| number).limit(30))
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .to_all(&channels);
    let stage = |place: usize| flow.stage(&format!("of {}", names[place]), &channels[place]);
    let name = |item: &u64| format!("item {item:02}");
    stage(0)
        .key_by(|item| *item)
        .fold("keep items", &stock, |kept, item| {
            *kept = Item {
                price: price(*item),
                sold: Sold {
                    count: 10 - *item as i64,
                },
                discount: (*item < 3).then_some(*item as f64 + 0.5),
                label: "new".to_owned(),
            };
        });
    stage(1)
        .key_by(name)
        .fold("keep prices", &prices, |kept, item| *kept = price(*item));
    stage(2)
        .key_by(name)
        .fold("keep numbers", &numbers, |kept, item| *kept = *item);
    stage(3)
        .key_by(|item| ["even", "odd"][*item as usize % 2].to_owned())
        .fold("keep parities", &parities, |kept, item| {
            kept.push(*item);
            kept.sort_unstable();
            kept.dedup();
        });
    stage(4)
        .key_by(|item| *item)
        .fold("keep shelves", &shelves, |kept, item| {
            *kept = (*item > 0).then(|| ("shelf".to_owned(), *item));
        });
    stage(5)
        .key_by(|item| match item {
            ..10 => 0_u64,
            10..25 => 1,
            _ => 2,
        })
        .aggregate("count visits", &visits, time)
        .fold_local(&sums, |sum, window| *sum += window.value);
    stage(6)
        .key_by(|item| item % 3)
        .update(
            "keep the best",
            &best,
            |_: &u64, mut best, item, _: &mut Emit<'_, u64>| {
                best.put(&price(*item), &format!("item {item:02}"));
            },
        )
        .fold_local(&sums, |sum, item| *sum += item);
    stage(7).fold_local(&sums, |sum, item| *sum += item);
    flow
}

/// Returns the entries of an answer, each a key and a value.
#[track_caller]
fn entries(server: &Server, query: &str) -> Vec<(String, Value)> {
    let answer = get(server, &format!("/state/shop/{query}"));
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let json = answer.json();
    let entries = json.as_array().expect("a list").iter();
    let entry = |it: &Value| {
        (
            it["key"].as_str().expect("a key").to_owned(),
            it["value"].clone(),
        )
    };
    entries.map(entry).collect()
}

#[track_caller]
fn check_keys(server: &Server, query: &str, expected: &[&str]) {
    let found = entries(server, query).into_iter().map(|(key, _)| key);
    assert_eq!(found.collect::<Vec<_>>(), expected, "{query}");
}

#[test]
fn the_greatest_entries_of_all_ranks_come_first() {
    for ranks in [1, 3] {
        let server = start_with(Arc::new(Flows(shop(ranks))));
        let mut expected: Vec<_> = (0..30)
            .map(|item| (format!("item {item:02}"), json!(price(item))))
            .collect();
        expected.sort_by_key(|(_, price)| std::cmp::Reverse(price.as_u64()));
        for level in ["", "&committed"] {
            for count in [1, 3, 29, 30, 10_000] {
                let found = entries(&server, &format!("prices?top={count}{level}"));
                assert_eq!(found, expected[..count.min(30)], "{count}");
            }
        }
        let of_range: Vec<_> = expected
            .iter()
            .filter(|(key, _)| key.starts_with("item 1"))
            .take(2)
            .cloned()
            .collect();
        assert_eq!(entries(&server, "prices?top=2&prefix=item%201"), of_range);
        let range = "prices?top=2&from=item%2010&to=item%2020";
        assert_eq!(entries(&server, range), of_range);
        check_keys(&server, "prices?top=3&prefix=none", &[]);
        let answer = get(&server, "/state/shop/prices?top=3&committed");
        let committed = header(&answer, "millstream-committed");
        assert_eq!(committed.as_deref(), Some("true"));
        assert_eq!(header(&answer, "millstream-next"), None);
    }
}

#[test]
fn a_field_is_compared_as_a_number() {
    let server = start_with(Arc::new(Flows(shop(2))));
    // 31 is prime, so 9 * 7 = 63 = 1 modulo 31.
    let (key, value) = entries(&server, "stock?top=1&of=price").remove(0);
    assert_eq!(value["price"], price(key.parse().unwrap()));
    assert_eq!(value["price"], 30);
    check_keys(&server, "stock?top=2&of=sold/count", &["0", "1"]);
    check_keys(&server, "stock?top=2&of=sold%2Fcount&from=5", &["5", "6"]);
    // The others have none.
    check_keys(&server, "stock?top=9&of=discount", &["2", "1", "0"]);
    // The second part of a pair; item 0 has none.
    check_keys(&server, "shelves?top=2&of=1", &["29", "28"]);
}

#[test]
fn windows_are_compared_by_their_value_and_top_lists_by_their_highest_score() {
    for ranks in [1, 2] {
        let server = start_with(Arc::new(Flows(shop(ranks))));
        check_keys(&server, "visits?top=2", &["1", "0"]);
        check_keys(&server, "visits?top=5&of=events", &["1", "0", "2"]);
        // All are equal.
        check_keys(&server, "visits?top=2&of=window_end", &["0", "1"]);
        let highest = |key: u64| (0..30).filter(|it| it % 3 == key).map(price).max();
        let mut keys: Vec<u64> = (0..3).collect();
        keys.sort_by_key(|key| std::cmp::Reverse(highest(*key)));
        let keys = keys.iter().map(u64::to_string).collect::<Vec<_>>();
        check_keys(&server, "best?top=2", &[&keys[0], &keys[1]]);
        check_keys(&server, "best?top=9&rank=0&committed", &{
            let mine = entries(&server, "best?rank=0").into_iter();
            let mine: Vec<_> = mine.map(|(key, _)| key).collect();
            let mine = keys.iter().filter(|key| mine.contains(key));
            mine.map(String::as_str).collect::<Vec<_>>()
        });
    }
}

/// The process held all of them at once.
#[test]
fn values_that_take_too_much_memory_together_are_refused() {
    let flow = Flow::new("shop");
    let texts = flow.values::<u64, String>("texts");
    flow.source("source", Generator::new(|number| number).limit(20))
        .key_by(|item| *item)
        .fold("keep texts", &texts, |text, item| {
            *text = item.to_string().repeat(1 << 20);
        });
    let server = start_with(Arc::new(Flows(vec![run(flow)])));
    let keys = |count: u64| {
        let keys: Vec<_> = (0..count).map(|key| format!("keys={key}")).collect();
        get(&server, &format!("/state/shop/texts?{}", keys.join("&")))
    };
    assert_eq!(keys(12).status, 200);
    keys(20).check_error(400, "take more than 16 MiB: ask for fewer");
}

#[test]
fn elements_and_values_that_cannot_be_compared_are_refused() {
    let server = start_with(Arc::new(Flows(shop(2))));
    let check = |query: &str, status, text: &str| {
        get(&server, &format!("/state/shop/{query}")).check_error(status, text);
    };
    check(
        "stock?top=3",
        400,
        "is a record with the fields discount, label, price, sold",
    );
    check("stock?top=3", 400, "of=<field>");
    check("stock?top=3&of=label", 400, "is a text");
    check(
        "stock?top=3&of=prise",
        400,
        "has no \"prise\": it is a record with the fields",
    );
    check("stock?top=3&of=price/x", 400, "has no \"price/x\"");
    check(
        "shelves?top=3",
        400,
        "no value of the element \"shelves\" has a number there",
    );
    check("best?top=3&of=x", 400, "is a list");
    check("visits?top=3&of=value/x", 400, "window_end");
    check("visits?top=3&from=1", 409, "have no order");
    check("visits?top=3&committed", 409, "only as it is now");
    check("sums?top=3", 409, "add rank=<n>");
    check_keys(&server, "sums?top=3&rank=1", &["count"]);
    check("prices?top=0", 400, "top=<n>");
    check("prices?top=10001", 400, "a number from 1 to 10000");
    check("prices?top=99999999999999999999", 400, "is refused");
    check("prices?top=3&limit=2", 400, "is refused");
    check("prices?of=x", 400, "is refused");
    check("prices/item%2001?top=1", 400, "for one key");
    check("prises?top=1", 404, "unknown element \"prises\"");
    let counts = get(&start(), "/state/ads/campaign_counts?top=2&of=views").json();
    let expected = ["campaign-00149", "campaign-00148"];
    assert_eq!([&counts[0]["key"], &counts[1]["key"]], expected);
}

#[test]
fn entries_are_found_by_the_values_of_another_element() {
    for ranks in [1, 3] {
        let server = start_with(Arc::new(Flows(shop(ranks))));
        for level in ["", "&committed"] {
            let query = format!("stock?by=numbers&keys=item%2007&keys=none&keys=item%2003{level}");
            let answer = get(&server, &format!("/state/shop/{query}"));
            let json = answer.json();
            let found = json.as_array().expect("a list").iter();
            let found = found.map(|it| json!([it["by"], it["key"], it["value"]["price"]]));
            let expected = [
                json!(["item 07", "7", price(7)]),
                json!(["item 03", "3", price(3)]),
            ];
            assert!(found.eq(expected), "{json}");
            let committed = header(&answer, "millstream-committed");
            assert_eq!(committed.as_deref(), Some("true"), "{level}");
        }
        // A range of secondary keys.
        let range = "stock?by=numbers&prefix=item%201&limit=2";
        check_keys(&server, range, &["10", "11"]);
        let answer = get(&server, &format!("/state/shop/{range}"));
        let next = header(&answer, "millstream-next");
        assert_eq!(next.as_deref(), Some("item%2011"));
        // Lists of keys.
        let odd: Vec<_> = (0..30).filter(|it| it % 2 == 1).collect();
        let odd: Vec<_> = odd.iter().map(u64::to_string).collect();
        let odd: Vec<_> = odd.iter().map(String::as_str).collect();
        check_keys(&server, "stock?by=parities&keys=odd", &odd);
        assert_eq!(entries(&server, "stock?by=parities").len(), 30);
        check_keys(&server, "stock?by=numbers&keys=none", &[]);
        // Windows have no ordered keys, and are found by them all the same.
        check_keys(
            &server,
            "visits?by=numbers&from=item%2000",
            &["0", "1", "2"],
        );
        // The number of visits in the windows of a key is not its value.
        get(&server, "/state/shop/stock?by=visits").check_error(400, "are no keys");
    }
}

#[test]
fn values_that_are_no_keys_are_refused() {
    let server = start_with(Arc::new(Flows(shop(2))));
    let check = |query: &str, status, text: &str| {
        get(&server, &format!("/state/shop/{query}")).check_error(status, text);
    };
    let unknown = "unknown element \"numbrs\" in by: the flow \"shop\" has the elements best, numbers, parities,";
    check("stock?by=numbrs&keys=a", 404, unknown);
    check("stock?by=", 404, "has the elements best");
    check("stoc?by=numbers", 404, "unknown element \"stoc\"");
    let no_keys = "the values of the element \"stock\" are no keys of the element \"prices\": the value of \"7\" is {";
    check("prices?by=stock&keys=7", 400, no_keys);
    // Null, and a text that is no number.
    check("stock?by=shelves&keys=0", 400, "is null");
    check("stock?by=shelves&keys=7", 400, "is \"shelf\"");
    check("stock?by=numbers&from=x&prefix=y", 400, "is refused");
    check("stock?by=numbers&top=1", 400, "is refused");
    check("stock?by=numbers&by=prices", 400, "is refused");
    check(
        "stock?by=visits&from=1",
        409,
        "the element \"visits\" have no order",
    );
    check(
        "stock?by=visits&committed",
        409,
        "\"visits\" is readable only as it is now",
    );
    check("stock/7?by=numbers", 400, "for one key");
}

#[test]
fn ranks_in_other_processes_take_part() {
    let ranks = shop(3);
    let all = start_with(Arc::new(Flows(ranks.clone())));
    let one = start_with(Arc::new(Flows(ranks[1..2].to_vec())));
    for query in [
        "prices?top=4",
        "prices?top=4&committed",
        "prices?top=4&rank=2",
        "stock?top=3&of=label",
        "visits?top=2",
        "sums?top=1",
        "sums?top=1&rank=0",
        "stock?by=numbers&limit=7",
        "stock?by=parities&keys=even&committed",
        "stock?by=shelves&keys=7",
    ] {
        let path = format!("/state/shop/{query}");
        let (expected, found) = (get(&all, &path), get(&one, &path));
        assert_eq!(found.status, expected.status, "{query}");
        if expected.status == 200 {
            assert_eq!(found.body, expected.body, "{query}");
        }
    }
}
