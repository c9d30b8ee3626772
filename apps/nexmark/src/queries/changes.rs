//! Queries whose results change with each bid.

use std::cmp::Reverse;
use std::sync::Arc;

use millstream::Flow;
use millstream::flow::MapOf;
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
    fn add<K: Key>(&mut self, bidders: &mut Seen<'_, K>, auctions: &mut Seen<'_, K>, bid: &Bid) {
        let indexes = indexes(bid);
        indexes.iter().for_each(|index| self.bids[*index] += 1);
        for index in mark(bidders, bid.bidder, indexes) {
            self.bidders[index] += 1;
        }
        for index in mark(auctions, bid.auction, indexes) {
            self.auctions[index] += 1;
        }
    }
}

/// The indexes of [`ByPrice`] at which each bidder or auction was counted, as bits.
type Seen<'a, K> = MapOf<'a, K, u64, u8>;

/// Returns those of the indexes at which a bidder or an auction is counted for the first time.
fn mark<K: Key>(
    seen: &mut Seen<'_, K>,
    id: u64,
    indexes: [usize; 2],
) -> impl Iterator<Item = usize> {
    let before = seen.get(&id).copied().unwrap_or_default();
    let after = indexes.iter().fold(before, |bits, index| bits | 1 << index);
    if after != before {
        seen.insert(&id, after);
    }
    let is_new = move |index: &usize| before & 1 << index == 0;
    indexes.into_iter().filter(is_new)
}

/// Bids, bidders and auctions of each day: day, counts. The topic is keyed by the day, whose last record counts.
pub fn q15(query: &Query) -> Flow {
    let bids = query.bids();
    let engine = query.flow().engine();
    let counts = engine.values::<String, Counts>("counts");
    let bidders = engine.maps::<String, u64, u8>("bidders");
    let auctions = engine.maps::<String, u64, u8>("auctions");
    let results = bids.key_by(|bid| day(bid.date_time)).update(
        "count",
        &(counts, bidders, auctions),
        |day, (counts, mut bidders, mut auctions), bid, emit| {
            let counts = counts.get_or_insert_default();
            counts.add(&mut bidders, &mut auctions, bid);
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
    let bidders = engine.maps::<(String, String), u64, u8>("bidders");
    let auctions = engine.maps::<(String, String), u64, u8>("auctions");
    let results = bids
        .key_by(|bid| (bid.channel.clone(), day(bid.date_time)))
        .update(
            "count",
            &(counts, bidders, auctions),
            |key, (counts, mut bidders, mut auctions), bid, emit| {
                let (last, counts) = counts.get_or_insert_default();
                *last = minute(bid.date_time).max(last.clone());
                counts.add(&mut bidders, &mut auctions, bid);
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
        |counts: &mut ByPrice, bid: &Arc<Bid>| {
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
    let price = |bid: &Arc<Bid>| bid.price;
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
