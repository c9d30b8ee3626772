//! Queries over windows.

use std::cmp::Ordering;
use std::sync::Arc;

use millstream::flow::Value;
use millstream::flow::windows::{Aggregate, All, Count, fold};
use millstream::{Flow, Timestamp, millis, secs, session, sliding, tumbling};

use crate::event::{Bid, Event};
use crate::query::Query;

/// The auctions with the most bids in the last ten seconds, every two seconds: auction, number of bids, begin of the window.
/// Several auctions may have the same number.
pub fn q5(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|bid| bid.auction)
        .window(sliding(secs(10), secs(2)))
        .count()
        .serve_as("bids")
        .map(|window| (window.key, window.value, window.start))
        .key_by(|_| All)
        // Results of windows that end together have one time.
        .window(tumbling(millis(1)))
        .aggregate(highest(|(_, bids, _): &(u64, u64, Timestamp)| *bids))
        .serve_as("hottest")
        .flat_map(|window| window.value.clone());
    query.end(results)
}

/// The bids with the highest price in each window of ten seconds.
pub fn q7(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|_| All)
        .window(tumbling(secs(10)))
        .aggregate(highest(|bid: &Arc<Bid>| bid.price))
        .serve_as("highest")
        .flat_map(|window| window.value.clone());
    query.end(results)
}

/// The persons that have offered something in the window of ten seconds in which they have registered: person, name, begin of
/// the window.
pub fn q8(query: &Query) -> Flow {
    let events = query.select(|event| match event {
        Event::Bid(_) => None,
        other => Some(other.clone()),
    });
    let [persons, auctions] = events.fork();
    let auctions = auctions
        .flat_map(Event::auction)
        .map(|auction| auction.seller)
        .key_by(|seller| *seller);
    let results = persons
        .flat_map(Event::person)
        .map(|person| (person.id, person.name.clone()))
        .key_by(|(person, _)| *person)
        .window(tumbling(secs(10)))
        .co_group("sellers", auctions, |persons, auctions| {
            let seller = persons.first().filter(|_| !auctions.is_empty());
            seller.map(|person| {
                let (id, name) = person.item.clone();
                (id, name, person.time.0.div_euclid(10_000) * 10_000)
            })
        });
    query.end(results)
}

/// The bids of each bidder in sessions, which end with ten seconds without a bid: bidder, number of bids, begin, end.
pub fn q11(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|bid| bid.bidder)
        .window(session(secs(10)))
        .count()
        .serve_as("sessions")
        .map(|window| (window.key, window.value, window.start, window.end));
    query.end(results)
}

/// The bids of each bidder in windows of ten seconds of the wall clock: bidder, number of bids, begin, end.
pub fn q12(query: &Query) -> Flow {
    let results = query
        .bids()
        .key_by(|bid| bid.bidder)
        .clock_windows("bids", tumbling(secs(10)), Count)
        .map(|window| (window.key, window.value, window.start, window.end));
    query.end(results)
}

/// All items with the highest score.
fn highest<T: Value, S: Ord + 'static>(
    score: impl Fn(&T) -> S + Copy + Send + Sync + 'static,
) -> impl Aggregate<T, Out = Vec<T>> {
    let add = move |highest: &mut Vec<T>, item: &T| {
        let best = highest.first();
        match best.map(|best| score(item).cmp(&score(best))) {
            Some(Ordering::Less) => {}
            Some(Ordering::Equal) => highest.push(item.clone()),
            None | Some(Ordering::Greater) => *highest = vec![item.clone()],
        }
    };
    fold(
        Vec::new,
        add,
        move |highest: &mut Vec<T>, other: &Vec<T>| {
            other.iter().for_each(|item| add(highest, item));
        },
    )
}
