//! Each query over generated events, on several workers and with many checkpoints: the results are those of a plain computation
//! over the list of the events.

mod answers;
mod kills;
mod lengths;
mod program;
mod reference;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::num::{NonZeroU64, NonZeroUsize};

use millstream::flow::changes::RowSet;
use millstream::flow::{FlowSettings, Key};
use millstream::{Error, Flow, Node, RowChange, Timestamp, millis};
use millstream_nexmark::{Event, EventGenerator, Origin, QUERIES, Query};
use serde_json::{Value, json};

const EVENTS: u64 = 20_000;

/// Fifty seconds before midnight: the events of 100 seconds belong to two days.
const GENERATOR: EventGenerator = EventGenerator {
    seed: 3,
    start: Timestamp(1_436_918_350_000),
    rate: NonZeroU64::new(200).unwrap(),
};

/// From 5 o'clock on, for more than five hours.
const SLOW: EventGenerator = EventGenerator {
    start: Timestamp(1_436_936_400_000),
    rate: NonZeroU64::MIN,
    ..GENERATOR
};

fn events(generator: EventGenerator) -> Vec<Event> {
    (0..EVENTS).map(|number| generator.event(number)).collect()
}

/// Several sources make the events, so their order differs from run to run.
fn generated(generator: EventGenerator) -> Origin {
    Origin::Generated {
        generator,
        events: EVENTS,
        sources: 3,
    }
}

/// Runs a query to the end of its events.
fn run(node: &Node, name: &str, origin: Origin) -> Result<(), Error> {
    let settings = FlowSettings {
        workers: NonZeroUsize::new(4).unwrap(),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings(name, settings)
        .checkpoint_interval(millis(10))
        .until_now();
    let mut definitions = QUERIES.iter();
    let definition = definitions.find(|query| query.name == name).unwrap();
    let query = Query::new(flow, node, origin);
    (definition.build)(&query).run()
}

/// Returns the records of a topic.
fn records(node: &Node, topic: &str) -> Result<Vec<Value>, Error> {
    node.topic(topic).json::<Value>().read_all()
}

/// Returns the rows as text, in the order of the text.
fn sorted(rows: impl IntoIterator<Item = Value>) -> Vec<String> {
    let mut rows: Vec<String> = rows.into_iter().map(|row| row.to_string()).collect();
    rows.sort_unstable();
    rows
}

/// Returns the rows that changes leave.
fn folded(changes: Vec<Value>) -> Vec<Value> {
    let mut rows = RowSet::default();
    for change in changes {
        let change: RowChange<Value> = serde_json::from_value(change).unwrap();
        let applied = rows.apply(change.map(|row| row.to_string()));
        applied.expect("a change takes back a row that is there");
    }
    rows.iter()
        .flat_map(|(row, times)| (0..times).map(|_| serde_json::from_str(row).unwrap()))
        .collect()
}

/// Returns the columns of bids by which they are compared: others differ between bids that are equal for a query.
fn columns(bids: Vec<Value>) -> Vec<Value> {
    let fields = ["auction", "bidder", "price", "date_time"];
    let row = |bid: Value| fields.iter().map(|field| bid[field].clone()).collect();
    bids.into_iter().map(row).collect()
}

fn same(rows: Vec<Value>) -> Vec<Value> {
    rows
}

/// Runs a query, and compares the records of its results, as `read` reads them, with the expected ones.
fn check_of(
    generator: EventGenerator,
    name: &str,
    answer: impl Fn(&[Event]) -> Vec<Value>,
    read: impl Fn(Vec<Value>) -> Vec<Value>,
) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    run(&node, name, generated(generator))?;
    let expected = sorted(answer(&events(generator)));
    assert!(!expected.is_empty(), "the test needs results");
    assert_eq!(sorted(read(records(&node, name)?)), expected);
    Ok(())
}

fn check(
    name: &str,
    answer: impl Fn(&[Event]) -> Vec<Value>,
    read: impl Fn(Vec<Value>) -> Vec<Value>,
) -> Result<(), Error> {
    check_of(GENERATOR, name, answer, read)
}

/// The same for a query whose results are the last records of keys.
fn check_last<K: Key + Debug>(
    name: &str,
    answer: impl Fn(&[Event]) -> Vec<Value>,
) -> Result<(), Error> {
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    run(&node, name, generated(GENERATOR))?;
    let found = node.topic(name).json::<Value>().read_keys::<K>()?;
    assert_eq!(
        sorted(found.into_values()),
        sorted(answer(&events(GENERATOR)))
    );
    Ok(())
}

#[test]
fn q0_gives_each_bid() -> Result<(), Error> {
    check("q0", answers::q0, same)
}

#[test]
fn q1_converts_the_price_of_each_bid() -> Result<(), Error> {
    check("q1", answers::q1, same)
}

#[test]
fn q2_selects_bids_by_auction() -> Result<(), Error> {
    check("q2", answers::q2, same)
}

#[test]
fn q3_finds_the_sellers_of_a_category() -> Result<(), Error> {
    check("q3", answers::q3, folded)
}

#[test]
fn q4_computes_the_mean_winning_price_of_each_category() -> Result<(), Error> {
    check("q4", answers::q4, folded)
}

#[test]
fn q5_finds_the_auctions_with_the_most_bids() -> Result<(), Error> {
    check("q5", answers::q5, same)
}

#[test]
fn q7_finds_the_highest_bids() -> Result<(), Error> {
    check("q7", answers::q7, same)
}

#[test]
fn q8_finds_sellers_among_new_persons() -> Result<(), Error> {
    check("q8", answers::q8, same)
}

#[test]
fn q9_finds_the_winning_bid_of_each_auction() -> Result<(), Error> {
    let winning = |row: Value| json!([row[0], row[1]["price"], row[1]["date_time"]]);
    check("q9", answers::q9, |changes| {
        folded(changes).into_iter().map(winning).collect()
    })
}

#[test]
fn q10_writes_each_bid_with_its_minute_as_the_key() -> Result<(), Error> {
    check_of(SLOW, "q10", answers::q10, same)?;
    let dir = tempfile::tempdir()?;
    let node = Node::embedded(dir.path())?;
    run(&node, "q10", generated(GENERATOR))?;
    let found = node.topic("q10").json::<Value>().read_keys::<String>()?;
    let mut minutes: Vec<String> = found.into_keys().collect();
    minutes.sort_unstable();
    let expected = ["2015-07-14 23:59", "2015-07-15 00:00"];
    assert_eq!(minutes, expected);
    Ok(())
}

#[test]
fn q11_counts_the_bids_of_sessions() -> Result<(), Error> {
    check("q11", answers::q11, same)
}

#[test]
fn q12_counts_bids_in_windows_of_the_wall_clock() -> Result<(), Error> {
    check("q12", answers::q12, |windows| {
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for window in windows {
            let [bidder, count, start, end] = [0, 1, 2, 3].map(|it| window[it].as_u64().unwrap());
            assert!(
                start.is_multiple_of(10_000) && end == start + 10_000,
                "{window}"
            );
            *counts.entry(bidder).or_default() += count;
        }
        counts.into_iter().map(|sum| json!(sum)).collect()
    })
}

#[test]
fn q13_adds_a_value_of_a_table() -> Result<(), Error> {
    check("q13", answers::q13, same)
}

#[test]
fn q14_selects_bids_by_price_and_tells_the_time_of_the_day() -> Result<(), Error> {
    check_of(SLOW, "q14", answers::q14, same)
}

#[test]
fn q15_counts_by_day() -> Result<(), Error> {
    check_last::<String>("q15", answers::q15)
}

#[test]
fn q16_counts_by_channel_and_day() -> Result<(), Error> {
    check_last::<(String, String)>("q16", answers::q16)
}

#[test]
fn q17_aggregates_prices_by_auction_and_day() -> Result<(), Error> {
    check("q17", answers::q17, folded)
}

#[test]
fn q18_keeps_the_last_bid_of_each_bidder_for_each_auction() -> Result<(), Error> {
    check("q18", answers::q18, |changes| columns(folded(changes)))
}

#[test]
fn q19_keeps_the_highest_bids_for_each_auction() -> Result<(), Error> {
    check("q19", answers::q19, |changes| columns(folded(changes)))
}

#[test]
fn q20_joins_bids_with_the_auctions_of_a_category() -> Result<(), Error> {
    check("q20", answers::q20, folded)
}

#[test]
fn q21_finds_the_numbers_of_channels() -> Result<(), Error> {
    check("q21", answers::q21, same)
}

#[test]
fn q22_splits_the_addresses_of_pages() -> Result<(), Error> {
    check("q22", answers::q22, same)
}
