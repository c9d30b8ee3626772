//! The ads application counts the views and clicks of campaigns.
//!
//! Events of ads (views, clicks, purchases) arrive in the stream [`EVENTS_STREAM`]. A flow selects the
//! views and clicks, looks up the campaign of each ad, and counts views and clicks by campaign in
//! windows of ten seconds of event time. The counts of closed windows go to the stream
//! [`COUNTS_STREAM`]; the state element [`COUNTS_STATE`] holds the newest counts of each campaign.
//!
//! It does the same work as the Yahoo streaming benchmark.
//!
//! ```
//! use millstream_ads::{AdsFlow, Generator};
//! use millstream_base::{ProducerId, Timestamp};
//! use millstream_connect::StreamProducer;
//! use millstream_flow::FlowSettings;
//! use millstream_log::{Log, LogConfig};
//!
//! let dir = tempfile::tempdir()?;
//! let log = Log::open(LogConfig::new(dir.path()))?;
//! let ads = AdsFlow::start(&log, FlowSettings::default())?;
//!
//! let mut generator = Generator::new(7);
//! let mut producer = StreamProducer::new(ads.events(), ProducerId::NONE)?;
//! for millisecond in 0..30_000 {
//!     let time = Timestamp(millisecond);
//!     producer.push(time, None, Some(&generator.event(time).encode()), &[])?;
//! }
//! producer.flush()?;
//!
//! let totals = ads.finish()?;
//! assert_eq!(totals.events, 30_000);
//! assert_eq!(totals.counted, totals.views + totals.clicks);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod benchmark;
mod event;
mod flow;
mod generator;
pub mod workload;

pub use event::{Ad, Campaign, EVENT_BYTES, Event, EventError, Kind};
pub use flow::{
    AdCounts, AdsError, AdsFlow, AdsTotals, COUNTS_STATE, COUNTS_STREAM, EVENTS_STREAM, WINDOW_MS,
};
pub use generator::{AD_CAMPAIGNS, ADS, CAMPAIGNS, Generator, campaign_of_ads};
