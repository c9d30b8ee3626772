//! Rows of tables and of results.

use dbsp::algebra::F64;
use feldera_macros::IsNone;
use rkyv::{Archive, Deserialize, Serialize};
use size_of::SizeOf;
use time::OffsetDateTime;

use crate::events;

/// A bid. Rows are ordered by their fields; the time is the first, since dbsp sorts events in a file by it with few
/// comparisons.
#[derive(
    Debug,
    Default,
    Clone,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    SizeOf,
    Archive,
    Serialize,
    Deserialize,
    IsNone,
)]
#[archive_attr(derive(PartialEq, Eq, PartialOrd, Ord))]
pub struct Bid {
    pub date_time: i64,
    pub auction: u64,
    pub bidder: u64,
    pub price: u64,
    pub channel: String,
    pub url: String,
    pub extra: String,
}

#[derive(
    Debug,
    Default,
    Clone,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    SizeOf,
    Archive,
    Serialize,
    Deserialize,
    IsNone,
)]
#[archive_attr(derive(PartialEq, Eq, PartialOrd, Ord))]
pub struct Auction {
    pub date_time: i64,
    pub id: u64,
    pub item_name: String,
    pub description: String,
    pub initial_bid: u64,
    pub reserve: u64,
    pub expires: i64,
    pub seller: u64,
    pub category: u64,
    pub extra: String,
}

impl Bid {
    pub fn of(bid: &events::Bid<'_>) -> Bid {
        Bid {
            date_time: bid.date_time,
            auction: bid.auction,
            bidder: bid.bidder,
            price: bid.price,
            channel: bid.channel.to_owned(),
            url: bid.url.to_owned(),
            extra: bid.extra.to_owned(),
        }
    }
}

impl Auction {
    pub fn of(auction: &events::Auction<'_>) -> Auction {
        Auction {
            date_time: auction.date_time,
            id: auction.id,
            item_name: auction.item_name.to_owned(),
            description: auction.description.to_owned(),
            initial_bid: auction.initial_bid,
            reserve: auction.reserve,
            expires: auction.expires,
            seller: auction.seller,
            category: auction.category,
            extra: auction.extra.to_owned(),
        }
    }
}

/// Writes a result as text: columns with tabs between them, as the other sides of the benchmark do.
macro_rules! text {
    ($($column:expr),+ $(,)?) => {
        [$($crate::rows::Column::text(&$column)),+].join("\t")
    };
}
pub(crate) use text;

/// A column, or several.
pub trait Column {
    fn text(&self) -> String;
}

impl<T: Column> Column for &T {
    fn text(&self) -> String {
        T::text(self)
    }
}

impl Column for u64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Column for i64 {
    fn text(&self) -> String {
        self.to_string()
    }
}

impl Column for F64 {
    fn text(&self) -> String {
        format!("{:.3}", self.into_inner())
    }
}

impl Column for String {
    fn text(&self) -> String {
        self.clone()
    }
}

impl Column for Option<String> {
    fn text(&self) -> String {
        self.as_deref().unwrap_or("null").to_owned()
    }
}

/// In the order of the columns' names.
impl Column for Bid {
    fn text(&self) -> String {
        text![
            self.auction,
            self.bidder,
            self.channel,
            self.date_time,
            self.extra,
            self.price,
            self.url
        ]
    }
}

impl Column for Auction {
    fn text(&self) -> String {
        text![
            self.category,
            self.date_time,
            self.description,
            self.expires,
            self.extra,
            self.id,
            self.initial_bid,
            self.item_name,
            self.reserve,
            self.seller
        ]
    }
}

/// Returns the day of a time, such as `2015-07-15`.
pub fn day(time_ms: i64) -> String {
    let date = date(time_ms);
    let (year, month, day) = date.to_calendar_date();
    format!("{year:04}-{:02}-{day:02}", u8::from(month))
}

/// Returns the hour and minute of a time, such as `09:30`.
pub fn minute(time_ms: i64) -> String {
    let date = date(time_ms);
    format!("{:02}:{:02}", date.hour(), date.minute())
}

/// Returns the hour of the day, from 0 to 23.
pub fn hour(time_ms: i64) -> u8 {
    date(time_ms).hour()
}

fn date(time_ms: i64) -> OffsetDateTime {
    let date = OffsetDateTime::from_unix_timestamp(time_ms.div_euclid(1000));
    date.expect("events of this age")
}
