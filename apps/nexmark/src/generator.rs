//! Generates events from a seed and their numbers.
//!
//! An event depends on nothing but the seed, the rate and its number. So several sources generate the events of one
//! sequence together, and each resumes at any number. Proportions, hot persons and auctions, prices and lengths of auctions
//! are those of the specification (P. Tucker, K. Tufte, V. Papadimos, D. Maier: NEXMark, a benchmark for queries over data
//! streams; and the generators of Apache Beam and Flink that follow it), except that each reference leads to an earlier
//! event. The random numbers are others.

use std::num::NonZeroU64;

use fastrand::Rng;
use millstream::Timestamp;
use millstream::flow::Source;
use millstream::flow::sources::Generator;
use millstream::log::Share;

use crate::event::{Auction, Bid, Event, Person};

/// The time of the program's first event: 2015-07-15, midnight UTC.
pub const START: Timestamp = Timestamp(1_436_918_400_000);

/// Events come in runs of this number: first the persons of a run, then its auctions, then its bids.
const RUN_EVENTS: u64 = 50;
const RUN_PERSONS: u64 = 1;
const RUN_AUCTIONS: u64 = 3;

/// The numbers of the first person and the first auction.
const FIRST_ID: u64 = 1000;

/// The number of the first category, and the number of categories.
const FIRST_CATEGORY: u64 = 10;
const CATEGORIES: u64 = 5;

/// Bids are for the newest auctions, this number of them.
const OPEN_AUCTIONS: u64 = 100;

/// The newest persons, this number of them, sell and bid.
const ACTIVE_PERSONS: u64 = 1000;

/// One in a hundred persons and auctions is hot.
const HOT_EVERY: u64 = 100;

/// All sellers but one of this number are the hot person, and so on.
const HOT_SELLERS: u64 = 4;
const HOT_BIDDERS: u64 = 4;
const HOT_AUCTIONS: u64 = 2;
const HOT_CHANNELS: u64 = 2;

/// The other channels.
const COLD_CHANNELS: u64 = 10_000;

/// One in this number of the other channels does not have its number in the address of the page.
const CHANNELS_WITHOUT_ID: u64 = 10;

/// The usual sizes of events, in bytes.
const PERSON_BYTES: usize = 200;
const AUCTION_BYTES: usize = 500;
const BID_BYTES: usize = 100;

const FIRST_NAMES: [&str; 10] = [
    "ada", "ben", "cleo", "dan", "eva", "finn", "gwen", "hugo", "iris", "jon",
];
const LAST_NAMES: [&str; 10] = [
    "archer", "baker", "carter", "fisher", "mason", "miller", "potter", "smith", "taylor", "weaver",
];
const CITIES: [(&str, &str); 10] = [
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("San Diego", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Salem", "OR"),
    ("Seattle", "WA"),
    ("Tacoma", "WA"),
    ("Cheyenne", "WY"),
    ("Casper", "WY"),
];

/// The channels from which half of the bidders come.
const CHANNELS: [&str; 4] = ["Apple", "Google", "Facebook", "Baidu"];

/// Generates events: the same one for the same settings and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventGenerator {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The time of the first event.
    pub start: Timestamp,
    /// The events per second of event time.
    pub rate: NonZeroU64,
}

impl EventGenerator {
    /// Returns the event of a number.
    pub fn event(&self, number: u64) -> Event {
        // Seeds of neighbours are far apart.
        let mut random = Rng::with_seed(self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let place = number % RUN_EVENTS;
        if place < RUN_PERSONS {
            Event::Person(self.person(number, &mut random).into())
        } else if place < RUN_PERSONS + RUN_AUCTIONS {
            Event::Auction(self.auction(number, &mut random).into())
        } else {
            Event::Bid(self.bid(number, &mut random).into())
        }
    }

    /// Returns the time of the event of a number. Times increase with the numbers.
    pub fn time(&self, number: u64) -> Timestamp {
        let rate = self.rate.get();
        let whole_ms = (number / rate).saturating_mul(1000);
        let rest_ms = u128::from(number % rate) * 1000 / u128::from(rate);
        let after_ms = whole_ms.saturating_add(u64::try_from(rest_ms).unwrap_or(u64::MAX));
        Timestamp(self.start.0.saturating_add_unsigned(after_ms))
    }

    /// Returns a source of the events before a number: those of one share of all.
    pub fn source(self, events: u64, share: Share) -> impl Source<Item = Event> {
        let (index, of) = (u64::from(share.index), u64::from(share.of));
        let events_of_share = events.saturating_sub(index).div_ceil(of);
        Generator::new(move |turn| self.event(index + turn * of)).limit(events_of_share)
    }

    fn person(&self, number: u64, random: &mut Rng) -> Person {
        let [first, last] = [FIRST_NAMES, LAST_NAMES].map(|names| names[random.usize(0..10)]);
        let name = format!("{first} {last}");
        let email_address = format!("{}@{}.com", letters(random, 7), letters(random, 5));
        let groups = [(); 4].map(|()| format!("{:04}", random.u16(0..10_000)));
        let credit_card = groups.join(" ");
        let (city, state) = CITIES[random.usize(0..CITIES.len())];
        let texts = [name.as_str(), &email_address, &credit_card, city, state];
        let bytes = 8 + 8 + texts.map(str::len).iter().sum::<usize>();
        Person {
            id: FIRST_ID + newest_person(number),
            extra: filling(random, PERSON_BYTES, bytes),
            name,
            email_address,
            credit_card,
            city: city.to_owned(),
            state: state.to_owned(),
            date_time: self.time(number),
        }
    }

    fn auction(&self, number: u64, random: &mut Rng) -> Auction {
        let seller = match random.u64(0..HOT_SELLERS) {
            0 => active_person(number, random),
            _ => hot(newest_person(number)),
        };
        let initial_bid = price(random);
        let (item_name, description) = (letters(random, 20), letters(random, 100));
        let bytes = 7 * 8 + item_name.len() + description.len();
        Auction {
            id: FIRST_ID + newest_auction(number),
            extra: filling(random, AUCTION_BYTES, bytes),
            item_name,
            description,
            initial_bid,
            reserve: initial_bid + price(random),
            date_time: self.time(number),
            expires: self.end_of_auction(number, random),
            seller: FIRST_ID + seller,
            category: FIRST_CATEGORY + random.u64(0..CATEGORIES),
        }
    }

    /// Returns a time at which, on average, as many auctions as are open have begun since.
    fn end_of_auction(&self, number: u64, random: &mut Rng) -> Timestamp {
        let begin = self.time(number);
        let full = self.time(number.saturating_add(OPEN_AUCTIONS * RUN_EVENTS / RUN_AUCTIONS));
        let mean_ms = full.0.saturating_sub(begin.0);
        let after_ms = 1 + random.i64(0..mean_ms.saturating_mul(2).max(1));
        Timestamp(begin.0.saturating_add(after_ms))
    }

    fn bid(&self, number: u64, random: &mut Rng) -> Bid {
        let newest = newest_auction(number);
        let auction = match random.u64(0..HOT_AUCTIONS) {
            0 => newest - random.u64(0..=newest.min(OPEN_AUCTIONS)),
            _ => hot(newest),
        };
        let newest = newest_person(number);
        let bidder = match random.u64(0..HOT_BIDDERS) {
            0 => active_person(number, random),
            // The hot seller does not bid.
            _ => (hot(newest) + 1).min(newest),
        };
        let channel = match random.u64(0..HOT_CHANNELS) {
            0 => random.u64(0..COLD_CHANNELS) + CHANNELS.len() as u64,
            _ => random.u64(0..CHANNELS.len() as u64),
        };
        let (channel, url) = self.channel(channel);
        let bytes = 4 * 8 + channel.len() + url.len();
        Bid {
            auction: FIRST_ID + auction,
            bidder: FIRST_ID + bidder,
            price: price(random),
            extra: filling(random, BID_BYTES + url.len(), bytes),
            channel,
            url,
            date_time: self.time(number),
        }
    }

    /// Returns the name of a channel and the address of its page, which has the channel's number in most cases.
    fn channel(&self, channel: u64) -> (String, String) {
        let mut random = Rng::with_seed(!self.seed ^ channel);
        let [one, two, three] = [(); 3].map(|()| letters(&mut random, 5));
        let page = format!("https://www.nexmark.com/{one}/{two}/{three}/item.htm?query=1");
        if let Some(name) = usize::try_from(channel)
            .ok()
            .and_then(|it| CHANNELS.get(it))
        {
            return ((*name).to_owned(), page);
        }
        let id = random.u32(..);
        let url = match channel % CHANNELS_WITHOUT_ID {
            0 => page,
            _ => format!("{page}&channel_id={id}"),
        };
        (format!("channel-{}", channel - CHANNELS.len() as u64), url)
    }
}

/// Returns the number of persons before the one that is the newest at the event of a number.
fn newest_person(number: u64) -> u64 {
    number / RUN_EVENTS
}

/// Returns the same of auctions. There is none yet at the very first event, which is a person.
fn newest_auction(number: u64) -> u64 {
    let auctions = number / RUN_EVENTS * RUN_AUCTIONS + (number % RUN_EVENTS).min(RUN_AUCTIONS);
    auctions.saturating_sub(1)
}

/// Returns the newest hot person or auction.
fn hot(newest: u64) -> u64 {
    newest / HOT_EVERY * HOT_EVERY
}

fn active_person(number: u64, random: &mut Rng) -> u64 {
    let newest = newest_person(number);
    newest - random.u64(0..=newest.min(ACTIVE_PERSONS - 1))
}

/// Returns a price from a dollar to a million dollars, each order of magnitude as often.
fn price(random: &mut Rng) -> u64 {
    (10_f64.powf(random.f64() * 6.0) * 100.0).round() as u64
}

/// Returns from three to `max` letters.
fn letters(random: &mut Rng, max: usize) -> String {
    let length = random.usize(3..=max);
    word(random, length)
}

fn word(random: &mut Rng, length: usize) -> String {
    (0..length).map(|_| random.lowercase()).collect()
}

/// Returns letters that fill an event to its usual size, and up to a fifth of them more or fewer.
fn filling(random: &mut Rng, usual: usize, bytes: usize) -> String {
    let missing = usual.saturating_sub(bytes);
    let length = random.usize(missing - missing / 5..=missing + missing / 5);
    word(random, length)
}

#[cfg(test)]
mod tests;
