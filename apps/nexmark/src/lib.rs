//! The Nexmark benchmark: persons, auctions and bids of an auction house.

mod event;
mod generator;

pub use event::{Auction, Bid, Event, Person};
pub use generator::{EventGenerator, START};
