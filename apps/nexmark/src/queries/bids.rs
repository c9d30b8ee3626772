//! Queries over one bid at a time.

use millstream::Flow;
use millstream::flow::Table;

use crate::calendar::{day, hour, minute};
use crate::event::Bid;
use crate::query::Query;

/// The rows of the table of [`q13`].
const TABLE_ROWS: u64 = 10_000;

/// Each event as it is.
pub fn events(query: &Query) -> Flow {
    let results = query.events();
    query.end(results)
}

/// Each bid as it is: the cost of input and output, without a computation.
pub fn q0(query: &Query) -> Flow {
    let results = query.bids();
    query.end(results)
}

/// Each bid with its price in euros: auction, bidder, price, time, extra.
pub fn q1(query: &Query) -> Flow {
    let results = query.bids().map(|bid| {
        let price = euros(bid.price);
        let extra = bid.extra.clone();
        (bid.auction, bid.bidder, price, bid.date_time, extra)
    });
    query.end(results)
}

/// The bids for one auction in 123: auction, price.
pub fn q2(query: &Query) -> Flow {
    let results = query
        .bids()
        .filter(|bid| bid.auction.is_multiple_of(123))
        .map(|bid| (bid.auction, bid.price));
    query.end(results)
}

/// Each bid with its day and minute, in a topic whose partitions divide the minutes: auction, bidder, price, time, extra, day,
/// minute.
pub fn q10(query: &Query) -> Flow {
    let results = query.bids().map(|bid| {
        let (day, minute) = (day(bid.date_time), minute(bid.date_time));
        let extra = bid.extra.clone();
        (
            bid.auction,
            bid.bidder,
            bid.price,
            bid.date_time,
            extra,
            day,
            minute,
        )
    });
    match query.is_discarded() {
        true => query.end(results),
        false => results
            .key_by(|(.., day, minute)| format!("{day} {minute}"))
            .write(query.results().partitions(4).json()),
    }
}

/// Each bid with the value of its auction in a table: auction, bidder, price, time, value.
pub fn q13(query: &Query) -> Flow {
    let table = Table::new((0..TABLE_ROWS).map(|row| (row, row)));
    let results = query.bids().lookup(
        &table,
        |bid| bid.auction % TABLE_ROWS,
        |bid, value| (bid.auction, bid.bidder, bid.price, bid.date_time, *value),
    );
    query.end(results)
}

/// The bids from one to fifty million cents of euros: auction, bidder, price in euros, time of the day, time, extra, number of the
/// letters `c` in extra.
pub fn q14(query: &Query) -> Flow {
    let results = query
        .bids()
        .map(|bid| (bid.clone(), euros(bid.price)))
        .filter(|(_, price)| *price > 1_000_000.0 && *price < 50_000_000.0)
        .map(|(bid, price)| {
            let part = match hour(bid.date_time) {
                8..=18 => "dayTime",
                7 | 19 => "otherTime",
                _ => "nightTime",
            };
            let extra = bid.extra.clone();
            let letters = extra.matches('c').count();
            (
                bid.auction,
                bid.bidder,
                *price,
                part,
                bid.date_time,
                extra,
                letters,
            )
        });
    query.end(results)
}

/// The bids whose channel has a number: auction, bidder, price, channel, number. The number is that of a well-known channel,
/// or stands in the address of the page.
pub fn q21(query: &Query) -> Flow {
    let results = query.bids().flat_map(|bid| {
        let id = channel_id(bid)?;
        Some((bid.auction, bid.bidder, bid.price, bid.channel.clone(), id))
    });
    query.end(results)
}

/// Each bid with three folders of its page: auction, bidder, price, channel, and the folders, which may be missing.
pub fn q22(query: &Query) -> Flow {
    let results = query.bids().map(|bid| {
        let mut folders = bid.url.split('/').skip(3).map(str::to_owned);
        let [one, two, three] = [(); 3].map(|()| folders.next());
        let channel = bid.channel.clone();
        (bid.auction, bid.bidder, bid.price, channel, one, two, three)
    });
    query.end(results)
}

/// Converts US cents to cents of euros, at the rate of the benchmark.
fn euros(price: u64) -> f64 {
    price as f64 * 0.908
}

fn channel_id(bid: &Bid) -> Option<String> {
    let known = match bid.channel.to_lowercase().as_str() {
        "apple" => Some("0"),
        "google" => Some("1"),
        "facebook" => Some("2"),
        "baidu" => Some("3"),
        _ => None,
    };
    let mut parts = bid.url.split('&');
    let id = known.or_else(|| parts.find_map(|part| part.strip_prefix("channel_id=")));
    id.map(str::to_owned)
}
