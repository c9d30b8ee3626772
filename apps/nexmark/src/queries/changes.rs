//! Queries whose results change with each bid.

use std::cmp::Reverse;

use millstream::Flow;
use millstream::flow::SetOf;
use millstream::flow::windows::{Key, Max, Mean, Min, Sum, fold};
use serde::{Deserialize, Serialize};

use crate::calendar::{day, minute};
use crate::event::Bid;
use crate::query::Query;

/// Counts of all bids, and of those with prices below 10,000, below 1,000,000, and above.
type ByPrice = [u64; 4];

/// Counts of bids, and of different bidders and auctions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Counts {
    bids: ByPrice,
    bidders: ByPrice,
    auctions: ByPrice,
}

/// A bidder or an auction that was counted already, at an index of [`ByPrice`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Seen {
    Bidder(u64, usize),
    Auction(u64, usize),
}

/// Returns the indexes of [`ByPrice`] at which a bid counts.
fn indexes(bid: &Bid) -> [usize; 2] {
    let of_price = match bid.price {
        0..10_000 => 1,
        10_000..1_000_000 => 2,
        1_000_000.. => 3,
    };
    [0, of_price]
}

impl Counts {
    fn add<K: Key>(&mut self, seen: &mut SetOf<'_, K, Seen>, bid: &Bid) {
        for index in indexes(bid) {
            self.bids[index] += 1;
            self.bidders[index] += u64::from(seen.insert(&Seen::Bidder(bid.bidder, index)));
            self.auctions[index] += u64::from(seen.insert(&Seen::Auction(bid.auction, index)));
        }
    }
}

/// Bids, bidders and auctions of each day: day, counts. The topic is keyed by the day, whose last record counts.
pub fn q15(query: &Query) -> Flow {
    let bids = query.bids();
    let engine = query.flow().engine();
    let counts = engine.values::<String, Counts>("counts");
    let seen = engine.sets::<String, Seen>("seen");
    let results = bids.key_by(|bid| day(bid.date_time)).update(
        "count",
        &(counts, seen),
        |day, (counts, mut seen), bid, emit| {
            let counts = counts.get_or_insert_default();
            counts.add(&mut seen, bid);
            emit(&(day.clone(), *counts));
        },
    );
    let topic = query.results().setting("cleanup.policy", "compact");
    query.end_in(results, topic)
}

/// Bids, bidders and auctions of each channel and day: channel, day, minute of the last bid, counts. The topic is keyed by channel and
/// day.
pub fn q16(query: &Query) -> Flow {
    let bids = query.bids();
    let engine = query.flow().engine();
    let counts = engine.values::<(String, String), (String, Counts)>("counts");
    let seen = engine.sets::<(String, String), Seen>("seen");
    let results = bids
        .key_by(|bid| (bid.channel.clone(), day(bid.date_time)))
        .update(
            "count",
            &(counts, seen),
            |key, (counts, mut seen), bid, emit| {
                let (last, counts) = counts.get_or_insert_default();
                *last = minute(bid.date_time).max(last.clone());
                counts.add(&mut seen, bid);
                let (channel, day) = key.clone();
                emit(&(channel, day, last.clone(), *counts));
            },
        );
    let topic = query.results().setting("cleanup.policy", "compact");
    query.end_in(results, topic)
}

/// Bids for each auction on each day: auction, day, counts, and the least, highest, mean and total price.
pub fn q17(query: &Query) -> Flow {
    let counts = fold(
        ByPrice::default,
        |counts: &mut ByPrice, bid: &Bid| {
            for index in indexes(bid) {
                counts[index] += 1;
            }
        },
        |counts: &mut ByPrice, other: &ByPrice| {
            for (count, other) in counts.iter_mut().zip(other) {
                *count += other;
            }
        },
    );
    let price = |bid: &Bid| bid.price;
    let prices = (
        Min::of(price),
        Max::of(price),
        Mean::of(price),
        Sum::of(price),
    );
    let results = query
        .bids()
        .key_by(|bid| (bid.auction, day(bid.date_time)))
        .running("prices", (counts, prices))
        .map(|change| {
            let change = change.clone();
            change.map(|((auction, day), (counts, (min, max, mean, sum)))| {
                (auction, day, counts, min, max, mean, sum)
            })
        });
    query.end(results)
}

/// The last bid of each bidder for each auction. Of two bids at the same time the higher one is the last.
pub fn q18(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|bid| (bid.bidder, bid.auction))
        .top("last", 1, |bid| (bid.date_time, bid.price));
    query.end(results)
}

/// The ten highest bids for each auction. Of two equal bids the earlier one is the higher.
pub fn q19(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|bid| bid.auction)
        .top("highest", 10, |bid| (bid.price, Reverse(bid.date_time)));
    query.end(results)
}
