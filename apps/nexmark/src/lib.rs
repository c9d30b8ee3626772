//! The Nexmark benchmark: queries over the persons, auctions and bids of an auction house.
//!
//! [`QUERIES`] are the queries q0 to q22 except q6, which Flink does not have either. The program `nexmark` runs one of them
//! over a topic or over generated events. A result is a list of the columns that the documentation of its query names,
//! in the topic `nexmark.<query>`. Some are [changes](millstream::RowChange) of rows.

mod calendar;
mod event;
mod file;
mod generator;
mod queries;
mod query;

pub use calendar::{day, hour, minute};
pub use event::{Auction, Bid, Event, Person};
pub use file::{EventFile, write_events};
pub use generator::{EventGenerator, START};
pub use queries::{Definition, QUERIES};
pub use query::{Counter, Events, Origin, Query};
