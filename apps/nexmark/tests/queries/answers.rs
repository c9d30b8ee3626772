//! The answers to the queries, by maps and loops over the list of all events.

use std::collections::{BTreeMap, BTreeSet};

use millstream_nexmark::{Auction, Bid, Event, day, hour, minute};
use serde::Serialize;
use serde_json::{Value, json};

fn bids(events: &[Event]) -> impl Iterator<Item = &Bid> {
    events.iter().filter_map(|event| match event {
        Event::Bid(bid) => Some(&**bid),
        _ => None,
    })
}

fn auctions(events: &[Event]) -> impl Iterator<Item = &Auction> {
    events.iter().filter_map(|event| match event {
        Event::Auction(auction) => Some(&**auction),
        _ => None,
    })
}

fn row(row: impl Serialize) -> Value {
    serde_json::to_value(row).unwrap()
}

/// The columns by which bids are compared.
fn columns(bid: &Bid) -> Value {
    row((bid.auction, bid.bidder, bid.price, bid.date_time))
}

/// Returns the begin of the window of a size that a time is in.
fn window(time_ms: i64, size_ms: i64) -> i64 {
    time_ms.div_euclid(size_ms) * size_ms
}

pub fn q0(events: &[Event]) -> Vec<Value> {
    bids(events).map(row).collect()
}

pub fn q1(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    for bid in bids(events) {
        let price = bid.price as f64 * 0.908;
        rows.push(json!([
            bid.auction,
            bid.bidder,
            price,
            bid.date_time,
            bid.extra
        ]));
    }
    rows
}

pub fn q2(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    for bid in bids(events) {
        if bid.auction % 123 == 0 {
            rows.push(json!([bid.auction, bid.price]));
        }
    }
    rows
}

pub fn q3(events: &[Event]) -> Vec<Value> {
    let mut persons = BTreeMap::new();
    for event in events {
        if let Event::Person(person) = event {
            persons.insert(person.id, person);
        }
    }
    let mut rows = Vec::new();
    for auction in auctions(events).filter(|auction| auction.category == 10) {
        let person = persons[&auction.seller];
        if matches!(person.state.as_str(), "OR" | "ID" | "CA") {
            rows.push(json!([person.name, person.city, person.state, auction.id]));
        }
    }
    rows
}

/// Returns the bids of each auction from its begin to its end, the highest first, of equal ones the earliest.
fn valid_bids(events: &[Event]) -> Vec<(&Auction, Vec<&Bid>)> {
    let mut by_auction: BTreeMap<u64, Vec<&Bid>> = BTreeMap::new();
    for bid in bids(events) {
        by_auction.entry(bid.auction).or_default().push(bid);
    }
    let mut found = Vec::new();
    for auction in auctions(events) {
        let mut bids = by_auction.remove(&auction.id).unwrap_or_default();
        bids.retain(|bid| bid.date_time >= auction.date_time && bid.date_time <= auction.expires);
        bids.sort_by_key(|bid| (u64::MAX - bid.price, bid.date_time));
        if !bids.is_empty() {
            found.push((auction, bids));
        }
    }
    found
}

pub fn q4(events: &[Event]) -> Vec<Value> {
    let mut categories: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (auction, bids) in valid_bids(events) {
        let prices = categories.entry(auction.category).or_default();
        prices.push(bids[0].price);
    }
    let mut rows = Vec::new();
    for (category, prices) in categories {
        let sum: u64 = prices.iter().sum();
        rows.push(json!([category, sum as f64 / prices.len() as f64]));
    }
    rows
}

pub fn q5(events: &[Event]) -> Vec<Value> {
    let mut windows: BTreeMap<i64, BTreeMap<u64, u64>> = BTreeMap::new();
    for bid in bids(events) {
        let last = window(bid.date_time.0, 2_000);
        for start in (0..5).map(|back| last - back * 2_000) {
            let counts = windows.entry(start).or_default();
            *counts.entry(bid.auction).or_default() += 1;
        }
    }
    let mut rows = Vec::new();
    for (start, counts) in windows {
        let most = counts.values().max().copied();
        for (auction, count) in counts {
            if Some(count) == most {
                rows.push(json!([auction, count, start]));
            }
        }
    }
    rows
}

pub fn q7(events: &[Event]) -> Vec<Value> {
    let mut highest: BTreeMap<i64, u64> = BTreeMap::new();
    for bid in bids(events) {
        let price = highest.entry(window(bid.date_time.0, 10_000)).or_default();
        *price = bid.price.max(*price);
    }
    bids(events)
        .filter(|bid| highest[&window(bid.date_time.0, 10_000)] == bid.price)
        .map(row)
        .collect()
}

pub fn q8(events: &[Event]) -> Vec<Value> {
    let mut sellers = BTreeSet::new();
    for event in events {
        if let Event::Auction(auction) = event {
            sellers.insert((auction.seller, window(auction.date_time.0, 10_000)));
        }
    }
    let mut rows = Vec::new();
    for event in events {
        if let Event::Person(person) = event {
            let start = window(person.date_time.0, 10_000);
            if sellers.contains(&(person.id, start)) {
                rows.push(json!([person.id, person.name, start]));
            }
        }
    }
    rows
}

pub fn q9(events: &[Event]) -> Vec<Value> {
    let winning = valid_bids(events).into_iter();
    winning
        .map(|(auction, bids)| json!([auction, bids[0].price, bids[0].date_time]))
        .collect()
}

pub fn q10(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    for bid in bids(events) {
        let (day, minute) = (day(bid.date_time), minute(bid.date_time));
        rows.push(row((
            bid.auction,
            bid.bidder,
            bid.price,
            bid.date_time,
            &bid.extra,
            day,
            minute,
        )));
    }
    rows
}

pub fn q11(events: &[Event]) -> Vec<Value> {
    let mut times: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    for bid in bids(events) {
        times.entry(bid.bidder).or_default().push(bid.date_time.0);
    }
    let mut rows = Vec::new();
    for (bidder, mut times) in times {
        times.sort_unstable();
        let mut begin = 0;
        for next in 1..=times.len() {
            if next == times.len() || times[next] - times[next - 1] >= 10_000 {
                let (start, end) = (times[begin], times[next - 1] + 10_000);
                rows.push(json!([bidder, next - begin, start, end]));
                begin = next;
            }
        }
    }
    rows
}

/// The bids of each bidder in all windows together, since the wall clock decides the windows.
pub fn q12(events: &[Event]) -> Vec<Value> {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    for bid in bids(events) {
        *counts.entry(bid.bidder).or_default() += 1;
    }
    counts.into_iter().map(row).collect()
}

pub fn q13(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    for bid in bids(events) {
        let value = bid.auction % 10_000;
        rows.push(json!([
            bid.auction,
            bid.bidder,
            bid.price,
            bid.date_time,
            value
        ]));
    }
    rows
}

pub fn q14(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut parts = BTreeSet::new();
    for bid in bids(events) {
        let price = bid.price as f64 * 0.908;
        if price <= 1_000_000.0 || price >= 50_000_000.0 {
            continue;
        }
        let part = match hour(bid.date_time) {
            hour if (8..=18).contains(&hour) => "dayTime",
            hour if hour <= 6 || hour >= 20 => "nightTime",
            _ => "otherTime",
        };
        parts.insert(part);
        let letters = bid.extra.bytes().filter(|letter| *letter == b'c').count();
        rows.push(row((
            bid.auction,
            bid.bidder,
            price,
            part,
            bid.date_time,
            &bid.extra,
            letters,
        )));
    }
    assert_eq!(parts.len(), 3, "the events need all parts of a day");
    rows
}

/// Counts bids, and different bidders and auctions, in total and by price.
fn counts(bids: &[&Bid]) -> Value {
    let mut counts = [[0; 4]; 3];
    let ranges = [
        0..u64::MAX,
        0..10_000,
        10_000..1_000_000,
        1_000_000..u64::MAX,
    ];
    for (index, range) in ranges.into_iter().enumerate() {
        let bids = bids.iter().filter(|bid| range.contains(&bid.price));
        let bidders: BTreeSet<u64> = bids.clone().map(|bid| bid.bidder).collect();
        let auctions: BTreeSet<u64> = bids.clone().map(|bid| bid.auction).collect();
        counts[0][index] = bids.count();
        counts[1][index] = bidders.len();
        counts[2][index] = auctions.len();
    }
    json!({ "bids": counts[0], "bidders": counts[1], "auctions": counts[2] })
}

pub fn q15(events: &[Event]) -> Vec<Value> {
    let mut days: BTreeMap<String, Vec<&Bid>> = BTreeMap::new();
    for bid in bids(events) {
        days.entry(day(bid.date_time)).or_default().push(bid);
    }
    assert_eq!(days.len(), 2, "the events need two days");
    let rows = days.iter().map(|(day, bids)| json!([day, counts(bids)]));
    rows.collect()
}

pub fn q16(events: &[Event]) -> Vec<Value> {
    let mut channels: BTreeMap<(&str, String), Vec<&Bid>> = BTreeMap::new();
    for bid in bids(events) {
        let key = (bid.channel.as_str(), day(bid.date_time));
        channels.entry(key).or_default().push(bid);
    }
    let rows = channels.iter().map(|((channel, day), bids)| {
        let last = bids.iter().map(|bid| minute(bid.date_time)).max();
        json!([channel, day, last, counts(bids)])
    });
    rows.collect()
}

pub fn q17(events: &[Event]) -> Vec<Value> {
    let mut auctions: BTreeMap<(u64, String), Vec<&Bid>> = BTreeMap::new();
    for bid in bids(events) {
        let key = (bid.auction, day(bid.date_time));
        auctions.entry(key).or_default().push(bid);
    }
    let mut rows = Vec::new();
    for ((auction, day), bids) in auctions {
        let prices: Vec<u64> = bids.iter().map(|bid| bid.price).collect();
        let (min, max) = (prices.iter().min(), prices.iter().max());
        let sum: u64 = prices.iter().sum();
        let mean = sum as f64 / prices.len() as f64;
        let counts = &counts(&bids)["bids"];
        rows.push(json!([auction, day, counts, min, max, mean, sum]));
    }
    rows
}

pub fn q18(events: &[Event]) -> Vec<Value> {
    let mut last: BTreeMap<(u64, u64), &Bid> = BTreeMap::new();
    for bid in bids(events) {
        let present = last.entry((bid.bidder, bid.auction)).or_insert(bid);
        if (bid.date_time, bid.price) > (present.date_time, present.price) {
            *present = bid;
        }
    }
    last.into_values().map(columns).collect()
}

pub fn q19(events: &[Event]) -> Vec<Value> {
    let mut auctions: BTreeMap<u64, Vec<&Bid>> = BTreeMap::new();
    for bid in bids(events) {
        auctions.entry(bid.auction).or_default().push(bid);
    }
    let mut rows = Vec::new();
    for mut bids in auctions.into_values() {
        bids.sort_by(|one, other| {
            let by_price = other.price.cmp(&one.price);
            by_price.then(one.date_time.cmp(&other.date_time))
        });
        rows.extend(bids.into_iter().take(10).map(columns));
    }
    rows
}

pub fn q20(events: &[Event]) -> Vec<Value> {
    let selected = auctions(events).filter(|auction| auction.category == 10);
    let selected: BTreeMap<u64, &Auction> = selected.map(|it| (it.id, it)).collect();
    let mut rows = Vec::new();
    for bid in bids(events) {
        if let Some(auction) = selected.get(&bid.auction) {
            rows.push(json!([auction, bid]));
        }
    }
    rows
}

pub fn q21(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut without = 0;
    for bid in bids(events) {
        let known = ["Apple", "Google", "Facebook", "Baidu"];
        let known = known.iter().position(|channel| *channel == bid.channel);
        let id = match (known, bid.url.split_once("&channel_id=")) {
            (Some(number), _) => number.to_string(),
            (None, Some((_, id))) => id.to_owned(),
            (None, None) => {
                without += 1;
                continue;
            }
        };
        rows.push(json!([bid.auction, bid.bidder, bid.price, bid.channel, id]));
    }
    assert!(without > 0, "the events need channels without a number");
    rows
}

pub fn q22(events: &[Event]) -> Vec<Value> {
    let mut rows = Vec::new();
    for bid in bids(events) {
        let path = bid.url.strip_prefix("https://www.nexmark.com/").unwrap();
        let folders: Vec<&str> = path.split('/').collect();
        rows.push(row((
            bid.auction,
            bid.bidder,
            bid.price,
            &bid.channel,
            folders[0],
            folders[1],
            folders[2],
        )));
    }
    rows
}
