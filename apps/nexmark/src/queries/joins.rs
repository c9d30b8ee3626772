//! Queries that join persons with auctions, and auctions with bids, over all time.

use std::cmp::Reverse;
use std::sync::Arc;

use millstream::flow::windows::{Max, Mean};
use millstream::{Flow, Pipeline, RowChange};

use crate::event::{Auction, Bid, Event};
use crate::query::Query;

/// The category of which some queries select the auctions.
const CATEGORY: u64 = 10;

/// The auctions of a category with their sellers in three states, as changes: name, city, state, auction.
pub fn q3(query: &Query) -> Flow {
    let events = query.select(|event| match event {
        Event::Bid(_) => None,
        other => Some(other.clone()),
    });
    let [persons, auctions] = events.fork();
    let persons = persons
        .flat_map(Event::person)
        .filter(|person| ["OR", "ID", "CA"].contains(&person.state.as_str()))
        .map(|person| {
            let (name, city) = (person.name.clone(), person.city.clone());
            (person.id, (name, city, person.state.clone()))
        })
        .key_by(|(person, _)| *person)
        .inserts();
    let results = auctions
        .flat_map(Event::auction)
        .filter(|auction| auction.category == CATEGORY)
        .map(|auction| (auction.seller, auction.id))
        .key_by(|(seller, _)| *seller)
        .inserts()
        .connect(persons)
        .inner("sellers")
        .map(|change| {
            let change = change.clone();
            change.map(|((_, auction), (_, (name, city, state)))| (name, city, state, auction))
        });
    query.end(results)
}

/// The mean of the winning prices of each category: category, price in US cents.
pub fn q4(query: &Query) -> Flow {
    type Winning = ((u64, u64), Option<u64>);
    let (auctions, bids) = auctions_and_bids(query);
    // The join keeps its rows, so they have only what the result needs.
    let bids = bids
        .map(|bid| (bid.auction, bid.price, bid.date_time))
        .key_by(|(auction, ..)| *auction)
        .inserts();
    let results = auctions
        .map(|it| (it.id, it.category, it.date_time, it.expires))
        .key_by(|(auction, ..)| *auction)
        .inserts()
        .connect(bids)
        .inner_with("bids", |(auction, category, begin, end), (_, price, at)| {
            let is_valid = (begin..=end).contains(&at);
            is_valid.then_some((*auction, *category, *price))
        })
        .map(|change| *change.row())
        .key_by(|(auction, category, _)| (*auction, *category))
        .running("winning", Max::of(|(_, _, price): &(u64, u64, u64)| *price))
        .key_rows(|((_, category), _)| *category)
        .running(
            "means",
            Mean::of(|(_, price): &Winning| price.unwrap_or_default()),
        );
    query.end(results)
}

/// Each auction with its highest bid, of equal ones the earliest.
pub fn q9(query: &Query) -> Flow {
    // Neither auctions nor bids are ever taken back, so all changes are inserts.
    let results = bids_of_auctions(
        query,
        |_| true,
        |auction, bid| (auction.date_time..=auction.expires).contains(&bid.date_time),
    )
    .map(|change| change.row().clone())
    .key_by(|(auction, _)| auction.id)
    .top("winning", 1, |(_, bid)| (bid.price, Reverse(bid.date_time)));
    query.end(results)
}

/// The auctions of a category with each of their bids, as changes.
pub fn q20(query: &Query) -> Flow {
    let is_selected = |auction: &Arc<Auction>| auction.category == CATEGORY;
    let results = bids_of_auctions(query, is_selected, |_, _| true);
    query.end(results)
}

/// Returns some auctions, each with those of its bids that are valid.
fn bids_of_auctions(
    query: &Query,
    is_selected: fn(&Arc<Auction>) -> bool,
    is_valid: fn(&Auction, &Bid) -> bool,
) -> Pipeline<RowChange<(Arc<Auction>, Arc<Bid>)>> {
    let (auctions, bids) = auctions_and_bids(query);
    let bids = bids.key_by(|bid| bid.auction).inserts();
    auctions
        .filter(is_selected)
        .key_by(|auction| auction.id)
        .inserts()
        .connect(bids)
        .inner_with("bids", move |auction: &Arc<Auction>, bid: &Arc<Bid>| {
            is_valid(auction, bid).then(|| (auction.clone(), bid.clone()))
        })
        .boxed()
}

fn auctions_and_bids(query: &Query) -> (Pipeline<Arc<Auction>>, Pipeline<Arc<Bid>>) {
    let events = query.select(|event| match event {
        Event::Person(_) => None,
        other => Some(other.clone()),
    });
    let [auctions, bids] = events.fork();
    let auctions = auctions.flat_map(Event::auction).boxed();
    (auctions, bids.flat_map(Event::bid).boxed())
}
