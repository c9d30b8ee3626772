//! The events of an auction house.

use std::sync::Arc;

use millstream::Timestamp;
use serde::{Deserialize, Serialize};

/// An event, of which a copy costs little. As JSON it has its kind: `{"Bid":{"auction":1000,…}}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A person registers.
    Person(Arc<Person>),
    /// A person offers a thing for sale.
    Auction(Arc<Auction>),
    /// A person bids for it.
    Bid(Arc<Bid>),
}

/// A person, both a seller and a bidder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// The number of the person.
    pub id: u64,
    /// First and last name.
    pub name: String,
    /// The address for e-mail.
    pub email_address: String,
    /// Four groups of four digits.
    pub credit_card: String,
    /// The city.
    pub city: String,
    /// The state of the USA, in two letters.
    pub state: String,
    /// The time of the registration.
    pub date_time: Timestamp,
    /// Letters that fill the event to its usual size.
    pub extra: String,
}

/// An auction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auction {
    /// The number of the auction.
    pub id: u64,
    /// The name of the thing.
    pub item_name: String,
    /// Its description.
    pub description: String,
    /// The lowest price, in US cents.
    pub initial_bid: u64,
    /// The price below which the seller does not sell, in US cents.
    pub reserve: u64,
    /// The beginning of the auction.
    pub date_time: Timestamp,
    /// Its end: later bids do not count.
    pub expires: Timestamp,
    /// The person that sells.
    pub seller: u64,
    /// The category of the thing.
    pub category: u64,
    /// Letters that fill the event to its usual size.
    pub extra: String,
}

/// A bid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bid {
    /// The auction.
    pub auction: u64,
    /// The person that bids.
    pub bidder: u64,
    /// The price, in US cents.
    pub price: u64,
    /// The site from which the bidder came.
    pub channel: String,
    /// The page from which the bidder came.
    pub url: String,
    /// The time of the bid.
    pub date_time: Timestamp,
    /// Letters that fill the event to its usual size.
    pub extra: String,
}

impl Event {
    /// Returns the time of the event.
    pub fn time(&self) -> Timestamp {
        match self {
            Event::Person(person) => person.date_time,
            Event::Auction(auction) => auction.date_time,
            Event::Bid(bid) => bid.date_time,
        }
    }

    /// Returns the person, if the event is one.
    pub fn person(&self) -> Option<Arc<Person>> {
        match self {
            Event::Person(person) => Some(Arc::clone(person)),
            _ => None,
        }
    }

    /// Returns the auction, if the event is one.
    pub fn auction(&self) -> Option<Arc<Auction>> {
        match self {
            Event::Auction(auction) => Some(Arc::clone(auction)),
            _ => None,
        }
    }

    /// Returns the bid, if the event is one.
    pub fn bid(&self) -> Option<Arc<Bid>> {
        match self {
            Event::Bid(bid) => Some(Arc::clone(bid)),
            _ => None,
        }
    }
}
