//! The queries, except q12, which goes by the wall clock. `apps/nexmark/src/queries` says what their results are.
//!
//! Bids and auctions are never taken back. So where the last or highest one of a key is asked for, `chain_aggregate` keeps
//! that one alone, and no trace of the others.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use dbsp::DBData;
use dbsp::algebra::F64;
use dbsp::operator::CmpFunc;
use dbsp::utils::{Tup2, Tup3, Tup4, Tup5, Tup7};

use crate::events;
use crate::input::{Input, Results, Set, Table};
use crate::rows::{Auction, Bid, day, hour, minute, text};

pub type Build = fn(Input<'_>, &Results);

pub const QUERIES: [(&str, Build); 21] = [
    ("q0", q0),
    ("q1", q1),
    ("q2", q2),
    ("q3", q3),
    ("q4", q4),
    ("q5", q5),
    ("q7", q7),
    ("q8", q8),
    ("q9", q9),
    ("q10", q10),
    ("q11", q11),
    ("q13", q13),
    ("q14", q14),
    ("q15", q15),
    ("q16", q16),
    ("q17", q17),
    ("q18", q18),
    ("q19", q19),
    ("q20", q20),
    ("q21", q21),
    ("q22", q22),
];

/// The category of which some queries select the auctions.
const CATEGORY: u64 = 10;

/// The length of windows and the gap between sessions; sliding windows begin after each slide.
const WINDOW_MS: i64 = 10_000;
const SLIDE_MS: i64 = 2_000;

const TABLE_ROWS: u64 = 10_000;

fn q0(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| Some(Arc::new(Bid::of(bid))));
    results.end(&bids, |bid, ()| text![**bid]);
}

fn q1(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        let extra = bid.extra.to_owned();
        Some(Tup5(
            bid.date_time,
            bid.auction,
            bid.bidder,
            euros(bid.price),
            extra,
        ))
    });
    results.end(&bids, |Tup5(time, auction, bidder, price, extra), ()| {
        text![auction, bidder, price, time, extra]
    });
}

fn q2(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        let is_selected = bid.auction.is_multiple_of(123);
        is_selected.then_some(Tup2(bid.auction, bid.price))
    });
    results.end(&bids, |Tup2(auction, price), ()| text![auction, price]);
}

fn q3(input: Input<'_>, results: &Results) {
    let (auctions, persons) = input.tables(
        |event| {
            let auction = event.auction()?;
            (auction.category == CATEGORY).then_some((auction.seller, auction.id))
        },
        |event| {
            let person = event.person()?;
            let row = || [person.name, person.city, person.state].map(str::to_owned);
            let is_selected = ["OR", "ID", "CA"].contains(&person.state);
            is_selected.then(|| (person.id, Tup3::from(<(_, _, _)>::from(row()))))
        },
    );
    let sellers = auctions.join(&persons, |_, auction, person| {
        Tup2(person.clone(), *auction)
    });
    results.end(&sellers, |Tup2(Tup3(name, city, state), auction), ()| {
        text![name, city, state, auction]
    });
}

fn q4(input: Input<'_>, results: &Results) {
    let (auctions, bids) = input.tables(
        |event| {
            let auction = event.auction()?;
            let (begin, end) = (auction.date_time, auction.expires);
            Some((auction.id, Tup3(begin, end, auction.category)))
        },
        |event| {
            let bid = event.bid()?;
            Some((bid.auction, Tup2(bid.date_time, bid.price)))
        },
    );
    let means = auctions
        .join_index(
            &bids,
            |id, Tup3(begin, end, category), Tup2(time, price)| {
                (begin..=end)
                    .contains(&time)
                    .then_some((*id, Tup2(*price, *category)))
            },
        )
        .chain_aggregate(|bid, _| bid.clone(), highest)
        .map_index(|(_, Tup2(price, category))| (*category, *price))
        .aggregate_linear_postprocess(
            |price| Tup2(*price as i64, 1),
            |Tup2(sum, count): Tup2<i64, i64>| F64::from(sum as f64 / count as f64),
        );
    results.end(&means, |category, mean| text![category, mean]);
}

/// The bids of each slide are counted first. Each window has those of several slides.
fn q5(input: Input<'_>, results: &Results) {
    let hottest = bids(input, |bid| {
        Some(Tup2(begin(bid.date_time, SLIDE_MS), bid.auction))
    })
    .flat_map(|Tup2(slide, auction)| {
        let (slide, auction) = (*slide, *auction);
        let windows = (0..WINDOW_MS / SLIDE_MS).map(move |slides| slide - slides * SLIDE_MS);
        windows.map(move |window| Tup2(window, auction))
    })
    .weighted_count()
    .map_index(|(Tup2(window, auction), bids)| (*window, Tup2(*bids, *auction)))
    .topk_rank_custom_order::<MostBids, _, _, _>(
        1,
        |Tup2(bids, _), Tup2(other, _)| bids == other,
        |_, row| row.clone(),
    );
    results.end(&hottest, |window, Tup2(bids, auction)| {
        text![auction, bids, window]
    });
}

/// Orders numbers of bids for auctions, the largest first.
struct MostBids;

impl CmpFunc<Tup2<i64, u64>> for MostBids {
    fn cmp(left: &Tup2<i64, u64>, right: &Tup2<i64, u64>) -> std::cmp::Ordering {
        right.cmp(left)
    }
}

fn q7(input: Input<'_>, results: &Results) {
    let highest = input
        .table(|event| {
            let bid = event.bid()?;
            Some((begin(bid.date_time, WINDOW_MS), Arc::new(Bid::of(bid))))
        })
        .chain_aggregate(
            |bid, _| vec![bid.clone()],
            |mut highest, bid, _| {
                let price = highest.first().map_or(0, |first| first.price);
                if bid.price > price {
                    highest.clear();
                }
                if bid.price >= price {
                    highest.push(bid.clone());
                }
                highest
            },
        )
        .flat_map(|(_, bids)| bids.clone());
    results.end(&highest, |bid, ()| text![**bid]);
}

fn q8(input: Input<'_>, results: &Results) {
    let (persons, auctions) = input.tables(
        |event| {
            let person = event.person()?;
            let window = begin(person.date_time, WINDOW_MS);
            Some((Tup2(person.id, window), person.name.to_owned()))
        },
        |event| {
            let auction = event.auction()?;
            Some((
                Tup2(auction.seller, begin(auction.date_time, WINDOW_MS)),
                (),
            ))
        },
    );
    let sellers = persons.join(&auctions.distinct(), |Tup2(id, window), name, ()| {
        Tup3(*id, name.clone(), *window)
    });
    results.end(&sellers, |Tup3(id, name, window), ()| {
        text![id, name, window]
    });
}

fn q9(input: Input<'_>, results: &Results) {
    let (auctions, bids) = auctions_and_bids(input, |_| true);
    let winning = auctions
        .join_index(&bids, |id, auction, bid| {
            let is_valid = (auction.date_time..=auction.expires).contains(&bid.date_time);
            let row = || Tup4(bid.price, -bid.date_time, auction.clone(), bid.clone());
            is_valid.then(|| (*id, row()))
        })
        .chain_aggregate(|row, _| row.clone(), highest);
    results.end(&winning, |_, Tup4(_, _, auction, bid)| {
        text![**auction, **bid]
    });
}

fn q10(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        Some(Tup7(
            bid.date_time,
            bid.auction,
            bid.bidder,
            bid.price,
            bid.extra.to_owned(),
            day(bid.date_time),
            minute(bid.date_time),
        ))
    });
    results.end(
        &bids,
        |Tup7(time, auction, bidder, price, extra, day, minute), ()| {
            text![auction, bidder, price, time, extra, day, minute]
        },
    );
}

fn q11(input: Input<'_>, results: &Results) {
    let sessions = input
        .table(|event| {
            let bid = event.bid()?;
            Some((bid.bidder, bid.date_time))
        })
        .chain_aggregate(
            |time, bids| vec![Tup3(*time, time + WINDOW_MS, bids)],
            |mut sessions, time, bids| {
                let mut session = Tup3(*time, time + WINDOW_MS, bids);
                sessions.retain(|Tup3(begin, end, bids)| {
                    let is_apart = *end < session.0 || *begin > session.1;
                    if !is_apart {
                        let (begin, end) = (session.0.min(*begin), session.1.max(*end));
                        session = Tup3(begin, end, session.2 + bids);
                    }
                    is_apart
                });
                sessions.push(session);
                sessions.sort_unstable();
                sessions
            },
        )
        .flat_map(|(bidder, sessions)| {
            let bidder = *bidder;
            sessions
                .clone()
                .into_iter()
                .map(move |session| Tup2(bidder, session))
        });
    results.end(&sessions, |Tup2(bidder, Tup3(begin, end, bids)), ()| {
        text![bidder, bids, begin, end]
    });
}

/// As in Flink, the table is a hash map.
fn q13(input: Input<'_>, results: &Results) {
    let table: HashMap<u64, u64> = (0..TABLE_ROWS).map(|row| (row, row)).collect();
    let bids = bids(input, move |bid| {
        let value = *table.get(&(bid.auction % TABLE_ROWS))?;
        Some(Tup5(
            bid.date_time,
            bid.auction,
            bid.bidder,
            bid.price,
            value,
        ))
    });
    results.end(&bids, |Tup5(time, auction, bidder, price, value), ()| {
        text![auction, bidder, price, time, value]
    });
}

fn q14(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        let price = euros(bid.price);
        if price <= F64::new(1_000_000.0) || price >= F64::new(50_000_000.0) {
            return None;
        }
        let part = match hour(bid.date_time) {
            8..=18 => "dayTime",
            7 | 19 => "otherTime",
            _ => "nightTime",
        };
        let letters = bid.extra.matches('c').count() as u64;
        Some(Tup7(
            bid.date_time,
            bid.auction,
            bid.bidder,
            price,
            part.to_owned(),
            bid.extra.to_owned(),
            letters,
        ))
    });
    results.end(
        &bids,
        |Tup7(time, auction, bidder, price, part, extra, letters), ()| {
            text![auction, bidder, price, part, time, extra, letters]
        },
    );
}

fn q15(input: Input<'_>, results: &Results) {
    let days = counts(input, |bid| begin(bid.date_time, DAY_MS));
    results.end(&days, |time, Tup2(_, counts)| {
        text![day(*time), counts_text(counts)]
    });
}

fn q16(input: Input<'_>, results: &Results) {
    let channels = counts(input, |bid| {
        Tup2(bid.channel.to_owned(), begin(bid.date_time, DAY_MS))
    });
    results.end(&channels, |Tup2(channel, time), Tup2(last, counts)| {
        text![channel, day(*time), minute(*last), counts_text(counts)]
    });
}

fn q17(input: Input<'_>, results: &Results) {
    let prices = input
        .table(|event| {
            let bid = event.bid()?;
            Some((Tup2(bid.auction, begin(bid.date_time, DAY_MS)), bid.price))
        })
        .chain_aggregate(
            |price, bids| {
                add_price(
                    Tup5(Tup4(0, 0, 0, 0), u64::MAX, 0, F64::new(0.0), 0),
                    price,
                    bids,
                )
            },
            add_price,
        );
    results.end(
        &prices,
        |Tup2(auction, time), Tup5(Tup4(all, low, middle, high), min, max, mean, sum)| {
            text![
                auction,
                day(*time),
                all,
                low,
                middle,
                high,
                min,
                max,
                mean,
                sum
            ]
        },
    );
}

fn q18(input: Input<'_>, results: &Results) {
    // Bids of one bidder for one auction are in the order of time and price.
    let last = input
        .table(|event| {
            let bid = event.bid()?;
            Some((Tup2(bid.bidder, bid.auction), Arc::new(Bid::of(bid))))
        })
        .chain_aggregate(|bid, _| bid.clone(), highest);
    results.end(&last, |_, bid| text![**bid]);
}

fn q19(input: Input<'_>, results: &Results) {
    let highest = input
        .table(|event| {
            let bid = event.bid()?;
            let row = Tup3(bid.price, -bid.date_time, Arc::new(Bid::of(bid)));
            Some((bid.auction, row))
        })
        .topk_desc(10);
    results.end(&highest, |_, Tup3(_, _, bid)| text![**bid]);
}

fn q20(input: Input<'_>, results: &Results) {
    let (auctions, bids) = auctions_and_bids(input, |auction| auction.category == CATEGORY);
    let pairs = auctions.join(&bids, |_, auction, bid| Tup2(auction.clone(), bid.clone()));
    results.end(&pairs, |Tup2(auction, bid), ()| text![**auction, **bid]);
}

fn q21(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        let id = channel_id(bid)?;
        let channel = bid.channel.to_owned();
        Some(Tup5(
            bid.auction,
            bid.bidder,
            bid.price,
            channel,
            id.to_owned(),
        ))
    });
    results.end(&bids, |Tup5(auction, bidder, price, channel, id), ()| {
        text![auction, bidder, price, channel, id]
    });
}

fn q22(input: Input<'_>, results: &Results) {
    let bids = bids(input, |bid| {
        let mut folders = bid.url.split('/').skip(3).map(str::to_owned);
        let [one, two, three] = [(); 3].map(|()| folders.next());
        let channel = bid.channel.to_owned();
        Some(Tup7(
            bid.auction,
            bid.bidder,
            bid.price,
            channel,
            one,
            two,
            three,
        ))
    });
    results.end(
        &bids,
        |Tup7(auction, bidder, price, channel, one, two, three), ()| {
            text![auction, bidder, price, channel, one, two, three]
        },
    );
}

/// Returns the rows that `row` makes of the bids.
fn bids<T: DBData>(
    input: Input<'_>,
    row: impl Fn(&events::Bid<'_>) -> Option<T> + 'static,
) -> Set<T> {
    input.set(move |event| row(event.bid()?))
}

fn auctions_and_bids(
    input: Input<'_>,
    is_selected: fn(&events::Auction<'_>) -> bool,
) -> (Table<u64, Arc<Auction>>, Table<u64, Arc<Bid>>) {
    input.tables(
        move |event| {
            let auction = event.auction().filter(|auction| is_selected(auction))?;
            Some((auction.id, Arc::new(Auction::of(auction))))
        },
        |event| {
            let bid = event.bid()?;
            Some((bid.auction, Arc::new(Bid::of(bid))))
        },
    )
}

/// Counts of all bids, and of those with prices below 10,000, below 1,000,000, and above.
type ByPrice = Tup4<i64, i64, i64, i64>;

/// The time of the last bid; counts of different auctions, of different bidders, and of bids.
type Counts = Tup2<i64, Tup3<ByPrice, ByPrice, ByPrice>>;

const AUCTION: u8 = 0;
const BIDDER: u8 = 1;

/// Returns the counts of each key.
fn counts<K: DBData>(
    input: Input<'_>,
    key: impl Fn(&events::Bid<'_>) -> K + Clone + 'static,
) -> Table<K, Counts> {
    let key_too = key.clone();
    let (bids, ids) = input.tables(
        move |event| {
            let bid = event.bid()?;
            let minute = begin(bid.date_time, MINUTE_MS);
            Some((key(bid), Tup2(minute, class(bid.price))))
        },
        move |event| {
            let bid = event.bid();
            let ids = bid.map(|bid| {
                let bits = 1 << class(bid.price);
                let ids = [(AUCTION, bid.auction), (BIDDER, bid.bidder)];
                ids.map(|(kind, id)| (Tup3(key_too(bid), kind, id), bits))
            });
            ids.into_iter().flatten()
        },
    );
    let bids = bids.chain_aggregate(
        |Tup2(minute, class), bids| Tup2(*minute, by_price(1 << class, bids)),
        |Tup2(last, counts), Tup2(minute, class), bids| {
            Tup2(last.max(*minute), add(counts, by_price(1 << class, bids)))
        },
    );
    // An auction or a bidder counts once in each class of prices, and once in all.
    ids.chain_aggregate(|bits, _| *bits, |seen, bits, _| seen | bits)
        .map_index(|(Tup3(key, kind, _), bits)| (key.clone(), Tup2(*kind, *bits)))
        .aggregate_linear(|Tup2(kind, bits)| {
            let (one, none) = (by_price(*bits, 1), by_price(0, 0));
            match *kind {
                AUCTION => Tup2(one, none),
                _ => Tup2(none, one),
            }
        })
        .join_index(&bids, |key, Tup2(auctions, bidders), Tup2(last, bids)| {
            let counts = Tup3(auctions.clone(), bidders.clone(), bids.clone());
            iter::once((key.clone(), Tup2(*last, counts)))
        })
}

/// Returns the index of a bid's class of prices.
fn class(price: u64) -> u8 {
    match price {
        0..10_000 => 0,
        10_000..1_000_000 => 1,
        1_000_000.. => 2,
    }
}

/// Returns a count in all and in the classes whose bits are set.
fn by_price(bits: u8, count: i64) -> ByPrice {
    let in_class = |class: u8| if bits & 1 << class == 0 { 0 } else { count };
    Tup4(count, in_class(0), in_class(1), in_class(2))
}

fn add(one: ByPrice, other: ByPrice) -> ByPrice {
    Tup4(
        one.0 + other.0,
        one.1 + other.1,
        one.2 + other.2,
        one.3 + other.3,
    )
}

fn counts_text(Tup3(auctions, bidders, bids): &Tup3<ByPrice, ByPrice, ByPrice>) -> String {
    let text = |Tup4(all, low, middle, high): &ByPrice| text![all, low, middle, high];
    text![text(auctions), text(bidders), text(bids)]
}

/// Counts; the least, the highest, the mean and the total price.
type Prices = Tup5<ByPrice, u64, u64, F64, u64>;

fn add_price(Tup5(counts, min, max, _, sum): Prices, price: &u64, bids: i64) -> Prices {
    let counts = add(counts, by_price(1 << class(*price), bids));
    let sum = sum + price * bids as u64;
    let mean = F64::new(sum as f64 / counts.0 as f64);
    Tup5(counts, min.min(*price), max.max(*price), mean, sum)
}

/// The larger of two rows.
fn highest<T: DBData>(highest: T, row: &T, _: i64) -> T {
    if *row > highest { row.clone() } else { highest }
}

const MINUTE_MS: i64 = 60_000;
const DAY_MS: i64 = 86_400_000;

/// Returns the begin of the window of this length that a time is in.
fn begin(time_ms: i64, window_ms: i64) -> i64 {
    time_ms.div_euclid(window_ms) * window_ms
}

/// Converts US cents to cents of euros, at the rate of the benchmark.
fn euros(price: u64) -> F64 {
    F64::new(price as f64 * 0.908)
}

fn channel_id<'a>(bid: &events::Bid<'a>) -> Option<&'a str> {
    let known = match bid.channel.to_lowercase().as_str() {
        "apple" => Some("0"),
        "google" => Some("1"),
        "facebook" => Some("2"),
        "baidu" => Some("3"),
        _ => None,
    };
    let mut parts = bid.url.split('&');
    known.or_else(|| parts.find_map(|part| part.strip_prefix("channel_id=")))
}
