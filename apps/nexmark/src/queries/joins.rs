//! Queries that join persons with auctions, and auctions with bids, over all time.

use std::cmp::Reverse;
use std::fmt::Debug;

use millstream::flow::windows::{Key, Max, Mean};
use millstream::flow::{Emit, Value};
use millstream::{Flow, Pipeline};
use serde::{Deserialize, Serialize};

use crate::event::{Auction, Bid, Event};
use crate::query::Query;

/// The category of which some queries select the auctions.
const CATEGORY: u64 = 10;

/// An item of one of two kinds that are joined by a key.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Side<L, R> {
    /// The only one of its key.
    One(L),
    /// One of several with its key.
    Many(R),
}

/// The auctions of a category with their sellers in three states: name, city, state, auction.
pub fn q3(query: &Query) -> Flow {
    let items = query.select(|event| match event {
        Event::Person(person) => Some((person.id, Side::One(person.clone()))),
        Event::Auction(auction) if auction.category == CATEGORY => {
            Some((auction.seller, Side::Many(auction.id)))
        }
        _ => None,
    });
    join(query, items)
        .filter(|(person, _)| ["OR", "ID", "CA"].contains(&person.state.as_str()))
        .map(|(person, auction)| {
            let (name, city) = (person.name.clone(), person.city.clone());
            (name, city, person.state.clone(), *auction)
        })
        .write(query.results().json())
}

/// The mean of the winning prices of each category: category, price in US cents.
pub fn q4(query: &Query) -> Flow {
    bids_of_auctions(query)
        .filter(is_in_time)
        .key_by(|(auction, _)| (auction.id, auction.category))
        .running("winning", Max::of(|(_, bid): &(Auction, Bid)| bid.price))
        .key_rows(|((_, category), _)| *category)
        .running(
            "means",
            Mean::of(|(_, price): &((u64, u64), Option<u64>)| price.unwrap_or_default()),
        )
        .write(query.results().json())
}

/// Each auction with its highest bid, of equal ones the earliest.
pub fn q9(query: &Query) -> Flow {
    bids_of_auctions(query)
        .filter(is_in_time)
        .key_by(|(auction, _)| auction.id)
        .top("winning", 1, |(_, bid)| (bid.price, Reverse(bid.date_time)))
        .write(query.results().json())
}

/// The auctions of a category with each of their bids.
pub fn q20(query: &Query) -> Flow {
    bids_of_auctions(query)
        .filter(|(auction, _)| auction.category == CATEGORY)
        .write(query.results().json())
}

/// Returns whether a bid comes before the end of its auction.
fn is_in_time((auction, bid): &(Auction, Bid)) -> bool {
    (auction.date_time..=auction.expires).contains(&bid.date_time)
}

/// Returns each auction with each of its bids.
fn bids_of_auctions(query: &Query) -> Pipeline<(Auction, Bid)> {
    let items = query.select(|event| match event {
        Event::Person(_) => None,
        Event::Auction(auction) => Some((auction.id, Side::One(auction.clone()))),
        Event::Bid(bid) => Some((bid.auction, Side::Many(bid.clone()))),
    });
    join(query, items)
}

/// Joins the items of each key, in whatever order they come. State has the only item of each key, and those that wait for it.
fn join<K, L, R>(query: &Query, items: Pipeline<(K, Side<L, R>)>) -> Pipeline<(L, R)>
where
    K: Key + Debug,
    L: Value + Debug,
    R: Value + Debug,
{
    let engine = query.flow().engine();
    let only = engine.values::<K, L>("only");
    let waiting = engine.lists::<K, R>("waiting");
    items
        .key_by(|(key, _)| key.clone())
        .update(
            "join",
            &(only, waiting),
            |_, (only, mut waiting), (_, item), emit: &mut Emit<'_, (L, R)>| match item {
                Side::One(one) => {
                    while let Some(other) = waiting.pop_front() {
                        emit(&(one.clone(), other));
                    }
                    *only = Some(one.clone());
                }
                Side::Many(other) => match only {
                    Some(one) => emit(&(one.clone(), other.clone())),
                    None => waiting.push_back(other.clone()),
                },
            },
        )
        .boxed()
}
