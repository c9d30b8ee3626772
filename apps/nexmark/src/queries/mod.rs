//! The queries.

mod bids;
mod changes;
mod joins;
mod windows;

use millstream::Flow;

use crate::query::Query;

/// A query of the benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// The name, such as `q5`.
    pub name: &'static str,
    /// The results, in a line.
    pub about: &'static str,
    /// Adds the operators of the query to its flow, and returns the flow.
    pub build: fn(&Query) -> Flow,
}

const fn query(name: &'static str, about: &'static str, build: fn(&Query) -> Flow) -> Definition {
    Definition { name, about, build }
}

/// All queries, and `events`, which is none: it writes all events to a topic, from which queries can read them.
pub const QUERIES: [Definition; 23] = [
    query(
        "events",
        "All events, as `--topic` reads them",
        bids::events,
    ),
    query("q0", "Each bid", bids::q0),
    query("q1", "Each bid with its price in euros", bids::q1),
    query("q2", "The bids for some auctions", bids::q2),
    query(
        "q3",
        "The auctions of a category with their sellers in three states",
        joins::q3,
    ),
    query(
        "q4",
        "The mean of the winning prices of each category",
        joins::q4,
    ),
    query(
        "q5",
        "The auctions with the most bids in sliding windows",
        windows::q5,
    ),
    query("q7", "The highest bids in windows", windows::q7),
    query(
        "q8",
        "The persons that have offered something in the window of their registration",
        windows::q8,
    ),
    query("q9", "Each auction with its highest bid", joins::q9),
    query("q10", "Each bid, in partitions by its minute", bids::q10),
    query("q11", "The bids of each bidder in sessions", windows::q11),
    query(
        "q12",
        "The bids of each bidder in windows of the wall clock",
        windows::q12,
    ),
    query("q13", "Each bid with a row of a table", bids::q13),
    query(
        "q14",
        "The bids with middle prices and their time of the day",
        bids::q14,
    ),
    query(
        "q15",
        "Bids, bidders and auctions by day and price",
        changes::q15,
    ),
    query(
        "q16",
        "Bids, bidders and auctions by channel, day and price",
        changes::q16,
    ),
    query(
        "q17",
        "Bids by auction and day, with their prices",
        changes::q17,
    ),
    query(
        "q18",
        "The last bid of each bidder for each auction",
        changes::q18,
    ),
    query("q19", "The ten highest bids for each auction", changes::q19),
    query(
        "q20",
        "The auctions of a category with their bids",
        joins::q20,
    ),
    query(
        "q21",
        "The bids with the numbers of their channels",
        bids::q21,
    ),
    query("q22", "Each bid with the folders of its page", bids::q22),
];
