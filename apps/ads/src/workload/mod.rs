//! The events of the benchmarks SWA, YSB and YSB* (Venugopal et al., "AIR", section 5.1), generated
//! and read in memory.
//!
//! An event's length varies, 136 bytes on average, and lies at a multiple of 8 bytes in a [`Block`]:
//!
//! ```text
//! byte  0        8      12   13    14       16       32       48        64          112 to 160
//!       ├────────┼──────┼────┼─────┼────────┼────────┼────────┼─────────┼───────────────────┤
//!       │ time   │ ad   │kind│form │ length │ user   │ page   │ address │ user agent, text  │
//!       └────────┴──────┴────┴─────┴────────┴────────┴────────┴─────────┴───────────────────┘
//! ```
//!
//! Numbers are little-endian: the time in milliseconds since 1970 UTC, the ad's number, the kind (0 view, 1 click,
//! 2 purchase), the form of the ad (0 to 4), the event's length in bytes, three numbers of 128 bits.
//!
//! An event's contents follow from its instance and its number there. So after a run that has only
//! noted the number of events in each window, [`Expected`] returns the expected counts, and
//! programs in other languages generate the same events.
//!
//! ```
//! use std::time::Duration;
//! use millstream_ads::workload::{Block, Expected, Feed, Fed, Kind, Schedule};
//!
//! let schedule = Schedule { start_ms: 20_000, window_ms: 10_000, rate: 1_000, duration_ms: 15_000 };
//! let mut feed = Feed::new(schedule, 0);
//! let mut block = Block::default();
//! let mut views = 0;
//! // A clock that jumps: all events are due at once.
//! while feed.next(Duration::from_secs(15), &mut block) == Fed::Events {
//!     let first = block.events().filter(|event| event.time_ms() < 30_000);
//!     views += first.filter(|event| event.kind() == Kind::View).count() as u64;
//! }
//! let expected = Expected::of(&[feed.made().to_vec()]);
//! let window = &expected.windows()[&20_000];
//! assert_eq!((0..100).map(|campaign| window.of_campaign(campaign).views).sum::<u64>(), views);
//! assert_eq!(expected.complete_until_ms(), 30_000);
//! ```

mod block;
mod expected;
mod facts;
mod feed;

pub use block::{Block, Event, Events, Head};
pub use expected::{Expected, KindCounts, WindowCounts};
pub use facts::{ADS, CAMPAIGNS, EVENT_BYTES_MAX, Facts, Kind, campaign_of_ads};
pub use feed::{BATCH_EVENTS, Fed, Feed, Made, Position, Schedule};
